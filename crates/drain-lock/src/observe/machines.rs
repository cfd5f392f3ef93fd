//! Which nodes' Machines are being deleted, watched: Cluster API then drains the node, and takes it away for good. Machines are seen
//! where Cluster API manages the cluster that it runs in; of a workload cluster they are elsewhere.

use kube::core::DynamicObject;
use nodeward_core::signal::WatchedResource;
use nodeward_runtime::{DynamicWatches, KindRegistry, NamespacedName, Watches};

use crate::snapshot::NodeFacts;

/// On a Node, by Cluster API: the name of its Machine.
pub(super) const MACHINE: &str = "cluster.x-k8s.io/machine";

/// On a Node, by Cluster API: the namespace of its Machine.
pub(super) const CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";

/// Older and newer installations serve one of these alone.
const API_VERSIONS: [&str; 2] = ["cluster.x-k8s.io/v1beta1", "cluster.x-k8s.io/v1beta2"];

/// The Machines that are being deleted.
pub(super) struct Machines(DynamicWatches<()>);

impl Machines {
    pub(super) fn watch(watches: &Watches, kinds: &KindRegistry) -> Self {
        let is_being_deleted =
            |_: &WatchedResource, machine: DynamicObject| machine.metadata.deletion_timestamp.is_some().then_some(());
        let mut machines = DynamicWatches::new("machines", watches, kinds, is_being_deleted);
        machines.follow(
            API_VERSIONS
                .map(|version| WatchedResource::all(version, "Machine"))
                .into(),
        );
        Self(machines)
    }

    /// Whether the node's Machine is being deleted; false where Machines cannot be read.
    pub(super) fn is_being_deleted(&self, node: &NodeFacts) -> bool {
        let annotation = |key: &str| node.annotations.get(key).map(String::as_str);
        let machine = annotation(CLUSTER_NAMESPACE).zip(annotation(MACHINE));
        machine.is_some_and(|(namespace, name)| {
            let key = NamespacedName::new(namespace, name);
            self.0.iter().any(|(_, cache)| cache.get(&key).is_some())
        })
    }
}
