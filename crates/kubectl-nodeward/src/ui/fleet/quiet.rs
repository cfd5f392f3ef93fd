//! Nodes that are kept small, and what was made of those of which nothing is told but what they are: of fifteen thousand
//! nodes few change at a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use nodeward_api::node_health_check::NodeHealthCheckSpec;

use super::node::FleetNode;
use super::node_group::NodeGroup;
use super::{Inputs, Judge};

/// A node as it is stored: as text, which takes a quarter of what its maps and lists take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredNode(Box<str>);

impl StoredNode {
    /// `None` for one that cannot be written, which no node is.
    pub fn of(node: &Node) -> Option<Self> {
        Some(Self(serde_json::to_string(node).ok()?.into()))
    }

    pub fn read(&self) -> Option<Node> {
        serde_json::from_str(&self.0).ok()
    }
}

/// What was made of nodes without a drain that no NodeHealthCheck has anything against: it rests on the node alone.
#[derive(Debug, Default)]
pub struct Quiet {
    specs: Vec<NodeHealthCheckSpec>,
    node_groups: Vec<NodeGroup>,
    nodes: HashMap<Arc<str>, (Arc<StoredNode>, Arc<FleetNode>)>,
}

impl Quiet {
    /// Forgets what rested on other NodeHealthChecks or node groups, and nodes that are gone.
    pub(super) fn prepare(&mut self, inputs: &Inputs) {
        let specs: Vec<&NodeHealthCheckSpec> = inputs.checks.iter().map(|check| &check.spec).collect();
        if !self.specs.iter().eq(specs.iter().copied()) || self.node_groups != inputs.node_groups {
            self.nodes.clear();
            self.specs = specs.into_iter().cloned().collect();
            self.node_groups.clone_from(&inputs.node_groups);
        }
        if self.nodes.len() > inputs.nodes.len() {
            let names: HashSet<&str> = inputs.nodes.keys().map(|key| &*key.name).collect();
            self.nodes.retain(|name, _| names.contains(&**name));
        }
    }

    /// What was made of this very node, unless a NodeHealthCheck names it by now.
    pub(super) fn known(&self, name: &str, node: &Arc<StoredNode>, judges: &[Judge<'_>]) -> Option<Arc<FleetNode>> {
        let (stored, made) = self.nodes.get(name)?;
        let is_same = Arc::ptr_eq(stored, node) && !judges.iter().any(|judge| judge.names_node(name));
        is_same.then(|| Arc::clone(made))
    }

    pub(super) fn keep(&mut self, name: &Arc<str>, node: &Arc<StoredNode>, made: &Arc<FleetNode>) {
        self.nodes
            .insert(Arc::clone(name), (Arc::clone(node), Arc::clone(made)));
    }
}
