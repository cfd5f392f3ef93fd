//! Execute: carries out a plan's actions, each on its own with its own preconditions. One failure never stops the others,
//! and the loop that plans never waits for the API server.

pub mod drain;
mod evict;
pub(crate) mod fresh;
mod lease;
pub mod ledger;
pub mod node;
mod owner_scale;
mod stale_entries;
mod status_update;

use std::fmt;
use std::sync::Arc;

use kube::api::PatchParams;
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use kube::{Api, Resource};
use nodeward_api::reason::LockReason;
use nodeward_core::id::{BudgetKey, NodeName, NodeUid, PodUid};
use nodeward_core::ledger::Obstacle;
use nodeward_runtime::control::{self, Lane};
use nodeward_runtime::{Action, ActionResult, ApiError, Clients, Permits, Stop};

use crate::observe::ClusterCache;
use crate::plan::verdict::Announcement;
use crate::plan::{Action as Planned, LedgerWrite};
use crate::snapshot::{PodFacts, Snapshot};

pub use self::status_update::StatusUpdate;

/// What an action is about: at most one is under way for each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskKey {
    Ledger,
    /// A NodeDrain, by UID.
    Drain(String),
    /// A node's cordon, taints and conditions.
    Node(NodeUid),
    Pod(PodUid),
    /// Whoever runs a pod, by the pod's UID.
    Owner(PodUid),
    /// The pods of a granted claim.
    Held(NodeUid),
    /// A lease, by name.
    Lease(String),
    /// The stale entries of a budget's status.
    StaleEntries(BudgetKey),
    /// Something that is only for people: by kind and name.
    StatusUpdate(&'static str, String),
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ledger => f.write_str("ledger"),
            Self::Drain(uid) => write!(f, "NodeDrain {uid}"),
            Self::Node(uid) => write!(f, "node {uid}"),
            Self::Pod(uid) => write!(f, "pod {uid}"),
            Self::Owner(uid) => write!(f, "owner of pod {uid}"),
            Self::Held(uid) => write!(f, "pods of node {uid}"),
            Self::Lease(name) => write!(f, "lease {name}"),
            Self::StaleEntries(budget) => write!(f, "stale entries of budget {budget}"),
            Self::StatusUpdate(kind, name) => write!(f, "{kind} {name}"),
        }
    }
}

/// Its label in metrics.
pub fn result_label(done: &ActionResult) -> &'static str {
    match done {
        ActionResult::Acted(()) => "done",
        ActionResult::AlreadyDone => "already-so",
        ActionResult::Outdated(_) | ActionResult::Stopped(Stop::PolicyChanged | Stop::Unplanned) => "outdated",
        ActionResult::Failed(error) => match error {
            ApiError::RefusedByBudget { .. } => "refused-by-budget",
            ApiError::Throttled { .. } => "throttled",
            ApiError::Denied { .. } => "denied",
            ApiError::Unauthorized { .. } | ApiError::Forbidden { .. } => "forbidden",
            ApiError::Invalid { .. } => "invalid",
            ApiError::Server { .. } => "server-error",
            ApiError::Timeout | ApiError::Transport { .. } => "no-answer",
            ApiError::NamespaceTerminating | ApiError::NotFound | ApiError::Conflict => "outdated",
        },
        ActionResult::Stopped(Stop::NotLeading) => "not-leading",
        ActionResult::Stopped(Stop::Paused) => "paused",
        ActionResult::Stopped(Stop::PauseUnknown) => "pause-unknown",
        ActionResult::Stopped(Stop::DryRun) => "dry-run",
    }
}

/// One pod's eviction.
#[derive(Debug, Clone)]
pub struct Eviction {
    pub pod: Arc<PodFacts>,
    pub node: NodeName,
    /// How it ended.
    pub done: ActionResult,
}

/// What came of an action.
#[derive(Debug, Clone)]
pub struct TaskOutcome {
    /// How it ended.
    pub done: ActionResult,
    /// Pods that were asked to go.
    pub evictions: Vec<Eviction>,
    /// What has happened, for people.
    pub announcements: Vec<Announcement>,
    /// Claims that were granted, by their node's UID.
    pub granted: Vec<NodeUid>,
    /// Claims that were refused their grant by what was read by quorum.
    pub refused_grants: Vec<(NodeUid, Vec<Obstacle>)>,
    /// Claims that were left as they are, and why: what their changes rest on could not be read, or is not so.
    pub doubted: Vec<(NodeUid, String)>,
    /// Claims whose changes rested on reads that confirmed the plan.
    pub checked: Vec<NodeUid>,
    /// Budgets whose pods' owners were asked whether they were scaled down.
    pub scales_read: Vec<BudgetKey>,
    /// The namespace of the node leases is not there.
    pub leases_absent: bool,
    /// The bytes of the ledger that was written.
    pub written_bytes: usize,
}

impl From<ActionResult> for TaskOutcome {
    fn from(done: ActionResult) -> Self {
        Self {
            done,
            evictions: Vec::new(),
            announcements: Vec::new(),
            granted: Vec::new(),
            refused_grants: Vec::new(),
            doubted: Vec::new(),
            checked: Vec::new(),
            scales_read: Vec::new(),
            leases_absent: false,
            written_bytes: 0,
        }
    }
}

impl TaskOutcome {
    /// What has come of a write that ended so: without it nothing was granted, and there is nothing to tell. A lost answer may be
    /// that of a write: what is on the record by then is told all the same.
    #[must_use]
    pub fn written(mut self, done: ActionResult) -> Self {
        if !done.may_have_acted() {
            self.announcements.clear();
            self.granted.clear();
        }
        Self { done, ..self }
    }
}

/// How a write ended: anything but "done" is an error.
type Written = Result<(), ActionResult>;

impl From<Written> for TaskOutcome {
    fn from(written: Written) -> Self {
        ActionResult::from(written).into()
    }
}

/// What the actions of one pass share.
#[derive(Clone)]
pub struct PassContext {
    /// For requests.
    pub clients: Clients,
    /// The watches.
    pub cache: Arc<ClusterCache>,
    /// The field manager of every write.
    pub field_manager: &'static str,
    /// What was planned from.
    pub snapshot: Arc<Snapshot>,
}

/// What one action works with.
struct ExecutorContext {
    pass: PassContext,
    permits: Permits,
}

impl ExecutorContext {
    fn api<K: Resource<DynamicType = (), Scope = ClusterResourceScope>>(&self) -> Api<K> {
        Api::all(self.pass.clients.requests.clone())
    }

    fn api_in<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.pass.clients.requests.clone(), namespace)
    }

    /// A patch by the field manager of drain-lock.
    fn patch_params(&self) -> PatchParams {
        PatchParams::apply(self.pass.field_manager)
    }
}

/// Something to start.
#[derive(Debug, Clone, PartialEq)]
pub enum Task {
    Ledger(Box<LedgerWrite>),
    /// An action of the plan.
    Act(Planned),
    /// Something that is only for people.
    StatusUpdate(StatusUpdate),
}

impl Action for Task {
    type Key = TaskKey;
    type Context = PassContext;
    type Outcome = TaskOutcome;

    fn key(&self) -> TaskKey {
        match self {
            Self::Ledger(_) => TaskKey::Ledger,
            Self::Act(action) => match action {
                Planned::Adopt { drain, .. } | Planned::Delete { drain, .. } | Planned::Finish { drain } => {
                    TaskKey::Drain(drain.metadata.uid.clone().unwrap_or_default())
                }
                Planned::Node(write) => TaskKey::Node(write.node.uid.clone()),
                Planned::Evict { eviction } => TaskKey::Pod(eviction.pod.uid.clone()),
                Planned::AskOwner { eviction, .. } => TaskKey::Owner(eviction.pod.uid.clone()),
                Planned::EvictHeld { node_uid, .. } => TaskKey::Held(node_uid.clone()),
                Planned::Lease(change) => TaskKey::Lease(change.name.clone()),
                Planned::RemoveStaleEntries(stale) => TaskKey::StaleEntries(stale.budget.clone()),
                Planned::Touch(touch) => {
                    TaskKey::StatusUpdate(status_update::BUDGET_ANNOTATION, touch.budget.to_string())
                }
            },
            Self::StatusUpdate(update) => {
                let (kind, name) = update.about();
                TaskKey::StatusUpdate(kind, name)
            }
        }
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Ledger(_) | Self::Act(_) => Lane::Api,
            Self::StatusUpdate(_) => Lane::Status,
        }
    }

    /// Evictions were noted as under way when they were started: a newer plan leaves their pods out.
    fn replaces_queued(&self) -> bool {
        self.pods().is_empty()
    }

    async fn run(self, pass: PassContext, permits: Permits) -> TaskOutcome {
        let context = ExecutorContext { pass, permits };
        match context.permits.check() {
            Err(Stop::DryRun) => return audit(&context, self).await,
            // Evictions tell of each pod that it was not asked to go.
            Err(stop) if self.pods().is_empty() => return ActionResult::from(stop).into(),
            Ok(()) | Err(_) => {}
        }
        match self {
            Self::Ledger(write) => ledger::write(&context, *write).await,
            Self::Act(action) => act(&context, action).await,
            Self::StatusUpdate(update) => status_update::write(&context, update).await.into(),
        }
    }
}

impl control::Outcome for TaskOutcome {
    fn result(&self) -> ActionResult {
        self.done.clone()
    }
}

impl Task {
    /// The pods that it asks to go.
    pub fn pods(&self) -> Vec<PodUid> {
        match self {
            Self::Act(Planned::Evict { eviction }) => vec![eviction.pod.uid.clone()],
            Self::Act(Planned::EvictHeld { pods, .. }) => {
                pods.iter().map(|eviction| eviction.pod.uid.clone()).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// What nothing is written of: as far as decisions on evictions rest on it, it is kept in memory.
async fn audit(context: &ExecutorContext, task: Task) -> TaskOutcome {
    let key = task.key();
    match task {
        Task::Ledger(write) => {
            let mut outcome = ledger::write(context, *write).await;
            for would_be in std::mem::take(&mut outcome.announcements) {
                tracing::info!(node = %would_be.node, reason = %would_be.reason, "audit: {}", would_be.note);
            }
            outcome
        }
        Task::Act(Planned::Delete { drain, reason }) if context.pass.cache.forget_drain(&drain) => {
            tracing::info!(node = drain.spec.node_name, %reason, "audit: its drain would be over");
            ActionResult::Acted(()).into()
        }
        Task::Act(_) | Task::StatusUpdate(_) => {
            tracing::info!(action = %key, "dry run: not done");
            ActionResult::Stopped(Stop::DryRun).into()
        }
    }
}

async fn act(context: &ExecutorContext, action: Planned) -> TaskOutcome {
    match action {
        Planned::Adopt { drain, node_uid } => drain::adopt(context, &drain, &node_uid).await.into(),
        Planned::Delete { drain, reason } => told(drain::delete(context, &drain, reason).await, &drain, reason),
        Planned::Finish { drain } => told(drain::finish(context, &drain).await, &drain, LockReason::Released),
        Planned::Node(write) => node::write(context, &write).await,
        Planned::Evict { eviction } => TaskOutcome {
            evictions: vec![evict::evict(context, &eviction, None).await],
            ..ActionResult::Acted(()).into()
        },
        Planned::AskOwner { eviction, budget } => TaskOutcome {
            evictions: vec![evict::ask_owner(context, &eviction, &budget).await],
            ..ActionResult::Acted(()).into()
        },
        Planned::EvictHeld {
            node_uid,
            fence,
            ledger_uid,
            pods,
        } => evict::evict_held(context, &node_uid, fence, &ledger_uid, pods).await,
        Planned::Lease(change) => lease::write(context, &change).await,
        Planned::RemoveStaleEntries(stale) => stale_entries::remove(context, &stale).await.into(),
        Planned::Touch(touch) => status_update::touch(context, touch).await.into(),
    }
}

/// What became of a drain, for people.
fn told(written: Written, drain: &nodeward_api::NodeDrain, reason: LockReason) -> TaskOutcome {
    let mut outcome = TaskOutcome::from(written);
    if outcome.done == ActionResult::Acted(()) {
        let node = NodeName::from(drain.spec.node_name.as_str());
        outcome.announcements.push(Announcement {
            node_uid: drain.spec.node_uid.as_deref().unwrap_or_default().into(),
            reason,
            note: format!("the drain of node {node} is over: it {}", reason.explanation()),
            node,
        });
    }
    outcome
}
