//! The room that nodes have, and what else decides where a pod can go.

use std::collections::HashMap;
use std::sync::Arc;

use nodeward_core::id::{NamespacedName, NodeName};

use super::resources::Resources;
use super::scheduling::{HostPort, NodeSelector};
use super::{NodeFacts, PodFacts};

/// A node, and what its pods have taken of it.
#[derive(Debug, Clone)]
pub struct Room {
    /// The node.
    pub node: Arc<NodeFacts>,
    /// What runs on it.
    pub load: Arc<Load>,
}

/// What the pods of one node have taken; finished ones take nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Load {
    /// Sum of the requests.
    pub requests: Resources,
    /// Ports of the host in use; one that two pods share by different addresses is here twice.
    pub host_ports: Vec<HostPort>,
}

/// Everything that decides where pods can go.
#[derive(Debug, Clone, Default)]
pub struct Floor {
    /// All nodes, by name.
    pub rooms: Vec<Room>,
    /// Pods that wait for a node, the oldest first: they take room before any other.
    pub pending: Vec<Arc<PodFacts>>,
    /// The bound pods that decide by affinity, anti-affinity or spreading where pods can go.
    pub neighbours: Vec<Arc<PodFacts>>,
    /// By claim, which nodes its volume can be reached from, for volumes that say so.
    pub volumes: HashMap<NamespacedName, Arc<NodeSelector>>,
}

impl Floor {
    /// The room of a node.
    pub fn room(&self, node: &NodeName) -> Option<&Room> {
        let index = self.rooms.binary_search_by(|room| room.node.name.cmp(node)).ok()?;
        self.rooms.get(index)
    }

    /// From now on the node takes no pod.
    pub fn cordon(&mut self, node: &NodeName) {
        for room in self.rooms.iter_mut().filter(|room| room.node.name == *node) {
            Arc::make_mut(&mut room.node).view.unschedulable = true;
        }
    }

    /// What the volumes of a pod's claims ask of its node.
    pub fn volumes_of<'a>(&'a self, pod: &'a PodFacts) -> impl Iterator<Item = &'a Arc<NodeSelector>> {
        pod.claims.iter().filter_map(|claim| {
            let key = NamespacedName::new(Arc::clone(&pod.key.namespace), Arc::clone(claim));
            self.volumes.get(&key)
        })
    }
}
