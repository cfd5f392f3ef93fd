//! Faults of the peer that this decision must not have.

use nodeward_api::reason::HealthReason;
use serde_json::json;

use super::world::{World, chain, template, template_ref};
use crate::snapshot::TemplateState;

#[test]
fn deadline_survives_another_nodes_remediation_without_a_lease() {
    let mut world = World::watched(5).failed("w1", 0).failed("w2", 10);
    world.settle(300);
    world.snapshot.leases.clear();
    let plan = world.plan(305);
    assert_eq!(plan.requeue_second(), 310);
    world.live(305, 310);
    assert_eq!(world.remediations(), ["Reboot of w1", "Reboot of w2"]);
}

#[test]
fn broken_check_does_not_stop_another() {
    let mut world = World::workers(5)
        .check("a-broken", json!({ "remediationTemplate": template("Fence") }))
        .check("workers", json!({}))
        .failed("w1", 0);
    world
        .snapshot
        .templates
        .insert(template_ref("Fence"), TemplateState::NotFound);
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn node_that_cannot_be_remediated_does_not_stop_those_after_it() {
    let mut world = World::watched(5).single().failed("w1", 0).failed("w2", 0);
    world.add_remediation("Reboot", "w1", &["somebody"], 0);
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of w1", "Reboot of w2"]);
    let plan = world.plan(300);
    assert_eq!(plan.reason("w1"), HealthReason::ForeignRemediation);
    assert_eq!(plan.reason("w2"), HealthReason::RemediationRunning);
}

#[test]
fn pause_freezes_neither_counts_nor_clean_up() {
    let mut world = World::watched(5).failed("w1", 0);
    world.settle(300);
    world.change_check("workers", |check| check.spec.pauses.push("me".to_owned()));
    world.settle(310);
    let status = world.status("workers");
    assert_eq!((status.healthy_nodes, status.observed_nodes), (Some(4), Some(5)));
    world.heal("w1", 320);
    world.settle(320);
    assert_eq!(world.remediations(), [""; 0]);
}

#[test]
fn missing_right_to_annotate_is_named_and_leaves_other_nodes_alone() {
    let check = chain(&[("Reboot", "1m"), ("Fence", "1m")]);
    let mut world = World::workers(5)
        .check("workers", check)
        .failed("w1", 0)
        .may_not_annotate();
    world.live(300, 390);
    world.fail("w2", 0);
    world.live(390, 400);
    assert_eq!(world.remediations(), ["Reboot of w1", "Reboot of w2"]);
    let plan = world.plan(400);
    assert_eq!(plan.reason("w1"), HealthReason::PermissionMissing);
    let warnings = plan.verdicts.warnings;
    let keys: Vec<&str> = warnings.iter().map(|warning| &*warning.key).collect();
    let key = |kind: &str| format!("annotate/uid-of-workers/remediation.example.org/v1alpha1/{kind}");
    assert_eq!(keys, [key("RebootRemediation")], "it is said once");
}

#[test]
fn relabelled_nodes_remediation_is_no_orphan() {
    let mut world = World::watched(5).failed("w1", 0);
    world.settle(300);
    world.label("w1", "node-role.kubernetes.io/worker", None);
    let plan = world.settle(400);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    assert_eq!(plan.reason("w1"), HealthReason::RemediationRunning);
}

#[test]
fn relabelled_node_without_a_remediation_is_not_remediated() {
    let mut world = World::watched(5).failed("w1", 0);
    let plan = world.plan(300);
    world.apply(plan, 300);
    world.label("w1", "node-role.kubernetes.io/worker", None);
    world.settle(301);
    assert_eq!(world.remediations(), [""; 0]);
    assert_eq!(world.entry("w1"), None, "its intent is withdrawn");
}
