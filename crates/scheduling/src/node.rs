//! A Node, with what its pods may request.

use std::ops::Deref;

use k8s_openapi::api::core::v1::Node;
use nodeward_core::intern::Pool;
use nodeward_core::node::{NodeView, UNSCHEDULABLE_TAINT};

use crate::resources::Resources;

/// A Node, with what its pods may request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// What all operators read.
    pub view: NodeView,
    /// `status.allocatable`.
    pub allocatable: Resources,
}

impl Deref for NodeFacts {
    type Target = NodeView;

    fn deref(&self) -> &NodeView {
        &self.view
    }
}

/// Taints that a node has for as long as it is drained, and away after that.
const DRAIN_TAINTS: [&str; 3] = [
    UNSCHEDULABLE_TAINT,
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

impl NodeFacts {
    /// The same once its drain is over.
    pub(crate) fn in_service(&self) -> Self {
        let mut node = self.clone();
        node.view.unschedulable = false;
        node.view.ready = true;
        let others = self.taints.iter().filter(|taint| !DRAIN_TAINTS.contains(&&*taint.key));
        node.view.taints = others.cloned().collect();
        node
    }
}

/// Projects nodes, and lets them share what they have in common.
#[derive(Debug)]
pub struct NodeProjector {
    texts: Pool<str>,
    annotations: &'static [&'static str],
}

impl NodeProjector {
    /// Keeps only these annotations.
    pub fn keeping(annotations: &'static [&'static str]) -> Self {
        Self {
            texts: Pool::default(),
            annotations,
        }
    }

    /// Projects a node; `None` without a name.
    pub fn project(&mut self, node: &Node) -> Option<NodeFacts> {
        let view = NodeView::project_sharing(node, &mut self.texts, |key| self.annotations.contains(&key))?;
        let status = node.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        Some(NodeFacts {
            view,
            allocatable: allocatable
                .map(|list| Resources::parse(list, &mut self.texts))
                .unwrap_or_default(),
        })
    }
}
