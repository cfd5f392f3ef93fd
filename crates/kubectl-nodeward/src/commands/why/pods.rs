//! The pods of a node, as evictions would find them: what the API server answers where it can be asked, what their budgets
//! say otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{EvictParams, PostParams};
use nodeward_api::reason::{BlockerReason, LockReason};
use nodeward_core::budget::{BudgetView, Budgets, DisruptionAllowance, NoAllowance};
use nodeward_core::id::PodKey;
use nodeward_core::ledger::Unusable;
use nodeward_core::opt_out::OptOut;
use nodeward_core::pod::PodView;
use nodeward_core::text::counted;
use serde::Serialize;

use super::print_rest;
use crate::cluster::Cluster;
use crate::describe::prefixed;
use crate::failure::{Failure, MissingRight};
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::Cell;

/// Pods that are listed one by one.
const LISTED: usize = 10;

/// Evictions that are tried without being carried out, at most.
const ASKED: usize = 100;

/// How many of them are under way at once.
const AT_ONCE: usize = 8;

/// How long each may take. A webhook that answers later is one to be told of.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

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
    /// Pods whose eviction the API server was asked about, as a dry run.
    pub asked: usize,
    /// The right to evict that the caller lacks: then the answers are those of the budgets' statuses.
    pub not_asked: Option<MissingRight>,
    /// The page tries no evictions, and says who does.
    #[serde(skip)]
    pub is_asked_elsewhere: bool,
    /// Pods that a drain would evict.
    #[serde(skip)]
    pub evicted: Vec<PodKey>,
}

/// A pod that would not go now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodObstacle {
    pub pod: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pdbs: Vec<String>,
    /// Absent where only the API server's answer says so.
    pub kept_by: Option<KeptBy>,
    /// What the API server answered to its eviction.
    pub answer: Option<String>,
}

/// Why a pod cannot be evicted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum KeptBy {
    Budget(BlockerReason),
    Drain(LockReason),
}

impl KeptBy {
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Budget(reason) => reason.explanation(),
            Self::Drain(reason) => reason.explanation(),
        }
    }

    pub fn remedy(self) -> &'static str {
        match self {
            Self::Budget(reason) => reason.remedy(),
            Self::Drain(reason) => reason.remedy(),
        }
    }

    /// Whether the pod asked for it, so that the API server has nothing to do with it.
    pub fn is_opt_out(self) -> bool {
        matches!(self, Self::Drain(LockReason::OptedOut | LockReason::WaitCompleted))
    }
}

/// What the API server answered to an eviction that it was not to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictionAnswer {
    Accepted,
    /// With its message.
    Refused(String),
    /// The caller may not evict.
    NotAllowed(MissingRight),
}

/// Asks the API server, which carries nothing out.
pub async fn try_eviction(cluster: &Cluster, namespace: &str, pod: &str) -> Result<EvictionAnswer, Failure> {
    let pods: Api<Pod> = Api::namespaced(cluster.evicting.clone(), namespace);
    let params = EvictParams {
        post_options: PostParams {
            dry_run: true,
            ..PostParams::default()
        },
        ..EvictParams::default()
    };
    let asked = tokio::time::timeout(ANSWERED_WITHIN, cluster.ask(pods.evict(pod, &params))).await;
    match asked.unwrap_or(Err(Failure::Timeout(ANSWERED_WITHIN))) {
        // It has gone meanwhile.
        Ok(_) | Err(Failure::NotFound(_)) => Ok(EvictionAnswer::Accepted),
        // The rest of the answer does not wait for it, nor fail with it.
        Err(Failure::Timeout(limit)) => {
            let said = format!("no answer within {} s: perhaps of a webhook", limit.as_secs());
            Ok(EvictionAnswer::Refused(said))
        }
        Err(Failure::MissingRight(missing)) => Ok(EvictionAnswer::NotAllowed(*missing)),
        Err(Failure::Refused(said) | Failure::Conflict(said) | Failure::ServerError(said)) => {
            Ok(EvictionAnswer::Refused(said))
        }
        Err(failure) => Err(failure),
    }
}

impl PodsOnNode {
    /// Looks at the pods of a node as an eviction would. Without budgets (`None`) only their own wishes are seen.
    pub fn of(pods: &[Pod], budgets: Option<&[PodDisruptionBudget]>, now: Timestamp) -> Self {
        let budgets = budgets.unwrap_or_default().iter();
        let budgets = Budgets::new(budgets.filter_map(BudgetView::project).map(Arc::new));
        let mut seen = Self::default();
        for pod in pods.iter().filter_map(PodView::project) {
            if pod.is_daemon() || pod.mirror || pod.is_finished() {
                seen.ignored += 1;
                continue;
            }
            seen.to_leave += 1;
            if pod.deletion.is_some() {
                seen.terminating += 1;
                continue;
            }
            let matching = budgets.matching(&pod);
            let kept_by = kept_by(&pod, &matching, now);
            if !kept_by.is_some_and(KeptBy::is_opt_out) {
                seen.evicted.push(pod.key.clone());
            }
            if let Some(kept_by) = kept_by {
                seen.obstacles.push(PodObstacle {
                    pod: pod.key.to_string(),
                    pdbs: matching.iter().map(|budget| budget.key.to_string()).collect(),
                    kept_by: Some(kept_by),
                    answer: None,
                });
            }
        }
        seen.obstacles.sort_by(|a, b| a.pod.cmp(&b.pod));
        seen
    }

    /// Asks the API server about the pods that a drain would evict.
    pub async fn ask(&mut self, cluster: &Cluster) -> Result<(), Failure> {
        let asked: Vec<PodKey> = self.evicted.iter().take(ASKED).cloned().collect();
        let answers = stream::iter(asked).map(|pod| async move {
            let answer = try_eviction(cluster, &pod.namespace, &pod.name).await;
            (pod.to_string(), answer)
        });
        let mut answers = answers.buffered(AT_ONCE);
        let mut said = BTreeMap::new();
        while let Some((pod, answer)) = answers.next().await {
            match answer? {
                // The right to the others is missing as well.
                EvictionAnswer::NotAllowed(missing) => {
                    self.not_asked = Some(missing);
                    return Ok(());
                }
                answer => said.insert(pod, answer),
            };
        }
        self.take_answers(said);
        Ok(())
    }

    /// What the API server said counts for more than what budgets' statuses let expect.
    pub fn take_answers(&mut self, answers: BTreeMap<String, EvictionAnswer>) {
        self.asked = answers.len();
        for (pod, answer) in answers {
            match (answer, self.obstacles.iter_mut().find(|one| one.pod == pod)) {
                (EvictionAnswer::Refused(said), Some(known)) => known.answer = Some(said),
                (EvictionAnswer::Refused(said), None) => self.obstacles.push(PodObstacle {
                    pod,
                    pdbs: Vec::new(),
                    kept_by: None,
                    answer: Some(said),
                }),
                (EvictionAnswer::Accepted, _) => self.obstacles.retain(|one| one.pod != pod),
                (EvictionAnswer::NotAllowed(_), _) => (),
            }
        }
        self.obstacles.sort_by(|a, b| a.pod.cmp(&b.pod));
    }

    pub fn print(&self, page: &mut Page) {
        let count = |count: usize| Some(count).filter(|&count| count > 0);
        let terminating = count(self.terminating).map(|count| format!(", {count} of them terminating"));
        let ignored = count(self.ignored).map(|count| format!("; {count} that no drain concerns"));
        page.heading("Pods");
        let (terminating, ignored) = (prefixed("", terminating), prefixed("", ignored));
        page.field("to leave", format!("{}{terminating}{ignored}", self.to_leave));
        let obstacles = &self.obstacles;
        let asked = match &self.not_asked {
            Some(missing) => {
                let text = format!("not: {missing}; by the statuses of their budgets:");
                Some(Cell::new(Style::Faint, text))
            }
            None if self.asked > 0 => {
                let evictions = counted(self.asked, "eviction");
                let how = "(a dry run: nothing is evicted, and drain-lock lets it pass)";
                Some(format!("the API server, about {evictions} {how}").into())
            }
            None if self.is_asked_elsewhere && self.to_leave > 0 => {
                let text = "nobody: by the statuses of their budgets; kubectl nodeward why asks the API server, too";
                Some(Cell::new(Style::Faint, text))
            }
            None => None,
        };
        page.fields("asked", asked);
        if self.to_leave == 0 {
            return;
        }
        if obstacles.is_empty() {
            let none = "none by the API server now";
            return page.field("refused", Cell::new(Style::Good, none));
        }
        page.field(
            "refused",
            Cell::new(Style::Warning, format!("{} cannot be evicted now:", obstacles.len())),
        );
        for obstacle in obstacles.iter().take(LISTED) {
            page.point(Style::Plain, obstacle.in_words());
        }
        print_rest(page, obstacles.len().saturating_sub(LISTED));
    }
}

impl PodObstacle {
    fn in_words(&self) -> String {
        let pod = &self.pod;
        let pdbs = match self.pdbs.as_slice() {
            [] => String::new(),
            [one] => format!(" (PDB {one})"),
            several => format!(" (PDBs {})", several.join(", ")),
        };
        match (self.kept_by, &self.answer) {
            (Some(kept_by), _) => format!("{pod} {}{pdbs}; to do: {}", kept_by.explanation(), kept_by.remedy()),
            (None, Some(said)) => format!("{pod} is refused: {said}"),
            (None, None) => pod.clone(),
        }
    }
}

/// Why an eviction of the pod would be refused, by its own wishes and by the statuses of the budgets that select it.
pub fn kept_by(pod: &PodView, budgets: &[&Arc<BudgetView>], now: Timestamp) -> Option<KeptBy> {
    match pod.opt_out(now) {
        Some((OptOut::Skip, _)) => return Some(KeptBy::Drain(LockReason::OptedOut)),
        Some((OptOut::WaitCompleted | OptOut::Unknown, _)) => return Some(KeptBy::Drain(LockReason::WaitCompleted)),
        None => (),
    }
    if pod.skips_budgets() {
        return None;
    }
    if budgets.len() > 1 {
        return Some(KeptBy::Drain(LockReason::SeveralPDBs));
    }
    let budget = budgets.first()?;
    match budget.allowance(pod) {
        DisruptionAllowance::None(NoAllowance::StatusBehind) => Some(KeptBy::Drain(LockReason::StatusBehind)),
        DisruptionAllowance::None(_) if never_allows(budget) => Some(KeptBy::Drain(LockReason::BudgetNeverAllows)),
        DisruptionAllowance::None(_) => Some(KeptBy::Budget(BlockerReason::BudgetExhausted)),
        DisruptionAllowance::NotAsked | DisruptionAllowance::UnreadyMayGo | DisruptionAllowance::Left(_) => None,
    }
}

/// Ceph's operator closes a budget in the same way, and opens it again.
fn never_allows(budget: &BudgetView) -> bool {
    let status = &budget.status;
    !budget.kept_by_ceph_operator && Unusable::of(false, false, status.expected_pods, status.desired_healthy).is_some()
}
