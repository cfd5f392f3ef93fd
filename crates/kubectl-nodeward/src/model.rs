//! Models that several commands share: plain values made of API objects. The models are what `-o json` and `-o yaml`
//! print, so a change of a field's name or meaning breaks scripts. Times are RFC 3339 in UTC, names of pods and budgets
//! `namespace/name`; an empty optional field or list is absent.

pub mod answer;
pub mod budget_health;
pub mod ceph;
pub mod component;
pub mod drain;
pub mod events;
pub mod health;
pub mod leftover;
pub mod locks;
pub mod node;
pub mod outdated;

use std::fmt;

use kube::{Resource, ResourceExt};
use nodeward_api::reason::LockReason;
use serde::Serialize;

use crate::failure::MissingRight;
use crate::text::printable;

/// Something that could not be read, so that the model lacks it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "reason")]
pub enum Unread {
    /// The API server does not serve the kind.
    #[serde(rename_all = "camelCase")]
    NotInstalled {
        what: &'static str,
        component: &'static str,
    },
    /// The caller lacks a right.
    #[serde(rename_all = "camelCase")]
    Forbidden { what: &'static str, missing: MissingRight },
    /// It is there, and this version cannot decode it.
    #[serde(rename_all = "camelCase")]
    Undecodable { what: &'static str, message: String },
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled { what, component } => write!(f, "{what}: {component} is not installed"),
            Self::Forbidden { what, missing } => write!(f, "{what}: {missing}"),
            Self::Undecodable { what, message } => write!(f, "{what}: {message}"),
        }
    }
}

impl Unread {
    /// The ledger, which nobody can act on.
    pub fn ledger(why: &str) -> Self {
        let (why, remedy) = (printable(why), LockReason::LedgerUnreadable.remedy());
        Self::Undecodable {
            what: "claims",
            message: format!(
                "the ledger cannot be decoded, and drain-lock plans nothing until it can: {why}; {remedy}"
            ),
        }
    }

    /// Whether it keeps these from being seen: what is not installed is not there.
    pub fn hides(&self, what: &str) -> bool {
        self.what() == what && self.is_hidden()
    }

    /// Whether it may be there, and cannot be seen.
    pub fn is_hidden(&self) -> bool {
        !matches!(self, Self::NotInstalled { .. })
    }

    /// `drains`, `budgets`, …
    pub fn what(&self) -> &'static str {
        let (Self::NotInstalled { what, .. } | Self::Forbidden { what, .. } | Self::Undecodable { what, .. }) = self;
        what
    }
}

/// `namespace/name`, or the name of what has no namespace.
pub fn qualified(object: &impl Resource) -> String {
    let namespace = object.namespace().map(|namespace| namespace + "/").unwrap_or_default();
    namespace + &object.name_any()
}
