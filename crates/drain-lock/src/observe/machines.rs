//! The nodes' Machines, watched, and the rules by which Cluster API drains them: it takes the node of a Machine that is being
//! deleted away for good. Both are seen where Cluster API manages the cluster that it runs in; of a workload cluster they are
//! elsewhere.

use std::sync::Arc;

use jiff::Timestamp;
use kube::core::DynamicObject;
use nodeward_core::signal::{DrainRules, Preset, SignalInputs, UpgradeSignal, WatchedResource};
use nodeward_runtime::{DynamicWatches, KindRegistry, NamespacedName, Watches};
use serde_json::Value;

use crate::snapshot::NodeFacts;

/// On a Node, by Cluster API: the name of its Machine.
pub(super) const MACHINE: &str = "cluster.x-k8s.io/machine";

/// On a Node, by Cluster API: the namespace of its Machine.
pub(super) const CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";

/// The kind of a Machine.
const KIND: &str = "Machine";

/// The Machines, and what their drains go by.
pub(super) struct Machines {
    signal: UpgradeSignal,
    watches: DynamicWatches<Value>,
}

impl Machines {
    pub(super) fn watch(watches: &Watches, kinds: &KindRegistry) -> Self {
        let signal = UpgradeSignal::preset(Preset::ClusterApi);
        let wanted = signal.kinds_with_drain_rules();
        let fields = wanted.clone();
        let project = move |kind: &WatchedResource, mut object: DynamicObject| {
            object.metadata.managed_fields = None;
            Some(fields.get(kind)?.keep(serde_json::to_value(object).ok()?))
        };
        let mut watches = DynamicWatches::new("machines", watches, kinds, project);
        watches.follow(wanted.into_keys().collect());
        Self { signal, watches }
    }

    /// Until when the first lists are waited for, if they are still to come.
    pub(super) fn waits_until(&self) -> Option<Timestamp> {
        self.watches.waits_until()
    }

    /// Whether the node's Machine is being deleted; false where Machines cannot be read.
    pub(super) fn is_being_deleted(&self, node: &NodeFacts) -> bool {
        let is_deleted = |machine: Arc<Value>| machine.pointer("/metadata/deletionTimestamp").is_some();
        let of_kind = self.watches.iter().filter(|(kind, _)| kind.kind == KIND);
        machine_of(node).is_some_and(|key| of_kind.filter_map(|(_, cache)| cache.get(&key)).any(is_deleted))
    }

    /// The rules for the node's pods, if it has a Machine.
    pub(super) fn drain_rules(&self, node: &NodeFacts) -> Option<DrainRules> {
        let machine = machine_of(node)?;
        let mut inputs = SignalInputs::default();
        for (kind, cache) in self.watches.iter() {
            let objects = || match kind.kind.as_str() {
                // There is one for each node.
                KIND => cache.get(&machine).into_iter().collect(),
                _ => cache.snapshot().values().cloned().collect(),
            };
            inputs.insert(kind.clone(), cache.state().map(|()| objects()));
        }
        Some(self.signal.drain_rules(&inputs, node))
    }
}

/// The Machine that a node says is its own.
fn machine_of(node: &NodeFacts) -> Option<NamespacedName> {
    let annotation = |key: &str| node.annotations.get(key).map(String::as_str);
    let (namespace, name) = annotation(CLUSTER_NAMESPACE).zip(annotation(MACHINE))?;
    Some(NamespacedName::new(namespace, name))
}
