//! The decision: from one [`Snapshot`], a [`Policy`] and the time to what is written, asked and reported. Pure.

pub mod budget_steps;
mod budget_writes;
mod cluster;
pub mod daemon_budgets;
mod facts;
pub mod noout;
pub mod osd_disruptions;
mod pools;
pub mod verdict;
pub mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_core::deadline::RequeueAt;

pub use self::verdict::{ClusterVerdict, OsdCounts, Verdicts};
pub use self::write::{Owner, PlannedWrite, Write, WriteKey};
use crate::policy::Policy;
use crate::snapshot::{CephQuestions, Namespace, Snapshot};

/// What follows from a [`Snapshot`].
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// What is to be written now. Each on its own; what rests on them comes with a later plan.
    pub actions: Vec<PlannedWrite>,
    /// What Ceph is to be asked. A cluster that is known and not named here needs no connection.
    pub questions: BTreeMap<Namespace, CephQuestions>,
    /// How each CephCluster stands.
    pub verdicts: Verdicts,
    /// When to plan again at the latest.
    pub requeue_at: Option<Timestamp>,
}

/// Decides, for each cluster on its own.
pub fn plan(snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let mut requeue_at = RequeueAt::after(now);
    let known = snapshot.clusters.iter();
    for (namespace, cluster) in known.filter(|(namespace, _)| !snapshot.unknown.contains_key(*namespace)) {
        let planned = cluster::plan_cluster(cluster, policy, now, &mut requeue_at);
        let owner = &planned.verdict.owner;
        plan.actions
            .extend(planned.writes.into_iter().map(|write| PlannedWrite {
                owner: owner.clone(),
                write,
            }));
        let questions = planned.questions.map(|questions| (Arc::clone(namespace), questions));
        plan.questions.extend(questions);
        plan.verdicts.insert(Arc::clone(namespace), planned.verdict);
    }
    plan.requeue_at = requeue_at.at();
    plan
}

#[cfg(test)]
pub(crate) mod tests;
