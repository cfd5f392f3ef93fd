//! The node lease of medik8s (`node-<name>`), by which drainers and remediators keep out of each other's way.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::Evictor;
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::NodeName;

use crate::policy::Policy;
use crate::snapshot::{LeaseFacts, Memory, Snapshot};

use super::verdict::{self, DrainVerdict};
use super::{Action, File, Planner};

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
pub fn stand(node: &NodeName, snapshot: &Snapshot, memory: &Memory, policy: &Policy, now: Timestamp) -> LeaseStand {
    let Some(leases) = snapshot.leases.as_ref().filter(|_| policy.medik8s_leases.is_some()) else {
        return LeaseStand::NotUsed;
    };
    let Some(lease) = leases.get(name_of(node).as_str()) else {
        return match memory.leases_absent_until {
            Some(_) => LeaseStand::NotUsed,
            None => LeaseStand::Free,
        };
    };
    let Some(holder) = lease.holder.as_ref().filter(|holder| !holder.is_empty()) else {
        return LeaseStand::Free;
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

impl Planner<'_> {
    /// How the node's lease stands for this drain: a foreign drainer has its own, or none.
    pub(super) fn lease(&self, file: &File) -> LeaseStand {
        match file.case.evictor() {
            Evictor::Requester => LeaseStand::NotUsed,
            Evictor::Nodeward => stand(&file.case.name, self.snapshot, self.memory, self.policy, self.now),
        }
    }

    /// Renews the node's lease in time; says so if somebody else has it.
    pub(super) fn keep_lease(&mut self, file: &File, verdict: &mut DrainVerdict) {
        if verdict.gives_lease_up {
            self.give_lease_back(&file.case.name);
            return;
        }
        match self.lease(file) {
            LeaseStand::NotUsed => {}
            LeaseStand::Free => self.take_lease(&file.case.name),
            LeaseStand::Ours { renew_at } if renew_at <= self.now => self.take_lease(&file.case.name),
            LeaseStand::Ours { renew_at } => self.requeue_at.note(renew_at),
            LeaseStand::Others { holder, .. } => {
                verdict.lease_lost = true;
                let text = format!("{} ({holder})", LockReason::LeaseLost.explanation());
                verdict
                    .blocked_by
                    .push(verdict::about_node(LockReason::LeaseLost, text));
            }
        }
    }

    pub(super) fn take_lease(&mut self, node: &NodeName) {
        let change = change(node, self.snapshot, self.policy, LeaseStep::Take);
        self.plan.actions.extend(change.map(Action::Lease));
    }

    /// Gives the node's lease back, if it is ours.
    pub(super) fn give_lease_back(&mut self, node: &NodeName) {
        let stand = stand(node, self.snapshot, self.memory, self.policy, self.now);
        if matches!(stand, LeaseStand::Ours { .. }) {
            let change = change(node, self.snapshot, self.policy, LeaseStep::GiveBack);
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
    use crate::snapshot::fixture::{Cluster, at, now};

    const RENEWED: &str = "2026-01-01T11:59:00.000000Z";

    fn lease(node: &str, holder: &str) -> Value {
        json!({
            "metadata": { "namespace": "medik8s-leases", "name": format!("node-{node}"), "resourceVersion": "3" },
            "spec": { "holderIdentity": holder, "renewTime": RENEWED, "leaseDurationSeconds": 600 },
        })
    }

    fn ours() -> LeaseStand {
        LeaseStand::Ours {
            renew_at: at("2026-01-01T12:03:00Z"),
        }
    }

    fn others() -> LeaseStand {
        LeaseStand::Others {
            holder: "medik8s".into(),
            until: Some(at("2026-01-01T12:09:00Z")),
        }
    }

    /// Of the namespace as a write found it, and of the leases as a watch shows them, what is seen counts.
    #[rstest]
    #[case::none(&[], false, LeaseStand::Free)]
    #[case::none_in_a_namespace_that_is_not_there(&[], true, LeaseStand::NotUsed)]
    #[case::of_another_node(&[("n2", "medik8s")], false, LeaseStand::Free)]
    #[case::of_another_node_in_a_namespace_that_was_not_there(&[("n2", "medik8s")], true, LeaseStand::NotUsed)]
    #[case::of_another(&[("n1", "medik8s")], false, others())]
    #[case::of_another_in_a_namespace_that_was_not_there(&[("n1", "medik8s")], true, others())]
    #[case::ours(&[("n1", HOLDER)], false, ours())]
    #[case::ours_in_a_namespace_that_was_not_there(&[("n1", HOLDER)], true, ours())]
    #[case::of_nobody_in_a_namespace_that_was_not_there(&[("n1", "")], true, LeaseStand::Free)]
    fn a_lease_that_is_seen_counts(
        #[case] leases: &[(&str, &str)],
        #[case] absent: bool,
        #[case] expected: LeaseStand,
    ) {
        let leases = leases.iter().map(|(node, holder)| lease(node, holder));
        let mut snapshot = Cluster::default().leases(leases).snapshot();
        let mut memory = Memory::default();
        memory.leases_absent_until = absent.then(|| saturating_add(now(), SignedDuration::from_mins(5)));
        let policy = Policy {
            medik8s_leases: Some("medik8s-leases".to_owned()),
            ..Policy::from_config(Config::default()).unwrap()
        };
        let stands = |snapshot: &Snapshot, policy: &Policy| stand(&"n1".into(), snapshot, &memory, policy, now());
        assert_eq!(stands(&snapshot, &policy), expected);
        let without = Policy {
            medik8s_leases: None,
            ..policy.clone()
        };
        assert_eq!(stands(&snapshot, &without), LeaseStand::NotUsed, "not configured");
        snapshot.leases = None;
        assert_eq!(stands(&snapshot, &policy), LeaseStand::NotUsed, "not readable");
    }
}
