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
use nodeward_runtime::control::{self, Lane};
use nodeward_runtime::{Action, ActionResult, ApiError, Clients, Permits, Stop};

use crate::observe::World;
use crate::plan::verdict::Announcement;
use crate::plan::{Action as Planned, LedgerWrite};
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
pub type Done = ActionResult;

/// Its label in metrics.
pub fn done_label(done: &Done) -> &'static str {
    match done {
        Done::Acted(()) => "done",
        Done::AlreadyDone => "already-so",
        Done::Outdated(_) | Done::Stopped(Stop::PolicyChanged | Stop::Unplanned) => "outdated",
        Done::Failed(error) => match error {
            ApiError::RefusedByBudget { .. } => "refused-by-budget",
            ApiError::Throttled { .. } => "throttled",
            ApiError::Unauthorized { .. } | ApiError::Forbidden { .. } => "forbidden",
            ApiError::Invalid { .. } => "invalid",
            ApiError::Server { .. } => "server-error",
            ApiError::Timeout | ApiError::Transport { .. } => "no-answer",
            ApiError::NamespaceTerminating | ApiError::NotFound | ApiError::Conflict => "outdated",
        },
        Done::Stopped(Stop::NotLeading) => "not-leading",
        Done::Stopped(Stop::DryRun) => "dry-run",
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

/// What the actions of one pass share.
#[derive(Clone)]
pub struct Shared {
    /// For requests.
    pub clients: Clients,
    /// The watches.
    pub world: Arc<World>,
    /// The field manager of every write.
    pub field_manager: &'static str,
    /// What was planned from.
    pub snapshot: Arc<Snapshot>,
}

/// What one action works with.
struct Means {
    clients: Clients,
    world: Arc<World>,
    field_manager: &'static str,
    permits: Permits,
}

/// Something to start.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// Write the ledger.
    Ledger(LedgerWrite),
    /// An action of the plan.
    Act(Planned),
    /// Something that is only for people.
    Show(Show),
}

impl Action for Work {
    type Key = Key;
    type Context = Shared;
    type Outcome = Outcome;

    fn key(&self) -> Key {
        match self {
            Self::Ledger(_) => Key::Ledger,
            Self::Act(action) => match action {
                Planned::Adopt { drain, .. } | Planned::Delete { drain, .. } | Planned::Finish { drain } => {
                    Key::Drain(drain.metadata.uid.clone().unwrap_or_default())
                }
                Planned::Node(write) => Key::Node(write.node.uid.clone()),
                Planned::Conditions(write) => Key::Conditions(write.node.uid.clone()),
                Planned::Evict { eviction } => Key::Pod(eviction.pod.uid.clone()),
                Planned::EvictHeld { node_uid, .. } => Key::Held(node_uid.clone()),
                Planned::Lease(change) => Key::Lease(change.node.clone()),
                Planned::Reserve(reservation) => Key::Reservation(reservation.budget.clone()),
                Planned::Touch(touch) => Key::Show(show::BUDGET_ANNOTATION, touch.budget.to_string()),
            },
            Self::Show(show) => {
                let (kind, name) = show.about();
                Key::Show(kind, name)
            }
        }
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Ledger(_) | Self::Act(_) => Lane::Api,
            Self::Show(_) => Lane::Status,
        }
    }

    /// Evictions were noted as under way when they were started: a newer plan leaves their pods out.
    fn replaces_queued(&self) -> bool {
        self.pods().is_empty()
    }

    async fn run(self, shared: Shared, permits: Permits) -> Outcome {
        let snapshot = shared.snapshot;
        let means = Means {
            clients: shared.clients,
            world: shared.world,
            field_manager: shared.field_manager,
            permits,
        };
        match means.permits.check() {
            Err(Stop::DryRun) => {
                tracing::info!(action = %self.key(), "dry run: not done");
                return Done::Stopped(Stop::DryRun).into();
            }
            // Evictions tell of each pod that it was not asked to go.
            Err(stop) if self.pods().is_empty() => return Done::from(stop).into(),
            Ok(()) | Err(_) => {}
        }
        match self {
            Self::Ledger(write) => ledger::write(&means, write, &snapshot).await,
            Self::Act(action) => act(&means, action, &snapshot).await,
            Self::Show(show) => show::write(&means, show).await.into(),
        }
    }
}

impl control::Outcome for Outcome {
    fn result(&self) -> ActionResult {
        self.done.clone()
    }
}

impl Work {
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

/// Carries out an action that was planned from `snapshot`.
async fn act(means: &Means, action: Planned, snapshot: &Snapshot) -> Outcome {
    match action {
        Planned::Adopt { drain, node_uid } => drain::adopt(means, &drain, &node_uid).await.into(),
        Planned::Delete { drain, reason } => {
            let done = drain::delete(means, &drain, reason).await;
            told(done, &drain, reason)
        }
        Planned::Finish { drain } => {
            let done = drain::finish(means, &drain).await;
            told(done, &drain, LockReason::Released)
        }
        Planned::Node(write) => {
            let seen = snapshot.drains.get(&write.node.name);
            node::write(means, &write, seen.map(Arc::as_ref)).await.into()
        }
        Planned::Conditions(write) => node::write_conditions(means, &write).await.into(),
        Planned::Evict { eviction } => {
            let eviction = evict::evict(means, &eviction, None).await;
            Outcome {
                evictions: vec![eviction],
                ..Done::Acted(()).into()
            }
        }
        Planned::EvictHeld {
            node_uid,
            fence,
            ledger_uid,
            pods,
        } => evict::evict_held(means, &node_uid, fence, &ledger_uid, pods).await,
        Planned::Lease(change) => lease::write(means, &change).await,
        Planned::Reserve(reservation) => reserve::write(means, &reservation).await.into(),
        Planned::Touch(touch) => show::touch(means, touch).await.into(),
    }
}

/// What became of a drain, for people.
fn told(done: Done, drain: &nodeward_api::NodeDrain, reason: LockReason) -> Outcome {
    let mut outcome = Outcome::from(done);
    if outcome.done == Done::Acted(()) {
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
