//! What a plan has found out: the one source of statuses, Events, metrics and what the command line says.

use jiff::Timestamp;
use nodeward_api::node_health_check::Phase;
use nodeward_api::reason::{HealthEvent, HealthReason};
use nodeward_core::id::{NodeName, NodeUid};

use super::action::{CheckRef, RemediationRef};
use super::expiry::Unhealthy;

/// How everything stands.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdicts {
    /// NodeHealthChecks, by name.
    pub checks: Vec<CheckVerdict>,
    /// Their nodes that are not plainly healthy, by NodeHealthCheck and name.
    pub nodes: Vec<NodeVerdict>,
    /// What somebody should mend, each said once.
    pub warnings: Vec<Warning>,
}

/// How a NodeHealthCheck stands.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckVerdict {
    /// The NodeHealthCheck.
    pub check: CheckRef,
    /// Where it stands.
    pub phase: Phase,
    /// How many nodes are selected.
    pub observed: usize,
    /// How many of these are healthy.
    pub healthy: usize,
    /// How many nodes have a remediation of it.
    pub remediating: usize,
    /// Its remediations that are older than 48 hours.
    pub old_remediations: Vec<RemediationRef>,
    /// Its remediations that are being deleted, that nothing wants any more, and that finalizers keep.
    pub stuck_remediations: Vec<RemediationRef>,
}

/// How a node stands in the eyes of a NodeHealthCheck.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeVerdict {
    /// The NodeHealthCheck.
    pub check: CheckRef,
    /// The node.
    pub node: NodeName,
    /// Its UID; `None`: it does not exist.
    pub node_uid: Option<NodeUid>,
    /// What is done for it, or what stops that.
    pub reason: HealthReason,
    /// More on that, for a person; may be empty.
    pub detail: String,
    /// When that ends by itself, where it does.
    pub until: Option<Timestamp>,
    /// The unhealthy condition that holds, the one that expires first.
    pub condition: Option<Unhealthy>,
}

/// Something in the cluster that somebody should mend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// Stays the same while the cause does: one that has been reported need not be reported again.
    pub key: String,
    /// What is wrong, and what to do.
    pub text: String,
    /// The NodeHealthCheck that it concerns.
    pub check: CheckRef,
    /// The node that it concerns, if it is about one.
    pub node: Option<(NodeName, NodeUid)>,
    /// The Event that tells it.
    pub event: HealthEvent,
}
