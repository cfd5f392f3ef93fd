//! The watches on workloads, which say whether pods may move by a rollout: of the namespaces alone in which one might.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, Client, Resource};
use nodeward_core::pod::{PodProjector, PodSummary};
use nodeward_core::surge::{ClaimView, DeploymentView, ReplicaSetView, Workloads};
use nodeward_runtime::{Cache, Selection, Watches};

/// The watches, by namespace.
pub(super) struct WorkloadWatches {
    watches: Watches,
    client: Client,
    open: BTreeMap<Arc<str>, OfNamespace>,
}

struct OfNamespace {
    deployments: Cache<DeploymentView>,
    replica_sets: Cache<ReplicaSetView>,
    pods: Cache<PodSummary>,
    claims: Cache<ClaimView>,
}

impl WorkloadWatches {
    /// None is open yet.
    pub(super) fn new(watches: &Watches, client: Client) -> Self {
        Self {
            watches: watches.clone(),
            client,
            open: BTreeMap::new(),
        }
    }

    /// Watches the workloads of these namespaces, and of no others.
    pub(super) fn follow(&mut self, namespaces: &BTreeSet<Arc<str>>) {
        self.open.retain(|namespace, _| namespaces.contains(namespace));
        for namespace in namespaces {
            if !self.open.contains_key(namespace) {
                self.open.insert(Arc::clone(namespace), self.watch(namespace));
            }
        }
    }

    fn watch(&self, namespace: &str) -> OfNamespace {
        let (watches, all) = (&self.watches, Selection::all);
        OfNamespace {
            deployments: watches.cache(
                "deployments of a namespace with a draining pod",
                self.api::<Deployment>(namespace),
                all(),
                |deployment| DeploymentView::project(&deployment),
            ),
            replica_sets: watches.cache(
                "replicasets of a namespace with a draining pod",
                self.api::<ReplicaSet>(namespace),
                all(),
                |set| Some(ReplicaSetView::project(&set)),
            ),
            pods: watches.cache(
                "pods of a namespace with a draining pod",
                self.api::<Pod>(namespace),
                all(),
                |pod| PodProjector::default().project(&pod),
            ),
            claims: watches.cache(
                "persistentvolumeclaims of a namespace with a draining pod",
                self.api::<PersistentVolumeClaim>(namespace),
                all(),
                |claim| Some(ClaimView::project(&claim)),
            ),
        }
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The workloads of each namespace where all are known.
    pub(super) fn workloads(&self) -> BTreeMap<Arc<str>, Arc<Workloads>> {
        let known = self.open.iter().filter(|(_, of)| of.are_fresh());
        known
            .map(|(namespace, of)| (Arc::clone(namespace), Arc::new(of.workloads())))
            .collect()
    }
}

impl OfNamespace {
    fn are_fresh(&self) -> bool {
        self.deployments.is_fresh() && self.replica_sets.is_fresh() && self.pods.is_fresh() && self.claims.is_fresh()
    }

    fn workloads(&self) -> Workloads {
        Workloads {
            deployments: self.deployments.snapshot(),
            replica_sets: self.replica_sets.snapshot(),
            pods: self.pods.snapshot(),
            claims: self.claims.snapshot(),
        }
    }
}
