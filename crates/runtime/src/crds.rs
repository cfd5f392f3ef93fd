//! What `<binary> crds` prints: the CustomResourceDefinitions that a component serves.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// One YAML document for each, in the order given; what there is no value for is left out.
///
/// # Errors
/// When a definition cannot be written as YAML.
pub fn yaml(definitions: &[CustomResourceDefinition]) -> Result<String, serde_yaml::Error> {
    definitions
        .iter()
        .map(|definition| Ok(format!("---\n{}", serde_yaml::to_string(definition)?)))
        .collect()
}
