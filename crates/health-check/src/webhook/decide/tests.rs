use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::snapshot::TemplateFacts;

fn template(kind: &str, name: &str) -> Value {
    json!({ "apiVersion": "a/v1", "kind": kind, "namespace": "n", "name": name })
}

fn step(order: i64, template: Value) -> Value {
    json!({ "order": order, "timeout": "5m", "remediationTemplate": template })
}

/// A NodeHealthCheck that is in order, with these fields of its spec changed, and these nodes remediated.
fn check(fields: Value, remediated: &[&str]) -> NodeHealthCheck {
    let mut spec = json!({
        "selector": { "matchLabels": { "role": "worker" } },
        "remediationTemplate": template("FenceTemplate", "f"),
    });
    for (field, value) in fields.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let nodes: Vec<Value> = remediated
        .iter()
        .map(|node| json!({ "name": node, "remediations": [{ "resource": { "name": node }, "started": "2026-01-01T00:00:00Z" }] }))
        .collect();
    let check = json!({ "metadata": { "name": "c" }, "spec": spec, "status": { "unhealthyNodes": nodes } });
    serde_json::from_value(check).unwrap()
}

fn found(supports_multiple: bool, spec: Option<Value>) -> TemplateState {
    TemplateState::Found(
        TemplateFacts {
            spec,
            supports_multiple,
        }
        .into(),
    )
}

fn in_order() -> TemplateState {
    found(true, Some(json!({})))
}

/// Every template is in this state.
fn all(change: Change<'_>, state: &TemplateState) -> Templates {
    named_templates(change)
        .into_iter()
        .map(|template| (template, state.clone()))
        .collect()
}

fn create(check: &NodeHealthCheck, state: &TemplateState) -> Decision {
    let change = Change {
        old: None,
        new: Some(check),
    };
    decide(change, &all(change, state), &BTreeSet::new())
}

fn update(old: &NodeHealthCheck, new: &NodeHealthCheck, state: &TemplateState) -> Decision {
    let change = Change {
        old: Some(old),
        new: Some(new),
    };
    decide(change, &all(change, state), &nodes_of(change))
}

/// All that may run does.
fn nodes_of(change: Change<'_>) -> BTreeSet<String> {
    open_records(change).into_iter().map(|record| record.node).collect()
}

fn delete(check: &NodeHealthCheck) -> Decision {
    let change = Change {
        old: Some(check),
        new: None,
    };
    decide(change, &Templates::new(), &nodes_of(change))
}

fn is_refused(decision: &Decision, expected: &str) {
    assert!(
        decision.refusals.iter().any(|refusal| refusal.contains(expected)),
        "{expected}: {decision:?}"
    );
}

#[test]
fn check_in_order_is_admitted_silently() {
    assert_eq!(create(&check(json!({}), &[]), &in_order()), Decision::default());
}

#[rstest]
#[case::duration(json!({ "stormCooldownDuration": "soon" }), "spec.stormCooldownDuration")]
#[case::selector(json!({ "selector": { "matchExpressions": [{ "key": "a", "operator": "Near" }] } }), "spec.selector")]
#[case::percentage(json!({ "minHealthy": "101%" }), "spec.minHealthy")]
#[case::two_ways(json!({ "escalatingRemediations": [step(1, template("FenceTemplate", "f"))] }), "remove one")]
fn create_is_refused_for_what_the_operator_could_not_follow(#[case] fields: Value, #[case] expected: &str) {
    is_refused(&create(&check(fields, &[]), &in_order()), expected);
}

#[test]
fn every_problem_is_told_at_once() {
    let wrong = check(json!({ "healthyDelay": "soon", "stormCooldownDuration": "soon" }), &[]);
    assert_eq!(create(&wrong, &in_order()).refusals.len(), 2);
}

#[test]
fn create_is_refused_with_a_template_that_cannot_be_used() {
    is_refused(
        &create(&check(json!({}), &[]), &found(true, None)),
        "no spec.template.spec",
    );
}

/// medik8s admits it, and so must whatever takes its place.
#[rstest]
#[case::absent(
    TemplateState::NotFound,
    "FenceTemplate n/f does not exist: create it, or correct its namespace"
)]
#[case::kind_absent(TemplateState::KindAbsent, "install the remediator")]
fn missing_template_is_admitted_with_a_warning(#[case] state: TemplateState, #[case] expected: &str) {
    let decision = create(&check(json!({}), &[]), &state);
    assert_eq!(decision.refusals, Vec::<String>::new());
    assert!(
        decision.warnings.iter().any(|warning| warning.contains(expected)),
        "{decision:?}"
    );
}

#[rstest]
#[case::not_read(TemplateState::Unknown)]
#[case::forbidden(TemplateState::Forbidden("no".to_owned()))]
fn template_that_cannot_be_read_is_a_warning(#[case] state: TemplateState) {
    let decision = create(&check(json!({}), &[]), &state);
    assert_eq!(decision.refusals, Vec::<String>::new());
    assert_eq!(decision.warnings.len(), 1);
}

#[rstest]
#[case::both_support_it(true, 0)]
#[case::neither_supports_it(false, 2)]
fn templates_of_one_kind_need_the_remediators_support(#[case] supports_multiple: bool, #[case] refusals: usize) {
    let steps = [
        step(1, template("FenceTemplate", "f")),
        step(2, template("FenceTemplate", "g")),
    ];
    let chain = check(
        json!({ "remediationTemplate": null, "escalatingRemediations": steps }),
        &[],
    );
    let decision = create(&chain, &found(supports_multiple, Some(json!({}))));
    assert_eq!(decision.refusals.len(), refusals, "{decision:?}");
}

#[test]
fn metal3_is_refused_outside_its_namespace() {
    let metal3 = check(
        json!({ "remediationTemplate": template("Metal3RemediationTemplate", "m") }),
        &[],
    );
    is_refused(&create(&metal3, &in_order()), "openshift-machine-api");
}

#[test]
fn empty_selector_is_admitted_with_a_warning() {
    let all_nodes = check(json!({ "selector": {} }), &[]);
    let decision = create(&all_nodes, &in_order());
    assert_eq!((decision.refusals.len(), decision.warnings.len()), (0, 1));
    let changed = check(json!({ "selector": {}, "dryRun": true }), &[]);
    assert_eq!(
        update(&all_nodes, &changed, &in_order()),
        Decision::default(),
        "told once"
    );
}

#[rstest]
#[case::stored_before_a_rule(json!({ "minHealthy": 1, "maxUnhealthy": 1 }))]
#[case::without_conditions(json!({ "unhealthyConditions": [] }))]
#[case::without_template(json!({ "remediationTemplate": null }))]
fn pause_is_never_refused(#[case] fields: Value) {
    let old = check(fields.clone(), &["n1"]);
    let mut new = check(fields, &["n1"]);
    new.spec.pause_requests = vec!["maintenance".to_owned()];
    assert_eq!(update(&old, &new, &TemplateState::NotFound), Decision::default());
}

#[test]
fn update_is_refused_for_what_it_makes_worse() {
    let old = check(json!({ "minHealthy": 1, "maxUnhealthy": 1 }), &[]);
    let new = check(
        json!({ "minHealthy": 1, "maxUnhealthy": 1, "healthyDelay": "soon" }),
        &[],
    );
    let decision = update(&old, &new, &in_order());
    assert_eq!(decision.refusals.len(), 1);
    is_refused(&decision, "spec.healthyDelay");
}

#[test]
fn update_looks_at_changed_templates_alone() {
    let old = check(json!({}), &[]);
    let slower = check(json!({ "healthyDelay": "1m" }), &[]);
    assert_eq!(update(&old, &slower, &TemplateState::NotFound), Decision::default());
    let other = check(json!({ "remediationTemplate": template("FenceTemplate", "g") }), &[]);
    assert_eq!(update(&old, &other, &TemplateState::NotFound).warnings.len(), 1);
    is_refused(&update(&old, &other, &found(true, None)), "no spec.template.spec");
}

#[rstest]
#[case::selector(json!({ "selector": { "matchLabels": { "role": "infra" } } }), "spec.selector")]
#[case::no_selector(json!({ "selector": null }), "spec.selector")]
#[case::template(json!({ "remediationTemplate": template("FenceTemplate", "g") }), "spec.remediationTemplate")]
#[case::chain(
    json!({ "remediationTemplate": null, "escalatingRemediations": [step(1, template("FenceTemplate", "f"))] }),
    "spec.escalatingRemediations"
)]
fn what_a_running_remediation_rests_on_cannot_change(#[case] fields: Value, #[case] expected: &str) {
    let running = check(json!({}), &["n1"]);
    let decision = update(&running, &check(fields.clone(), &[]), &in_order());
    is_refused(&decision, expected);
    is_refused(&decision, "node n1 is being remediated");
    is_refused(&decision, "pauseRequests");
    let at_rest = check(json!({}), &[]);
    assert_eq!(
        update(&at_rest, &check(fields, &[]), &in_order()).refusals,
        Vec::<String>::new()
    );
}

#[rstest]
#[case::thresholds(json!({ "minHealthy": "60%" }))]
#[case::durations(json!({ "unhealthyConditions": [
    { "type": "Ready", "status": "Unknown", "duration": "10m" }, { "type": "Ready", "status": "False", "duration": "10m" },
] }))]
#[case::delay(json!({ "healthyDelay": "1m" }))]
fn other_fields_change_while_a_remediation_runs(#[case] fields: Value) {
    let decision = update(&check(json!({}), &["n1"]), &check(fields, &[]), &in_order());
    assert_eq!(decision, Decision::default());
}

/// It may be meant: the condition was wrong.
#[rstest]
#[case::remediated(&["n1"], &["Ready=False"])]
#[case::at_rest(&[], &[])]
fn condition_that_is_dropped_may_end_a_remediation(#[case] nodes: &[&str], #[case] named: &[&str]) {
    let left = json!({ "unhealthyConditions": [{ "type": "Ready", "status": "Unknown", "duration": "300s" }] });
    let decision = update(&check(json!({}), nodes), &check(left, &[]), &in_order());
    assert_eq!(decision.refusals, Vec::<String>::new());
    assert_eq!(decision.warnings.len(), named.len(), "{decision:?}");
    for (warning, condition) in decision.warnings.iter().zip(named) {
        assert!(
            warning.contains("node n1 is being remediated") && warning.contains(condition),
            "{warning}"
        );
    }
}

#[test]
fn resolved_selector_is_no_change() {
    let decision = update(
        &check(json!({ "selector": null }), &["n1"]),
        &check(json!({}), &[]),
        &in_order(),
    );
    assert_eq!(decision, Decision::default());
}

#[test]
fn delete_is_refused_while_a_remediation_runs() {
    let running = check(json!({}), &["n1", "n2", "n3", "n4", "n5"]);
    let decision = delete(&running);
    is_refused(&decision, "nodes n1, n2, n3 and 2 more are being remediated");
    let at_rest = check(json!({}), &[]);
    assert_eq!(delete(&at_rest), Decision::default());
}

/// What has been done is not asked for again.
#[rstest]
#[case::at_first(json!({}), "add a line to spec.pauseRequests, delete the remediations")]
#[case::once_paused(json!({ "pauseRequests": ["by hand"] }), "or delete the remediations")]
fn refusal_says_what_is_left_to_do(#[case] fields: Value, #[case] advice: &str) {
    is_refused(&delete(&check(fields, &["n1"])), advice);
}

#[test]
fn unhealthy_node_without_remediation_blocks_nothing() {
    let mut waiting = check(json!({}), &["n1"]);
    waiting.status.as_mut().unwrap().unhealthy_nodes[0].remediations.clear();
    assert_eq!(delete(&waiting), Decision::default());
}

/// A step that is over runs no more, and of what is gone the API server tells.
#[test]
fn only_remediations_that_are_not_over_are_asked_for() {
    let mut old = check(json!({}), &["n1", "n2"]);
    old.status.as_mut().unwrap().unhealthy_nodes[0].remediations[0].timed_out = Some(Timestamp::UNIX_EPOCH);
    let asked = |change| {
        open_records(change)
            .into_iter()
            .map(|record| record.node)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        asked(Change {
            old: Some(&old),
            new: None
        }),
        ["n2"]
    );
    let slower = check(json!({ "healthyDelay": "1m" }), &[]);
    assert_eq!(
        asked(Change {
            old: Some(&old),
            new: Some(&slower)
        }),
        [""; 0]
    );
    assert_eq!(
        decide(
            Change {
                old: Some(&old),
                new: None
            },
            &Templates::new(),
            &BTreeSet::new()
        ),
        Decision::default()
    );
}
