//! Which nodes are acted on, and when their clock starts.

use std::sync::Arc;

use jiff::SignedDuration;
use nodeward_api::drain_clock::ClockSource;
use nodeward_api::reason::{BlockerReason, GateReason};
use nodeward_core::drain::NodeDrains;
use nodeward_core::lease::LeaseView;
use nodeward_core::signal::{KindObjects, KindState};
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{
    World, budget, cordon, machine_config_pool, minute, node, objects, pod, remediated, second, upgrade_config, with,
};
use crate::clock::{ClockWrite, NodeHistory};

const UPGRADE_CONFIG: (&str, &str) = ("upgrade.managed.openshift.io/v1alpha1", "UpgradeConfig");
const MACHINE_CONFIG: &str = "machineconfiguration.openshift.io";

/// Labels and annotations under `metadata`.
fn labels(labels: Value) -> Value {
    json!({ "metadata": { "labels": labels } })
}

fn annotations(annotations: Value) -> Value {
    json!({ "metadata": { "annotations": annotations } })
}

/// Nothing is done on a node with a closed gate, its pods are not watched, and no drain of it is said to have failed.
fn assert_left_alone(world: &World, reason: GateReason) {
    let plan = world.clone().pod(pod("p")).at(10_000);
    assert_eq!((plan.gate(), plan.acted().len(), plan.has_failed()), (reason, 0, false));
    assert!(!plan.watch_pods.contains("n1"));
}

#[rstest]
#[case::open(json!({}), GateReason::Open)]
#[case::control_plane(labels(json!({ "node-role.kubernetes.io/control-plane": "" })), GateReason::ControlPlane)]
#[case::master(labels(json!({ "node-role.kubernetes.io/master": "" })), GateReason::ControlPlane)]
#[case::master_and_worker(
    labels(json!({ "node-role.kubernetes.io/master": "", "node-role.kubernetes.io/worker": "" })),
    GateReason::ControlPlane
)]
#[case::etcd(labels(json!({ "node-role.kubernetes.io/etcd": "true" })), GateReason::ControlPlane)]
#[case::arbiter(labels(json!({ "node-role.kubernetes.io/arbiter": "" })), GateReason::ControlPlane)]
#[case::no_taint_yet(json!({ "spec": { "taints": null } }), GateReason::CordonTaintMissing)]
#[case::taint_of_another_effect(
    json!({ "spec": { "taints": [{ "key": "node.kubernetes.io/unschedulable", "effect": "NoExecute" }] } }),
    GateReason::CordonTaintMissing
)]
// A taint of another tool's cordon is none unless its preset is configured.
#[case::karpenters_taint(
    json!({ "spec": { "taints": [{ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" }] } }),
    GateReason::CordonTaintMissing
)]
fn only_cordoned_nodes_in_scope_are_acted_on(#[case] patch: Value, #[case] reason: GateReason) {
    let world = World::draining().node_with(patch);
    if reason == GateReason::Open {
        assert_eq!(world.pod(pod("p")).at(45).acted(), ["p"]);
    } else {
        assert_left_alone(&world, reason);
    }
}

#[test]
fn uncordoned_node_with_taint_has_no_verdict() {
    let world = World::draining()
        .node_with(json!({ "spec": { "unschedulable": false } }))
        .pod(pod("p"));
    let plan = world.at(10_000);
    assert!(plan.verdicts.is_empty() && plan.acted().is_empty() && plan.watch_pods.is_empty());
}

#[rstest]
#[case("{pool: blue}", json!({ "pool": "blue" }), true)]
#[case("{pool: blue}", json!({ "pool": "red" }), false)]
#[case("{matchExpressions: [{key: pool, operator: NotIn, values: [red]}]}", json!({ "pool": "red" }), false)]
#[case("{matchExpressions: [{key: pool, operator: NotIn, values: [red]}]}", json!({}), true)]
#[case("{matchLabels: {pool: blue}}", json!({ "pool": "blue" }), true)]
fn the_selector_decides_which_nodes_are_in_scope(
    #[case] selector: &str,
    #[case] node_labels: Value,
    #[case] selected: bool,
) {
    let world = World::draining()
        .also(&format!("nodeSelector: {selector}"))
        .node_with(labels(node_labels));
    if selected {
        assert_eq!(world.at(1).gate(), GateReason::Open);
    } else {
        assert_left_alone(&world, GateReason::NotSelected);
    }
}

/// A cluster may have a drain-keeper for each of several sets of nodes: none removes what another recorded.
#[test]
fn clock_out_of_scope_is_removed_only_if_ours() {
    let mut world = World::draining().pod(pod("p"));
    let history = world.at(1).node_history;
    world = world.also("nodeSelector: {pool: blue}");
    assert!(world.at(2).clock_writes().is_empty());
    world.memory.node_history = history;
    assert_eq!(world.at(2).clock_writes().len(), 1);
}

/// Karpenter never sets `unschedulable`.
#[test]
fn a_presets_drain_taint_cordons_without_unschedulable() {
    let taint = json!({ "key": "karpenter.sh/disrupted", "effect": "NoSchedule", "timeAdded": minute(0).to_string() });
    let claim = json!({
        "metadata": { "name": "c", "deletionTimestamp": minute(0).to_string() },
        "status": { "nodeName": "n1", "conditions": [{ "type": "DisruptionReason", "status": "True", "reason": "Drifted" }] },
    });
    let world = World::draining()
        .config("upgradeSignal: {preset: karpenter}")
        .signal("karpenter.sh/v1", "NodeClaim", objects([claim]))
        .node_with(json!({ "spec": { "unschedulable": null, "taints": [taint] } }))
        .pod(pod("p"));
    assert_eq!((world.at(44).acted().len(), world.at(45).acted()), (0, vec!["p"]));
}

#[rstest]
#[case::upgrading(World::openshift(), GateReason::Open)]
#[case::no_upgrade_config(World::openshift().upgrade_configs([]), GateReason::NotUpgrading)]
#[case::upgrade_done(
    World::openshift().upgrade_configs([upgrade_config(json!({ "status": { "history": [{ "version": "4.20.1", "phase": "Upgraded" }] } }))]),
    GateReason::NotUpgrading
)]
#[case::another_version_upgrades(
    World::openshift().upgrade_configs([upgrade_config(json!({ "status": { "history": [{ "version": "4.19.9", "phase": "Upgrading" }] } }))]),
    GateReason::NotUpgrading
)]
#[case::own_pool_done(World::openshift().pools([machine_config_pool("worker", 3, 3)]), GateReason::NotUpgrading)]
#[case::only_another_pool_upgrades(
    World::openshift().pools([machine_config_pool("worker", 3, 3), machine_config_pool("infra", 3, 1)]),
    GateReason::NotUpgrading
)]
#[case::no_pool(World::openshift().pools([]), GateReason::NotUpgrading)]
#[case::kind_absent(World::openshift().signal(UPGRADE_CONFIG.0, UPGRADE_CONFIG.1, KindState::Absent), GateReason::NotUpgrading)]
#[case::kind_forbidden(
    World::openshift().signal(UPGRADE_CONFIG.0, UPGRADE_CONFIG.1, KindState::Forbidden("no".into())),
    GateReason::UpgradeUnknown
)]
#[case::kind_syncing(World::openshift().signal(UPGRADE_CONFIG.0, UPGRADE_CONFIG.1, KindState::Syncing), GateReason::UpgradeUnknown)]
#[case::nonsense(World::openshift().upgrade_configs([json!({ "spec": 7, "status": [] })]), GateReason::UpgradeUnknown)]
fn an_upgrade_must_concern_the_nodes_own_pool(#[case] world: World, #[case] reason: GateReason) {
    if reason == GateReason::Open {
        assert_eq!(world.pod(pod("p")).at(45).acted(), ["p"]);
    } else {
        assert_left_alone(&world, reason);
    }
}

/// Nothing is ever forced by default where there is no OpenShift.
#[test]
fn without_a_configured_signal_nothing_is_forced_outside_openshift() {
    let world = World::draining()
        .config("")
        .signal(UPGRADE_CONFIG.0, UPGRADE_CONFIG.1, KindState::Absent)
        .signal(
            "machineconfiguration.openshift.io/v1",
            "MachineConfigPool",
            KindState::Absent,
        );
    assert_left_alone(&world, GateReason::NotUpgrading);
}

#[rstest]
#[case::true_for_one_of_two("Upgrading", GateReason::Open, 0)]
#[case::false_for_all("Done", GateReason::NotUpgrading, 0)]
fn an_expression_over_objects_is_a_signal(#[case] phase: &str, #[case] reason: GateReason, #[case] warnings: usize) {
    let plan = with_resource_signal(json!({ "status": { "phase": phase } })).at(1);
    assert_eq!((plan.gate(), plan.warnings.len()), (reason, warnings));
}

/// An error or a missing field is *unknown*: never upgrading, and reported.
#[test]
fn missing_field_is_not_upgrading_and_noted_once() {
    let world = with_resource_signal(json!({}));
    let (one, two) = (world.at(1), world.at(2));
    assert_eq!((one.gate(), one.warnings.len()), (GateReason::UpgradeUnknown, 1));
    assert_eq!(one.warnings, two.warnings);
}

fn with_resource_signal(fleet: Value) -> World {
    let done = json!({ "metadata": { "name": "a" }, "status": { "phase": "Done" } });
    let fleet = with(json!({ "metadata": { "name": "b" } }), fleet);
    World::draining()
        .config(
            "{countsAsDrain: all, upgradeSignal: {resource: {apiVersion: example.com/v1, kind: Fleet, \
             when: \"object.status.phase == 'Upgrading'\"}}}",
        )
        .signal("example.com/v1", "Fleet", objects([done, fleet]))
}

#[rstest]
#[case::asked_to_drain(json!({ "desiredDrain": "drain-abc" }), true)]
#[case::drain_done(json!({ "desiredDrain": "drain-abc", "lastAppliedDrain": "drain-abc" }), false)]
#[case::another_drain_done(json!({ "desiredDrain": "drain-abc", "lastAppliedDrain": "uncordon-xyz" }), true)]
#[case::asked_to_uncordon(json!({ "desiredDrain": "uncordon-abc", "state": "Working" }), false)]
#[case::working(json!({ "desiredDrain": null, "state": "Working" }), true)]
// After an hour of failed drain, before the deadline of budgets.
#[case::degraded(json!({ "desiredDrain": null, "state": "Degraded" }), true)]
#[case::done(json!({ "desiredDrain": null, "state": "Done" }), false)]
#[case::parked(json!({ "desiredDrain": null }), false)]
fn a_parked_node_is_left_alone(#[case] marks: Value, #[case] drains: bool) {
    let marks: serde_json::Map<String, Value> = marks
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, value)| (format!("{MACHINE_CONFIG}/{key}"), value.clone()))
        .collect();
    let world = World::openshift().node_with(annotations(Value::Object(marks)));
    if drains {
        assert_eq!(world.pod(pod("p")).at(45).acted(), ["p"]);
    } else {
        assert_left_alone(&world, GateReason::NotDraining);
    }
}

#[rstest]
#[case::annotation("{annotation: a.io/draining}", annotations(json!({ "a.io/draining": "" })))]
#[case::label("{label: {key: drain, value: 'yes'}}", labels(json!({ "drain": "yes" })))]
#[case::taint(
    "{taint: a.io/draining}",
    json!({ "spec": { "taints": [cordon(0), { "key": "a.io/draining", "effect": "NoSchedule" }] } })
)]
fn user_chosen_marker_counts_as_drain(#[case] mark: &str, #[case] patch: Value) {
    let world = World::draining().config(&format!("{{upgradeSignal: always, countsAsDrain: {mark}}}"));
    assert_left_alone(&world, GateReason::NotDraining);
    assert_eq!(world.node_with(patch).at(1).gate(), GateReason::Open);
}

#[test]
fn remediated_node_is_skipped_while_clock_runs() {
    let mut world = World::draining().pod(pod("p"));
    world.remediations = remediated("n1");
    let plan = world.at(10_000);
    assert_eq!(
        (plan.gate(), plan.acted().len(), plan.has_failed()),
        (GateReason::UnderRemediation, 0, false)
    );
    assert_eq!(plan.verdict("n1").since, Some(minute(0)));
    assert_eq!(
        plan.verdict("n1").gate_detail,
        "NodeHealthCheck workers has a Fence for it"
    );
    let said: Vec<_> = plan
        .warnings
        .iter()
        .map(|warning| (warning.reason, &*warning.text))
        .collect();
    let text = "nothing is forced on it: the node is being remediated: NodeHealthCheck workers has a Fence for it";
    assert_eq!(said, [("UnderRemediation", text)]);
    world.remediations = remediated("another");
    assert_eq!(world.at(10_000).acted(), ["p"], "the clock went on");
}

/// Its end is no change that a watch tells.
#[test]
fn remediation_lease_closes_gate_until_expiry() {
    let lease = json!({
        "metadata": { "name": "node-n1", "resourceVersion": "1" },
        "spec": { "holderIdentity": "NodeHealthCheck-workers", "renewTime": minute(99), "leaseDurationSeconds": 120 },
    });
    let lease = LeaseView::project(&serde_json::from_value(lease).unwrap()).unwrap();
    let mut world = World::draining().pod(pod("p"));
    world.remediations.add_lease(Arc::new(lease));
    let plan = world.at(100);
    assert_eq!((plan.gate(), plan.acted().len()), (GateReason::UnderRemediation, 0));
    assert_eq!(plan.requeue_at, Some(minute(101)));
    assert_eq!(world.at(101).acted(), ["p"]);
}

#[test]
fn nothing_is_forced_while_remediations_cannot_be_told() {
    let mut world = World::draining()
        .node(node("n2"))
        .pods([pod("p"), with(pod("q"), json!({ "spec": { "nodeName": "n2" } }))]);
    world.remediations = remediated("n2");
    world
        .remediations
        .add_unknown("nodehealthchecks may not be read".to_owned());
    let plan = world.at(10_000);
    assert_eq!(plan.acted(), [""; 0]);
    let gates = ["n1", "n2"].map(|node| plan.verdict(node).gate);
    assert_eq!(gates, [GateReason::RemediationUnknown, GateReason::UnderRemediation]);
    assert_eq!(plan.verdict("n1").gate_detail, "nodehealthchecks may not be read");
}

/// Absent from a cache that has not synced is not absent.
#[test]
fn node_waits_for_its_own_pod_list_only() {
    let world = World::draining()
        .node(node("n2"))
        .pods([pod("p"), with(pod("q"), json!({ "spec": { "nodeName": "n2" } }))])
        .syncing("n1");
    let plan = world.at(45);
    assert_eq!((plan.gate(), plan.acted()), (GateReason::PodsSyncing, vec!["q"]));
    assert_eq!(plan.watch_pods, ["n1".into(), "n2".into()].into());
}

#[test]
fn disabled_strategies_are_explained_until_failure() {
    let world = World::draining()
        .also("nodeDrain: {disableDrainStrategies: true}")
        .pods([pod("p"), with(pod("q"), super::world::terminating(30, 1))])
        .budget(budget("web", 0));
    let early = world.plan(minute(45) - SignedDuration::from_secs(1));
    assert_eq!((early.has_failed(), early.requeue_at), (false, Some(minute(45))));
    let late = world.at(45);
    assert_eq!((late.gate(), late.has_failed()), (GateReason::Open, true));
    assert_eq!(late.reason("p"), Some(BlockerReason::BudgetExhausted));
    assert_eq!(late.reason("q"), Some(BlockerReason::StuckTerminating));
    assert!(
        late.blocker("p")
            .unwrap()
            .to_string()
            .contains("strategies are disabled")
    );
    assert!(world.at(10_000).acted().is_empty());
    assert!(late.watch_pods.contains("n1"));
}

/// A node without the annotation: nothing is done before its clock stands there.
fn fresh(patch: Value) -> World {
    let without = json!({ "metadata": { "annotations": { "nodeward.dev/drain-clock": null } } });
    World::draining().node_with(without).node_with(patch).pod(pod("p"))
}

#[rstest]
#[case::cordoned_long_ago(cordon(-120), minute(-120), ClockSource::Taint)]
#[case::without_a_time(json!({ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" }), minute(5), ClockSource::FirstSeen)]
fn a_drain_begins_with_its_clock_in_the_annotation(
    #[case] taint: Value,
    #[case] start: jiff::Timestamp,
    #[case] from: ClockSource,
) {
    let plan = fresh(json!({ "spec": { "taints": [taint] } })).at(5);
    let clock = plan.clock_set();
    assert_eq!(
        (clock.start, clock.from, clock.boot_id.as_str()),
        (start, from, "boot-1")
    );
    assert_eq!((plan.gate(), plan.acted().len()), (GateReason::ClockStarting, 0));
    assert!(plan.watch_pods.contains("n1"));
}

#[test]
fn precordoned_drain_begins_with_the_upgrade() {
    let config = upgrade_config(json!({ "status": { "history": [
        { "version": "4.20.1", "phase": "Upgrading", "startTime": minute(30).to_string() },
    ] } }));
    let plan = World::openshift()
        .node_with(annotations(json!({ "nodeward.dev/drain-clock": null })))
        .upgrade_configs([config])
        .at(40);
    assert_eq!(
        (plan.clock_set().start, plan.clock_set().from),
        (minute(30), ClockSource::Upgrade)
    );
}

/// Gates 3 and 5 opening start the clock of a node that was seen cordoned before.
#[test]
fn parked_node_begins_when_gates_open() {
    let mut world = World::openshift()
        .node_with(annotations(json!({ "nodeward.dev/drain-clock": null })))
        .pools([machine_config_pool("worker", 3, 3)]);
    world.memory.node_history = world.at(10).node_history;
    let plan = world.pools([machine_config_pool("worker", 3, 2)]).at(20);
    assert_eq!(
        (plan.clock_set().start, plan.clock_set().from),
        (minute(20), ClockSource::Gate)
    );
}

#[test]
fn unreadable_annotation_is_reported_and_rewritten() {
    let world = World::draining()
        .node_with(annotations(json!({ "nodeward.dev/drain-clock": "soon" })))
        .pod(pod("p"));
    let plan = world.at(10_000);
    assert_eq!((plan.clock_set().start, plan.acted().len()), (minute(10_000), 0));
    assert_eq!(plan.warnings.len(), 1);
    let parked = world
        .node_with(json!({ "spec": { "unschedulable": false, "taints": null } }))
        .at(10_000);
    assert_eq!(parked.clock_writes(), [&ClockWrite::Remove], "it is not left behind");
}

#[rstest]
#[case::a_year_ahead(60 * 24 * 365, json!({}), Some(0))]
#[case::a_moment_ahead(51, json!({}), Some(0))]
#[case::now(50, json!({ "spec": { "taints": [cordon(50)] } }), None)]
#[case::of_a_cordon_by_a_clock_ahead(52, json!({ "spec": { "taints": [cordon(52)] } }), None)]
fn clock_that_starts_in_the_future_is_repaired(
    #[case] start: i64,
    #[case] patch: Value,
    #[case] repaired: Option<i64>,
) {
    let world = World::draining()
        .node_with(annotations(
            json!({ "nodeward.dev/drain-clock": super::world::clock(start) }),
        ))
        .node_with(patch)
        .pod(pod("p"));
    let plan = world.at(50);
    assert!(plan.acted().is_empty());
    assert_eq!(
        plan.clock_writes().first().map(|_| plan.clock_set().start),
        repaired.map(minute)
    );
    let said = plan
        .warnings
        .iter()
        .any(|warning| warning.text.contains("begins in the future"));
    assert_eq!(said, repaired.is_some());
}

/// What it timed may have begun a moment ago, on a node that had been cordoned for days: no deadline may be past at once.
#[rstest]
#[case::nonsense(json!("soon"))]
#[case::empty(json!(""))]
#[case::of_a_later_version(json!(json!({ "start": minute(0).to_string(), "from": "Omen", "bootID": "boot-1" }).to_string()))]
fn unreadable_clock_begins_anew_now(#[case] unreadable: Value) {
    let running = World::draining().pod(pod("p")).budget(budget("web", 0));
    let history = running.at(9_999).node_history;
    let mut world = running
        .clone()
        .node_with(annotations(json!({ "nodeward.dev/drain-clock": unreadable })));
    for known in [std::collections::BTreeMap::new(), history] {
        world.memory.node_history = known;
        let plan = world.at(10_000);
        assert_eq!((plan.clock_set().start, plan.acted().len()), (minute(10_000), 0));
        world.memory.node_history = plan.node_history.clone();
        assert_eq!(
            world.at(10_001).clock_set().start,
            minute(10_001),
            "until it stands there"
        );
        let mut repaired = running.clone().node_with(annotations(
            json!({ "nodeward.dev/drain-clock": plan.clock_set().to_string() }),
        ));
        repaired.memory.node_history = world.memory.node_history.clone();
        assert!(repaired.at(10_067).acted().is_empty());
        assert_eq!(repaired.at(10_068).acted(), ["p"], "it goes by its whole waits");
    }
}

/// A node was parked for days and has drained for a minute: a clock that somebody removes then makes it no older.
#[test]
fn removed_clock_makes_no_drain_older() {
    let clock = json!({ "start": minute(9_999).to_string(), "from": "Gate", "bootID": "boot-1", "cordonedAt": minute(0).to_string() });
    let timed = World::draining()
        .node_with(annotations(json!({ "nodeward.dev/drain-clock": clock.to_string() })))
        .pod(pod("p"));
    let mut removed = timed
        .clone()
        .node_with(annotations(json!({ "nodeward.dev/drain-clock": null })));
    removed.memory.node_history = timed.at(10_000).node_history;
    let plan = removed.at(10_001);
    assert_eq!((plan.clock_set().start, plan.acted().len()), (minute(9_999), 0));
}

/// A wall clock that steps back a little must not make a drain as old as a cordon that it did not begin with.
#[rstest]
#[case::parked_before("Gate", 50)]
#[case::booted_anew("Reboot", 50)]
#[case::upgraded_after("Upgrade", 50)]
#[case::begun_with_its_cordon("Taint", 0)]
fn repaired_clock_counts_no_parked_time(#[case] from: &str, #[case] start: i64) {
    let clock = json!({ "start": minute(51).to_string(), "from": from, "bootID": "boot-1", "cordonedAt": minute(0).to_string() });
    let mut world = World::draining()
        .node_with(annotations(json!({ "nodeward.dev/drain-clock": clock.to_string() })))
        .pod(pod("p"));
    let plan = world.at(50);
    assert_eq!((plan.clock_set().start, plan.acted().len()), (minute(start), 0));
    world.memory.node_history = plan.node_history;
    assert_eq!(world.at(50).clock_set().start, minute(start), "until it stands there");
}

/// Whether it was parked until a moment ago nobody knows: what a standby saw goes on counting.
#[test]
fn gate_open_at_first_look_starts_clock_now() {
    let mut world = fresh(json!({}));
    world.memory.is_first_look = true;
    let plan = world.at(50);
    assert_eq!(
        (plan.clock_set().start, plan.clock_set().from),
        (minute(50), ClockSource::Gate)
    );
    world.memory.node_history = plan.node_history;
    assert_eq!(world.at(51).clock_set().start, minute(51), "until it stands there");
    let mut recorded = World::draining().pod(pod("p"));
    recorded.memory.is_first_look = true;
    assert_eq!(recorded.at(50).acted(), ["p"], "a clock that stands there goes on");
    let mut seen_to_come = fresh(json!({}));
    seen_to_come.memory.is_first_look = false;
    assert_eq!(seen_to_come.at(50).clock_set().start, minute(0));
}

/// What was seen of a drain that ended says nothing of the next.
#[test]
fn drain_ends_when_nothing_blocks() {
    let mut world = World::draining();
    world.memory.node_history = world.at(10).node_history;
    assert!(world.memory.node_history["n1"].drained);
    let uncordoned = world.node_with(json!({ "spec": { "unschedulable": false, "taints": null } }));
    let plan = uncordoned.at(11);
    assert_eq!(plan.clock_writes(), [&ClockWrite::Remove]);
    let mut parked = fresh(json!({})).config("{upgradeSignal: always, countsAsDrain: {annotation: a.io/draining}}");
    parked.memory.node_history.insert(
        "n1".into(),
        NodeHistory {
            drained: true,
            ..NodeHistory::default()
        },
    );
    assert!(!parked.at(12).node_history["n1"].drained);
}

#[test]
fn uncordon_is_recorded_and_requeued_at_expiry() {
    let mut world = World::draining().pod(pod("p"));
    world.memory.node_history = world.at(10).node_history;
    let uncordoned = world.node_with(json!({ "spec": { "unschedulable": false, "taints": null } }));
    let plan = uncordoned.plan(second(601));
    assert_eq!(plan.clock_set().uncordoned_at, Some(second(601)));
    let recorded = uncordoned.node_with(annotations(
        json!({ "nodeward.dev/drain-clock": plan.clock_set().to_string() }),
    ));
    assert_eq!(recorded.plan(second(602)).requeue_at, Some(second(721)));
    assert_eq!(recorded.plan(second(721)).clock_writes(), [&ClockWrite::Remove]);
}

/// A moment without an answer, or of a no, does not end a drain; one that lasts does. Nothing is forced in it.
#[rstest]
#[case::syncing(KindState::Syncing, GateReason::UpgradeUnknown)]
#[case::dead(KindState::Stale, GateReason::UpgradeUnknown)]
#[case::forbidden(KindState::Forbidden("no".into()), GateReason::UpgradeUnknown)]
#[case::no(objects([]), GateReason::NotUpgrading)]
#[case::gone(KindState::Absent, GateReason::NotUpgrading)]
fn upgrade_off_for_moments_suspends_the_drain(#[case] state: KindObjects, #[case] gate: GateReason) {
    let known = World::openshift().pod(pod("p"));
    let off = || known.clone().signal(UPGRADE_CONFIG.0, UPGRADE_CONFIG.1, state.clone());
    let mut world = off();
    world.memory.node_history = known.at(45).node_history;
    let plan = world.at(46);
    assert_eq!((plan.gate(), plan.actions.len()), (gate, 0));
    assert_eq!(plan.verdict("n1").since, Some(minute(0)), "its clock is kept");
    assert_eq!(plan.requeue_at, Some(minute(48)));
    let mut back = known.clone();
    back.memory.node_history = plan.node_history.clone();
    assert_eq!(back.at(47).acted(), ["p"], "the same drain goes on");
    let mut longer = off();
    longer.memory.node_history = plan.node_history;
    assert_eq!(longer.at(48).clock_writes().len(), 1, "it counts as interrupted");
}

#[test]
fn dead_signal_is_named_and_forces_nothing() {
    let world = World::openshift().signal(UPGRADE_CONFIG.0, UPGRADE_CONFIG.1, KindState::Stale);
    assert_left_alone(&world, GateReason::UpgradeUnknown);
    let plan = world.at(50);
    let warning = plan.warnings.first().unwrap();
    assert!(
        warning.text.contains("UpgradeConfig has not been heard of for minutes"),
        "{}",
        warning.text
    );
}

/// What was parked while it was out of scope is a new drain once it comes into scope.
#[test]
fn node_newly_in_scope_starts_clock_then() {
    let outside = World::draining().also("nodeSelector: { pool: web }").pod(pod("p"));
    let history = outside.at(44).node_history;
    let mut once_more = outside.clone();
    once_more.memory.node_history = history;
    let mut inside = World::draining().pod(pod("p"));
    inside.memory.node_history = once_more.at(45).node_history;
    let plan = inside.at(46);
    assert!(plan.acted().is_empty());
    assert_eq!(plan.clock_set().start, minute(46));
}

fn by_node_drain() -> World {
    World::draining().config("{upgradeSignal: always, countsAsDrain: nodeDrain}")
}

/// What became of a drain without a drainer nobody knows, and nothing else marks its node.
#[rstest]
#[case::not_taken_up("", Err(GateReason::WaitsForTurn))]
#[case::scheduled("Scheduled", Err(GateReason::WaitsForTurn))]
#[case::queued("Queued", Err(GateReason::WaitsForTurn))]
#[case::granted("Granted", Err(GateReason::WaitsForTurn))]
#[case::draining("Draining", Ok(()))]
#[case::drained("Drained", Err(GateReason::NotDraining))]
#[case::recovering("Recovering", Err(GateReason::NotDraining))]
#[case::released("Released", Err(GateReason::NotDraining))]
#[case::suspect("Suspect", Err(GateReason::NotDraining))]
#[case::failed("Failed", Err(GateReason::NotDraining))]
fn node_drain_counts_a_cordoned_node_as_drain(#[case] phase: &str, #[case] drained: Result<(), GateReason>) {
    let world = by_node_drain().node_drain(phase);
    match drained {
        Ok(()) => assert_eq!(world.pod(pod("p")).at(45).acted(), ["p"]),
        Err(reason) => assert_left_alone(&world, reason),
    }
}

/// Emptied by force it would look drained, and its disruptions would be nobody's.
#[rstest]
#[case::not_taken_up("", json!({}), GateReason::WaitsForTurn)]
#[case::scheduled("Scheduled", json!({}), GateReason::WaitsForTurn)]
#[case::queued("Queued", json!({}), GateReason::WaitsForTurn)]
#[case::granted("Granted", json!({}), GateReason::WaitsForTurn)]
#[case::of_a_later_version("Pondering", json!({}), GateReason::WaitsForTurn)]
#[case::draining("Draining", json!({}), GateReason::Open)]
#[case::drained("Drained", json!({}), GateReason::Open)]
#[case::suspect("Suspect", json!({}), GateReason::Open)]
#[case::failed("Failed", json!({}), GateReason::Open)]
#[case::a_plan("Queued", json!({ "spec": { "dryRun": true } }), GateReason::Open)]
#[case::called_off("Queued", json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), GateReason::Open)]
#[case::an_earlier_node_of_its_name("Queued", json!({ "spec": { "nodeUID": "older" } }), GateReason::Open)]
fn nothing_is_forced_before_its_turn(#[case] phase: &str, #[case] changes: Value, #[case] gate: GateReason) {
    let world = World::draining().node_drain_with(phase, changes);
    if gate == GateReason::Open {
        assert_eq!(world.pod(pod("p")).at(45).acted(), ["p"]);
    } else {
        assert_left_alone(&world, gate);
    }
}

/// Each write of the clock stands there at once.
fn with_written_clock(world: World, plan: &crate::plan::Plan) -> World {
    match plan.clock_writes().as_slice() {
        [] => world,
        [ClockWrite::Set(clock)] => {
            world.node_with(annotations(json!({ "nodeward.dev/drain-clock": clock.to_string() })))
        }
        writes => panic!("{writes:?}"),
    }
}

/// Seen live: Queued and Draining in turns of 30 s, and a deadline that never came.
#[test]
fn drain_queued_again_and_again_comes_to_its_deadline() {
    let mut world = World::draining().pod(pod("p"));
    let mut forced_at = None;
    for turn in 0..400 {
        let phase = if turn % 2 == 0 { "Draining" } else { "Queued" };
        world = world.node_drain(phase);
        // The clock is written in the first look at a phase, and counts in the second.
        for now in [30 * turn, 30 * turn + 29] {
            let plan = world.plan(second(now));
            if !plan.acted().is_empty() {
                forced_at.get_or_insert(now);
            }
            world.memory.node_history.clone_from(&plan.node_history);
            world = with_written_clock(world, &plan);
        }
    }
    // It has its turn for half of the time, and begins each by writing its clock.
    assert_eq!(forced_at, Some(2 * 45 * 60 + 29));
}

/// Its clock begins with its cordon, and what it waited since does not count.
#[test]
fn clock_is_suspended_before_its_turn() {
    let mut queued = fresh(json!({})).node_drain("Queued");
    let plan = queued.at(10);
    assert_eq!((plan.gate(), plan.acted().len()), (GateReason::WaitsForTurn, 0));
    assert_eq!(
        (plan.clock_set().start, plan.clock_set().suspended_at),
        (minute(0), Some(minute(10)))
    );
    queued.memory.node_history = plan.node_history.clone();
    let queued = with_written_clock(queued, &plan);
    let plan = queued.at(40);
    assert_eq!((plan.gate(), plan.actions.len()), (GateReason::WaitsForTurn, 0));
    assert_eq!(plan.verdict("n1").since, None, "no deadline is promised meanwhile");
    let turn = queued.node_drain("Draining").at(60);
    let clock = turn.clock_set();
    assert_eq!((clock.start, clock.suspended_at), (minute(50), None));
    assert_eq!(clock.from, ClockSource::Gate);
}

#[rstest]
#[case::one(NodeDrains::Known([("n1".into(), Err("NodeDrain n1 cannot be read: phase".to_owned()))].into()), "NodeDrain n1 cannot be read: phase")]
#[case::all(NodeDrains::Unknown("nodedrains may not be read".to_owned()), "nodedrains may not be read")]
fn unreadable_node_drain_keeps_the_gate_closed(#[case] drains: NodeDrains, #[case] says: &str) {
    let mut world = World::draining();
    world.drains = drains;
    assert_left_alone(&world, GateReason::TurnUnknown);
    assert_eq!(world.at(50).verdict("n1").gate_detail, says);
    world.drains = NodeDrains::Known([("n2".into(), Err("nonsense".to_owned()))].into());
    assert_eq!(
        world.pod(pod("p")).at(45).acted(),
        ["p"],
        "another node's does not count"
    );
}

/// Another mark of the drain does not say that drain-lock has granted it.
#[rstest]
#[case::machine_config(World::openshift())]
#[case::any_cordon(World::draining())]
fn unreadable_node_drains_outweigh_other_marks(#[case] world: World) {
    let mut world = world.pod(pod("p")).budget(budget("web", 0));
    assert_eq!(world.at(200).acted(), ["p"]);
    world.drains = NodeDrains::Unknown("nodedrains may not be read".to_owned());
    let plan = world.at(200);
    assert_eq!((plan.gate(), plan.acted().len()), (GateReason::TurnUnknown, 0));
    assert!(plan.clock_set().suspended_at.is_some(), "it may wait for its turn");
}

#[test]
fn parked_node_names_missing_node_drain() {
    let world = by_node_drain();
    assert_left_alone(&world, GateReason::NotDraining);
    assert!(
        world
            .at(1)
            .verdict("n1")
            .gate_detail
            .contains("a NodeDrain of the node")
    );
}

#[test]
fn a_node_drain_without_a_cordon_opens_no_gate() {
    let world = by_node_drain()
        .node_drain("Draining")
        .node_with(json!({ "spec": { "unschedulable": null, "taints": null } }));
    assert_eq!(world.pod(pod("p")).at(45).acted().len(), 0);
}

/// Not known is not no: a drain under way is not interrupted for a moment without an answer, and nothing is forced in it.
#[test]
fn unreadable_node_drains_end_drain_only_if_lasting() {
    let mut world = by_node_drain().pod(pod("p"));
    world.drains = NodeDrains::Unknown("nodedrains may not be read".to_owned());
    let plan = world.at(50);
    assert_eq!((plan.gate(), plan.actions.len()), (GateReason::DrainUnknown, 0));
    assert_eq!(plan.verdict("n1").gate_detail, "nodedrains may not be read");
    assert_eq!(plan.requeue_at, Some(minute(52)), "the flap tolerance");
    world.memory.node_history = plan.node_history;
    assert_eq!(world.at(52).clock_writes(), [&ClockWrite::Remove]);
}

#[rstest]
#[case::our_own(Some("nodeward-system/drain-keeper"), false)]
#[case::of_an_earlier_version(None, false)]
#[case::of_another(Some("other/drain-keeper"), true)]
fn second_writer_of_a_clock_is_named(#[case] writer: Option<&str>, #[case] is_named: bool) {
    let mut clock: Value = serde_json::from_str(&super::world::clock(0)).unwrap();
    clock["writer"] = json!(writer);
    let world = World::draining()
        .node_with(annotations(json!({ "nodeward.dev/drain-clock": clock.to_string() })))
        .pod(pod("p"));
    let plan = world.at(45);
    assert_eq!(plan.acted().len(), 1, "it counts, whoever wrote it");
    let named = plan.warnings.iter().filter(|warning| warning.reason == "SecondWriter");
    let texts: Vec<&str> = named.map(|warning| warning.text.as_str()).collect();
    assert_eq!(texts.len(), usize::from(is_named), "{texts:?}");
    assert!(texts.iter().all(|text| text.contains("other/drain-keeper")));
    let others = world.also("nodeSelector: {pool: other}").at(45);
    assert!(others.warnings.is_empty(), "its nodes are none of ours");
}

#[test]
fn new_clock_names_its_writer() {
    let world = World::draining().node_with(annotations(json!({ "nodeward.dev/drain-clock": null })));
    let writer = world.at(1).clock_set().writer.clone();
    assert_eq!(writer.as_deref(), Some("nodeward-system/drain-keeper"));
}
