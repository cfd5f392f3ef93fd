//! The cases of Cluster API's own tests (`core/reconcilers/machine/drain`), and what may not be known.

use rstest::rstest;
use serde_json::{Value, json};

use super::super::super::tests::fixture::{cordoned, inputs, objects, signal};
use super::*;
use crate::pod::PodProjector;
use crate::signal::{KindObjects, KindState};

const VERSIONS: [&str; 2] = ["cluster.x-k8s.io/v1beta2", "cluster.x-k8s.io/v1beta1"];

fn rule(name: &str, behavior: &str, machines: Value, pods: Value) -> Value {
    json!({
        "metadata": { "namespace": "fleet", "name": name },
        "spec": { "drain": { "behavior": behavior }, "machines": machines, "pods": pods },
    })
}

fn of_all(name: &str, behavior: &str) -> Value {
    rule(name, behavior, json!([]), json!([]))
}

fn machine() -> Value {
    json!({
        "metadata": { "namespace": "fleet", "name": "m", "labels": { "os": "linux", "tier": "a" } },
        "spec": { "clusterName": "c" },
        "status": { "nodeRef": { "name": "n1" } },
    })
}

/// What is served in this version alone.
fn world(version: &str, rules: KindObjects) -> SignalInputs {
    let other = VERSIONS.into_iter().find(|other| *other != version).unwrap();
    let cluster = json!({ "metadata": { "namespace": "fleet", "name": "c", "labels": { "stage": "production" } } });
    let namespaces = ["shop", "lab"].map(|name| json!({ "metadata": { "name": name, "labels": { "team": name } } }));
    let kind = |version: &str, kind: &str| WatchedResource::all(version, kind);
    inputs([
        (kind(version, "Machine"), objects([machine()])),
        (kind(version, "Cluster"), objects([cluster])),
        (kind(version, "MachineDrainRule"), rules),
        (kind(other, "Machine"), KindState::Absent),
        (kind(other, "Cluster"), KindState::Absent),
        (kind(other, "MachineDrainRule"), KindState::Absent),
        (kind("v1", "Namespace"), objects(namespaces)),
    ])
}

fn pod() -> PodSummary {
    let labels = json!({ "app": "batch", "role": "job" });
    let pod =
        json!({ "metadata": { "namespace": "shop", "name": "p", "labels": labels }, "spec": { "nodeName": "n1" } });
    PodProjector::default()
        .project(&serde_json::from_value(pod).unwrap())
        .unwrap()
}

/// What the rules ask for the pod.
fn asked(inputs: &SignalInputs) -> Option<(OptOut, String)> {
    let rules = signal("{preset: clusterApi}").drain_rules(inputs, &cordoned(json!({})));
    rules.opt_out(&pod())
}

fn by(name: &str) -> String {
    format!("MachineDrainRule fleet/{name}")
}

fn labels(key: &str, value: &str) -> Value {
    json!({ "matchLabels": { key: value } })
}

#[rstest]
#[case::skip("Skip", Some(OptOut::Skip))]
#[case::wait("WaitCompleted", Some(OptOut::WaitCompleted))]
#[case::drain("Drain", None)]
fn rule_without_selectors_applies_to_all(
    #[case] behavior: &str,
    #[case] opt_out: Option<OptOut>,
    #[values(VERSIONS[0], VERSIONS[1])] version: &str,
) {
    let expected = opt_out.map(|opt_out| (opt_out, by("r")));
    assert_eq!(asked(&world(version, objects([of_all("r", behavior)]))), expected);
    let empty = json!([{ "selector": {}, "clusterSelector": {} }]);
    let of_empty = rule(
        "r",
        behavior,
        empty,
        json!([{ "selector": {}, "namespaceSelector": {} }]),
    );
    assert_eq!(asked(&world(version, objects([of_empty]))), expected, "empty selectors");
    let absent = rule("r", behavior, json!([{}]), json!([{}]));
    assert_eq!(asked(&world(version, objects([absent]))), expected, "absent selectors");
}

#[rstest]
#[case::machine(json!([{ "selector": labels("os", "linux") }]), json!([]), true)]
#[case::another_machine(json!([{ "selector": labels("os", "windows") }]), json!([]), false)]
#[case::cluster(json!([{ "clusterSelector": labels("stage", "production") }]), json!([]), true)]
#[case::another_cluster(json!([{ "clusterSelector": labels("stage", "test") }]), json!([]), false)]
#[case::machine_of_another_cluster(
    json!([{ "selector": labels("os", "linux"), "clusterSelector": labels("stage", "test") }]), json!([]), false
)]
#[case::any_of_several_machines(
    json!([{ "selector": labels("os", "windows") }, { "selector": labels("tier", "a") }]), json!([]), true
)]
#[case::machine_by_expression(
    json!([{ "selector": { "matchExpressions": [{ "key": "tier", "operator": "NotIn", "values": ["b"] }] } }]), json!([]), true
)]
#[case::pod(json!([]), json!([{ "selector": labels("app", "batch") }]), true)]
#[case::another_pod(json!([]), json!([{ "selector": labels("app", "web") }]), false)]
#[case::namespace(json!([]), json!([{ "namespaceSelector": labels("team", "shop") }]), true)]
#[case::another_namespace(json!([]), json!([{ "namespaceSelector": labels("team", "lab") }]), false)]
#[case::pod_of_another_namespace(
    json!([]), json!([{ "selector": labels("app", "batch"), "namespaceSelector": labels("team", "lab") }]), false
)]
#[case::any_of_several_pods(
    json!([]), json!([{ "selector": labels("app", "web") }, { "selector": labels("role", "job") }]), true
)]
#[case::machine_and_another_pod(
    json!([{ "selector": labels("os", "linux") }]), json!([{ "selector": labels("app", "web") }]), false
)]
fn rule_applies_by_its_selectors(#[case] machines: Value, #[case] pods: Value, #[case] applies: bool) {
    let inputs = world(VERSIONS[0], objects([rule("r", "Skip", machines, pods)]));
    assert_eq!(asked(&inputs), applies.then(|| (OptOut::Skip, by("r"))));
}

#[rstest]
#[case::skip_before_wait(vec![of_all("b", "WaitCompleted"), of_all("a", "Skip")], Some((OptOut::Skip, "a")))]
#[case::drain_before_skip(vec![of_all("a", "Drain"), of_all("b", "Skip")], None)]
#[case::first_that_applies(
    vec![rule("a", "Skip", json!([]), json!([{ "selector": labels("app", "web") }])), of_all("b", "WaitCompleted")],
    Some((OptOut::WaitCompleted, "b"))
)]
#[case::none(vec![], None)]
fn first_rule_by_name_counts(#[case] rules: Vec<Value>, #[case] expected: Option<(OptOut, &str)>) {
    let expected = expected.map(|(opt_out, name)| (opt_out, by(name)));
    let rules = KindState::Synced(rules.into_iter().map(Arc::new).collect());
    assert_eq!(asked(&world(VERSIONS[0], rules)), expected);
}

#[test]
fn rules_of_other_namespaces_do_not_count() {
    let mut other = of_all("r", "Skip");
    other["metadata"]["namespace"] = "lab".into();
    other["spec"]["drain"]["behavior"] = "Nonsense".into();
    assert_eq!(asked(&world(VERSIONS[0], objects([other]))), None);
}

#[rstest]
#[case::behavior(of_all("r", "Evict"), "fleet/r is none")]
#[case::no_behavior(json!({ "metadata": { "namespace": "fleet", "name": "r" }, "spec": {} }), "fleet/r is none")]
#[case::selector(
    rule("r", "Skip", json!([]), json!([{ "selector": { "matchExpressions": [{ "key": "a", "operator": "In" }] } }])),
    "at least one value"
)]
fn unreadable_rule_leaves_all_unknown(#[case] rule: Value, #[case] says: &str) {
    let (opt_out, why) = asked(&world(VERSIONS[0], objects([of_all("a", "Skip"), rule]))).unwrap();
    assert_eq!(opt_out, OptOut::Unknown);
    assert!(why.contains(says), "{why}");
}

#[rstest]
#[case::forbidden(KindState::Forbidden("forbidden".into()), "may not be read. Add this rule")]
#[case::syncing(KindState::Syncing, "is still being listed")]
#[case::stale(KindState::Stale, "has not been heard of")]
fn rules_that_are_not_read_leave_all_unknown(#[case] state: KindObjects, #[case] says: &str) {
    let (opt_out, why) = asked(&world(VERSIONS[0], state)).unwrap();
    assert_eq!(opt_out, OptOut::Unknown);
    assert!(why.contains(says), "{why}");
}

/// They are read where a rule asks for them alone.
#[rstest]
#[case::namespaces("Namespace", "v1", json!([]), json!([{ "namespaceSelector": labels("team", "shop") }]))]
#[case::clusters("Cluster", VERSIONS[0], json!([{ "clusterSelector": labels("stage", "production") }]), json!([]))]
fn selected_kind_that_is_not_read_leaves_all_unknown(
    #[case] kind: &str,
    #[case] version: &str,
    #[case] machines: Value,
    #[case] pods: Value,
) {
    let forbid = |rule| {
        let mut inputs = world(VERSIONS[0], objects([rule]));
        inputs.insert(WatchedResource::all(version, kind), KindState::Forbidden("no".into()));
        asked(&inputs).map(|(opt_out, _)| opt_out)
    };
    assert_eq!(forbid(rule("r", "Skip", machines, pods)), Some(OptOut::Unknown));
    assert_eq!(forbid(of_all("r", "Skip")), Some(OptOut::Skip));
}

#[test]
fn rules_are_read_once_for_all_nodes() {
    let inputs = world(VERSIONS[0], objects([of_all("r", "Skip")]));
    let rules = || signal("{preset: clusterApi}").drain_rules(&inputs, &cordoned(json!({})));
    let (DrainRules(Ok(first)), DrainRules(Ok(second))) = (rules(), rules()) else {
        panic!("they are known");
    };
    assert!(Arc::ptr_eq(&first[0], &second[0]));
}

/// Cluster API before 1.9 has no such kind, and a node without a Machine has no drain of it.
#[test]
fn without_kind_or_machine_there_are_no_rules() {
    assert_eq!(asked(&world(VERSIONS[1], KindState::Absent)), None);
    let mut inputs = world(VERSIONS[0], objects([of_all("r", "Skip")]));
    inputs.insert(WatchedResource::all(VERSIONS[0], "Machine"), objects([]));
    assert_eq!(asked(&inputs), None);
}

#[test]
fn other_signals_have_no_rules() {
    let inputs = world(VERSIONS[0], KindState::Forbidden("no".into()));
    let rules = signal("always").drain_rules(&inputs, &cordoned(json!({})));
    assert_eq!(rules, DrainRules::NONE);
    assert_eq!(signal("always").kinds_with_drain_rules(), signal("always").kinds());
}
