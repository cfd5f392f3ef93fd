//! Observe: from watches to a [`Snapshot`]. Pods are watched only on draining nodes, one watch a node.

mod holds;
mod pod_watches;
mod workloads;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Api, Client};
use nodeward_core::budget::{BudgetView, Budgets};
use nodeward_core::id::NodeName;
use nodeward_core::labels::Labels;
use nodeward_core::node::NodeView;
use nodeward_core::selector::Selector;
use nodeward_core::signal::{UpgradeSignal, pdb_force_drain_timeout};
use nodeward_runtime::control::Observed;
use nodeward_runtime::{
    Cache, ConfigMapSource, ConfigMapText, KindRegistry, OperatorContext, RemediationWatches, Selection, SignalWatches,
    Watches,
};

use crate::policy::{ConfigMapRef, Policy};
use crate::settings::Settings;
use crate::snapshot::{Memory, Snapshot};

use self::holds::HoldWatches;
pub use self::holds::{claims_holds, of_stored};
use self::pod_watches::PodWatches;
use self::workloads::WorkloadWatches;

/// Key in managed-upgrade-operator's ConfigMap.
const MANAGED_UPGRADE_CONFIG_KEY: &str = "config.yaml";

/// The watches of drain-keeper.
pub struct Observer {
    watches: Watches,
    client: Client,
    installation: Option<Arc<str>>,
    nodes: Cache<NodeView>,
    budgets: Cache<BudgetView>,
    /// The budgets as they were indexed last.
    indexed: Arc<Budgets>,
    pods: PodWatches,
    signal: SignalWatches,
    holds: HoldWatches,
    remediations: RemediationWatches,
    config_map: Option<(ConfigMapRef, ConfigMapSource)>,
    workloads: WorkloadWatches,
    /// The namespaces that a selector does not match.
    without_opt_outs: Option<(Selector, Cache<()>)>,
    /// The namespaces that a selector matches.
    surge_namespaces: Option<(Selector, Cache<()>)>,
}

impl Observer {
    /// Opens the watches that are always needed.
    pub fn open(context: &OperatorContext<Settings>) -> Self {
        let watches = &context.watches;
        let client = || context.clients.watches.clone();
        let nodes = watches.cache("nodes", Api::<Node>::all(client()), Selection::all(), |node: Node| {
            // Nodes that no drain concerns are not kept at all.
            NodeView::project(&node).filter(NodeView::concerns_drains)
        });
        let budgets = watches.cache(
            "poddisruptionbudgets",
            Api::<PodDisruptionBudget>::all(client()),
            Selection::all(),
            |budget: PodDisruptionBudget| BudgetView::project(&budget),
        );
        context.readiness.require_watch(&nodes);
        context.readiness.require_watch(&budgets);
        let kinds = KindRegistry::spawn(watches, client());
        Self {
            watches: watches.clone(),
            client: client(),
            installation: (!context.args.dry_run).then(|| {
                let lease = context.component.lease_name(false);
                format!("{}/{lease}", context.args.namespace).into()
            }),
            nodes,
            budgets,
            indexed: Arc::default(),
            pods: PodWatches::new(watches, client()),
            signal: SignalWatches::new(watches, &kinds, &context.readiness),
            holds: HoldWatches::open(watches, &kinds),
            remediations: RemediationWatches::new(watches, &kinds),
            config_map: None,
            workloads: WorkloadWatches::new(watches, client()),
            without_opt_outs: None,
            surge_namespaces: None,
        }
    }

    /// Watches what the signal and its drain rules read, and nothing that an earlier one read.
    pub fn follow_signal(&mut self, signal: &UpgradeSignal) {
        self.signal.follow_kinds(signal.kinds_with_drain_rules());
    }

    /// Watches what tells remediations.
    pub fn follow_remediations(&mut self, policy: &Policy) {
        let namespace = policy.lease_namespace.as_deref();
        self.remediations.follow(namespace, &policy.remediation_kinds);
    }

    /// Reads managed-upgrade-operator's ConfigMap through the API, or stops doing so.
    pub fn follow_config_map(&mut self, wanted: Option<&ConfigMapRef>) {
        if self.config_map.as_ref().map(|(reference, _)| reference) == wanted {
            return;
        }
        self.config_map = wanted.map(|reference| {
            let source = ConfigMapSource::spawn(
                &self.watches,
                self.client.clone(),
                &reference.namespace,
                &reference.name,
                MANAGED_UPGRADE_CONFIG_KEY,
            );
            (reference.clone(), source)
        });
    }

    /// Watches the namespaces in which opt-outs do not count, if the policy makes a difference between namespaces.
    pub fn follow_opt_outs(&mut self, policy: &Policy) {
        let wanted = policy.opt_outs.namespaces.as_ref();
        if self.without_opt_outs.as_ref().map(|(selector, _)| selector) != wanted {
            self.without_opt_outs = wanted.map(|selector| (selector.clone(), self.namespaces(selector, false)));
        }
    }

    /// Watches the namespaces in which Deployments may be told to roll, if the policy makes a difference between namespaces.
    pub fn follow_surges(&mut self, policy: &Policy) {
        let wanted = policy.surge.as_ref().and_then(|surge| surge.namespaces.as_ref());
        if self.surge_namespaces.as_ref().map(|(selector, _)| selector) != wanted {
            self.surge_namespaces = wanted.map(|selector| (selector.clone(), self.namespaces(selector, true)));
        }
    }

    /// Watches the namespaces that the selector matches, or those that it does not.
    fn namespaces(&self, selector: &Selector, matching: bool) -> Cache<()> {
        let (selector, api) = (selector.clone(), Api::<Namespace>::all(self.client.clone()));
        let project = move |namespace: Namespace| {
            let labels = Labels::project(namespace.metadata.labels.as_ref(), |text| text.into());
            (selector.matches(&labels) == matching).then_some(())
        };
        self.watches.cache("namespaces", api, Selection::all(), project)
    }

    /// What managed-upgrade-operator's ConfigMap says, if it is read.
    pub fn managed_upgrade_config(&self) -> Option<ConfigMapText> {
        self.config_map.as_ref().map(|(_, source)| source.text())
    }

    /// Watches the pods of these nodes, and of no others; `false` if some of the watches are still to be opened.
    pub fn follow_pods_of(&mut self, nodes: &BTreeSet<NodeName>) -> bool {
        self.pods.follow(nodes)
    }

    /// Watches the workloads of these namespaces, and of no others.
    pub fn follow_workloads_of(&mut self, namespaces: &BTreeSet<Arc<str>>) {
        self.workloads.follow(namespaces);
    }

    /// This moment, once what every decision rests on is complete: absent from a cache that has not synced is not absent.
    pub fn snapshot(&mut self, memory: &Memory) -> Observed<Snapshot> {
        let again = self.waits_until();
        if !self.nodes.is_fresh() || !self.budgets.is_fresh() || again.is_some() {
            let why =
                "nodes, budgets, remediations or what the upgrade signal reads are incomplete or stale".to_owned();
            return Observed::Wait { why, again };
        }
        let budgets = self.budgets.snapshot();
        self.indexed = Arc::new(self.indexed.renewed(budgets.values().cloned()));
        let (drains, planned_pods) = self.holds.drains();
        let signals = self.signal.inputs();
        Observed::Ready(Snapshot {
            nodes: self.nodes.snapshot().values().cloned().collect(),
            pods: self.pods.pods(),
            pdb_force_drain_timeout: pdb_force_drain_timeout(&signals),
            signals,
            holds: self.holds.holds(budgets.values(), &drains),
            budgets: Arc::clone(&self.indexed),
            drains,
            planned_pods,
            lock_kinds: self.holds.kinds(),
            remediations: self.remediations.remediations(),
            without_opt_outs: known_names(self.without_opt_outs.as_ref()).unwrap_or_default(),
            surge_namespaces: self
                .surge_namespaces
                .as_ref()
                .map(|watched| known_names(Some(watched)).unwrap_or_default()),
            workloads: self.workloads.workloads(),
            installation: self.installation.clone(),
            memory: memory.clone(),
        })
    }

    /// Until when the first list of a kind that need not be installed is waited for, if one is still to come.
    fn waits_until(&self) -> Option<Timestamp> {
        let waits = [
            self.signal.waits_until(),
            self.remediations.waits_until(),
            self.holds.waits_until(),
        ];
        waits.into_iter().flatten().min()
    }
}

/// None while the labels of namespaces are not known: in doubt every opt-out counts, and no Deployment is told to roll.
fn known_names(watched: Option<&(Selector, Cache<()>)>) -> Option<BTreeSet<Arc<str>>> {
    let (_, cache) = watched.filter(|(_, cache)| cache.is_fresh())?;
    Some(cache.snapshot().keys().map(|key| Arc::clone(&key.name)).collect())
}
