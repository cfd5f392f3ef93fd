//! PodDisruptionBudgets: which pods they select, and the room they leave, read as the eviction handler of Kubernetes
//! 1.35 reads them (`pkg/registry/core/pod/storage/eviction.go`). Percentages are never computed again: the status holds
//! what the disruption controller made of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use nodeward_api::drain_clock::LastOverride;
use nodeward_api::{annotation, label};

use crate::id::{BudgetKey, ResourceVersion};
use crate::pod::PodView;
use crate::selector::Selector;

/// The eviction handler refuses every eviction while more pods than these are marked as disrupted.
pub const MAX_DISRUPTED_PODS: usize = 2000;

/// A PodDisruptionBudget, projected to what decisions read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetView {
    /// Namespace and name.
    pub key: BudgetKey,
    /// UID.
    pub uid: Arc<str>,
    /// Resource version.
    pub resource_version: ResourceVersion,
    /// Which pods of its namespace it covers.
    pub selector: Selector,
    /// Labelled `nodeward.dev/force-drain: never`.
    pub never_forced: bool,
    /// Guards a Ceph daemon that Rook manages.
    pub ceph: bool,
    /// What an unready pod needs.
    pub unhealthy_policy: UnhealthyPolicy,
    /// `metadata.generation`.
    pub generation: i64,
    /// Status.
    pub status: BudgetStatus,
    /// The last time that drain-keeper overrode it.
    pub last_override: Option<LastOverride>,
}

/// `spec.unhealthyPodEvictionPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnhealthyPolicy {
    /// Unready pods may go while enough others are healthy; the default.
    #[default]
    IfHealthyBudget,
    /// Unready pods may always go.
    AlwaysAllow,
}

/// The budget's `status`; what is absent is 0, as in the API server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BudgetStatus {
    /// Generation that the rest was computed from.
    pub observed_generation: i64,
    /// Pods that may be disrupted now.
    pub disruptions_allowed: i32,
    /// Healthy pods.
    pub current_healthy: i32,
    /// Healthy pods that there must be.
    pub desired_healthy: i32,
    /// Pods that the budget counts.
    pub expected_pods: i32,
    /// Pods whose eviction was accepted and has not been seen yet, by name.
    pub disrupted_pods: BTreeMap<String, Timestamp>,
}

/// What a budget says to the eviction of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// The pod is finished, pending or terminating: no budget is asked.
    NotAsked,
    /// The pod is not ready, and such pods may go without using the budget up.
    UnreadyMayGo,
    /// This many disruptions are allowed.
    Left(i32),
    /// None is allowed.
    None(NoRoom),
}

/// Why a budget has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// `disruptionsAllowed` is 0.
    Exhausted,
    /// The status is older than the spec.
    StatusBehind,
    /// `disruptionsAllowed` is negative.
    Negative,
    /// More than [`MAX_DISRUPTED_PODS`] evictions are unconfirmed.
    TooManyDisrupted,
}

impl Room {
    /// Whether an eviction would be accepted.
    pub fn is_there(self) -> bool {
        !matches!(self, Self::None(_))
    }
}

impl BudgetView {
    /// Projects a budget as the API server sends it; `None` without namespace or name. A selector that does not parse
    /// selects nothing, as in the eviction handler.
    pub fn project(budget: &PodDisruptionBudget) -> Option<Self> {
        let meta = &budget.metadata;
        let spec = budget.spec.as_ref();
        let selector = Selector::parse(spec.and_then(|s| s.selector.as_ref())).unwrap_or(Selector::NOTHING);
        let labels = meta.labels.as_ref();
        let always_allow = spec.and_then(|s| s.unhealthy_pod_eviction_policy.as_deref()) == Some("AlwaysAllow");
        Some(Self {
            key: BudgetKey::new(meta.namespace.as_deref()?, meta.name.as_deref()?),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            resource_version: meta.resource_version.as_deref().unwrap_or_default().into(),
            never_forced: labels
                .and_then(|l| l.get(label::FORCE_DRAIN))
                .is_some_and(|value| value == label::FORCE_DRAIN_NEVER),
            ceph: guards_ceph(budget, &selector),
            selector,
            unhealthy_policy: if always_allow { UnhealthyPolicy::AlwaysAllow } else { UnhealthyPolicy::default() },
            generation: meta.generation.unwrap_or_default(),
            status: budget.status.as_ref().map(BudgetStatus::project).unwrap_or_default(),
            last_override: meta
                .annotations
                .as_ref()
                .and_then(|a| a.get(annotation::LAST_OVERRIDE))
                .and_then(|value| LastOverride::parse(value).ok()),
        })
    }

    /// Whether the eviction handler would apply this budget to the pod.
    pub fn selects(&self, pod: &PodView) -> bool {
        self.key.namespace == pod.key.namespace && self.selector.matches(&pod.labels)
    }

    /// What the eviction handler would say to an eviction of `pod`, in its order of checks.
    pub fn room(&self, pod: &PodView) -> Room {
        let status = &self.status;
        if pod.skips_budgets() {
            return Room::NotAsked;
        }
        if !pod.ready && (self.unhealthy_policy == UnhealthyPolicy::AlwaysAllow || status.has_healthy_budget()) {
            return Room::UnreadyMayGo;
        }
        if status.observed_generation < self.generation {
            return Room::None(NoRoom::StatusBehind);
        }
        if status.disruptions_allowed < 0 {
            return Room::None(NoRoom::Negative);
        }
        if status.disrupted_pods.len() > MAX_DISRUPTED_PODS {
            return Room::None(NoRoom::TooManyDisrupted);
        }
        match status.disruptions_allowed {
            0 => Room::None(NoRoom::Exhausted),
            left => Room::Left(left),
        }
    }
}

impl BudgetStatus {
    fn project(status: &k8s_openapi::api::policy::v1::PodDisruptionBudgetStatus) -> Self {
        Self {
            observed_generation: status.observed_generation.unwrap_or_default(),
            disruptions_allowed: status.disruptions_allowed,
            current_healthy: status.current_healthy,
            desired_healthy: status.desired_healthy,
            expected_pods: status.expected_pods,
            disrupted_pods: status
                .disrupted_pods
                .iter()
                .flatten()
                .map(|(pod, evicted)| (pod.clone(), evicted.0))
                .collect(),
        }
    }

    /// Whether the application is undisrupted, so that its unready pods may go.
    fn has_healthy_budget(&self) -> bool {
        self.current_healthy >= self.desired_healthy && self.desired_healthy > 0
    }
}

/// Labels that Rook puts on the daemons of a cluster, and so on what it makes for them.
const ROOK_LABELS: [&str; 4] = ["rook_cluster", "rook_file_system", "rook_object_store", "ceph_daemon_type"];

/// Whether Rook, or somebody who writes budgets for Rook's daemons, made this budget: the owner's group, Rook's labels on
/// the budget, or a selector that demands them. Rook's own budgets for the monitors carry neither labels nor an owner,
/// only the selector `app: rook-ceph-mon`.
fn guards_ceph(budget: &PodDisruptionBudget, selector: &Selector) -> bool {
    let is_daemon = |app: &str| app.starts_with("rook-ceph-");
    let meta = &budget.metadata;
    let owned = meta
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.api_version.split_once('/').is_some_and(|(group, _)| group == "ceph.rook.io"));
    let labelled = meta.labels.as_ref().is_some_and(|labels| {
        labels.get("app").is_some_and(|app| is_daemon(app)) || ROOK_LABELS.iter().any(|key| labels.contains_key(*key))
    });
    let selects_daemons =
        selector.demands("app", is_daemon) || ROOK_LABELS.iter().any(|key| selector.demands(key, |_| true));
    owned || labelled || selects_daemons
}

/// All budgets, by namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Budgets(HashMap<Arc<str>, Vec<Arc<BudgetView>>>);

impl Budgets {
    /// Indexes budgets; within a namespace they are in the order of their names.
    pub fn new(budgets: impl IntoIterator<Item = Arc<BudgetView>>) -> Self {
        let mut index: HashMap<Arc<str>, Vec<Arc<BudgetView>>> = HashMap::new();
        for budget in budgets {
            index.entry(Arc::clone(&budget.key.namespace)).or_default().push(budget);
        }
        for budgets in index.values_mut() {
            budgets.sort_by(|a, b| a.key.name.cmp(&b.key.name));
        }
        Self(index)
    }

    /// The budgets of a namespace.
    pub fn in_namespace(&self, namespace: &str) -> &[Arc<BudgetView>] {
        self.0.get(namespace).map(Vec::as_slice).unwrap_or_default()
    }

    /// The budgets that select a pod. More than one makes the eviction handler answer 500.
    pub fn matching(&self, pod: &PodView) -> Vec<&Arc<BudgetView>> {
        self.in_namespace(&pod.key.namespace).iter().filter(|budget| budget.selects(pod)).collect()
    }

    /// One budget.
    pub fn get(&self, key: &BudgetKey) -> Option<&Arc<BudgetView>> {
        self.in_namespace(&key.namespace).iter().find(|budget| budget.key == *key)
    }
}
