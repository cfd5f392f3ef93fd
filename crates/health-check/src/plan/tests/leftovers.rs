//! A record is not a remediation: what is left of one blocks nobody, and what may still be at work blocks all that it must.

use std::sync::Arc;

use nodeward_api::node_health_check::{Phase, Remediation};
use nodeward_api::reason::HealthReason;
use nodeward_core::node_health_check::{CheckSpec, TemplateRef};
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, at, chain, kind, name, template, template_ref, two_steps, with};
use crate::snapshot::{Listed, Reading};

const EXCLUDED: &str = "remediation.medik8s.io/exclude-from-remediation";

/// One at a time. `w1` fails at 0, and its first step runs since 300.
fn running() -> World {
    let limit = json!({ "maxConcurrentRemediations": 1, "maxUnhealthy": "100%" });
    World::remediating(with(two_steps(), limit))
}

/// The same with a template alone.
fn classic() -> World {
    World::remediating(json!({ "maxConcurrentRemediations": 1, "maxUnhealthy": "100%" }))
}

/// A finalizer keeps it.
fn stick(world: &mut World, since: i64) {
    world.change_remediations(|live| {
        live.deleting = Some(at(since));
        live.finalizers = ["example.org/remediator".into()].into();
    });
}

/// Whether the node runs: the slot is taken, its lease is held, and the phase is Remediating.
#[rstest]
#[case::running(running(), |_: &mut World| {}, 400, true)]
#[case::in_deletion_before_its_timeout(running(), |w: &mut World| stick(w, 350), 400, true)]
#[case::between_two_steps(running(), |w: &mut World| { w.change_remediations(|live| live.timed_out = Some(at(399))); w.drain("w1", "Draining", 9999); }, 400, true)]
#[case::between_two_steps_of_a_held_node(running(), |w: &mut World| { w.change_remediations(|live| live.timed_out = Some(at(399))); w.label("w1", EXCLUDED, Some("true")); }, 400, false)]
#[case::held_beyond_its_time(running(), |w: &mut World| { w.label("w1", EXCLUDED, Some("true")); w.live(300, 610); }, 611, false)]
#[case::held_beyond_the_time_of_a_template(classic(), |w: &mut World| { w.label("w1", EXCLUDED, Some("true")); w.live(300, 2280); }, 2281, false)]
#[case::maintained_without_an_end(running(), |w: &mut World| { w.snapshot.maintenances = Reading::Known([name("w1")].into()); w.live(300, 610); }, 611, false)]
#[case::drained_beyond_its_time(running(), |w: &mut World| { w.drain("w1", "Draining", 9999); w.live(300, 610); }, 611, true)]
#[case::healthy_for_less_than_its_delay(running(), |w: &mut World| { w.change_check("workers", |c| c.spec.healthy_delay = nodeward_core::node_health_check::HealthyDelay::UntilConfirmed); w.heal("w1", 390); }, 400, true)]
#[case::over(running(), |w: &mut World| { w.live(300, 900); }, 901, false)]
#[case::classic_over(classic(), |w: &mut World| w.live(300, 2280), 2281, false)]
#[case::classic_failed(classic(), |w: &mut World| w.succeeded("False"), 400, false)]
#[case::gone(running(), |w: &mut World| { w.snapshot.remediations.clear(); w.label("w1", EXCLUDED, Some("true")); }, 400, false)]
#[case::orphan(running(), |w: &mut World| { w.remove_node("w1"); stick(w, 390); }, 400, false)]
#[case::in_deletion_of_a_healthy_node(running(), |w: &mut World| { w.heal("w1", 390); stick(w, 391); }, 400, false)]
#[case::of_an_earlier_outage(running(), |w: &mut World| { stick(w, 350); w.heal("w1", 360); w.fail("w1", 390); }, 400, false)]
fn only_a_node_that_runs_takes_a_slot(
    #[case] mut world: World,
    #[case] change: fn(&mut World),
    #[case] now: i64,
    #[case] runs: bool,
) {
    change(&mut world);
    world.settle(now);
    assert_eq!(world.holder("node-w1").is_some(), runs, "the lease");
    assert_eq!(
        world.status("workers").phase == Some(Phase::Remediating),
        runs,
        "the phase"
    );
    world.fail("w2", now - 300);
    let plan = world.settle(now);
    let blocked = plan.reason("w2") == HealthReason::ConcurrencyLimitReached;
    assert_eq!(blocked, runs, "{:?}", plan.node("w2"));
    let first_of_w2 = world
        .remediations()
        .iter()
        .filter(|live| live.ends_with("of w2"))
        .count();
    assert_eq!(first_of_w2, usize::from(!runs));
}

/// Whatever is left keeps its node out of the count, as in the peer.
#[rstest]
#[case::over(|w: &mut World| w.live(300, 900), 901)]
#[case::in_deletion_of_a_healthy_node(|w: &mut World| { w.heal("w1", 390); stick(w, 391); }, 400)]
fn any_remediation_keeps_its_node_from_being_healthy(#[case] change: fn(&mut World), #[case] now: i64) {
    let mut world = running();
    change(&mut world);
    assert_eq!(world.settle(now).counts("workers"), (4, 5));
}

#[test]
fn leftover_is_named_with_what_keeps_it() {
    let mut world = running();
    world.remove_node("w1");
    stick(&mut world, 390);
    let plan = world.settle(400);
    assert!(world.entry("w1").is_none(), "as in the peer");
    assert_eq!(plan.reason("w1"), HealthReason::RemediatedNodeGone);
    let told: Vec<&str> = plan.verdicts.warnings.iter().map(|warning| &*warning.text).collect();
    assert_eq!(told.len(), 1);
    for part in ["RebootRemediation", "node w1", "example.org/remediator"] {
        assert!(told[0].contains(part), "{told:?}");
    }
}

/// It was deleted when the node was healthy, and is there still: no step 2 without a step 1 of this outage.
#[test]
fn chain_begins_anew_in_another_outage() {
    let mut world = running().single();
    world.settle(600);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
    world.change_remediations(|live| live.key.name = "w1".into());
    world.heal("w1", 700);
    stick(&mut world, 700);
    world.settle(700);
    world.fail("w1", 800);
    world.settle(1099);
    assert!(
        world
            .snapshot
            .remediations
            .iter()
            .all(|live| live.timed_out < Some(at(1099)))
    );
    let plan = world.settle(1100);
    assert!(
        world.snapshot.remediations.iter().all(|live| live.timed_out.is_some()),
        "all are told"
    );
    assert_eq!(plan.reason("w1"), HealthReason::EarlierRemediation);
    assert_eq!(
        plan.node("w1").until,
        Some(at(1400)),
        "step 1 waits for its name for its timeout"
    );
    // Its name is free: step 1, not 2.
    let mut freed = world.clone();
    freed
        .snapshot
        .remediations
        .retain(|live| &*live.kind.kind == "FenceRemediation");
    freed.settle(1200);
    assert_eq!(freed.remediations(), ["Fence of w1", "Reboot of w1"]);
    assert_eq!(freed.entry("w1").unwrap().remediations.len(), 1);
    // It is not: step 2 passes all gates of a first one.
    world
        .snapshot
        .remediations
        .retain(|live| &*live.kind.kind == "RebootRemediation");
    for node in ["w2", "w3", "w4", "w5"] {
        world.change_check("workers", |check| {
            check.spec.threshold = nodeward_core::node_health_check::Threshold::MinHealthy(
                nodeward_core::node_health_check::Quantity::Nodes(4),
            );
        });
        world.fail(node, 1300);
    }
    assert_eq!(world.settle(1400).reason("w1"), HealthReason::TooFewHealthy);
    world.heal_all(["w2", "w3", "w4", "w5"], 1410);
    world.settle(1410);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

#[test]
fn single_template_waits_until_its_name_is_free() {
    let mut world = classic().single();
    world.change_remediations(|live| live.key.name = "w1".into());
    world.heal("w1", 400);
    stick(&mut world, 400);
    world.settle(400);
    world.fail("w1", 500);
    let plan = world.settle(9000);
    assert_eq!(plan.reason("w1"), HealthReason::EarlierRemediation);
    assert_eq!(plan.node("w1").until, None);
    world.snapshot.remediations.clear();
    world.settle(9001);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

/// Its NodeHealthCheck is deleted and made again, and a finalizer keeps the first step's remediation: that step waits for its own
/// time, however long the node has been unhealthy.
#[test]
fn chain_that_is_made_anew_leaves_out_no_step_at_once() {
    let mut world = World::workers(5).single().failed("w1", 0);
    world.add_remediation("Reboot", "w1", &["uid-of-a-check-that-is-gone"], 100);
    world.succeeded("False");
    stick(&mut world, 5000);
    world.set_check("workers", two_steps());
    world.live(5000, 5299);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(world.plan(5299).node("w1").until, Some(at(5300)));
    world.settle(5300);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// What is left of a template that somebody has replaced would keep its name from the step in its place, and nobody deletes it.
#[rstest]
#[case::single_template(classic(), json!({}), &["Reboot of w1"])]
#[case::both_of_two_steps(running(), chain(&[("Reboot", "5m"), ("Replace", "5m")]), &["Fence of w1", "Reboot of w1"])]
fn replaced_template_begins_once_the_rest_of_the_old_one_is_deleted(
    #[case] world: World,
    #[case] patch: Value,
    #[case] expected: &[&str],
) {
    let mut world = replaced(world, patch);
    world.live(9001, 9200);
    assert_eq!(world.remediations(), expected);
    let mut all = world.snapshot.remediations.iter();
    let reboot = all.find(|live| live.kind == kind("Reboot")).unwrap();
    assert_eq!(reboot.template.as_deref(), Some("another"));
}

#[rstest]
#[case::paused(|w: &mut World| w.change_check("workers", |check| check.spec.pauses.push("upgrade".to_owned())), HealthReason::CheckPaused)]
#[case::excluded(|w: &mut World| w.label("w1", EXCLUDED, Some("true")), HealthReason::ExcludedByLabel)]
fn rest_of_a_replaced_template_stays_while_nothing_may_begin(
    #[case] stop: fn(&mut World),
    #[case] reason: HealthReason,
) {
    let mut world = replaced(classic(), json!({}));
    stop(&mut world);
    world.live(9001, 9200);
    assert!(world.snapshot.remediations[0].deleting.is_none());
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(world.plan(9200).reason("w1"), reason);
}

/// The chain of `w1` is over, and then its first template is replaced by another of its kind.
fn replaced(world: World, patch: Value) -> World {
    let mut world = world.single();
    world.change_remediations(|live| live.key.name = "w1".into());
    world.live(300, 9000);
    assert_eq!(world.plan(9000).reason("w1"), HealthReason::ChainExhausted);
    let patch = with(patch, json!({ "maxUnhealthy": "100%" }));
    world.set_check("workers", patch);
    let mut steps = CheckSpec::clone(&world.snapshot.checks["workers"].spec);
    steps.steps[0].template.name = "another".into();
    world.change_check("workers", |check| check.spec = steps);
    let template = world.snapshot.templates[&template_ref("Reboot")].clone();
    let another = TemplateRef {
        name: "another".into(),
        ..template_ref("Reboot")
    };
    world.snapshot.templates.insert(another, template);
    world
}

#[test]
fn remediation_that_cannot_be_deleted_is_named() {
    let mut world = running();
    let uid = world.snapshot.remediations[0].uid.clone();
    let refused = ("denied by a policy".to_owned(), at(9999));
    world.snapshot.memory.undeleted.insert(uid, refused);
    assert_eq!(
        world.plan(400).verdicts.checks[0].stuck_remediations,
        [],
        "it is wanted"
    );
    world.heal("w1", 410);
    let plan = world.plan(420);
    assert_eq!(plan.verdicts.checks[0].stuck_remediations.len(), 1);
    assert!(
        plan.verdicts.warnings[0]
            .text
            .contains("cannot be deleted: denied by a policy")
    );
}

/// Nothing begins that the status does not have, and people learn why.
#[test]
fn status_that_cannot_be_written_stops_each_step() {
    let mut world = World::watched(5).failed("w1", 0);
    world
        .snapshot
        .memory
        .unwritten
        .insert("workers".into(), "webhook away".to_owned());
    let plan = world.settle(300);
    assert_eq!(plan.reason("w1"), HealthReason::RemediationRejected);
    assert!(plan.node("w1").detail.contains("webhook away"), "{:?}", plan.node("w1"));
    world.snapshot.memory.unwritten.clear();
    world.settle(301);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

/// Names carry a hash: the earlier node's remediator acts by the node's name, and needs a moment to stop.
#[test]
fn new_node_waits_until_the_earlier_ones_remediator_has_been_told() {
    let mut world = running();
    world.remove_node("w1");
    stick(&mut world, 390);
    world.add_node("w1", "worker", 391);
    world.fail("w1", 92);
    let plan = world.plan(400);
    assert_eq!(plan.intended("workers"), [""; 0], "it is not told yet");
    world.apply(plan, 400);
    let plan = world.settle(459);
    assert_eq!(
        (plan.reason("w1"), plan.node("w1").until),
        (HealthReason::EarlierRemediation, Some(at(460)))
    );
    world.settle(460);
    assert_eq!(world.remediations(), ["Reboot of w1", "Reboot of w1"]);
    let untold = world
        .snapshot
        .remediations
        .iter()
        .filter(|live| live.timed_out.is_none());
    assert_eq!(untold.count(), 1, "one remediator at work on the machine");
}

/// The remediator goes on by the node's name.
#[test]
fn new_node_gets_nothing_beside_a_remediator_that_cannot_be_told() {
    let mut world = running().may_not_annotate();
    world.remove_node("w1");
    stick(&mut world, 390);
    world.add_node("w1", "worker", 391);
    world.fail("w1", 92);
    let plan = world.settle(9000);
    assert_eq!(plan.reason("w1"), HealthReason::EarlierRemediation);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

/// By whomever and of whichever kind.
#[rstest]
#[case::at_work(|_: &mut World| {}, false)]
#[case::told_to_stop(|w: &mut World| w.change_remediations(|live| live.timed_out = Some(at(200))), true)]
#[case::succeeded(|w: &mut World| w.succeeded("True"), true)]
#[case::failed(|w: &mut World| w.succeeded("False"), true)]
#[case::undecided(|w: &mut World| w.succeeded("Unknown"), false)]
fn foreign_remediation_blocks_the_first_step_while_it_runs(#[case] change: fn(&mut World), #[case] starts: bool) {
    let mut world = World::watched(5).failed("w1", 0);
    world.add_remediation("Fence", "w1", &["somebody"], 100);
    change(&mut world);
    world.settle(300);
    assert_eq!(world.remediations().contains(&"Reboot of w1".to_owned()), starts);
    if !starts {
        assert_eq!(world.plan(300).reason("w1"), HealthReason::ForeignRemediation);
    }
}

/// Its NodeHealthCheck was deleted, and its finalizer keeps the node dead: a person is told of it.
#[test]
fn remediation_that_nobody_owns_any_more_is_named_with_what_keeps_it() {
    let mut world = World::watched(5).failed("w1", 0);
    world.add_remediation("Fence", "w1", &["uid-of-a-check-that-is-gone"], 100);
    assert_eq!(world.plan(300).verdicts.checks[0].stuck_remediations, []);
    stick(&mut world, 200);
    let plan = world.settle(300);
    assert_eq!(plan.reason("w1"), HealthReason::ForeignRemediation);
    assert_eq!(plan.verdicts.checks[0].stuck_remediations.len(), 1);
    assert!(plan.verdicts.warnings[0].text.contains("example.org/remediator"));
}

/// An over one still blocks its own name.
#[test]
fn foreign_remediation_that_is_over_blocks_its_own_name() {
    let mut world = World::watched(5).single().failed("w1", 0);
    world.add_remediation("Reboot", "w1", &["somebody"], 100);
    world.succeeded("False");
    let plan = world.settle(300);
    assert_eq!(plan.reason("w1"), HealthReason::ForeignRemediation);
    assert_eq!(plan.node("w1").detail, "RebootRemediation remediators/w1");
}

/// Over or not, any remediation of a control-plane node blocks the others.
#[test]
fn control_plane_node_whose_remediation_is_over_blocks_the_others() {
    let selects = json!({
        "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" }] },
        "remediationTemplate": template("Reboot"), "maxUnhealthy": "100%",
    });
    let mut world = World::workers(1)
        .control_plane(5)
        .check("workers", selects)
        .failed("m1", 0);
    world.settle(300);
    world.succeeded("False");
    world.settle(400);
    assert_eq!(world.holder("node-m1"), None, "it does not run any more");
    world.fail("m2", 50);
    let plan = world.settle(400);
    assert_eq!(plan.reason("m2"), HealthReason::ControlPlaneNodeAway);
    assert!(plan.node("m2").detail.contains("m1"), "{:?}", plan.node("m2"));
    assert_eq!(
        world.holder("nodeward-control-plane"),
        Some("NodeHealthCheck-workers/m1")
    );
    world.snapshot.remediations.clear();
    world.heal("m1", 410);
    world.settle(410);
    assert_eq!(world.remediations(), ["Reboot of m2"]);
}

/// `w1` is healthy for a moment and fails again: its remediation has run all along.
#[test]
fn relapse_finds_its_slot() {
    let mut world = running();
    world.change_check("workers", |check| {
        check.spec.healthy_delay = nodeward_core::node_health_check::HealthyDelay::UntilConfirmed;
    });
    world.heal("w1", 400);
    world.fail("w2", 0);
    assert_eq!(world.settle(400).reason("w2"), HealthReason::ConcurrencyLimitReached);
    world.fail("w1", 410);
    world.settle(420);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

/// A remediator's definition is deleted and made again, and with it go all remediations: no machine is rebooted a second time.
#[rstest]
fn remediator_that_is_installed_again_restarts_nothing(#[values(false, true)] restarts: bool) {
    let mut world = running();
    world.snapshot.remediations.clear();
    let serve = |world: &mut World, listed: Listed| {
        world.snapshot.kinds.get_mut(&kind("Reboot")).unwrap().listed = listed;
    };
    serve(&mut world, Listed::NotServed);
    world.settle(400);
    serve(&mut world, Listed::Complete);
    if restarts {
        world.restart_leader();
    }
    let plan = world.settle(410);
    assert_eq!(
        (plan.reason("w1"), world.remediations()),
        (HealthReason::RemediationRunning, vec![])
    );
    // Its time passes as it would have, and the node is not left dead.
    world.settle(600);
    assert_eq!(world.remediations(), ["Fence of w1"]);
    world.heal("w1", 700);
    world.settle(700);
    assert_eq!(world.entry("w1"), None);
}

/// Fences of nodes that are gone, all kept by a finalizer.
#[test]
fn thousand_leftovers_are_named_and_make_nobody_wait() {
    let mut world = World::watched(5).failed("w1", 0);
    for number in 0..1000 {
        world.add_remediation("Fence", &format!("gone-{number}"), &["uid-of-workers"], 100);
    }
    stick(&mut world, 200);
    let plan = world.settle(300);
    assert_eq!(plan.verdicts.warnings.len(), 1000);
    assert_eq!(plan.check("workers").stuck_remediations.len(), 1000);
    assert_eq!(world.status("workers").unhealthy_nodes.len(), 1);
    assert!(world.remediations().contains(&"Reboot of w1".to_owned()));
}

/// Whatever others write: nothing panics, and no other node waits.
#[rstest]
#[case::created_in_the_future(|w: &mut World| w.change_remediations(|live| live.created = at(99_999)))]
#[case::timed_out_in_the_future(|w: &mut World| w.change_remediations(|live| live.timed_out = Some(at(99_999))))]
#[case::timed_out_at_no_time(|w: &mut World| w.change_remediations(|live| live.timed_out = Some(jiff::Timestamp::MAX)))]
#[case::deleted_in_the_future(|w: &mut World| stick(w, 99_999))]
#[case::unknown_outcome(|w: &mut World| w.succeeded("Perhaps"))]
#[case::owned_by_nobody(|w: &mut World| w.change_remediations(|live| live.owners = ["nobody".into()].into()))]
#[case::without_an_owner(|w: &mut World| w.change_remediations(|live| live.owners = [].into()))]
#[case::not_served(|w: &mut World| { w.snapshot.remediations.clear(); w.snapshot.kinds.get_mut(&kind("Fence")).unwrap().listed = Listed::NotServed; })]
#[case::template_gone(|w: &mut World| { w.snapshot.templates.insert(template_ref("Fence"), crate::snapshot::TemplateState::KindAbsent); })]
fn what_others_write_makes_no_other_node_wait(#[case] change: fn(&mut World)) {
    let mut world = World::workers(5).check("workers", json!({})).check(
        "fences",
        json!({ "selector": { "matchLabels": { "fenced": "true" } }, "remediationTemplate": template("Fence") }),
    );
    world.label("w1", "fenced", Some("true"));
    world.label("w1", "node-role.kubernetes.io/worker", None);
    for name in ["w1", "w2"] {
        world.fail(name, 0);
    }
    world.add_remediation("Fence", "w1", &["uid-of-fences"], 100);
    change(&mut world);
    world.live(300, 3000);
    assert!(
        world.remediations().contains(&"Reboot of w2".to_owned()),
        "{:?}",
        world.remediations()
    );
}

/// What tells a time that is still to come was written by a clock that is wrong: the node is not left dead until then.
#[rstest]
#[case::step_began(|w: &mut World| change_record(w, |record| record.started = Some(at(99_999))))]
#[case::remediation_was_created(|w: &mut World| w.change_remediations(|live| live.created = at(99_999)))]
#[case::step_was_over(|w: &mut World| change_record(w, |record| record.timed_out = Some(at(99_999))))]
#[case::remediator_was_told(|w: &mut World| w.change_remediations(|live| live.timed_out = Some(at(99_999))))]
fn times_that_are_still_to_come_leave_no_node_dead(#[case] change: fn(&mut World)) {
    let mut world = World::remediating(two_steps());
    change(&mut world);
    world.live(301, 1000);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
    world.heal("w1", 1000);
    world.live(1000, 1001);
    assert_eq!(world.remediations(), [""; 0]);
}

fn change_record(world: &mut World, change: fn(&mut Remediation)) {
    world.change_check("workers", |check| {
        let entries = Arc::make_mut(&mut check.status).unhealthy_nodes.iter_mut();
        entries.flat_map(|entry| &mut entry.remediations).for_each(change);
    });
}

/// It runs no more, and whoever goes by the status can tell.
#[test]
fn status_tells_that_a_remediation_is_gone() {
    let mut world = running();
    world.snapshot.remediations.clear();
    world.label("w1", EXCLUDED, Some("true"));
    world.settle(400);
    let absence = |world: &World| world.entry("w1").unwrap().remediations[0].absence.clone();
    assert_eq!(absence(&world).as_deref(), Some("Gone"));
    world.label("w1", EXCLUDED, None);
    world.settle(410);
    assert_eq!(
        (world.remediations(), absence(&world)),
        (vec!["Reboot of w1".to_owned()], None)
    );
}
