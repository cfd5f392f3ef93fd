//! A cache that no watch keeps up.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Resource;
use nodeward_api::{DisruptionHold, DrainLedger, NodeDrain};

use super::super::decoded::Decoded;
use super::super::index_handler::{self, IndexHandler, SharedIndex};
use crate::observe::ClusterCache;

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
    /// A cache that no watch keeps up: complete, and fresh. For tests, and for tools that look once.
    pub fn fixed(objects: &Objects) -> Arc<Self> {
        let cache = Self {
            index: SharedIndex::default(),
            handles: Vec::new(),
            leases: None,
            remediations: None,
            is_fixed: true,
        };
        cache.insert(objects);
        Arc::new(cache)
    }

    /// Adds objects to a cache that no watch keeps up, or replaces those of the same name.
    pub fn insert(&self, objects: &Objects) {
        put_all(index_handler::nodes(&self.index), &objects.nodes);
        put_all(index_handler::pods(&self.index), &objects.pods);
        put_all(index_handler::budgets(&self.index), &objects.budgets);
        put_all(index_handler::volumes(&self.index), &objects.volumes);
        put_all(index_handler::drains(&self.index), &decoded(&objects.drains));
        put_all(index_handler::ledgers(&self.index), &decoded(objects.ledger.as_slice()));
        put_all(index_handler::holds(&self.index), &objects.holds);
        put_all(index_handler::leases(&self.index), &objects.leases);
    }
}

fn decoded<K: Resource + Clone>(objects: &[K]) -> Vec<Decoded<K>> {
    objects.iter().cloned().map(Decoded::from).collect()
}

fn put_all<K: Resource, I, V>(mut handler: IndexHandler<K, I, V>, objects: &[K]) {
    for object in objects {
        handler.put(object);
    }
}
