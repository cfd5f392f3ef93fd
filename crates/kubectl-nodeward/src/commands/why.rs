//! `why`: what stands in the way of one node's drain, of one pod's eviction, or of one budget's disruptions.

pub mod answers;
pub mod budget;
mod ceph;
pub mod health;
mod keeper;
pub mod next;
pub mod pod;
pub mod pods;
pub mod rollout;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use nodeward_api::disruption_hold::DisruptionHold;
use nodeward_core::pod::PodView;
use nodeward_core::text::counted;
use serde::Serialize;

use self::next::Step;
use self::pods::PodsOnNode;
use super::locks;
use super::printed::PrintedCommands;
use super::status::components_of;
use crate::cluster::Cluster;
use crate::describe::{self, prefixed};
use crate::failure::Failure;
use crate::fetch::Reader;
use crate::model::answer::{Answer, Answering, Sight};
use crate::model::budget_health::{BudgetHealth, nodes_of_interest};
use crate::model::ceph::NodeCeph;
use crate::model::component::Component;
use crate::model::drain::{Drain, Durations};
use crate::model::events::Act;
use crate::model::health::{KeptRemediation, NodeHealth};
use crate::model::locks::{BudgetLocks, Sources, of_budgets};
use crate::model::node::NodeSummary;
use crate::model::outdated::Present;
use crate::model::{Unread, qualified};
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::Cell;
use crate::text::time::moment;

/// Budgets whose pods are looked at.
const LOOKED_AT: usize = 10;

/// The obstacles of one node's drain.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    #[serde(skip)]
    pub name: String,
    /// The answer in short; absent where the node could not be read.
    pub answer: Option<Answer>,
    /// The node; absent where it could not be read.
    pub node: Option<NodeSummary>,
    pub drain: Option<Drain>,
    /// The components that are installed, and who leads them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<Component>,
    /// Its health in the eyes of each NodeHealthCheck that watches it; absent where they could not be read.
    pub health: Option<Vec<NodeHealth>>,
    /// Remediations of it that are being deleted, and what keeps them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptRemediation>,
    /// The CephClusters with OSDs on it; absent where they could not be read.
    pub ceph: Option<Vec<NodeCeph>>,
    /// Older drains that need or hold budgets which it waits for; absent where that could not be read.
    pub ahead: Option<usize>,
    /// How long this cluster's drains took; absent where none that is there has been drained.
    pub durations: Option<Durations>,
    /// The drains that it waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Drain>,
    /// The nodes of these that are cordoned although their drains end.
    #[serde(skip)]
    pub closed: BTreeSet<String>,
    /// The budgets that matter to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<BudgetLocks>,
    /// Of these, those with pods that are not healthy, or with counts that are not true now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<BudgetHealth>,
    /// Its pods, as the API server would treat their evictions now.
    pub pods: Option<PodsOnNode>,
    /// What was done to its pods in this drain, the last first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<Act>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

impl Why {
    /// All of it, with the API server's own answers about evictions.
    pub async fn fetch(cluster: &Cluster, name: &str) -> Result<Self, Failure> {
        Self::read(Reader::new(cluster), name, true).await
    }

    /// The same, and where nobody `tries` evictions, by the statuses of budgets alone.
    pub async fn read(mut reader: Reader<'_>, name: &str, tries: bool) -> Result<Self, Failure> {
        let cluster = reader.cluster;
        let node = reader.node(name).await?;
        let drains = reader.drains().await?;
        let drain_of = |name: &str| {
            let mut drains = drains.iter().flatten();
            drains.find(|drain| drain.node == name).cloned()
        };
        let mut drain = drain_of(name);
        let known = node.as_ref().and_then(Option::as_ref);
        let (health, kept) = health::fetch(&mut reader, name, known, drain.as_ref()).await?;
        let is_remediated = !kept.is_empty() || health.iter().flatten().any(|health| health.step.is_some());
        if node == Some(None) && drain.is_none() && !is_remediated {
            return Err(Failure::NotFound(format!("there is no node {name}")));
        }
        let ledger = if drain.is_some() { reader.ledger().await? } else { None };
        let namespace = cluster.namespace.as_deref();
        let found = reader.pods_on(name).await?;
        let budgets = reader.budgets(namespace).await?;
        if let Some(drain) = &mut drain {
            let mut present = Present::of(drains.as_deref(), ledger.as_deref());
            // Those of one namespace are not all.
            if let (Some(budgets), None) = (&budgets, namespace) {
                present = present.with_budgets(budgets);
            }
            present.pods = reader.pods_now(&drain.blocked_by, LOOKED_AT).await?;
            present.sort_out(drain);
        }
        let clusters = reader.ceph_clusters().await?;
        let ceph = clusters.map(|clusters| NodeCeph::of_node(name, clusters, found.as_deref().unwrap_or_default()));
        let mut pods = found
            .as_ref()
            .map(|found| PodsOnNode::of(found, budgets.as_deref(), reader.now));
        let concerned = concerned_budgets(drain.as_ref(), pods.as_ref());
        if let Some(pods) = &mut pods {
            if tries {
                pods.ask(cluster).await?;
            } else {
                pods.is_asked_elsewhere = true;
            }
        }
        let holds = if cluster.serves::<DisruptionHold>() && !concerned.is_empty() {
            reader.holds(namespace).await?.unwrap_or_default()
        } else {
            Vec::new()
        };
        let all = budgets.unwrap_or_default();
        let sources = Sources {
            ledger: ledger.as_deref(),
            budgets: all.iter().collect(),
            holds: holds.iter().collect(),
            namespace,
        };
        let (budgets, counts) = look_at(&mut reader, &sources, &concerned).await?;
        let holders = drain.iter().flat_map(Drain::waits_for_nodes);
        let holders: Vec<Drain> = holders.filter_map(drain_of).collect();
        let mut closed = BTreeSet::new();
        for holder in holders.iter().filter(|holder| holder.ending) {
            if let Some(Some(node)) = reader.node(&holder.node).await?
                && NodeSummary::of(&node).cordoned
            {
                closed.insert(holder.node.clone());
            }
        }
        let node = node.flatten().as_ref().map(NodeSummary::of);
        let keeper = node.as_ref().and_then(|node| node.drain_keeper.as_ref());
        let began = keeper.and_then(|keeper| keeper.drain_began);
        let began = began.or_else(|| drain.as_ref().and_then(Drain::since));
        let done = match began {
            Some(began) => reader.acts_on(name, began).await?,
            None => Vec::new(),
        };
        let is_told = drain.is_some()
            || health.iter().flatten().next().is_some()
            || node
                .as_ref()
                .is_some_and(|node| node.cordoned || node.drain_keeper.is_some());
        let components = if is_told {
            components_of(&mut reader).await?
        } else {
            Vec::new()
        };
        let now = reader.now;
        let why = Self {
            name: name.to_owned(),
            answer: None,
            node,
            health,
            kept,
            ceph,
            components,
            ahead: ledger
                .as_deref()
                .and_then(|ledger| next::Turns::of(ledger).before(name)),
            durations: Durations::of(drains.iter().flatten()),
            holders,
            closed,
            drain,
            budgets,
            counts,
            pods,
            done,
            unread: reader.unread,
        };
        Ok(why.answered(now))
    }

    /// With the answer that follows from the rest.
    pub(super) fn answered(mut self, now: Timestamp) -> Self {
        let answering = Answering::new(&[], &self.components, Sight::without(&self.unread), now);
        let (drain, health) = (self.drain.as_ref(), self.health.as_deref().unwrap_or_default());
        let answer = match &self.node {
            Some(node) => Some(answering.of(node, drain, health)),
            None if self.unread.iter().any(|unread| unread.hides("node")) => None,
            None => drain.and_then(|drain| answering.answer_without_node(drain)),
        };
        self.answer = answer;
        self
    }

    pub fn print(&self, page: &mut Page, next: &[Step], commands: &PrintedCommands, now: Timestamp) {
        page.heading(&self.name);
        describe::cannot_tell(page, &self.unread);
        if let Some(answer) = &self.answer {
            page.field("answer", answer.line(now));
        }
        if let Some(node) = &self.node {
            print_node(page, node, now);
        }
        health::print_summary(page, self.health.as_deref());
        health::print_kept(page, &self.kept, now);
        ceph::print_summary(page, self.ceph.as_deref());
        match &self.drain {
            Some(drain) => print_drain(page, drain, now),
            None if self.unread.iter().any(|unread| unread.what() == "drains") => (),
            None => page.field("drain", "not requested from drain-lock"),
        }
        next::print(page, next);
        let tells = self.components.iter().filter_map(|component| component.leads(now));
        page.fields("told by", tells);
        self.print_keeper(page, now);
        for health in self.health.iter().flatten() {
            health::print(page, &self.name, health, commands, now);
        }
        for ceph in self.ceph.iter().flatten() {
            ceph::print(page, ceph, now);
        }
        if let Some(pods) = &self.pods {
            pods.print(page);
        }
        if !self.budgets.is_empty() {
            page.heading("Budgets that matter here");
            page.table(2, locks::table(&self.budgets, now));
        }
        for counts in &self.counts {
            print_counts(page, counts);
        }
        describe::not_installed(page, &self.unread);
    }
}

fn print_drain(page: &mut Page, drain: &Drain, now: Timestamp) {
    let ticket = prefixed(", ticket ", drain.ticket);
    let since = prefixed(", since ", drain.since().map(|since| moment(since, now)));
    let (phase, meaning) = (describe::phase(drain), describe::phase_meaning(drain));
    let style = describe::phase_style(drain.phase);
    page.field("drain", Cell::new(style, format!("{phase}{ticket}{since}: {meaning}")));
    let requesters = match (drain.requesters.as_slice(), drain.phase) {
        // drain-lock notes its creator once it answers.
        ([], None) => "whoever created it".to_owned(),
        ([], Some(_)) => "nobody any more".to_owned(),
        (requesters, _) => requesters.join(", "),
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
    let outdated = describe::distinct(&drain.outdated);
    let outdated = outdated.iter().map(|blocked| {
        let was = describe::obstacle(blocked);
        Cell::new(Style::Faint, format!("no longer, and drain-lock looks again: {was}"))
    });
    page.fields(
        "blocked by",
        blocked.map(|text| Cell::new(Style::Warning, text)).chain(outdated),
    );
    // A message that only repeats the phase or the obstacles adds nothing.
    let repeats = |message: &&String| {
        let mut obstacles = obstacles.iter();
        *message == meaning || obstacles.any(|one| message.contains(one.reason.explanation()))
    };
    if let Some(message) = drain.message.as_ref().filter(|message| !repeats(message)) {
        page.field("message", message);
    }
    if let Some(deadline) = describe::overdue(drain, now) {
        page.field("deadline", deadline);
    }
}

fn print_node(page: &mut Page, node: &NodeSummary, now: Timestamp) {
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

/// Pods that are not healthy, and counts that are not true.
fn print_counts(page: &mut Page, counts: &BudgetHealth) {
    page.gap();
    let all = counts.healthy + counts.unhealthy.len();
    page.text(
        Style::Strong,
        format!("{}: {} of {all} pods are healthy", counts.pdb, counts.healthy),
    );
    for pod in &counts.unhealthy {
        page.point(Style::Warning, format!("{} {}", pod.pod, pod.cause));
    }
    for told in &counts.not_true {
        page.point(Style::Warning, told);
    }
}

/// These budgets: who holds or waits for them, and what of their pods and counts is not as it should be.
async fn look_at(
    reader: &mut Reader<'_>,
    sources: &Sources<'_>,
    names: &BTreeSet<String>,
) -> Result<(Vec<BudgetLocks>, Vec<BudgetHealth>), Failure> {
    let mut locks = of_budgets(sources, names, reader.now);
    locks.retain(|budget| names.contains(&budget.pdb));
    let mut looked_at = sources.budgets.clone();
    looked_at.retain(|budget| names.contains(&qualified(*budget)));
    looked_at.truncate(LOOKED_AT);
    let mut counts = counts_of(reader, &looked_at).await?;
    counts.retain(|health| !health.is_sound());
    Ok((locks, counts))
}

/// The pods of budgets as they are, in the order of the budgets.
async fn counts_of(reader: &mut Reader<'_>, budgets: &[&PodDisruptionBudget]) -> Result<Vec<BudgetHealth>, Failure> {
    let mut counts = Vec::new();
    for budget in budgets {
        let Some(pods) = reader.pods_of(budget).await? else {
            break;
        };
        let mut nodes = BTreeMap::new();
        let unready = pods
            .iter()
            .filter(|pod| PodView::project(pod).is_none_or(|pod| !pod.ready));
        let names: BTreeSet<String> = unready.flat_map(nodes_of_interest).take(LOOKED_AT).collect();
        for name in names {
            if let Some(Some(node)) = reader.node(&name).await? {
                nodes.insert(name, NodeSummary::of(&node));
            }
        }
        counts.extend(BudgetHealth::of(budget, &pods, &nodes, reader.now));
    }
    Ok(counts)
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

fn print_rest(page: &mut Page, hidden: usize) {
    if hidden > 0 {
        page.point(Style::Faint, format!("and {hidden} more"));
    }
}

#[cfg(test)]
mod tests;
