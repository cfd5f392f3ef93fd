//! What decides where pods can go: the capacity that nodes have left, and the pods that wait for it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use nodeward_core::id::{NamespacedName, NodeName};

use crate::neighbours::BoundPods;
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
    pub neighbours: BoundPods,
    /// By claim, which nodes its volume can be reached from, for volumes that say so.
    pub volumes: HashMap<NamespacedName, Arc<NodeAffinity>>,
}

impl SchedulingView {
    /// The same, if these nodes were in service, and without the pods that wait for a node.
    #[must_use]
    pub fn with_in_service(&self, names: &BTreeSet<NodeName>) -> Self {
        let mut view = Self {
            pending: Vec::new(),
            ..self.clone()
        };
        for capacity in view
            .nodes
            .iter_mut()
            .filter(|capacity| names.contains(&capacity.node.name))
        {
            capacity.node = Arc::new(capacity.node.in_service());
        }
        view
    }

    /// What the volumes of a pod's claims ask of its node.
    pub fn volumes_of<'a>(&'a self, pod: &'a PodFacts) -> impl Iterator<Item = &'a Arc<NodeAffinity>> {
        pod.claims.iter().filter_map(|claim| {
            let key = NamespacedName::new(Arc::clone(&pod.key.namespace), Arc::clone(claim));
            self.volumes.get(&key)
        })
    }
}
