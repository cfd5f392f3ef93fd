use rstest::rstest;
use serde_json::json;

use super::*;

fn fields(paths: &[&str]) -> Fields {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

fn definition_without(paths: &[&str]) -> CustomResourceDefinition {
    let mut definition = serde_json::to_value(NodeHealthCheck::crd()).unwrap();
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties";
    for path in paths {
        let (parent, name) = path.rsplit_once('/').unwrap();
        let parent = definition
            .pointer_mut(&format!("{schema}/{parent}/properties"))
            .unwrap();
        parent.as_object_mut().unwrap().remove(name).unwrap();
    }
    serde_json::from_value(definition).unwrap()
}

#[test]
fn our_own_definition_drops_nothing() {
    assert_eq!(dropped_fields(&NodeHealthCheck::crd()), Fields::new());
}

#[test]
fn fields_that_another_definition_lacks_are_dropped() {
    let definition = definition_without(&[
        "spec/dryRun",
        "spec/backoff",
        "status/observedGeneration",
        "status/properties/unhealthyNodes/items/healthyDelayed",
    ]);
    assert_eq!(
        dropped_fields(&definition),
        fields(&[
            "spec.backoff",
            "spec.dryRun",
            "status.observedGeneration",
            "status.unhealthyNodes[].healthyDelayed",
        ])
    );
}

#[test]
fn definition_that_preserves_unknown_fields_drops_nothing() {
    let mut definition = serde_json::to_value(definition_without(&["spec/dryRun"])).unwrap();
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    definition.pointer_mut(spec).unwrap()["x-kubernetes-preserve-unknown-fields"] = json!(true);
    assert_eq!(
        dropped_fields(&serde_json::from_value(definition).unwrap()),
        Fields::new()
    );
}

#[test]
fn definition_of_another_version_alone_drops_everything() {
    let mut definition = NodeHealthCheck::crd();
    definition.spec.versions[0].name = "v1".to_owned();
    assert!(dropped_fields(&definition).contains("spec.dryRun"));
}

fn status(changes: Value) -> NodeHealthCheckStatus {
    let mut status = json!({
        "observedNodes": 2, "healthyNodes": 1, "phase": "Enabled", "observedGeneration": 1,
        "lastUpdateTime": "2026-01-01T00:00:00Z",
        "unhealthyNodes": [{ "name": "n1", "healthyDelayed": true }],
    });
    for (key, value) in changes.as_object().unwrap() {
        status[key] = value.clone();
    }
    serde_json::from_value(status).unwrap()
}

#[rstest]
#[case::same(json!({}), true)]
#[case::other_time(json!({ "lastUpdateTime": "2026-01-01T00:00:09Z" }), true)]
#[case::dropped_field_alone(json!({ "observedGeneration": 7 }), true)]
#[case::dropped_field_of_an_element(json!({ "unhealthyNodes": [{ "name": "n1", "healthyDelayed": false }] }), true)]
#[case::kept_field(json!({ "healthyNodes": 2 }), false)]
#[case::kept_and_dropped_field(json!({ "healthyNodes": 2, "observedGeneration": 7 }), false)]
#[case::another_element(json!({ "unhealthyNodes": [{ "name": "n1" }, { "name": "n2" }] }), false)]
fn status_is_not_written_again_for_dropped_fields(#[case] wanted: Value, #[case] is_futile: bool) {
    let mut learned = StoredStatus::default();
    let stored = status(json!({ "observedGeneration": null, "unhealthyNodes": [{ "name": "n1" }] }));
    learned.learn(&status(json!({})), &stored);
    assert_eq!(learned.is_futile(&status(wanted), &stored), is_futile);
}

#[test]
fn status_is_written_again_under_another_definition() {
    let mut learned = StoredStatus::default();
    let stored = status(json!({ "observedGeneration": null }));
    learned.learn(&status(json!({})), &stored);
    assert!(learned.is_futile(&status(json!({})), &stored));
    // One that stores the field shows it with its first answer.
    learned.learn(&status(json!({})), &status(json!({})));
    assert!(!learned.is_futile(&status(json!({})), &stored));
    learned.learn(&status(json!({})), &stored);
    learned.forget();
    assert!(!learned.is_futile(&status(json!({})), &stored));
}
