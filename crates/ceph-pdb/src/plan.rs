//! The decision: from one [`Snapshot`], a [`Policy`] and the time to what is written, asked and reported. Pure.

pub mod budget_steps;
pub mod daemon_budgets;
pub mod noout;
pub mod osd_disruptions;
pub mod write;

use std::collections::BTreeMap;

use jiff::Timestamp;

pub use self::write::{Owner, PlannedWrite, Write};
use crate::snapshot::{CephQuestions, Namespace};

/// What follows from a [`crate::snapshot::Snapshot`].
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// What is to be written now. Each on its own; what rests on them comes with a later plan.
    pub actions: Vec<PlannedWrite>,
    /// What Ceph is to be asked, for each cluster that has a connection.
    pub questions: BTreeMap<Namespace, CephQuestions>,
    /// When to plan again at the latest.
    pub requeue_at: Option<Timestamp>,
}
