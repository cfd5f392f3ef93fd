//! The same objects and events through two columns: what medik8s' controller has created by the end
//! (<https://github.com/medik8s/node-healthcheck-operator>, `internal/controller/nodehealthcheck_controller.go` at commit
//! 1cf0d07c01b6e2ece7000ce74c29bab25981315c), and what ours has. Where they differ the row says why, and nothing else may
//! differ.

use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, at, chain, template_ref, two_steps, with};
use crate::snapshot::TemplateState;

/// What each has created, and why that differs where it does.
struct Columns {
    peer: &'static [&'static str],
    ours: &'static [&'static str],
    because: Option<&'static str>,
}

const fn same(both: &'static [&'static str]) -> Columns {
    Columns {
        peer: both,
        ours: both,
        because: None,
    }
}

const fn differs(peer: &'static [&'static str], ours: &'static [&'static str], because: &'static str) -> Columns {
    Columns {
        peer,
        ours,
        because: Some(because),
    }
}

const NONE: &[&str] = &[];
const REBOOT: &[&str] = &["Reboot of w1"];
const BOTH: &[&str] = &["Fence of w1", "Reboot of w1"];
const TWO_NODES: &[&str] = &["Reboot of w1", "Reboot of w5"];

#[rstest]
#[case::node_is_unhealthy_for_long_enough(json!({}), |_: &mut World| {}, 300, same(REBOOT))]
#[case::single_template_has_failed(json!({}), |w: &mut World| w.succeeded("False"), 400, same(REBOOT))]
#[case::failed_remediation_is_deleted(json!({}), |w: &mut World| { w.succeeded("False"); w.settle(310); w.snapshot.remediations.clear(); }, 400, same(REBOOT))]
#[case::step_times_out(two_steps(), |_: &mut World| {}, 601, same(BOTH))]
#[case::step_fails(two_steps(), |w: &mut World| w.succeeded("False"), 310, same(BOTH))]
#[case::step_has_succeeded_before_its_timeout(two_steps(), |w: &mut World| w.succeeded("True"), 500, same(REBOOT))]
#[case::step_has_succeeded_and_the_node_stays_unhealthy(two_steps(), |w: &mut World| w.succeeded("True"), 601, same(BOTH))]
#[case::chain_is_over(chain(&[("Reboot", "5m")]), |_: &mut World| {}, 5000, same(REBOOT))]
#[case::too_few_are_healthy_in_mid_escalation(two_steps(), |w: &mut World| w.fail_all(["w2", "w3", "w4"], 500), 700, same(REBOOT))]
#[case::excluded_in_mid_escalation(two_steps(), |w: &mut World| w.label("w1", "remediation.medik8s.io/exclude-from-remediation", Some("true")), 700, same(REBOOT))]
#[case::paused_in_mid_escalation(two_steps(), |w: &mut World| w.change_check("workers", |c| c.spec.pauses.push("me".to_owned())), 700, same(REBOOT))]
#[case::may_not_be_annotated(two_steps(), |w: &mut World| *w = w.clone().may_not_annotate(), 700, same(REBOOT))]
#[case::node_is_healthy_again(json!({}), |w: &mut World| w.heal("w1", 350), 400, same(NONE))]
#[case::node_is_deleted(json!({}), |w: &mut World| w.remove_node("w1"), 400, same(NONE))]
#[case::node_is_deleted_by_its_remediator(json!({}), |w: &mut World| { w.change_remediations(|live| live.node_deletion_expected = true); w.remove_node("w1"); }, 400, same(REBOOT))]
#[case::healthy_while_paused(json!({}), |w: &mut World| { w.change_check("workers", |c| c.spec.pauses.push("me".to_owned())); w.heal("w1", 350); }, 400,
    differs(REBOOT, NONE, "a pause is to start nothing, and a remediation of a healthy node does harm"))]
#[case::chain_that_is_over_is_deleted(chain(&[("Reboot", "5m")]), |w: &mut World| { w.settle(600); w.snapshot.remediations.clear(); }, 700,
    differs(NONE, REBOOT, "a repaired remediator would otherwise never be asked again: the node stays dead"))]
#[case::remediation_is_deleted_again_and_again(json!({}), |w: &mut World| for second in 400..430 { w.snapshot.remediations.clear(); w.settle(second); }, 430,
    differs(REBOOT, NONE, "whoever deletes remediations would make a loop of reboots"))]
#[case::threshold_holds_again_over_an_overdue_step(two_steps(), |w: &mut World| { w.fail_all(["w2", "w3", "w4"], 500); w.settle(700); w.heal_all(["w2", "w3", "w4"], 710); }, 711,
    differs(BOTH, REBOOT, "the machines of many nodes may just be coming back"))]
#[case::healthy_while_its_template_is_away(json!({}), |w: &mut World| { w.snapshot.templates.insert(template_ref("Reboot"), TemplateState::NotFound); w.heal("w1", 350); }, 400,
    differs(REBOOT, NONE, "what is disabled is to start nothing, and a remediation of a healthy node does harm"))]
#[case::node_is_made_again_and_unhealthy(json!({}), |w: &mut World| { w.remove_node("w1"); w.add_node("w1", "worker", 350); w.fail("w1", 350); }, 400,
    differs(REBOOT, NONE, "its remediator goes by the node's name, and would fence the new machine"))]
#[case::node_is_not_selected_any_more(json!({}), |w: &mut World| w.label("w1", "node-role.kubernetes.io/worker", None), 400,
    differs(NONE, REBOOT, "a remediation that runs ends by its node's health, not by a label"))]
#[case::no_threshold(json!({ "maxUnhealthy": null }), |_: &mut World| {}, 300,
    differs(NONE, REBOOT, "the default of 49 % that the API documents"))]
#[case::condition_is_stamped_in_the_past(json!({}), |w: &mut World| { w.fail("w5", 0); w.change_node("w5", |node| node.conditions.iter_mut().for_each(|ready| ready.counts_since = at(390))); }, 400,
    differs(TWO_NODES, REBOOT, "a stamp is by the clock of whoever wrote it"))]
#[case::others_have_never_reported(json!({}), |w: &mut World| { for node in ["w2", "w3", "w4"] { w.set_condition(node, "Ready", None, 310); } w.fail("w5", 10); }, 320,
    differs(TWO_NODES, REBOOT, "a node that has never been Ready does not make up for one that has failed"))]
#[case::storm_is_long_over(json!({ "stormCooldownDuration": "1m" }), |w: &mut World| { w.fail_all(["w2", "w3", "w4"], 10); w.settle(310); w.heal_all(["w1", "w2", "w3", "w4"], 320); w.live(320, 500); w.fail("w5", 600); }, 900,
    differs(NONE, &["Reboot of w5"], "its cooldown began when enough nodes were healthy again, not with the next failure"))]
fn same_events_lead_to_the_same_remediations(
    #[case] mut check: Value,
    #[case] events: fn(&mut World),
    #[case] now: i64,
    #[case] expected: Columns,
) {
    let fields = check.as_object_mut().unwrap();
    fields.entry("maxUnhealthy").or_insert("49%".into());
    let mut world = World::remediating(check);
    events(&mut world);
    world.settle(now);
    assert_eq!(world.remediations(), expected.ours);
    assert_eq!(expected.peer != expected.ours, expected.because.is_some());
}

/// Off OpenShift it asks nobody whether etcd keeps its quorum.
#[rstest]
#[case::one_of_three_is_down(&[], same(&["Reboot of m1"]))]
#[case::two_of_three_are_down(&["m2"], differs(&["Reboot of m1"], NONE, "etcd would lose its quorum"))]
fn control_plane_off_openshift(#[case] down: &[&str], #[case] expected: Columns) {
    let check = with(
        json!({ "maxUnhealthy": "100%" }),
        json!({ "selector": { "matchExpressions": [{ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" }] } }),
    );
    let mut world = World::workers(1)
        .control_plane(3)
        .check("workers", check)
        .failed("m1", 0);
    for node in down {
        world.set_condition(node, "Ready", Some("False"), 299);
    }
    world.settle(300);
    assert_eq!(world.remediations(), expected.ours);
    assert_eq!(expected.peer != expected.ours, expected.because.is_some());
    assert!(world.plan(300).requeue_at > Some(at(300)));
}
