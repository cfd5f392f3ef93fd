//! Execute: carries out planned writes. Those of the OSDs' budgets of one cluster are one task, so that a later step never
//! overtakes an earlier one; all others go side by side.

mod budget;
mod config_maps;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Resource};
use nodeward_runtime::control::{Lane, Outcome, Permit};
use nodeward_runtime::{Action, ActionResult, Clients, Permits, Stop};

use self::budget::Target;
use crate::connection::CephConnections;
use crate::plan::write::{Owner, PlannedWrite, Write, WriteKey};
use crate::snapshot::{BudgetFacts, BudgetForm, ClusterSnapshot, Namespace, Published, Snapshot, StateMap};

/// Writes of one key.
#[derive(Debug, PartialEq, Eq)]
pub struct Task {
    key: TaskKey,
    writes: Vec<PlannedWrite>,
}

/// What a task is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskKey {
    /// All budgets of the OSDs of a cluster.
    OsdBudgets(Namespace),
    /// One write.
    One(WriteKey),
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OsdBudgets(namespace) => write!(f, "budgets of the OSDs in {namespace}"),
            Self::One(WriteKey::Budget(namespace, name)) => write!(f, "budget {namespace}/{name}"),
            Self::One(WriteKey::Noout(namespace)) => write!(f, "noout of the OSDs in {namespace}"),
            Self::One(WriteKey::State(namespace)) => write!(f, "published state of {namespace}"),
        }
    }
}

/// What the tasks of one pass share.
#[derive(Clone)]
pub struct PassContext {
    /// For requests.
    pub clients: Clients,
    /// For flags.
    pub connections: CephConnections,
    /// What was planned from.
    pub snapshot: Arc<Snapshot>,
}

/// One write under way.
struct Scope<'a> {
    context: &'a PassContext,
    permits: &'a Permits,
    owner: &'a Owner,
}

/// How a write ends that does not act.
type Ended = ActionResult<Written>;

impl Scope<'_> {
    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.context.clients.requests.clone(), &self.owner.namespace)
    }

    /// The permit of a write that opens, or of one that does not: closing waits for no read of the pause.
    async fn permit(&self, opens: bool) -> Result<Permit, Stop> {
        if opens {
            self.permits.next_act().await
        } else {
            self.permits.next_write().await
        }
    }

    /// The cluster as it was planned from.
    fn cluster(&self) -> Option<&ClusterSnapshot> {
        let cluster = self.context.snapshot.clusters.get(&self.owner.namespace);
        cluster.map(|cluster| &**cluster)
    }
}

/// A task that has ended.
#[derive(Debug)]
pub struct Executed {
    /// Each write, with how it ended.
    pub writes: Vec<(PlannedWrite, Ended)>,
}

/// What a write came to, which the caches do not show yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// A budget is so now (`None`: gone), where these versions were.
    Budget {
        name: Arc<str>,
        bases: Vec<Option<Arc<str>>>,
        facts: Option<BudgetFacts>,
    },
    /// So is the state map.
    StateMap { base: Option<Arc<str>>, map: StateMap },
    /// So is the published state.
    Published {
        base: Option<Arc<str>>,
        published: Box<Published>,
    },
    /// Ceph has carried out a change of `noout`.
    Noout,
}

/// Puts the writes of a plan together by what they are about.
pub fn tasks(writes: Vec<PlannedWrite>, snapshot: &Snapshot) -> Vec<Task> {
    let mut tasks: BTreeMap<TaskKey, Vec<PlannedWrite>> = BTreeMap::new();
    for write in writes {
        let key = if is_of_osds(&write, snapshot) {
            TaskKey::OsdBudgets(Arc::clone(&write.owner.namespace))
        } else {
            TaskKey::One(write.key())
        };
        tasks.entry(key).or_default().push(write);
    }
    tasks.into_iter().map(|(key, writes)| Task { key, writes }).collect()
}

/// A budget of ours whose form somebody has changed may select OSDs.
fn is_of_osds(write: &PlannedWrite, snapshot: &Snapshot) -> bool {
    match &write.write {
        Write::WriteBudget { form, .. } => !matches!(form, BudgetForm::Daemon(_)),
        Write::DeleteBudget { name, .. } | Write::ReleaseBudget { name, .. } => {
            let cluster = snapshot.clusters.get(&write.owner.namespace);
            let budget = cluster.and_then(|cluster| cluster.budgets.get(name));
            !budget.is_some_and(|budget| matches!(budget.form, Some(BudgetForm::Daemon(_))))
        }
        Write::WriteStateMap { .. } | Write::SetNoout { .. } | Write::Publish { .. } => false,
    }
}

impl Action for Task {
    type Key = TaskKey;
    type Context = PassContext;
    type Outcome = Executed;

    fn key(&self) -> TaskKey {
        self.key.clone()
    }

    fn lane(&self) -> Lane {
        match self.key {
            TaskKey::One(WriteKey::State(_)) => Lane::Status,
            TaskKey::OsdBudgets(_) | TaskKey::One(_) => Lane::Api,
        }
    }

    /// A flag is not set, nor a domain's budget deleted, that is wanted no longer.
    fn stops_when_unplanned(&self) -> bool {
        true
    }

    async fn run(self, context: PassContext, permits: Permits) -> Executed {
        let writes = self.writes.into_iter().map(async |planned| {
            let result = carry_out(&context, &permits, &planned).await.into();
            (planned, result)
        });
        Executed {
            writes: join_all(writes).await,
        }
    }
}

async fn carry_out(context: &PassContext, permits: &Permits, planned: &PlannedWrite) -> Result<Written, Ended> {
    let owner = &planned.owner;
    let scope = &Scope {
        context,
        permits,
        owner,
    };
    match &planned.write {
        Write::WriteBudget {
            name,
            resource_version,
            form,
        } => Box::pin(Target::new(scope, name).write(resource_version.as_ref(), form)).await,
        Write::DeleteBudget {
            name,
            uid,
            resource_version,
            rests_on,
        } => Box::pin(Target::new(scope, name).delete(uid, resource_version, rests_on.as_ref())).await,
        Write::ReleaseBudget { name, resource_version } => {
            Box::pin(Target::new(scope, name).release(resource_version)).await
        }
        Write::WriteStateMap {
            resource_version,
            takes_over,
            noout,
        } => {
            Box::pin(config_maps::write_records(
                scope,
                resource_version.as_ref(),
                *takes_over,
                noout,
            ))
            .await
        }
        Write::SetNoout {
            buckets,
            on,
            state_map_version,
            noout,
        } => Box::pin(config_maps::set_noout(scope, buckets, *on, state_map_version, noout)).await,
        Write::Publish {
            resource_version,
            state,
            ..
        } => Box::pin(config_maps::publish(scope, resource_version.as_ref(), state)).await,
    }
}

impl Outcome for Executed {
    /// The worst of its writes: one that failed backs the others off, too.
    fn result(&self) -> ActionResult {
        let severity = |result: &&Ended| match result {
            ActionResult::AlreadyDone => 0,
            ActionResult::Acted(_) => 1,
            ActionResult::Stopped(_) => 2,
            ActionResult::Outdated(_) => 3,
            ActionResult::Failed(_) => 4,
        };
        let results = self.writes.iter().map(|(_, result)| result);
        let worst = results.max_by_key(severity);
        worst.map_or(ActionResult::AlreadyDone, ActionResult::erased)
    }
}

#[cfg(test)]
pub(crate) mod tests;
