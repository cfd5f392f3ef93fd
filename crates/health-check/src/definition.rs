//! The definition of NodeHealthChecks that is installed. It may be that of medik8s or of another version: the API server drops
//! what its schema does not know, without a word to whoever has written it.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, CustomResourceExt};
use nodeward_api::NodeHealthCheck;
use nodeward_runtime::{Cache, Selection, Watches};
use serde_json::Value;

/// Fields, each as a path such as `spec.dryRun`; an element of a list is `[]`.
pub type Fields = BTreeSet<String>;

/// Watches the definition.
pub struct Definition {
    cache: Cache<Fields>,
}

impl Definition {
    /// Opens the watch.
    pub fn open(watches: &Watches, client: Client) -> Self {
        let definitions: Api<CustomResourceDefinition> = Api::all(client);
        let selection = Selection::all().named(NodeHealthCheck::crd_name());
        Self {
            cache: watches.cache("definition of nodehealthchecks", definitions, selection, |definition| {
                Some(dropped_fields(&definition))
            }),
        }
    }

    /// The fields that the API server drops; `None`: that is not known.
    pub fn dropped_fields(&self) -> Option<Fields> {
        let content = self.cache.snapshot();
        content.values().next().map(|fields| (**fields).clone())
    }
}

/// The fields of our schema that the installed one lacks.
fn dropped_fields(installed: &CustomResourceDefinition) -> Fields {
    let mut dropped = Fields::new();
    let ours = schema(&NodeHealthCheck::crd());
    let installed = schema(installed);
    for part in ["spec", "status"] {
        compare(
            part,
            &ours["properties"][part],
            &installed["properties"][part],
            &mut dropped,
        );
    }
    dropped
}

fn schema(definition: &CustomResourceDefinition) -> Value {
    let version = <NodeHealthCheck as kube::Resource>::version(&());
    let mut versions = definition.spec.versions.iter();
    let served = versions.find(|known| known.name == version);
    let schema = served.and_then(|served| served.schema.as_ref()?.open_api_v3_schema.as_ref());
    serde_json::to_value(schema).unwrap_or_default()
}

fn compare(path: &str, ours: &Value, installed: &Value, dropped: &mut Fields) {
    let keeps_all = installed["x-kubernetes-preserve-unknown-fields"] == true;
    if keeps_all || !installed["additionalProperties"].is_null() {
        return;
    }
    for (name, ours) in ours["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match installed["properties"].get(name) {
            Some(installed) => compare(&path, ours, installed, dropped),
            None => drop(dropped.insert(path)),
        }
    }
    if !ours["items"].is_null() {
        compare(&format!("{path}[]"), &ours["items"], &installed["items"], dropped);
    }
}

#[cfg(test)]
mod tests;
