//! Observe: from watches to a [`Snapshot`]. Nodes and NodeDrains are watched as a whole, and all else in the namespaces that
//! the configuration names.

mod ceph_cluster;
mod connection;
mod daemons;
mod namespace;
mod nodes;
mod osds;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use nodeward_api::ceph_state::LeaderLease;
use nodeward_core::signal::WatchedResource;
use nodeward_runtime::control::Observed;
use nodeward_runtime::{Cache, KindRegistry, OperatorContext, Selection, Watches};
use parking_lot::Mutex;

use crate::connection::CephConnections;
use crate::policy::Policy;
use crate::settings::Settings;
use crate::snapshot::{Namespace, Snapshot};

use self::namespace::{NamespaceWatches, Surroundings};
use self::nodes::NodeWatches;

/// API group and version of Rook's kinds.
const ROOK_API: &str = "ceph.rook.io/v1";

/// Selects the pods of Rook's operator, in whatever namespace they run. Its Deployment has other labels.
const ROOK_OPERATOR: &str = "app=rook-ceph-operator";

/// The watches of ceph-pdb.
pub struct Observer {
    watches: Watches,
    client: Client,
    kinds: KindRegistry,
    nodes: NodeWatches,
    rook_operators: Cache<bool>,
    leader_lease: Option<LeaderLease>,
    namespaces: BTreeMap<Namespace, NamespaceWatches>,
    /// Namespaces that cannot be told, for the readiness probe and the log.
    unknown: Arc<Mutex<BTreeMap<Namespace, Arc<str>>>>,
}

impl Observer {
    /// Opens the watches that are always needed.
    pub fn open(context: &OperatorContext<Settings>) -> Self {
        let (watches, client, args) = (&context.watches, context.clients.watches.clone(), &context.args);
        let kinds = KindRegistry::spawn(watches, client.clone());
        let nodes = NodeWatches::open(watches, client.clone(), &kinds);
        context.readiness.require_watch(&nodes.nodes);
        let pods = Api::<Pod>::all(client.clone());
        let selection = Selection::all().labels(ROOK_OPERATOR);
        let rook_operators = watches.cache("rook operators", pods, selection, |pod: Pod| {
            let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
            Some(!matches!(phase.as_str(), "Succeeded" | "Failed"))
        });
        // Until the first pass nothing is known of any namespace.
        let namespaces = Arc::clone(&context.config.current().policy.namespaces);
        let unknown = namespaces
            .iter()
            .map(|namespace| (Arc::clone(namespace), "not looked at yet".into()));
        let unknown = Arc::new(Mutex::new(unknown.collect::<BTreeMap<Namespace, Arc<str>>>()));
        let gate = Arc::clone(&unknown);
        context.readiness.require("namespaces of CephClusters", move || {
            let unknown = gate.lock();
            let all: Vec<String> = unknown.iter().map(|(name, why)| format!("{name}: {why}")).collect();
            if all.is_empty() { Ok(()) } else { Err(all.join("; ")) }
        });
        Self {
            watches: watches.clone(),
            client,
            kinds,
            nodes,
            rook_operators,
            leader_lease: args.leader_elect.then(|| LeaderLease {
                namespace: args.namespace.clone(),
                name: context.component.lease_name(args.dry_run),
            }),
            namespaces: BTreeMap::new(),
            unknown,
        }
    }

    /// This moment. It waits for Nodes alone, on which every cluster rests; a namespace that cannot be told stands apart.
    pub fn snapshot(&mut self, policy: &Policy, connections: &CephConnections, now: Timestamp) -> Observed<Snapshot> {
        self.follow(policy);
        if !self.nodes.nodes.is_fresh() {
            return Observed::wait("nodes are incomplete or stale");
        }
        let nodes = self.nodes.snapshot();
        let state_of_node = |name: &str| nodes.state(name, &policy.drain_taints);
        let has_rook_operator =
            !self.rook_operators.is_fresh() || self.rook_operators.snapshot().values().any(|runs| **runs);
        let mut snapshot = Snapshot::default();
        for (name, watches) in &mut self.namespaces {
            let cluster = watches.cluster().and_then(|cluster| match watches.unknown() {
                Some(why) if cluster.is_some() => Err(why),
                _ => Ok(cluster),
            });
            match cluster {
                Ok(None) => {}
                Ok(Some(cluster)) => {
                    let around = Surroundings {
                        policy,
                        ceph: connections.state(name),
                        has_rook_operator,
                        leader_lease: self.leader_lease.as_ref(),
                        state_of_node: &state_of_node,
                    };
                    let observed = watches.snapshot(&cluster, around, now);
                    snapshot.clusters.insert(Arc::clone(name), Arc::new(observed));
                }
                Err(why) => drop(snapshot.unknown.insert(Arc::clone(name), why.into())),
            }
        }
        self.tell(&snapshot.unknown);
        Observed::Ready(snapshot)
    }

    /// Watches the namespaces of the policy, and no others.
    fn follow(&mut self, policy: &Policy) {
        self.namespaces.retain(|name, _| {
            let stays = policy.namespaces.contains(name);
            if !stays {
                tracing::warn!(namespace = %name, "no longer in the configuration: its budgets and noout flags stay as they are");
            }
            stays
        });
        for name in &*policy.namespaces {
            let watches = self
                .namespaces
                .entry(Arc::clone(name))
                .or_insert_with(|| NamespaceWatches::open(&self.watches, &self.client, &self.kinds, name));
            watches.connection.follow(policy);
        }
    }

    /// Says which namespaces cannot be told, whenever that changes.
    fn tell(&self, unknown: &BTreeMap<Namespace, Arc<str>>) {
        let mut told = self.unknown.lock();
        if *told == *unknown {
            return;
        }
        for (namespace, why) in unknown.iter().filter(|(name, why)| told.get(*name) != Some(*why)) {
            tracing::info!(%namespace, "nothing is planned for its CephCluster: {why}");
        }
        told.clone_from(unknown);
    }
}

fn in_namespace(namespace: &str, mut resource: WatchedResource) -> WatchedResource {
    resource.namespace = Some(namespace.to_owned());
    resource
}

/// The one object that a watch by name may have.
fn first<V: Clone>(cache: &Cache<V>) -> Option<V> {
    cache.snapshot().values().next().map(|value| V::clone(value))
}
