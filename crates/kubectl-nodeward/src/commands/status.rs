//! `status`: the fleet at a glance.

pub mod ceph;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
pub use nodeward_api::COMPONENTS;
use nodeward_api::node_drain::NodeDrain;
use nodeward_api::node_health_check::Phase;
use nodeward_api::pause::{self, CONFIG_MAP, Paused};
use nodeward_api::planned_at::STALE_AFTER;
use nodeward_api::reason::LockReason;
use nodeward_core::lease::{self, Planned};
use serde::Serialize;

use super::Exit;
use crate::cluster::Cluster;
use crate::describe::{self, prefixed};
use crate::failure::Failure;
use crate::fetch::Reader;
use crate::model::Unread;
use crate::model::answer::{Answer, Answering, NodeState};
use crate::model::ceph::CephCluster;
use crate::model::drain::Drain;
use crate::model::health::HealthCheck;
use crate::model::locks::{BudgetLocks, Sources, of_budgets};
use crate::model::node::NodeSummary;
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::{Cell, Column, Table};
use crate::text::time::{age, distance, moment};

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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// `drain-keeper`, `drain-lock`, `health-check` or `ceph-pdb`.
    pub name: String,
    pub state: ComponentState,
    /// Its version, where its Deployment says so.
    pub version: Option<String>,
    pub namespace: String,
    /// Replicas that are ready; absent without a Deployment.
    pub ready: Option<i32>,
    pub replicas: Option<i32>,
    pub leader: Option<String>,
    /// When the leader last renewed its lease.
    pub renewed: Option<Timestamp>,
    /// When a leader of drain-lock last said that it plans, by the API server's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<Timestamp>,
    /// A person has stopped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
}

/// The health of a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ComponentState {
    /// A replica leads, and renews its lease; drain-lock's plans, too.
    Leading,
    /// A replica leads, and does nothing but renew its lease: drain-lock's, which says there when it plans.
    NotPlanning,
    /// Replicas are ready; which of them leads cannot be seen.
    Ready,
    /// It is installed, and none leads.
    NotLeading,
    /// It is installed, and no replica is ready.
    NotReady,
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

/// How many of the nodes that a NodeHealthCheck remediates are named.
const NAMED: usize = 3;

/// The chart's label on all its objects.
pub const PART_OF: &str = "app.kubernetes.io/part-of=nodeward";

/// The chart's labels with the component and its version.
pub const COMPONENT: &str = "app.kubernetes.io/component";
const VERSION: &str = "app.kubernetes.io/version";

pub const DRAIN_LOCK: &str = "drain-lock";

impl Status {
    pub async fn fetch(cluster: &Cluster) -> Result<Self, Failure> {
        let mut reader = Reader::new(cluster);
        let components = components_of(&mut reader).await?;
        let mut drains: Vec<Drain> = reader.drains().await?.unwrap_or_default();
        drains.sort_by_key(|drain| (drain.ticket.is_none(), drain.ticket, drain.node.clone()));
        let checks = reader.health_checks().await?.unwrap_or_default();
        let answering = Answering::new(&checks, &components, reader.now);
        let by_node: HashMap<&str, &Drain> = drains.iter().map(|drain| (drain.node.as_str(), drain)).collect();
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        let nodes = reader.list("nodes", nodes, ListParams::default(), |node| {
            answering.answer(&node, by_node.get(node.name_any().as_str()).copied())
        });
        let nodes = nodes.await?;
        let locks = lock_counts(&mut reader).await?;
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
        let names: Option<HashSet<&str>> = nodes
            .as_ref()
            .map(|nodes| nodes.iter().map(|node| node.summary.name.as_str()).collect());
        let is_absent = |drain: &&Drain| names.as_ref().is_some_and(|names| !names.contains(drain.node.as_str()));
        let absent = drains.iter().filter(is_absent);
        let absent = absent.filter_map(|drain| Some((drain.node.as_str(), answering.answer_without_node(drain)?)));
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
        let components = self.components.iter().map(|component| component.line(now));
        page.fields("components", components);
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
        print_health_checks(page, &self.health_checks);
        ceph::print(page, &self.ceph_clusters, now);
        describe::not_installed(page, &self.unread);
    }

    /// What a script does about it.
    pub fn exit(&self) -> Exit {
        let cannot_tell = |unread: &Unread| !matches!(unread, Unread::NotInstalled { .. });
        match (self.needs_person.is_empty(), self.unread.iter().any(cannot_tell)) {
            (false, _) => Exit::NeedsPerson,
            (true, true) => Exit::CannotTell,
            (true, false) => Exit::Done,
        }
    }

    fn phases(&self) -> String {
        let mut counts: BTreeMap<_, usize> = BTreeMap::new();
        for drain in &self.drains {
            *counts.entry((drain.phase, describe::phase(drain))).or_default() += 1;
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
    let client = reader.cluster.client.clone();
    let params = ListParams::default().labels(PART_OF);
    let deployments = Api::<Deployment>::all(client.clone());
    let deployments = reader.list("components", deployments, params, |deployment| deployment);
    let deployments = deployments.await?.unwrap_or_default();
    let mut leases = Vec::new();
    for name in COMPONENTS {
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = reader.list("leaders", Api::all(client.clone()), params, |lease: Lease| lease);
        match found.await? {
            Some(found) => leases.extend(found),
            // The right to the others is missing as well.
            None => break,
        }
    }
    let params = ListParams::default().fields(&format!("metadata.name={CONFIG_MAP}"));
    let pauses = reader.list("pauses", Api::all(client), params, |pause: ConfigMap| pause);
    let traces = ComponentObjects {
        deployments,
        leases,
        pauses: pauses.await?.unwrap_or_default(),
    };
    Ok(components(&traces, reader.now))
}

async fn lock_counts(reader: &mut Reader<'_>) -> Result<Option<LockCounts>, Failure> {
    // Without drain-lock, the list of drains has noted so.
    if !reader.cluster.serves::<NodeDrain>() {
        return Ok(None);
    }
    let (ledger, holds) = (reader.ledger().await?, reader.holds(None).await?);
    // Counted without it, nothing would seem to be held.
    let Some(ledger) = ledger else { return Ok(None) };
    let sources = Sources {
        ledger: Some(&*ledger),
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

/// A component's objects in the cluster.
#[derive(Default)]
struct Traces<'a> {
    deployment: Option<&'a Deployment>,
    lease: Option<&'a Lease>,
}

/// What tells of components.
#[derive(Debug, Clone, Default)]
pub struct ComponentObjects {
    pub deployments: Vec<Deployment>,
    pub leases: Vec<Lease>,
    /// ConfigMaps that pause components of their namespaces.
    pub pauses: Vec<ConfigMap>,
}

/// Components by name and namespace.
pub fn components(objects: &ComponentObjects, now: Timestamp) -> Vec<Component> {
    let mut found: BTreeMap<(String, String), Traces<'_>> = BTreeMap::new();
    for deployment in &objects.deployments {
        let name = deployment.labels().get(COMPONENT);
        if let Some(name) = name.filter(|name| COMPONENTS.contains(&name.as_str())) {
            let key = (name.clone(), deployment.namespace().unwrap_or_default());
            found.entry(key).or_default().deployment = Some(deployment);
        }
    }
    for lease in &objects.leases {
        let key = (lease.name_any(), lease.namespace().unwrap_or_default());
        found.entry(key).or_default().lease = Some(lease);
    }
    let found = found.into_iter();
    let components = found.map(|((name, namespace), traces)| {
        let mut pauses = objects.pauses.iter();
        let own = pauses.find(|pause| pause.namespace().as_ref() == Some(&namespace));
        Component {
            paused: own.and_then(|own| pause::paused(own, &name)),
            ..component(name, namespace, &traces, now)
        }
    });
    components.collect()
}

fn component(name: String, namespace: String, traces: &Traces<'_>, now: Timestamp) -> Component {
    let deployment = traces.deployment;
    let lease = traces.lease.and_then(|lease| lease.spec.as_ref());
    let leader = lease.and_then(|lease| lease.holder_identity.clone());
    let leader = leader.filter(|leader| !leader.is_empty());
    let renewed = lease.and_then(|lease| lease.renew_time.as_ref()).map(|time| time.0);
    // Twice the lease's time, lest a clock that is off by seconds makes a leader look dead.
    let seconds = lease.and_then(|lease| lease.lease_duration_seconds).unwrap_or_default();
    let lasts = SignedDuration::from_secs(2 * i64::from(seconds));
    let renews = renewed.is_some_and(|renewed| now.duration_since(renewed) <= lasts);
    let ready = deployment.map(|deployment| {
        let status = deployment.status.as_ref();
        status.and_then(|status| status.ready_replicas).unwrap_or_default()
    });
    let planned = traces.lease.and_then(lease::planned);
    // One that has just taken over says so with its first plan.
    let acquired = lease.and_then(|lease| lease.acquire_time.as_ref()).map(|time| time.0);
    let is_new = acquired.is_some_and(|acquired| now.duration_since(acquired).unsigned_abs() < STALE_AFTER);
    let plans = name != DRAIN_LOCK || is_new || planned.is_some_and(|planned| plans(&planned));
    let state = match (leader.is_some() && renews, lease.is_some(), ready) {
        (true, ..) if plans => ComponentState::Leading,
        (true, ..) => ComponentState::NotPlanning,
        (false, _, Some(0)) => ComponentState::NotReady,
        (false, true, _) | (false, false, None) => ComponentState::NotLeading,
        (false, false, Some(_)) => ComponentState::Ready,
    };
    Component {
        name,
        state,
        version: deployment.and_then(|deployment| deployment.labels().get(VERSION).cloned()),
        namespace,
        ready,
        replicas: deployment.and_then(|deployment| deployment.spec.as_ref()?.replicas),
        leader: leader.filter(|_| renews),
        renewed,
        planned: planned.and_then(|planned| planned.written),
        paused: None,
    }
}

/// Whether the leader has said within two minutes that it plans, as the webhook has it. It says no time, and a look is but one:
/// so the two times that the API server has kept are compared, of that word and of the last renewal. Where it has kept none
/// the word counts that is of the present term.
fn plans(planned: &Planned) -> bool {
    match planned.silent_for() {
        Some(silent_for) => silent_for < STALE_AFTER,
        None => planned.is_of_present_term,
    }
}

/// The first component of this name, and why it does nothing; `None` where one of that name works, or none was found.
pub fn stopped<'a>(components: &'a [Component], name: &str) -> Option<(&'a Component, String)> {
    let found = components.iter().filter(|component| component.name == name);
    let all: Option<Vec<_>> = found
        .map(|component| Some((component, component.acts_not()?)))
        .collect();
    all?.into_iter().next()
}

impl Component {
    pub fn line(&self, now: Timestamp) -> Cell {
        let (style, state) = match (self.state, &self.paused) {
            (ComponentState::Leading | ComponentState::NotPlanning | ComponentState::Ready, Some(paused)) => {
                let since = prefixed(" since ", paused.since.map(|since| moment(since, now)));
                (Style::Warning, format!("paused{since}: {}", paused.reason))
            }
            (ComponentState::Leading, None) => (Style::Good, "works".to_owned()),
            (ComponentState::NotPlanning, None) => {
                let last = self.planned.map(|planned| distance(planned, now));
                let last = prefixed(", the last time ", last);
                (Style::Bad, format!("leads and plans nothing{last}"))
            }
            (ComponentState::Ready, None) => (Style::Good, "ready".to_owned()),
            (ComponentState::NotLeading, _) => {
                let last = self.renewed.map(|renewed| distance(renewed, now));
                (Style::Bad, format!("no leader{}", prefixed(", last seen ", last)))
            }
            (ComponentState::NotReady, _) => (Style::Bad, "no ready replica".to_owned()),
        };
        let version = prefixed(" ", self.version.as_ref());
        let replicas = self.ready.zip(self.replicas);
        let replicas = prefixed(", ", replicas.map(|(ready, all)| format!("{ready} of {all} ready")));
        let leader = prefixed(", led by ", self.leader.as_ref());
        let Self { name, namespace, .. } = self;
        Cell::new(
            style,
            format!("{name}{version} in {namespace}: {state}{replicas}{leader}"),
        )
    }

    /// Why it does nothing; `None` for one that works, as far as can be seen.
    fn acts_not(&self) -> Option<String> {
        let Self { name, paused, .. } = self;
        match (self.state, paused) {
            (_, Some(paused)) => Some(format!("{name} is paused: {}", paused.reason)),
            (ComponentState::Leading | ComponentState::Ready, None) => None,
            (ComponentState::NotPlanning, None) => Some(format!("{name} leads and plans nothing")),
            (ComponentState::NotLeading, None) => Some(format!("no replica of {name} leads")),
            (ComponentState::NotReady, None) => Some(format!("no replica of {name} is ready")),
        }
    }

    /// Who leads it, or since when what it wrote has been left as it was; `None` where leases cannot be seen.
    pub(super) fn leads(&self, now: Timestamp) -> Option<Cell> {
        let Self { name, leader, .. } = self;
        let silent = prefixed(" since ", self.renewed.map(|renewed| moment(renewed, now)));
        match self.state {
            _ if self.paused.is_some() => Some(self.line(now)),
            ComponentState::Leading => {
                let leader = leader.as_deref().unwrap_or("a replica");
                Some(Cell::new(Style::Faint, format!("{name}: {leader} leads")))
            }
            ComponentState::NotPlanning => Some(Cell::new(
                Style::Bad,
                format!(
                    "{name}: {} leads and plans nothing",
                    leader.as_deref().unwrap_or("a replica")
                ),
            )),
            ComponentState::Ready => None,
            ComponentState::NotLeading | ComponentState::NotReady => Some(Cell::new(
                Style::Bad,
                format!("{name}: nobody leads{silent}, and what it says is no newer"),
            )),
        }
    }
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

fn print_health_checks(page: &mut Page, checks: &[HealthCheck]) {
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
            format!("{dry_run}{}", check.reason).into(),
        ]);
    }
    page.separate_table(table);
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn deployment(ready: Option<i32>) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {
                "name": "nodeward-drain-lock", "namespace": "nodeward-system",
                "labels": { "app.kubernetes.io/component": "drain-lock", "app.kubernetes.io/version": "1.2.3" },
            },
            "spec": { "replicas": 2, "selector": {}, "template": {} },
            "status": { "readyReplicas": ready },
        }))
        .unwrap()
    }

    fn lease(holder: &str, renewed: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": { "name": "drain-lock", "namespace": "nodeward-system" },
            "spec": { "holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15 },
        }))
        .unwrap()
    }

    /// Of a minute ago.
    fn new_leader() -> Lease {
        let mut lease = lease("a", FRESH);
        lease.spec.as_mut().unwrap().acquire_time =
            serde_json::from_value(json!("2026-01-01T09:59:00.000000Z")).unwrap();
        lease
    }

    /// drain-lock's leader has renewed, and has said then that it plans.
    fn planning(renewed: &str, mark: &str, planned: Option<&str>) -> Lease {
        let mut lease = lease("a", renewed);
        lease.spec.as_mut().unwrap().lease_transitions = Some(3);
        let writes = planned.map(|planned| {
            json!([
                { "manager": "a", "time": renewed }, { "manager": "nodeward-planned-at", "time": planned },
            ])
        });
        lease.metadata.annotations = Some([("nodeward.dev/planned-at".to_owned(), mark.to_owned())].into());
        lease.metadata.managed_fields = serde_json::from_value(json!(writes)).unwrap();
        lease
    }

    #[rstest]
    #[case::nobody(&[], vec![], Exit::Done)]
    #[case::somebody(&["n1"], vec![], Exit::NeedsPerson)]
    #[case::nobody_that_can_be_seen(&[], vec![Unread::Undecodable { what: "claims", message: "m".to_owned() }], Exit::CannotTell)]
    #[case::nobody_without_a_component(&[], vec![Unread::NotInstalled { what: "drains", component: "drain-lock" }], Exit::Done)]
    fn exit_tells_whether_somebody_has_to_act(#[case] nodes: &[&str], #[case] unread: Vec<Unread>, #[case] exit: Exit) {
        let answering = Answering::new(&[], &[], Timestamp::UNIX_EPOCH);
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

    /// Thirty nodes with one cause are one line.
    #[test]
    fn nodes_are_told_by_their_cause() {
        let answering = Answering::new(&[], &[], Timestamp::UNIX_EPOCH);
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

    const FRESH: &str = "2026-01-01T09:59:50.000000Z";
    const OLD: &str = "2026-01-01T09:59:00.000000Z";
    const SECONDS_AGO: &str = "2026-01-01T09:59:00Z";
    const MINUTES_AGO: &str = "2026-01-01T09:57:00Z";

    #[rstest]
    #[case::leads(vec![deployment(Some(2))], vec![planning(FRESH, "3@7", Some(SECONDS_AGO))], ComponentState::Leading)]
    #[case::leads_without_a_deployment(vec![], vec![planning(FRESH, "3@7", Some(SECONDS_AGO))], ComponentState::Leading)]
    #[case::leads_a_new_term(vec![], vec![planning(FRESH, "2@7", Some(SECONDS_AGO))], ComponentState::Leading)]
    #[case::has_just_taken_over(vec![], vec![new_leader()], ComponentState::Leading)]
    #[case::has_planned_nothing_yet(vec![], vec![lease("a", FRESH)], ComponentState::NotPlanning)]
    #[case::cannot_plan_any_more(vec![], vec![planning(FRESH, "3@7", Some(MINUTES_AGO))], ComponentState::NotPlanning)]
    #[case::has_stopped_after_planning(vec![], vec![planning(OLD, "3@7", Some(OLD))], ComponentState::NotLeading)]
    #[case::the_server_keeps_no_times(vec![], vec![planning(FRESH, "3@7", None)], ComponentState::Leading)]
    #[case::the_server_keeps_no_times_of_an_earlier_term(vec![], vec![planning(FRESH, "2@7", None)], ComponentState::NotPlanning)]
    #[case::has_stopped(vec![], vec![lease("a", OLD)], ComponentState::NotLeading)]
    #[case::has_given_up_its_lease(vec![deployment(Some(1))], vec![lease("", FRESH)], ComponentState::NotLeading)]
    #[case::leases_cannot_be_read(vec![deployment(Some(1))], vec![], ComponentState::Ready)]
    #[case::no_replica(vec![deployment(None)], vec![lease("a", OLD)], ComponentState::NotReady)]
    fn component_state_follows_lease_and_replicas(
        #[case] deployments: Vec<Deployment>,
        #[case] leases: Vec<Lease>,
        #[case] state: ComponentState,
    ) {
        let objects = ComponentObjects {
            deployments,
            leases,
            pauses: Vec::new(),
        };
        let found = components(&objects, "2026-01-01T10:00:00Z".parse().unwrap());
        assert_eq!(
            found.iter().map(|component| component.state).collect::<Vec<_>>(),
            [state]
        );
    }

    #[rstest]
    #[case(json!({ "app.kubernetes.io/component": "grafana" }))]
    #[case(json!({}))]
    fn other_deployment_is_no_component(#[case] labels: Value) {
        let mut other = deployment(Some(1));
        other.metadata.labels = serde_json::from_value(labels).unwrap();
        let objects = ComponentObjects {
            deployments: vec![other],
            ..ComponentObjects::default()
        };
        assert_eq!(components(&objects, Timestamp::UNIX_EPOCH), []);
    }
}
