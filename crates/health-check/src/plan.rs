//! The decision: from one [`crate::snapshot::Snapshot`], a [`crate::policy::Policy`] and the time to what is done, said and waited for. Pure.

pub mod action;
pub mod evidence;
pub mod verdict;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_core::id::{NodeName, NodeUid};

pub use self::action::{
    Action, ActionKey, CheckRef, LeaseChange, LeaseName, LeaseStep, NodeChange, RemediationChange, RemediationRef,
    SelectorWrite, StartRemediation, StatusWrite,
};
pub use self::evidence::{NodeEvidence, RestsOn};
pub use self::verdict::{CheckVerdict, NodeVerdict, Verdicts};

/// What follows from a [`crate::snapshot::Snapshot`].
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// What is to be done, each on its own.
    pub actions: Vec<Action>,
    /// How each NodeHealthCheck and each of its nodes stands.
    pub verdicts: Verdicts,
    /// For the next plan: [`crate::observations::Observations::absent_since`].
    pub absent_since: BTreeMap<(NodeUid, Arc<str>), Timestamp>,
    /// For the next plan: [`crate::observations::Observations::upgrade_unknown_since`].
    pub upgrade_unknown_since: BTreeMap<NodeName, Timestamp>,
    /// When to plan again at the latest.
    pub requeue_at: Option<Timestamp>,
}
