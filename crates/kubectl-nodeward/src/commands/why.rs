//! `why`: the obstacles of one node's drain.

mod ceph;
mod health;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use nodeward_api::annotation::HOLD;
use nodeward_api::disruption_hold::DisruptionHold;
use nodeward_api::node_drain::Phase;
use nodeward_api::opt_out::OptOut;
use nodeward_api::reason::{BlockerReason, GateReason, LockReason};
use nodeward_core::budget::{BudgetView, Budgets, DisruptionAllowance, NoAllowance};
use nodeward_core::ledger::Ledger;
use nodeward_core::pod::PodView;
use serde::Serialize;

use super::locks;
use crate::cluster::Cluster;
use crate::describe::{self, counted, prefixed};
use crate::failure::Failure;
use crate::fetch::Reader;
use crate::model::Unread;
use crate::model::ceph::NodeCeph;
use crate::model::drain::Drain;
use crate::model::health::NodeHealth;
use crate::model::locks::{BudgetLocks, Sources, of_budgets};
use crate::model::node::{KeeperVerdict, NodeSummary};
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::Cell;
use crate::text::time::{distance, moment, with_distances};

/// Pods that are listed one by one.
const LISTED: usize = 10;

/// The obstacles of one node's drain.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// The node; absent where it could not be read.
    pub node: Option<NodeSummary>,
    pub drain: Option<Drain>,
    /// Its health in the eyes of each NodeHealthCheck that watches it; absent where they could not be read.
    pub health: Option<Vec<NodeHealth>>,
    /// The CephClusters with OSDs on it; absent where they could not be read.
    pub ceph: Option<Vec<NodeCeph>>,
    /// Drains before it in the queue; absent where that could not be read.
    pub ahead: Option<usize>,
    /// The drains that it waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Drain>,
    /// The budgets that matter to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<BudgetLocks>,
    /// Its pods, as the API server would treat their evictions now.
    pub pods: Option<PodsOnNode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

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
    pub pod: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pdbs: Vec<String>,
    pub kept_by: KeptBy,
}

/// Why a pod cannot be evicted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum KeptBy {
    Budget(BlockerReason),
    Drain(LockReason),
}

impl KeptBy {
    fn explanation(self) -> &'static str {
        match self {
            Self::Budget(reason) => reason.explanation(),
            Self::Drain(reason) => reason.explanation(),
        }
    }
}

impl PodsOnNode {
    /// Looks at the pods of a node as an eviction would. Without budgets (`None`) only their own wishes are seen.
    pub fn of(pods: &[Pod], budgets: Option<&[PodDisruptionBudget]>) -> Self {
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
    match budgets.first()?.allowance(pod) {
        DisruptionAllowance::None(NoAllowance::StatusBehind) => Some(KeptBy::Drain(LockReason::StatusBehind)),
        DisruptionAllowance::None(_) => Some(KeptBy::Budget(BlockerReason::BudgetExhausted)),
        DisruptionAllowance::NotAsked | DisruptionAllowance::UnreadyMayGo | DisruptionAllowance::Left(_) => None,
    }
}

impl Why {
    pub async fn fetch(cluster: &Cluster, name: &str) -> Result<Self, Failure> {
        let mut reader = Reader::new(cluster);
        let node = reader.node(name).await?;
        let drains = reader.drains().await?;
        let drain_of = |name: &str| {
            let mut drains = drains.iter().flatten();
            drains.find(|drain| drain.name_any() == name).map(Drain::of)
        };
        let drain = drain_of(name);
        let known = node.as_ref().and_then(Option::as_ref);
        let health = health::fetch(&mut reader, name, known, drain.as_ref()).await?;
        let is_remediated = health.iter().flatten().any(|health| health.step.is_some());
        if node == Some(None) && drain.is_none() && !is_remediated {
            return Err(Failure::Other(format!("there is no node {name}")));
        }
        let ledger = if drain.is_some() { reader.ledger().await? } else { None };
        let namespace = cluster.namespace.as_deref();
        let pods = reader.pods_on(name).await?;
        let budgets = reader.budgets(namespace).await?;
        let clusters = reader.ceph_clusters().await?;
        let ceph = clusters.map(|clusters| NodeCeph::of_node(name, clusters, pods.as_deref().unwrap_or_default()));
        let pods = pods.map(|pods| PodsOnNode::of(&pods, budgets.as_deref()));
        let concerned = concerned_budgets(drain.as_ref(), pods.as_ref());
        let holds = if cluster.serves::<DisruptionHold>() && !concerned.is_empty() {
            reader.holds(namespace).await?.unwrap_or_default()
        } else {
            Vec::new()
        };
        let sources = Sources {
            ledger: ledger.as_ref(),
            budgets: budgets.as_deref().unwrap_or_default(),
            holds: &holds,
            namespace,
        };
        let mut budgets = of_budgets(&sources, &concerned, reader.now);
        budgets.retain(|budget| concerned.contains(&budget.pdb));
        let holders = drain
            .iter()
            .flat_map(Drain::waits_for_nodes)
            .filter_map(drain_of)
            .collect();
        Ok(Self {
            node: node.flatten().as_ref().map(NodeSummary::of),
            health,
            ceph,
            ahead: ledger.as_ref().and_then(|ledger| claims_ahead(ledger, name)),
            holders,
            drain,
            budgets,
            pods,
            unread: reader.unread,
        })
    }

    pub fn print(&self, name: &str, page: &mut Page, now: Timestamp) {
        page.heading(name);
        if let Some(node) = &self.node {
            let (ready, style) = if node.ready {
                ("Ready", Style::Plain)
            } else {
                ("not Ready", Style::Bad)
            };
            let cordoned = if node.cordoned { "cordoned" } else { "not cordoned" };
            let since = node.cordoned_since.filter(|_| node.cordoned);
            let since = prefixed(" since ", since.map(|since| moment(since, now)));
            page.field("node", Cell::new(style, format!("{ready}, {cordoned}{since}")));
        }
        health::print_summary(page, self.health.as_deref());
        ceph::print_summary(page, self.ceph.as_deref());
        match &self.drain {
            Some(drain) => self.print_drain(page, drain, now),
            None if self.unread.iter().any(|unread| unread.what() == "drains") => (),
            None => page.field("drain", "not requested from drain-lock"),
        }
        if let Some(keeper) = self.node.as_ref().and_then(|node| node.drain_keeper.as_ref()) {
            let is_remediated = self.health.iter().flatten().any(|health| health.step.is_some());
            print_keeper(page, keeper, is_remediated, now);
        }
        for health in self.health.iter().flatten() {
            health::print(page, health, now);
        }
        for ceph in self.ceph.iter().flatten() {
            ceph::print(page, ceph, now);
        }
        if let Some(pods) = &self.pods {
            pods.print(page);
        }
        if !self.budgets.is_empty() {
            page.heading("Budgets that matter here");
            page.table(2, &locks::table(&self.budgets, now));
        }
        describe::unread(page, &self.unread);
    }

    fn print_drain(&self, page: &mut Page, drain: &Drain, now: Timestamp) {
        let ticket = prefixed(", ticket ", drain.ticket);
        let since = prefixed(", since ", drain.since().map(|since| moment(since, now)));
        let (phase, meaning) = (describe::phase(drain), describe::phase_meaning(drain));
        let style = describe::phase_style(drain.phase);
        page.field("drain", Cell::new(style, format!("{phase}{ticket}{since}: {meaning}")));
        let requesters = match drain.requesters.as_slice() {
            [] => "nobody any more".to_owned(),
            requesters => requesters.join(", "),
        };
        let purpose = prefixed(", for: ", drain.purpose.as_ref());
        page.field("requesters", requesters + &purpose);
        if let Some(counts) = drain.pods {
            page.field("pods", describe::pods(counts));
        }
        let holds = drain.holds.iter().map(|held| {
            let disruptions = counted(held.disruptions, "disruption");
            format!("{disruptions} of {} for {}", held.pdb, held.pods.join(", "))
        });
        page.fields("holds", holds);
        let obstacles = describe::distinct(&drain.blocked_by);
        let blocked = obstacles.iter().map(|blocked| describe::obstacle(blocked));
        page.fields("blocked by", blocked.map(|text| Cell::new(Style::Warning, text)));
        // A message that only repeats the phase or the obstacles adds nothing.
        let repeats = |message: &&String| {
            let mut obstacles = obstacles.iter();
            *message == meaning || obstacles.any(|one| message.contains(one.reason.explanation()))
        };
        if let Some(message) = drain.message.as_ref().filter(|message| !repeats(message)) {
            page.field("message", message);
        }
        page.fields("next", self.next(drain, now));
    }

    /// The events that the drain waits for, and the commands that help.
    fn next(&self, drain: &Drain, now: Timestamp) -> Vec<String> {
        let mut next = Vec::new();
        match self.ahead.filter(|_| drain.phase == Some(Phase::Queued)) {
            Some(0) => next.push("this is the oldest drain: no other comes before it".to_owned()),
            Some(1) => next.push("1 drain is older and comes first where both need the same budget".to_owned()),
            Some(ahead) => next.push(format!(
                "{ahead} drains are older and come first where they need the same budget"
            )),
            None => (),
        }
        for holder in &self.holders {
            let node = &holder.node;
            let phase = describe::phase(holder);
            let pods = prefixed(", ", holder.pods.map(describe::pods));
            let requesters = holder.requesters.join(", ");
            let requesters = prefixed(", requested by ", Some(requesters).filter(|text| !text.is_empty()));
            let until = holder.deadline.map(|until| format!("{} at most", moment(until, now)));
            let until = prefixed(", until ", until);
            let hint = match holder.phase {
                Some(Phase::Drained) if !holder.ending => format!(
                    ". It releases them when its pods are ready again: once its work is done, kubectl nodeward release {node}"
                ),
                _ => String::new(),
            };
            next.push(format!(
                "goes on when {node} releases its disruptions: its drain is {phase}{pods}{requesters}{until}{hint}"
            ));
        }
        for blocked in describe::distinct(&drain.blocked_by) {
            let Some(pdb) = &blocked.pdb else { continue };
            match blocked.reason {
                LockReason::OwnerHold => next.extend(self.ends_of_holds(pdb, now)),
                LockReason::BudgetNeverAllows => next.push(format!(
                    "does not go on by itself: PDB {pdb} must allow a disruption, or its workload needs more pods"
                )),
                LockReason::CephClosed => next.push(format!(
                    "goes on by itself when Ceph's placement groups are clean and its operator opens PDB {pdb} again; ceph status says what is down"
                )),
                _ => (),
            }
        }
        next.extend(describe::deadline(drain, now));
        let node = &drain.node;
        match drain.phase {
            _ if drain.ending => (),
            Some(Phase::Drained) => next.push(format!(
                "do the work, then uncordon the node; kubectl nodeward release {node} uncordons it, too, if drain-lock cordoned it"
            )),
            Some(Phase::Suspect) => next.push(format!(
                "if its pods will not come back: kubectl nodeward release {node} --force --reason TEXT"
            )),
            Some(Phase::Failed) => next.push(format!("request it again after kubectl nodeward release {node}")),
            _ => (),
        }
        next
    }

    /// When the owner's holds of a budget end, and the commands that end them before.
    fn ends_of_holds(&self, pdb: &str, now: Timestamp) -> impl Iterator<Item = String> {
        let (namespace, budget) = pdb.split_once('/').unwrap_or_default();
        let locks = self.budgets.iter().filter(move |locks| locks.pdb == pdb);
        locks.flat_map(|locks| &locks.owner_holds).map(move |hold| {
            let ends = prefixed(" at ", hold.until.map(|until| moment(until, now)));
            let command = match &hold.name {
                Some(name) => format!("kubectl nodeward release hold/{name} -n {namespace}"),
                None => format!("kubectl annotate -n {namespace} pdb {budget} {HOLD}-"),
            };
            format!(
                "goes on when its owner's hold of {pdb} ends{ends}; to end it earlier, if the owner agrees: {command}"
            )
        })
    }
}

/// The budgets that the drain waits for or holds, and those that refuse evictions of its pods.
fn concerned_budgets(drain: Option<&Drain>, pods: Option<&PodsOnNode>) -> BTreeSet<String> {
    let mut budgets = BTreeSet::new();
    if let Some(drain) = drain {
        budgets.extend(drain.blocked_by.iter().filter_map(|blocked| blocked.pdb.clone()));
        budgets.extend(drain.holds.iter().map(|held| held.pdb.to_string()));
    }
    let obstacles = pods.iter().flat_map(|pods| &pods.obstacles);
    budgets.extend(obstacles.flat_map(|obstacle| obstacle.pdbs.clone()));
    budgets
}

fn claims_ahead(ledger: &Ledger, node: &str) -> Option<usize> {
    ledger.claims().iter().position(|claim| claim.node == node)
}

fn print_keeper(page: &mut Page, keeper: &KeeperVerdict, is_remediated: bool, now: Timestamp) {
    page.heading("drain-keeper");
    if let Some(began) = keeper.drain_began {
        page.field("times", format!("the drain since {}", moment(began, now)));
    }
    if is_remediated {
        let reason = GateReason::UnderRemediation;
        let text = format!("the node {} [{reason}]", reason.explanation());
        page.field("stopped by", Cell::new(Style::Warning, text));
        page.field(
            "next",
            "goes on when the remediation is gone; the waits go on meanwhile",
        );
    }
    let Some(blocked) = &keeper.blocked else {
        page.field(
            "blocked",
            Cell::new(Style::Good, "no: only the pace of the drain itself limits it"),
        );
        return;
    };
    let since = prefixed(", ", blocked.since.map(|since| distance(since, now)));
    let reason = format!("[{}{since}]", blocked.reason);
    let Some(message) = &blocked.pods else {
        let text = with_distances(&blocked.message, now);
        page.field("blocked", Cell::new(Style::Warning, format!("{text} {reason}")));
        return;
    };
    let has_failed = message.drain_failed;
    let style = if has_failed { Style::Bad } else { Style::Warning };
    let failed = "the drain has failed: everything that may be done has been; ";
    let failed = if has_failed { failed } else { "" };
    let keep = if message.pods == 1 { "pod keeps" } else { "pods keep" };
    let text = format!("{failed}{} {keep} it from ending {reason}", message.pods);
    page.field("blocked", Cell::new(style, text));
    for pod in &message.named {
        page.point(Style::Plain, with_distances(pod, now));
    }
    print_rest(page, message.pods.saturating_sub(message.named.len()));
}

fn print_rest(page: &mut Page, hidden: usize) {
    if hidden > 0 {
        page.point(Style::Faint, format!("and {hidden} more"));
    }
}

impl PodsOnNode {
    fn print(&self, page: &mut Page) {
        let count = |count: usize| Some(count).filter(|&count| count > 0);
        let terminating = count(self.terminating).map(|count| format!(", {count} of them terminating"));
        let ignored = count(self.ignored).map(|count| format!("; {count} that no drain concerns"));
        page.heading("Pods");
        let (terminating, ignored) = (prefixed("", terminating), prefixed("", ignored));
        page.field("to leave", format!("{}{terminating}{ignored}", self.to_leave));
        let obstacles = &self.obstacles;
        if obstacles.is_empty() {
            let none = "none: the API server would accept every eviction now";
            return page.field("refused", Cell::new(Style::Good, none));
        }
        page.field(
            "refused",
            Cell::new(Style::Warning, format!("{} cannot be evicted now:", obstacles.len())),
        );
        for PodObstacle { pod, pdbs, kept_by } in obstacles.iter().take(LISTED) {
            let pdbs = match pdbs.as_slice() {
                [] => String::new(),
                [one] => format!(" (PDB {one})"),
                several => format!(" (PDBs {})", several.join(", ")),
            };
            page.point(Style::Plain, format!("{pod} {}{pdbs}", kept_by.explanation()));
        }
        print_rest(page, obstacles.len().saturating_sub(LISTED));
    }
}

#[cfg(test)]
mod tests;
