//! Kubernetes Events: sent by a task of their own, so that telling never holds up doing.

mod deduplicator;
mod note;
mod queue;

use k8s_openapi::api::core::v1::ObjectReference;

pub use nodeward_api::reason::Severity;
pub use queue::{EventQueue, EventSink};

/// One Event. `reason`, `action` and the objects tell one kind of event from another: the same with the same note is a
/// series. Another note begins another Event, so what changes with each occurrence is better kept out of it.
#[derive(Clone, Debug, PartialEq)]
pub struct EventSpec {
    /// The object that it is about; the Event lands in its namespace, or in `default` for cluster-scoped objects.
    pub regarding: ObjectReference,
    /// A second object that it involves.
    pub related: Option<ObjectReference>,
    /// Whether somebody should look.
    pub severity: Severity,
    /// Why, in CamelCase.
    pub reason: &'static str,
    /// What was done, in CamelCase.
    pub action: &'static str,
    /// For people. Cut at 1,024 bytes, the most that the server takes.
    pub note: String,
}

pub fn node_reference(name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

pub fn budget_reference(namespace: &str, name: &str, uid: Option<&str>) -> ObjectReference {
    ObjectReference {
        api_version: Some("policy/v1".to_owned()),
        kind: Some("PodDisruptionBudget".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: uid.map(str::to_owned),
        ..ObjectReference::default()
    }
}

pub fn pod_reference(namespace: &str, name: &str, uid: Option<&str>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: uid.map(str::to_owned),
        ..ObjectReference::default()
    }
}
