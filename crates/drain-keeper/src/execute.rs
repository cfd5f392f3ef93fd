//! Execute: carries out a plan's actions, each on its own task with its own preconditions. One failure never stops the
//! others, and the loop that plans never waits for the API server.

mod evict;
mod finalizers;
mod override_budget;
mod recheck;
mod remove;
mod write_clock;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::{SignedDuration, Timestamp};
use nodeward_core::id::{BudgetKey, NodeUid, PodUid, ResourceVersion};
use nodeward_core::strategy::Remedy;
use nodeward_runtime::{ApiError, Clients, Leadership, TaskSet};

use crate::plan::override_rule::NotYet;
use crate::plan::{Action, ClockAction, PodAction};
use crate::policy::Policy;
use crate::snapshot::Snapshot;

use self::recheck::Recheck;

/// Carries out actions.
pub struct Executor {
    clients: Clients,
    leadership: Leadership,
    dry_run: bool,
    policy: Option<Arc<Policy>>,
    in_force: Arc<AtomicU64>,
    under_way: TaskSet<Target, Completion>,
}

/// What an action is about: one at a time is under way for each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Node(NodeUid),
    Pod(PodUid),
}

/// An action that has come to its end.
#[derive(Debug)]
pub enum Completion {
    /// A clock write.
    Clock(ClockAction, Result<(), ApiError>),
    /// Something was done to a pod, or not.
    Pod(PodCompletion),
}

/// The end of a pod's action.
#[derive(Debug)]
pub struct PodCompletion {
    /// The action.
    pub action: PodAction,
    /// When it was begun.
    pub started: Timestamp,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a pod's action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The eviction was accepted.
    Evicted,
    /// The budget refused, was overridden, and the pod is being deleted with its own grace.
    BudgetOverridden(Vec<BudgetKey>),
    /// Finalizers were removed.
    FinalizersRemoved(Vec<String>),
    /// Deleted without grace.
    DeletedNow,
    /// It was gone already.
    Gone,
    /// The server refused for a budget, and the budget is not to be overridden now.
    RefusedByBudget(BudgetRefusal),
    /// Its namespace is being deleted, which removes it.
    NamespaceTerminating,
    /// What the action rested on has changed: plan again.
    Outdated(String),
    /// The server did not do it.
    Failed(ApiError),
    /// Nothing was sent: only leaders act.
    NotLeading,
    /// Nothing was sent: dry-run.
    DryRun,
}

/// A refusal for a budget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BudgetRefusal {
    /// How long the server asks to wait.
    pub retry_after: Option<SignedDuration>,
    /// What the override waits for, where one was due.
    pub wait: Option<NotYet>,
}

impl Outcome {
    /// Whether something was done to the pod.
    pub fn has_acted(&self) -> bool {
        matches!(
            self,
            Self::Evicted | Self::BudgetOverridden(_) | Self::FinalizersRemoved(_) | Self::DeletedNow
        )
    }

    /// Its label in metrics.
    pub fn as_label(&self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::BudgetOverridden(_) => "budget-overridden",
            Self::FinalizersRemoved(_) => "finalizers-removed",
            Self::DeletedNow => "deleted-without-grace",
            Self::Gone => "already-gone",
            Self::RefusedByBudget(_) => "refused-by-budget",
            Self::NamespaceTerminating => "namespace-terminating",
            Self::Outdated(_) => "outdated",
            Self::Failed(_) => "failed",
            Self::NotLeading => "not-leading",
            Self::DryRun => "dry-run",
        }
    }
}

/// What every action of one pass shares.
#[derive(Clone)]
struct Pass {
    clients: Clients,
    leadership: Leadership,
    snapshot: Arc<Snapshot>,
    policy: Arc<Policy>,
    recheck: Recheck,
    /// Which policy this is, counted, and which one is in force.
    generation: u64,
    in_force: Arc<AtomicU64>,
}

impl Pass {
    /// Asked right before each write that forces: whether this process still leads, by the policy that was planned with.
    fn may_force(&self) -> Result<(), Outcome> {
        if !self.leadership.is_leading_now() {
            return Err(Outcome::NotLeading);
        }
        if self.in_force.load(Ordering::Acquire) != self.generation {
            return Err(Outcome::Outdated("another configuration is in force now".to_owned()));
        }
        Ok(())
    }
}

impl Executor {
    /// Nothing under way.
    pub fn new(clients: Clients, leadership: Leadership, dry_run: bool) -> Self {
        Self {
            clients,
            leadership,
            dry_run,
            policy: None,
            in_force: Arc::default(),
            under_way: TaskSet::new(),
        }
    }

    /// From now on this policy is in force: what is under way by another one ends before its next forcing write.
    pub fn go_by(&mut self, policy: &Arc<Policy>) {
        if !self.policy.as_ref().is_some_and(|known| Arc::ptr_eq(known, policy)) {
            self.in_force.fetch_add(1, Ordering::AcqRel);
            self.policy = Some(Arc::clone(policy));
        }
    }

    /// Starts what is not under way already, and returns what it started.
    pub fn start(&mut self, actions: Vec<Action>, snapshot: &Arc<Snapshot>, policy: &Arc<Policy>) -> Vec<Started> {
        self.go_by(policy);
        let pass = Pass {
            clients: self.clients.clone(),
            leadership: self.leadership.clone(),
            snapshot: Arc::clone(snapshot),
            policy: Arc::clone(policy),
            recheck: Recheck::new(self.clients.requests.clone()),
            generation: self.in_force.load(Ordering::Acquire),
            in_force: Arc::clone(&self.in_force),
        };
        let mut started = Vec::new();
        for action in actions {
            let (pass, dry_run) = (pass.clone(), self.dry_run);
            match action {
                Action::WriteClock(action) => {
                    let begun = Started::Clock(action.clone());
                    let target = Target::Node(action.node.uid.clone());
                    let work = async move {
                        let result = if dry_run {
                            Ok(())
                        } else {
                            write_clock::write(&pass, &action).await
                        };
                        Completion::Clock(action, result)
                    };
                    if self.under_way.start(target, work) {
                        started.push(begun);
                    }
                }
                Action::Act(action) => {
                    let begun = Started::Pod(action.pod.uid.clone(), action.pod.resource_version.clone());
                    let target = Target::Pod(action.pod.uid.clone());
                    let work = async move {
                        let started = Timestamp::now();
                        let outcome = if dry_run {
                            Outcome::DryRun
                        } else {
                            act(&pass, &action).await
                        };
                        Completion::Pod(PodCompletion {
                            action: *action,
                            started,
                            outcome,
                        })
                    };
                    if self.under_way.start(target, work) {
                        started.push(begun);
                    }
                }
            }
        }
        started
    }

    /// Returns when something has come to its end; never while nothing is under way.
    pub async fn wait(&mut self) {
        self.under_way.wait().await;
    }

    /// What has come to its end since the last call.
    pub fn completed(&mut self) -> Vec<Completion> {
        let ended = self.under_way.take_ended();
        ended.into_iter().filter_map(|task| task.outcome).collect()
    }

    /// Waits for everything under way: a request has its own time limit, so this ends.
    pub async fn finish(&mut self) -> Vec<Completion> {
        let ended = self.under_way.finish().await;
        ended.into_iter().filter_map(|task| task.outcome).collect()
    }
}

/// Something that was started.
#[derive(Debug)]
pub enum Started {
    /// A clock write.
    Clock(ClockAction),
    /// Something on a pod, as it stood.
    Pod(PodUid, ResourceVersion),
}

/// Carries out one pod's action. Hundreds may wait for their first request at once, and a future takes the memory of the
/// largest of its parts: so each part is boxed when it begins.
async fn act(pass: &Pass, action: &PodAction) -> Outcome {
    if let Err(outcome) = pass.may_force() {
        return outcome;
    }
    match action.remedy {
        Remedy::Evict => Box::pin(evict::evict(pass, action)).await,
        Remedy::EvictOrDelete => match Box::pin(evict::evict(pass, action)).await {
            Outcome::RefusedByBudget(refusal) => {
                Box::pin(override_budget::override_and_delete(pass, action, refusal)).await
            }
            other => other,
        },
        Remedy::RemoveFinalizers => Box::pin(finalizers::remove(pass, action)).await,
        Remedy::DeleteNow => Box::pin(remove::delete_now(pass, action)).await,
    }
}
