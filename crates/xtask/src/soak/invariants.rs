//! What must hold at every moment, looked at with each event of the watches.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use nodeward_api::NodeHealthCheck;
use tokio::time::Instant;

use super::cluster::{FAMILIES, NAMESPACE};
use super::view::{CheckView, RemediationView, View};
use crate::bench::{count, health_checks};
use crate::watch::Watched;

/// What was so for this long, an operator must have seen before it wrote: longer than any delay that is injected.
const SEEN_WITHIN: Duration = Duration::from_secs(6);

/// After its watches broke an operator may need so long until it sees the cluster again.
const BLIND_FOR: Duration = Duration::from_secs(20);

/// Nodes that may have come and gone while a threshold was compared.
const SLACK: f64 = 3.0;

/// Watches the invariants.
pub struct Invariants(Watched<State>);

#[derive(Default)]
struct State {
    view: View,
    broken: Vec<String>,
    blind_until: Option<Instant>,
    events: usize,
    remediations: usize,
}

impl Invariants {
    pub fn watch(client: &Client) -> Self {
        let config = watcher::Config::default;
        let state = Watched::new(State::default())
            .follow_events(Api::all(client.clone()), config(), State::take_node)
            .follow_events(health_checks(client), config(), State::take_check);
        let remediations = FAMILIES.map(|family| family.remediation().api(client, Some(NAMESPACE)));
        let follow = |state: Watched<State>, api| state.follow_events(api, config(), State::take_remediation);
        Self(remediations.into_iter().fold(state, follow))
    }

    /// Everything held so far.
    pub fn hold(&self) -> Result<()> {
        let state = self.0.read();
        ensure!(state.broken.is_empty(), "{}", state.broken.join("\n"));
        Ok(())
    }

    /// The operators may see an old state from now on.
    pub fn operators_are_blind(&self) {
        self.0
            .modify(|state| state.blind_until = Some(Instant::now() + BLIND_FOR));
    }

    /// How much was looked at.
    pub fn text(&self) -> String {
        let state = self.0.read();
        let (remediations, events) = (state.remediations, state.events);
        format!("{remediations} remediations, {events} changes looked at")
    }
}

impl State {
    fn take_node(&mut self, event: Event<Node>) {
        self.events += 1;
        match event {
            Event::Apply(node) | Event::InitApply(node) => self.view.apply_node(&node),
            Event::Delete(node) => drop(self.view.nodes.remove(&node.name_any())),
            Event::Init | Event::InitDone => {}
        }
    }

    fn take_check(&mut self, event: Event<NodeHealthCheck>) {
        self.events += 1;
        if let Event::Apply(check) | Event::InitApply(check) = event {
            self.view.apply_check(&check);
        }
    }

    fn take_remediation(&mut self, event: Event<DynamicObject>) {
        self.events += 1;
        let object = match event {
            Event::Apply(object) | Event::InitApply(object) => object,
            Event::Delete(gone) => {
                self.view.remediations.remove(&gone.uid().unwrap_or_default());
                return;
            }
            Event::Init | Event::InitDone => return,
        };
        let uid = object.uid().unwrap_or_default();
        let mut remediation = RemediationView::of(&object);
        if let Some(known) = self.view.remediations.get(&uid) {
            remediation.seen = known.seen;
            self.view.remediations.insert(uid, remediation);
            return;
        }
        self.remediations += 1;
        self.look_at(&remediation);
        self.view.remediations.insert(uid, remediation);
        // Those of one kind are told in order, so what is seen was so.
        let doubled = doubled(self.view.remediations.values());
        let broken: Vec<String> = doubled.chain(self.too_many()).collect();
        self.broken.extend(broken);
    }

    /// A remediation that was just created.
    fn look_at(&mut self, new: &RemediationView) {
        let text = format!("{} of {} for {}", new.kind, new.owner, new.node);
        let Some(check) = self.view.checks.get(&new.owner) else {
            self.broken.push(format!("{text}: nobody's"));
            return;
        };
        let mut broken = Vec::new();
        if check.paused.has_been(&true, SEEN_WITHIN) {
            broken.push("while it is paused");
        }
        // A blind operator still reads the node by quorum.
        if let Some(node) = self.view.nodes.get(&new.node) {
            if node.ready.has_been(&true, SEEN_WITHIN) {
                broken.push("which is healthy");
            }
            if node.excluded.has_been(&true, SEEN_WITHIN) && !self.is_blind() {
                broken.push("which is excluded");
            }
        }
        let mut others = self.view.remediations.values();
        let is_first_step = !others.any(|other| other.owner == new.owner && other.node == new.node);
        if is_first_step && !self.is_blind() && self.is_above_threshold(&new.owner, check) {
            broken.push("although too many are unhealthy");
        }
        let broken = broken.into_iter().map(|why| format!("{text} {why}"));
        self.broken.extend(broken);
    }

    fn is_blind(&self) -> bool {
        self.blind_until.is_some_and(|until| Instant::now() < until)
    }

    /// Too many selected nodes were unhealthy or under remediation for long enough to be seen.
    fn is_above_threshold(&self, name: &str, check: &CheckView) -> bool {
        let zone = Some(check.zone.clone());
        let nodes = self.view.nodes.iter();
        let selected: Vec<_> = nodes
            .filter(|(_, node)| node.zone.has_been(&zone, SEEN_WITHIN))
            .collect();
        let remediations = self.view.remediations.values().filter(|one| one.owner == name);
        let seen = remediations.filter(|remediation| remediation.seen.elapsed() >= SEEN_WITHIN);
        let remediated: BTreeSet<&str> = seen.map(|remediation| remediation.node.as_str()).collect();
        let is_unhealthy = |(name, node): &&(&String, &super::view::NodeView)| {
            node.ready.has_been(&false, SEEN_WITHIN) || remediated.contains(name.as_str())
        };
        let observed = count(selected.len());
        let unhealthy = count(selected.iter().filter(is_unhealthy).count());
        let allowed = match (check.max_unhealthy, check.min_healthy) {
            (Some(most), _) => (observed * most).ceil(),
            (None, Some(least)) => observed - (observed * least).ceil(),
            (None, None) => return false,
        };
        unhealthy > allowed + SLACK
    }

    /// NodeHealthChecks that remediate more nodes at the same time than they may; those with a limit have one kind. A record
    /// whose step is over, or that is being deleted, takes no slot.
    fn too_many(&self) -> impl Iterator<Item = String> {
        let mut nodes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let remediations = self.view.remediations.values();
        for remediation in remediations.filter(|remediation| !remediation.over && !remediation.deleting) {
            nodes.entry(&remediation.owner).or_default().insert(&remediation.node);
        }
        nodes.into_iter().filter_map(|(owner, nodes)| {
            let most = self.view.checks.get(owner)?.max_concurrent?;
            (nodes.len() > most).then(|| format!("{owner} remediates {} nodes, and may {most}", nodes.len()))
        })
    }
}

/// Steps that have two remediations, neither of them being deleted.
fn doubled<'a>(remediations: impl Iterator<Item = &'a RemediationView>) -> impl Iterator<Item = String> {
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for remediation in remediations.filter(|remediation| !remediation.deleting) {
        *counts.entry(remediation.step()).or_default() += 1;
    }
    counts
        .into_iter()
        .filter(|(_, count)| *count > 1)
        .map(|((owner, node, _, kind, template), count)| {
            format!("{count} {kind} of {owner} for {node} from {template}")
        })
}
