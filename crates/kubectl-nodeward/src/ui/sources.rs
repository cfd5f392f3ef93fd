//! The watches that feed the page, with the user's own rights.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, NodeCondition, NodeSpec, NodeStatus};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_api::disruption_hold::DisruptionHold;
use nodeward_api::drain_ledger::{self, DrainLedger};
use nodeward_api::node_drain::NodeDrain;
use nodeward_api::{COMPONENTS, DEFAULT_NAMESPACE, NodeHealthCheck, annotation, ceph_state, pause};
use nodeward_core::signal::KindState;
use nodeward_runtime::cache::{Cache, Content, NamespacedName, Selection, WatchHandle, Watches};
use parking_lot::RwLock;

use super::fleet::{Inputs, NodeGroup, StoredNode};
use super::log::{Log, LogIndex};
use crate::cluster::Cluster;
use crate::failure::MissingRight;
use crate::fetch::{Known, StoredLedger, decode};
use crate::model::Unread;
use crate::model::ceph::CephCluster;
use crate::model::component::{COMPONENT, ComponentObjects, DRAIN_LOCK, PART_OF};
use crate::model::drain::Drain;
use crate::model::events::LogLine;
use crate::model::outdated::Present;

/// Watches of everything that the page shows, pods aside.
pub struct FleetWatches {
    watches: Watches,
    deployments: Cache<Deployment>,
    leases: Vec<Cache<Lease>>,
    pauses: Cache<ConfigMap>,
    nodes: Cache<StoredNode>,
    budgets: Cache<PodDisruptionBudget>,
    logs: Vec<(Arc<RwLock<Log>>, WatchHandle)>,
    lock: Option<LockWatches>,
    checks: Option<Cache<NodeHealthCheck>>,
    ceph: Option<Cache<CephCluster>>,
    /// What drain-lock's configuration says of node groups.
    node_groups: Option<Cache<Vec<NodeGroup>>>,
    namespace: Option<String>,
}

/// Watches of drain-lock's kinds.
struct LockWatches {
    drains: Cache<Drain>,
    ledger: Cache<StoredLedger>,
    holds: Cache<DisruptionHold>,
}

impl LockWatches {
    fn ledger(&self) -> Option<Arc<StoredLedger>> {
        self.ledger.get(&NamespacedName::cluster(drain_ledger::NAME))
    }

    /// The drains, without the causes in their statuses that are over; of `budgets` all, where they are known.
    fn drains(&self, budgets: Option<&Content<PodDisruptionBudget>>) -> Content<Drain> {
        let mut drains = self.drains.snapshot();
        let is_known = is_synced(&self.drains) && is_synced(&self.ledger);
        let (known, ledger) = (is_known.then(|| drains.values().map(|drain| &**drain)), self.ledger());
        let mut present = Present::of(known, ledger.as_deref().and_then(|ledger| ledger.as_deref().ok()));
        if let Some(budgets) = budgets {
            present = present.with_budgets(budgets.values().map(|budget| &**budget));
        }
        present.sort_out_all(&mut drains);
        drains
    }
}

impl FleetWatches {
    pub fn open(cluster: &Cluster) -> Self {
        let watches = Watches::detached();
        let deployments = Selection::all().labels(PART_OF);
        let pauses = Selection::all().fields(format!("metadata.name={}", pause::CONFIG_MAP));
        let leases = COMPONENTS.iter().map(|name| {
            let selection = Selection::all().fields(format!("metadata.name={name}"));
            watches.cache("leaders", cluster.all(), selection, |lease: Lease| {
                Some(slim_lease(lease))
            })
        });
        let logs = COMPONENTS.iter().map(|name| {
            let log = Arc::new(RwLock::new(Log::default()));
            let selection = Selection::all().fields(format!("reportingComponent=nodeward.dev/{name}"));
            let index = LogIndex(Arc::clone(&log));
            let handle = watches.follow::<Event>("events", cluster.scoped(), selection, index);
            (log, handle)
        });
        let mut opened = Self {
            deployments: watches.cache("components", cluster.all(), deployments, |deployment: Deployment| {
                Some(without_managers(deployment))
            }),
            leases: leases.collect(),
            // With its managed fields: they tell since when.
            pauses: watches.cache("pauses", cluster.all(), pauses, |map: ConfigMap| Some(map)),
            nodes: watches.cache("nodes", cluster.all(), Selection::all(), |node| {
                StoredNode::of(&slim(node))
            }),
            budgets: watches.cache("budgets", cluster.scoped(), Selection::all(), |budget| {
                Some(slim_budget(budget))
            }),
            logs: logs.collect(),
            lock: None,
            checks: None,
            ceph: None,
            node_groups: None,
            watches: watches.clone(),
            namespace: cluster.namespace.clone(),
        };
        opened.follow_served(cluster);
        opened
    }

    /// Opens the watches of kinds that the API server serves by now.
    pub fn follow_served(&mut self, cluster: &Cluster) {
        let watches = &self.watches;
        if self.lock.is_none() && cluster.serves::<NodeDrain>() {
            self.lock = Some(LockWatches {
                drains: watches.cache("drains", cluster.all(), Selection::all(), |drain: NodeDrain| {
                    Some(Drain::of(&drain))
                }),
                ledger: watches.cache(
                    "claims",
                    cluster.all(),
                    Selection::all().named(drain_ledger::NAME),
                    |ledger: DrainLedger| Some(decode(&ledger)),
                ),
                holds: watches.cache("holds", cluster.scoped(), Selection::all(), |hold: DisruptionHold| {
                    Some(without_managers(hold))
                }),
            });
        }
        if self.checks.is_none() && cluster.serves::<NodeHealthCheck>() {
            let api = cluster.all();
            self.checks = Some(
                watches.cache("health checks", api, Selection::all(), |check: NodeHealthCheck| {
                    Some(without_managers(check))
                }),
            );
        }
        if self.ceph.is_none() && cluster.serves_ceph_clusters() {
            let selection = Selection::all().fields(format!("metadata.name={}", ceph_state::CONFIG_MAP));
            self.ceph = Some(
                watches.cache("Ceph clusters", cluster.scoped(), selection, |map: ConfigMap| {
                    CephCluster::of(&map)
                }),
            );
        }
    }

    /// Opens the watch of drain-lock's configuration, once it is known where that is.
    pub fn follow_configuration(&mut self, cluster: &Cluster) {
        if self.node_groups.is_some() || self.lock.is_none() || !is_read(&self.deployments) {
            return;
        }
        // The chart gives the ConfigMap the Deployment's name.
        let deployments = self.deployments.snapshot();
        let is_lock = |one: &&NamespacedName| {
            let labels = deployments.get(*one).map(|deployment| deployment.labels());
            labels
                .and_then(|labels| labels.get(COMPONENT))
                .is_some_and(|name| name == DRAIN_LOCK)
        };
        let found = deployments.keys().find(is_lock);
        let (namespace, name) = found.map_or_else(
            || (DEFAULT_NAMESPACE.to_owned(), format!("nodeward-{DRAIN_LOCK}")),
            |found| (found.namespace.to_string(), found.name.to_string()),
        );
        self.node_groups = Some(self.watches.cache(
            "node groups",
            cluster.within(Some(&namespace)),
            Selection::all().named(&name),
            |map: ConfigMap| Some(NodeGroup::configured(&map)),
        ));
    }

    fn handles(&self) -> Vec<&WatchHandle> {
        let mut handles: Vec<&WatchHandle> = vec![&self.deployments, &self.pauses, &self.nodes, &self.budgets];
        handles.extend(self.leases.iter().map(|lease| &**lease));
        handles.extend(self.logs.iter().map(|(_, handle)| handle));
        if let Some(LockWatches { drains, ledger, holds }) = &self.lock {
            handles.extend([&**drains, &**ledger, &**holds]);
        }
        handles.extend(self.checks.iter().map(|checks| &**checks));
        handles.extend(self.ceph.iter().map(|ceph| &**ceph));
        handles.extend(self.node_groups.iter().map(|groups| &**groups));
        handles
    }

    /// Whether everything has been read once that may be read.
    pub fn is_complete(&self) -> bool {
        self.handles().into_iter().all(is_read) && (self.node_groups.is_some() || self.lock.is_none())
    }

    /// Returns when something that a watch sees has changed.
    pub async fn changed(&self) {
        self.watches.trigger().notified().await;
    }

    /// What they hold now.
    pub fn read(&self) -> Inputs {
        let lock = self.lock.as_ref();
        let mut log: BTreeMap<String, Arc<LogLine>> = BTreeMap::new();
        for (lines, _) in &self.logs {
            log.extend(
                lines
                    .read()
                    .lines()
                    .iter()
                    .map(|(uid, line)| (uid.clone(), Arc::clone(line))),
            );
        }
        let budgets = self.budgets.snapshot();
        let are_all = self.namespace.is_none() && is_synced(&self.budgets);
        let drains = lock.map(|lock| lock.drains(are_all.then_some(&budgets)));
        Inputs {
            components: ComponentObjects {
                deployments: values(&self.deployments),
                leases: self.leases.iter().flat_map(values).collect(),
                pauses: values(&self.pauses),
                sees_deployments: is_synced(&self.deployments),
                sees_leases: self.leases.iter().all(|lease| is_synced(lease)),
            },
            nodes: self.nodes.snapshot(),
            drains: drains.unwrap_or_default(),
            ledger: lock.map(|lock| lock.ledger().unwrap_or_else(|| Arc::new(Ok(Arc::default())))),
            budgets,
            holds: lock.map(|lock| lock.holds.snapshot()).unwrap_or_default(),
            checks: self.checks.iter().flat_map(values).collect(),
            ceph: self.ceph.iter().flat_map(values).collect(),
            log,
            node_groups: self.node_groups.iter().flat_map(values).flatten().collect(),
            unread: self.unread(),
            namespace: self.namespace.clone(),
        }
    }

    /// Of what they hold, that which is complete.
    pub fn known(&self, inputs: Inputs) -> Known {
        fn complete<T>(handles: &[&WatchHandle], value: T) -> Option<T> {
            handles.iter().all(|handle| is_synced(handle)).then_some(value)
        }
        let leaders = self.leases.iter().map(|lease| &**lease);
        let components: Vec<&WatchHandle> = leaders.chain([&*self.deployments, &*self.pauses]).collect();
        let lock = self.lock.as_ref();
        Known {
            components: complete(&components, inputs.components),
            drains: lock.and_then(|lock| complete(&[&lock.drains], inputs.drains)),
            ledger: lock.and_then(|lock| complete(&[&lock.ledger], inputs.ledger)).flatten(),
            budgets: complete(&[&self.budgets], inputs.budgets),
            holds: lock.and_then(|lock| complete(&[&lock.holds], inputs.holds)),
            checks: self
                .checks
                .as_ref()
                .and_then(|checks| complete(&[checks], inputs.checks)),
            ceph: self.ceph.as_ref().and_then(|ceph| complete(&[ceph], inputs.ceph)),
        }
    }

    /// What may not be read, each once, and what is not installed.
    fn unread(&self) -> Vec<Unread> {
        let mut unread: Vec<Unread> = Vec::new();
        for handle in self.handles() {
            if let KindState::Forbidden(message) = handle.state() {
                let what = handle.name();
                unread.push(match MissingRight::parse(&message) {
                    Some(missing) => Unread::Forbidden { what, missing },
                    None => Unread::Undecodable {
                        what,
                        message: message.to_string(),
                    },
                });
            }
        }
        let ledger = self.lock.as_ref().and_then(LockWatches::ledger);
        if let Some(Err(why)) = ledger.as_deref() {
            unread.push(Unread::ledger(why));
        }
        if self.lock.is_none() {
            let what = "drains, claims and holds";
            unread.push(Unread::NotInstalled {
                what,
                component: DRAIN_LOCK,
            });
        }
        unread.sort_by_cached_key(ToString::to_string);
        unread.dedup();
        unread
    }
}

fn is_synced(handle: &WatchHandle) -> bool {
    matches!(handle.state(), KindState::Synced(()))
}

/// Whether it has been read once, or may not be read.
fn is_read(handle: &WatchHandle) -> bool {
    handle.is_synced() || matches!(handle.state(), KindState::Forbidden(_))
}

fn values<V: Clone>(cache: &Cache<V>) -> Vec<V> {
    cache.snapshot().values().map(|value| V::clone(value)).collect()
}

/// An object without its managed fields, which nobody reads.
fn without_managers<K: ResourceExt>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

/// A lease without what nobody reads.
fn slim_lease(mut lease: Lease) -> Lease {
    for write in lease.metadata.managed_fields.iter_mut().flatten() {
        // When it was is told by it.
        write.fields_v1 = None;
    }
    lease.metadata.resource_version = None;
    lease
}

/// A node without what the page does not need: fifteen thousands of them are to fit into few megabytes.
fn slim(node: Node) -> Node {
    let ObjectMeta {
        name,
        uid,
        labels,
        annotations,
        creation_timestamp,
        ..
    } = node.metadata;
    let annotations = annotations.map(|mut annotations| {
        annotations.retain(|key, _| key == annotation::DRAIN_CLOCK);
        annotations
    });
    let told = |condition: NodeCondition| {
        let is_ours = condition.type_ == DRAIN_BLOCKED;
        NodeCondition {
            last_heartbeat_time: None,
            message: condition.message.filter(|_| is_ours),
            reason: condition.reason.filter(|_| is_ours),
            ..condition
        }
    };
    Node {
        metadata: ObjectMeta {
            name,
            uid,
            labels,
            annotations: annotations.filter(|annotations| !annotations.is_empty()),
            creation_timestamp,
            ..ObjectMeta::default()
        },
        spec: node.spec.map(|spec| NodeSpec {
            unschedulable: spec.unschedulable,
            taints: spec.taints,
            ..NodeSpec::default()
        }),
        status: node.status.map(|status| NodeStatus {
            conditions: status
                .conditions
                .map(|conditions| conditions.into_iter().map(told).collect()),
            ..NodeStatus::default()
        }),
    }
}

/// A budget without what nobody reads: its pods, its numbers and its owner's hold stay.
fn slim_budget(mut budget: PodDisruptionBudget) -> PodDisruptionBudget {
    let annotations = budget.metadata.annotations.take().map(|mut annotations| {
        annotations.retain(|key, _| key == annotation::HOLD || key == annotation::HOLD_UNTIL);
        annotations
    });
    budget.metadata = ObjectMeta {
        name: budget.metadata.name,
        namespace: budget.metadata.namespace,
        generation: budget.metadata.generation,
        labels: budget.metadata.labels,
        annotations,
        ..ObjectMeta::default()
    };
    budget
}
