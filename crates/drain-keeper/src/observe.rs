//! Observe: from watches to a [`Snapshot`]. Pods are watched only on draining nodes, one watch a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::DynamicObject;
use kube::{Api, Client};
use nodeward_core::budget::{BudgetView, Budgets};
use nodeward_core::deadline::later;
use nodeward_core::id::NodeName;
use nodeward_core::node::NodeView;
use nodeward_core::pod::PodView;
use nodeward_core::signal::{self, KindOfInterest, SignalInputs, UpgradeSignal};
use nodeward_runtime::{
    Cache, ConfigMapSource, ConfigMapText, DynamicCache, DynamicTarget, KindRegistry, KindState, OperatorContext,
    Selection, Watches,
};
use serde_json::Value;

use crate::policy::ConfigMapRef;
use crate::settings::Settings;
use crate::snapshot::{Memory, NodePods, Snapshot};

/// Key in managed-upgrade-operator's ConfigMap.
const MANAGED_UPGRADE_CONFIG_KEY: &str = "config.yaml";

/// How long decisions wait for the first list of a kind that the upgrade signal reads.
const LIST_PATIENCE: Duration = Duration::from_secs(30);

/// A watch that has not had a sign of life for so long is not believed: bookmarks come every minute.
const SILENCE: Duration = Duration::from_mins(5);

/// The watches of drain-keeper.
pub struct Observer {
    watches: Watches,
    client: Client,
    nodes: Cache<NodeView>,
    budgets: Cache<BudgetView>,
    pods: BTreeMap<NodeName, Cache<PodView>>,
    kinds: KindRegistry,
    signals: BTreeMap<KindOfInterest, SignalWatch>,
    /// What the signal reads and is not known yet, for the readiness probe.
    unsettled: Arc<Mutex<Vec<String>>>,
    config_map: Option<(ConfigMapRef, ConfigMapSource)>,
}

/// What the upgrade signal reads of one kind.
struct SignalWatch {
    cache: DynamicCache<Value>,
    opened: Instant,
}

impl SignalWatch {
    /// Until when its first list is waited for, if it is still to come. After that it counts as unknown, so that one kind
    /// that cannot be listed does not stop the others.
    fn waits_until(&self) -> Option<Instant> {
        let until = self.opened + LIST_PATIENCE;
        (self.cache.state() == KindState::Syncing && Instant::now() < until).then_some(until)
    }
}

impl Observer {
    /// Opens the watches that are always needed.
    pub fn open(context: &OperatorContext<Settings>) -> Self {
        let watches = &context.watches;
        let client = || context.clients.watches.clone();
        let nodes = watches.cache("nodes", Api::<Node>::all(client()), Selection::all(), |node: Node| {
            // Nodes that no drain concerns are not kept at all.
            NodeView::project(&node).filter(|view| view.drain.is_some())
        });
        let budgets = watches.cache(
            "poddisruptionbudgets",
            Api::<PodDisruptionBudget>::all(client()),
            Selection::all(),
            |budget: PodDisruptionBudget| BudgetView::project(&budget),
        );
        context.readiness.require_cache(&nodes);
        context.readiness.require_cache(&budgets);
        let unsettled: Arc<Mutex<Vec<String>>> = Arc::default();
        context.readiness.require("upgrade signal", {
            let unsettled = Arc::clone(&unsettled);
            move || {
                let unsettled = unsettled.lock().unwrap_or_else(PoisonError::into_inner);
                if unsettled.is_empty() {
                    Ok(())
                } else {
                    Err(format!("not listed yet: {}", unsettled.join(", ")))
                }
            }
        });
        let kinds = KindRegistry::spawn(watches, client());
        Self {
            watches: watches.clone(),
            client: client(),
            nodes,
            budgets,
            pods: BTreeMap::new(),
            kinds,
            signals: BTreeMap::new(),
            unsettled,
            config_map: None,
        }
    }

    /// Watches what the signal reads, and nothing that an earlier one read.
    pub fn follow_signal(&mut self, signal: &UpgradeSignal) {
        let wanted: BTreeSet<KindOfInterest> = signal.kinds().into_iter().collect();
        self.signals.retain(|kind, _| wanted.contains(kind));
        for kind in wanted {
            if self.signals.contains_key(&kind) {
                continue;
            }
            match target(&kind) {
                Ok(target) => {
                    let cache = self
                        .watches
                        .dynamic("upgrade signal", &self.kinds, target, whole_object);
                    self.signals.insert(
                        kind,
                        SignalWatch {
                            cache,
                            opened: Instant::now(),
                        },
                    );
                }
                Err(error) => tracing::error!(%error, %kind, "the upgrade signal names no kind that can be watched"),
            }
        }
        *self.unsettled.lock().unwrap_or_else(PoisonError::into_inner) = self
            .signals
            .iter()
            .filter(|(_, watch)| watch.cache.state() == KindState::Syncing)
            .map(|(kind, _)| kind.to_string())
            .collect();
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

    /// What managed-upgrade-operator's ConfigMap says, if it is read.
    pub fn managed_upgrade_config(&self) -> Option<ConfigMapText> {
        self.config_map.as_ref().map(|(_, source)| source.text())
    }

    /// Watches the pods of these nodes, and of no others.
    pub fn follow_pods_of(&mut self, nodes: &BTreeSet<NodeName>) {
        self.pods.retain(|node, _| nodes.contains(node));
        for node in nodes {
            if !self.pods.contains_key(node) {
                let cache = self.watches.cache(
                    "pods of a draining node",
                    Api::<Pod>::all(self.client.clone()),
                    Selection::all().fields(format!("spec.nodeName={node}")),
                    |pod: Pod| PodView::project(&pod),
                );
                self.pods.insert(node.clone(), cache);
            }
        }
    }

    /// This moment; `None` until what every decision rests on is complete: absent from a cache that has not synced is
    /// not absent.
    pub fn snapshot(&self, memory: &Memory) -> Option<Snapshot> {
        let is_complete = is_believed(&self.nodes) && is_believed(&self.budgets);
        if !is_complete || self.waits_until().is_some() {
            return None;
        }
        Some(Snapshot {
            nodes: self.nodes.snapshot().values().cloned().collect(),
            pods: self
                .pods
                .iter()
                .map(|(node, cache)| (node.clone(), pods_of(cache)))
                .collect(),
            budgets: Budgets::new(self.budgets.snapshot().values().cloned()),
            signals: self.signal_inputs(),
            // Claims and owners' holds come from drain-lock, remediations from health-check.
            holds: Vec::new(),
            remediations: BTreeSet::new(),
            memory: memory.clone(),
        })
    }

    /// Until when the first list of what the signal reads is waited for, if one is still to come.
    pub fn waits_until(&self) -> Option<Timestamp> {
        let until = self.signals.values().filter_map(SignalWatch::waits_until).min()?;
        let left = SignedDuration::try_from(until.saturating_duration_since(Instant::now())).ok()?;
        Some(later(Timestamp::now(), left))
    }

    fn signal_inputs(&self) -> SignalInputs {
        let mut inputs = SignalInputs::default();
        for (kind, SignalWatch { cache, .. }) in &self.signals {
            let state = match cache.state() {
                KindState::Absent => signal::KindState::Absent,
                KindState::Syncing => signal::KindState::Syncing,
                KindState::Forbidden(message) => signal::KindState::Forbidden(message.to_string()),
                KindState::Synced => signal::KindState::Objects(cache.snapshot().values().cloned().collect()),
            };
            inputs.insert(kind.clone(), state);
        }
        inputs
    }
}

/// Whether a cache's content can be decided by: complete, and not cut off from the server for long. An API server that
/// restarts answers 403 for a moment, which changes nothing; one that goes on answering so gives no sign of life.
fn is_believed<V>(cache: &Cache<V>) -> bool {
    let is_alive = cache
        .health()
        .last_contact
        .is_some_and(|contact| contact.elapsed() < SILENCE);
    cache.is_synced() && is_alive
}

fn pods_of(cache: &Cache<PodView>) -> NodePods {
    if is_believed(cache) {
        NodePods::Synced(cache.snapshot().values().cloned().collect())
    } else {
        NodePods::Syncing
    }
}

fn target(kind: &KindOfInterest) -> anyhow::Result<DynamicTarget> {
    let mut target = DynamicTarget::kind(&kind.api_version, &kind.kind)?;
    if let Some(namespace) = &kind.namespace {
        target = target.namespace(namespace);
    }
    if let Some(name) = &kind.name {
        target = target.name(name);
    }
    if let Some(selector) = &kind.selector {
        target = target.labels(selector);
    }
    Ok(target)
}

/// The object in the API's own shape, without what only the API server's bookkeeping needs.
fn whole_object(mut object: DynamicObject) -> Option<Value> {
    object.metadata.managed_fields = None;
    serde_json::to_value(object).ok()
}
