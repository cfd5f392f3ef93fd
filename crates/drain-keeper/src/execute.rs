//! Execute: carries out actions, each with its own preconditions. What every action shares is in
//! [`nodeward_runtime::control`].

pub mod force_pod;
pub mod preconditions;
mod restart;
pub mod write_clock;
pub mod write_condition;

use std::fmt;
use std::sync::Arc;

use nodeward_core::id::{BudgetKey, NamespacedName, NodeUid, PodUid};
use nodeward_runtime::control::{Lane, Outcome};
use nodeward_runtime::{Action, ActionResult, ApiError, Clients, Permits, Stop};
use tokio::time::Instant;

use crate::plan::{ClockAction, PodAction};
use crate::policy::Policy;
use crate::snapshot::Snapshot;

use self::force_pod::Forcing;
pub use self::preconditions::Reads;
use self::write_condition::ConditionWrite;

/// Something to do.
#[derive(Debug)]
pub enum Task {
    /// Write a node's drain clock.
    Clock(ClockAction),
    /// Force a pod.
    Pod(Box<PodAction>),
    /// Write a node's condition.
    Condition(ConditionWrite),
}

/// What a task is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskKey {
    Clock(NodeUid),
    Pod(PodUid),
    Condition(NodeUid),
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clock(uid) => write!(f, "drain clock of node {uid}"),
            Self::Pod(uid) => write!(f, "pod {uid}"),
            Self::Condition(uid) => write!(f, "condition of node {uid}"),
        }
    }
}

/// A task that has ended.
#[derive(Debug)]
pub enum TaskOutcome {
    /// A clock write.
    Clock(ClockAction, ActionResult),
    /// Something was done to a pod, or not.
    Pod(Box<PodAction>, PodResult),
    /// A condition write.
    Condition(ActionResult),
}

/// How a pod's action ended.
pub type PodResult = ActionResult<Forced>;

/// What was done to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forced {
    /// The eviction was accepted.
    Evicted,
    /// The budget refused, was overridden, and the pod is being deleted with its own grace.
    BudgetOverridden(Vec<BudgetKey>),
    /// Finalizers were removed.
    FinalizersRemoved(Vec<String>),
    /// Deleted without grace.
    DeletedNow,
    /// Its Deployment was told to roll.
    Restarted {
        deployment: NamespacedName,
        /// Before.
        revision: Option<i64>,
    },
    /// That was taken back.
    RestartUndone(NamespacedName),
}

impl Forced {
    /// Whether its budgets had allowed it.
    pub const fn is_gentle(&self) -> bool {
        matches!(self, Self::Evicted | Self::Restarted { .. } | Self::RestartUndone(_))
    }
}

/// The label of a pod's action in metrics.
pub fn outcome_label(result: &PodResult) -> &'static str {
    match result {
        ActionResult::Acted(Forced::Evicted) => "evicted",
        ActionResult::Acted(Forced::BudgetOverridden(_)) => "budget-overridden",
        ActionResult::Acted(Forced::FinalizersRemoved(_)) => "finalizers-removed",
        ActionResult::Acted(Forced::DeletedNow) => "deleted-without-grace",
        ActionResult::Acted(Forced::Restarted { .. }) => "restarted",
        ActionResult::Acted(Forced::RestartUndone(_)) => "restart-undone",
        ActionResult::AlreadyDone => "already-gone",
        ActionResult::Failed(ApiError::RefusedByBudget { .. }) => "refused-by-budget",
        ActionResult::Failed(ApiError::NamespaceTerminating) => "namespace-terminating",
        ActionResult::Failed(ApiError::Denied { .. } | ApiError::Forbidden { .. } | ApiError::Unauthorized { .. }) => {
            "denied"
        }
        ActionResult::Failed(ApiError::Throttled { .. }) => "throttled",
        ActionResult::Failed(_) => "failed",
        ActionResult::Outdated(_) | ActionResult::Stopped(Stop::PolicyChanged | Stop::Unplanned) => "outdated",
        ActionResult::Stopped(Stop::NotLeading) => "not-leading",
        ActionResult::Stopped(Stop::Paused) => "paused",
        ActionResult::Stopped(Stop::PauseUnknown) => "pause-unknown",
        ActionResult::Stopped(Stop::DryRun) => "dry-run",
    }
}

/// What the tasks of one pass share.
#[derive(Clone)]
pub struct PassContext {
    /// For requests.
    pub clients: Clients,
    /// Quorum reads.
    pub reads: Reads,
    /// What was planned from.
    pub snapshot: Arc<Snapshot>,
    /// What was planned with.
    pub policy: Arc<Policy>,
    /// The name of this replica.
    pub replica: Arc<str>,
    /// When the plan was made: what its forcing writes rest on is read after it.
    pub planned_at: Instant,
}

impl Action for Task {
    type Key = TaskKey;
    type Context = PassContext;
    type Outcome = TaskOutcome;

    fn key(&self) -> TaskKey {
        match self {
            Self::Clock(action) => TaskKey::Clock(action.node.uid.clone()),
            Self::Pod(action) => TaskKey::Pod(action.pod.uid.clone()),
            Self::Condition(write) => TaskKey::Condition(write.uid.clone()),
        }
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Clock(_) | Self::Pod(_) => Lane::Api,
            Self::Condition(_) => Lane::Status,
        }
    }

    async fn run(self, context: PassContext, permits: Permits) -> TaskOutcome {
        match self {
            Self::Clock(action) => {
                let result = write_clock::write(&context, &permits, &action).await.into();
                TaskOutcome::Clock(action, result)
            }
            Self::Pod(action) => {
                let forcing = Forcing {
                    context: &context,
                    permits: &permits,
                    action: &action,
                };
                let result = forcing.force().await.into();
                TaskOutcome::Pod(action, result)
            }
            Self::Condition(write) => {
                TaskOutcome::Condition(write_condition::write(&context, &permits, &write).await.into())
            }
        }
    }
}

impl Outcome for TaskOutcome {
    fn result(&self) -> ActionResult {
        match self {
            Self::Clock(_, result) | Self::Condition(result) => result.clone(),
            Self::Pod(_, result) => result.erased(),
        }
    }
}
