pub(super) mod fixture;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use self::fixture::{cordoned, cordoned_with_taints, inputs, objects, signal};
use super::*;

fn read(yaml: &str) -> Result<UpgradeSignal, String> {
    serde_yaml::from_str(yaml).map_err(|error| error.to_string())
}

#[test]
fn no_signal_configured_means_openshift() {
    assert_eq!(*UpgradeSignal::default().spec(), SignalSpec::OpenShift);
    assert_eq!(UpgradeSignal::default(), signal("openshift"));
}

#[rstest]
#[case("always", "always")]
#[case("openshift", "openshift")]
#[case("openshiftClusterVersion", "openshiftClusterVersion")]
#[case("machineConfigPool", "machineConfigPool")]
#[case("{preset: kured}", "preset kured")]
#[case("{preset: clusterApi}", "preset clusterApi")]
#[case("{preset: karpenter}", "preset karpenter")]
#[case("{preset: systemUpgradeController}", "preset systemUpgradeController")]
#[case("{preset: talos}", "preset talos")]
#[case(
    "{preset: {name: kured, namespace: kured, daemonSet: k, annotation: a.io/lock}}",
    "preset kured"
)]
#[case("{preset: {name: karpenter, reasons: [Drifted, Underutilized]}}", "preset karpenter")]
#[case(
    "{node: {annotation: {keyPrefix: a.io/, valuePrefix: drain-}}}",
    "node annotation a.io/*=drain-*"
)]
#[case(
    "{node: {annotation: example.com/upgrading}}",
    "node annotation example.com/upgrading"
)]
#[case("{node: {label: {key: a, value: b}}}", "node label a=b")]
#[case("{node: {taint: {key: a, value: b, effect: NoExecute}}}", "node taint a=b:NoExecute")]
#[case(
    "{resource: {apiVersion: v1, kind: ConfigMap, when: 'true'}}",
    "resource v1 ConfigMap"
)]
#[case(
    "{anyOf: [openshift, {allOf: [always, {preset: kured}]}]}",
    "anyOf[openshift, allOf[always, preset kured]]"
)]
fn every_signal_form_parses_as_yaml_and_json(#[case] yaml: &str, #[case] shown: &str) {
    let signal = read(yaml).unwrap();
    assert_eq!(signal.spec().to_string(), shown);
    let json: Value = serde_yaml::from_str(yaml).unwrap();
    assert_eq!(serde_json::from_value::<UpgradeSignal>(json).unwrap(), signal);
}

#[rstest]
#[case(
    "sometimes",
    "unknown signal \"sometimes\": expected a signal: one of always, openshift, openshiftClusterVersion, machineConfigPool, or one of {preset"
)]
#[case("kured", "kured is a preset: write {preset: kured}")]
#[case("{}", "one of preset, node, resource, anyOf, allOf is needed")]
#[case("5", "a signal: one of always")]
#[case("~", "a signal: one of always")]
#[case("[openshift]", "a signal: one of always")]
#[case("{preset: cured}", "unknown variant `cured`, expected one of `kured`")]
#[case("{preset: {name: talos, namespace: a}}", "namespace is a setting of kured alone")]
#[case("{preset: {name: kured, daemonSet: ''}}", "daemonSet is empty")]
#[case(
    "{preset: {name: kured, reasons: [Drifted]}}",
    "reasons is a setting of karpenter alone"
)]
#[case("{preset: {name: karpenter, reasons: []}}", "reasons needs at least one")]
#[case("{node: {label: {key: a, keyPrefix: b}}}", "key and keyPrefix are both given")]
#[case("{node: {label: {key: a, valuePrefix: ''}}}", "valuePrefix is empty")]
#[case("{present: kured}", "unknown field `present`, expected one of `preset`")]
#[case(
    "{preset: kured, node: {label: a}}",
    "preset and node are both given: put them in a list under anyOf or allOf"
)]
#[case("{anyOf: []}", "anyOf needs at least one signal")]
#[case("{allOf: []}", "allOf needs at least one signal")]
#[case("{anyOf: [{allOf: []}]}", "allOf needs at least one signal")]
#[case("{anyOf: openshift}", "expected a sequence")]
#[case("{node: {}}", "one of annotation, label, taint is needed")]
#[case("{node: {anotation: a}}", "unknown field `anotation`")]
#[case("{node: {annotation: a, label: b}}", "annotation and label are both given")]
#[case("{node: {annotation: ''}}", "\"\" is not the key of an annotation")]
#[case("{node: {label: 'a b'}}", "\"a b\" is not the key of a label")]
#[case("{node: {label: {key: a, value: [b]}}}", "expected a string")]
#[case("{node: {label: {key: a, values: b}}}", "unknown field `values`")]
#[case("{node: {label: {value: b}}}", "missing field `key`")]
#[case("{node: {label: {key: a, effect: NoSchedule}}}", "only a taint has an effect")]
#[case("{node: {taint: {key: a, effect: Never}}}", "unknown variant `Never`")]
#[case("{node: {taint: 5}}", "a key, or {key, value}")]
#[case("{resource: {kind: Plan, when: 'true'}}", "missing field `apiVersion`")]
#[case("{resource: {apiVersion: v1, kind: Plan}}", "missing field `when`")]
#[case(
    "{resource: {apiVersion: v1, kind: Plan, when: 'true', nmae: a}}",
    "unknown field `nmae`"
)]
#[case(
    "{resource: {apiVersion: a/b/c, kind: Plan, when: 'true'}}",
    "apiVersion \"a/b/c\" is neither group/version nor v1"
)]
#[case(
    "{resource: {apiVersion: '', kind: Plan, when: 'true'}}",
    "apiVersion \"\" is neither"
)]
#[case(
    "{resource: {apiVersion: /v1, kind: Plan, when: 'true'}}",
    "apiVersion \"/v1\" is neither"
)]
#[case(
    "{resource: {apiVersion: v1, kind: plans, when: 'true'}}",
    "kind \"plans\" is not a kind"
)]
#[case("{resource: {apiVersion: v1, kind: Plan, name: '', when: 'true'}}", "name is empty")]
#[case(
    "{resource: {apiVersion: v1, kind: Plan, selector: {app: 1}, when: 'true'}}",
    "app: a label's value is text"
)]
#[case(
    "{resource: {apiVersion: v1, kind: Plan, when: ''}}",
    "resource v1 Plan: when: the expression is empty"
)]
#[case(
    "{resource: {apiVersion: v1, kind: Plan, when: 'object.'}}",
    "resource v1 Plan: when: not a CEL expression: line 1"
)]
#[case("{resource: {apiVersion: v1, kind: Plan, when: 'self.a'}}", "\"self\" is not known")]
#[case("{resource: {apiVersion: v1, kind: Plan, when: [a]}}", "expected a string")]
fn unusable_signal_is_refused_with_a_hint(#[case] yaml: &str, #[case] says: &str) {
    let error = read(yaml).unwrap_err();
    assert!(error.contains(says), "{error}");
}

fn nested(depth: usize) -> SignalSpec {
    (0..depth).fold(SignalSpec::Always, |inner, _| SignalSpec::AnyOf(vec![inner]))
}

#[test]
fn nesting_has_a_limit() {
    assert!(UpgradeSignal::compile(nested(MAX_NESTING)).is_ok());
    assert_eq!(
        UpgradeSignal::compile(nested(MAX_NESTING + 1)).err(),
        Some(SignalError::TooDeep)
    );
}

#[rstest]
#[case("always", &[])]
#[case("{node: {label: a}}", &[])]
#[case("{preset: talos}", &[])]
#[case("{preset: kured}", &["apps/v1/DaemonSet kube-system/kured"])]
#[case("{preset: {name: kured, namespace: os, daemonSet: k}}", &["apps/v1/DaemonSet os/k"])]
#[case("{preset: karpenter}", &["karpenter.sh/v1/NodeClaim"])]
#[case("{preset: clusterApi}", &["cluster.x-k8s.io/v1beta1/Machine", "cluster.x-k8s.io/v1beta2/Machine"])]
#[case("openshift", &["machineconfiguration.openshift.io/v1/MachineConfigPool", "upgrade.managed.openshift.io/v1alpha1/UpgradeConfig"])]
#[case("openshiftClusterVersion", &["config.openshift.io/v1/ClusterVersion version"])]
#[case("machineConfigPool", &["machineconfiguration.openshift.io/v1/MachineConfigPool"])]
#[case("{preset: machineConfig}", &[])]
#[case("{preset: systemUpgradeController}", &["upgrade.cattle.io/v1/Plan"])]
#[case(
    "{resource: {apiVersion: a.io/v1, kind: Plan, name: p, namespace: n, selector: {matchLabels: {x: y}}, when: 'true'}}",
    &["a.io/v1/Plan n/p (x=y)"]
)]
#[case("{resource: {apiVersion: a.io/v1, kind: Plan, selector: {x: y}, when: 'true'}}", &["a.io/v1/Plan (x=y)"])]
#[case("{resource: {apiVersion: a.io/v1, kind: Plan, selector: {}, when: 'true'}}", &["a.io/v1/Plan"])]
#[case(
    "{anyOf: [openshift, {allOf: [openshift, {preset: systemUpgradeController}]}]}",
    &[
        "machineconfiguration.openshift.io/v1/MachineConfigPool", "upgrade.cattle.io/v1/Plan",
        "upgrade.managed.openshift.io/v1alpha1/UpgradeConfig",
    ]
)]
fn each_kind_that_a_signal_reads_is_watched_once(#[case] yaml: &str, #[case] kinds: &[&str]) {
    let watched: Vec<String> = signal(yaml).kinds().keys().map(ToString::to_string).collect();
    assert_eq!(watched, kinds);
}

#[test]
fn a_kind_tells_its_group_and_version() {
    let kind = WatchedResource::all("upgrade.cattle.io/v1", "Plan");
    assert_eq!((kind.group(), kind.version()), ("upgrade.cattle.io", "v1"));
    let core = WatchedResource::all("v1", "ConfigMap");
    assert_eq!((core.group(), core.version()), ("", "v1"));
}

#[rstest]
#[case("Plan", "plans")]
#[case("Policy", "policies")]
#[case("Gateway", "gateways")]
#[case("Ingress", "ingresses")]
#[case("MachineConfigPool", "machineconfigpools")]
#[case("Y", "ies")]
fn the_usual_plural_of_a_kind(#[case] kind: &str, #[case] plural: &str) {
    assert_eq!(WatchedResource::all("v1", kind).likely_plural(), plural);
}

fn plan_kind() -> WatchedResource {
    WatchedResource::all("upgrade.cattle.io/v1", "Plan")
}

const RESOURCE: &str =
    "{resource: {apiVersion: upgrade.cattle.io/v1, kind: Plan, when: 'node.metadata.name in object.status.applying'}}";

fn evaluate(yaml: &str, state: KindObjects) -> Answer {
    let node = cordoned(json!({}));
    signal(yaml).evaluate(&inputs([(plan_kind(), state)]), &node)
}

fn plan(name: &str, applying: Value) -> Value {
    json!({ "metadata": { "namespace": "system", "name": name }, "status": { "applying": applying } })
}

#[rstest]
#[case::no_object(objects([]), Tristate::No)]
#[case::none_true(objects([plan("a", json!(["n2"]))]), Tristate::No)]
#[case::any_true(objects([plan("a", json!(["n2"])), plan("b", json!(["n1"]))]), Tristate::Yes)]
#[case::an_error_beside_a_yes(objects([plan("a", json!(null)), plan("b", json!(["n1"]))]), Tristate::Yes)]
#[case::an_error_beside_a_no(objects([plan("a", json!(null)), plan("b", json!(["n2"]))]), Tristate::Unknown)]
#[case::a_missing_field(objects([json!({})]), Tristate::Unknown)]
#[case::absent(KindState::Absent, Tristate::No)]
#[case::syncing(KindState::Syncing, Tristate::Unknown)]
#[case::forbidden(KindState::Forbidden("".into()), Tristate::Unknown)]
fn resource_signal_is_yes_for_any_matching_object(#[case] state: KindObjects, #[case] truth: Tristate) {
    let answer = evaluate(RESOURCE, state.clone());
    assert_eq!((answer.truth, answer.since), (truth, None));
    // Whatever cannot be told, and whatever is absent, is explained; a plain yes or no is not.
    let plain = matches!(truth, Tristate::Yes | Tristate::No) && state != KindState::Absent;
    assert_eq!(answer.notes.is_empty(), plain, "{:?}", answer.notes);
}

#[test]
fn failing_expression_gives_one_note_for_many_objects() {
    let plans = |names: &[&str]| {
        KindState::Synced(
            names
                .iter()
                .map(|name| std::sync::Arc::new(plan(name, json!(1))))
                .collect(),
        )
    };
    let first = evaluate(RESOURCE, plans(&["a", "b", "c"]));
    assert_eq!(first.notes.len(), 1);
    let message = &first.notes[0].message;
    assert!(
        message.contains("Plan system/a") && message.contains("node.metadata.name in object.status.applying"),
        "{message}"
    );
    assert_eq!(first.notes[0].level, NoteLevel::Warning);
    // The key does not depend on the objects: it is reported once.
    assert_eq!(evaluate(RESOURCE, plans(&["z"])).notes[0].key, first.notes[0].key);
}

#[test]
fn a_kind_that_nobody_has_listed_is_syncing() {
    let node = cordoned(json!({}));
    let answer = signal(RESOURCE).evaluate(&SignalInputs::default(), &node);
    assert_eq!(answer.truth, Tristate::Unknown);
    assert!(answer.notes[0].key.starts_with("syncing/"), "{:?}", answer.notes);
}

#[rstest]
#[case(
    "plans.upgrade.cattle.io is forbidden: User \"u\" cannot list resource \"planz\" in API group \"upgrade.cattle.io\"",
    "planz"
)]
#[case("denied", "plans")]
#[case("cannot list resource \"\"", "plans")]
fn a_403_names_the_rule_to_add(#[case] message: &str, #[case] resource: &str) {
    let answer = evaluate(RESOURCE, KindState::Forbidden(message.into()));
    let note = &answer.notes[0];
    let rule = format!(
        "apiGroups: [\"upgrade.cattle.io\"], resources: [\"{resource}\"], verbs: [\"get\", \"list\", \"watch\"]"
    );
    assert!(
        note.message.contains(&rule) && note.message.contains(message),
        "{}",
        note.message
    );
    assert_eq!(note.level, NoteLevel::Warning);
    // A server that words its refusal differently each time is still reported once.
    assert_eq!(
        evaluate(RESOURCE, KindState::Forbidden("again".into())).notes[0].key,
        note.key
    );
}

#[rstest]
#[case("{annotation: a}", true)]
#[case("{annotation: {key: a, value: '1'}}", true)]
#[case("{annotation: {key: a, value: '2'}}", false)]
#[case("{annotation: b}", false)]
#[case("{label: b}", true)]
#[case("{label: {key: b, value: '2'}}", true)]
#[case("{label: {key: b, value: ''}}", false)]
#[case("{label: a}", false)]
#[case("{taint: c}", true)]
#[case("{taint: {key: c, value: '3'}}", true)]
#[case("{taint: {key: c, value: '4', effect: NoExecute}}", true)]
#[case("{taint: {key: c, value: '3', effect: NoExecute}}", false)]
#[case("{taint: a}", false)]
fn a_node_signal_looks_for_its_mark(#[case] mark: &str, #[case] on: bool) {
    let taints = json!([
        { "key": "c", "value": "3", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z" },
        { "key": "c", "value": "4", "effect": "NoExecute" },
    ]);
    let node = cordoned_with_taints(json!({ "annotations": { "a": "1" }, "labels": { "b": "2" } }), taints);
    let answer = signal(&format!("{{node: {mark}}}")).evaluate(&SignalInputs::default(), &node);
    assert_eq!(answer, if on { Answer::yes(None) } else { Answer::no() });
}

#[test]
fn always_is_yes_and_has_no_start() {
    let node = cordoned(json!({}));
    let answer = signal("always").evaluate(&SignalInputs::default(), &node);
    assert_eq!(answer, Answer::yes(None));
}

fn answer(truth: Tristate, since: Option<i64>) -> Answer {
    let since = since.map(|second| jiff::Timestamp::from_second(second).unwrap());
    Answer {
        truth,
        since: since.filter(|_| truth == Tristate::Yes),
        notes: Vec::new(),
    }
}

#[rstest]
#[case::yes_wins(&[(Tristate::No, None), (Tristate::Unknown, None), (Tristate::Yes, Some(5))], Tristate::Yes, Some(5))]
#[case::earliest(&[(Tristate::Yes, Some(7)), (Tristate::Yes, Some(5)), (Tristate::No, None)], Tristate::Yes, Some(5))]
#[case::one_has_no_start(&[(Tristate::Yes, Some(7)), (Tristate::Yes, None)], Tristate::Yes, None)]
#[case::unknown_over_no(&[(Tristate::No, None), (Tristate::Unknown, None)], Tristate::Unknown, None)]
#[case::all_no(&[(Tristate::No, None), (Tristate::No, None)], Tristate::No, None)]
fn any_of_counts_since_the_earliest(
    #[case] answers: &[(Tristate, Option<i64>)],
    #[case] truth: Tristate,
    #[case] since: Option<i64>,
) {
    assert_eq!(
        Answer::any_of(answers.iter().map(|(truth, since)| answer(*truth, *since))),
        answer(truth, since)
    );
}

#[rstest]
#[case::no_wins(&[(Tristate::Yes, Some(5)), (Tristate::Unknown, None), (Tristate::No, None)], Tristate::No, None)]
#[case::latest(&[(Tristate::Yes, Some(7)), (Tristate::Yes, Some(5))], Tristate::Yes, Some(7))]
#[case::one_has_no_start(&[(Tristate::Yes, Some(7)), (Tristate::Yes, None)], Tristate::Yes, Some(7))]
#[case::unknown_over_yes(&[(Tristate::Yes, Some(5)), (Tristate::Unknown, None)], Tristate::Unknown, None)]
fn all_of_counts_since_the_latest(
    #[case] answers: &[(Tristate, Option<i64>)],
    #[case] truth: Tristate,
    #[case] since: Option<i64>,
) {
    assert_eq!(
        Answer::all_of(answers.iter().map(|(truth, since)| answer(*truth, *since))),
        answer(truth, since)
    );
}

#[test]
fn notes_of_all_members_are_kept_once() {
    let note = |key: &str| SignalNote::info(key, "said");
    let members = [
        Answer::yes(None).with_note(note("a")),
        Answer::unknown(note("b")),
        Answer::no().with_note(note("a")),
    ];
    let keys = |answer: Answer| answer.notes.into_iter().map(|note| note.key).collect::<Vec<_>>();
    assert_eq!(keys(Answer::any_of(members.clone())), ["a", "b"]);
    assert_eq!(keys(Answer::all_of(members)), ["a", "b"]);
}

#[test]
fn members_are_combined_as_they_are_nested() {
    let node = cordoned(json!({ "labels": { "a": "" } }));
    let truth = |yaml: &str| signal(yaml).evaluate(&SignalInputs::default(), &node).truth;
    assert_eq!(
        truth("{anyOf: [{node: {label: b}}, {node: {label: a}}]}"),
        Tristate::Yes
    );
    assert_eq!(truth("{allOf: [{node: {label: b}}, {node: {label: a}}]}"), Tristate::No);
    assert_eq!(
        truth("{allOf: [{node: {label: a}}, {anyOf: [{node: {label: b}}, always]}]}"),
        Tristate::Yes
    );
    assert_eq!(truth("{allOf: [{node: {label: a}}, openshift]}"), Tristate::Unknown);
    assert_eq!(truth("{anyOf: [{node: {label: a}}, openshift]}"), Tristate::Yes);
}

#[test]
fn only_karpenter_cordons_by_another_taint() {
    for preset in Preset::ALL {
        let taints = signal(&format!("{{anyOf: [{{preset: {preset}}}, {{preset: {preset}}}]}}")).cordon_taints();
        let expected = match preset {
            Preset::Karpenter => vec![NodeMarker::taint("karpenter.sh/disrupted", Some("NoSchedule"))],
            _ => Vec::new(),
        };
        assert_eq!(taints, expected, "{preset}");
    }
    assert!(
        signal("{node: {taint: karpenter.sh/disrupted}}")
            .cordon_taints()
            .is_empty()
    );
}

#[test]
fn every_preset_says_once_what_must_be_switched_on() {
    for preset in Preset::ALL {
        let sentences = signal(&format!(
            "{{anyOf: [{{preset: {preset}}}, {{preset: {preset}}}, always]}}"
        ))
        .requirements();
        assert_eq!(sentences, [preset.requirement()]);
    }
    assert!(signal("{preset: kured}").requirements()[0].contains("DaemonSet"));
    assert!(signal("openshift").requirements().is_empty());
}

fn any_answer() -> impl Strategy<Value = Answer> {
    let truth = prop::sample::select(vec![Tristate::Yes, Tristate::No, Tristate::Unknown]);
    (truth, prop::option::of(0..5_i64)).prop_map(|(truth, since)| answer(truth, since))
}

fn opposite(answer: &Answer) -> Tristate {
    match answer.truth {
        Tristate::Yes => Tristate::No,
        Tristate::No => Tristate::Yes,
        Tristate::Unknown => Tristate::Unknown,
    }
}

proptest! {
    #[test]
    fn order_does_not_matter(answers in prop::collection::vec(any_answer(), 1..6), seed in any::<prop::sample::Index>()) {
        let mut turned = answers.clone();
        turned.rotate_left(seed.index(answers.len()));
        prop_assert_eq!(Answer::any_of(answers.clone()), Answer::any_of(turned.clone()));
        prop_assert_eq!(Answer::all_of(answers), Answer::all_of(turned));
    }

    #[test]
    fn one_member_is_itself(only in any_answer()) {
        prop_assert_eq!(Answer::any_of([only.clone()]), only.clone());
        prop_assert_eq!(Answer::all_of([only.clone()]), only);
    }

    #[test]
    fn grouping_does_not_matter(a in any_answer(), b in any_answer(), c in any_answer()) {
        let flat = [a.clone(), b.clone(), c.clone()];
        prop_assert_eq!(Answer::any_of(flat.clone()), Answer::any_of([Answer::any_of([a.clone(), b.clone()]), c.clone()]));
        prop_assert_eq!(Answer::all_of(flat), Answer::all_of([Answer::all_of([a, b]), c]));
    }

    #[test]
    fn any_of_and_all_of_are_each_others_opposite(answers in prop::collection::vec(any_answer(), 1..6)) {
        let opposites = answers.iter().map(|a| answer(opposite(a), None));
        prop_assert_eq!(Answer::all_of(opposites).truth, opposite(&Answer::any_of(answers)));
    }

    #[test]
    fn only_a_yes_has_a_start(answers in prop::collection::vec(any_answer(), 1..6)) {
        for combined in [Answer::any_of(answers.clone()), Answer::all_of(answers)] {
            prop_assert!(combined.truth == Tristate::Yes || combined.since.is_none());
        }
    }
}

#[rstest]
#[case::same(json!({ "currentConfig": "rendered-worker-1", "desiredConfig": "rendered-worker-1" }), Tristate::No)]
#[case::another(json!({ "currentConfig": "rendered-worker-1", "desiredConfig": "rendered-worker-2" }), Tristate::Yes)]
#[case::joining(json!({ "desiredConfig": "rendered-worker-1" }), Tristate::No)]
#[case::unmanaged(json!({}), Tristate::No)]
fn differing_desired_machine_config_is_an_upgrade(#[case] configs: Value, #[case] truth: Tristate) {
    let annotations: serde_json::Map<String, Value> = configs
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, value)| (format!("machineconfiguration.openshift.io/{key}"), value.clone()))
        .collect();
    let node = cordoned(json!({ "annotations": annotations }));
    let answer = signal("{preset: machineConfig}").evaluate(&SignalInputs::default(), &node);
    assert_eq!(answer.truth, truth);
}

/// What was worked out for one node or one moment must not answer for another.
#[rstest]
#[case::node_is_read("object.spec.node == node.metadata.name", [true, false], [false, true])]
#[case::all_nodes_alike("object.spec.node == 'n1'", [true, true], [false, false])]
fn answers_follow_the_node_and_the_objects(
    #[case] when: &str,
    #[case] at_first: [bool; 2],
    #[case] after_a_change: [bool; 2],
) {
    let signal = signal(&format!(
        "{{resource: {{apiVersion: a.io/v1, kind: Plan, when: \"{when}\"}}}}"
    ));
    let kind = WatchedResource::all("a.io/v1", "Plan");
    let named = |node: &str| objects([json!({ "metadata": { "name": "p" }, "spec": { "node": node } })]);
    let nodes = ["n1", "n2"].map(|name| {
        let node = json!({ "metadata": { "name": name }, "spec": { "unschedulable": true } });
        NodeView::project(&serde_json::from_value(node).unwrap()).unwrap()
    });
    let mut inputs = inputs([(kind.clone(), named("n1"))]);
    let answers = |inputs: &SignalInputs| {
        nodes
            .each_ref()
            .map(|node| signal.evaluate(inputs, node).truth == Tristate::Yes)
    };
    assert_eq!([answers(&inputs), answers(&inputs)], [at_first; 2]);
    inputs.insert(kind, named("n2"));
    assert_eq!(answers(&inputs), after_a_change);
}

#[rstest]
#[case("openshift", &[])]
#[case("machineConfigPool", &["machineconfiguration.openshift.io/currentConfig", "machineconfiguration.openshift.io/desiredConfig"])]
#[case("{anyOf: [always, {node: {annotation: a}}, {node: {label: b}}]}", &["a"])]
#[case("{preset: talos}", &["talos.dev/cordoned"])]
#[case("{resource: {apiVersion: v1, kind: ConfigMap, when: 'true'}}", &[
    "a", "b", "talos.dev/cordoned",
    "machineconfiguration.openshift.io/currentConfig", "machineconfiguration.openshift.io/desiredConfig",
])]
fn a_signal_tells_which_annotations_of_nodes_it_reads(#[case] yaml: &str, #[case] read: &[&str]) {
    let signal = signal(yaml);
    let keys = [
        "a",
        "b",
        "talos.dev/cordoned",
        "machineconfiguration.openshift.io/currentConfig",
        "machineconfiguration.openshift.io/desiredConfig",
    ];
    let found: Vec<&str> = keys.into_iter().filter(|key| signal.reads_annotation(key)).collect();
    assert_eq!(found, read);
}
