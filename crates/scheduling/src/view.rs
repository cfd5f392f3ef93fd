//! What decides where pods can go: the capacity that nodes have left, and the pods that wait for it.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_core::id::{NamespacedName, NodeName, PodKey};

use crate::placement::Placement;
use crate::requirements::{HostPort, NodeAffinity};
use crate::resources::Resources;
use crate::{NodeFacts, PodFacts};

/// A node, and what its pods have taken of it.
#[derive(Debug, Clone)]
pub struct NodeCapacity {
    pub node: Arc<NodeFacts>,
    /// What runs on it.
    pub usage: Arc<NodeUsage>,
}

/// What the pods of one node have taken; finished ones take nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeUsage {
    /// Sum of the requests.
    pub requests: Resources,
    /// Ports of the host in use; one that two pods share by different addresses is here twice.
    pub host_ports: Vec<HostPort>,
}

impl NodeUsage {
    /// Adds what a pod takes.
    pub fn add(&mut self, pod: &PodFacts) {
        self.requests += &pod.requirements.requests;
        self.host_ports.extend(pod.requirements.host_ports.iter().cloned());
    }

    /// Takes away what a pod took.
    pub fn remove(&mut self, pod: &PodFacts) {
        self.requests.take_away(&pod.requirements.requests);
        for port in &pod.requirements.host_ports {
            if let Some(index) = self.host_ports.iter().position(|used| used == port) {
                self.host_ports.swap_remove(index);
            }
        }
    }
}

/// Everything that decides where pods can go.
#[derive(Debug, Clone, Default)]
pub struct SchedulingView {
    /// All nodes, by name.
    pub nodes: Vec<NodeCapacity>,
    /// Pods that wait for a node, the oldest first: they take room before any other.
    pub pending: Vec<Arc<PodFacts>>,
    /// The bound pods that decide by affinity, anti-affinity or spreading where pods can go.
    pub neighbours: Vec<Arc<PodFacts>>,
    /// By claim, which nodes its volume can be reached from, for volumes that say so.
    pub volumes: HashMap<NamespacedName, Arc<NodeAffinity>>,
}

impl SchedulingView {
    pub(crate) fn node(&self, name: &NodeName) -> Option<&NodeCapacity> {
        let index = self.nodes.binary_search_by(|node| node.node.name.cmp(name)).ok()?;
        self.nodes.get(index)
    }

    /// From now on the node takes no pod.
    pub fn cordon(&mut self, name: &NodeName) {
        if let Ok(index) = self.nodes.binary_search_by(|node| node.node.name.cmp(name))
            && let Some(capacity) = self.nodes.get_mut(index)
        {
            Arc::make_mut(&mut capacity.node).view.unschedulable = true;
        }
    }

    /// What the volumes of a pod's claims ask of its node.
    pub fn volumes_of<'a>(&'a self, pod: &'a PodFacts) -> impl Iterator<Item = &'a Arc<NodeAffinity>> {
        pod.claims.iter().filter_map(|claim| {
            let key = NamespacedName::new(Arc::clone(&pod.key.namespace), Arc::clone(claim));
            self.volumes.get(&key)
        })
    }

    /// The first pod that finds a place now, and would find none if `node` were cordoned: of the pods that wait for a node
    /// since `since`, and of each of `leaving`, the movable pods of one draining node. Those of one node share the places
    /// that there are; each node is looked at by itself. Where nothing leaves, nothing is stranded.
    ///
    /// A cordon of ours never takes the last room that a movable pod of another draining node finds, nor what has come to
    /// replace it.
    pub fn stranded_by_cordon<'a>(
        &self,
        node: &NodeName,
        leaving: impl IntoIterator<Item = &'a [Arc<PodFacts>]>,
        since: Timestamp,
    ) -> Option<PodKey> {
        let leaving: Vec<&[Arc<PodFacts>]> = leaving.into_iter().collect();
        let mut pending = self.pending.iter().filter(|pod| since <= pod.created).peekable();
        if leaving.is_empty() || (pending.peek().is_none() && leaving.iter().all(|pods| pods.is_empty())) {
            return None;
        }
        let mut cordoned = self.clone();
        cordoned.cordon(node);
        let (now, then) = (Placement::new(self), Placement::new(&cordoned));
        let stranded = pending.find(|pod| now.finds_a_node(pod) && !then.finds_a_node(pod));
        let stranded = stranded.or_else(|| {
            leaving.into_iter().find_map(|pods| {
                let (mut now, mut then) = (now.clone(), then.clone());
                pods.iter().find(|pod| {
                    let from = pod.node.as_ref();
                    now.place(pod, from).is_ok() && then.place(pod, from).is_err()
                })
            })
        });
        stranded.map(|pod| pod.key.clone())
    }
}
