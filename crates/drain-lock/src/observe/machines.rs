//! The nodes' Machines, watched, and the rules by which Cluster API drains them: it takes the node of a Machine that is being
//! deleted away for good. Both are seen where Cluster API manages the cluster that it runs in; of a workload cluster they are
//! elsewhere.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use jiff::Timestamp;
use kube::core::DynamicObject;
use nodeward_core::signal::{DrainRules, Preset, SignalInputs, UpgradeSignal, WatchedResource};
use nodeward_runtime::cache::Content;
use nodeward_runtime::{DynamicCache, DynamicWatches, KindRegistry, KindState, NamespacedName, Watches};
use parking_lot::Mutex;
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
    /// All that was read of the watches at last, and of what: what follows from it is worked out once.
    read: Mutex<(Vec<KindState<Version>>, Arc<SignalInputs>)>,
}

/// Tells a content from every other one: while this lives, none can have its address.
struct Version(Weak<BTreeMap<NamespacedName, Arc<Value>>>);

impl Version {
    fn of(content: &Content<Value>) -> Self {
        Self(Arc::downgrade(content))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
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
        Self {
            signal,
            watches,
            read: Mutex::default(),
        }
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
        machine_of(node)?;
        Some(self.signal.drain_rules(&self.inputs(), node))
    }

    /// What is known of all kinds, read anew where something has changed.
    fn inputs(&self) -> Arc<SignalInputs> {
        let known = |(kind, cache): (&WatchedResource, &DynamicCache<Value>)| {
            (kind.clone(), cache.state().map(|()| cache.snapshot()))
        };
        let known: Vec<(WatchedResource, KindState<Content<Value>>)> = self.watches.iter().map(known).collect();
        let versions = known
            .iter()
            .map(|(_, state)| state.clone().map(|content| Version::of(&content)));
        let versions: Vec<KindState<Version>> = versions.collect();
        let mut read = self.read.lock();
        if read.0 != versions {
            let mut inputs = SignalInputs::default();
            for (kind, state) in known {
                inputs.insert(kind, state.map(|content| content.values().cloned().collect()));
            }
            *read = (versions, Arc::new(inputs));
        }
        Arc::clone(&read.1)
    }
}

/// The Machine that a node says is its own.
fn machine_of(node: &NodeFacts) -> Option<NamespacedName> {
    let annotation = |key: &str| node.annotations.get(key).map(String::as_str);
    let (namespace, name) = annotation(CLUSTER_NAMESPACE).zip(annotation(MACHINE))?;
    Some(NamespacedName::new(namespace, name))
}

#[cfg(test)]
mod tests {
    use nodeward_runtime::cache::{Change, Store};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn key() -> NamespacedName {
        NamespacedName::new("machines", "rule")
    }

    #[rstest]
    #[case::nothing(vec![], true)]
    #[case::same_object(vec![Change::Applied(key(), Some(json!(1)))], true)]
    #[case::same_list(vec![Change::ListBegan, Change::Listed(key(), Some(json!(1))), Change::ListEnded], true)]
    #[case::other_object(vec![Change::Applied(key(), Some(json!(2)))], false)]
    #[case::there_and_back(
        vec![Change::Applied(key(), Some(json!(2))), Change::Applied(key(), Some(json!(1)))], false
    )]
    #[case::other_list(vec![Change::ListBegan, Change::ListEnded], false)]
    fn content_that_has_changed_is_another_version(#[case] changes: Vec<Change<Value>>, #[case] is_same: bool) {
        let mut store = Store::default();
        for change in [
            Change::ListBegan,
            Change::Listed(key(), Some(json!(1))),
            Change::ListEnded,
        ] {
            store.apply(change);
        }
        let before = Version::of(&store.content());
        for change in changes {
            store.apply(change);
        }
        assert_eq!(before == Version::of(&store.content()), is_same);
    }
}
