//! Execute: carries out actions, each with its own preconditions. What every action shares is in
//! [`nodeward_runtime::control`].

mod control_plane;
mod default_check;
mod lease;
mod node;
mod node_health_check;
mod quorum;
mod remediation;
mod start_remediation;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use kube::Api;
use kube::core::{ApiResource, DynamicObject};
use nodeward_api::node_health_check::NodeHealthCheckStatus;
use nodeward_core::id::{NamespacedName, NodeUid, ResourceVersion};
use nodeward_core::lease::LeaseView;
use nodeward_core::signal::WatchedResource;
use nodeward_runtime::control::Outcome;
use nodeward_runtime::{ActionResult, Clients, Permits, Stop};
use tokio::time::Instant;

use crate::plan::{Action, ActionKey, Standing};
use crate::snapshot::{CheckName, RemediationFacts, RemediationKind};

pub use self::quorum::{CheckReads, NodeReads};

/// An action that has ended.
#[derive(Debug)]
pub struct Executed {
    /// The action.
    pub action: Action,
    /// What it has come to.
    pub effect: Effect,
}

/// What an action has come to.
#[derive(Debug)]
pub struct Effect {
    /// How it ended.
    pub result: ActionResult,
    /// Why a remediation is not started: its intent is withdrawn.
    pub refusal: Option<Standing>,
    /// What watches do not show yet.
    pub written: Vec<Written>,
    /// When the remediation was created, where one was deleted.
    pub created: Option<Timestamp>,
    /// `spec.providerID` of the node, where it was read.
    pub provider_id: Option<String>,
}

/// The same; an error is what an action has come to that ended on the way.
type Ended = Result<Effect, Effect>;

/// What was written, and onto which version.
#[derive(Debug, Clone, PartialEq)]
pub enum Written {
    /// A NodeHealthCheck's status.
    Status {
        /// Its name.
        check: CheckName,
        /// The version before.
        base: ResourceVersion,
        /// The version since.
        version: ResourceVersion,
        /// The status.
        status: Arc<NodeHealthCheckStatus>,
    },
    /// A remediation.
    Remediation {
        /// Its kind.
        kind: RemediationKind,
        /// Namespace and name.
        key: NamespacedName,
        /// The version before; `None`: there was none.
        base: Option<ResourceVersion>,
        /// As it is now; `None`: gone.
        facts: Option<Arc<RemediationFacts>>,
    },
    /// A lease.
    Lease {
        /// Its name.
        name: Arc<str>,
        /// The version before; `None`: there was none.
        base: Option<ResourceVersion>,
        /// As it is now; `None`: gone.
        lease: Option<Arc<LeaseView>>,
    },
    /// An annotation of a Node.
    NodeAnnotation {
        /// UID of the node.
        node: NodeUid,
        /// The annotation.
        annotation: &'static str,
        /// The value before; `None`: there was none.
        base: Option<String>,
        /// The value now; `None`: removed.
        value: Option<String>,
    },
}

/// The newest version of each NodeHealthCheck that this process wrote: an intent in it is its own. The write's answer tells it
/// at once, for a watch may be faster than the loop. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct OwnVersions(Arc<Mutex<BTreeMap<CheckName, ResourceVersion>>>);

impl OwnVersions {
    /// Works on what is known.
    pub fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<CheckName, ResourceVersion>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the actions of one pass share. Hundreds may be under way: none of them keeps the snapshot.
#[derive(Clone)]
pub struct PassContext {
    /// For requests.
    pub clients: Clients,
    /// Quorum reads.
    pub reads: NodeReads,
    /// Quorum reads of NodeHealthChecks.
    pub check_reads: CheckReads,
    /// How the API server serves each kind of remediation.
    pub resources: Arc<BTreeMap<RemediationKind, ApiResource>>,
    /// Templates that are read before they are used.
    pub polled_templates: Arc<BTreeMap<WatchedResource, ApiResource>>,
    /// Which versions of NodeHealthChecks this process wrote.
    pub own_versions: OwnVersions,
    /// Etcd is guarded by budgets and pods of its own, as on OpenShift.
    pub has_etcd_guards: bool,
    /// Namespace of the leases.
    pub lease_namespace: Arc<str>,
    /// Namespace of the operator.
    pub own_namespace: Arc<str>,
    /// When the plan was made: what its writes rest on is read after it.
    pub planned_at: Instant,
}

impl PassContext {
    /// Remediations of a kind in a namespace; `None`: the kind is not served.
    fn remediations(&self, kind: &RemediationKind, namespace: &str) -> Option<Api<DynamicObject>> {
        Some(self.objects(self.resources.get(kind)?, namespace))
    }

    /// Objects in a namespace, which is empty where their kind has none.
    fn objects(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        let client = self.clients.requests.clone();
        if namespace.is_empty() {
            Api::all_with(client, resource)
        } else {
            Api::namespaced_with(client, namespace, resource)
        }
    }
}

impl<R: Into<ActionResult>> From<R> for Effect {
    fn from(result: R) -> Self {
        Self {
            result: result.into(),
            refusal: None,
            written: Vec::new(),
            created: None,
            provider_id: None,
        }
    }
}

impl Effect {
    /// It was done, and this is what watches do not show yet.
    fn acted(written: Written) -> Self {
        Self {
            written: vec![written],
            ..ActionResult::Acted(()).into()
        }
    }
}

impl nodeward_runtime::Action for Action {
    type Key = ActionKey;
    type Context = PassContext;
    type Outcome = Executed;

    fn key(&self) -> ActionKey {
        self.key()
    }

    /// A node that recovers, a pause or a threshold between two requests stops the second.
    fn stops_when_unplanned(&self) -> bool {
        matches!(
            self,
            Self::StartRemediation(_) | Self::DeleteRemediation(_) | Self::AnnotateRemediation(..)
        )
    }

    async fn run(self, pass: PassContext, permits: Permits) -> Executed {
        if let Err(Stop::DryRun) = permits.check() {
            tracing::info!(action = %self.key(), "dry run: not done");
        }
        let (Ok(effect) | Err(effect)) = act(&self, &pass, &permits).await;
        Executed { action: self, effect }
    }
}

/// A future takes the memory of its largest branch, and hundreds may be under way: the larger ones are boxed.
async fn act(action: &Action, pass: &PassContext, permits: &Permits) -> Ended {
    match action {
        Action::WriteStatus(write) => node_health_check::write_status(pass, permits, write).await,
        Action::WriteSelector(write) => node_health_check::write_selector(pass, permits, write).await,
        Action::StartRemediation(start) => Box::pin(start_remediation::start(pass, permits, start)).await,
        Action::DeleteRemediation(write) => Box::pin(remediation::delete(pass, permits, write)).await,
        Action::AnnotateRemediation(write, change) => {
            Box::pin(remediation::annotate(pass, permits, write, *change)).await
        }
        Action::Lease(change) => lease::write(pass, permits, change).await,
        Action::AnnotateNode {
            node,
            node_uid,
            before,
            change,
        } => node::annotate(pass, permits, (node, node_uid), before.clone(), change).await,
        Action::Default { step, template } => default_check::run(pass, permits, *step, template).await,
    }
}

impl Outcome for Executed {
    fn result(&self) -> ActionResult {
        self.effect.result.clone()
    }
}

#[cfg(test)]
mod tests;
