//! What a NodeHealthCheck without a selector selects: chosen once, and written down.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use nodeward_api::label::{CONTROL_PLANE_ROLES, WORKER_ROLE};
use nodeward_core::id::NodeName;

use crate::snapshot::NodeFacts;

/// Workers; where no node of the cluster has that role, nodes without a control-plane role.
pub fn default_selector(nodes: &BTreeMap<NodeName, Arc<NodeFacts>>) -> LabelSelector {
    let has_role = |key: &str, operator: &str| LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: None,
    };
    let there_are_workers = nodes.values().any(|node| node.view.labels.get(WORKER_ROLE).is_some());
    let expressions = if there_are_workers {
        vec![has_role(WORKER_ROLE, "Exists")]
    } else {
        let roles = CONTROL_PLANE_ROLES.iter();
        roles.map(|role| has_role(role, "DoesNotExist")).collect()
    };
    LabelSelector {
        match_expressions: Some(expressions),
        match_labels: None,
    }
}
