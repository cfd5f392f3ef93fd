//! The node lease of medik8s (`node-<name>`), by which drainers and remediators keep out of each other's way.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::Evictor;
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::NodeName;

use crate::policy::Policy;
use crate::snapshot::{LeaseFacts, Memory, Snapshot};

use super::verdict::DrainVerdict;
use super::{Action, DrainContext, Planner};

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
    Release,
}

/// How a node's lease stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// Leases are not used here.
    NotUsed,
    /// Nobody is seen to have it. Whether that is so, taking it tells: that is a compare-and-swap.
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

/// How the lease of a node stands. One that is seen counts, whatever came of taking another node's.
pub fn lease_state(
    node: &NodeName,
    snapshot: &Snapshot,
    memory: &Memory,
    policy: &Policy,
    now: Timestamp,
) -> LeaseState {
    let Some(leases) = snapshot.leases.as_ref().filter(|_| policy.medik8s_leases.is_some()) else {
        return LeaseState::NotUsed;
    };
    let Some(lease) = leases.get(name_of(node).as_str()) else {
        return match memory.leases_absent_until {
            Some(_) => LeaseState::NotUsed,
            None => LeaseState::Free,
        };
    };
    let Some(holder) = lease.holder.as_ref().filter(|holder| !holder.is_empty()) else {
        return LeaseState::Free;
    };
    let lasts = lease
        .duration_seconds
        .map(|seconds| SignedDuration::from_secs(seconds.into()));
    let until = lease
        .renewed
        .zip(lasts)
        .map(|(renewed, lasts)| saturating_add(renewed, lasts));
    if **holder == *HOLDER {
        let renew_at = lease
            .renewed
            .map_or(now, |renewed| saturating_add(renewed, RENEW_AFTER));
        return LeaseState::Ours { renew_at };
    }
    // As medik8s has it, a lease that was never renewed or says no duration has run out.
    match until {
        Some(until) if now < until => LeaseState::Others {
            holder: Arc::clone(holder),
            until: Some(until),
        },
        _ => LeaseState::Free,
    }
}

/// The change of a node's lease.
pub fn change(node: &NodeName, snapshot: &Snapshot, policy: &Policy, step: LeaseStep) -> Option<LeaseChange> {
    Some(LeaseChange {
        node: node.clone(),
        namespace: policy.medik8s_leases.clone()?,
        seen: snapshot.leases.as_ref()?.get(name_of(node).as_str()).cloned(),
        step,
    })
}

impl Planner<'_> {
    /// How the node's lease stands for this drain: a foreign drainer has its own, or none.
    pub(super) fn lease(&self, context: &DrainContext) -> LeaseState {
        match context.evictor() {
            Evictor::Requester => LeaseState::NotUsed,
            Evictor::Nodeward => lease_state(&context.name, self.snapshot, self.memory, self.policy, self.now),
        }
    }

    /// Renews the node's lease in time; says so if somebody else has it.
    pub(super) fn keep_lease(&mut self, context: &DrainContext, verdict: &mut DrainVerdict) {
        if verdict.gives_lease_up {
            self.release_lease(&context.name);
            return;
        }
        match self.lease(context) {
            LeaseState::NotUsed => {}
            LeaseState::Free => self.take_lease(&context.name),
            LeaseState::Ours { renew_at } if renew_at <= self.now => self.take_lease(&context.name),
            LeaseState::Ours { renew_at } => self.requeue_at.note(renew_at),
            LeaseState::Others { holder, .. } => {
                verdict.lease_lost = true;
                let text = format!("{} ({holder})", LockReason::LeaseLost.explanation());
                verdict.block(LockReason::LeaseLost, text);
            }
        }
    }

    pub(super) fn take_lease(&mut self, node: &NodeName) {
        let change = change(node, self.snapshot, self.policy, LeaseStep::Take);
        self.plan.actions.extend(change.map(Action::Lease));
    }

    /// Gives the node's lease back, if it is ours.
    pub(super) fn release_lease(&mut self, node: &NodeName) {
        let state = lease_state(node, self.snapshot, self.memory, self.policy, self.now);
        if matches!(state, LeaseState::Ours { .. }) {
            let change = change(node, self.snapshot, self.policy, LeaseStep::Release);
            self.plan.actions.extend(change.map(Action::Lease));
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Config;
    use crate::tests::fixture::{Cluster, at, now};

    const RENEWED: &str = "2026-01-01T11:59:00.000000Z";

    fn lease(node: &str, holder: &str) -> Value {
        json!({
            "metadata": { "namespace": "medik8s-leases", "name": format!("node-{node}"), "resourceVersion": "3" },
            "spec": { "holderIdentity": holder, "renewTime": RENEWED, "leaseDurationSeconds": 600 },
        })
    }

    fn ours() -> LeaseState {
        LeaseState::Ours {
            renew_at: at("2026-01-01T12:03:00Z"),
        }
    }

    fn others() -> LeaseState {
        LeaseState::Others {
            holder: "medik8s".into(),
            until: Some(at("2026-01-01T12:09:00Z")),
        }
    }

    /// Of the namespace as a write found it, and of the leases as a watch shows them, what is seen counts.
    #[rstest]
    #[case::none(&[], false, LeaseState::Free)]
    #[case::none_in_a_namespace_that_is_not_there(&[], true, LeaseState::NotUsed)]
    #[case::of_another_node(&[("n2", "medik8s")], false, LeaseState::Free)]
    #[case::of_another_node_in_a_namespace_that_was_not_there(&[("n2", "medik8s")], true, LeaseState::NotUsed)]
    #[case::of_another(&[("n1", "medik8s")], false, others())]
    #[case::of_another_in_a_namespace_that_was_not_there(&[("n1", "medik8s")], true, others())]
    #[case::ours(&[("n1", HOLDER)], false, ours())]
    #[case::ours_in_a_namespace_that_was_not_there(&[("n1", HOLDER)], true, ours())]
    #[case::of_nobody_in_a_namespace_that_was_not_there(&[("n1", "")], true, LeaseState::Free)]
    fn a_lease_that_is_seen_counts(
        #[case] leases: &[(&str, &str)],
        #[case] absent: bool,
        #[case] expected: LeaseState,
    ) {
        let leases = leases.iter().map(|(node, holder)| lease(node, holder));
        let mut snapshot = Cluster::default().leases(leases).snapshot();
        let mut memory = Memory::default();
        memory.leases_absent_until = absent.then(|| saturating_add(now(), SignedDuration::from_mins(5)));
        let policy = Policy {
            medik8s_leases: Some("medik8s-leases".to_owned()),
            ..Policy::from_config(Config::default()).unwrap()
        };
        let stands = |snapshot: &Snapshot, policy: &Policy| lease_state(&"n1".into(), snapshot, &memory, policy, now());
        assert_eq!(stands(&snapshot, &policy), expected);
        let without = Policy {
            medik8s_leases: None,
            ..policy.clone()
        };
        assert_eq!(stands(&snapshot, &without), LeaseState::NotUsed, "not configured");
        snapshot.leases = None;
        assert_eq!(stands(&snapshot, &policy), LeaseState::NotUsed, "not readable");
    }
}
