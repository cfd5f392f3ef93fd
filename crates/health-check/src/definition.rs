//! The definition of NodeHealthChecks that is installed. It may be that of medik8s or of another version: the API server drops
//! what its schema does not know, without a word to whoever has written it.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, CustomResourceExt};
use nodeward_api::NodeHealthCheck;
use nodeward_api::node_health_check::NodeHealthCheckStatus;
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

/// What the API server stores of a status, as its answers have shown. Without that a status with a field that is dropped would
/// be written for ever.
#[derive(Debug, Default)]
pub struct StoredStatus {
    dropped: Fields,
}

impl StoredStatus {
    /// This was written, and this was stored.
    pub fn learn(&mut self, written: &NodeHealthCheckStatus, stored: &NodeHealthCheckStatus) {
        learn("", &comparable(written), &comparable(stored), &mut self.dropped);
    }

    /// Another definition may store more.
    pub fn forget(&mut self) {
        self.dropped.clear();
    }

    /// Whether writing it would change nothing of what is stored.
    pub fn is_futile(&self, wanted: &NodeHealthCheckStatus, stored: &NodeHealthCheckStatus) -> bool {
        if self.dropped.is_empty() {
            return false;
        }
        let mut wanted = comparable(wanted);
        remove("", &mut wanted, &self.dropped);
        wanted == comparable(stored)
    }
}

/// Without its time, which differs with each write.
fn comparable(status: &NodeHealthCheckStatus) -> Value {
    let mut value = serde_json::to_value(status).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("lastUpdateTime");
    }
    value
}

fn learn(path: &str, written: &Value, stored: &Value, dropped: &mut Fields) {
    match (written, stored) {
        (Value::Object(written), Value::Object(stored)) => {
            for (name, written) in written {
                let path = format!("{path}.{name}");
                match stored.get(name) {
                    Some(stored) => {
                        dropped.remove(&path);
                        learn(&path, written, stored, dropped);
                    }
                    None => drop(dropped.insert(path)),
                }
            }
        }
        (Value::Array(written), Value::Array(stored)) => {
            for (written, stored) in written.iter().zip(stored) {
                learn(&format!("{path}[]"), written, stored, dropped);
            }
        }
        _ => {}
    }
}

fn remove(path: &str, value: &mut Value, dropped: &Fields) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !dropped.contains(&format!("{path}.{name}")));
            for (name, value) in fields {
                remove(&format!("{path}.{name}"), value, dropped);
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| remove(&format!("{path}[]"), item, dropped)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
