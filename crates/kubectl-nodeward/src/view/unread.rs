//! What could not be read, and why.

use serde::Serialize;

use crate::failure::MissingRight;

/// Something that could not be read, so that what is shown lacks it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "reason")]
pub enum Unread {
    /// The API server does not serve the kind: its component is not installed.
    #[serde(rename_all = "camelCase")]
    NotInstalled {
        /// What is missing: `drains`, `holds`.
        what: &'static str,
        /// The component that brings it.
        component: &'static str,
    },
    /// The caller lacks a right.
    #[serde(rename_all = "camelCase")]
    Forbidden {
        /// What is missing: `nodes`, `budgets`.
        what: &'static str,
        /// The right.
        missing: MissingRight,
    },
}
