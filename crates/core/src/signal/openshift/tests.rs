use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::super::tests::fixture::{cordoned, inputs, objects};
use super::super::{KindObjects, KindState};
use super::*;

fn config(name: &str, version: &str, history: Value) -> Value {
    json!({
        "metadata": { "namespace": "openshift-managed-upgrade-operator", "name": name },
        "spec": { "desired": { "version": version }, "PDBForceDrainTimeout": 60 },
        "status": { "history": history },
    })
}

fn upgrading_config() -> Value {
    config(
        "managed-upgrade-config",
        "4.20.1",
        json!([{ "version": "4.20.1", "phase": "Upgrading", "startTime": "2026-01-01T00:00:00Z" }]),
    )
}

fn pool(name: &str, selector: Value, machines: i64, updated: i64) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "nodeSelector": selector },
        "status": { "machineCount": machines, "updatedMachineCount": updated },
    })
}

fn role(name: &str) -> Value {
    json!({ "matchLabels": { format!("node-role.kubernetes.io/{name}"): "" } })
}

fn node_with_roles(roles: &[&str]) -> NodeView {
    let labels: serde_json::Map<String, Value> = roles
        .iter()
        .map(|role| (format!("node-role.kubernetes.io/{role}"), Value::from("")))
        .collect();
    cordoned(json!({ "labels": labels }))
}

fn evaluate(configs: KindObjects, pools: KindObjects, node: &NodeView) -> Answer {
    let inputs = inputs([(upgrade_config_kind(), configs), (pool_kind(), pools)]);
    upgrading(&inputs, node)
}

/// When the upgrade of these tests began.
fn since() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

const WANTED: &str = "4.20.1";

#[rstest]
#[case::upgrading(json!([{ "version": WANTED, "phase": "Upgrading", "startTime": "2026-01-01T00:00:00Z" }]), Tristate::Yes, Some(since()))]
#[case::no_start(json!([{ "version": WANTED, "phase": "Upgrading" }]), Tristate::Yes, None)]
#[case::null_start(json!([{ "version": WANTED, "phase": "Upgrading", "startTime": null }]), Tristate::Yes, None)]
#[case::pending(json!([{ "version": WANTED, "phase": "Pending" }]), Tristate::No, None)]
#[case::upgraded(json!([{ "version": WANTED, "phase": "Upgraded", "startTime": "2026-01-01T00:00:00Z" }]), Tristate::No, None)]
#[case::failed(json!([{ "version": WANTED, "phase": "Failed" }]), Tristate::No, None)]
#[case::another_version_upgrading(json!([{ "version": "4.19.0", "phase": "Upgrading" }]), Tristate::No, None)]
#[case::found_among_others(
    json!([{ "version": "4.19.0", "phase": "Upgraded" }, { "version": WANTED, "phase": "Upgrading", "startTime": "2026-01-01T00:00:00Z" }]),
    Tristate::Yes, Some(since())
)]
#[case::the_first_entry_of_a_version_counts(
    json!([{ "version": WANTED, "phase": "Upgraded" }, { "version": WANTED, "phase": "Upgrading" }]), Tristate::No, None
)]
#[case::no_history(json!([]), Tristate::No, None)]
#[case::null_history(json!(null), Tristate::No, None)]
#[case::history_is_no_list(json!({}), Tristate::Unknown, None)]
#[case::entry_is_no_object(json!(["4.20.1"]), Tristate::Unknown, None)]
#[case::entry_without_version(json!([{ "phase": "Upgrading" }]), Tristate::Unknown, None)]
#[case::version_is_no_string(json!([{ "version": 4, "phase": "Upgrading" }]), Tristate::Unknown, None)]
#[case::no_phase(json!([{ "version": WANTED }]), Tristate::Unknown, None)]
#[case::phase_is_no_string(json!([{ "version": WANTED, "phase": true }]), Tristate::Unknown, None)]
#[case::start_is_no_time(json!([{ "version": WANTED, "phase": "Upgrading", "startTime": "yesterday" }]), Tristate::Unknown, None)]
#[case::start_is_a_number(json!([{ "version": WANTED, "phase": "Upgrading", "startTime": 1 }]), Tristate::Unknown, None)]
fn the_history_entry_of_the_desired_version_tells(
    #[case] history: Value,
    #[case] truth: Tristate,
    #[case] since: Option<Timestamp>,
) {
    let configs = objects([config("c", WANTED, history)]);
    let answer = evaluate(
        configs,
        objects([pool("worker", role("worker"), 3, 1)]),
        &node_with_roles(&["worker"]),
    );
    assert_eq!((answer.truth, answer.since), (truth, since));
    assert_eq!(
        answer.notes.iter().any(|note| note
            .message
            .contains("UpgradeConfig openshift-managed-upgrade-operator/c cannot be read")),
        truth == Tristate::Unknown
    );
}

#[rstest]
#[case::no_spec(json!({ "metadata": { "name": "c" } }))]
#[case::no_version(json!({ "metadata": { "name": "c" }, "spec": { "desired": {} } }))]
#[case::version_is_a_number(json!({ "metadata": { "name": "c" }, "spec": { "desired": { "version": 4.2 } } }))]
#[case::status_is_a_string(json!({ "metadata": { "name": "c" }, "spec": { "desired": { "version": WANTED } }, "status": "Upgrading" }))]
#[case::a_list(json!([]))]
#[case::null(json!(null))]
fn a_malformed_upgrade_config_is_unknown_and_named(#[case] config: Value) {
    let answer = evaluate(objects([config]), objects([]), &node_with_roles(&["worker"]));
    assert_eq!(answer.truth, Tristate::Unknown);
    assert!(answer.notes[0].message.contains("cannot be read"), "{:?}", answer.notes);
}

#[test]
fn an_upgrade_config_without_status_is_new() {
    let config = json!({ "metadata": { "name": "c" }, "spec": { "desired": { "version": WANTED } } });
    let answer = evaluate(objects([config]), objects([]), &node_with_roles(&["worker"]));
    assert_eq!(answer, Answer::no());
}

#[test]
fn one_upgrade_config_that_is_upgrading_is_enough() {
    let configs = objects([json!({ "metadata": { "name": "broken" } }), upgrading_config()]);
    let answer = evaluate(
        configs,
        objects([pool("worker", role("worker"), 3, 1)]),
        &node_with_roles(&["worker"]),
    );
    assert_eq!((answer.truth, answer.since), (Tristate::Yes, Some(since())));
}

#[rstest]
#[case::not_all_updated(pool("worker", role("worker"), 3, 2), Tristate::Yes)]
#[case::all_updated(pool("worker", role("worker"), 3, 3), Tristate::No)]
// The counts are compared for difference, as managed-upgrade-operator compares them.
#[case::more_updated_than_machines(pool("worker", role("worker"), 3, 4), Tristate::Yes)]
#[case::no_counts(json!({ "metadata": { "name": "worker" }, "spec": { "nodeSelector": role("worker") } }), Tristate::Unknown)]
#[case::one_count(
    json!({ "metadata": { "name": "worker" }, "spec": { "nodeSelector": role("worker") }, "status": { "machineCount": 3 } }),
    Tristate::Unknown
)]
#[case::counts_are_strings(
    json!({ "metadata": { "name": "worker" }, "spec": { "nodeSelector": role("worker") }, "status": { "machineCount": "3", "updatedMachineCount": "1" } }),
    Tristate::Unknown
)]
#[case::no_name(json!({ "spec": { "nodeSelector": role("worker") } }), Tristate::Unknown)]
#[case::selector_is_a_string(json!({ "metadata": { "name": "worker" }, "spec": { "nodeSelector": "worker" } }), Tristate::Unknown)]
#[case::selector_does_not_parse(
    pool("worker", json!({ "matchExpressions": [{ "key": "a", "operator": "Near" }] }), 3, 1), Tristate::Unknown
)]
#[case::another_pool_is_updating(pool("infra", role("infra"), 3, 1), Tristate::No)]
fn the_nodes_own_pool_must_not_be_done(#[case] pool: Value, #[case] truth: Tristate) {
    let answer = evaluate(
        objects([upgrading_config()]),
        objects([pool]),
        &node_with_roles(&["worker"]),
    );
    assert_eq!(answer.truth, truth);
    assert_eq!(answer.since, Some(since()).filter(|_| truth == Tristate::Yes));
    assert!(
        truth != Tristate::Unknown || answer.notes[0].message.contains("MachineConfigPool"),
        "{:?}",
        answer.notes
    );
}

/// Every pool but the expected one is done, so that the answer tells which was chosen.
#[rstest]
#[case::worker(&["worker"], Some("worker"))]
#[case::custom_before_worker(&["worker", "infra"], Some("infra"))]
#[case::custom_alone(&["infra"], Some("infra"))]
#[case::master(&["master"], Some("master"))]
#[case::master_before_worker(&["master", "worker"], Some("master"))]
#[case::master_before_custom(&["master", "infra", "worker"], Some("master"))]
#[case::arbiter(&["arbiter"], Some("arbiter"))]
#[case::arbiter_is_no_custom_pool(&["arbiter", "infra", "worker"], Some("arbiter"))]
#[case::master_before_arbiter(&["master", "arbiter"], Some("master"))]
#[case::none(&["edge"], None)]
#[case::no_labels(&[], None)]
fn pool_is_chosen_as_the_mco_chooses(#[case] roles: &[&str], #[case] chosen: Option<&str>) {
    let names = ["worker", "infra", "gpu", "master", "arbiter"];
    let pools = names.map(|name| pool(name, role(name), 3, if Some(name) == chosen { 1 } else { 3 }));
    let answer = evaluate(objects([upgrading_config()]), objects(pools), &node_with_roles(roles));
    assert_eq!(
        answer.truth,
        if chosen.is_some() { Tristate::Yes } else { Tristate::No }
    );
    // The other way round: only the chosen one is done.
    let pools = names.map(|name| pool(name, role(name), 3, if Some(name) == chosen { 3 } else { 1 }));
    let answer = evaluate(objects([upgrading_config()]), objects(pools), &node_with_roles(roles));
    assert_eq!(answer.truth, Tristate::No);
    assert_eq!(
        answer
            .notes
            .iter()
            .any(|note| note.message.contains("No MachineConfigPool selects node n1")),
        chosen.is_none()
    );
}

#[rstest]
#[case(&["infra", "gpu"])]
#[case(&["worker", "infra", "gpu"])]
#[case(&["master", "infra", "gpu"])]
fn two_custom_pools_are_refused_by_name(#[case] roles: &[&str]) {
    let pools = ["worker", "infra", "gpu", "master"].map(|name| pool(name, role(name), 3, 1));
    let answer = evaluate(objects([upgrading_config()]), objects(pools), &node_with_roles(roles));
    assert_eq!(answer.truth, Tristate::Unknown);
    let note = &answer.notes[0];
    assert_eq!(note.key, "several-pools/n1/gpu,infra");
    assert!(
        note.message
            .contains("Node n1 is in 2 custom MachineConfigPools (gpu, infra)"),
        "{}",
        note.message
    );
}

#[rstest]
#[case::expression(json!({ "matchExpressions": [{ "key": "node-role.kubernetes.io/worker", "operator": "Exists" }] }), Tristate::Yes)]
#[case::both_must_hold(
    json!({ "matchLabels": { "node-role.kubernetes.io/worker": "" }, "matchExpressions": [{ "key": "gpu", "operator": "Exists" }] }),
    Tristate::No
)]
// A pool without a selector has no nodes, and one with an empty selector has none either.
#[case::empty(json!({}), Tristate::No)]
#[case::null(json!(null), Tristate::No)]
fn empty_pool_selector_selects_nothing(#[case] selector: Value, #[case] truth: Tristate) {
    let pools = objects([pool("blue", selector, 3, 1)]);
    assert_eq!(
        evaluate(objects([upgrading_config()]), pools, &node_with_roles(&["worker"])).truth,
        truth
    );
}

#[test]
fn unreadable_pool_leaves_the_choice_unknown() {
    let broken = pool(
        "broken",
        json!({ "matchExpressions": [{ "key": "a", "operator": "Near" }] }),
        3,
        1,
    );
    let pools = objects([pool("worker", role("worker"), 3, 1), broken]);
    let answer = evaluate(objects([upgrading_config()]), pools, &node_with_roles(&["worker"]));
    assert_eq!(answer.truth, Tristate::Unknown);
    assert!(
        answer.notes[0]
            .message
            .contains("MachineConfigPool broken: spec.nodeSelector"),
        "{:?}",
        answer.notes
    );
}

#[test]
fn a_windows_node_has_no_pool() {
    let node = cordoned(json!({ "labels": { "kubernetes.io/os": "windows", "node-role.kubernetes.io/worker": "" } }));
    let pools = objects([pool("worker", role("worker"), 3, 1)]);
    assert_eq!(
        evaluate(objects([upgrading_config()]), pools, &node).truth,
        Tristate::No
    );
}

#[rstest]
#[case::no_upgrade_config_kind(KindState::Absent, objects([]), Tristate::No, "absent/upgrade.managed")]
#[case::upgrade_configs_syncing(KindState::Syncing, objects([]), Tristate::Unknown, "syncing/upgrade.managed")]
#[case::upgrade_configs_forbidden(KindState::Forbidden("no".into()), objects([]), Tristate::Unknown, "forbidden/upgrade.managed")]
#[case::no_pool_kind(objects([upgrading_config()]), KindState::Absent, Tristate::No, "absent/machineconfiguration")]
#[case::pools_syncing(objects([upgrading_config()]), KindState::Syncing, Tristate::Unknown, "syncing/machineconfiguration")]
#[case::pools_forbidden(objects([upgrading_config()]), KindState::Forbidden("no".into()), Tristate::Unknown, "forbidden/machineconfiguration")]
fn a_kind_that_cannot_be_read_is_explained(
    #[case] configs: KindObjects,
    #[case] pools: KindObjects,
    #[case] truth: Tristate,
    #[case] key: &str,
) {
    let answer = evaluate(configs, pools, &node_with_roles(&["worker"]));
    assert_eq!((answer.truth, answer.since), (truth, None));
    assert!(answer.notes[0].key.starts_with(key), "{:?}", answer.notes);
}

#[test]
fn no_upgrade_without_an_upgrade_config() {
    let answer = evaluate(objects([]), KindState::Syncing, &node_with_roles(&["worker"]));
    assert_eq!(answer, Answer::no());
}

fn updating_pool(conditions: Value, paused: Value) -> Value {
    let mut pool = pool("worker", role("worker"), 3, 1);
    pool["spec"]["paused"] = paused;
    pool["status"]["conditions"] = conditions;
    pool
}

/// What a pool's controller says; its counts do not matter.
fn says(updating: &str) -> Value {
    json!([{ "type": "Updated", "status": "False" }, { "type": "Updating", "status": updating }])
}

#[rstest]
#[case::updating(updating_pool(says("True"), json!(false)), Tristate::Yes)]
#[case::never_paused(updating_pool(says("True"), json!(null)), Tristate::Yes)]
#[case::paused(updating_pool(says("True"), json!(true)), Tristate::No)]
#[case::done(updating_pool(says("False"), json!(false)), Tristate::No)]
#[case::not_told(updating_pool(says("Unknown"), json!(false)), Tristate::Unknown)]
#[case::no_such_condition(updating_pool(json!([{ "type": "Updated", "status": "True" }]), json!(false)), Tristate::Unknown)]
#[case::conditions_are_no_list(updating_pool(json!("True"), json!(false)), Tristate::Unknown)]
#[case::paused_without_conditions(updating_pool(json!(null), json!(true)), Tristate::No)]
#[case::another_pool(pool("infra", role("infra"), 3, 1), Tristate::No)]
fn updating_pool_concerns_its_own_nodes(#[case] pool: Value, #[case] truth: Tristate) {
    let inputs = inputs([(pool_kind(), objects([pool]))]);
    let answer = pool_or_node_is_changing(&inputs, &node_with_roles(&["worker"]));
    assert_eq!((answer.truth, answer.since), (truth, None));
    assert!(
        truth != Tristate::Unknown || answer.notes[0].message.contains("MachineConfigPool worker"),
        "{:?}",
        answer.notes
    );
}

/// The daemon goes by the annotations alone: a node under way is finished, whatever became of its pool.
#[rstest]
#[case::paused(objects([updating_pool(says("False"), json!(true))]))]
#[case::forbidden(KindState::Forbidden("no".into()))]
#[case::stale(KindState::Stale)]
#[case::absent(KindState::Absent)]
fn node_under_way_needs_no_pool(#[case] pools: KindObjects) {
    let inputs = inputs([(pool_kind(), pools)]);
    let node = |desired: &str| {
        cordoned(json!({
            "labels": { "node-role.kubernetes.io/worker": "" },
            "annotations": {
                "machineconfiguration.openshift.io/currentConfig": "rendered-worker-1",
                "machineconfiguration.openshift.io/desiredConfig": desired,
            },
        }))
    };
    assert_eq!(
        pool_or_node_is_changing(&inputs, &node("rendered-worker-2")).truth,
        Tristate::Yes
    );
    assert_ne!(
        pool_or_node_is_changing(&inputs, &node("rendered-worker-1")).truth,
        Tristate::Yes
    );
}

fn version_with(conditions: Value) -> KindObjects {
    objects([json!({ "metadata": { "name": "version" }, "status": { "conditions": conditions } })])
}

#[rstest]
#[case::progressing(
    version_with(json!([{ "type": "Available", "status": "True" }, { "type": "Progressing", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }])),
    Tristate::Yes, Some(since())
)]
#[case::no_transition(version_with(json!([{ "type": "Progressing", "status": "True" }])), Tristate::Yes, None)]
#[case::done(version_with(json!([{ "type": "Progressing", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z" }])), Tristate::No, None)]
#[case::unknown(version_with(json!([{ "type": "Progressing", "status": "Unknown" }])), Tristate::Unknown, None)]
#[case::status_is_a_bool(version_with(json!([{ "type": "Progressing", "status": true }])), Tristate::Unknown, None)]
#[case::transition_is_no_time(version_with(json!([{ "type": "Progressing", "status": "True", "lastTransitionTime": "x" }])), Tristate::Unknown, None)]
#[case::no_progressing(version_with(json!([{ "type": "Available", "status": "True" }])), Tristate::Unknown, None)]
#[case::conditions_are_no_list(version_with(json!({})), Tristate::Unknown, None)]
#[case::no_conditions(version_with(json!(null)), Tristate::Unknown, None)]
#[case::no_object(objects([]), Tristate::No, None)]
#[case::absent(KindState::Absent, Tristate::No, None)]
#[case::syncing(KindState::Syncing, Tristate::Unknown, None)]
#[case::forbidden(KindState::Forbidden("no".into()), Tristate::Unknown, None)]
fn a_cluster_version_tells_by_its_condition_progressing(
    #[case] state: KindObjects,
    #[case] truth: Tristate,
    #[case] since: Option<Timestamp>,
) {
    let answer = cluster_version_progressing(&inputs([(cluster_version_kind(), state)]));
    assert_eq!((answer.truth, answer.since), (truth, since));
    assert!(truth != Tristate::Unknown || answer.notes.len() == 1);
}

fn with_timeout(timeout: Value, phase: &str) -> Value {
    let mut config = config("c", WANTED, json!([{ "version": WANTED, "phase": phase }]));
    config["spec"]["PDBForceDrainTimeout"] = timeout;
    config
}

fn timeout(state: KindObjects) -> PdbForceDrainTimeout {
    pdb_force_drain_timeout(&inputs([(upgrade_config_kind(), state)]))
}

#[rstest]
#[case(60, 60)]
#[case(0, 0)]
#[case(52_560_000, 52_560_000)]
fn upgrade_timeout_is_whole_minutes_or_zero(#[case] written: i64, #[case] minutes: i64) {
    let found = timeout(objects([with_timeout(written.into(), "Upgrading")]));
    assert_eq!(found, PdbForceDrainTimeout::Minutes(SignedDuration::from_mins(minutes)));
}

#[rstest]
#[case(json!("60"))]
#[case(json!(-1))]
#[case(json!(1.5))]
#[case(json!(1e30))]
#[case(json!(true))]
#[case(json!([60]))]
fn malformed_upgrade_timeout_is_named(#[case] written: Value) {
    let PdbForceDrainTimeout::Malformed(problem) = timeout(objects([with_timeout(written.clone(), "Upgrading")]))
    else {
        panic!("{written} was accepted");
    };
    assert!(
        problem.contains("/c: spec.PDBForceDrainTimeout") && problem.contains(&written.to_string()),
        "{problem}"
    );
}

/// The configured wait in its place would force sooner than was asked for.
#[rstest]
#[case(json!(52_560_001))]
#[case(json!(i64::MAX))]
#[case(json!(u64::MAX))]
fn endless_upgrade_timeout_is_the_longest(#[case] written: Value) {
    let PdbForceDrainTimeout::TooLong(text) = timeout(objects([with_timeout(written.clone(), "Upgrading")])) else {
        panic!("{written} was accepted");
    };
    assert!(text.contains("/c: spec.PDBForceDrainTimeout") && text.contains(&written.to_string()));
}

#[test]
fn unset_upgrade_timeout_is_missing() {
    assert!(matches!(
        timeout(objects([with_timeout(json!(null), "Upgrading")])),
        PdbForceDrainTimeout::Missing(_)
    ));
}

#[rstest]
#[case::not_upgrading(objects([with_timeout(json!(60), "Pending")]))]
#[case::not_upgrading_and_malformed(objects([with_timeout(json!("x"), "Upgraded")]))]
#[case::none(objects([]))]
#[case::absent(KindState::Absent)]
#[case::syncing(KindState::Syncing)]
#[case::forbidden(KindState::Forbidden("".into()))]
fn without_an_upgrading_config_there_is_no_timeout(#[case] state: KindObjects) {
    assert_eq!(timeout(state), PdbForceDrainTimeout::NotSet);
}

#[test]
fn of_several_upgrading_configs_the_longest_timeout_counts() {
    let configs = objects([15, 90, 30].map(|minutes| with_timeout(minutes.into(), "Upgrading")));
    assert_eq!(
        timeout(configs),
        PdbForceDrainTimeout::Minutes(SignedDuration::from_mins(90))
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(vec![
            "",
            "Upgrading",
            "4.20.1",
            "2026-01-01T00:00:00Z",
            "worker",
            "True"
        ])
        .prop_map(Value::from),
    ];
    let key = prop::sample::select(vec![
        "metadata",
        "name",
        "spec",
        "desired",
        "version",
        "status",
        "history",
        "phase",
        "startTime",
        "PDBForceDrainTimeout",
        "nodeSelector",
        "matchLabels",
        "machineCount",
        "updatedMachineCount",
        "conditions",
        "type",
    ]);
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}

proptest! {
    #[test]
    fn malformed_resources_neither_panic_nor_upgrade(config in any_json(), pool_object in any_json(), version in any_json()) {
        let node = node_with_roles(&["worker"]);
        let worker = pool("worker", role("worker"), 3, 1);
        for (config, pool_object) in [(config.clone(), worker), (upgrading_config(), pool_object)] {
            let answer = evaluate(objects([config]), objects([pool_object]), &node);
            prop_assert!(answer.truth != Tristate::Unknown || !answer.notes.is_empty());
        }
        let _ = timeout(objects([config]));
        let _ = cluster_version_progressing(&inputs([(cluster_version_kind(), objects([version]))]));
    }
}

#[test]
fn upgrades_are_named_with_their_generation() {
    let upgrading = |phase: &str| {
        let mut config = config("c", WANTED, json!([{ "version": WANTED, "phase": phase }]));
        config["metadata"]["generation"] = json!(3);
        config
    };
    let versions = version_with(json!([{ "type": "Progressing", "status": "True" }]));
    let named = |phase: &str, versions: KindObjects| {
        let configs = objects([upgrading(phase)]);
        upgrades_in_progress(&inputs([
            (upgrade_config_kind(), configs),
            (cluster_version_kind(), versions),
        ]))
    };
    let config = format!("UpgradeConfig {} (generation 3)", full_name(&upgrading("")));
    assert_eq!(
        named("Upgrading", versions),
        [config.as_str(), "ClusterVersion version"]
    );
    assert_eq!(named("Upgraded", KindState::Absent), Vec::<String>::new());
    assert_eq!(named("Upgrading", KindState::Syncing), [config.as_str()]);
}
