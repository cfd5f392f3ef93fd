//! What else stops remediations, watched: maintenance, the Machine API, the guards of etcd. None of the kinds has to be
//! installed.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::core::DynamicObject;
use nodeward_api::NodeDrain;
use nodeward_core::drain::{NodeDrainView, NodeDrains};
use nodeward_core::id::NodeName;
use nodeward_core::signal::WatchedResource;
use nodeward_runtime::cache::Content;
use nodeward_runtime::discovery::{Known, LIST_PATIENCE};
use nodeward_runtime::{DynamicCache, KindRegistry, KindState, Watches};

use super::project;
use crate::snapshot::{EtcdGuards, MachineFacts, Reading, Snapshot};

/// The Machine API of OpenShift.
pub(super) const MACHINE_API: &str = "machine.openshift.io/v1beta1";

/// The namespace of etcd on OpenShift.
pub(crate) const ETCD_NAMESPACE: &str = "openshift-etcd";

/// Selects the pods that tell whether its members are up.
pub(crate) const ETCD_GUARDS: &str = "app=guard";

/// The watches.
pub(super) struct Surroundings {
    watches: Watches,
    kinds: KindRegistry,
    drains: DynamicCache<Result<Arc<NodeDrainView>, String>>,
    maintenances: DynamicCache<NodeName>,
    health_checks: DynamicCache<bool>,
    machines: DynamicCache<MachineFacts>,
    cluster_version: DynamicCache<()>,
    infrastructure: DynamicCache<Arc<str>>,
    etcd: Option<EtcdWatches>,
    opened: Instant,
}

/// The watches of what guards etcd.
struct EtcdWatches {
    budgets: DynamicCache<i32>,
    guards: DynamicCache<(NodeName, bool)>,
}

/// What is known of budgets and guard pods: on which node each is, and whether it is Ready.
type EtcdSources = (Known<i32>, Known<(NodeName, bool)>);

/// What OpenShift runs on.
pub(crate) fn infrastructure() -> WatchedResource {
    WatchedResource::all("config.openshift.io/v1", "Infrastructure").named("cluster")
}

impl Surroundings {
    /// Opens the watches.
    pub(super) fn open(watches: &Watches, kinds: &KindRegistry) -> Self {
        let all = WatchedResource::all;
        Self {
            drains: watches.dynamic("nodedrains", kinds, WatchedResource::of::<NodeDrain>(), node_drain),
            maintenances: watches.dynamic(
                "nodemaintenances",
                kinds,
                all("nodemaintenance.medik8s.io/v1beta1", "NodeMaintenance"),
                |object| project::maintained_node(&object),
            ),
            health_checks: watches.dynamic(
                "machinehealthchecks",
                kinds,
                all(MACHINE_API, "MachineHealthCheck"),
                |object| Some(project::handles_termination(&object)),
            ),
            machines: watches.dynamic("machines", kinds, all(MACHINE_API, "Machine"), |object| {
                project::machine(&object)
            }),
            cluster_version: watches.dynamic(
                "clusterversions",
                kinds,
                all("config.openshift.io/v1", "ClusterVersion").named("version"),
                |_| Some(()),
            ),
            infrastructure: watches.dynamic("infrastructures", kinds, infrastructure(), |object| {
                project::control_plane_topology(&object)
            }),
            etcd: None,
            opened: Instant::now(),
            watches: watches.clone(),
            kinds: kinds.clone(),
        }
    }

    /// Whether a first list is still to come, and worth waiting for: what is listed a moment later is not yet unreadable.
    pub(super) fn is_starting(&self) -> bool {
        let states = [
            self.drains.state(),
            self.maintenances.state(),
            self.health_checks.state(),
            self.machines.state(),
            self.cluster_version.state(),
            self.infrastructure.state(),
        ];
        self.opened.elapsed() < LIST_PATIENCE && states.contains(&KindState::Syncing)
    }

    /// What is known, of each kind for itself: one that is served and cannot be read postpones what rests on it alone. The rest of
    /// the snapshot is empty.
    pub(super) fn observe(&mut self) -> Snapshot {
        self.follow_etcd();
        let drains = match self.drains.known() {
            Known::Absent => NodeDrains::default(),
            Known::Objects(objects) => {
                let drains = objects
                    .iter()
                    .map(|(key, drain)| (Arc::clone(&key.name).into(), (**drain).clone()));
                NodeDrains::Known(drains.collect())
            }
            Known::Unknown(why) => NodeDrains::Unknown(why),
        };
        Snapshot {
            drains,
            maintenances: read(self.maintenances.known(), |objects| {
                objects.values().map(|node| (**node).clone()).collect()
            }),
            machine_health_checks: read(self.health_checks.known(), |objects| {
                let checks = objects.iter().map(|(key, handles)| (key.clone(), **handles));
                checks.collect()
            }),
            machines: read(self.machines.known(), |objects| {
                let machines = objects.iter().map(|(key, machine)| (key.clone(), (**machine).clone()));
                machines.collect()
            }),
            control_plane_topology: read(self.infrastructure.known(), |objects| {
                objects.values().next().map(|topology| Arc::clone(&**topology))
            }),
            etcd: etcd_guards(
                self.cluster_version.known(),
                self.etcd
                    .as_ref()
                    .map(|etcd| (etcd.budgets.known(), etcd.guards.known())),
            ),
            ..Snapshot::default()
        }
    }

    /// Etcd is guarded by budgets and pods on OpenShift alone.
    fn follow_etcd(&mut self) {
        match self.cluster_version.known() {
            Known::Objects(_) if self.etcd.is_none() => {
                let in_etcd = |mut resource: WatchedResource| {
                    resource.namespace = Some(ETCD_NAMESPACE.to_owned());
                    resource
                };
                let mut guards = in_etcd(WatchedResource::of::<Pod>());
                guards.selector = Some(ETCD_GUARDS.to_owned());
                let budgets = in_etcd(WatchedResource::of::<PodDisruptionBudget>());
                self.etcd = Some(EtcdWatches {
                    budgets: self.watches.dynamic("etcd budgets", &self.kinds, budgets, |object| {
                        Some(project::disruptions_allowed(&object))
                    }),
                    guards: self
                        .watches
                        .dynamic("etcd guards", &self.kinds, guards, |object| project::guard(&object)),
                });
            }
            Known::Absent => self.etcd = None,
            Known::Objects(_) | Known::Unknown(_) => {}
        }
    }
}

/// `etcd` are budgets and guard pods, where they are watched.
fn etcd_guards(cluster_version: Known<()>, etcd: Option<EtcdSources>) -> Reading<Option<EtcdGuards>> {
    match (cluster_version, etcd) {
        (Known::Unknown(why), _) | (_, Some((Known::Unknown(why), _) | (_, Known::Unknown(why)))) => {
            Reading::Unknown(why)
        }
        (_, None) => Reading::Known(None),
        (_, Some((Known::Objects(budgets), Known::Objects(guards)))) => Reading::Known(Some(EtcdGuards {
            disruptions_allowed: budgets.values().map(|allowed| **allowed).collect(),
            guards: guards.values().map(|guard| (**guard).clone()).collect(),
        })),
        // Kinds that are always served: without them nothing is known to be safe.
        (_, Some((Known::Absent, _) | (_, Known::Absent))) => Reading::Known(Some(EtcdGuards::default())),
    }
}

/// A kind that is not served has no objects.
fn read<V, T: Default>(known: Known<V>, told: impl FnOnce(Content<V>) -> T) -> Reading<T> {
    match known {
        Known::Absent => Reading::default(),
        Known::Objects(objects) => Reading::Known(told(objects)),
        Known::Unknown(why) => Reading::Unknown(why),
    }
}

fn node_drain(object: DynamicObject) -> Option<Result<Arc<NodeDrainView>, String>> {
    let name = object.name_any();
    match object.try_parse::<NodeDrain>() {
        Ok(drain) => NodeDrainView::project(&drain).map(|view| Ok(Arc::new(view))),
        Err(error) => Some(Err(format!("NodeDrain {name} cannot be read: {error}"))),
    }
}

#[cfg(test)]
mod tests;
