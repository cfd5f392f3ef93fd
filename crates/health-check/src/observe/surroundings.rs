//! What else stops remediations, watched: maintenance, the Machine API, the guards of etcd. None of the kinds has to be
//! installed.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::core::DynamicObject;
use nodeward_api::NodeDrain;
use nodeward_core::drain::{NodeDrainView, NodeDrains};
use nodeward_core::id::NodeName;
use nodeward_core::signal::WatchedResource;
use nodeward_runtime::discovery::Known;
use nodeward_runtime::{DynamicCache, KindRegistry, KindState, Watches};

use super::project;
use crate::snapshot::{EtcdGuards, MachineApi, MachineFacts};

/// The Machine API of OpenShift.
pub(super) const MACHINE_API: &str = "machine.openshift.io/v1beta1";

/// The namespace of etcd on OpenShift.
const ETCD_NAMESPACE: &str = "openshift-etcd";

/// The watches.
pub(super) struct Surroundings {
    watches: Watches,
    kinds: KindRegistry,
    drains: DynamicCache<Result<Arc<NodeDrainView>, String>>,
    maintenances: DynamicCache<NodeName>,
    health_checks: DynamicCache<()>,
    machines: DynamicCache<MachineFacts>,
    cluster_version: DynamicCache<()>,
    etcd: Option<EtcdWatches>,
}

/// The watches of what guards etcd.
struct EtcdWatches {
    budgets: DynamicCache<i32>,
    guards: DynamicCache<(NodeName, bool)>,
}

/// What they tell at one moment.
pub(super) struct Surrounding {
    pub(super) drains: NodeDrains,
    pub(super) maintenances: BTreeSet<NodeName>,
    pub(super) machine_api: Option<MachineApi>,
    pub(super) etcd: Option<EtcdGuards>,
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
                |_| Some(()),
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
            etcd: None,
            watches: watches.clone(),
            kinds: kinds.clone(),
        }
    }

    /// What is known.
    ///
    /// # Errors
    /// With a kind that is served and whose objects are not known: each of them may forbid a remediation.
    pub(super) fn observe(&mut self) -> Result<Surrounding, String> {
        self.follow_etcd();
        let drains = match self.drains.known() {
            Known::Absent => NodeDrains::default(),
            Known::Objects(objects) => {
                let drains = objects
                    .iter()
                    .map(|(key, drain)| (Arc::clone(&key.name).into(), (**drain).clone()));
                NodeDrains::Known(drains.collect())
            }
            Known::Unknown(why) if self.drains.state() == KindState::Syncing => return Err(why),
            Known::Unknown(why) => NodeDrains::Unknown(why),
        };
        let maintenances = match self.maintenances.known() {
            Known::Absent => BTreeSet::new(),
            Known::Objects(objects) => objects.values().map(|node| (**node).clone()).collect(),
            Known::Unknown(why) => return Err(why),
        };
        Ok(Surrounding {
            drains,
            maintenances,
            machine_api: self.machine_api()?,
            etcd: self.etcd_guards()?,
        })
    }

    fn machine_api(&self) -> Result<Option<MachineApi>, String> {
        let (health_checks, machines) = match (self.health_checks.known(), self.machines.known()) {
            (Known::Absent, Known::Absent) => return Ok(None),
            (Known::Unknown(why), _) | (_, Known::Unknown(why)) => return Err(why),
            known => known,
        };
        let mut machine_api = MachineApi::default();
        if let Known::Objects(objects) = health_checks {
            machine_api.health_checks = objects.keys().cloned().collect();
        }
        if let Known::Objects(objects) = machines {
            let machines = objects.iter().map(|(key, machine)| (key.clone(), (**machine).clone()));
            machine_api.machines = machines.collect();
        }
        Ok(Some(machine_api))
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
                guards.selector = Some("app=guard".to_owned());
                let budgets = in_etcd(WatchedResource::of::<PodDisruptionBudget>());
                self.etcd = Some(EtcdWatches {
                    budgets: self.watches.dynamic("etcd budgets", &self.kinds, budgets, |object| {
                        Some(project::disruptions_allowed(&object))
                    }),
                    guards: self.watches.dynamic("etcd guards", &self.kinds, guards, project::guard),
                });
            }
            Known::Absent => self.etcd = None,
            Known::Objects(_) | Known::Unknown(_) => {}
        }
    }

    fn etcd_guards(&self) -> Result<Option<EtcdGuards>, String> {
        if let Known::Unknown(why) = self.cluster_version.known() {
            return Err(why);
        }
        let Some(etcd) = &self.etcd else {
            return Ok(None);
        };
        match (etcd.budgets.known(), etcd.guards.known()) {
            (Known::Unknown(why), _) | (_, Known::Unknown(why)) => Err(why),
            (Known::Objects(budgets), Known::Objects(guards)) => Ok(Some(EtcdGuards {
                disruptions_allowed: budgets.values().map(|allowed| **allowed).collect(),
                guards: guards.values().map(|guard| (**guard).clone()).collect(),
            })),
            // Kinds that are always served: without them nothing is known to be safe.
            (Known::Absent, _) | (_, Known::Absent) => Ok(Some(EtcdGuards::default())),
        }
    }
}

fn node_drain(object: DynamicObject) -> Option<Result<Arc<NodeDrainView>, String>> {
    let name = object.name_any();
    match object.try_parse::<NodeDrain>() {
        Ok(drain) => NodeDrainView::project(&drain).map(|view| Ok(Arc::new(view))),
        Err(error) => Some(Err(format!("NodeDrain {name} cannot be read: {error}"))),
    }
}
