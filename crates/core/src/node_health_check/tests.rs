use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn spec(patch: Value) -> Value {
    let mut spec = json!({
        "selector": {},
        "remediationTemplate": template("SelfNodeRemediationTemplate", "snr"),
    });
    for (field, value) in patch.as_object().unwrap() {
        spec[field] = value.clone();
    }
    spec
}

fn template(kind: &str, name: &str) -> Value {
    json!({ "apiVersion": "example.org/v1", "kind": kind, "namespace": "remediators", "name": name })
}

fn step(order: i64, name: &str, timeout: &str) -> Value {
    json!({ "order": order, "timeout": timeout, "remediationTemplate": template("FenceTemplate", name) })
}

fn compile(patch: Value) -> CheckSpec {
    CheckSpec::compile(&serde_json::from_value(spec(patch)).unwrap())
}

#[test]
fn defaults_are_those_of_the_document() {
    let spec = compile(json!({ "selector": null }));
    assert_eq!(spec.problems, Vec::<String>::new());
    assert_eq!(spec.selector, None);
    assert_eq!(spec.threshold, Threshold::MaxUnhealthy(Quantity::Percent(49)));
    let shown: Vec<_> = spec
        .conditions
        .iter()
        .map(|c| (&*c.type_, c.status.as_deref(), c.duration.as_secs()))
        .collect();
    assert_eq!(shown, [("Ready", Some("False"), 300), ("Ready", Some("Unknown"), 300)]);
    assert_eq!(spec.steps.len(), 1);
    assert_eq!(spec.steps[0].timeout, None);
    assert_eq!(spec.healthy_delay, HealthyDelay::None);
    assert_eq!(
        (spec.storm_cooldown, spec.backoff, spec.max_concurrent),
        (None, None, None)
    );
}

#[test]
fn machine_deletion_defaults_to_min_healthy() {
    let template = template("MachineDeletionRemediationTemplate", "mdr");
    let spec = compile(json!({ "remediationTemplate": template }));
    assert_eq!(spec.threshold, Threshold::MinHealthy(Quantity::Percent(51)));
    assert!(spec.problems.is_empty());
}

#[test]
fn steps_follow_their_order() {
    let chain = json!([step(5, "c", "90s"), step(-1, "a", "1m"), step(2, "b", "1h")]);
    let spec = compile(json!({ "remediationTemplate": null, "escalatingRemediations": chain }));
    let steps: Vec<_> = spec
        .steps
        .iter()
        .map(|step| (&*step.template.name, step.timeout.unwrap().as_secs()))
        .collect();
    assert_eq!(steps, [("a", 60), ("b", 3600), ("c", 90)]);
    assert!(spec.problems.is_empty());
}

#[rstest]
#[case::in_a_namespace(json!("n"), "ATemplate n/a")]
#[case::of_a_kind_without(json!(null), "ATemplate a")]
#[case::of_a_kind_without_in_so_many_words(json!(""), "ATemplate a")]
fn kinds_of_templates_may_have_no_namespaces(#[case] namespace: Value, #[case] expected: &str) {
    let mut template = template("ATemplate", "a");
    template["namespace"] = namespace;
    let spec = compile(json!({ "remediationTemplate": template }));
    assert_eq!(spec.problems, [""; 0]);
    assert_eq!(spec.steps[0].template.to_string(), expected);
}

#[rstest]
#[case::minus(json!("-5m"), HealthyDelay::UntilConfirmed)]
#[case::plus(json!("5m"), HealthyDelay::For(SignedDuration::from_mins(5)))]
#[case::zero(json!("0s"), HealthyDelay::None)]
#[case::nonsense_keeps_remediations(json!("soon"), HealthyDelay::UntilConfirmed)]
#[case::no_text_keeps_remediations(json!(5), HealthyDelay::UntilConfirmed)]
fn negative_healthy_delay_waits_for_a_person(#[case] delay: Value, #[case] expected: HealthyDelay) {
    assert_eq!(compile(json!({ "healthyDelay": delay })).healthy_delay, expected);
}

#[rstest]
#[case::number(json!(3), 10, 3)]
#[case::number_as_text(json!("3"), 10, 3)]
#[case::rounded_up(json!("49%"), 5, 3)]
#[case::exact(json!("50%"), 10, 5)]
#[case::of_none(json!("49%"), 0, 0)]
#[case::all(json!("100%"), 7, 7)]
fn percentages_round_up(#[case] quantity: Value, #[case] all: usize, #[case] expected: usize) {
    let min = compile(json!({ "minHealthy": quantity }));
    let max = compile(json!({ "maxUnhealthy": quantity }));
    let (Threshold::MinHealthy(min), Threshold::MaxUnhealthy(max)) = (min.threshold, max.threshold) else {
        panic!("{:?}, {:?}", min.threshold, max.threshold);
    };
    assert_eq!((min.of(all), max.of(all)), (expected, expected));
}

#[rstest]
#[case::no_template(json!({ "remediationTemplate": null }), "there is no template")]
#[case::two_ways(json!({ "escalatingRemediations": [step(1, "a", "1m")] }), "exclude each other")]
#[case::empty_chain(json!({ "remediationTemplate": null, "escalatingRemediations": [] }), "there is no template")]
#[case::order_twice(json!({ "remediationTemplate": null, "escalatingRemediations": [step(1, "a", "1m"), step(1, "b", "1m")] }), "order 1 is there twice")]
#[case::template_twice(json!({ "remediationTemplate": null, "escalatingRemediations": [step(1, "a", "1m"), step(2, "a", "1m")] }), "is there twice")]
#[case::short_timeout(json!({ "remediationTemplate": null, "escalatingRemediations": [step(1, "a", "59s")] }), "shorter than 1m")]
#[case::bad_timeout(json!({ "remediationTemplate": null, "escalatingRemediations": [step(1, "a", "soon")] }), "is not a duration")]
#[case::no_template_kind(json!({ "remediationTemplate": template("Fence", "f") }), "does not end in Template")]
#[case::bare_template_kind(json!({ "remediationTemplate": template("Template", "f") }), "does not end in Template")]
#[case::no_name(json!({ "remediationTemplate": { "apiVersion": "a/v1", "kind": "ATemplate", "namespace": "a" } }), "name is missing")]
#[case::no_conditions(json!({ "unhealthyConditions": [] }), "at least one is needed")]
#[case::bad_duration(json!({ "unhealthyConditions": [{ "type": "Ready", "status": "False", "duration": "5" }] }), "is not a duration")]
#[case::signed_duration(json!({ "unhealthyConditions": [{ "type": "Ready", "status": "False", "duration": "+5m" }] }), "is not a duration")]
#[case::negative_zero(json!({ "stormCooldownDuration": "-0s" }), "is not a duration")]
#[case::negative_duration(json!({ "unhealthyConditions": [{ "type": "Ready", "status": "False", "duration": "-5m" }] }), "is not a duration")]
#[case::conditions_of_another_shape(json!({ "unhealthyConditions": [{ "kind": "Ready" }] }), "unhealthyConditions")]
#[case::bad_selector(json!({ "selector": { "matchExpressions": [{ "key": "a", "operator": "Near" }] } }), "Near")]
#[case::selector_of_another_shape(json!({ "selector": "all" }), "selector")]
#[case::too_many_percent(json!({ "minHealthy": "101%" }), "101%")]
#[case::negative_number(json!({ "maxUnhealthy": -1 }), "-1")]
#[case::no_number(json!({ "maxUnhealthy": "some" }), "some")]
#[case::both_thresholds(json!({ "minHealthy": 1, "maxUnhealthy": 1 }), "exclude each other")]
#[case::max_unhealthy_of_machines(json!({ "maxUnhealthy": 1, "remediationTemplate": template("MachineDeletionRemediationTemplate", "m") }), "write minHealthy")]
#[case::bad_cooldown(json!({ "stormCooldownDuration": "-1m" }), "stormCooldownDuration")]
#[case::bad_healthy_delay(json!({ "healthyDelay": "1 minute" }), "healthyDelay")]
#[case::bad_backoff_type(json!({ "backoff": { "type": "linear" } }), "write exponential")]
#[case::bad_backoff_limit(json!({ "backoff": { "limit": "x" } }), "backoff: limit")]
#[case::no_concurrency(json!({ "maxConcurrentRemediations": 0 }), "at least 1")]
#[case::unreadable_dry_run(json!({ "dryRun": "yes" }), "dryRun")]
fn what_cannot_be_followed_is_told(#[case] patch: Value, #[case] expected: &str) {
    let problems = compile(patch).problems;
    assert!(
        problems.iter().any(|problem| problem.contains(expected)),
        "{problems:?}"
    );
}

#[test]
fn unreadable_conditions_judge_no_node() {
    let spec = compile(json!({ "unhealthyConditions": "all" }));
    assert!(spec.conditions.is_empty(), "not the defaults: {:?}", spec.conditions);
}

#[test]
fn empty_selector_selects_all_nodes() {
    assert_eq!(
        compile(json!({ "selector": {} })).selector,
        Some(Selector::everything())
    );
}

#[test]
fn invalid_selector_selects_no_node() {
    for selector in [json!("all"), json!({ "matchLabels": { "-": "" } })] {
        assert_eq!(
            compile(json!({ "selector": selector })).selector,
            Some(Selector::NOTHING)
        );
    }
}

#[test]
fn unreadable_duration_never_expires() {
    let conditions = json!([{ "type": "Ready", "status": "False", "duration": "soon" }]);
    assert_eq!(
        compile(json!({ "unhealthyConditions": conditions })).conditions[0].duration,
        SignedDuration::MAX
    );
}

#[test]
fn missing_stands_for_no_condition() {
    let conditions = json!([{ "type": "Ready", "status": "Missing", "duration": "1m" }]);
    assert_eq!(
        compile(json!({ "unhealthyConditions": conditions })).conditions[0].status,
        None
    );
}

#[rstest]
#[case(1, 60)]
#[case(2, 120)]
#[case(4, 480)]
#[case(5, 600)]
#[case(40, 600)]
fn backoff_doubles_up_to_its_limit(#[case] count: u32, #[case] seconds: i64) {
    let backoff = compile(json!({ "backoff": { "type": "exponential" } }))
        .backoff
        .unwrap();
    assert_eq!(backoff.delay(count).as_secs(), seconds);
}

/// Stored objects have both.
#[test]
fn single_template_may_stand_beside_an_empty_chain() {
    let spec = compile(json!({ "escalatingRemediations": [] }));
    assert_eq!((spec.problems.len(), spec.steps.len(), spec.escalates), (0, 1, false));
}
