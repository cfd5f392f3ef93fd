//! Nodes at a gate that should open or close within seconds, and has not for long: nothing is forced on them, so somebody has to
//! be told.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::{RequeueAt, saturating_add};
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_core::verdict::NodeVerdict;

use crate::plan::Plan;
use crate::snapshot::Snapshot;

/// How long is long: as long as the alert `NodewardDrainKeeperCannotDecide` waits.
const LONG: SignedDuration = SignedDuration::from_mins(10);

/// Since when nodes have been at such gates, and who was told.
#[derive(Debug, Default)]
pub struct Undecided {
    since: BTreeMap<NodeUid, Timestamp>,
    told: BTreeSet<NodeUid>,
}

impl Undecided {
    /// Nodes that have been at such gates for long by now, each once, and when the next will be. None while drain-keeper is
    /// paused: it writes no clock then, and forces nothing whatever it knows.
    pub fn overdue<'a>(
        &mut self,
        snapshot: &Snapshot,
        plan: &'a Plan,
        is_paused: bool,
        now: Timestamp,
    ) -> (Vec<(NodeUid, &'a NodeVerdict)>, Option<Timestamp>) {
        let undecided = plan.verdicts.iter();
        let undecided = undecided.filter(|verdict| verdict.gate.is_undecided() && !is_paused);
        let by_name: BTreeMap<&NodeName, &NodeVerdict> = undecided.map(|verdict| (&verdict.node, verdict)).collect();
        let nodes = snapshot.nodes.iter();
        let verdicts: BTreeMap<&NodeUid, &NodeVerdict> = nodes
            .filter_map(|node| Some((&node.uid, *by_name.get(&node.name)?)))
            .collect();
        self.since.retain(|uid, _| verdicts.contains_key(uid));
        self.told.retain(|uid| verdicts.contains_key(uid));
        let mut requeue_at = RequeueAt::after(now);
        let mut overdue = Vec::new();
        for (uid, verdict) in verdicts {
            let since = *self.since.entry(uid.clone()).or_insert(now);
            let at = saturating_add(since, LONG);
            requeue_at.note(at);
            if at <= now && self.told.insert(uid.clone()) {
                overdue.push((uid.clone(), verdict));
            }
        }
        (overdue, requeue_at.at())
    }
}

#[cfg(test)]
mod tests {
    use nodeward_api::reason::GateReason;
    use nodeward_core::signal::KindState;
    use serde_json::json;

    use super::*;
    use crate::plan::tests::world::{World, minute, pod};

    fn told(undecided: &mut Undecided, world: &World, minutes: i64) -> (Vec<GateReason>, Option<Timestamp>) {
        told_or_paused(undecided, world, false, minutes)
    }

    fn told_or_paused(
        undecided: &mut Undecided,
        world: &World,
        is_paused: bool,
        minutes: i64,
    ) -> (Vec<GateReason>, Option<Timestamp>) {
        let plan = world.at(minutes);
        let (overdue, again) = undecided.overdue(&world.snapshot(), &plan, is_paused, minute(minutes));
        let gates = overdue.into_iter().map(|(uid, verdict)| {
            assert_eq!(uid.as_str(), verdict.node.as_str(), "the test names them alike");
            verdict.gate
        });
        (gates.collect(), again)
    }

    #[test]
    fn long_undecided_node_is_told_once() {
        let (kind, version) = ("UpgradeConfig", "upgrade.managed.openshift.io/v1alpha1");
        let known = World::openshift().pod(pod("p"));
        let unknown = known.clone().signal(version, kind, KindState::Stale);
        let mut undecided = Undecided::default();
        assert_eq!(told(&mut undecided, &known, 0), (Vec::new(), None));
        assert_eq!(told(&mut undecided, &unknown, 1), (Vec::new(), Some(minute(11))));
        // Another gate of the same kind, and it is still not known what to do.
        let unlisted = known.clone().syncing("n1");
        assert_eq!(told(&mut undecided, &unlisted, 5), (Vec::new(), Some(minute(11))));
        assert_eq!(
            told(&mut undecided, &unknown, 11),
            (vec![GateReason::UpgradeUnknown], None)
        );
        assert_eq!(told(&mut undecided, &unknown, 30), (Vec::new(), None));
        assert_eq!(told(&mut undecided, &known, 31), (Vec::new(), None));
        assert_eq!(told(&mut undecided, &unlisted, 32), (Vec::new(), Some(minute(42))));
        assert_eq!(
            told(&mut undecided, &unlisted, 42),
            (vec![GateReason::PodsSyncing], None)
        );
    }

    #[test]
    fn undecided_node_is_not_told_while_paused() {
        let unlisted = World::openshift().pod(pod("p")).syncing("n1");
        let mut undecided = Undecided::default();
        assert_eq!(told(&mut undecided, &unlisted, 1), (Vec::new(), Some(minute(11))));
        for minutes in [2, 11, 60] {
            let told = told_or_paused(&mut undecided, &unlisted, true, minutes);
            assert_eq!(told, (Vec::new(), None), "{minutes}");
        }
        assert_eq!(told(&mut undecided, &unlisted, 61), (Vec::new(), Some(minute(71))));
        assert_eq!(
            told(&mut undecided, &unlisted, 71),
            (vec![GateReason::PodsSyncing], None)
        );
    }

    #[test]
    fn closed_gate_that_is_known_is_not_told() {
        let done = World::openshift().upgrade_configs([json!({
            "metadata": { "name": "c" }, "spec": { "desired": { "version": "1" } }, "status": {},
        })]);
        let mut undecided = Undecided::default();
        for minutes in [1, 60] {
            assert_eq!(told(&mut undecided, &done, minutes), (Vec::new(), None));
        }
    }
}
