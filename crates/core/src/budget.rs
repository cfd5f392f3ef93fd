//! PodDisruptionBudgets: which pods they select, and the room they leave, read as the eviction handler of Kubernetes
//! 1.35 reads them (`pkg/registry/core/pod/storage/eviction.go`). Percentages are never computed again: the status holds
//! what the disruption controller made of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use nodeward_api::last_override::LastOverride;
use nodeward_api::reason::BlockerReason;
use nodeward_api::{annotation, label};

use crate::deadline::{is_due, saturating_add};
use crate::id::{BudgetKey, ResourceVersion};
use crate::pod::PodView;
use crate::selector::Selector;

/// How long the disruption controller may take to count a budget whose spec has changed.
const COUNTED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// The eviction handler refuses every eviction while more pods than these are marked as disrupted.
pub const MAX_DISRUPTED_PODS: usize = 2000;

/// What the label `nodeward.dev/force-drain` of a budget says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ForceDrain {
    /// Nothing.
    #[default]
    Unlabelled,
    Allowed,
    Never,
    /// A value that nobody knows may have meant `never`, and counts as that.
    Unknown(Arc<str>),
}

impl ForceDrain {
    fn of(label: Option<&String>) -> Self {
        match label.map(String::as_str) {
            None => Self::Unlabelled,
            Some(label::FORCE_DRAIN_ALLOWED) => Self::Allowed,
            Some(label::FORCE_DRAIN_NEVER) => Self::Never,
            Some(unknown) => Self::Unknown(unknown.into()),
        }
    }
}

/// A PodDisruptionBudget, projected to what decisions read.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is true or not, whatever the others are"
)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetView {
    /// Namespace and name.
    pub key: BudgetKey,
    pub uid: Arc<str>,
    pub resource_version: ResourceVersion,
    /// Which pods of its namespace it covers.
    pub selector: Selector,
    /// Whether its owner lets its pods be forced.
    pub force_drain: ForceDrain,
    /// Guards a Ceph daemon that Rook manages.
    pub ceph: bool,
    /// Rook or ceph-pdb keeps it, and opens and closes it as Ceph stands.
    pub kept_by_ceph_operator: bool,
    /// Its pods of one node take one disruption together: its annotation `nodeward.dev/counts` says so, or it is Rook's for OSDs.
    pub counts_nodes: bool,
    /// What an unready pod needs.
    pub unhealthy_policy: UnhealthyPolicy,
    /// `metadata.generation`.
    pub generation: i64,
    /// When somebody last wrote it, but for its status; where the server does not tell, when it was created.
    pub written: Timestamp,
    pub status: BudgetStatus,
    /// The last time that drain-keeper overrode it, by the API server's clock where that is known.
    pub last_override: Option<LastOverride>,
    /// Its owner holds all of it (annotation `nodeward.dev/hold`).
    pub hold: Option<AnnotatedHold>,
    /// Value of the annotation `nodeward.dev/hold-until`, whatever it says.
    pub hold_until: Option<Arc<str>>,
}

/// An owner's hold in its short form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotatedHold {
    pub reason: Arc<str>,
    /// When it was written, by the API server's clock; `None` where the server does not tell.
    pub since: Option<Timestamp>,
    /// When it ends, once drain-lock has said so.
    pub until: Option<Timestamp>,
}

impl AnnotatedHold {
    fn of(meta: &ObjectMeta) -> Option<Self> {
        let annotations = meta.annotations.as_ref()?;
        let since = last_written(meta, annotation::HOLD);
        let until = annotations.get(annotation::HOLD_UNTIL);
        let until = until.and_then(|time| time.parse().ok());
        Some(Self {
            reason: annotations.get(annotation::HOLD)?.as_str().into(),
            since,
            // An end from before is that of an earlier hold.
            until: until.filter(|until| since.is_none_or(|since| since < *until)),
        })
    }

    /// Whether it counts at `now`.
    pub fn is_in_force(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
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
    /// The disruption controller cannot count its pods (condition `DisruptionAllowed`, reason `SyncFailed`).
    pub sync_failed: bool,
}

/// What a budget says to the eviction of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisruptionAllowance {
    /// The pod is finished, pending or terminating: no budget is asked.
    NotAsked,
    /// The pod is not ready, and such pods may go without using the budget up.
    UnreadyMayGo,
    /// This many disruptions are allowed.
    Left(i32),
    None(NoAllowance),
}

/// Why a budget has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAllowance {
    /// `disruptionsAllowed` is 0.
    Exhausted,
    /// The status is older than the spec.
    StatusBehind,
    /// `disruptionsAllowed` is negative.
    Negative,
    /// More than [`MAX_DISRUPTED_PODS`] evictions are unconfirmed.
    TooManyDisrupted,
}

impl DisruptionAllowance {
    /// Whether an eviction would be accepted.
    pub fn is_available(self) -> bool {
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
        let force_drain = meta.labels.as_ref().and_then(|labels| labels.get(label::FORCE_DRAIN));
        let annotation = |key| meta.annotations.as_ref().and_then(|annotations| annotations.get(key));
        let always_allow = spec.and_then(|s| s.unhealthy_pod_eviction_policy.as_deref()) == Some("AlwaysAllow");
        Some(Self {
            key: BudgetKey::new(meta.namespace.as_deref()?, meta.name.as_deref()?),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            resource_version: meta.resource_version.as_deref().unwrap_or_default().into(),
            force_drain: ForceDrain::of(force_drain),
            ceph: guards_ceph(budget, &selector),
            kept_by_ceph_operator: is_kept_by_ceph_operator(budget),
            counts_nodes: annotation(annotation::COUNTS).is_some_and(|value| value == annotation::COUNTS_NODE)
                || (is_owned_by_rooks_kinds(meta) && selector.demands("app", |app| app == OSD_APP)),
            selector,
            unhealthy_policy: if always_allow {
                UnhealthyPolicy::AlwaysAllow
            } else {
                UnhealthyPolicy::default()
            },
            generation: meta.generation.unwrap_or_default(),
            written: written(meta),
            status: budget.status.as_ref().map(BudgetStatus::project).unwrap_or_default(),
            last_override: last_override(meta),
            hold: AnnotatedHold::of(meta),
            hold_until: annotation(annotation::HOLD_UNTIL).map(|time| time.as_str().into()),
        })
    }

    /// Whether the eviction handler would apply this budget to the pod.
    pub fn selects(&self, pod: &PodView) -> bool {
        self.key.namespace == pod.key.namespace && self.selector.matches(&pod.labels)
    }

    /// Why it is never overridden, whatever the waits; `None` for a budget that may be. The label comes before Ceph: it
    /// is what somebody wrote. Of several budgets' reasons the least ([`Ord`]) is therefore the one to name.
    pub fn forbids_force(&self) -> Option<BlockerReason> {
        if matches!(self.force_drain, ForceDrain::Never | ForceDrain::Unknown(_)) {
            return Some(BlockerReason::BudgetNeverForced);
        }
        self.ceph.then_some(BlockerReason::CephBudget)
    }

    /// Whether the disruption controller has seen the budget's present spec, so that its status speaks of it.
    pub fn is_status_current(&self) -> bool {
        self.status.observed_generation >= self.generation
    }

    /// Whether its status says nothing, and will not in time: the disruption controller says that it cannot count the pods, or has
    /// not seen the spec for longer than it takes.
    pub fn cannot_be_counted(&self, now: Timestamp) -> bool {
        let is_behind = !self.is_status_current() && is_due(saturating_add(self.written, COUNTED_WITHIN), now);
        self.status.sync_failed || is_behind
    }

    /// Whether as many pods are healthy as there must be, by a status that is current: whatever was taken from the budget
    /// has been made good.
    ///
    /// Not the eviction handler's rule for unready pods, which asks for `desiredHealthy > 0` on top, lest a budget that
    /// counts nothing let every unready pod go, and never asks for the generation. A budget that demands nothing has
    /// nothing to recover.
    pub fn has_recovered(&self) -> bool {
        let is_counted = self.is_status_current() && !self.status.sync_failed;
        is_counted && self.status.current_healthy >= self.status.desired_healthy
    }

    /// Whether the eviction handler lets an unready pod go without using the budget up (`unhealthyPodEvictionPolicy`).
    pub fn lets_unready_go(&self) -> bool {
        self.always_lets_unready_go() || self.status.has_healthy_budget()
    }

    /// Whether it does so whatever the budget's pods do.
    pub fn always_lets_unready_go(&self) -> bool {
        self.unhealthy_policy == UnhealthyPolicy::AlwaysAllow
    }

    /// What the eviction handler would say to an eviction of `pod`, in its order of checks.
    pub fn allowance(&self, pod: &PodView) -> DisruptionAllowance {
        let status = &self.status;
        if pod.skips_budgets() {
            return DisruptionAllowance::NotAsked;
        }
        if !pod.ready && self.lets_unready_go() {
            return DisruptionAllowance::UnreadyMayGo;
        }
        if !self.is_status_current() {
            return DisruptionAllowance::None(NoAllowance::StatusBehind);
        }
        if status.disruptions_allowed < 0 {
            return DisruptionAllowance::None(NoAllowance::Negative);
        }
        if status.disrupted_pods.len() > MAX_DISRUPTED_PODS {
            return DisruptionAllowance::None(NoAllowance::TooManyDisrupted);
        }
        match status.disruptions_allowed {
            0 => DisruptionAllowance::None(NoAllowance::Exhausted),
            left => DisruptionAllowance::Left(left),
        }
    }
}

impl BudgetStatus {
    fn project(status: &k8s_openapi::api::policy::v1::PodDisruptionBudgetStatus) -> Self {
        let disrupted = status.disrupted_pods.iter().flatten();
        let conditions = status.conditions.iter().flatten();
        let mut allowed = conditions.filter(|condition| condition.type_ == "DisruptionAllowed");
        Self {
            observed_generation: status.observed_generation.unwrap_or_default(),
            disruptions_allowed: status.disruptions_allowed,
            current_healthy: status.current_healthy,
            desired_healthy: status.desired_healthy,
            expected_pods: status.expected_pods,
            disrupted_pods: disrupted.map(|(pod, evicted)| (pod.clone(), evicted.0)).collect(),
            sync_failed: allowed.any(|allowed| allowed.status == "False" && allowed.reason == "SyncFailed"),
        }
    }

    /// Whether the application is undisrupted, so that its unready pods may go.
    fn has_healthy_budget(&self) -> bool {
        self.current_healthy >= self.desired_healthy && self.desired_healthy > 0
    }
}

/// The record of the last override, at the time when the API server took it in. The clock of the machine that wrote it may be
/// behind: the wait for the next override would be over before it began.
fn last_override(meta: &ObjectMeta) -> Option<LastOverride> {
    let written = meta.annotations.as_ref()?.get(annotation::LAST_OVERRIDE)?;
    let record = LastOverride::parse(written).ok()?;
    let taken_in = last_written(meta, annotation::LAST_OVERRIDE);
    // The server tells whole seconds.
    let within = |second| {
        record
            .at
            .clamp(second, saturating_add(second, SignedDuration::from_secs(1)))
    };
    let at = taken_in.map_or(record.at, within);
    Some(LastOverride { at, ..record })
}

fn written(meta: &ObjectMeta) -> Timestamp {
    let managers = meta.managed_fields.iter().flatten();
    let of_object = managers.filter(|entry| entry.subresource.is_none());
    let written = of_object.filter_map(|entry| entry.time.as_ref());
    let known = written.chain(&meta.creation_timestamp).map(|time| time.0);
    known.max().unwrap_or(Timestamp::MAX)
}

/// When the API server last took in a write of whoever manages this annotation.
fn last_written(meta: &ObjectMeta, annotation: &str) -> Option<Timestamp> {
    let field = format!("/f:metadata/f:annotations/f:{}", annotation.replace('/', "~1"));
    let wrote_it = |entry: &&ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref();
        fields.is_some_and(|fields| fields.0.pointer(&field).is_some())
    };
    let writers = meta.managed_fields.iter().flatten().filter(wrote_it);
    writers.filter_map(|entry| Some(entry.time.as_ref()?.0)).max()
}

/// Value of the label `app` on OSDs.
pub const OSD_APP: &str = "rook-ceph-osd";

/// Labels that Rook puts on the daemons of a cluster, and so on what it makes for them.
const ROOK_LABELS: [&str; 4] = [
    "rook_cluster",
    "rook_file_system",
    "rook_object_store",
    "ceph_daemon_type",
];

/// Whether Rook, or somebody who writes budgets for Rook's daemons, made this budget: the owner's group, Rook's labels on
/// the budget, or a selector that demands them. Rook's own budgets for the monitors carry neither labels nor an owner,
/// only the selector `app: rook-ceph-mon`.
fn guards_ceph(budget: &PodDisruptionBudget, selector: &Selector) -> bool {
    let is_daemon = |app: &str| app.starts_with("rook-ceph-");
    let meta = &budget.metadata;
    let labelled = meta.labels.as_ref().is_some_and(|labels| {
        let is_rooks = |key: &String| ROOK_LABELS.contains(&key.as_str()) || key.starts_with("ceph.rook.io/");
        labels.get("app").is_some_and(|app| is_daemon(app)) || labels.keys().any(is_rooks)
    });
    let selects_daemons =
        selector.demands("app", is_daemon) || ROOK_LABELS.iter().any(|key| selector.demands(key, |_| true));
    is_owned_by_rooks_kinds(meta) || labelled || selects_daemons
}

/// Whether Rook or ceph-pdb keeps this budget: it is owned by a CephCluster or another of Rook's kinds, or ceph-pdb says so. A
/// person's own budget may have every label that a daemon has.
fn is_kept_by_ceph_operator(budget: &PodDisruptionBudget) -> bool {
    let meta = &budget.metadata;
    let managed_by = meta.labels.as_ref().and_then(|labels| labels.get(label::MANAGED_BY));
    is_owned_by_rooks_kinds(meta) || managed_by.is_some_and(|component| component == label::MANAGED_BY_CEPH_PDB)
}

fn is_owned_by_rooks_kinds(meta: &ObjectMeta) -> bool {
    let mut owners = meta.owner_references.iter().flatten();
    owners.any(|owner| owner.api_version.starts_with("ceph.rook.io/"))
}

/// All budgets, by namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Budgets(HashMap<Arc<str>, Arc<NamespaceBudgets>>);

/// Budgets of one namespace. Most select by the value of a label, so that a pod's labels lead to the few that may select it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NamespaceBudgets {
    /// In the order of their names.
    budgets: Vec<Arc<BudgetView>>,
    /// Positions in `budgets`, by a label's value that each of these demands.
    by_value: HashMap<Arc<str>, Vec<usize>>,
    /// Positions of the others.
    others: Vec<usize>,
}

impl Budgets {
    /// Indexes budgets; within a namespace they are in the order of their names.
    pub fn new(budgets: impl IntoIterator<Item = Arc<BudgetView>>) -> Self {
        Self::default().renewed(budgets)
    }

    /// As [`Budgets::new`], on top of an earlier index: a namespace whose budgets are the very same is not indexed again.
    #[must_use]
    pub fn renewed(&self, budgets: impl IntoIterator<Item = Arc<BudgetView>>) -> Self {
        let mut namespaces: HashMap<Arc<str>, Vec<Arc<BudgetView>>> = HashMap::with_capacity(self.0.len());
        for budget in budgets {
            let namespace = namespaces.entry(Arc::clone(&budget.key.namespace));
            namespace.or_default().push(budget);
        }
        let indexed = namespaces.into_iter().map(|(name, budgets)| {
            let known = self.0.get(&name).filter(|known| known.are(&budgets));
            let namespace = known.map_or_else(|| Arc::new(NamespaceBudgets::new(budgets)), Arc::clone);
            (name, namespace)
        });
        Self(indexed.collect())
    }

    pub fn in_namespace(&self, namespace: &str) -> &[Arc<BudgetView>] {
        self.0
            .get(namespace)
            .map_or(&[], |namespace| namespace.budgets.as_slice())
    }

    /// The budgets that select a pod. More than one makes the eviction handler answer 500.
    pub fn matching(&self, pod: &PodView) -> Vec<&Arc<BudgetView>> {
        let Some(namespace) = self.0.get(&pod.key.namespace) else {
            return Vec::new();
        };
        let by_value = pod.labels.iter().filter_map(|(_, value)| namespace.by_value.get(value));
        let mut positions: Vec<usize> = by_value.chain([&namespace.others]).flatten().copied().collect();
        // Several labels may have the same value.
        positions.sort_unstable();
        positions.dedup();
        let budgets = positions
            .into_iter()
            .filter_map(|position| namespace.budgets.get(position));
        budgets.filter(|budget| budget.selects(pod)).collect()
    }

    pub fn get(&self, key: &BudgetKey) -> Option<&Arc<BudgetView>> {
        let mut budgets = self.in_namespace(&key.namespace).iter();
        budgets.find(|budget| budget.key == *key)
    }
}

impl NamespaceBudgets {
    fn new(mut budgets: Vec<Arc<BudgetView>>) -> Self {
        budgets.sort_by(|a, b| a.key.name.cmp(&b.key.name));
        let (mut by_value, mut others): (HashMap<Arc<str>, Vec<usize>>, _) = (HashMap::new(), Vec::new());
        for (position, budget) in budgets.iter().enumerate() {
            match budget.selector.demanded_value() {
                Some(value) => by_value.entry(value.into()).or_default().push(position),
                None => others.push(position),
            }
        }
        Self {
            budgets,
            by_value,
            others,
        }
    }

    /// Whether these are the very budgets that it holds, in their order.
    fn are(&self, budgets: &[Arc<BudgetView>]) -> bool {
        let mut pairs = self.budgets.iter().zip(budgets);
        self.budgets.len() == budgets.len() && pairs.all(|(known, budget)| Arc::ptr_eq(known, budget))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn project(metadata: Value, spec: Value, status: Value) -> BudgetView {
        let mut budget = json!({ "metadata": { "namespace": "shop", "name": "web" }, "spec": spec, "status": status });
        for (key, value) in metadata.as_object().unwrap() {
            budget["metadata"][key] = value.clone();
        }
        BudgetView::project(&serde_json::from_value(budget).unwrap()).unwrap()
    }

    fn with_spec(spec: Value) -> BudgetView {
        project(json!({}), spec, json!({}))
    }

    fn pod(patch: Value) -> PodView {
        let mut pod = json!({
            "metadata": { "namespace": "shop", "name": "web-0", "labels": { "app": "web" } },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        for (section, fields) in patch.as_object().unwrap() {
            for (key, value) in fields.as_object().unwrap() {
                pod[section][key] = value.clone();
            }
        }
        PodView::project(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn not_ready() -> PodView {
        pod(json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }))
    }

    #[test]
    fn a_budget_is_projected_to_what_decisions_read() {
        let budget = project(
            json!({ "uid": "u1", "resourceVersion": "7", "generation": 3 }),
            json!({ "minAvailable": "50%", "selector": { "matchLabels": { "app": "web" } } }),
            json!({
                "observedGeneration": 2, "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2,
                "expectedPods": 4, "disruptedPods": { "web-1": "2026-01-02T03:04:05Z" },
            }),
        );
        assert_eq!(budget.key, BudgetKey::new("shop", "web"));
        assert_eq!(
            (&*budget.uid, budget.resource_version.as_str(), budget.generation),
            ("u1", "7", 3)
        );
        assert_eq!(
            (budget.force_drain.clone(), budget.ceph, budget.last_override.clone()),
            (ForceDrain::Unlabelled, false, None)
        );
        assert_eq!(budget.unhealthy_policy, UnhealthyPolicy::IfHealthyBudget);
        let disrupted = [("web-1".to_owned(), "2026-01-02T03:04:05Z".parse().unwrap())];
        assert_eq!(
            budget.status,
            BudgetStatus {
                observed_generation: 2,
                disruptions_allowed: 1,
                current_healthy: 3,
                desired_healthy: 2,
                expected_pods: 4,
                disrupted_pods: disrupted.into(),
                sync_failed: false,
            }
        );
    }

    #[test]
    fn a_budget_without_namespace_or_name_is_none() {
        assert_eq!(BudgetView::project(&PodDisruptionBudget::default()), None);
    }

    #[rstest]
    #[case::null_selects_nothing(json!({}), false)]
    #[case::empty_selects_all(json!({ "selector": {} }), true)]
    #[case::labels(json!({ "selector": { "matchLabels": { "app": "web" } } }), true)]
    #[case::all_labels_must_match(json!({ "selector": { "matchLabels": { "app": "web", "tier": "front" } } }), false)]
    #[case::expressions_alone(json!({ "selector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["web"] }] } }), true)]
    #[case::both_must_hold(
        json!({ "selector": { "matchLabels": { "app": "web" }, "matchExpressions": [{ "key": "app", "operator": "DoesNotExist" }] } }),
        false
    )]
    #[case::unparsable_selects_nothing(json!({ "selector": { "matchExpressions": [{ "key": "app", "operator": "Near" }] } }), false)]
    fn a_budget_selects_as_the_eviction_handler_does(#[case] spec: Value, #[case] selects: bool) {
        assert_eq!(with_spec(spec).selects(&pod(json!({}))), selects);
    }

    #[test]
    fn a_budget_of_another_namespace_never_selects() {
        let budget = project(json!({ "namespace": "other" }), json!({ "selector": {} }), json!({}));
        assert!(!budget.selects(&pod(json!({}))));
    }

    fn status(allowed: i32, current: i32, desired: i32) -> Value {
        json!({ "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": current, "desiredHealthy": desired, "expectedPods": 5 })
    }

    const ALWAYS: &str = "AlwaysAllow";
    const IF_HEALTHY: &str = "IfHealthyBudget";

    #[rstest]
    #[case::room(IF_HEALTHY, status(2, 4, 2), pod(json!({})), DisruptionAllowance::Left(2))]
    #[case::exhausted(IF_HEALTHY, status(0, 2, 2), pod(json!({})), DisruptionAllowance::None(NoAllowance::Exhausted))]
    #[case::negative(IF_HEALTHY, status(-1, 1, 2), pod(json!({})), DisruptionAllowance::None(NoAllowance::Negative))]
    #[case::unready_and_healthy_budget(IF_HEALTHY, status(0, 2, 2), not_ready(), DisruptionAllowance::UnreadyMayGo)]
    #[case::unready_and_too_few_healthy(
        IF_HEALTHY,
        status(0, 1, 2),
        not_ready(),
        DisruptionAllowance::None(NoAllowance::Exhausted)
    )]
    #[case::unready_and_nothing_desired(
        IF_HEALTHY,
        status(0, 0, 0),
        not_ready(),
        DisruptionAllowance::None(NoAllowance::Exhausted)
    )]
    #[case::unready_falls_back_to_the_count(IF_HEALTHY, status(1, 1, 2), not_ready(), DisruptionAllowance::Left(1))]
    #[case::unready_always(ALWAYS, status(0, 0, 2), not_ready(), DisruptionAllowance::UnreadyMayGo)]
    #[case::ready_is_no_concern_of_always(ALWAYS, status(0, 2, 2), pod(json!({})), DisruptionAllowance::None(NoAllowance::Exhausted))]
    #[case::an_unknown_policy_is_the_default(
        "Whatever",
        status(0, 0, 2),
        not_ready(),
        DisruptionAllowance::None(NoAllowance::Exhausted)
    )]
    #[case::finished(IF_HEALTHY, status(0, 2, 2), pod(json!({ "status": { "phase": "Succeeded" } })), DisruptionAllowance::NotAsked)]
    #[case::failed(IF_HEALTHY, status(0, 2, 2), pod(json!({ "status": { "phase": "Failed" } })), DisruptionAllowance::NotAsked)]
    #[case::pending(IF_HEALTHY, status(0, 2, 2), pod(json!({ "status": { "phase": "Pending" } })), DisruptionAllowance::NotAsked)]
    #[case::terminating(
        IF_HEALTHY, status(0, 2, 2), pod(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })), DisruptionAllowance::NotAsked
    )]
    #[case::no_status_at_all(IF_HEALTHY, json!({}), pod(json!({})), DisruptionAllowance::None(NoAllowance::StatusBehind))]
    fn room_is_what_the_eviction_handler_would_say(
        #[case] policy: &str,
        #[case] status: Value,
        #[case] pod: PodView,
        #[case] room: DisruptionAllowance,
    ) {
        let spec = json!({ "selector": {}, "unhealthyPodEvictionPolicy": policy });
        let budget = project(json!({ "generation": 1 }), spec, status);
        assert_eq!(budget.allowance(&pod), room);
        assert_eq!(
            budget.allowance(&pod).is_available(),
            !matches!(room, DisruptionAllowance::None(_))
        );
    }

    #[rstest]
    #[case::behind(3, 2, pod(json!({})), DisruptionAllowance::None(NoAllowance::StatusBehind))]
    #[case::level(3, 3, pod(json!({})), DisruptionAllowance::Left(1))]
    #[case::ahead(3, 4, pod(json!({})), DisruptionAllowance::Left(1))]
    // The handler looks at unready pods first.
    #[case::unready_before_the_generation(3, 2, not_ready(), DisruptionAllowance::UnreadyMayGo)]
    fn a_status_that_lags_its_spec_leaves_no_room(
        #[case] generation: i64,
        #[case] observed: i64,
        #[case] pod: PodView,
        #[case] room: DisruptionAllowance,
    ) {
        let mut status = status(1, 3, 2);
        status["observedGeneration"] = observed.into();
        assert_eq!(
            project(json!({ "generation": generation }), json!({ "selector": {} }), status).allowance(&pod),
            room
        );
    }

    #[rstest]
    #[case(MAX_DISRUPTED_PODS, DisruptionAllowance::Left(1))]
    #[case(MAX_DISRUPTED_PODS + 1, DisruptionAllowance::None(NoAllowance::TooManyDisrupted))]
    fn too_many_unconfirmed_evictions_leave_no_room(#[case] count: usize, #[case] room: DisruptionAllowance) {
        let mut budget = project(json!({ "generation": 1 }), json!({ "selector": {} }), status(1, 3, 2));
        budget.status.disrupted_pods = (0..count).map(|i| (format!("p{i}"), Timestamp::UNIX_EPOCH)).collect();
        assert_eq!(budget.allowance(&pod(json!({}))), room);
    }

    #[rstest]
    #[case::never(json!({ "labels": { "nodeward.dev/force-drain": "never" } }), ForceDrain::Never)]
    #[case::allowed(json!({ "labels": { "nodeward.dev/force-drain": "allowed" } }), ForceDrain::Allowed)]
    #[case::another_spelling(json!({ "labels": { "nodeward.dev/force-drain": "Allowed" } }), ForceDrain::Unknown("Allowed".into()))]
    #[case::empty(json!({ "labels": { "nodeward.dev/force-drain": "" } }), ForceDrain::Unknown("".into()))]
    #[case::an_annotation_is_no_label(json!({ "annotations": { "nodeward.dev/force-drain": "never" } }), ForceDrain::Unlabelled)]
    fn label_says_whether_pods_may_be_forced(#[case] metadata: Value, #[case] force_drain: ForceDrain) {
        assert_eq!(project(metadata, json!({}), json!({})).force_drain, force_drain);
    }

    #[rstest]
    #[case::neither(ForceDrain::Unlabelled, false, None)]
    #[case::label(ForceDrain::Never, false, Some(BlockerReason::BudgetNeverForced))]
    #[case::unknown_label(ForceDrain::Unknown("no".into()), false, Some(BlockerReason::BudgetNeverForced))]
    #[case::ceph(ForceDrain::Unlabelled, true, Some(BlockerReason::CephBudget))]
    #[case::ceph_whatever_is_allowed(ForceDrain::Allowed, true, Some(BlockerReason::CephBudget))]
    #[case::label_before_ceph(ForceDrain::Never, true, Some(BlockerReason::BudgetNeverForced))]
    fn labelled_and_ceph_budgets_are_never_overridden(
        #[case] force_drain: ForceDrain,
        #[case] ceph: bool,
        #[case] reason: Option<BlockerReason>,
    ) {
        let budget = BudgetView {
            force_drain,
            ceph,
            ..with_spec(json!({}))
        };
        assert_eq!(budget.forbids_force(), reason);
    }

    #[test]
    fn of_several_budgets_reasons_the_least_is_the_labels() {
        assert!(BlockerReason::BudgetNeverForced < BlockerReason::CephBudget);
    }

    #[rstest]
    #[case::enough(1, 2, 2, true, true)]
    #[case::more_than_enough(1, 3, 2, true, true)]
    #[case::too_few(1, 1, 2, true, false)]
    #[case::nothing_demanded(1, 0, 0, true, true)]
    #[case::status_behind(0, 2, 2, false, false)]
    #[case::status_ahead(2, 2, 2, true, true)]
    fn budget_recovers_by_a_current_status(
        #[case] observed: i64,
        #[case] healthy: i32,
        #[case] desired: i32,
        #[case] current: bool,
        #[case] recovered: bool,
    ) {
        let mut status = status(0, healthy, desired);
        status["observedGeneration"] = observed.into();
        let budget = project(json!({ "generation": 1 }), json!({}), status);
        assert_eq!(
            (budget.is_status_current(), budget.has_recovered()),
            (current, recovered)
        );
    }

    #[rstest]
    #[case::counted(1, json!({}), false)]
    #[case::changed_a_moment_ago(0, json!({ "managedFields": [{ "time": "2026-01-01T00:59:30Z" }] }), false)]
    #[case::not_seen_for_long(0, json!({ "managedFields": [{ "time": "2026-01-01T00:58:59Z" }] }), true)]
    #[case::its_status_alone_was_written(
        0, json!({ "managedFields": [{ "time": "2026-01-01T00:59:30Z", "subresource": "status" }] }), true
    )]
    fn budget_that_is_not_counted_in_time_never_will_be(
        #[case] observed: i64,
        #[case] metadata: Value,
        #[case] never: bool,
    ) {
        let mut given = json!({ "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z" });
        given
            .as_object_mut()
            .unwrap()
            .extend(metadata.as_object().unwrap().clone());
        let mut status = status(0, 2, 2);
        status["observedGeneration"] = observed.into();
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        assert_eq!(
            project(given.clone(), json!({}), status.clone()).cannot_be_counted(now),
            never
        );
        status["conditions"] = json!([{
            "type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "",
            "lastTransitionTime": "2026-01-01T00:59:59Z",
        }]);
        let failed = project(given, json!({}), status);
        assert!(failed.cannot_be_counted(now) && !failed.has_recovered());
    }

    #[rstest]
    #[case::owner(json!({ "ownerReferences": [{ "apiVersion": "ceph.rook.io/v1", "kind": "CephCluster", "name": "c", "uid": "u" }] }), json!({}), true)]
    #[case::another_group(json!({ "ownerReferences": [{ "apiVersion": "rook.io/v1", "kind": "Cluster", "name": "c", "uid": "u" }] }), json!({}), false)]
    #[case::app_label(json!({ "labels": { "app": "rook-ceph-mgr" } }), json!({}), true)]
    #[case::operator_is_a_daemon_too(json!({ "labels": { "app": "rook-ceph-operator" } }), json!({}), true)]
    #[case::cluster_label(json!({ "labels": { "rook_cluster": "rook-ceph" } }), json!({}), true)]
    #[case::group_label(json!({ "labels": { "ceph.rook.io/DeviceSet": "s" } }), json!({}), true)]
    #[case::another_app(json!({ "labels": { "app": "web" } }), json!({ "selector": { "matchLabels": { "app": "web" } } }), false)]
    // Rook's own budgets for its monitors: no owner and no labels.
    #[case::monitors(json!({}), json!({ "selector": { "matchLabels": { "app": "rook-ceph-mon" } } }), true)]
    #[case::osds(json!({}), json!({ "selector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["rook-ceph-osd"] }] } }), true)]
    #[case::file_system(json!({}), json!({ "selector": { "matchLabels": { "rook_file_system": "fs" } } }), true)]
    #[case::all_but_ceph(json!({}), json!({ "selector": { "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["rook-ceph-osd"] }] } }), false)]
    #[case::ceph_among_others(json!({}), json!({ "selector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["rook-ceph-osd", "web"] }] } }), false)]
    #[case::everything(json!({}), json!({ "selector": {} }), false)]
    fn ceph_budgets_are_known_by_owner_label_selector(
        #[case] metadata: Value,
        #[case] spec: Value,
        #[case] ceph: bool,
    ) {
        assert_eq!(project(metadata, spec, json!({})).ceph, ceph);
    }

    const OSDS: &str = "rook-ceph-osd";

    fn rooks() -> Value {
        json!({ "ownerReferences": [{ "apiVersion": "ceph.rook.io/v1", "kind": "CephCluster", "name": "c", "uid": "u" }] })
    }

    #[rstest]
    #[case::rooks(rooks(), OSDS, true, true)]
    #[case::ceph_pdbs(
        json!({ "labels": { "app.kubernetes.io/managed-by": "nodeward-ceph-pdb" }, "annotations": { "nodeward.dev/counts": "node" } }),
        OSDS, true, true
    )]
    #[case::ceph_pdbs_over_others(json!({ "labels": { "app.kubernetes.io/managed-by": "nodeward-ceph-pdb" } }), OSDS, true, false)]
    #[case::another_operators(json!({ "annotations": { "nodeward.dev/counts": "node" } }), "web", false, true)]
    #[case::unknown_value(json!({ "annotations": { "nodeward.dev/counts": "zone" } }), OSDS, false, false)]
    #[case::rooks_over_others(rooks(), "rook-ceph-mon", true, false)]
    #[case::persons_own(json!({}), OSDS, false, false)]
    #[case::persons_own_with_daemons_labels(json!({ "labels": { "app": OSDS, "rook_cluster": "c" } }), OSDS, false, false)]
    #[case::another_manager(json!({ "labels": { "app.kubernetes.io/managed-by": "Helm" } }), OSDS, false, false)]
    fn only_budgets_whose_keeper_says_so_share_disruptions(
        #[case] metadata: Value,
        #[case] app: &str,
        #[case] kept: bool,
        #[case] shared: bool,
    ) {
        let expressions = json!([{ "key": "app", "operator": "In", "values": [app] }]);
        let spec = json!({ "selector": { "matchExpressions": expressions } });
        let budget = project(metadata, spec, json!({}));
        assert_eq!((budget.kept_by_ceph_operator, budget.counts_nodes), (kept, shared));
    }

    #[test]
    fn malformed_last_override_is_none() {
        let last = LastOverride {
            at: Timestamp::UNIX_EPOCH,
            pod: "web-0".to_owned(),
            uid: "u".to_owned(),
            strategy: "PdbDelete".to_owned(),
            replica: "keeper-0".to_owned(),
            signal: "always".to_owned(),
        };
        let read = |value: String| {
            project(
                json!({ "annotations": { annotation::LAST_OVERRIDE: value } }),
                json!({}),
                json!({}),
            )
            .last_override
        };
        assert_eq!(read(last.to_string()), Some(last));
        assert_eq!(read("yesterday".to_owned()), None);
    }

    /// Two machines whose clocks differ must not override a budget one after the other without any wait.
    #[rstest]
    #[case::clocks_agree("00:30:00.4", "f:nodeward.dev/last-override", "00:30:00.4")]
    #[case::writer_behind("00:00:00", "f:nodeward.dev/last-override", "00:30:00")]
    #[case::writer_ahead("09:00:00", "f:nodeward.dev/last-override", "00:30:01")]
    #[case::others_fields("00:00:00", "f:nodeward.dev/hold", "00:00:00")]
    fn last_override_counts_by_servers_clock(#[case] written: &str, #[case] field: &str, #[case] counts: &str) {
        let at = |time: &str| format!("2026-01-01T{time}Z").parse::<Timestamp>().unwrap();
        let record = json!({ "at": at(written), "pod": "web-0", "uid": "u" }).to_string();
        let metadata = json!({
            "annotations": { annotation::LAST_OVERRIDE: record },
            "managedFields": [
                { "manager": "kube-controller-manager", "time": at("05:00:00"), "fieldsV1": { "f:status": {} } },
                {
                    "manager": "drain-keeper", "operation": "Update", "subresource": "status", "time": at("00:30:00"),
                    "fieldsV1": { "f:metadata": { "f:annotations": { field: {} } }, "f:status": { "f:disruptedPods": {} } },
                },
                { "manager": "someone" },
            ],
        });
        let last = project(metadata, json!({}), json!({})).last_override;
        assert_eq!(last.map(|last| last.at), Some(at(counts)));
    }

    /// It was written at eight.
    #[rstest]
    #[case::not_said_yet(None, None)]
    #[case::said(Some("2026-01-01T20:00:00Z"), Some("2026-01-01T20:00:00Z"))]
    #[case::end_of_an_earlier_hold(Some("2026-01-01T07:00:00Z"), None)]
    #[case::no_time(Some("tomorrow"), None)]
    fn annotated_hold_ends_as_said_since(#[case] said: Option<&str>, #[case] until: Option<&str>) {
        let at = |time: &str| time.parse::<Timestamp>().unwrap();
        let mut annotations = json!({ annotation::HOLD: "audit" });
        if let Some(said) = said {
            annotations[annotation::HOLD_UNTIL] = said.into();
        }
        let metadata = json!({
            "annotations": annotations,
            "managedFields": [{
                "manager": "kubectl-annotate", "time": "2026-01-01T08:00:00Z",
                "fieldsV1": { "f:metadata": { "f:annotations": { "f:nodeward.dev/hold": {} } } },
            }],
        });
        let hold = project(metadata, json!({}), json!({})).hold.unwrap();
        assert_eq!(
            (hold.since, hold.until),
            (Some(at("2026-01-01T08:00:00Z")), until.map(at))
        );
        assert!(hold.is_in_force(at("2026-01-01T19:59:59Z")));
        assert_eq!(hold.is_in_force(at("2026-01-01T20:00:00Z")), until.is_none());
    }

    #[test]
    fn index_finds_all_selecting_budgets_in_namespace() {
        let budget = |namespace: &str, name: &str, selector: Value| {
            Arc::new(project(
                json!({ "namespace": namespace, "name": name }),
                json!({ "selector": selector }),
                json!({}),
            ))
        };
        let budgets = Budgets::new([
            budget("shop", "z-all", json!({})),
            budget("shop", "web", json!({ "matchLabels": { "app": "web" } })),
            budget("shop", "db", json!({ "matchLabels": { "app": "db" } })),
            budget("other", "all", json!({})),
        ]);
        let names = |found: Vec<&Arc<BudgetView>>| found.iter().map(|b| b.key.to_string()).collect::<Vec<_>>();
        assert_eq!(names(budgets.matching(&pod(json!({})))), ["shop/web", "shop/z-all"]);
        assert_eq!(
            names(budgets.in_namespace("shop").iter().collect()),
            ["shop/db", "shop/web", "shop/z-all"]
        );
        assert!(budgets.in_namespace("none").is_empty());
        assert!(budgets.get(&BudgetKey::new("shop", "db")).is_some());
        assert!(budgets.get(&BudgetKey::new("other", "db")).is_none());
    }

    #[test]
    fn only_changed_namespaces_are_indexed_again() {
        let budget = |namespace: &str, name: &str| {
            let metadata = json!({ "namespace": namespace, "name": name });
            Arc::new(project(metadata, json!({ "selector": {} }), json!({})))
        };
        let (a, b, c) = (budget("shop", "a"), budget("shop", "b"), budget("other", "c"));
        let all = |budgets: &[&Arc<BudgetView>]| budgets.iter().map(|&budget| Arc::clone(budget)).collect::<Vec<_>>();
        let before = Budgets::new(all(&[&c, &a, &b]));
        let is_kept = |after: &Budgets, namespace: &str| Arc::ptr_eq(&before.0[namespace], &after.0[namespace]);
        let same = before.renewed(all(&[&c, &a, &b]));
        assert!(is_kept(&same, "shop") && is_kept(&same, "other"));
        let another = budget("shop", "b");
        let changed = before.renewed(all(&[&c, &a, &another]));
        assert!(!is_kept(&changed, "shop") && is_kept(&changed, "other"));
        for budgets in [all(&[&c, &a]), all(&[&a, &b]), all(&[&c, &a, &another])] {
            assert_eq!(before.renewed(budgets.clone()), Budgets::new(budgets));
        }
    }

    /// The index must leave out no budget that selects the pod, and name none twice.
    #[rstest]
    #[case::no_labels(json!({}))]
    #[case::one_value(json!({ "app": "web" }))]
    #[case::same_value_twice(json!({ "app": "web", "tier": "web" }))]
    #[case::other_value(json!({ "app": "db", "tier": "web" }))]
    #[case::empty_value(json!({ "app": "" }))]
    fn index_finds_what_a_scan_finds(#[case] labels: Value) {
        let selectors = [
            json!({}),
            json!({ "matchLabels": { "app": "web" } }),
            json!({ "matchLabels": { "tier": "web" } }),
            json!({ "matchLabels": { "app": "web", "tier": "web" } }),
            json!({ "matchLabels": { "app": "" } }),
            json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["web", "db"] }] }),
            json!({ "matchExpressions": [{ "key": "app", "operator": "Exists" }] }),
            json!({ "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["web"] }] }),
            json!({ "matchExpressions": [{ "key": "tier", "operator": "DoesNotExist" }] }),
        ];
        let named = |(index, selector): (usize, &Value)| {
            let metadata = json!({ "name": format!("b{index}") });
            Arc::new(project(metadata, json!({ "selector": selector }), json!({})))
        };
        let all: Vec<Arc<BudgetView>> = selectors.iter().enumerate().map(named).collect();
        let pod = json!({ "metadata": { "namespace": "shop", "name": "web-0", "labels": labels } });
        let pod = PodView::project(&serde_json::from_value(pod).unwrap()).unwrap();
        let scanned: Vec<&Arc<BudgetView>> = all.iter().filter(|budget| budget.selects(&pod)).collect();
        assert_eq!(Budgets::new(all.clone()).matching(&pod), scanned);
    }
}
