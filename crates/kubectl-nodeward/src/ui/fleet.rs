//! The fleet at one moment, as the page shows it: the models of `status`, `locks` and `why`, and for each node the one state
//! that counts. Pure.

mod ceph;
mod node;
mod node_group;
mod quiet;
#[cfg(test)]
pub mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use nodeward_api::NodeHealthCheck;
use nodeward_api::disruption_hold::DisruptionHold;
use nodeward_api::node_drain::Phase;
use nodeward_core::ledger::ClaimState;
use nodeward_runtime::cache::Content;
use serde::Serialize;

pub use self::ceph::FleetCeph;
pub use self::node::FleetNode;
use self::node::GROUPINGS;
pub use self::node_group::NodeGroup;
pub use self::quiet::{Quiet, StoredNode};
use crate::commands::printed::PrintedCommands;
use crate::commands::why::health::sentence;
use crate::commands::why::next::{Turns, ahead_of, command_of_phase};
use crate::describe;
use crate::fetch::StoredLedger;
use crate::model::Unread;
use crate::model::answer::{AnsweredNode, Answering, NodeState, Sight};
use crate::model::ceph::CephCluster;
use crate::model::component::{Component, ComponentObjects, components};
use crate::model::drain::{Drain, Durations};
use crate::model::events::LogLine;
use crate::model::health::{HealthCheck, HealthSources, Judge, NodeHealth};
use crate::model::locks::{BudgetLocks, NodeGroups, Sources, of_budgets};
use crate::text::Style;

/// What the page is made of, as it was read.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    pub components: ComponentObjects,
    pub nodes: Content<StoredNode>,
    pub drains: Content<Drain>,
    pub ledger: Option<Arc<StoredLedger>>,
    pub budgets: Content<PodDisruptionBudget>,
    pub holds: Content<DisruptionHold>,
    pub checks: Vec<NodeHealthCheck>,
    pub ceph: Vec<CephCluster>,
    pub log: BTreeMap<String, Arc<LogLine>>,
    /// As drain-lock's configuration has them.
    pub node_groups: Vec<NodeGroup>,
    pub unread: Vec<Unread>,
    /// Budgets of this namespace alone, where the caller named one.
    pub namespace: Option<String>,
}

/// The fleet at one moment.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fleet {
    pub at: Timestamp,
    pub source: Source,
    pub components: Vec<FleetComponent>,
    /// By which nodes can be grouped: those that at least one node has.
    pub groupings: Vec<Grouping>,
    pub nodes: BTreeMap<String, Arc<FleetNode>>,
    pub drains: BTreeMap<String, Arc<FleetDrain>>,
    /// Those that somebody holds or waits for.
    pub budgets: BTreeMap<String, Arc<BudgetLocks>>,
    pub node_groups: NodeGroups,
    pub durations: Option<Durations>,
    pub health_checks: BTreeMap<String, Arc<FleetCheck>>,
    /// By namespace.
    pub ceph_clusters: BTreeMap<String, Arc<FleetCeph>>,
    /// By UID of the Event.
    pub log: BTreeMap<String, Arc<LogLine>>,
    pub unread: Vec<FleetUnread>,
}

/// Where it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// The context, or the address of the API server.
    pub cluster: String,
    pub user: Option<String>,
    /// The API server does not answer.
    pub stale: Option<Stale>,
    /// Of the plugin.
    pub version: &'static str,
}

/// Since when nothing is newer, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stale {
    pub since: Timestamp,
    pub message: String,
}

/// A label by which nodes can be grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Grouping {
    pub name: &'static str,
    pub label: &'static str,
}

/// A component, and its line in `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FleetComponent {
    #[serde(flatten)]
    component: Component,
    text: String,
    style: Style,
}

/// A drain, and what can be told of its turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FleetDrain {
    #[serde(flatten)]
    drain: Drain,
    /// Its phase in one word.
    word: &'static str,
    /// What stands in its way, each in a sentence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    obstacles: Vec<String>,
    /// How long until its turn.
    turn: Option<String>,
    /// Since when its pods, or its node, are awaited back.
    #[serde(rename = "recoveringSince")]
    recovering_since: Option<Timestamp>,
    commands: Vec<Command>,
}

/// A NodeHealthCheck, and its nodes that are not healthy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetCheck {
    #[serde(flatten)]
    check: HealthCheck,
    min_healthy: Option<String>,
    max_unhealthy: Option<String>,
    nodes: Vec<CheckedNode>,
}

/// A node in the eyes of a NodeHealthCheck.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct CheckedNode {
    node: String,
    sentence: String,
    #[serde(flatten)]
    health: NodeHealth,
}

/// Something to type, and what it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Command {
    pub label: String,
    pub command: String,
}

/// What may not be read, or is not installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetUnread {
    pub text: String,
    /// It may be there.
    pub is_hidden: bool,
}

impl Fleet {
    /// Made of these; what `quiet` knows of them is not made again.
    pub fn of(inputs: &Inputs, quiet: &mut Quiet, source: Source, commands: &PrintedCommands, now: Timestamp) -> Self {
        quiet.prepare(inputs);
        // Nothing is concluded from the silence of an API server that is away.
        let read_at = source.stale.as_ref().map_or(now, |stale| stale.since);
        let components = components(&inputs.components, read_at);
        let drains: BTreeMap<&str, &Drain> = inputs
            .drains
            .values()
            .map(|drain| (drain.node.as_str(), &**drain))
            .collect();
        let locks = Sources {
            ledger: inputs.ledger.as_deref().and_then(|ledger| ledger.as_deref().ok()),
            budgets: inputs.budgets.values().map(|budget| &**budget).collect(),
            holds: inputs.holds.values().map(|hold| &**hold).collect(),
            namespace: inputs.namespace.as_deref(),
        };
        let budgets = of_budgets(&locks, &BTreeSet::new(), now);
        let durations = Durations::of(drains.values().copied());
        let turns = locks.ledger.map(Turns::of);
        let answering = Answering::new(&inputs.checks, &components, Sight::without(&inputs.unread), now);
        let judges = &answering.judges;
        let mut checked: HashMap<String, Vec<CheckedNode>> = HashMap::new();
        let mut nodes: BTreeMap<String, Arc<FleetNode>> = BTreeMap::new();
        for (key, stored) in &*inputs.nodes {
            let name = &*key.name;
            let drain = drains.get(name).copied();
            if drain.is_none()
                && let Some(known) = quiet.known(name, stored, judges)
            {
                nodes.insert(name.to_owned(), known);
                continue;
            }
            let Some(node) = stored.read() else { continue };
            let AnsweredNode {
                summary,
                health,
                answer,
            } = answering.answer(&node, drain);
            let made = FleetNode::of(&node, &summary, answer, drain, &inputs.node_groups, commands);
            let made = Arc::new(made);
            // What else is told of it may change with the time, or with who leads.
            if drain.is_none() && made.answer.state == NodeState::Ready {
                quiet.keep(&key.name, stored, &made);
            }
            nodes.insert(name.to_owned(), made);
            note(&mut checked, name, health);
        }
        for judge in judges {
            for name in judge.names().filter(|name| !nodes.contains_key(*name)) {
                let sources = HealthSources {
                    checks: &inputs.checks,
                    drain: drains.get(name).copied(),
                    ..HealthSources::default()
                };
                note(&mut checked, name, judge.judge(name, &sources, now));
            }
        }
        let has = |grouping: &&Grouping| nodes.values().any(|node| node.groups.contains_key(grouping.name));
        Self {
            at: now,
            source,
            components: components
                .into_iter()
                .map(|component| FleetComponent::of(component, now))
                .collect(),
            groupings: GROUPINGS.iter().filter(has).copied().collect(),
            nodes,
            drains: drains
                .values()
                .map(|drain| {
                    let shown = FleetDrain::of(drain, turns.as_ref(), durations, commands);
                    (drain.node.clone(), Arc::new(shown))
                })
                .collect(),
            budgets: budgets
                .into_iter()
                .map(|budget| (budget.pdb.clone(), Arc::new(budget)))
                .collect(),
            node_groups: NodeGroups::of(locks.ledger, drains.values().copied()),
            durations,
            health_checks: inputs
                .checks
                .iter()
                .map(|check| {
                    let nodes = checked.remove(&check.name_any()).unwrap_or_default();
                    (check.name_any(), Arc::new(FleetCheck::of(check, nodes)))
                })
                .collect(),
            ceph_clusters: inputs
                .ceph
                .iter()
                .map(|cluster| (cluster.namespace.clone(), Arc::new(FleetCeph::of(cluster, now))))
                .collect(),
            log: inputs.log.clone(),
            unread: inputs
                .unread
                .iter()
                .map(|unread| FleetUnread {
                    text: unread.to_string(),
                    is_hidden: unread.is_hidden(),
                })
                .collect(),
        }
    }
}

fn note(checked: &mut HashMap<String, Vec<CheckedNode>>, name: &str, health: impl IntoIterator<Item = NodeHealth>) {
    for health in health {
        checked.entry(health.check.clone()).or_default().push(CheckedNode {
            node: name.to_owned(),
            sentence: sentence(&health),
            health,
        });
    }
}

/// How long until a queued drain's turn, as far as that can be told.
fn turn(drain: &Drain, turns: Option<&Turns<'_>>, durations: Option<Durations>) -> Option<String> {
    if drain.phase != Some(Phase::Queued) || drain.ending {
        return None;
    }
    let ahead = turns?.before(&drain.node)?;
    let estimate = durations.and_then(|durations| durations.estimate(ahead));
    Some(ahead_of(ahead) + &describe::prefixed("; ", estimate))
}

fn recovering_since(drain: &Drain, turns: &Turns<'_>) -> Option<Timestamp> {
    let claim = turns.claim(&drain.node)?;
    (claim.state == ClaimState::Returning || claim.state == ClaimState::Suspect).then_some(claim.since)
}

impl FleetComponent {
    /// Its line in `status`.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn of(component: Component, now: Timestamp) -> Self {
        let (text, style) = component.line(now).into_parts();
        Self { component, text, style }
    }
}

impl FleetDrain {
    fn of(drain: &Drain, turns: Option<&Turns<'_>>, durations: Option<Durations>, commands: &PrintedCommands) -> Self {
        let obstacles = describe::distinct(&drain.blocked_by);
        let mut shown = acts_for(drain, commands);
        shown.push(Command {
            label: "show what it waits for".to_owned(),
            command: commands.why(&drain.node),
        });
        Self {
            word: describe::phase(drain),
            obstacles: obstacles.into_iter().map(describe::obstacle).collect(),
            turn: turn(drain, turns, durations),
            recovering_since: turns.and_then(|turns| recovering_since(drain, turns)),
            commands: shown,
            drain: drain.clone(),
        }
    }
}

/// What a person does about a drain of this phase.
fn acts_for(drain: &Drain, commands: &PrintedCommands) -> Vec<Command> {
    let Some(step) = command_of_phase(drain, commands) else {
        return Vec::new();
    };
    let label = step.text.trim_end_matches(':');
    let acts = step.commands.into_iter().map(|command| Command {
        label: label.to_owned(),
        command,
    });
    acts.collect()
}

impl FleetCheck {
    fn of(check: &NodeHealthCheck, nodes: Vec<CheckedNode>) -> Self {
        let text = |limit: &Option<IntOrString>| match limit.clone()? {
            IntOrString::Int(number) => Some(number.to_string()),
            IntOrString::String(text) => Some(text),
        };
        Self {
            min_healthy: text(&check.spec.min_healthy),
            max_unhealthy: text(&check.spec.max_unhealthy),
            check: HealthCheck::of(check),
            nodes,
        }
    }
}
