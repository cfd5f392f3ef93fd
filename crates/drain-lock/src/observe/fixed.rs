//! A cache that no watch keeps up.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Resource;
use nodeward_api::{DisruptionHold, DrainLedger, NodeDrain};
use nodeward_runtime::Index;

use super::ClusterCache;
use super::decoded::Decoded;
use super::index_handler::{self, IndexHandler, SharedIndex};

/// Objects of a cache that no watch keeps up.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    pub nodes: Vec<Node>,
    pub pods: Vec<Pod>,
    pub budgets: Vec<PodDisruptionBudget>,
    pub volumes: Vec<PersistentVolume>,
    pub drains: Vec<NodeDrain>,
    /// The ledger, if there is one.
    pub ledger: Option<DrainLedger>,
    /// Owners' holds.
    pub holds: Vec<DisruptionHold>,
    /// Node leases.
    pub leases: Vec<Lease>,
}

impl ClusterCache {
    /// A cache that no watch keeps up: complete, and fresh. For tests, simulations, and tools that look once.
    pub fn fixed(objects: &Objects) -> Arc<Self> {
        let cache = Self {
            index: SharedIndex::default(),
            handles: Vec::new(),
            leases: None,
            remediations: None,
            machines: None,
            is_fixed: true,
        };
        cache.insert(objects);
        Arc::new(cache)
    }

    /// Adds objects to a cache that no watch keeps up, or replaces those of the same name.
    pub fn insert(&self, objects: &Objects) {
        self.change(objects, Change::Put);
    }

    /// Takes the objects of these names out of a cache that no watch keeps up.
    pub fn remove(&self, objects: &Objects) {
        self.change(objects, Change::Remove);
    }

    fn change(&self, objects: &Objects, change: Change) {
        change.all(index_handler::nodes(&self.index), &objects.nodes);
        change.all(index_handler::pods(&self.index), &objects.pods);
        change.all(index_handler::budgets(&self.index), &objects.budgets);
        change.all(index_handler::volumes(&self.index), &objects.volumes);
        change.all(index_handler::drains(&self.index), &decoded(&objects.drains));
        change.all(index_handler::ledgers(&self.index), objects.ledger.as_slice());
        change.all(index_handler::holds(&self.index), &objects.holds);
        change.all(index_handler::leases(&self.index), &objects.leases);
    }
}

/// What becomes of objects.
#[derive(Debug, Clone, Copy)]
enum Change {
    Put,
    Remove,
}

impl Change {
    fn all<K, I, V>(self, mut handler: IndexHandler<K, I, V>, objects: &[K])
    where
        K: Resource + Clone + 'static,
        I: 'static,
        V: 'static,
    {
        for object in objects {
            match self {
                Self::Put => _ = handler.applied(object.clone()),
                Self::Remove => _ = handler.deleted(object.clone()),
            }
        }
    }
}

fn decoded<K: Resource + Clone>(objects: &[K]) -> Vec<Decoded<K>> {
    objects.iter().cloned().map(Decoded::from).collect()
}
