//! The node lease of medik8s (`node-<name>`), by which drainers and remediators keep out of each other's way.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::Evictor;
use nodeward_api::node_lease::name_of;
use nodeward_api::reason::LockReason;
use nodeward_core::id::NodeName;
use nodeward_core::lease::{LeaseState, LeaseView, lease_state};

use crate::policy::Policy;
use crate::snapshot::{Memory, Snapshot};

use super::verdict::DrainVerdict;
use super::{Action, DrainContext, Planner};

pub const HOLDER: &str = "nodeward-drain-lock";

/// For how long a lease is taken: long enough for a leader that is away, short enough if none comes back.
pub const DURATION: SignedDuration = SignedDuration::from_mins(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseChange {
    pub name: String,
    /// Who is to hold it.
    pub holder: String,
    pub namespace: String,
    /// The lease as it was seen, if it was.
    pub seen: Option<Arc<LeaseView>>,
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

/// How the lease of a node stands; `None` where leases are not used. One that is seen counts, whatever came of taking another
/// node's.
pub fn node_lease(
    node: &NodeName,
    snapshot: &Snapshot,
    memory: &Memory,
    policy: &Policy,
    now: Timestamp,
) -> Option<LeaseState> {
    let name = name_of(node.as_str());
    let leases = leases_in_use(snapshot, memory, policy, &name)?;
    Some(lease_state(leases.get(name.as_str()).map(Arc::as_ref), HOLDER, now))
}

/// The leases, where the one of this name is to be gone by.
pub fn leases_in_use<'a>(
    snapshot: &'a Snapshot,
    memory: &Memory,
    policy: &Policy,
    name: &str,
) -> Option<&'a BTreeMap<Arc<str>, Arc<LeaseView>>> {
    let leases = snapshot.leases.as_ref().filter(|_| policy.medik8s_leases.is_some())?;
    (leases.contains_key(name) || memory.leases_absent_until.is_none()).then_some(leases)
}

impl LeaseChange {
    pub fn of(name: String, holder: String, snapshot: &Snapshot, policy: &Policy, step: LeaseStep) -> Option<Self> {
        Some(Self {
            namespace: policy.medik8s_leases.clone()?,
            seen: snapshot.leases.as_ref()?.get(name.as_str()).cloned(),
            name,
            holder,
            step,
        })
    }

    fn of_node(node: &NodeName, snapshot: &Snapshot, policy: &Policy, step: LeaseStep) -> Option<Self> {
        Self::of(name_of(node.as_str()), HOLDER.to_owned(), snapshot, policy, step)
    }
}

impl Planner<'_> {
    /// How the node's lease stands for this drain: a foreign drainer has its own, or none.
    pub(super) fn lease(&self, context: &DrainContext) -> Option<LeaseState> {
        match context.evictor() {
            Evictor::Requester => None,
            Evictor::Nodeward => node_lease(&context.name, self.snapshot, self.memory, self.policy, self.now),
        }
    }

    /// Renews the node's lease in time; says so if somebody else has it.
    pub(super) fn keep_lease(&mut self, context: &DrainContext, verdict: &mut DrainVerdict) {
        if verdict.gives_lease_up {
            self.release_lease(&context.name);
            return;
        }
        match self.lease(context) {
            None => {}
            Some(LeaseState::Free) => self.take_lease(&context.name),
            Some(LeaseState::Ours { renew_at }) if renew_at <= self.now => self.take_lease(&context.name),
            Some(LeaseState::Ours { renew_at }) => self.requeue_at.note(renew_at),
            Some(LeaseState::Others { holder, .. }) => {
                verdict.lease_lost = true;
                let text = format!("{} ({holder})", LockReason::LeaseLost.explanation());
                verdict.block(LockReason::LeaseLost, text);
            }
        }
    }

    pub(super) fn take_lease(&mut self, node: &NodeName) {
        let change = LeaseChange::of_node(node, self.snapshot, self.policy, LeaseStep::Take);
        self.plan.actions.extend(change.map(Action::Lease));
    }

    /// Gives the node's lease back, if it is ours.
    pub(super) fn release_lease(&mut self, node: &NodeName) {
        let state = node_lease(node, self.snapshot, self.memory, self.policy, self.now);
        if matches!(state, Some(LeaseState::Ours { .. })) {
            let change = LeaseChange::of_node(node, self.snapshot, self.policy, LeaseStep::Release);
            self.plan.actions.extend(change.map(Action::Lease));
        }
    }
}

#[cfg(test)]
mod tests {
    use nodeward_core::deadline::saturating_add;
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
            renew_at: at("2026-01-01T12:04:00Z"),
        }
    }

    fn others() -> LeaseState {
        LeaseState::Others {
            holder: "medik8s".into(),
            until: at("2026-01-01T12:09:00Z"),
        }
    }

    /// Of the namespace as a write found it, and of the leases as a watch shows them, what is seen counts.
    #[rstest]
    #[case::none(&[], false, Some(LeaseState::Free))]
    #[case::none_in_a_namespace_that_is_not_there(&[], true, None)]
    #[case::of_another_node(&[("n2", "medik8s")], false, Some(LeaseState::Free))]
    #[case::of_another_node_in_a_namespace_that_was_not_there(&[("n2", "medik8s")], true, None)]
    #[case::of_another(&[("n1", "medik8s")], false, Some(others()))]
    #[case::of_another_in_a_namespace_that_was_not_there(&[("n1", "medik8s")], true, Some(others()))]
    #[case::ours(&[("n1", HOLDER)], false, Some(ours()))]
    #[case::ours_in_a_namespace_that_was_not_there(&[("n1", HOLDER)], true, Some(ours()))]
    #[case::of_nobody_in_a_namespace_that_was_not_there(&[("n1", "")], true, Some(LeaseState::Free))]
    fn a_lease_that_is_seen_counts(
        #[case] leases: &[(&str, &str)],
        #[case] absent: bool,
        #[case] expected: Option<LeaseState>,
    ) {
        let leases = leases.iter().map(|(node, holder)| lease(node, holder));
        let mut snapshot = Cluster::default().leases(leases).snapshot();
        let mut memory = Memory::default();
        memory.leases_absent_until = absent.then(|| saturating_add(now(), SignedDuration::from_mins(5)));
        let policy = Policy {
            medik8s_leases: Some("medik8s-leases".to_owned()),
            ..Policy::from_config(Config::default()).unwrap()
        };
        let stands = |snapshot: &Snapshot, policy: &Policy| node_lease(&"n1".into(), snapshot, &memory, policy, now());
        assert_eq!(stands(&snapshot, &policy), expected);
        let without = Policy {
            medik8s_leases: None,
            ..policy.clone()
        };
        assert_eq!(stands(&snapshot, &without), None, "not configured");
        snapshot.leases = None;
        assert_eq!(stands(&snapshot, &policy), None, "not readable");
    }
}
