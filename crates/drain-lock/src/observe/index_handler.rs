//! How each kind goes from its watch into the index. Objects are projected before the lock is taken.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use nodeward_api::{DisruptionHold, DrainLedger, NodeDrain};
use nodeward_core::id::{BudgetKey, NamespacedName, NodeName, PodKey};
use nodeward_core::lease::LeaseView;
use nodeward_core::ledger::Ledger;
use nodeward_runtime::Index;
use nodeward_scheduling::PodProjector;
use parking_lot::{RwLock, RwLockWriteGuard};

use super::cluster_index::{ClusterIndex, VolumeFacts};
use super::decoded::Decoded;
use super::project::{node_projector, project_budget, project_hold, project_volume};
use super::table::Store;
use crate::snapshot::{BudgetEntry, HoldFacts, LedgerFacts, NodeFacts, PodFacts, ReadableDrain};

/// The index, shared by those who read and all who keep it up.
pub(super) type SharedIndex = Arc<RwLock<ClusterIndex>>;

/// What is kept of an object; `None`: nothing.
type Project<K, V> = dyn FnMut(&K) -> Option<V> + Send;

/// Brings one kind from its watch into the index.
pub(super) struct IndexHandler<K, I, V> {
    index: SharedIndex,
    key: fn(&ObjectMeta) -> I,
    project: Box<Project<K, V>>,
    store: fn(&mut ClusterIndex) -> &mut dyn Store<I, V>,
    /// Keeps other parts of the index in step, before an object changes; `None`: it goes.
    before_change: fn(&mut ClusterIndex, &I, Option<&V>),
}

impl<K: Resource, I, V> IndexHandler<K, I, V> {
    fn new(
        index: &SharedIndex,
        key: fn(&ObjectMeta) -> I,
        project: impl FnMut(&K) -> Option<V> + Send + 'static,
        store: fn(&mut ClusterIndex) -> &mut dyn Store<I, V>,
    ) -> Self {
        Self {
            index: Arc::clone(index),
            key,
            project: Box::new(project),
            store,
            before_change: |_, _, _| {},
        }
    }

    fn write(&self) -> RwLockWriteGuard<'_, ClusterIndex> {
        self.index.write()
    }

    /// Whether anything is different now.
    pub(super) fn put(&mut self, object: &K) -> bool {
        let key = (self.key)(object.meta());
        let Some(facts) = (self.project)(object) else {
            return self.remove(&key);
        };
        let mut index = self.write();
        (self.before_change)(&mut index, &key, Some(&facts));
        (self.store)(&mut index).put(key, facts)
    }

    fn remove(&self, key: &I) -> bool {
        let mut index = self.write();
        (self.before_change)(&mut index, key, None);
        (self.store)(&mut index).remove(key)
    }
}

impl<K, I, V> Index<K> for IndexHandler<K, I, V>
where
    K: Resource + 'static,
    I: 'static,
    V: 'static,
{
    fn list_began(&mut self) {
        (self.store)(&mut self.write()).begin_generation();
    }

    /// The objects of a list are taken in one by one, and what it does not name goes one by one when it ends. So nothing is
    /// held twice in memory, and readers do not wait while a hundred thousand objects change places.
    fn listed(&mut self, object: K) -> bool {
        self.put(&object);
        false
    }

    fn list_ended(&mut self) -> bool {
        let unlisted = (self.store)(&mut self.write()).unlisted();
        for key in &unlisted {
            self.remove(key);
        }
        true
    }

    fn applied(&mut self, object: K) -> bool {
        self.put(&object)
    }

    fn deleted(&mut self, object: K) -> bool {
        self.remove(&(self.key)(object.meta()))
    }

    fn objects(&self) -> usize {
        (self.store)(&mut self.write()).len()
    }
}

fn name_of<N: From<Arc<str>>>(meta: &ObjectMeta) -> N {
    Arc::<str>::from(meta.name.as_deref().unwrap_or_default()).into()
}

fn namespaced_name_of(meta: &ObjectMeta) -> NamespacedName {
    NamespacedName::new(meta.namespace.as_deref().unwrap_or_default(), name_of::<Arc<str>>(meta))
}

pub(super) fn nodes(index: &SharedIndex) -> IndexHandler<Node, NodeName, NodeFacts> {
    let mut projector = node_projector();
    IndexHandler::new(
        index,
        name_of,
        move |node| projector.project(node),
        |index| &mut index.nodes,
    )
}

pub(super) fn pods(index: &SharedIndex) -> IndexHandler<Pod, PodKey, PodFacts> {
    let mut projector = PodProjector::default();
    let project = move |pod: &Pod| projector.project(pod);
    IndexHandler {
        before_change: |index, _, pod| {
            if let Some(pod) = pod {
                index.note_deleted(pod);
            }
        },
        ..IndexHandler::new(index, namespaced_name_of, project, |index| &mut index.pods)
    }
}

pub(super) fn budgets(index: &SharedIndex) -> IndexHandler<PodDisruptionBudget, BudgetKey, BudgetEntry> {
    IndexHandler {
        before_change: |index, key, budget| match budget {
            Some(budget) => index.pods.put_budget(key, &budget.view.selector),
            None => index.pods.remove_budget(key),
        },
        ..IndexHandler::new(index, namespaced_name_of, project_budget, |index| &mut index.budgets)
    }
}

pub(super) fn volumes(index: &SharedIndex) -> IndexHandler<PersistentVolume, Arc<str>, VolumeFacts> {
    let project = |volume: &PersistentVolume| {
        let (claim, nodes) = project_volume(volume)?;
        let nodes = Arc::new(nodes);
        Some(VolumeFacts { claim, nodes })
    };
    IndexHandler {
        before_change: |index, name, volume| {
            if let Some(known) = index.volumes.get(name)
                // Another volume may have taken the claim over.
                && index.volumes_by_claim.get(&known.claim) == Some(name)
            {
                index.volumes_by_claim.remove(&known.claim);
            }
            if let Some(volume) = volume {
                index.volumes_by_claim.insert(volume.claim.clone(), Arc::clone(name));
            }
        },
        ..IndexHandler::new(index, name_of, project, |index| &mut index.volumes)
    }
}

pub(super) fn drains(index: &SharedIndex) -> IndexHandler<Decoded<NodeDrain>, NodeName, ReadableDrain> {
    let project = |drain: &Decoded<NodeDrain>| {
        drain.meta().name.as_ref()?;
        Some(match &drain.object {
            Ok(drain) => {
                let mut drain = drain.clone();
                drain.metadata.managed_fields = None;
                Ok(Arc::new(drain))
            }
            Err(why) => Err(Arc::clone(why)),
        })
    };
    IndexHandler::new(index, name_of, project, |index| &mut index.drains)
}

pub(super) fn ledgers(index: &SharedIndex) -> IndexHandler<DrainLedger, Arc<str>, LedgerFacts> {
    let project = |ledger: &DrainLedger| {
        let meta = ledger.meta();
        let (content, unreadable) = match Ledger::try_from(&ledger.spec) {
            Ok(content) => (content, None),
            Err(why) => (Ledger::default(), Some(why.into())),
        };
        Some(LedgerFacts {
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            resource_version: meta.resource_version.as_deref().unwrap_or_default().into(),
            bytes: content.stored_bytes(),
            ledger: content,
            unreadable,
        })
    };
    IndexHandler::new(index, name_of, project, |index| &mut index.ledgers)
}

pub(super) fn holds(index: &SharedIndex) -> IndexHandler<DisruptionHold, NamespacedName, HoldFacts> {
    IndexHandler::new(index, namespaced_name_of, project_hold, |index| &mut index.holds)
}

pub(super) fn leases(index: &SharedIndex) -> IndexHandler<Lease, Arc<str>, LeaseView> {
    IndexHandler::new(index, name_of, LeaseView::project, |index| &mut index.leases)
}
