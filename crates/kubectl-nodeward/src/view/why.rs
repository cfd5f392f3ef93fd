//! What stands in the way of one node's drain.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use nodeward_api::node_drain::Phase;
use nodeward_api::opt_out::OptOut;
use nodeward_core::budget::{BudgetView, Budgets, NoRoom, Room};
use nodeward_core::pod::{Owner, PodView};
use serde::Serialize;

use super::drain::Drain;
use super::locks::BudgetLocks;
use super::node::NodeGlance;
use super::unread::Unread;

/// What stands in the way of one node's drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// The node; absent where it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeGlance>,
    /// Its drain, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// Drains before it in the queue; absent where that could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<usize>,
    /// The drains that it waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Drain>,
    /// The budgets that matter to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<BudgetLocks>,
    /// Its pods, as the API server would treat their evictions now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodsOnNode>,
    /// What could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

/// The pods of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodsOnNode {
    /// Pods that no drain concerns: DaemonSets' pods, mirror pods, finished pods.
    pub ignored: usize,
    /// Pods that a drain would have to see off.
    pub to_leave: usize,
    /// Those of them that terminate already.
    pub terminating: usize,
    /// Those of them whose eviction would be refused now, or that asked to be left alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub obstacles: Vec<PodObstacle>,
}

/// A pod that would not go now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodObstacle {
    /// The pod.
    pub pod: String,
    /// Its budgets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pdbs: Vec<String>,
    /// What keeps it.
    pub kept_by: KeptBy,
}

/// What keeps a pod from being evicted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum KeptBy {
    /// Its budget allows no disruption.
    BudgetExhausted,
    /// Its budget's status is older than its spec.
    StatusBehind,
    /// Several budgets select it.
    SeveralPDBs,
    /// It asked to stay (`nodeward.dev/drain: skip`).
    OptedOut,
    /// It asked to be waited for.
    WaitCompleted,
}

impl KeptBy {
    /// What it means, for a person: completes "pod x …".
    pub fn explanation(self) -> &'static str {
        match self {
            Self::BudgetExhausted => "is covered by a budget that allows no disruption now",
            Self::StatusBehind => "is covered by a budget whose status is older than its spec",
            Self::SeveralPDBs => "is selected by several budgets, which the eviction API refuses",
            Self::OptedOut => "asked to stay on the node",
            Self::WaitCompleted => "asked to finish before the drain",
        }
    }
}

impl PodsOnNode {
    /// Looks at the pods of a node as an eviction would. Without budgets (`None`) only their own wishes are seen.
    pub fn of(pods: &[Pod], budgets: Option<&[PodDisruptionBudget]>) -> Self {
        let views = budgets
            .unwrap_or_default()
            .iter()
            .filter_map(BudgetView::project)
            .map(Arc::new);
        let budgets = Budgets::new(views);
        let mut seen = Self::default();
        for pod in pods.iter().filter_map(PodView::project) {
            if pod.owner == Owner::DaemonSet || pod.mirror || pod.is_finished() {
                seen.ignored += 1;
                continue;
            }
            seen.to_leave += 1;
            if pod.deletion.is_some() {
                seen.terminating += 1;
                continue;
            }
            let matching = budgets.matching(&pod);
            if let Some(kept_by) = kept_by(&pod, &matching) {
                seen.obstacles.push(PodObstacle {
                    pod: pod.key.to_string(),
                    pdbs: matching.iter().map(|budget| budget.key.to_string()).collect(),
                    kept_by,
                });
            }
        }
        seen.obstacles.sort_by(|a, b| a.pod.cmp(&b.pod));
        seen
    }
}

fn kept_by(pod: &PodView, budgets: &[&Arc<BudgetView>]) -> Option<KeptBy> {
    match pod.opt_out {
        Some((OptOut::Skip, _)) => return Some(KeptBy::OptedOut),
        Some((OptOut::WaitCompleted | OptOut::Unknown, _)) => return Some(KeptBy::WaitCompleted),
        None => (),
    }
    if pod.skips_budgets() {
        return None;
    }
    if budgets.len() > 1 {
        return Some(KeptBy::SeveralPDBs);
    }
    match budgets.first()?.room(pod) {
        Room::None(NoRoom::StatusBehind) => Some(KeptBy::StatusBehind),
        Room::None(_) => Some(KeptBy::BudgetExhausted),
        Room::NotAsked | Room::UnreadyMayGo | Room::Left(_) => None,
    }
}

impl Why {
    /// The budgets that stand in the drain's way, or that it holds.
    pub fn budgets_of(drain: Option<&Drain>, pods: Option<&PodsOnNode>) -> BTreeSet<String> {
        let waited_for = drain
            .iter()
            .flat_map(|drain| &drain.blocked_by)
            .filter_map(|blocked| blocked.pdb.clone());
        let held = drain
            .iter()
            .flat_map(|drain| &drain.holds)
            .map(|held| held.pdb.to_string());
        let refusing = pods
            .iter()
            .flat_map(|pods| &pods.obstacles)
            .flat_map(|obstacle| obstacle.pdbs.clone());
        waited_for.chain(held).chain(refusing).collect()
    }

    /// Whether anything is known to stand in the way.
    pub fn is_blocked(&self) -> bool {
        let by_lock = self.drain.as_ref().is_some_and(|drain| !drain.blocked_by.is_empty());
        let failed = self
            .drain
            .as_ref()
            .is_some_and(|drain| drain.phase == Some(Phase::Failed));
        let keeper = self.node.as_ref().and_then(|node| node.drain_keeper.as_ref());
        let by_keeper = keeper.is_some_and(|keeper| keeper.blocked.is_some());
        by_lock || failed || by_keeper || self.pods.as_ref().is_some_and(|pods| !pods.obstacles.is_empty())
    }

    /// Until when the present phase of the drain lasts at most.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.drain.as_ref().and_then(|drain| drain.deadline)
    }
}

#[cfg(test)]
mod tests;
