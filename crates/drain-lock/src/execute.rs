//! Execute: carries out a plan's actions, each on its own with its own preconditions. One failure never stops the others,
//! and the loop that plans never waits for the API server.

mod drain;
mod evict;
mod force;
mod fresh;
mod lease;
mod ledger;
mod node;
mod reserve;
mod show;

use std::fmt;
use std::sync::Arc;

use nodeward_api::reason::LockReason;
use nodeward_core::id::{BudgetKey, NodeName, NodeUid, PodUid};
use nodeward_core::ledger::Obstacle;
use nodeward_runtime::{ApiError, Clients, Ended, Leadership, TaskSet};

use crate::observe::World;
use crate::plan::verdict::Announcement;
use crate::plan::{Action, LedgerWrite};
use crate::snapshot::{PodFacts, Snapshot};

pub use self::show::Show;

/// What an action is about: at most one is under way for each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The ledger.
    Ledger,
    /// A NodeDrain, by UID.
    Drain(String),
    /// A node's cordon and taints.
    Node(NodeUid),
    /// A node's conditions.
    Conditions(NodeUid),
    /// A pod.
    Pod(PodUid),
    /// The pods of a granted claim.
    Held(NodeUid),
    /// A node's lease.
    Lease(NodeName),
    /// The pods that are reserved in a budget's status.
    Reservation(BudgetKey),
    /// Something that is only for people: by kind and name.
    Show(&'static str, String),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ledger => f.write_str("ledger"),
            Self::Drain(uid) => write!(f, "NodeDrain {uid}"),
            Self::Node(uid) => write!(f, "node {uid}"),
            Self::Conditions(uid) => write!(f, "conditions of node {uid}"),
            Self::Pod(uid) => write!(f, "pod {uid}"),
            Self::Held(uid) => write!(f, "pods of node {uid}"),
            Self::Lease(node) => write!(f, "lease of node {node}"),
            Self::Reservation(budget) => write!(f, "reservation in budget {budget}"),
            Self::Show(kind, name) => write!(f, "{kind} {name}"),
        }
    }
}

/// How an action ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// It was done.
    Acted,
    /// There was nothing to do any more.
    Nothing,
    /// What it rested on has changed: plan again.
    Outdated(String),
    /// The server did not do it.
    Failed(ApiError),
    /// Nothing was sent: only leaders act.
    NotLeading,
    /// Nothing was sent: dry-run.
    DryRun,
}

impl From<kube::Error> for Done {
    fn from(error: kube::Error) -> Self {
        match ApiError::from(&error) {
            ApiError::NotFound => Self::Nothing,
            ApiError::Conflict => Self::Outdated("the object has changed".to_owned()),
            error => Self::Failed(error),
        }
    }
}

impl Done {
    /// Its label in metrics.
    pub fn as_label(&self) -> &'static str {
        match self {
            Self::Acted => "done",
            Self::Nothing => "already-so",
            Self::Outdated(_) => "outdated",
            Self::Failed(refusal) => match refusal {
                ApiError::RefusedByBudget { .. } => "refused-by-budget",
                ApiError::Throttled { .. } => "throttled",
                ApiError::Unauthorized { .. } | ApiError::Forbidden { .. } => "forbidden",
                ApiError::Invalid { .. } => "invalid",
                ApiError::Server { .. } => "server-error",
                ApiError::Timeout | ApiError::Transport { .. } => "no-answer",
                ApiError::NamespaceTerminating | ApiError::NotFound | ApiError::Conflict => "outdated",
            },
            Self::NotLeading => "not-leading",
            Self::DryRun => "dry-run",
        }
    }
}

/// One pod's eviction.
#[derive(Debug, Clone)]
pub struct Eviction {
    /// The pod.
    pub pod: Arc<PodFacts>,
    /// Its node.
    pub node: NodeName,
    /// How it ended.
    pub done: Done,
    /// Whether the pod was deleted around its budget.
    pub deleted: bool,
}

/// What came of an action.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How it ended.
    pub done: Done,
    /// Pods that were asked to go.
    pub evictions: Vec<Eviction>,
    /// What has happened, for people.
    pub announcements: Vec<Announcement>,
    /// Claims that were granted, by their node's UID.
    pub granted: Vec<NodeUid>,
    /// Claims that were refused their grant by what was read by quorum.
    pub refused_grants: Vec<(NodeUid, Vec<Obstacle>)>,
    /// The namespace of the node leases is not there.
    pub leases_absent: bool,
}

impl From<Done> for Outcome {
    fn from(done: Done) -> Self {
        Self {
            done,
            evictions: Vec::new(),
            announcements: Vec::new(),
            granted: Vec::new(),
            refused_grants: Vec::new(),
            leases_absent: false,
        }
    }
}

/// What every action shares.
#[derive(Clone)]
struct Means {
    clients: Clients,
    leadership: Leadership,
    world: Arc<World>,
    field_manager: &'static str,
}

impl Means {
    /// Asked right before each write: only leaders act.
    fn may_write(&self) -> Result<(), Done> {
        if self.leadership.is_leading_now() {
            Ok(())
        } else {
            Err(Done::NotLeading)
        }
    }
}

/// Carries out actions.
pub struct Executor {
    means: Means,
    dry_run: bool,
    tasks: TaskSet<Key, Outcome>,
}

/// Something to start.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// Write the ledger.
    Ledger(LedgerWrite),
    /// An action of the plan.
    Act(Action),
    /// Something that is only for people.
    Show(Show),
}

impl Work {
    /// What it is about.
    pub fn key(&self) -> Key {
        match self {
            Self::Ledger(_) => Key::Ledger,
            Self::Act(action) => match action {
                Action::Adopt { drain, .. } | Action::Delete { drain, .. } | Action::Finish { drain } => {
                    Key::Drain(drain.metadata.uid.clone().unwrap_or_default())
                }
                Action::Node(write) => Key::Node(write.node.uid.clone()),
                Action::Conditions(write) => Key::Conditions(write.node.uid.clone()),
                Action::Evict { eviction } => Key::Pod(eviction.pod.uid.clone()),
                Action::EvictHeld { node_uid, .. } => Key::Held(node_uid.clone()),
                Action::Lease(change) => Key::Lease(change.node.clone()),
                Action::Reserve(reservation) => Key::Reservation(reservation.budget.clone()),
            },
            Self::Show(show) => {
                let (kind, name) = show.about();
                Key::Show(kind, name)
            }
        }
    }

    /// The pods that it asks to go.
    pub fn pods(&self) -> Vec<PodUid> {
        match self {
            Self::Act(Action::Evict { eviction }) => vec![eviction.pod.uid.clone()],
            Self::Act(Action::EvictHeld { pods, .. }) => pods.iter().map(|eviction| eviction.pod.uid.clone()).collect(),
            _ => Vec::new(),
        }
    }
}

impl Executor {
    /// Nothing under way.
    pub fn new(
        clients: Clients,
        leadership: Leadership,
        world: Arc<World>,
        field_manager: &'static str,
        dry_run: bool,
    ) -> Self {
        Self {
            means: Means {
                clients,
                leadership,
                world,
                field_manager,
            },
            dry_run,
            tasks: TaskSet::new(),
        }
    }

    /// Starts what is not under way already; returns whether it did.
    pub fn start(&mut self, work: Work, snapshot: &Arc<Snapshot>) -> bool {
        let (means, snapshot) = (self.means.clone(), Arc::clone(snapshot));
        let key = work.key();
        if self.dry_run {
            if self.tasks.is_under_way(&key) {
                return false;
            }
            tracing::info!(action = %key, "dry run: not done");
            return self.tasks.start(key, async move { Done::DryRun.into() });
        }
        self.tasks.start(key, async move {
            if let Err(done) = means.may_write() {
                return done.into();
            }
            match work {
                Work::Ledger(write) => ledger::write(&means, write, &snapshot).await,
                Work::Act(action) => act(&means, action, &snapshot).await,
                Work::Show(show) => show::write(&means, show).await.into(),
            }
        })
    }

    /// Returns when something has come to its end; never while nothing is under way.
    pub async fn wait(&mut self) {
        self.tasks.wait().await;
    }

    /// What has come to its end since the last call.
    pub fn ended(&mut self) -> Vec<Ended<Key, Outcome>> {
        self.tasks.take_ended()
    }

    /// Waits for everything under way: a request has its own time limit, so this ends.
    pub async fn finish(&mut self) -> Vec<Ended<Key, Outcome>> {
        self.tasks.finish().await
    }
}

/// Carries out an action that was planned from `snapshot`.
async fn act(means: &Means, action: Action, snapshot: &Snapshot) -> Outcome {
    match action {
        Action::Adopt { drain, node_uid } => drain::adopt(means, &drain, &node_uid).await.into(),
        Action::Delete { drain, reason } => {
            let done = drain::delete(means, &drain, reason).await;
            told(done, &drain, reason)
        }
        Action::Finish { drain } => {
            let done = drain::finish(means, &drain).await;
            told(done, &drain, LockReason::Released)
        }
        Action::Node(write) => {
            let seen = snapshot.drains.get(&write.node.name);
            node::write(means, &write, seen.map(Arc::as_ref)).await.into()
        }
        Action::Conditions(write) => node::write_conditions(means, &write).await.into(),
        Action::Evict { eviction } => {
            let eviction = evict::evict(means, &eviction, None).await;
            Outcome {
                evictions: vec![eviction],
                ..Done::Acted.into()
            }
        }
        Action::EvictHeld {
            node_uid,
            fence,
            ledger_uid,
            pods,
        } => evict::evict_held(means, &node_uid, fence, &ledger_uid, pods).await,
        Action::Lease(change) => lease::write(means, &change).await,
        Action::Reserve(reservation) => reserve::write(means, &reservation).await.into(),
    }
}

/// What became of a drain, for people.
fn told(done: Done, drain: &nodeward_api::NodeDrain, reason: LockReason) -> Outcome {
    let mut outcome = Outcome::from(done);
    if outcome.done == Done::Acted {
        let node = NodeName::from(drain.spec.node_name.as_str());
        outcome.announcements.push(Announcement {
            node_uid: drain.spec.node_uid.as_deref().unwrap_or_default().into(),
            reason,
            is_warning: false,
            note: format!("the drain of node {node} is over: it {}", reason.explanation()),
            node,
        });
    }
    outcome
}
