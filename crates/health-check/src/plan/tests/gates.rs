//! Every cell of "What stops what".

use std::sync::Arc;

use jiff::SignedDuration;
use nodeward_api::reason::{DisabledReason, HealthEvent, HealthReason};
use nodeward_core::drain::{NodeDrainView, NodeDrains};
use nodeward_core::id::NamespacedName;
use nodeward_core::signal::{KindState, SignalInputs, UpgradeSignal, WatchedResource};
use rstest::rstest;
use serde_json::json;

use super::world::{World, at, chain, kind, name, template_ref, with};
use crate::plan::Plan;
use crate::snapshot::{Listed, Reading, TemplateFacts, TemplateState};

const STEPS: [(&str, &str); 2] = [("Reboot", "5m"), ("Fence", "5m")];

/// Five workers; `w1` fails at 0. The first step is due at 300, the second at 600.
fn world() -> World {
    World::workers(5).check("workers", chain(&STEPS)).failed("w1", 0)
}

fn machine_health_checks(world: &mut World, names: &[&str]) {
    let handles_termination = |name: &str| name == "terminating";
    let check = |name: &&str| {
        (
            NamespacedName::new("openshift-machine-api", *name),
            handles_termination(name),
        )
    };
    world.snapshot.machine_health_checks = Reading::Known(names.iter().map(check).collect());
}

fn set_template(world: &mut World, state: TemplateState) {
    world.snapshot.templates.insert(template_ref("Fence"), state);
}

fn set_listed(world: &mut World, listed: Listed) {
    world.snapshot.kinds.get_mut(&kind("Fence")).unwrap().listed = listed;
}

type Change = fn(&mut World);

fn storm_cooldown(world: &mut World) {
    world.change_check("workers", |check| {
        check.spec.storm_cooldown = Some(SignedDuration::from_hours(1));
        let since = at(299).to_string();
        let on = |type_: &str| json!({ "type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": since });
        let conditions = json!([on("StormActive"), on("StormCooldownActive")]);
        Arc::make_mut(&mut check.status).conditions = serde_json::from_value(conditions).unwrap();
    });
}

/// Neither it nor its intent stays.
fn stops_the_first_step(stop: Change, reason: HealthReason) {
    let mut stopped = world();
    stop(&mut stopped);
    let plan = stopped.settle(300);
    assert_eq!(plan.reason("w1"), reason);
    assert_eq!(stopped.remediations(), [""; 0]);
    assert_eq!(stopped.entry("w1").unwrap().remediations, [], "no intent stays");

    // Its intent is withdrawn.
    let mut intended = world();
    let plan = intended.plan(300);
    intended.apply(plan, 300);
    stop(&mut intended);
    let plan = intended.plan(301);
    assert_eq!((plan.started(), plan.reason("w1")), (vec![], reason));
    assert_eq!(plan.intended("workers"), [""; 0]);
}

/// Stops every step; afterwards what was due is done.
#[rstest]
#[case::conflict(|w: &mut World| machine_health_checks(w, &["other"]), HealthReason::CheckDisabled)]
#[case::template_not_found(|w: &mut World| set_template(w, TemplateState::NotFound), HealthReason::CheckDisabled)]
#[case::template_kind_absent(|w: &mut World| set_template(w, TemplateState::KindAbsent), HealthReason::CheckDisabled)]
#[case::template_unread(|w: &mut World| set_template(w, TemplateState::Unknown), HealthReason::CheckDisabled)]
#[case::template_forbidden(|w: &mut World| set_template(w, TemplateState::Forbidden("403".to_owned())), HealthReason::CheckDisabled)]
#[case::template_malformed(|w: &mut World| set_template(w, TemplateState::Found(Arc::new(TemplateFacts { spec: None, supports_multiple: true }))), HealthReason::CheckDisabled)]
#[case::kind_not_listed(|w: &mut World| set_listed(w, Listed::NotYet), HealthReason::CheckDisabled)]
#[case::kind_not_served(|w: &mut World| set_listed(w, Listed::NotServed), HealthReason::CheckDisabled)]
#[case::kind_forbidden(|w: &mut World| set_listed(w, Listed::Forbidden("403".to_owned())), HealthReason::CheckDisabled)]
#[case::invalid_spec(|w: &mut World| w.change_check("workers", |c| c.spec.problems.push("bad".to_owned())), HealthReason::CheckDisabled)]
#[case::check_deleted(|w: &mut World| w.change_check("workers", |c| c.deleting = true), HealthReason::CheckDisabled)]
#[case::upgrade(|w: &mut World| w.annotate_node("w1", "upgrading", Some("")), HealthReason::ClusterUpgrading)]
#[case::pause(|w: &mut World| w.change_check("workers", |c| c.spec.pauses.push("me".to_owned())), HealthReason::CheckPaused)]
#[case::maintenance_by_condition(|w: &mut World| w.set_condition("w1", "MaintenanceInProgress", Some("True"), 299), HealthReason::UnderMaintenance)]
#[case::granted_drain(|w: &mut World| w.drain("w1", "Granted", 9999), HealthReason::UnderMaintenance)]
#[case::running_drain(|w: &mut World| w.drain("w1", "Draining", 9999), HealthReason::UnderMaintenance)]
#[case::drained(|w: &mut World| w.drain("w1", "Drained", 9999), HealthReason::UnderMaintenance)]
#[case::recovering(|w: &mut World| w.drain("w1", "Recovering", 9999), HealthReason::UnderMaintenance)]
#[case::unreadable_drains(|w: &mut World| w.snapshot.drains = NodeDrains::Unknown("403".to_owned()), HealthReason::SourceUnreadable)]
#[case::unreadable_maintenances(|w: &mut World| w.snapshot.maintenances = Reading::Unknown("403".to_owned()), HealthReason::SourceUnreadable)]
#[case::unreadable_machine_health_checks(|w: &mut World| w.snapshot.machine_health_checks = Reading::Unknown("403".to_owned()), HealthReason::SourceUnreadable)]
#[case::foreign_lease(|w: &mut World| w.lease("node-w1", "somebody", 0, 999), HealthReason::LeaseTaken)]
#[case::threshold(|w: &mut World| for node in ["w2", "w3", "w4"] { w.set_condition(node, "Ready", Some("False"), 299); }, HealthReason::TooFewHealthy)]
#[case::storm_cooldown(storm_cooldown, HealthReason::StormCooldown)]
#[case::settling(|w: &mut World| w.snapshot.settle_until = Some(at(9999)), HealthReason::Settling)]
fn stops_every_step_and_nothing_else(#[case] stop: Change, #[case] reason: HealthReason) {
    stops_the_first_step(stop, reason);

    // Its escalation; the timeout fires when it ends.
    let mut running = world();
    running.settle(300);
    let before = running.clone();
    stop(&mut running);
    let plan = running.settle(599);
    assert_eq!(plan.reason("w1"), HealthReason::RemediationRunning);
    let plan = running.settle(600);
    assert_eq!(plan.reason("w1"), reason);
    assert_eq!(running.remediations(), ["Reboot of w1"]);
    assert_eq!(running.snapshot.remediations[0].timed_out, None);
    assert_eq!(running.entry("w1").unwrap().remediations[0].timed_out, None);
    running.snapshot = crate::snapshot::Snapshot {
        remediations: running.snapshot.remediations.clone(),
        leases: running.snapshot.leases.clone(),
        memory: running.snapshot.memory.clone(),
        ..before.snapshot.clone()
    };
    running.snapshot.leases.remove("node-w1");
    let settles = reason != HealthReason::Settling;
    let plan = running.settle(700);
    assert_eq!(plan.reason("w1") == HealthReason::Settling, settles);
    running.settle(759);
    assert_eq!(
        running.remediations() == ["Reboot of w1"],
        settles,
        "machines may just be coming back"
    );
    running.settle(760);
    assert_eq!(running.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// Where nobody knows when it ends, the step that runs has its time and no more, and the next one comes once it is over.
#[rstest]
#[case::exclusion(|w: &mut World| w.label("w1", "remediation.medik8s.io/exclude-from-remediation", Some("true")), HealthReason::ExcludedByLabel)]
#[case::node_maintenance(|w: &mut World| w.snapshot.maintenances = Reading::Known([name("w1")].into()), HealthReason::UnderMaintenance)]
#[case::unreadable_drain(|w: &mut World| w.snapshot.drains = NodeDrains::Known([(name("w1"), Err("nonsense".to_owned()))].into()), HealthReason::UnderMaintenance)]
fn holds_a_node_without_an_end(#[case] stop: Change, #[case] reason: HealthReason) {
    stops_the_first_step(stop, reason);

    let mut running = world();
    running.settle(300);
    let released = running.snapshot.clone();
    stop(&mut running);
    assert_eq!(running.settle(599).reason("w1"), HealthReason::RemediationRunning);
    running.settle(600);
    running.settle(601);
    assert_eq!(running.settle(602).reason("w1"), reason);
    assert!(
        running.snapshot.remediations[0].timed_out.is_some(),
        "its remediator is not told"
    );
    assert_eq!(running.remediations(), ["Reboot of w1"]);
    running.snapshot = crate::snapshot::Snapshot {
        nodes: released.nodes,
        drains: released.drains,
        maintenances: released.maintenances,
        ..running.snapshot.clone()
    };
    running.settle(700);
    running.settle(759);
    assert_eq!(
        running.remediations(),
        ["Reboot of w1"],
        "machines may just be coming back"
    );
    running.settle(760);
    assert_eq!(running.remediations(), ["Fence of w1", "Reboot of w1"]);
}

/// Stops first steps; what has begun goes on.
#[rstest]
#[case::cap(|w: &mut World| { w.change_check("workers", |c| c.spec.max_concurrent = Some(1)); w.fail("w2", -900); w.add_remediation("Replace", "w2", &["uid-of-workers"], -600); }, HealthReason::ConcurrencyLimitReached)]
#[case::backoff(|w: &mut World| { w.change_check("workers", |c| c.spec.backoff = Some(nodeward_core::node_health_check::Backoff { initial: SignedDuration::from_hours(1), limit: SignedDuration::from_hours(1) })); w.annotate_node("w1", "nodeward.dev/remediations", Some(&format!(r#"{{"count":1,"lastEnd":"{}"}}"#, at(-10)))); }, HealthReason::BackingOff)]
#[case::another_check(|w: &mut World| { w.set_check("others", json!({ "selector": { "matchLabels": { "no": "such" } } })); w.add_remediation("Replace", "w1", &["uid-of-others"], 100); }, HealthReason::RemediatedByAnotherCheck)]
fn stops_first_steps_only(#[case] stop: Change, #[case] reason: HealthReason) {
    let mut stopped = world();
    stop(&mut stopped);
    let plan = stopped.settle(300);
    assert_eq!(plan.reason("w1"), reason);
    let ours = |world: &World| world.remediations().iter().any(|live| live == "Reboot of w1");
    assert!(!ours(&stopped), "{:?}", stopped.remediations());

    let mut intended = world();
    let plan = intended.plan(300);
    intended.apply(plan, 300);
    stop(&mut intended);
    let plan = intended.settle(300);
    assert_eq!(plan.reason("w1"), reason);
    assert!(!ours(&intended));

    let mut running = world();
    running.settle(300);
    stop(&mut running);
    running.settle(600);
    let fenced = running.remediations().iter().any(|live| live == "Fence of w1");
    assert!(fenced, "{:?}, {:?}", running.remediations(), running.plan(600).verdicts);
}

fn stop_everything(world: &mut World) {
    machine_health_checks(world, &["other"]);
    world.change_check("workers", |check| check.spec.pauses.push("me".to_owned()));
    world.annotate_node("w1", "upgrading", Some(""));
    world.label("w1", "remediation.medik8s.io/exclude-from-remediation", Some("true"));
    world.snapshot.maintenances = Reading::Known([name("w1")].into());
    world.snapshot.settle_until = Some(at(900_000));
}

#[test]
fn whatever_stops_remediation_clean_up_goes_on() {
    let mut world = world();
    world.settle(300);
    stop_everything(&mut world);
    // The lease is renewed, the old remediation flagged, the nodes counted.
    world.settle(300 + 400);
    assert_eq!(world.snapshot.leases["node-w1"].renewed, Some(at(700)));
    world.live(701, 300 + 48 * 3600);
    assert!(world.snapshot.remediations[0].is_flagged_old);
    world.fail("w2", 180_000);
    world.settle(180_001);
    let status = world.status("workers");
    assert_eq!((status.healthy_nodes, status.observed_nodes), (Some(3), Some(5)));
    // A healthy node is freed, and its lease goes.
    world.heal("w1", 180_002);
    world.settle(180_002);
    assert_eq!(world.remediations(), [""; 0]);
    assert!(world.snapshot.leases.is_empty());
}

/// A drain that waits, for others or beside an obstacle, has failed or is past its deadline protects nothing.
#[rstest]
#[case("Scheduled", false, 9999)]
#[case("Queued", false, 9999)]
#[case("Draining", false, 9999)]
#[case("Suspect", false, 9999)]
#[case("Failed", false, 9999)]
#[case("Released", false, 9999)]
#[case("Draining", true, 300)]
fn drain_that_is_not_under_way_protects_nothing(#[case] phase: &str, #[case] granted: bool, #[case] deadline: i64) {
    let mut world = world();
    world.drain_that_is("w1", phase, granted, deadline);
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[rstest]
#[case::of_an_earlier_node(|drain: &mut NodeDrainView| drain.node_uid = Some("earlier".into()))]
#[case::plan_alone(|drain: &mut NodeDrainView| drain.dry_run = true)]
fn drain_that_does_not_drain_this_node_protects_nothing(#[case] change: fn(&mut NodeDrainView)) {
    let mut world = world();
    world.drain("w1", "Draining", 9999);
    let NodeDrains::Known(drains) = &mut world.snapshot.drains else {
        panic!();
    };
    let drain = drains.get_mut("w1").unwrap().as_mut().unwrap();
    change(Arc::make_mut(drain));
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn maintenance_ends_with_its_deadline() {
    let mut world = world();
    world.drain("w1", "Draining", 320);
    let plan = world.settle(300);
    assert_eq!((plan.node("w1").until, plan.requeue_second()), (Some(at(320)), 320));
    world.settle(320);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn foreign_lease_that_runs_out_is_taken() {
    let mut world = world();
    world.lease("node-w1", "somebody", 0, 5);
    assert_eq!(world.plan(299).node("w1").reason, HealthReason::NotExpired);
    world.lease("node-w1", "somebody", 10, 5);
    let plan = world.settle(300);
    assert_eq!(
        (plan.node("w1").detail.as_str(), plan.requeue_second()),
        ("somebody", 310)
    );
    world.settle(310);
    assert_eq!(world.holder("node-w1"), Some("NodeHealthCheck-workers"));
}

#[rstest]
#[case::empty("")]
#[case::false_("false")]
fn exclusion_label_other_than_true_is_ignored_and_told(#[case] value: &str) {
    let mut world = world();
    world.label("w1", "remediation.medik8s.io/exclude-from-remediation", Some(value));
    let plan = world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    let warnings = &plan.verdicts.warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(warnings[0].event, HealthEvent::InvalidNodeLabel);
    assert!(warnings[0].node.as_ref().unwrap().0 == name("w1"));
}

#[test]
fn termination_handler_is_no_conflict() {
    let mut world = world();
    machine_health_checks(&mut world, &["terminating"]);
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn terminating_node_is_left_to_the_termination_handler() {
    for (handlers, status, remediated) in [
        (&["terminating"][..], "True", false),
        (&["terminating"], "False", true),
        (&[], "True", true),
    ] {
        let mut world = world();
        machine_health_checks(&mut world, handlers);
        world.set_condition("w1", "Terminating", Some(status), 0);
        let plan = world.settle(300);
        assert_eq!(!world.remediations().is_empty(), remediated);
        let healthy = if remediated { 4 } else { 5 };
        assert_eq!(plan.counts("workers"), (healthy, 5));
    }
}

/// Its conditions are still unhealthy, and its remediation ends.
#[test]
fn remediation_of_a_terminating_node_is_deleted() {
    let mut world = world();
    world.settle(300);
    machine_health_checks(&mut world, &["terminating"]);
    world.set_condition("w1", "Terminating", Some("True"), 310);
    world.settle(310);
    assert_eq!(world.remediations(), [""; 0]);
}

/// With a signal that cannot be read.
fn unreadable_signal() -> World {
    let mut world = world();
    blind_signal(&mut world);
    world
}

pub(super) fn blind_signal(world: &mut World) {
    let signal: UpgradeSignal =
        serde_json::from_value(json!({ "resource": { "apiVersion": "v1", "kind": "ConfigMap", "when": "true" } }))
            .unwrap();
    let mut inputs = SignalInputs::default();
    inputs.insert(
        WatchedResource::all("v1", "ConfigMap"),
        KindState::Forbidden("403".into()),
    );
    world.policy.upgrade_signal = signal;
    world.snapshot.signals = inputs;
}

/// The safety pass is far away.
#[rstest]
#[case::settling(|w: &mut World| { w.snapshot.settle_until = Some(at(420)); w.settle(300) }, 420)]
#[case::maintenance(|w: &mut World| { w.drain("w1", "Draining", 420); w.settle(300) }, 420)]
#[case::foreign_lease(|w: &mut World| { w.lease("node-w1", "somebody", 300, 2); w.settle(300) }, 420)]
#[case::unknown_upgrade(|w: &mut World| { blind_signal(w); w.settle(300) }, 900)]
#[case::backoff(|w: &mut World| {
    w.set_check("workers", json!({ "backoff": { "type": "exponential" } }));
    w.annotate_node("w1", "nodeward.dev/remediations", Some(&format!(r#"{{"count":1,"lastEnd":"{}"}}"#, at(290))));
    w.settle(300)
}, 350)]
#[case::maintenance_of_a_relabelled_node(|w: &mut World| {
    w.live(300, 590);
    w.label("w1", "node-role.kubernetes.io/worker", None);
    w.drain("w1", "Draining", 640);
    w.settle(600)
}, 640)]
#[case::lost_lease_of_a_relabelled_node(|w: &mut World| {
    w.settle(300);
    w.label("w1", "node-role.kubernetes.io/worker", None);
    w.lease("node-w1", "somebody", 310, 2);
    w.settle(320)
}, 430)]
#[case::next_round_of_an_exhausted_chain(|w: &mut World| {
    let backoff = json!({ "backoff": { "type": "exponential", "initial": "30s" } });
    w.set_check("workers", with(chain(&STEPS[..1]), backoff));
    w.live(300, 600);
    w.settle(600)
}, 630)]
fn end_of_what_stops_a_step_wakes_the_loop(#[case] stopped: fn(&mut World) -> Plan, #[case] second: i64) {
    let mut world = world();
    world.policy.safety_pass = SignedDuration::from_hours(1000);
    assert_eq!(stopped(&mut world).requeue_second(), second);
}

#[test]
fn upgrade_that_was_known_meanwhile_is_unknown_anew() {
    let mut world = unreadable_signal();
    world.settle(300);
    let blind = world.policy.upgrade_signal.clone();
    world.policy.upgrade_signal = serde_json::from_value(json!({ "node": { "annotation": "upgrading" } })).unwrap();
    world.annotate_node("w1", "upgrading", Some(""));
    world.settle(400);
    world.policy.upgrade_signal = blind;
    assert_eq!(world.settle(500).node("w1").until, Some(at(1100)));
}

#[test]
fn unknown_upgrade_postpones_for_ten_minutes_and_then_counts_as_none() {
    let mut world = unreadable_signal();
    let plan = world.settle(300);
    let verdict = plan.node("w1");
    assert_eq!(verdict.reason, HealthReason::UpgradeSignalUnknown);
    assert!(verdict.detail.contains("403"), "{}", verdict.detail);
    assert_eq!(verdict.until, Some(at(900)));
    world.live(301, 899);
    assert_eq!(world.remediations(), [""; 0]);
    world.settle(900);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

#[test]
fn unknown_upgrade_is_remembered_while_something_else_stops_the_node() {
    let mut world = unreadable_signal();
    world.settle(300);
    world.snapshot.settle_until = Some(at(800));
    world.live(301, 800);
    world.live(801, 899);
    assert_eq!(world.remediations(), [""; 0]);
    world.settle(900);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
    world.heal("w1", 1000);
    world.settle(1000);
    assert!(world.snapshot.memory.found.unknown_since.is_empty());
}

#[test]
fn signal_that_names_nodes_stops_only_those() {
    let mut world = world().failed("w2", 0);
    world.annotate_node("w1", "upgrading", Some(""));
    world.settle(300);
    assert_eq!(world.remediations(), ["Reboot of w2"]);
}

#[rstest]
#[case::conflict(|w: &mut World| machine_health_checks(w, &["other"]), DisabledReason::ConflictingMachineHealthCheckDetected, "openshift-machine-api/other")]
#[case::handler_by_its_name_alone(|w: &mut World| machine_health_checks(w, &["machine-api-termination-handler"]), DisabledReason::ConflictingMachineHealthCheckDetected, "machine-api-termination-handler")]
#[case::two_nodes_with_pacemaker(|w: &mut World| w.snapshot.control_plane_topology = Reading::Known(Some("DualReplica".into())), DisabledReason::UnsupportedControlPlaneTopology, "DualReplica")]
#[case::not_found(|w: &mut World| set_template(w, TemplateState::NotFound), DisabledReason::RemediationTemplateNotFound, "remediators/fence")]
#[case::kind_absent(|w: &mut World| set_template(w, TemplateState::KindAbsent), DisabledReason::RemediationTemplateNotFound, "install")]
#[case::malformed(|w: &mut World| set_template(w, TemplateState::Found(Arc::new(TemplateFacts { spec: None, supports_multiple: true }))), DisabledReason::RemediationTemplateInvalid, "spec.template.spec")]
#[case::forbidden(|w: &mut World| set_template(w, TemplateState::Forbidden("403".to_owned())), DisabledReason::RemediationTemplateInvalid, "aggregated")]
#[case::kind_not_served(|w: &mut World| set_listed(w, Listed::NotServed), DisabledReason::RemediationTemplateInvalid, "install")]
#[case::kind_forbidden(|w: &mut World| set_listed(w, Listed::Forbidden("403".to_owned())), DisabledReason::RemediationTemplateInvalid, "aggregated")]
#[case::invalid(|w: &mut World| w.set_check("workers", json!({ "minHealthy": "lots" })), DisabledReason::InvalidConfiguration, "lots")]
fn check_that_cannot_be_followed_is_disabled_and_says_why(
    #[case] change: Change,
    #[case] reason: DisabledReason,
    #[case] told: &str,
) {
    let mut world = world();
    change(&mut world);
    world.settle(300);
    let status = world.status("workers");
    let condition = &status.conditions[0];
    assert_eq!(
        (condition.type_.as_str(), condition.status.as_str()),
        ("Disabled", "True")
    );
    assert_eq!(condition.reason, reason.as_str());
    assert!(condition.message.contains(told), "{}", condition.message);
    assert_eq!(status.phase.unwrap().as_str(), "Disabled");
    assert_eq!((status.healthy_nodes, status.observed_nodes), (Some(4), Some(5)));
}

#[test]
fn two_templates_of_a_kind_need_a_remediator_that_supports_them() {
    let mut second = super::world::template("Reboot");
    second["name"] = "again".into();
    let mut steps = chain(&STEPS);
    steps["escalatingRemediations"][1]["remediationTemplate"] = second;
    let again = crate::snapshot::TemplateRef {
        name: "again".into(),
        ..template_ref("Reboot")
    };
    for supports_multiple in [true, false] {
        let mut world = World::workers(5).check("workers", steps.clone()).failed("w1", 0);
        world.template("Reboot", supports_multiple);
        let facts = world.snapshot.templates[&template_ref("Reboot")].clone();
        world.snapshot.templates.insert(again.clone(), facts);
        world.settle(300);
        let disabled = &world.status("workers").conditions[0].reason;
        if supports_multiple {
            assert_eq!(disabled, DisabledReason::NodeHealthCheckEnabled.as_str());
            world.live(301, 600);
            assert_eq!(world.remediations(), ["Reboot of w1", "Reboot of w1"]);
        } else {
            assert_eq!(disabled, DisabledReason::RemediationTemplateInvalid.as_str());
        }
    }
}

#[test]
fn metal3_acts_in_its_namespace_only() {
    for (namespace, disabled) in [("openshift-machine-api", false), ("elsewhere", true)] {
        let template = json!({
            "apiVersion": super::world::API, "kind": "Metal3RemediationTemplate", "namespace": namespace, "name": "m",
        });
        let mut world = World::workers(3).check("workers", json!({ "remediationTemplate": template }));
        let reference = world.snapshot.checks["workers"].spec.steps[0].template.clone();
        let facts = world.snapshot.templates[&template_ref("Reboot")].clone();
        let known = world.snapshot.kinds[&kind("Reboot")].clone();
        world.snapshot.kinds.insert(reference.remediation_kind(), known);
        world.snapshot.templates.insert(reference, facts);
        world.settle(0);
        let expected = if disabled {
            DisabledReason::RemediationTemplateInvalid
        } else {
            DisabledReason::NodeHealthCheckEnabled
        };
        assert_eq!(world.status("workers").conditions[0].reason, expected.as_str());
    }
}

#[test]
fn first_check_of_two_on_a_node_remediates_it() {
    let mut world = World::watched(5)
        .check(
            "another",
            json!({ "remediationTemplate": super::world::template("Fence") }),
        )
        .failed("w1", 0);
    world.live(300, 2000);
    assert_eq!(
        world.remediations(),
        ["Fence of w1"],
        "the first by name, both being due at once"
    );
    let plan = world.plan(2000);
    let verdict = plan
        .verdicts
        .nodes
        .iter()
        .find(|verdict| *verdict.check.name == *"workers")
        .unwrap();
    assert_eq!(verdict.reason, HealthReason::RemediatedByAnotherCheck);
    assert_eq!(verdict.detail, "NodeHealthCheck another");
}

#[test]
fn two_leaders_intents_for_one_node_leave_one() {
    let mut first = World::watched(5).failed("w1", 0);
    let plan = first.plan(300);
    first.apply(plan, 300);
    let mut second = World::workers(5).check("another", json!({})).failed("w1", 0);
    let plan = second.plan(310);
    second.apply(plan, 310);
    let another = second.snapshot.checks["another"].clone();
    first.snapshot.checks.insert("another".into(), another);
    let plan = first.plan(311);
    assert_eq!(plan.started(), ["w1"]);
    assert_eq!(*plan.starts()[0].check.name, *"workers", "the earlier intent wins");
    assert_eq!(plan.intended("another"), [""; 0]);
}

/// Of a NodeHealthCheck that was deleted and made again while a finalizer kept its remediation, or of anybody else.
#[rstest]
#[case::predecessor("uid-of-the-predecessor")]
#[case::nobody_known("somebody")]
fn remediation_of_another_owner_and_kind_stops_the_first_step(#[case] owner: &str) {
    let mut stopped = world();
    stopped.add_remediation("Replace", "w1", &[owner], 100);
    let plan = stopped.settle(300);
    assert_eq!(plan.reason("w1"), HealthReason::ForeignRemediation);
    assert_eq!(plan.node("w1").detail, "ReplaceRemediation remediators/w1");
    assert_eq!(stopped.remediations(), ["Replace of w1"]);
    stopped.snapshot.remediations.clear();
    stopped.settle(310);
    assert_eq!(stopped.remediations(), ["Reboot of w1"]);
    // What has begun goes on.
    let mut running = world();
    running.settle(300);
    running.add_remediation("Replace", "w1", &[owner], 400);
    running.settle(600);
    assert_eq!(running.remediations(), ["Fence of w1", "Reboot of w1", "Replace of w1"]);
}

#[test]
fn silent_watch_of_nodes_is_looked_at_again_soon() {
    let mut world = world();
    world.snapshot.nodes_silent_for = SignedDuration::from_secs(90);
    let plan = world.settle(300);
    assert_eq!(plan.requeue_second(), 305);
    world.snapshot.nodes_silent_for = SignedDuration::from_secs(89);
    world.settle(305);
    assert_eq!(world.remediations(), ["Reboot of w1"]);
}

/// People forget to take it back.
#[rstest]
#[case::it_is_over("False", 299, false)]
#[case::for_a_day("True", 300 - 86_399, true)]
#[case::for_longer("True", 300 - 86_400, false)]
fn condition_declares_maintenance_for_some_time(#[case] status: &str, #[case] since: i64, #[case] protects: bool) {
    let mut world = world();
    world.set_condition("w1", "MaintenanceInProgress", Some(status), since);
    let plan = world.settle(300);
    assert_eq!(plan.reason("w1") == HealthReason::UnderMaintenance, protects);
    assert_eq!(world.remediations().is_empty(), protects);
}
