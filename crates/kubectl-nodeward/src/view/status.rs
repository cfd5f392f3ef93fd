//! The fleet at a glance.

use jiff::Timestamp;
use serde::Serialize;

use super::drain::Drain;
use super::node::NodeGlance;
use super::unread::Unread;

/// The fleet at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The components that there are.
    pub components: Vec<Component>,
    /// How many nodes there are; absent where they could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
    /// The drains, in the order of their tickets; those without one last.
    pub drains: Vec<Drain>,
    /// Nodes that drain-keeper finds blocked, or times, in the order of their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timed: Vec<NodeGlance>,
    /// How many budgets are held by drains, waited for and held by their owners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locks: Option<LockCounts>,
    /// What could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

/// A component of Nodeward.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// `drain-keeper`, `drain-lock`, `health-check` or `ceph-pdb`.
    pub name: String,
    /// Whether it works, as far as can be seen.
    pub state: ComponentState,
    /// Its version, where its Deployment says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Where it runs.
    pub namespace: String,
    /// Replicas that are ready; absent without a Deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<i32>,
    /// Replicas that there should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Who leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// When the leader last said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewed: Option<Timestamp>,
}

/// Whether a component works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ComponentState {
    /// A replica leads, and renews its lease.
    Leading,
    /// Replicas are ready; which of them leads cannot be seen.
    Ready,
    /// It is installed, and none leads.
    NotLeading,
    /// It is installed, and no replica is ready.
    NotReady,
}

/// How many nodes there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// All.
    pub total: usize,
    /// Cordoned, or about to be removed.
    pub cordoned: usize,
    /// Not Ready.
    pub not_ready: usize,
}

/// How many budgets are in somebody's hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LockCounts {
    /// Budgets that drains hold units of.
    pub held: usize,
    /// Budgets that drains wait for.
    pub waited_for: usize,
    /// Budgets that their owners hold.
    pub owner_held: usize,
}
