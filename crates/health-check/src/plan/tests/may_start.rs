//! What the plan asks of its caches and what is asked again under the permit is one list, and they cannot differ: whatever
//! changes in between, the second asker lets a start go on exactly where the first would plan the same start again.

use std::sync::Arc;

use nodeward_api::reason::HealthReason as Reason;
use nodeward_core::lease::{LeaseState, lease_state};
use nodeward_core::node::NodeView;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, at, name, with};
use crate::plan::{Condition, LeaseStep, StartRemediation, keeps_quorum};
use crate::snapshot::TemplateState;

const NOW: i64 = 410;

impl World {
    /// The first condition of a start that does not hold.
    pub fn unmet<'s>(&self, start: &'s StartRemediation, second: i64) -> Option<&'s Condition> {
        let holds = |condition: &&Condition| match condition {
            Condition::Node(evidence) => evidence.check(self.read_node(&evidence.name).as_ref()).is_ok(),
            Condition::Intended(_) => start.is_intended_in(&self.snapshot.checks[&start.check.name].status),
            Condition::Template => {
                let template = self.snapshot.templates.get(&start.template);
                matches!(template, Some(TemplateState::Found(found)) if found.spec == start.made_from.spec)
            }
            Condition::Gone(replaced) => self.snapshot.remediations.iter().all(|live| live.uid != replaced.uid),
            Condition::Lease(change) => {
                let LeaseStep::Take(terms) = &change.step else {
                    panic!("a start gives no lease back");
                };
                let lease = self.snapshot.leases.get(change.name.to_string().as_str());
                let state = lease_state(lease.map(|lease| &**lease), &terms.holder, at(second));
                !matches!(state, LeaseState::Others { .. })
            }
            Condition::EtcdQuorum(recent) => {
                let nodes = self.snapshot.nodes.values().map(|node| &node.view);
                let nodes: Vec<&NodeView> = nodes.filter(|view| view.is_control_plane()).collect();
                let guards = self.snapshot.etcd.known().cloned().flatten();
                keeps_quorum(&start.node, &nodes, recent, guards.as_ref()).is_ok()
            }
        };
        start.conditions.iter().find(|condition| !holds(condition))
    }
}

/// What happens between plan and permit.
#[derive(Debug, Clone, Copy)]
enum Change {
    NodeHeals,
    NodeFailsAnew,
    NodeIsGone,
    NodeIsMadeAgain,
    IntentIsWithdrawn,
    TemplateIsEdited,
    TemplateIsGone,
    ReplacedIsThere,
    LeaseIsTaken,
    ControlPlaneLeaseIsTaken,
    OtherMembersFail,
}

use Change as C;

const CHANGES: [Change; 11] = [
    C::NodeHeals,
    C::NodeFailsAnew,
    C::NodeIsGone,
    C::NodeIsMadeAgain,
    C::IntentIsWithdrawn,
    C::TemplateIsEdited,
    C::TemplateIsGone,
    C::ReplacedIsThere,
    C::LeaseIsTaken,
    C::ControlPlaneLeaseIsTaken,
    C::OtherMembersFail,
];

/// A start that rests on each kind of condition: the remediation of a control-plane node is gone, and is made again.
struct Planned {
    world: World,
    start: StartRemediation,
    replaced: World,
}

impl Planned {
    fn new() -> Self {
        let check = json!({
            "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" }] },
            "maxUnhealthy": "100%",
        });
        let mut world = World::workers(3)
            .control_plane(5)
            .check("workers", check)
            .failed("m1", 0);
        world.settle(300);
        let replaced = world.clone();
        world.snapshot.remediations.clear();
        loop {
            let plan = world.plan(NOW);
            if let [start] = *plan.starts() {
                let start = start.clone();
                return Self { world, start, replaced };
            }
            assert!(!plan.actions.is_empty(), "it never starts");
            world.apply(plan, NOW);
        }
    }

    fn change(&mut self, change: Change) {
        let world = &mut self.world;
        let templates = world.snapshot.templates.values_mut();
        match change {
            C::NodeHeals if world.snapshot.nodes.contains_key("m1") => world.heal("m1", NOW),
            C::NodeFailsAnew if world.snapshot.nodes.contains_key("m1") => world.fail("m1", 1),
            C::NodeHeals | C::NodeFailsAnew => {}
            C::NodeIsGone => world.remove_node("m1"),
            C::NodeIsMadeAgain => {
                world.add_node("m1", "control-plane", 0);
                world.fail("m1", 0);
            }
            C::IntentIsWithdrawn => world.change_check("workers", |check| {
                for entry in &mut Arc::make_mut(&mut check.status).unhealthy_nodes {
                    entry.remediations.retain(|record| record.resource.uid.is_some());
                }
            }),
            C::TemplateIsEdited => templates.for_each(|template| {
                if let TemplateState::Found(found) = template {
                    Arc::make_mut(found).spec = Some(json!({ "by": "edit" }));
                }
            }),
            C::TemplateIsGone => templates.for_each(|template| *template = TemplateState::NotFound),
            C::ReplacedIsThere => {
                let replaced = &self.replaced.snapshot.remediations;
                world.snapshot.remediations.clone_from(replaced);
            }
            C::LeaseIsTaken => world.lease("node-m1", "somebody", NOW, 10),
            C::ControlPlaneLeaseIsTaken => world.lease("nodeward-control-plane", "somebody/m2", NOW, 10),
            C::OtherMembersFail => ["m2", "m3"].iter().for_each(|node| world.fail(node, NOW)),
        }
    }

    fn is_planned_again(&self) -> bool {
        self.world.plan(NOW).starts().contains(&&self.start)
    }
}

#[test]
fn start_goes_on_where_nothing_has_changed() {
    let planned = Planned::new();
    assert_eq!(planned.world.unmet(&planned.start, NOW), None);
    assert!(planned.is_planned_again());
}

/// `said` is what the plan says of it: the next plan may know more than the permit.
#[rstest]
#[case(C::NodeHeals, Some(Reason::NodeChanged), Reason::Healthy)]
#[case(C::NodeIsMadeAgain, Some(Reason::NodeChanged), Reason::StartingRemediation)]
#[case(C::IntentIsWithdrawn, None, Reason::StartingRemediation)]
#[case(C::TemplateIsEdited, None, Reason::StartingRemediation)]
#[case(C::TemplateIsGone, None, Reason::CheckDisabled)]
#[case(C::ReplacedIsThere, None, Reason::RemediationRunning)]
#[case(C::LeaseIsTaken, Some(Reason::LeaseTaken), Reason::LeaseTaken)]
#[case(
    C::ControlPlaneLeaseIsTaken,
    Some(Reason::ControlPlaneNodeAway),
    Reason::ControlPlaneNodeAway
)]
#[case(C::OtherMembersFail, Some(Reason::EtcdQuorumAtRisk), Reason::EtcdQuorumAtRisk)]
fn both_askers_refuse(#[case] change: Change, #[case] refuses_with: Option<Reason>, #[case] said: Reason) {
    let mut planned = Planned::new();
    planned.change(change);
    let unmet = planned.world.unmet(&planned.start, NOW).expect("the permit refuses");
    assert_eq!(unmet.refuses_with(), refuses_with, "{unmet:?}");
    assert!(!planned.is_planned_again(), "the plan does not");
    assert_eq!(planned.world.plan(NOW).reason("m1"), said);
}

proptest! {
    #[test]
    fn askers_cannot_differ(changes in proptest::sample::subsequence(&CHANGES[..], 0..4).prop_shuffle()) {
        let mut planned = Planned::new();
        for change in &changes {
            planned.change(*change);
        }
        let unmet = planned.world.unmet(&planned.start, NOW);
        prop_assert_eq!(unmet.is_none(), planned.is_planned_again(), "{:?}: {:?}", changes, unmet);
    }
}

/// A watch may not show yet what was just created: that another node's remediation is gone is asked where the place is its own.
#[rstest]
#[case::within_the_limit("worker", json!({ "maxConcurrentRemediations": 1 }), 719, 1)]
#[case::long_after("worker", json!({ "maxConcurrentRemediations": 1 }), 720, 0)]
#[case::without_a_limit("worker", json!({}), 320, 0)]
#[case::control_plane("control-plane", json!({}), 320, 1)]
fn place_is_taken_once_its_last_holder_is_gone(
    #[case] role: &str,
    #[case] spec: Value,
    #[case] now: i64,
    #[case] asked: usize,
) {
    let selector =
        json!({ "matchExpressions": [{ "key": format!("node-role.kubernetes.io/{role}"), "operator": "Exists" }] });
    let spec = with(json!({ "selector": selector, "maxUnhealthy": "100%" }), spec);
    let mut world = World::workers(5).control_plane(5).check("nodes", spec);
    let [first, second] = if role == "worker" { ["w1", "w2"] } else { ["m1", "m2"] };
    world.fail(first, 0);
    world.settle(300);
    let excluded = "remediation.medik8s.io/exclude-from-remediation";
    world.label(first, excluded, Some("true"));
    world.snapshot.remediations.clear();
    world.settle(310);
    world.fail(second, 0);
    let plan = world.plan(now);
    world.apply(plan, now);
    let plan = world.plan(now);
    assert_eq!(plan.started(), [second]);
    let of_the_first = |condition: &&Condition| matches!(condition, Condition::Gone(gone) if gone.node == name(first));
    let conditions = &plan.starts()[0].conditions;
    assert_eq!(conditions.iter().filter(of_the_first).count(), asked);
}
