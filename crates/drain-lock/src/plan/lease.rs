//! The node lease of medik8s (`node-<name>`), by which drainers and remediators keep out of each other's way.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::later;
use nodeward_core::id::NodeName;

use crate::policy::Policy;
use crate::snapshot::{LeaseFacts, Memory, Snapshot};

/// Who drain-lock is in a lease.
pub const HOLDER: &str = "nodeward-drain-lock";

/// For how long a lease is taken: long enough for a leader that is away, short enough if none comes back.
pub const DURATION: SignedDuration = SignedDuration::from_mins(10);

/// It is renewed when so much of it has passed.
const RENEW_AFTER: SignedDuration = SignedDuration::from_mins(4);

/// A change of a node's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseChange {
    /// The node.
    pub node: NodeName,
    /// Namespace of the leases.
    pub namespace: String,
    /// The lease as it was seen, if it was.
    pub seen: Option<Arc<LeaseFacts>>,
    /// What is done.
    pub step: LeaseStep,
}

/// What is done to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseStep {
    /// It is taken, or renewed.
    Take,
    /// It is given back.
    GiveBack,
}

/// How a node's lease stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseStand {
    /// Leases are not used here.
    NotUsed,
    /// Nobody has it.
    Free,
    /// It is ours.
    Ours {
        /// When it is to be renewed.
        renew_at: Timestamp,
    },
    /// Somebody else has it.
    Others {
        /// Who.
        holder: Arc<str>,
        /// When it runs out by itself.
        until: Option<Timestamp>,
    },
}

/// Name of a node's lease.
pub fn name_of(node: &NodeName) -> String {
    format!("node-{node}")
}

/// How the lease of a node stands.
pub fn stand(node: &NodeName, snapshot: &Snapshot, memory: &Memory, policy: &Policy, now: Timestamp) -> LeaseStand {
    let Some(leases) = &snapshot.leases else {
        return LeaseStand::NotUsed;
    };
    if policy.medik8s_leases.is_none() || memory.leases_absent_until.is_some() {
        return LeaseStand::NotUsed;
    }
    let Some(lease) = leases.get(name_of(node).as_str()) else {
        return LeaseStand::Free;
    };
    let Some(holder) = lease.holder.as_ref().filter(|holder| !holder.is_empty()) else {
        return LeaseStand::Free;
    };
    let lasts = lease
        .duration_seconds
        .map(|seconds| SignedDuration::from_secs(seconds.into()));
    let until = lease.renewed.zip(lasts).map(|(renewed, lasts)| later(renewed, lasts));
    if **holder == *HOLDER {
        let renew_at = lease.renewed.map_or(now, |renewed| later(renewed, RENEW_AFTER));
        return LeaseStand::Ours { renew_at };
    }
    // As medik8s has it, a lease that was never renewed or says no duration has run out.
    match until {
        Some(until) if now < until => LeaseStand::Others {
            holder: Arc::clone(holder),
            until: Some(until),
        },
        _ => LeaseStand::Free,
    }
}

/// The change of a node's lease.
pub fn change(node: &NodeName, snapshot: &Snapshot, policy: &Policy, step: LeaseStep) -> Option<LeaseChange> {
    Some(LeaseChange {
        node: node.clone(),
        namespace: policy.medik8s_leases.clone()?,
        seen: snapshot
            .leases
            .as_ref()
            .and_then(|leases| leases.get(name_of(node).as_str()))
            .cloned(),
        step,
    })
}
