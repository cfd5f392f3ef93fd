use std::sync::Arc;

use nodeward_api::NodeHealthCheck;
use nodeward_api::node_health_check::NodeHealthCheckSpec;
use nodeward_api::reason::HealthReason;
use rstest::rstest;
use serde_json::json;

use super::world::{World, at, chain, kind, name, template_ref};
use crate::plan::{Action, Plan, RemediationChange, RestsOn};
use crate::snapshot::RemediationKind;
use crate::webhook::decide::{Change, open_records};

fn remediated() -> World {
    let mut world = World::workers(5)
        .check("workers", chain(&[("Reboot", "5m"), ("Fence", "5m")]))
        .failed("w1", 0);
    world.settle(300);
    world
}

fn rests_on(plan: &Plan) -> Vec<RestsOn> {
    let deletions = plan.actions.iter().filter_map(|action| match action {
        Action::DeleteRemediation(write) => Some(write.evidence.as_ref()?.rests_on.clone()),
        _ => None,
    });
    deletions.collect()
}

#[test]
fn remediation_of_a_deleted_node_is_deleted() {
    let mut world = remediated();
    world.remove_node("w1");
    let plan = world.plan(400);
    assert_eq!(rests_on(&plan), [], "its remediator is told first");
    assert_eq!(plan.annotations(), [RemediationChange::TimedOut(at(400))]);
    assert_eq!(plan.reason("w1"), HealthReason::RemediatedNodeGone);
    world.apply(plan, 400);
    assert_eq!(rests_on(&world.plan(400)), [RestsOn::Gone { replaced_by: None }]);
    world.settle(400);
    assert_eq!((world.remediations(), world.entry("w1")), (vec![], None));
    assert!(world.snapshot.leases.is_empty());
}

/// The NodeHealthCheck may be edited and deleted: what a finalizer keeps of a node that is gone is no remediation that runs. One
/// that its remediator is not done with is.
#[rstest]
#[case::orphan(false, &[])]
#[case::awaited(true, &["w1"])]
fn orphan_keeps_nobody_from_deleting_its_check(#[case] is_awaited: bool, #[case] running: &[&str]) {
    let mut world = remediated();
    world.change_remediations(|live| {
        live.finalizers = ["a.example/f".into()].into();
        live.node_deletion_expected = is_awaited;
    });
    world.remove_node("w1");
    world.settle(400);
    assert_eq!(world.remediations(), ["Reboot of w1"], "it is kept");
    let mut stored = NodeHealthCheck::new("workers", NodeHealthCheckSpec::default());
    stored.status = Some(world.status("workers").clone());
    let found = open_records(Change {
        old: Some(&stored),
        new: None,
    })
    .into_iter()
    .map(|record| record.node);
    assert_eq!(found.collect::<Vec<_>>(), running);
}

#[test]
fn remediation_of_a_node_that_was_made_again_is_deleted() {
    let mut world = remediated();
    world.remove_node("w1");
    world.add_node("w1", "worker", 390);
    world.fail("w1", 395);
    let plan = world.plan(400);
    world.apply(plan, 400);
    let plan = world.plan(400);
    let by = world.snapshot.nodes["w1"].view.uid.clone();
    assert_eq!(rests_on(&plan), [RestsOn::Gone { replaced_by: Some(by) }]);
    world.settle(400);
    assert_eq!(world.remediations(), [""; 0]);
    // The new node has a history of its own.
    world.settle(695);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn node_that_was_made_again_begins_at_the_first_step() {
    let mut world = remediated();
    world.settle(600);
    // What the status records of the earlier node is not of this one.
    world.snapshot.remediations.clear();
    world.remove_node("w1");
    world.add_node("w1", "worker", 650);
    world.fail("w1", 655);
    world.settle(955);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn old_remediation_of_a_gone_node_is_flagged() {
    let mut world = remediated();
    world.change_remediations(|live| live.node_deletion_expected = true);
    world.remove_node("w1");
    world.settle(300 + 48 * 3600);
    assert!(world.snapshot.remediations[0].is_flagged_old);
}

#[test]
fn new_node_waits_until_its_predecessors_remediation_is_gone() {
    let mut world = remediated().single();
    world.remove_node("w1");
    world.add_node("w1", "worker", 390);
    world.fail("w1", 395);
    world.change_remediations(|live| {
        live.deleting = Some(at(391));
        live.key.name = "w1".into();
    });
    let plan = world.settle(700);
    assert_eq!(plan.started(), [""; 0]);
    assert_eq!(plan.reason("w1"), HealthReason::EarlierRemediation);
    assert_eq!(plan.node("w1").until, Some(at(995)), "as long as its step");
    world.snapshot.remediations.clear();
    world.settle(701);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[rstest]
#[case::node_is_younger(390, true)]
#[case::node_is_older(-3600, false)]
fn peers_remediation_is_told_by_the_nodes_age(#[case] created: i64, #[case] is_deleted: bool) {
    let mut world = World::watched(5).failed("w2", 0);
    world.add_node("w1", "worker", created);
    world.fail("w1", 399);
    world.add_remediation("Reboot", "w1", &["uid-of-workers"], 300);
    let plan = world.plan(400);
    world.apply(plan, 400);
    assert_eq!(!world.plan(400).deleted().is_empty(), is_deleted);
}

#[rstest]
#[case::is_replaced(None, false)]
#[case::failed(Some("False"), false)]
#[case::done(Some("True"), true)]
fn node_that_is_deleted_for_good_waits_for_its_remediator(#[case] succeeded: Option<&str>, #[case] is_deleted: bool) {
    let mut world = remediated();
    world.change_remediations(|live| {
        live.node_deletion_expected = true;
        live.succeeded = succeeded.map(Into::into);
    });
    world.remove_node("w1");
    let plan = world.settle(5000);
    assert_eq!(world.remediations().is_empty(), is_deleted);
    if !is_deleted {
        assert_eq!(plan.reason("w1"), HealthReason::ReplacementExpected);
        assert!(world.entry("w1").is_some());
    }
}

/// Metal3 deletes the Node, and brings it back.
#[test]
fn metal3_may_take_the_node_away_until_its_timeout() {
    let metal3 = RemediationKind {
        kind: "Metal3Remediation".into(),
        ..kind("Reboot")
    };
    let metal3_template = crate::snapshot::TemplateRef {
        kind: "Metal3RemediationTemplate".into(),
        namespace: "openshift-machine-api".into(),
        ..template_ref("Reboot")
    };
    let template = json!({
        "apiVersion": super::world::API, "kind": "Metal3RemediationTemplate", "namespace": "openshift-machine-api",
        "name": "reboot",
    });
    let steps = json!({
        "remediationTemplate": null,
        "escalatingRemediations": [{ "order": 1, "timeout": "10m", "remediationTemplate": template }],
    });
    let mut world = World::workers(5).check("workers", steps).failed("w1", 0);
    let facts = world.snapshot.templates[&template_ref("Reboot")].clone();
    let known = world.snapshot.kinds[&kind("Reboot")].clone();
    world.snapshot.templates.insert(metal3_template, facts);
    world.snapshot.kinds.insert(metal3, known);
    world.settle(300);
    world.remove_node("w1");
    let plan = world.settle(850);
    assert_eq!(plan.reason("w1"), HealthReason::ReplacementExpected);
    assert_eq!(plan.requeue_second(), 900);
    assert_eq!(world.remediations(), ["Metal3 of w1"]);
    let mut back = world.clone();
    back.add_node("w1", "worker", 860);
    back.settle(860);
    assert_eq!(back.remediations(), [""; 0], "the node is back and healthy");
    world.settle(900);
    assert_eq!(world.remediations(), [""; 0]);
}

#[test]
fn intent_for_a_node_that_is_gone_is_withdrawn() {
    let mut world = World::watched(5).failed("w1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    world.remove_node("w1");
    let plan = world.settle(301);
    assert_eq!((world.entry("w1"), plan.started()), (None, vec![]));
}

#[test]
fn entry_of_a_node_without_remediation_goes_with_the_node() {
    let mut world = World::watched(5).failed("w1", 0);
    world.snapshot.settle_until = Some(at(9999));
    world.settle(300);
    assert!(world.entry("w1").is_some());
    world.remove_node("w1");
    world.settle(310);
    assert_eq!(world.entry("w1"), None);
}

#[test]
fn nothing_escalates_for_a_node_that_is_gone() {
    let mut world = remediated();
    world.change_remediations(|live| live.node_deletion_expected = true);
    world.remove_node("w1");
    world.live(400, 3000);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(world.snapshot.remediations[0].timed_out, None);
    assert_eq!(world.snapshot.remediations[0].node, name("w1"));
}

/// A remediation whose name is not its node's, and which nothing but the status ties to it.
fn with_lost_annotation() -> World {
    let mut world = remediated();
    world.change_remediations(|live| live.node = live.key.name.as_ref().into());
    assert_ne!(world.snapshot.remediations[0].node, name("w1"));
    world
}

#[test]
fn remediation_that_lost_its_annotation_is_of_the_node_in_the_status() {
    let mut world = with_lost_annotation();
    let plan = world.plan(400);
    assert_eq!(
        (plan.deleted(), plan.reason("w1")),
        (vec![], HealthReason::RemediationRunning)
    );
    assert_eq!(world.snapshot.remediations.len(), 1);
    assert_eq!(world.holder("node-w1"), Some("NodeHealthCheck-workers"));
    world.settle(600);
    assert_eq!(world.snapshot.remediations.len(), 2, "it is escalated");
    world.heal("w1", 610);
    world.settle(610);
    assert_eq!(world.remediations(), [""; 0]);
}

/// Somebody has taken its owner away, or put another one in its place: its node keeps its slot, and the chain goes on.
#[rstest]
#[case::without_an_owner(&[])]
#[case::of_somebody_else(&["somebody"])]
fn remediation_that_lost_its_owner_is_not_gone(#[case] owners: &[&str]) {
    let mut world = with_lost_annotation();
    world.change_check("workers", |check| check.spec.max_concurrent = Some(1));
    world.change_remediations(|live| live.owners = owners.iter().map(|owner| Arc::from(*owner)).collect());
    world.fail("w2", 0);
    let plan = world.settle(400);
    assert_eq!(plan.reason("w1"), HealthReason::RemediationRunning);
    assert_eq!(plan.reason("w2"), HealthReason::ConcurrencyLimitReached);
    world.settle(600);
    assert_eq!(world.snapshot.remediations.len(), 2, "it is escalated");
    world.heal_all(["w1", "w2"], 610);
    world.settle(610);
    assert_eq!(world.remediations(), [""; 0]);
}

#[test]
fn remediation_that_another_check_owns_now_is_left_to_it() {
    let other = json!({ "selector": { "matchLabels": { "no": "such" } } });
    let mut world = remediated().check("others", other);
    world.change_remediations(|live| live.owners = ["uid-of-others".into()].into());
    assert_eq!(world.settle(400).reason("w1"), HealthReason::RemediatedByAnotherCheck);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

/// The node of that name is back: whatever the remediator was to do with the earlier one is done, or has had its time.
#[rstest]
#[case::healthy(false, 700, &[])]
#[case::failed_and_within_its_time(true, 590, &["Reboot of w1"])]
#[case::failed_and_late(true, 700, &["Reboot of w1"])]
fn awaited_remediation_of_a_node_that_was_made_again_ends(
    #[case] fails: bool,
    #[case] second: i64,
    #[case] expected: &[&str],
) {
    let mut world = remediated();
    let first = Arc::clone(&world.snapshot.remediations[0].uid);
    world.change_remediations(|live| live.node_deletion_expected = true);
    world.remove_node("w1");
    world.settle(310);
    world.add_node("w1", "worker", 320);
    if fails {
        world.fail("w1", 330);
    }
    world.live(330, second);
    assert_eq!(world.remediations(), expected);
    let is_there = world.snapshot.remediations.iter().any(|live| live.uid == first);
    assert_eq!(is_there, second < 600);
}
