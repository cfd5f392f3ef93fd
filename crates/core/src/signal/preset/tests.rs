//! Objects exactly as each system makes them, in its order.

use std::sync::Arc;

use jiff::Timestamp;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::tests::fixture::{cordoned, cordoned_with_taints, inputs, objects, signal};
use super::super::{DrainMarkers, KindObjects, KindState, NodeMarkerPlace, Tristate, UpgradeSignal};
use super::plan::kind as plan_kind;
use super::*;
use crate::drain::NodeDrains;
use crate::node::CORDON_TAINTS;

/// What the preset says of an upgrade and of a drain.
fn both(preset: Preset, inputs: &SignalInputs, node: &NodeView) -> (Tristate, bool) {
    let (answer, drained) = judged(&signal(&format!("{{preset: {preset}}}")), inputs, node);
    (answer.truth, drained)
}

fn judged(signal: &UpgradeSignal, inputs: &SignalInputs, node: &NodeView) -> (Answer, bool) {
    let marks = DrainMarkers::new(signal, None).unwrap();
    let drained = marks.is_being_drained(node, inputs, &NodeDrains::default());
    assert!(!drained.because.is_empty());
    (signal.evaluate(inputs, node), drained.truth == Tristate::Yes)
}

const TAKEN: &str = "2026-01-01T00:00:00.123456789Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// kured's lock of a node, as `pkg/daemonsetlock` writes it.
fn lock(node: &str, minutes: i64) -> Value {
    json!({
        "nodeID": node, "metadata": { "unschedulable": false }, "created": TAKEN, "TTL": minutes * 60 * 1_000_000_000,
    })
}

/// kured's DaemonSet in an hour after the lock was taken.
fn kured(lock: Option<Value>) -> SignalInputs {
    let annotations = lock.map_or_else(
        || json!({ "deprecated.daemonset.template.generation": "1" }),
        |lock| json!({ "weave.works/kured-node-lock": lock.to_string() }),
    );
    let daemon_set = json!({ "metadata": { "namespace": "kube-system", "name": "kured", "annotations": annotations } });
    let mut inputs = SignalInputs::at(at("2026-01-01T01:00:00.123456789Z"));
    inputs.insert(KuredLock::default().kind(), objects([daemon_set]));
    inputs
}

/// In the order in which kured works: it takes its lock, cordons, drains, reboots, uncordons, and gives the lock back.
#[rstest]
#[case::before_it(None, Tristate::No)]
#[case::of_the_node(Some(lock("n1", 0)), Tristate::Yes)]
#[case::of_another_node(Some(lock("n2", 0)), Tristate::No)]
#[case::about_to_expire(Some(lock("n1", 61)), Tristate::Yes)]
#[case::expired(Some(lock("n1", 60)), Tristate::No)]
#[case::one_of_several(Some(json!({ "maxOwners": 2, "locks": [lock("n2", 0), lock("n1", 0)] })), Tristate::Yes)]
#[case::none_of_several(Some(json!({ "maxOwners": 2, "locks": [lock("n2", 0)] })), Tristate::No)]
#[case::expired_of_several(Some(json!({ "maxOwners": 2, "locks": [lock("n1", 30)] })), Tristate::No)]
#[case::several_given_back(Some(json!({ "maxOwners": 2, "locks": [] })), Tristate::No)]
#[case::several_never_taken(Some(json!({ "maxOwners": 2, "locks": null })), Tristate::No)]
#[case::without_its_node(Some(json!({ "created": TAKEN })), Tristate::Unknown)]
#[case::without_its_time(Some(json!({ "nodeID": "n1" })), Tristate::Unknown)]
#[case::nonsense(Some(json!("n1")), Tristate::Unknown)]
fn kured_works_on_the_node_of_its_lock(#[case] lock: Option<Value>, #[case] truth: Tristate) {
    let inputs = kured(lock);
    let (answer, drained) = judged(&signal("{preset: kured}"), &inputs, &cordoned(json!({})));
    assert_eq!((answer.truth, drained), (truth, truth == Tristate::Yes));
    // A node that was parked before counts from the lock.
    assert_eq!(answer.since, (truth == Tristate::Yes).then(|| at(TAKEN)));
}

/// kured sets it before it has its lock, and others before it is their turn.
#[test]
fn kured_annotation_alone_is_no_drain() {
    let node = cordoned(json!({ "annotations": { "weave.works/kured-reboot-in-progress": "2026-01-01T00:00:00Z" } }));
    assert_eq!(both(Preset::Kured, &kured(None), &node), (Tristate::No, false));
}

#[test]
fn kured_lock_is_found_where_it_is_configured() {
    let signal = signal("{preset: {name: kured, namespace: os, daemonSet: k, annotation: a.io/lock}}");
    let daemon_set = json!({ "metadata": { "annotations": { "a.io/lock": lock("n1", 0).to_string() } } });
    let kind = signal.kinds().into_keys().next().unwrap();
    let inputs = inputs([(kind, objects([daemon_set]))]);
    let (answer, drained) = judged(&signal, &inputs, &cordoned(json!({})));
    assert_eq!((answer.truth, drained), (Tristate::Yes, true));
    let nowhere = self::inputs([(signal.kinds().into_keys().next().unwrap(), objects([]))]);
    let (answer, _) = judged(&signal, &nowhere, &cordoned(json!({})));
    assert_eq!(answer.truth, Tristate::No);
    assert!(answer.notes[0].message.contains("no DaemonSet os/k"));
}

fn node_claim(reason: Option<&str>, deleted: bool) -> Value {
    let ready = json!({ "type": "Ready", "status": "True", "reason": "Ready" });
    let disrupted = reason.map(|reason| {
        json!({ "type": "DisruptionReason", "status": "True", "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z" })
    });
    let conditions: Vec<Value> = [Some(ready), disrupted].into_iter().flatten().collect();
    let mut claim = json!({
        "metadata": { "name": "default-x7f2p" }, "status": { "nodeName": "n1", "conditions": conditions },
    });
    if deleted {
        claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:05:00Z".into();
    }
    claim
}

/// In Karpenter's order: the taint, the reason, the replacements, and only then the deletion, which drains.
#[rstest]
#[case::at_rest(None, false, Tristate::No, false)]
#[case::waits_for_replacements(Some("Drifted"), false, Tristate::Yes, false)]
#[case::drained(Some("Drifted"), true, Tristate::Yes, true)]
#[case::consolidated(Some("Underutilized"), true, Tristate::No, true)]
#[case::empty(Some("Empty"), true, Tristate::No, true)]
#[case::deleted_by_hand(None, true, Tristate::No, true)]
fn only_drift_is_an_upgrade_by_karpenter(
    #[case] reason: Option<&str>,
    #[case] deleted: bool,
    #[case] truth: Tristate,
    #[case] drained: bool,
) {
    let inputs = inputs([(claim::node_claim_kind(), objects([node_claim(reason, deleted)]))]);
    let taints = json!([{ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" }]);
    let node = cordoned_with_taints(json!({}), taints);
    assert_eq!(both(Preset::Karpenter, &inputs, &node), (truth, drained));
    let wider = signal("{preset: {name: karpenter, reasons: [Drifted, Underutilized, Empty]}}");
    let (answer, _) = judged(&wider, &inputs, &node);
    let expected = reason.map(|_| at("2026-01-01T00:00:00Z"));
    assert_eq!(
        (answer.truth == Tristate::Yes, answer.since),
        (reason.is_some(), expected)
    );
}

fn machine(node: &str, deleted: bool) -> Value {
    let mut machine = json!({ "metadata": { "name": "m" }, "status": { "nodeRef": { "kind": "Node", "name": node } } });
    if deleted {
        machine["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    machine
}

#[rstest]
#[case::deleted(KindState::Absent, objects([machine("n1", true)]), Tristate::Yes)]
#[case::deleted_and_served_in_both_versions(objects([machine("n1", true)]), objects([machine("n1", true)]), Tristate::Yes)]
#[case::served_in_the_newer_version_alone(objects([machine("n1", true)]), KindState::Absent, Tristate::Yes)]
#[case::not_deleted(KindState::Absent, objects([machine("n1", false)]), Tristate::No)]
#[case::of_another_node(KindState::Absent, objects([machine("n2", true)]), Tristate::No)]
#[case::not_served_here(KindState::Absent, KindState::Absent, Tristate::Unknown)]
#[case::forbidden(KindState::Absent, KindState::Forbidden("no".into()), Tristate::Unknown)]
fn cluster_api_drains_nodes_of_deleted_machines(
    #[case] newer: KindObjects,
    #[case] older: KindObjects,
    #[case] truth: Tristate,
) {
    let [newer_kind, older_kind] = claim::machine_kinds();
    let inputs = inputs([(newer_kind, newer), (older_kind, older)]);
    // It stands on all nodes of the old revision.
    let taints = json!([{ "key": "node.cluster.x-k8s.io/outdated-revision", "effect": "PreferNoSchedule" }]);
    let node = cordoned_with_taints(json!({}), taints);
    assert_eq!(
        both(Preset::ClusterApi, &inputs, &node),
        (truth, truth == Tristate::Yes)
    );
}

#[test]
fn each_node_has_the_machine_that_names_it() {
    let [newer_kind, older_kind] = claim::machine_kinds();
    let state = objects([
        machine("n2", true),
        machine("n1", false),
        json!({}),
        machine("n3", true),
    ]);
    let inputs = inputs([(newer_kind, state), (older_kind, KindState::Absent)]);
    let signal = signal("{preset: clusterApi}");
    for (name, truth) in [
        ("n1", Tristate::No),
        ("n2", Tristate::Yes),
        ("n3", Tristate::Yes),
        ("n4", Tristate::No),
    ] {
        let node = NodeView {
            name: name.into(),
            ..cordoned(json!({}))
        };
        assert_eq!(signal.evaluate(&inputs, &node).truth, truth, "{name}");
    }
}

/// A Machine is of the node that it names, unless it names another one of that name.
#[rstest]
#[case::alone(vec![json!({})], Tristate::Yes, None)]
#[case::of_its_provider_id(vec![json!({ "spec": { "providerID": "aws://1" } })], Tristate::Yes, None)]
#[case::of_another_provider_id(vec![json!({ "spec": { "providerID": "aws://2" } })], Tristate::No, None)]
#[case::of_its_uid(vec![json!({ "status": { "nodeRef": { "name": "n1", "uid": "u1" } } })], Tristate::Yes, None)]
#[case::of_another_uid(vec![json!({ "status": { "nodeRef": { "name": "n1", "uid": "u2" } } })], Tristate::No, None)]
#[case::one_of_two(
    vec![json!({ "spec": { "providerID": "aws://1" } }), json!({ "spec": { "providerID": "aws://2" } })], Tristate::Yes, None
)]
#[case::two_of_one_provider_id(
    vec![
        json!({ "metadata": { "name": "b" }, "spec": { "providerID": "aws://1" } }),
        json!({ "metadata": { "name": "a" }, "spec": { "providerID": "aws://1" } }),
    ],
    Tristate::Unknown, Some("Several Machines are this node's: a, b")
)]
fn machine_is_of_the_node_with_its_provider_id(
    #[case] patches: Vec<Value>,
    #[case] truth: Tristate,
    #[case] says: Option<&str>,
) {
    let merged = |patch: Value| {
        let mut machine = machine("n1", true);
        for (field, value) in patch.as_object().unwrap() {
            for (key, value) in value.as_object().unwrap() {
                machine[field][key] = value.clone();
            }
        }
        Arc::new(machine)
    };
    let machines = KindState::Synced(patches.into_iter().map(merged).collect());
    let [newer, older] = claim::machine_kinds();
    let inputs = inputs([(newer, machines), (older, KindState::Absent)]);
    let mut node = cordoned(json!({ "uid": "u1" }));
    node.provider_id = Some("aws://1".into());
    assert_eq!(
        both(Preset::ClusterApi, &inputs, &node),
        (truth, truth == Tristate::Yes)
    );
    let (answer, _) = judged(&signal("{preset: clusterApi}"), &inputs, &node);
    assert_eq!(answer.notes.is_empty(), says.is_none());
    assert!(
        says.is_none_or(|says| answer.notes[0].message.starts_with(says)),
        "{answer:?}"
    );
}

/// Karpenter before 1.0 serves `v1beta1` alone, and a NodeClaim that was just made has no node.
#[rstest]
#[case::not_served(KindState::Absent, Some("does not serve karpenter.sh/v1 NodeClaim"))]
#[case::forbidden(KindState::Forbidden("no".into()), Some("karpenter.sh/v1 NodeClaim may not be read"))]
#[case::without_a_node(objects([json!({ "metadata": { "name": "c", "deletionTimestamp": TAKEN }, "status": {} })]), None)]
fn node_without_node_claim_is_not_drained(#[case] claims: KindObjects, #[case] says: Option<&str>) {
    let inputs = inputs([(claim::node_claim_kind(), claims)]);
    let taints = json!([{ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" }]);
    let node = cordoned_with_taints(json!({}), taints);
    let (truth, drained) = both(Preset::Karpenter, &inputs, &node);
    assert!(truth != Tristate::Yes && !drained);
    let (answer, _) = judged(&signal("{preset: karpenter}"), &inputs, &node);
    let told = answer.notes.first().map(|note| note.message.as_str());
    assert_eq!(told.is_some(), says.is_some());
    assert!(
        says.zip(told).is_none_or(|(says, told)| told.contains(says)),
        "{told:?}"
    );
}

/// In the order in which the machine config daemon and its controller write them.
#[rstest]
#[case::at_rest("r1", "r1", "uncordon-r1", "uncordon-r1", "Done", Tristate::No, false)]
#[case::told_of_the_new_configuration("r1", "r2", "uncordon-r1", "uncordon-r1", "Done", Tristate::Yes, false)]
#[case::asked_for_a_drain("r1", "r2", "drain-r2", "uncordon-r1", "Working", Tristate::Yes, true)]
#[case::degraded_after_an_hour("r1", "r2", "drain-r2", "uncordon-r1", "Degraded", Tristate::Yes, true)]
#[case::drained("r1", "r2", "drain-r2", "drain-r2", "Working", Tristate::Yes, false)]
#[case::rebooted("r2", "r2", "drain-r2", "drain-r2", "Working", Tristate::No, false)]
#[case::uncordoned("r2", "r2", "uncordon-r2", "uncordon-r2", "Done", Tristate::No, false)]
fn machine_config_annotations_open_both_gates(
    #[case] current: &str,
    #[case] desired: &str,
    #[case] asked: &str,
    #[case] done: &str,
    #[case] state: &str,
    #[case] truth: Tristate,
    #[case] drained: bool,
) {
    let keys = [
        "currentConfig",
        "desiredConfig",
        "desiredDrain",
        "lastAppliedDrain",
        "state",
    ];
    let written = keys.into_iter().zip([current, desired, asked, done, state]);
    let annotations: Value = written
        .map(|(key, value)| (format!("machineconfiguration.openshift.io/{key}"), Value::from(value)))
        .collect();
    let node = cordoned(json!({ "annotations": annotations }));
    assert_eq!(
        both(Preset::MachineConfig, &SignalInputs::default(), &node),
        (truth, drained)
    );
}

#[rstest]
#[case(json!({ "talos.dev/cordoned": "true" }), true)]
#[case(json!({ "talos.dev/cordoned": "false" }), false)]
#[case(json!({}), false)]
fn talos_marks_what_it_cordons_itself(#[case] annotations: Value, #[case] on: bool) {
    let node = cordoned(json!({ "annotations": annotations }));
    let truth = if on { Tristate::Yes } else { Tristate::No };
    assert_eq!(both(Preset::Talos, &SignalInputs::default(), &node), (truth, on));
}

/// It stands on all nodes of a roll-out from its start.
#[test]
fn kops_taint_is_a_signal_and_no_mark() {
    let signal = signal("{preset: kops}");
    let taints = json!([{ "key": "kops.k8s.io/scheduled-for-update", "effect": "PreferNoSchedule" }]);
    let scheduled = signal.evaluate(&SignalInputs::default(), &cordoned_with_taints(json!({}), taints));
    let other = signal.evaluate(&SignalInputs::default(), &cordoned(json!({})));
    assert_eq!((scheduled.truth, other.truth), (Tristate::Yes, Tristate::No));
    assert!(DrainMarkers::new(&signal, None).is_err());
}

#[test]
fn node_cordoned_only_by_preset_taint_is_kept() {
    let cordoning: Vec<NodeMarker> = Preset::ALL.iter().copied().filter_map(Preset::cordon_taint).collect();
    assert!(!cordoning.is_empty());
    for taint in cordoning {
        assert_eq!(taint.place, NodeMarkerPlace::Taint);
        assert!(CORDON_TAINTS.contains(&taint.key.as_str()), "{taint}");
    }
}

fn plan(spec: Value, status: Value) -> Value {
    json!({ "metadata": { "namespace": "system-upgrade", "name": "os" }, "spec": spec, "status": status })
}

#[rstest]
#[case::applying_and_draining(plan(json!({ "drain": {} }), json!({ "applying": ["n1"] })), Tristate::Yes, true)]
#[case::only_cordoning(plan(json!({ "cordon": true }), json!({ "applying": ["n1"] })), Tristate::Yes, false)]
#[case::drain_is_null(plan(json!({ "drain": null }), json!({ "applying": ["n1"] })), Tristate::Yes, false)]
#[case::another_node(plan(json!({ "drain": {} }), json!({ "applying": ["n2"] })), Tristate::No, false)]
#[case::nothing_to_apply(plan(json!({ "drain": {} }), json!({})), Tristate::No, false)]
#[case::null(plan(json!({ "drain": null }), json!({ "applying": null })), Tristate::No, false)]
#[case::no_status(json!({ "metadata": { "name": "os" } }), Tristate::No, false)]
#[case::not_a_list(plan(json!({ "drain": {} }), json!({ "applying": "n1" })), Tristate::Unknown, false)]
#[case::not_names(plan(json!({ "drain": {} }), json!({ "applying": ["n1", 2] })), Tristate::Unknown, false)]
#[case::no_object(json!("nonsense"), Tristate::No, false)]
fn plan_lists_the_nodes_it_applies_to(#[case] plan: Value, #[case] truth: Tristate, #[case] drained: bool) {
    let inputs = inputs([(plan_kind(), objects([plan]))]);
    assert_eq!(
        both(Preset::SystemUpgradeController, &inputs, &cordoned(json!({}))),
        (truth, drained)
    );
}

#[test]
fn a_plan_lists_nodes_by_their_hostname_label() {
    let inputs = inputs([(
        plan_kind(),
        objects([plan(json!({ "drain": {} }), json!({ "applying": ["host-1"] }))]),
    )]);
    let labelled = cordoned(json!({ "labels": { "kubernetes.io/hostname": "host-1" } }));
    assert_eq!(
        both(Preset::SystemUpgradeController, &inputs, &labelled),
        (Tristate::Yes, true)
    );
    assert_eq!(
        both(Preset::SystemUpgradeController, &inputs, &cordoned(json!({}))),
        (Tristate::No, false)
    );
}

#[rstest]
#[case(KindState::Absent, Tristate::No)]
#[case(KindState::Syncing, Tristate::Unknown)]
#[case(KindState::Forbidden("no".into()), Tristate::Unknown)]
fn plans_that_cannot_be_read_drain_nothing(#[case] state: KindObjects, #[case] truth: Tristate) {
    let inputs = inputs([(plan_kind(), state)]);
    assert_eq!(
        both(Preset::SystemUpgradeController, &inputs, &cordoned(json!({}))),
        (truth, false)
    );
}
