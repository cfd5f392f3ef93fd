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
