//! `status`: the fleet at a glance.

pub mod ceph;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::ListParams;
use nodeward_api::COMPONENTS;
use nodeward_api::node_drain::NodeDrain;
use nodeward_api::node_health_check::Phase;
use nodeward_api::pause::CONFIG_MAP;
use nodeward_api::reason::LockReason;
use nodeward_core::ledger::Ledger;
use serde::Serialize;

use super::Exit;
use crate::cluster::Cluster;
use crate::describe::{self, prefixed};
use crate::failure::Failure;
use crate::fetch::Reader;
use crate::model::Unread;
use crate::model::answer::{Answer, Answering, NodeState, Sight};
use crate::model::ceph::CephCluster;
use crate::model::component::{Component, ComponentObjects, PART_OF, components};
use crate::model::drain::Drain;
use crate::model::health::{HealthCheck, StoppedNodes};
use crate::model::locks::{BudgetLocks, Sources, of_budgets};
use crate::model::node::NodeSummary;
use crate::model::outdated::Present;
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::{Cell, Column, Table};
use crate::text::time::age;

/// The fleet at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub components: Vec<Component>,
    /// Absent where they could not be read.
    pub nodes: Option<NodeCounts>,
    /// What goes on only when a person acts: nodes by their common cause, those of the most nodes first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs_person: Vec<Cause>,
    /// The drains, in the order of their tickets; those without one last.
    pub drains: Vec<Drain>,
    /// Nodes that drain-keeper finds blocked, or times, in the order of their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timed: Vec<NodeSummary>,
    /// The NodeHealthChecks, in the order of their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub health_checks: Vec<HealthCheck>,
    /// What ceph-pdb publishes of CephClusters, in the order of their namespaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ceph_clusters: Vec<CephCluster>,
    /// How many budgets are held by drains, waited for and held by their owners.
    pub locks: Option<LockCounts>,
    /// How many pods were deleted around their budgets lately; absent where that cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bypassed: Option<usize>,
    /// What could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

/// Why a person has to act, and for which nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    pub why: String,
    pub state: NodeState,
    /// Since when, of the first of them.
    pub since: Option<Timestamp>,
    /// In the order of their names.
    pub nodes: Vec<String>,
}

/// Numbers of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    pub total: usize,
    /// Cordoned, or about to be removed.
    pub cordoned: usize,
    pub not_ready: usize,
}

/// Numbers of budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LockCounts {
    /// Budgets that drains hold disruptions of.
    pub held: usize,
    pub waited_for: usize,
    pub owner_held: usize,
}

/// How many of the nodes that a NodeHealthCheck remediates, or that something stops, are named.
const NAMED: usize = 3;

impl Status {
    pub async fn fetch(cluster: &Cluster) -> Result<Self, Failure> {
        let mut reader = Reader::new(cluster);
        let components = components_of(&mut reader).await?;
        let mut drains: Vec<Drain> = reader.drains().await?.unwrap_or_default();
        drains.sort_by_key(|drain| (drain.ticket.is_none(), drain.ticket, drain.node.clone()));
        // Without drain-lock, the list of drains has noted so.
        let ledger = if reader.cluster.serves::<NodeDrain>() {
            reader.ledger().await?
        } else {
            None
        };
        sort_out(&mut reader, &mut drains, ledger.as_deref()).await?;
        let checks = reader.health_checks().await?.unwrap_or_default();
        let sight = Sight::without(&reader.unread);
        let answering = Answering::new(&checks, &components, sight, reader.now);
        let mut by_node: HashMap<&str, &Drain> = drains.iter().map(|drain| (drain.node.as_str(), drain)).collect();
        let answer = |node: Node| answering.answer(&node, by_node.remove(node.name_any().as_str()));
        let nodes = reader.list_as("nodes", cluster.all(), ListParams::default(), answer);
        let nodes = nodes.await?;
        let locks = lock_counts(&mut reader, ledger.as_deref()).await?;
        let bypassed = match locks {
            Some(_) => reader.bypasses().await?,
            None => None,
        };
        let ceph_clusters = reader.ceph_clusters().await?.unwrap_or_default();
        let counts = nodes.as_ref().map(|nodes| NodeCounts {
            total: nodes.len(),
            cordoned: nodes.iter().filter(|node| node.summary.cordoned).count(),
            not_ready: nodes.iter().filter(|node| !node.summary.ready).count(),
        });
        // Those of nodes that are not there are left.
        let absent = by_node.into_iter().filter(|_| nodes.is_some());
        let absent = absent.filter_map(|(node, drain)| Some((node, answering.answer_without_node(drain)?)));
        let present = nodes.iter().flatten();
        let present = present.map(|node| (node.summary.name.as_str(), node.answer.clone()));
        let needs_person = causes(present.chain(absent));
        let mut timed: Vec<NodeSummary> = nodes.into_iter().flatten().map(|node| node.summary).collect();
        timed.retain(|node| node.drain_keeper.is_some());
        timed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self {
            components,
            nodes: counts,
            needs_person,
            drains,
            timed,
            health_checks: checks.iter().map(HealthCheck::of).collect(),
            ceph_clusters,
            locks,
            bypassed,
            unread: reader.unread,
        })
    }

    pub fn print(&self, page: &mut Page, now: Timestamp) {
        describe::cannot_tell(page, &self.unread);
        let is_unread = |what: &str| self.unread.iter().any(|unread| unread.what() == what);
        if self.components.is_empty() && !is_unread("components") && !is_unread("leaders") {
            page.field("components", Cell::new(Style::Warning, "none found"));
        }
        describe::components(page, &self.components, now);
        if let Some(nodes) = self.nodes {
            let is_whole = nodes.not_ready == 0;
            let style = if is_whole { Style::Plain } else { Style::Warning };
            let (all, cordoned, not_ready) = (nodes.total, nodes.cordoned, nodes.not_ready);
            let text = format!("{all} in all, {cordoned} cordoned, {not_ready} not Ready");
            page.field("nodes", Cell::new(style, text));
        }
        if !is_unread("drains") {
            page.field("drains", self.phases());
        }
        if let Some(locks) = self.locks {
            let (held, waited_for, owner_held) = (locks.held, locks.waited_for, locks.owner_held);
            let text = format!("{held} held by drains, {waited_for} waited for, {owner_held} held by owners");
            page.field("budgets", text);
        }
        if let Some(pods) = self.bypassed.filter(|pods| *pods > 0) {
            let reason = LockReason::BudgetBypassed;
            let text = format!("{pods} deletions of pods around their budgets lately (Events {reason})");
            page.field("bypassed", Cell::new(Style::Warning, text));
        }
        print_needs_person(page, &self.needs_person, now);
        print_drains(page, &self.drains, now);
        print_timed(page, &self.timed, now);
        print_health_checks(page, &self.health_checks, now);
        ceph::print(page, &self.ceph_clusters, now);
        describe::not_installed(page, &self.unread);
    }

    /// What a script does about it.
    pub fn exit(&self) -> Exit {
        match (self.needs_person.is_empty(), self.unread.iter().any(Unread::is_hidden)) {
            (false, _) => Exit::NeedsPerson,
            (true, true) => Exit::CannotTell,
            (true, false) => Exit::Done,
        }
    }

    fn phases(&self) -> String {
        let mut counts: BTreeMap<_, usize> = BTreeMap::new();
        for drain in &self.drains {
            let word = describe::phase(drain);
            // Drains of several phases have the words that are none.
            let phase = drain.phase.filter(|phase| phase.as_str() == word);
            *counts.entry((phase, word)).or_default() += 1;
        }
        let counts = counts.into_iter().map(|((_, phase), count)| format!("{count} {phase}"));
        let counts = counts.collect::<Vec<_>>().join(", ");
        if counts.is_empty() { "none".to_owned() } else { counts }
    }
}

/// The nodes for which a person has to act, by their cause.
fn causes<'a>(answers: impl IntoIterator<Item = (&'a str, Answer)>) -> Vec<Cause> {
    let mut causes: Vec<Cause> = Vec::new();
    for (node, answer) in answers.into_iter().filter(|(_, answer)| answer.needs_person()) {
        let why = answer.words().to_owned();
        let known = causes
            .iter_mut()
            .find(|cause| cause.state == answer.state && cause.why == why);
        let cause = match known {
            Some(cause) => cause,
            None => causes.push_mut(Cause {
                why,
                state: answer.state,
                since: answer.since,
                nodes: Vec::new(),
            }),
        };
        cause.since = cause.since.into_iter().chain(answer.since).min();
        cause.nodes.push(node.to_owned());
    }
    for cause in &mut causes {
        cause.nodes.sort();
    }
    causes.sort_by(|a, b| (b.nodes.len(), &a.nodes).cmp(&(a.nodes.len(), &b.nodes)));
    causes
}

/// The components that are installed, and who leads them.
pub(super) async fn components_of(reader: &mut Reader<'_>) -> Result<Vec<Component>, Failure> {
    if let Some(known) = &reader.known.components {
        return Ok(components(known, reader.now));
    }
    let objects = component_objects(reader).await?;
    Ok(components(&objects, reader.now))
}

/// What tells of components, read from the cluster.
pub(super) async fn component_objects(reader: &mut Reader<'_>) -> Result<ComponentObjects, Failure> {
    let all = ListParams::default();
    let deployments = reader.list("components", reader.cluster.all(), all.clone().labels(PART_OF));
    let deployments = deployments.await?;
    let mut leases = Vec::new();
    let mut sees_leases = true;
    for name in COMPONENTS {
        let called = all.clone().fields(&format!("metadata.name={name}"));
        let found = reader.list("leaders", reader.cluster.all(), called).await?;
        sees_leases = found.is_some();
        leases.extend(found.into_iter().flatten());
        // The right to the others is missing as well.
        if !sees_leases {
            break;
        }
    }
    let called = all.fields(&format!("metadata.name={CONFIG_MAP}"));
    let pauses = reader.list("pauses", reader.cluster.all(), called);
    Ok(ComponentObjects {
        sees_deployments: deployments.is_some(),
        sees_leases,
        deployments: deployments.unwrap_or_default(),
        leases,
        pauses: pauses.await?.unwrap_or_default(),
    })
}

/// Takes out of what drains wait for the drains and budgets that are over.
async fn sort_out(reader: &mut Reader<'_>, drains: &mut [Drain], ledger: Option<&Ledger>) -> Result<(), Failure> {
    let mut present = Present::of(Some(&*drains), ledger);
    let mut causes = drains.iter().flat_map(|drain| &drain.blocked_by);
    let known = reader.unread.len();
    let budgets = if causes.any(|blocked| blocked.pdb.is_some()) {
        reader.budgets(None).await?
    } else {
        None
    };
    // Who may not read them is told what drain-lock says of them.
    reader.unread.truncate(known);
    if let Some(budgets) = &budgets {
        present = present.with_budgets(budgets);
    }
    for drain in drains {
        present.sort_out(drain);
    }
    Ok(())
}

async fn lock_counts(reader: &mut Reader<'_>, ledger: Option<&Ledger>) -> Result<Option<LockCounts>, Failure> {
    // Counted without it, nothing would seem to be held.
    let Some(ledger) = ledger else { return Ok(None) };
    let holds = reader.holds(None).await?;
    let sources = Sources {
        ledger: Some(ledger),
        holds: holds.iter().flatten().collect(),
        ..Sources::default()
    };
    let budgets = of_budgets(&sources, &BTreeSet::new(), reader.now);
    let count = |is_so: fn(&BudgetLocks) -> bool| budgets.iter().filter(|budget| is_so(budget)).count();
    Ok(Some(LockCounts {
        held: count(|budget| !budget.held.is_empty()),
        waited_for: count(|budget| !budget.waiting.is_empty()),
        owner_held: count(|budget| !budget.owner_holds.is_empty()),
    }))
}

fn print_drains(page: &mut Page, drains: &[Drain], now: Timestamp) {
    let mut table = Table::new([
        Column::Flexible("DRAIN OF"),
        Column::Fixed("PHASE"),
        Column::Number("TICKET"),
        Column::Fixed("FOR"),
        Column::Fixed("GONE"),
        Column::Flexible("WAITS FOR"),
    ]);
    for drain in drains {
        table.row([
            Cell::new(Style::Strong, &drain.node),
            Cell::new(describe::phase_style(drain.phase), describe::phase(drain)),
            prefixed("", drain.ticket).into(),
            describe::phase_age(drain, now).unwrap_or_default().into(),
            drain.pods.map(describe::pods_short).unwrap_or_default().into(),
            describe::obstacles_short(&drain.blocked_by).into(),
        ]);
    }
    page.separate_table(table);
}

fn print_needs_person(page: &mut Page, causes: &[Cause], now: Timestamp) {
    let mut table = Table::new([
        Column::Flexible("NEEDS A PERSON"),
        Column::Fixed("FOR"),
        Column::Flexible("WHY"),
    ]);
    for cause in causes {
        table.row([
            Cell::new(Style::Bad, describe::first(&cause.nodes, NAMED)),
            prefixed("", cause.since.map(|since| age(since, now))).into(),
            (&cause.why).into(),
        ]);
    }
    page.separate_table(table);
}

fn print_timed(page: &mut Page, nodes: &[NodeSummary], now: Timestamp) {
    let mut table = Table::new([
        Column::Flexible("DRAIN-KEEPER TIMES"),
        Column::Fixed("FOR"),
        Column::Fixed("BLOCKED BY"),
        Column::Flexible("PODS"),
    ]);
    let mut is_blocked = false;
    for node in nodes {
        let keeper = node.drain_keeper.as_ref();
        let blocked = keeper.and_then(|keeper| keeper.blocked.as_ref());
        is_blocked |= blocked.is_some();
        let message = blocked.and_then(|blocked| blocked.pods.as_ref());
        let failed = message.is_some_and(|message| message.drain_failed);
        let named = message.iter().flat_map(|message| &message.named);
        let names: Vec<&str> = named.filter_map(|text| text.split(' ').next()).take(3).collect();
        let hidden = message.map_or(0, |message| message.pods.saturating_sub(names.len()));
        let began = keeper.and_then(|keeper| keeper.drain_began);
        let style = if failed { Style::Bad } else { Style::Warning };
        table.row([
            Cell::new(Style::Strong, &node.name),
            prefixed("", began.map(|began| age(began, now))).into(),
            Cell::new(style, prefixed("", blocked.map(|blocked| &blocked.reason))),
            (names.join(", ") + &describe::more(hidden)).into(),
        ]);
    }
    page.separate_table(table);
    if is_blocked {
        page.text(Style::Faint, "What happens next: kubectl nodeward why NODE");
    }
}

fn print_health_checks(page: &mut Page, checks: &[HealthCheck], now: Timestamp) {
    let mut table = Table::new([
        Column::Flexible("HEALTH CHECK"),
        Column::Fixed("PHASE"),
        Column::Fixed("HEALTHY"),
        Column::Flexible("REMEDIATING"),
        Column::Flexible("REASON"),
    ]);
    for check in checks {
        let style = match check.phase {
            Some(Phase::Enabled) => Style::Good,
            Some(Phase::Remediating | Phase::Paused) | None => Style::Warning,
            Some(Phase::Disabled) => Style::Bad,
        };
        let phase = check.phase.map_or("Unanswered", Phase::as_str);
        let counts = check.healthy.zip(check.observed);
        let dry_run = if check.dry_run { "dry run; " } else { "" };
        table.row([
            Cell::new(Style::Strong, &check.name),
            Cell::new(style, phase),
            prefixed("", counts.map(|(healthy, observed)| format!("{healthy}/{observed}"))).into(),
            describe::first(&check.remediating, NAMED).into(),
            format!("{dry_run}{}", why(check, now)).into(),
        ]);
    }
    page.separate_table(table);
}

/// Why its phase is as it is, and what stops which nodes.
fn why(check: &HealthCheck, now: Timestamp) -> String {
    // Of an enabled one health-check's own sentence is of the first of these nodes.
    let is_told = check.reason.is_empty() || (check.phase == Some(Phase::Enabled) && !check.stopped.is_empty());
    let own = Some(&check.reason).filter(|_| !is_told);
    let stops = check.stopped.iter().map(|StoppedNodes { stop, nodes }| {
        let nodes = describe::first(nodes, NAMED);
        format!("{nodes}: {}", describe::stop(stop, now))
    });
    own.cloned().into_iter().chain(stops).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::nobody(&[], vec![], Exit::Done)]
    #[case::somebody(&["n1"], vec![], Exit::NeedsPerson)]
    #[case::nobody_that_can_be_seen(&[], vec![Unread::Undecodable { what: "claims", message: "m".to_owned() }], Exit::CannotTell)]
    #[case::nobody_without_a_component(&[], vec![Unread::NotInstalled { what: "drains", component: "drain-lock" }], Exit::Done)]
    fn exit_tells_whether_somebody_has_to_act(#[case] nodes: &[&str], #[case] unread: Vec<Unread>, #[case] exit: Exit) {
        let answering = Answering::new(&[], &[], Sight::without(&[]), Timestamp::UNIX_EPOCH);
        let answer = |name: &str| {
            let node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
            answering.answer(&node, None).answer
        };
        let status = Status {
            needs_person: causes(nodes.iter().map(|name| (*name, answer(name)))),
            unread,
            ..Status::default()
        };
        assert_eq!(status.exit(), exit);
    }

    /// A drain that ends has a phase beside, and no word for it.
    #[test]
    fn each_word_of_drains_has_one_count() {
        let drain = |phase: &str, deleted: bool| {
            let drain = json!({
                "metadata": { "name": "n1", "deletionTimestamp": deleted.then_some("2026-01-01T10:00:00Z") },
                "spec": { "nodeName": "n1" }, "status": { "phase": phase },
            });
            Drain::of(&serde_json::from_value(drain).unwrap())
        };
        let status = Status {
            drains: vec![
                drain("Drained", true),
                drain("Queued", false),
                drain("Recovering", true),
            ],
            ..Status::default()
        };
        assert_eq!(status.phases(), "2 Ending, 1 Queued");
    }

    /// Thirty nodes with one cause are one line.
    #[test]
    fn nodes_are_told_by_their_cause() {
        let answering = Answering::new(&[], &[], Sight::without(&[]), Timestamp::UNIX_EPOCH);
        let node = |name: &str, ready: &str, cordoned: bool| {
            let node = json!({
                "metadata": { "name": name },
                "spec": { "taints": cordoned.then(|| json!([
                    { "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "1969-12-31T20:00:00Z" },
                ])) },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] },
            });
            (
                name.to_owned(),
                answering.answer(&serde_json::from_value(node).unwrap(), None).answer,
            )
        };
        let nodes = [
            node("n4", "True", true),
            node("n3", "Unknown", false),
            node("n2", "True", false),
            node("n1", "False", false),
        ];
        let answers = nodes.iter().map(|(name, answer)| (name.as_str(), answer.clone()));
        let found: Vec<_> = causes(answers)
            .into_iter()
            .map(|cause| (cause.state, cause.nodes))
            .collect();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            found,
            [
                (NodeState::NotReady, names(&["n1", "n3"])),
                (NodeState::Cordoned, names(&["n4"]))
            ]
        );
    }
}
