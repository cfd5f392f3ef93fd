use std::sync::Arc;

use nodeward_api::reason::HealthReason;
use nodeward_core::node_health_check::Backoff;
use rstest::rstest;
use serde_json::json;

use super::world::{World, at, chain, intents, template, two_steps};
use crate::plan::{Action, Condition, RemediationChange};

const STEPS: [(&str, &str); 3] = [("Reboot", "5m"), ("Fence", "10m"), ("Replace", "2m")];

fn escalating() -> World {
    World::workers(5).check("workers", chain(&STEPS)).failed("w1", 0)
}

fn running() -> World {
    World::remediating(chain(&STEPS))
}

fn an_hour() -> Backoff {
    Backoff {
        initial: jiff::SignedDuration::from_hours(1),
        limit: jiff::SignedDuration::from_hours(1),
    }
}

#[test]
fn steps_follow_one_another_at_their_timeouts() {
    let mut world = running();
    let mut moments = Vec::new();
    for second in (300..2000).step_by(10) {
        let before = world.remediations().len();
        world.settle(second);
        if world.remediations().len() > before {
            moments.push(second);
        }
    }
    assert_eq!(moments, [600, 1200]);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1", "Replace of w1"]);
    let over: Vec<_> = world
        .entry("w1")
        .unwrap()
        .remediations
        .iter()
        .map(|record| record.timed_out)
        .collect();
    assert_eq!(over, [Some(at(600)), Some(at(1200)), Some(at(1320))]);
}

#[test]
fn annotation_comes_before_the_status_and_the_next_step() {
    let mut world = running();
    let plan = world.plan(600);
    assert_eq!(plan.annotations(), [RemediationChange::TimedOut(at(600))]);
    assert_eq!(plan.intended("workers"), [""; 0]);
    assert_eq!(plan.reason("w1"), HealthReason::Escalating);
    let Some(Action::AnnotateRemediation(write, _)) = plan.actions.first() else {
        panic!("{:?}", plan.actions);
    };
    assert!(write.evidence.is_some(), "it rests on a quorum read");
    world.apply(plan, 600);
    let plan = world.plan(601);
    assert_eq!(plan.intended("workers"), ["w1"]);
    assert_eq!(
        plan.written("workers").unwrap().unhealthy_nodes[0].remediations[0].timed_out,
        Some(at(600))
    );
    assert_eq!(plan.started(), [""; 0]);
}

#[test]
fn intent_of_the_next_step_is_withdrawn_when_the_node_is_healthy() {
    let mut world = running();
    for second in [600, 601] {
        let plan = world.plan(second);
        world.apply(plan, second);
    }
    assert_eq!(intents(world.status("workers")), ["w1"]);
    world.heal("w1", 602);
    // A finalizer keeps the first.
    world.change_remediations(|live| live.deleting = Some(at(301)));
    world.settle(602);
    assert_eq!(intents(world.status("workers")), [""; 0]);
}

#[test]
fn failed_remediation_escalates_at_once() {
    let mut world = running();
    world.succeeded("False");
    world.settle(310);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

#[rstest]
#[case("True")]
#[case("Unknown")]
fn other_outcomes_wait_for_the_timeout(#[case] status: &str) {
    let mut world = running();
    world.succeeded(status);
    world.settle(599);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.settle(600);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

#[test]
fn succeeded_remediation_is_not_annotated_but_is_over() {
    let mut world = running();
    world.succeeded("True");
    world.settle(600);
    let reboot = world
        .snapshot
        .remediations
        .iter()
        .find(|live| &*live.kind.kind == "RebootRemediation")
        .unwrap();
    assert_eq!(reboot.timed_out, None);
    assert_eq!(world.entry("w1").unwrap().remediations[0].timed_out, Some(at(600)));
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// As in the peer: no second remediator beside one that cannot be told to stop.
#[test]
fn without_the_right_to_annotate_no_further_step_starts() {
    let mut world = running().may_not_annotate();
    world.live(301, 1400);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    let plan = world.plan(1400);
    assert_eq!(plan.reason("w1"), HealthReason::PermissionMissing);
    assert!(plan.node("w1").detail.contains("may not be annotated"));
    assert_eq!(world.holder("node-w1"), Some("NodeHealthCheck-workers"));
}

#[test]
fn lost_annotation_of_an_over_step_does_not_bring_the_step_back() {
    let mut world = running();
    world.settle(600);
    world.change_remediations(|live| live.timed_out = None);
    world.settle(650);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
    // And the other way round: the annotation alone says so, too.
    let mut world = running();
    world.change_remediations(|live| live.timed_out = Some(at(350)));
    world.settle(400);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

#[test]
fn after_the_last_step_nothing_is_left() {
    let mut world = running();
    world.live(301, 1400);
    let plan = world.settle(9000);
    assert_eq!(plan.reason("w1"), HealthReason::ChainExhausted);
    assert_eq!(
        world.remediations().len(),
        3,
        "timed-out remediations stay until the node is healthy"
    );
    world.heal("w1", 9001);
    world.settle(9001);
    assert_eq!(world.remediations(), [""; 0]);
    assert_eq!(world.entry("w1"), None);
}

#[test]
fn single_template_runs_for_three_terms_of_its_lease() {
    let mut world = World::remediating(json!({}));
    world.live(300, 300 + 33 * 60 - 1);
    assert_eq!(world.snapshot.remediations[0].timed_out, None);
    assert_eq!(world.holder("node-w1"), Some("NodeHealthCheck-workers"));
    world.live(300 + 33 * 60, 40_000);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(world.snapshot.remediations[0].timed_out, Some(at(300 + 33 * 60)));
    assert_eq!(world.holder("node-w1"), None);
    assert_eq!(world.plan(40_000).reason("w1"), HealthReason::ChainExhausted);
}

#[test]
fn vanished_remediation_is_created_again_with_a_new_start() {
    let mut world = running();
    let before = world.entry("w1").unwrap().remediations[0].resource.name.clone();
    world.snapshot.remediations.clear();
    world.settle(500);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    let record = &world.entry("w1").unwrap().remediations[0];
    assert_eq!(record.started, Some(at(500)));
    assert_ne!(record.resource.name, before);
    // Its timeout counts anew.
    world.settle(799);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.settle(800);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

#[test]
fn start_in_place_of_a_vanished_remediation_has_to_find_it_gone() {
    let mut world = running();
    let gone = world.snapshot.remediations.pop().unwrap();
    for _ in 0..2 {
        let plan = world.plan(500);
        world.apply(plan, 500);
    }
    let plan = world.plan(500);
    let replaced = plan.starts()[0]
        .conditions
        .iter()
        .find_map(|condition| match condition {
            Condition::Gone(replaced) => Some((replaced.key.clone(), Arc::clone(&replaced.uid))),
            _ => None,
        });
    assert_eq!(replaced, Some((gone.key.clone(), Arc::clone(&gone.uid))));
    // It was there all the time, and the watch of this leader was behind.
    world.snapshot.remediations.push(gone);
    world.settle(501);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(
        world.entry("w1").unwrap().remediations.len(),
        1,
        "the intent is withdrawn"
    );
}

#[test]
fn vanished_remediation_passes_all_gates_again() {
    let mut world = running();
    world.settle(600);
    world
        .snapshot
        .remediations
        .retain(|live| &*live.kind.kind == "RebootRemediation");
    world.fail_all(["w2", "w3", "w4"], 650);
    for second in [700, 710] {
        let plan = world.settle(second);
        assert_eq!(plan.reason("w1"), HealthReason::TooFewHealthy);
        assert_eq!(world.remediations(), ["Reboot of w1"]);
    }
    world.heal_all(["w2", "w3", "w4"], 720);
    world.settle(720);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

#[test]
fn over_step_that_vanished_stays_over() {
    let mut world = running();
    world.settle(600);
    world
        .snapshot
        .remediations
        .retain(|live| &*live.kind.kind == "FenceRemediation");
    world.settle(700);
    assert_eq!(world.remediations(), ["Fence of w1"]);
    world.settle(1200);
    assert_eq!(world.remediations(), ["Fence of w1", "Replace of w1"]);
}

#[test]
fn kind_that_is_not_listed_leaves_its_remediation_untold() {
    let mut world = running();
    let live = std::mem::take(&mut world.snapshot.remediations);
    for facts in world.snapshot.kinds.values_mut() {
        facts.listed = crate::snapshot::Listed::NotYet;
    }
    let plan = world.settle(400);
    assert_eq!(plan.reason("w1"), HealthReason::RemediationRunning);
    assert_eq!(world.entry("w1").unwrap().remediations.len(), 1);
    assert_eq!(world.holder("node-w1"), Some("NodeHealthCheck-workers"));
    world.snapshot.remediations = live;
    for facts in world.snapshot.kinds.values_mut() {
        facts.listed = crate::snapshot::Listed::Complete;
    }
    world.settle(410);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn edited_chain_goes_on_after_the_step_that_is_over() {
    let mut world = running();
    world.settle(600);
    // Fence is running; a new first step comes in.
    world.set_check(
        "workers",
        chain(&[("Replace", "2m"), ("Reboot", "5m"), ("Fence", "10m")]),
    );
    world.settle(700);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
    let plan = world.settle(1300);
    assert_eq!(plan.reason("w1"), HealthReason::ChainExhausted);
}

#[test]
fn step_whose_template_left_the_chain_runs_for_ten_minutes() {
    let mut world = running();
    world.set_check("workers", json!({ "remediationTemplate": template("Fence") }));
    let plan = world.settle(899);
    assert_eq!(world.remediations(), ["Reboot of w1"], "not two at once");
    assert_eq!(plan.reason("w1"), HealthReason::RemediationRunning);
    assert_eq!(plan.node("w1").until, Some(at(900)), "ten minutes after its start");
    let mut failed = world.clone();
    failed.succeeded("False");
    failed.settle(899);
    assert_eq!(failed.remediations(), ["Fence of w1", "Reboot of w1"]);
    world.settle(900);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

#[test]
fn relabelled_node_is_escalated_as_before() {
    let mut world = running();
    world.label("w1", "node-role.kubernetes.io/worker", None);
    let plan = world.settle(600);
    assert_eq!(plan.counts("workers"), (4, 4), "it is not counted");
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
    world.heal("w1", 700);
    world.settle(700);
    assert_eq!(world.remediations(), [""; 0]);
}

#[test]
fn relabelled_node_is_found_without_its_entry() {
    let mut world = running();
    world.label("w1", "node-role.kubernetes.io/worker", None);
    world.change_check("workers", |check| check.status = Arc::default());
    let plan = world.settle(400);
    assert_eq!(plan.reason("w1"), HealthReason::RemediationRunning);
    assert!(world.entry("w1").is_some());
}

#[test]
fn peers_chain_is_taken_over_in_mid_escalation() {
    let mut world = World::workers(5).check("workers", chain(&STEPS)).failed("w1", -5000);
    // The peer's objects: random names, no node UID; the first step is over.
    let reboot = world.add_remediation("Reboot", "w1", &["uid-of-workers"], -3000);
    let fence = world.add_remediation("Fence", "w1", &["uid-of-workers"], -100);
    world.snapshot.remediations.clear();
    for (live, timed_out, suffix) in [(reboot, Some(at(-100)), "x7k2p"), (fence, None, "9dk3s")] {
        let mut live = crate::snapshot::RemediationFacts::clone(&live);
        live.timed_out = timed_out;
        live.key.name = format!("w1-{suffix}").into();
        live.template = Some(live.kind.kind.trim_end_matches("Remediation").to_lowercase().into());
        world.snapshot.remediations.push(live.into());
    }
    world.lease("node-w1", "NodeHealthCheck-workers", -100, 11);
    world.settle(0);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
    world.settle(499);
    assert_eq!(world.remediations().len(), 2);
    world.settle(500);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1", "Replace of w1"]);
}

/// Reboot is over, and its template has left the specification: Fence is the first step now.
fn edited_to_another_first_step() -> World {
    let mut world = running();
    world.succeeded("False");
    world.set_check("workers", json!({ "remediationTemplate": template("Fence") }));
    world
}

#[test]
fn first_step_of_an_edited_chain_passes_all_gates() {
    let mut world = edited_to_another_first_step();
    world.fail_all(["w2", "w3", "w4"], 305);
    let plan = world.settle(310);
    assert_eq!(plan.reason("w1"), HealthReason::TooFewHealthy);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn own_chain_takes_no_place_under_the_cap() {
    let mut world = edited_to_another_first_step();
    world.change_check("workers", |check| check.spec.max_concurrent = Some(1));
    world.settle(310);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

#[rstest]
#[case::removed_step("Replace")]
#[case::earlier_step("Reboot")]
fn vanished_remediation_of_another_step_leaves_escalation_alone(#[case] other: &str) {
    let mut world = running();
    world.settle(600);
    // Another remediation of the node was recorded and is gone; its step is not the one to be started.
    world.change_check("workers", |check| {
        check
            .spec
            .steps
            .retain(|step| &*step.template.kind != "ReplaceRemediationTemplate");
        let entry = &mut Arc::make_mut(&mut check.status).unhealthy_nodes[0];
        let mut gone = entry.remediations[0].clone();
        gone.resource.kind = Some(format!("{other}Remediation"));
        gone.resource.uid = Some("gone".to_owned());
        gone.template_name = Some(other.to_lowercase());
        gone.timed_out = None;
        entry.remediations.push(gone);
        // Fence has yet to begin.
        entry.remediations.remove(1);
    });
    world.snapshot.remediations.clear();
    // No first step starts now.
    world.change_check("workers", |check| check.spec.backoff = Some(an_hour()));
    let ended = format!(r#"{{"count":1,"lastEnd":"{}"}}"#, at(-10));
    world.annotate_node("w1", "nodeward.dev/remediations", Some(&ended));
    world.settle(610);
    assert_eq!(world.remediations(), ["Fence of w1"]);
}

#[test]
fn remediation_that_is_being_deleted_runs_until_its_timeout() {
    let mut world = running();
    world.change_remediations(|live| live.deleting = Some(at(301)));
    for second in [400, 599] {
        let plan = world.settle(second);
        assert_eq!(plan.reason("w1"), HealthReason::RemediationRunning);
        let node = plan.node("w1");
        assert!(node.detail.ends_with(", which is being deleted"), "{}", node.detail);
        assert_eq!(node.until, Some(at(600)), "what is promised is what happens");
        assert_eq!(world.remediations(), ["Reboot of w1"]);
    }
    let mut stuck = world.clone();
    stuck.settle(600);
    assert_eq!(stuck.remediations(), ["Fence of w1", "Reboot of w1"]);
    // Gone before, its step begins anew as a first step does.
    world.snapshot.remediations.clear();
    world.fail_all(["w2", "w3", "w4"], 599);
    let plan = world.settle(600);
    assert_eq!(plan.reason("w1"), HealthReason::TooFewHealthy);
    world.heal_all(["w2", "w3", "w4"], 620);
    world.settle(620);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(world.entry("w1").unwrap().remediations[0].started, Some(at(620)));
}

#[test]
fn remediation_that_is_over_and_being_deleted_stays_over() {
    let mut world = running();
    world.settle(600);
    world.change_remediations(|live| live.deleting = live.timed_out);
    world.settle(1200);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1", "Replace of w1"]);
}

#[test]
fn timeout_counts_from_the_creation_and_not_from_an_early_intent() {
    let mut world = escalating();
    let plan = world.plan(300);
    world.apply(plan, 300);
    // The API server refuses the create for four minutes.
    world.settle(540);
    assert_eq!(world.entry("w1").unwrap().remediations[0].started, Some(at(540)));
    world.settle(839);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.settle(840);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

#[rstest]
#[case::without_backoff(json!({}))]
#[case::with_backoff(json!({ "backoff": { "type": "exponential" } }))]
fn exhausted_chain_of_a_check_that_is_stopped_says_what_stops_it(#[case] patch: serde_json::Value) {
    let steps = super::world::with(chain(&STEPS[..1]), patch);
    let mut world = World::remediating(steps);
    let plan = world.settle(600);
    assert_eq!(plan.reason("w1"), HealthReason::ChainExhausted);
    world.change_check("workers", |check| check.spec.pauses.push("me".to_owned()));
    let plan = world.settle(610);
    assert_eq!(plan.reason("w1"), HealthReason::CheckPaused);
}

#[test]
fn check_without_a_step_says_what_is_wrong_with_it() {
    let mut world = escalating();
    world.set_check("workers", json!({ "remediationTemplate": null }));
    let plan = world.settle(300);
    assert_eq!(plan.reason("w1"), HealthReason::CheckDisabled);
}

/// Neither for want of a right nor by the word of an admission webhook does a second remediator come to one that was not told.
#[test]
fn refused_annotation_stops_escalation_until_it_is_taken() {
    let mut world = World::remediating(two_steps());
    let plan = world.plan(600);
    assert_eq!(plan.annotations(), [RemediationChange::TimedOut(at(600))]);
    let uid = Arc::clone(&world.snapshot.remediations[0].uid);
    let refused = (uid, nodeward_api::annotation::REMEDIATION_TIMED_OUT);
    let why = ("denied by the policy".to_owned(), at(1200));
    world.snapshot.memory.unannotated.insert(refused.clone(), why);
    let plan = world.settle(603);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    let verdict = plan.node("w1");
    assert_eq!(
        (verdict.reason, verdict.until),
        (HealthReason::RemediationRejected, Some(at(1200)))
    );
    assert!(verdict.detail.ends_with("denied by the policy"), "{verdict:?}");
    world.snapshot.memory.unannotated.remove(&refused);
    world.settle(1200);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// The status had it over before.
#[test]
fn step_is_not_started_beside_one_that_is_over_by_the_status_alone() {
    let mut world = World::remediating(two_steps());
    let uid = Arc::clone(&world.snapshot.remediations[0].uid);
    let refused = (uid, nodeward_api::annotation::REMEDIATION_TIMED_OUT);
    world
        .snapshot
        .memory
        .unannotated
        .insert(refused, ("denied".to_owned(), at(9000)));
    world.change_check("workers", |check| {
        let entries = &mut Arc::make_mut(&mut check.status).unhealthy_nodes;
        entries[0].remediations[0].timed_out = Some(at(600));
    });
    assert_eq!(world.settle(610).reason("w1"), HealthReason::RemediationRejected);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

/// While the watch of nodes is silent, more of them may be down than it tells.
#[test]
fn no_step_follows_while_nodes_are_not_heard_of() {
    let mut world = running();
    world.snapshot.nodes_silent_for = jiff::SignedDuration::from_secs(90);
    assert_eq!(world.settle(700).reason("w1"), HealthReason::SourceUnreadable);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.snapshot.nodes_silent_for = jiff::SignedDuration::ZERO;
    world.live(710, 780);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// Its second step was deleted: it would be the first step of a node that is no longer selected.
#[test]
fn deleted_step_of_a_node_that_is_not_selected_stays_gone() {
    let mut world = running();
    world.settle(600);
    assert_eq!(world.remediations(), ["Fence of w1", "Reboot of w1"]);
    world.label("w1", "node-role.kubernetes.io/worker", None);
    world
        .snapshot
        .remediations
        .retain(|live| &*live.kind.kind != "FenceRemediation");
    world.live(610, 900);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(world.plan(900).reason("w1"), HealthReason::ExcludedByLabel);
}
