//! What is watched in one namespace, and the cluster that it makes.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::DynamicObject;
use kube::core::{Selector, SelectorExt};
use kube::{Api, Client, Resource, ResourceExt};
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::{self, LeaderLease};
use nodeward_core::signal::WatchedResource;
use nodeward_runtime::cache::Watchable;
use nodeward_runtime::discovery::Known;
use nodeward_runtime::{Cache, DynamicCache, KindRegistry, KindState, Selection, WatchHandle, Watches};

use super::ceph_cluster::ClusterObject;
use super::connection::ConnectionWatches;
use super::daemons::DaemonWatches;
use super::osds::{self, Changes, DeploymentFacts, PodFacts};
use super::{ROOK_API, first, in_namespace};
use crate::policy::Policy;
use crate::snapshot::{
    BudgetFacts, CephClusterFacts, CephState, ClusterSnapshot, Namespace, NodeState, Published, StateMap,
};
use crate::{budgets, state_map};

/// The watches.
pub(super) struct NamespaceWatches {
    pub(super) connection: ConnectionWatches,
    clusters: DynamicCache<ClusterObject>,
    daemons: DaemonWatches,
    deployments: Cache<DeploymentFacts>,
    pods: Cache<PodFacts>,
    budgets: Cache<OwnedBudget>,
    state_map: Cache<StateMap>,
    published: Cache<Published>,
    changes: Option<Changes>,
}

/// A budget, and whose it says it is.
#[derive(Debug, PartialEq, Eq)]
struct OwnedBudget {
    cluster_uid: String,
    facts: BudgetFacts,
    selector: Option<Selector>,
}

impl OwnedBudget {
    fn project(budget: &PodDisruptionBudget) -> Self {
        let mut owners = budget.owner_references().iter();
        let cluster = owners.find(|owner| owner.kind == "CephCluster");
        let cluster_uid = cluster.map(|owner| owner.uid.clone()).unwrap_or_default();
        Self {
            facts: budgets::facts(budget, &cluster_uid),
            cluster_uid,
            selector: budgets::selector(budget),
        }
    }

    /// One that an earlier CephCluster of the namespace left behind is not this one's.
    fn facts_in<'a>(
        &self,
        cluster: &CephClusterFacts,
        mut osd_pods: impl Iterator<Item = &'a PodFacts>,
    ) -> BudgetFacts {
        let is_its = self.cluster_uid == *cluster.uid;
        let is_ours = self.facts.is_ours && is_its;
        let selects = |selector: &Selector| osd_pods.any(|pod| selector.matches(&pod.labels));
        BudgetFacts {
            is_ours,
            selects_osds: !is_ours && self.selector.as_ref().is_some_and(selects),
            is_exact: self.facts.is_exact && is_its,
            ..self.facts.clone()
        }
    }
}

/// What lies outside of a namespace.
pub(super) struct Surroundings<'a> {
    pub(super) policy: &'a Policy,
    pub(super) ceph: CephState,
    /// A Rook operator runs, or may run.
    pub(super) has_rook_operator: bool,
    pub(super) leader_lease: Option<&'a LeaderLease>,
    pub(super) state_of_node: &'a dyn Fn(&str) -> (NodeState, Option<Timestamp>),
}

/// Opens watches in a namespace.
struct Opener<'a> {
    watches: &'a Watches,
    client: &'a Client,
    namespace: &'a str,
}

impl Opener<'_> {
    fn cache<K, V>(
        &self,
        name: &'static str,
        selection: Selection,
        project: impl Fn(K) -> Option<V> + Send + 'static,
    ) -> Cache<V>
    where
        K: Watchable + Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        V: PartialEq + Send + Sync + 'static,
    {
        let objects = Api::<K>::namespaced(self.client.clone(), self.namespace);
        self.watches.cache(name, objects, selection, project)
    }
}

impl NamespaceWatches {
    /// Opens them.
    pub(super) fn open(watches: &Watches, client: &Client, kinds: &KindRegistry, namespace: &Namespace) -> Self {
        let open = Opener {
            watches,
            client,
            namespace,
        };
        let clusters = in_namespace(namespace, WatchedResource::all(ROOK_API, "CephCluster"));
        let of_osds = || Selection::all().labels(osds::SELECTOR);
        Self {
            connection: ConnectionWatches::open(watches, client, namespace),
            clusters: watches.dynamic("cephclusters", kinds, clusters, |object: DynamicObject| {
                ClusterObject::project(&object)
            }),
            daemons: DaemonWatches::open(watches, kinds, namespace),
            deployments: open.cache("osd deployments", of_osds(), |deployment: Deployment| {
                DeploymentFacts::project(&deployment)
            }),
            pods: open.cache("osd pods", of_osds(), |pod: Pod| PodFacts::project(&pod)),
            budgets: open.cache(
                "poddisruptionbudgets",
                Selection::all(),
                |budget: PodDisruptionBudget| Some(OwnedBudget::project(&budget)),
            ),
            state_map: open.cache(
                "state map",
                Selection::all().named(state_map::NAME),
                |map: ConfigMap| Some(state_map::read(&map)),
            ),
            published: open.cache(
                "published state",
                Selection::all().named(ceph_state::CONFIG_MAP),
                |map: ConfigMap| Published::read(&map),
            ),
            changes: None,
        }
    }

    /// The CephCluster, if there is one.
    ///
    /// # Errors
    /// Why that cannot be told.
    pub(super) fn cluster(&self) -> Result<Option<Arc<ClusterObject>>, String> {
        match self.clusters.known() {
            Known::Absent => Ok(None),
            // Whose the budgets are is not known.
            Known::Objects(objects) if 1 < objects.len() => Err(format!("there are {} CephClusters", objects.len())),
            Known::Objects(objects) => Ok(objects.values().next().cloned()),
            Known::Unknown(why) => Err(why),
        }
    }

    /// What is not complete, or has not been heard of for minutes: absent from such a cache is not absent.
    pub(super) fn unknown(&self) -> Option<String> {
        let watches: [&WatchHandle; 5] = [
            &self.deployments,
            &self.pods,
            &self.budgets,
            &self.state_map,
            &self.published,
        ];
        let unknown = watches.into_iter().find(|watch| !watch.is_fresh())?;
        let name = unknown.name();
        Some(match unknown.state() {
            KindState::Forbidden(why) => format!("{name} may not be read: {why}"),
            KindState::Syncing => format!("{name} are still being listed"),
            KindState::Synced(()) | KindState::Stale | KindState::Absent => {
                format!("{name} have not been heard of for minutes")
            }
        })
    }

    /// This moment of the cluster.
    pub(super) fn snapshot(
        &mut self,
        cluster: &ClusterObject,
        around: Surroundings<'_>,
        now: Timestamp,
    ) -> ClusterSnapshot {
        let no_nodes = BTreeMap::new();
        let last_nodes = around.ceph.last_view().map_or(&no_nodes, |view| &view.map.hostnames);
        let (deployments, pods) = (self.deployments.snapshot(), self.pods.snapshot());
        let osds = osds::assemble(
            deployments.values().map(|facts| &**facts),
            pods.values().map(|facts| &**facts),
            last_nodes,
            around.state_of_node,
        );
        let changes = self.changes.get_or_insert_with(|| Changes::first(&osds, now));
        changes.compare(&osds, now);
        let mut daemons = self.daemons.snapshot();
        daemons.mons = cluster.mons;
        daemons.mgrs = (!around.has_rook_operator).then_some(cluster.mgrs);
        let budgets = self.budgets.snapshot();
        ClusterSnapshot {
            cluster: CephClusterFacts::clone(&cluster.facts),
            osds,
            osds_changed_at: changes.at,
            budgets: budgets
                .iter()
                .map(|(key, budget)| {
                    let pods = pods.values().map(|pod| &**pod);
                    (Arc::clone(&key.name), budget.facts_in(&cluster.facts, pods))
                })
                .collect(),
            daemons,
            refused_writes: BTreeMap::new(),
            state_map: first(&self.state_map).unwrap_or_default(),
            published: first(&self.published),
            leader_lease: around.leader_lease.cloned(),
            target: self.connection.target(around.policy, cluster.is_encrypted),
            ceph: around.ceph,
        }
    }
}

impl Published {
    /// Reads it; `None` without a resource version, which the API server never sends.
    pub(crate) fn read(config_map: &ConfigMap) -> Option<Self> {
        Some(Self {
            resource_version: config_map.resource_version()?.into(),
            state: CephClusterState::read(config_map).ok(),
        })
    }
}
