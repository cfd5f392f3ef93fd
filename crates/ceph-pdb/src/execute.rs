//! Execute: carries out planned writes. Those of the OSDs' budgets of one cluster are one task, so that a later step never
//! overtakes an earlier one; all others go side by side.

mod budget;
mod publish;
mod state_map;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodeward_runtime::control::{Lane, Outcome};
use nodeward_runtime::{Action, ActionResult, Clients, Permits};

use crate::budgets;
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
pub struct ExecutorContext {
    /// For requests.
    pub clients: Clients,
    /// For flags.
    pub connections: CephConnections,
    /// What was planned from.
    pub snapshot: Arc<Snapshot>,
}

impl ExecutorContext {
    fn cluster(&self, namespace: &Namespace) -> Option<&ClusterSnapshot> {
        self.snapshot.clusters.get(namespace).map(|cluster| &**cluster)
    }
}

/// A task that has ended.
#[derive(Debug)]
pub struct Executed {
    /// Each write, with how it ended.
    pub writes: Vec<(PlannedWrite, ActionResult<Written>)>,
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
        published: Published,
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
        Write::CreateBudget { form, .. } | Write::PatchBudget { form, .. } => !matches!(form, BudgetForm::Daemon(_)),
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
    type Context = ExecutorContext;
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

    async fn run(self, context: ExecutorContext, permits: Permits) -> Executed {
        let writes = self.writes.into_iter().map(async |planned| {
            let result = carry_out(&context, &permits, &planned).await.into();
            (planned, result)
        });
        Executed {
            writes: join_all(writes).await,
        }
    }
}

async fn carry_out(
    context: &ExecutorContext,
    permits: &Permits,
    planned: &PlannedWrite,
) -> Result<Written, ActionResult<Written>> {
    match &planned.write {
        Write::CreateBudget { .. } | Write::PatchBudget { .. } => {
            Box::pin(budget::write(context, permits, planned)).await
        }
        Write::DeleteBudget { .. } => Box::pin(budget::delete(context, permits, planned)).await,
        Write::ReleaseBudget { .. } => Box::pin(budget::release(context, permits, planned)).await,
        Write::WriteStateMap { .. } => Box::pin(state_map::write(context, permits, planned)).await,
        Write::SetNoout { .. } => Box::pin(state_map::set_noout(context, permits, planned)).await,
        Write::Publish { .. } => Box::pin(publish::write(context, permits, planned)).await,
    }
}

/// A ConfigMap that goes with its CephCluster.
fn config_map(owner: &Owner, name: &str, data: BTreeMap<String, String>) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![budgets::owner_reference(owner)]),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    }
}

impl Outcome for Executed {
    /// The worst of its writes: one that failed backs the others off, too.
    fn result(&self) -> ActionResult {
        let severity = |result: &&ActionResult<Written>| match result {
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
