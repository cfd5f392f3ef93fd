//! The cluster as its watches tell it, with when things changed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::DynamicObject;
use nodeward_api::NodeHealthCheck;
use nodeward_testkit::fleet;
use nodeward_testkit::remediator;
use tokio::time::{Duration, Instant};

use super::cluster::{EXCLUDED, ZONE};

/// A value, and since when it is so.
#[derive(Clone, Debug)]
pub struct Since<T> {
    value: T,
    since: Instant,
}

impl<T: PartialEq> Since<T> {
    pub fn new(value: T) -> Self {
        Self {
            value,
            since: Instant::now(),
        }
    }

    pub fn set(&mut self, value: T) {
        if self.value != value {
            *self = Self::new(value);
        }
    }

    /// It has been so for at least this long.
    pub fn has_been(&self, value: &T, span: Duration) -> bool {
        self.value == *value && self.since.elapsed() >= span
    }
}

#[derive(Clone, Debug)]
pub struct NodeView {
    pub ready: Since<bool>,
    pub excluded: Since<bool>,
    pub zone: Since<Option<String>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RemediationView {
    pub node: String,
    pub node_uid: String,
    pub template: String,
    pub kind: String,
    pub owner: String,
    pub deleting: bool,
    /// Its remediator is not at work any more: its node is not being remediated by it.
    pub over: bool,
    pub seen: Instant,
}

impl RemediationView {
    pub fn of(object: &DynamicObject) -> Self {
        let annotation = |key: &str| object.annotations().get(key).cloned().unwrap_or_default();
        let owners = object.owner_references().iter();
        let mut owner = owners
            .filter(|owner| owner.kind == "NodeHealthCheck")
            .map(|owner| owner.name.clone());
        Self {
            node: remediator::node_of(object),
            node_uid: annotation("nodeward.dev/node-uid"),
            template: annotation("remediation.medik8s.io/template-name"),
            kind: object
                .types
                .as_ref()
                .map(|types| types.kind.clone())
                .unwrap_or_default(),
            owner: owner.next().unwrap_or_default(),
            over: nodeward_core::remediation::is_over(object.annotations(), &object.data),
            deleting: object.metadata.deletion_timestamp.is_some(),
            seen: Instant::now(),
        }
    }

    /// What there may be only one of.
    pub fn step(&self) -> (&str, &str, &str, &str, &str) {
        (&self.owner, &self.node, &self.node_uid, &self.kind, &self.template)
    }
}

/// A NodeHealthCheck.
#[derive(Clone, Debug)]
pub struct CheckView {
    pub paused: Since<bool>,
    pub zone: String,
    pub max_unhealthy: Option<f64>,
    pub min_healthy: Option<f64>,
    pub max_concurrent: Option<usize>,
}

/// All of it.
#[derive(Debug, Default)]
pub struct View {
    pub nodes: BTreeMap<String, NodeView>,
    /// By UID.
    pub remediations: BTreeMap<String, RemediationView>,
    pub checks: BTreeMap<String, CheckView>,
}

impl View {
    pub fn apply_node(&mut self, node: &Node) {
        let ready = fleet::is_ready(node);
        let excluded = node.labels().get(EXCLUDED).is_some_and(|value| value == "true");
        let zone = node.labels().get(ZONE).cloned();
        let known = self.nodes.entry(node.name_any()).or_insert_with(|| NodeView {
            ready: Since::new(ready),
            excluded: Since::new(excluded),
            zone: Since::new(zone.clone()),
        });
        known.ready.set(ready);
        known.excluded.set(excluded);
        known.zone.set(zone);
    }

    pub fn apply_check(&mut self, check: &NodeHealthCheck) {
        let spec = &check.spec;
        let paused = !spec.pause_requests.is_empty();
        let known = self.checks.entry(check.name_any()).or_insert_with(|| {
            let selected = spec.selector.clone().and_then(|selector| selector.match_labels);
            CheckView {
                paused: Since::new(paused),
                zone: selected.unwrap_or_default().remove(ZONE).unwrap_or_default(),
                max_unhealthy: share(spec.max_unhealthy.as_ref()),
                min_healthy: share(spec.min_healthy.as_ref()),
                max_concurrent: spec
                    .max_concurrent_remediations
                    .and_then(|most| usize::try_from(most).ok()),
            }
        });
        known.paused.set(paused);
    }
}

/// A percentage as a share.
fn share(limit: Option<&IntOrString>) -> Option<f64> {
    let IntOrString::String(text) = limit? else { return None };
    let percent: f64 = text.strip_suffix('%')?.parse().ok()?;
    Some(percent / 100.0)
}
