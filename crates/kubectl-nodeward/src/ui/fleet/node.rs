//! A node's one state: of all that is told of it, what counts most.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodeward_api::label::CONTROL_PLANE_ROLES;
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::{HealthReason, LockReason};
use serde::Serialize;

use super::node_group::NodeGroup;
use super::{Command, Grouping, commands_for};
use crate::commands::printed::PrintedCommands;
use crate::commands::why::health::sentence;
use crate::describe;
use crate::model::drain::Drain;
use crate::model::health::NodeHealth;
use crate::model::node::{Blocked, NodeSummary};

/// A node, and the state that counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FleetNode {
    pub state: NodeState,
    pub ready: bool,
    pub cordoned: bool,
    /// By the name of the grouping.
    pub groups: BTreeMap<&'static str, String>,
    pub since: Option<Timestamp>,
    /// When the state ends by itself.
    pub until: Option<Timestamp>,
    pub why: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Command>,
    pub severity: Severity,
}

/// From what counts most to what counts least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum NodeState {
    /// A remediation of it runs.
    Remediating,
    /// Something keeps its drain from ending that does not pass with its turn.
    Blocked,
    /// A condition counts against it, or will.
    Unhealthy,
    Drained,
    /// Its drain is over, and its pods return.
    Recovering,
    Draining,
    /// Its drain waits for its turn.
    Waiting,
    NotReady,
    Cordoned,
    Ready,
}

/// How much a node needs a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    None = 0,
    /// It is being worked on.
    InWork = 1,
    /// It is stuck, or about to be.
    Stuck = 2,
    /// It goes on only when a person acts.
    NeedsPerson = 3,
}

impl Serialize for Severity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*self as u8)
    }
}

/// Labels by which clouds and installers tell the pool of a node.
const POOL_LABELS: [&str; 6] = [
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "doks.digitalocean.com/node-pool",
    "node.kubernetes.io/pool",
];

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
const ROLE_PREFIX: &str = "node-role.kubernetes.io/";

/// The groupings that there are.
pub const GROUPINGS: [Grouping; 4] = [
    Grouping {
        name: "pool",
        label: "node pool",
    },
    Grouping {
        name: "zone",
        label: "zone",
    },
    Grouping {
        name: "nodeGroup",
        label: "node group",
    },
    Grouping {
        name: "role",
        label: "role",
    },
];

/// A state, and what it rests on.
struct Verdict {
    state: NodeState,
    severity: Severity,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    why: Option<String>,
}

impl FleetNode {
    pub fn of(
        node: &Node,
        drain: Option<&Drain>,
        health: &[NodeHealth],
        node_groups: &[NodeGroup],
        commands: &PrintedCommands,
        now: Timestamp,
    ) -> Self {
        let summary = NodeSummary::of(node);
        let drain = drain.filter(|drain| !drain.dry_run && drain.phase != Some(Phase::Released));
        let verdict = Verdict::of(&summary, drain, health, now);
        let mut shown = Vec::new();
        if verdict.severity > Severity::None {
            shown.push(Command {
                label: "show what it waits for, and what comes next".to_owned(),
                command: commands.nodeward("why", &summary.name),
            });
            // The command of the phase does not help while something else counts more.
            if let Some(drain) =
                drain.filter(|drain| matches!(verdict.state, NodeState::Blocked | NodeState::Drained) && !drain.ending)
            {
                let why = shown.remove(0);
                shown = commands_for(drain, commands);
                shown.pop();
                // A drain that is over, or was given up, is ended; of any other the obstacles come first.
                let place = if matches!(drain.phase, Some(Phase::Drained | Phase::Failed)) {
                    shown.len()
                } else {
                    0
                };
                shown.insert(place, why);
            }
        }
        Self {
            state: verdict.state,
            ready: summary.ready,
            cordoned: summary.cordoned,
            groups: groups(node, node_groups),
            since: verdict.since,
            until: verdict.until,
            why: verdict.why,
            commands: shown,
            severity: verdict.severity,
        }
    }

    pub(super) fn is_grouped_by(&self, grouping: &Grouping) -> bool {
        self.groups.contains_key(grouping.name)
    }
}

fn groups(node: &Node, node_groups: &[NodeGroup]) -> BTreeMap<&'static str, String> {
    let labels = node.labels();
    let pool = POOL_LABELS.iter().find_map(|label| labels.get(*label).cloned());
    let zone = labels.get(ZONE_LABEL).cloned();
    let is_control_plane = CONTROL_PLANE_ROLES.iter().any(|role| labels.contains_key(*role));
    let role = if is_control_plane {
        Some("control-plane".to_owned())
    } else {
        labels
            .keys()
            .find_map(|label| Some(label.strip_prefix(ROLE_PREFIX)?.to_owned()))
    };
    let node_group = NodeGroup::names_of(node_groups, node);
    let groups = [
        ("pool", pool),
        ("zone", zone),
        ("nodeGroup", node_group),
        ("role", role),
    ];
    groups
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)))
        .collect()
}

impl Verdict {
    fn new(state: NodeState, severity: Severity) -> Self {
        Self {
            state,
            severity,
            since: None,
            until: None,
            why: None,
        }
    }

    fn of(node: &NodeSummary, drain: Option<&Drain>, health: &[NodeHealth], now: Timestamp) -> Self {
        let is_blocked = node.drain_keeper.as_ref().and_then(|keeper| keeper.blocked.as_ref());
        let candidates = [
            health.iter().find_map(remediating),
            drain.and_then(given_up),
            is_blocked.map(blocked),
            health.iter().find_map(|health| unhealthy(health, now)),
            drain.and_then(|drain| of_drain(drain, now)),
        ];
        if let Some(verdict) = candidates.into_iter().flatten().next() {
            return verdict;
        }
        let timed = node.drain_keeper.as_ref().and_then(|keeper| keeper.drain_began);
        if !node.ready {
            let mut verdict = Self::new(NodeState::NotReady, Severity::Stuck);
            verdict.why = Some("is not Ready, and no NodeHealthCheck counts that against it".to_owned());
            verdict
        } else if let Some(began) = timed.filter(|_| node.cordoned) {
            let mut verdict = Self::new(NodeState::Draining, Severity::InWork);
            verdict.since = Some(began);
            verdict
        } else if node.cordoned {
            let mut verdict = Self::new(NodeState::Cordoned, Severity::None);
            verdict.since = node.cordoned_since;
            verdict
        } else {
            Self::new(NodeState::Ready, Severity::None)
        }
    }
}

fn remediating(health: &NodeHealth) -> Option<Verdict> {
    let step = health.step.as_ref()?;
    let is_exhausted = health.reason == HealthReason::ChainExhausted;
    let severity = if is_exhausted {
        Severity::NeedsPerson
    } else {
        Severity::Stuck
    };
    Some(Verdict {
        since: step.started,
        until: step.ends.filter(|_| step.timed_out.is_none()),
        why: Some(format!(
            "{} (step {} of {}: {}, NodeHealthCheck {})",
            sentence(health),
            step.number,
            step.of,
            step.remediation,
            health.check
        )),
        ..Verdict::new(NodeState::Remediating, severity)
    })
}

/// A drain that goes on only when an administrator acts.
fn given_up(drain: &Drain) -> Option<Verdict> {
    matches!(drain.phase, Some(Phase::Suspect | Phase::Failed)).then(|| Verdict {
        since: drain.since(),
        why: Some(describe::message(drain).to_owned()),
        ..Verdict::new(NodeState::Blocked, Severity::NeedsPerson)
    })
}

/// drain-keeper finds pods that keep the drain from ending.
fn blocked(blocked: &Blocked) -> Verdict {
    let has_failed = blocked.pods.as_ref().is_some_and(|pods| pods.drain_failed);
    let severity = if has_failed {
        Severity::NeedsPerson
    } else {
        Severity::Stuck
    };
    let named = blocked.pods.as_ref().filter(|pods| !pods.named.is_empty());
    let why = named.map_or_else(
        || blocked.message.clone(),
        |pods| pods.named[0].clone() + &describe::more(pods.pods.saturating_sub(1)),
    );
    Verdict {
        since: blocked.since,
        why: Some(why),
        ..Verdict::new(NodeState::Blocked, severity)
    }
}

/// A condition counts against the node, and it is not down for its drain.
fn unhealthy(health: &NodeHealth, now: Timestamp) -> Option<Verdict> {
    let condition = health.condition.as_ref()?;
    if health
        .stopped_by
        .iter()
        .any(|stop| stop.reason == HealthReason::UnderMaintenance)
    {
        return None;
    }
    let is_counting = condition.expires > now;
    let severity = if is_counting || health.stopped_by.is_empty() {
        Severity::Stuck
    } else {
        Severity::NeedsPerson
    };
    let stops: Vec<&str> = health.stopped_by.iter().map(|stop| stop.detail.as_str()).collect();
    let stops = describe::prefixed(
        "; stopped by ",
        Some(stops.join(", ")).filter(|stops| !stops.is_empty()),
    );
    Some(Verdict {
        since: Some(condition.since),
        until: Some(condition.expires).filter(|_| is_counting),
        why: Some(format!(
            "{} is {}: {} (NodeHealthCheck {}){stops}",
            condition.type_,
            condition.status,
            sentence(health),
            health.check
        )),
        ..Verdict::new(NodeState::Unhealthy, severity)
    })
}

/// Where a drain of drain-lock stands.
fn of_drain(drain: &Drain, now: Timestamp) -> Option<Verdict> {
    let obstacles: Vec<_> = describe::distinct(&drain.blocked_by)
        .into_iter()
        .filter(|blocked| !blocked.reason.is_a_step())
        .collect();
    let stuck = obstacles.iter().find(|blocked| !is_a_turn(blocked.reason));
    let first = stuck.or(obstacles.first());
    let why = first.map(|blocked| describe::obstacle(blocked) + &describe::more(obstacles.len() - 1));
    let is_overdue = drain.deadline.is_some_and(|deadline| deadline <= now);
    let (state, severity) = match drain.phase {
        _ if drain.ending => (NodeState::Recovering, Severity::InWork),
        Some(Phase::Drained) => (NodeState::Drained, Severity::InWork),
        Some(Phase::Recovering) => (NodeState::Recovering, Severity::InWork),
        None | Some(Phase::Scheduled | Phase::Queued | Phase::Granted | Phase::Draining)
            if stuck.is_some() || is_overdue =>
        {
            (NodeState::Blocked, Severity::Stuck)
        }
        Some(Phase::Granted | Phase::Draining) => (NodeState::Draining, Severity::InWork),
        None | Some(Phase::Scheduled | Phase::Queued) => (NodeState::Waiting, Severity::InWork),
        // The first is filtered out before, the others are told by `given_up`.
        Some(Phase::Released | Phase::Suspect | Phase::Failed) => return None,
    };
    let since = match drain.phase {
        Some(Phase::Drained) => drain.drained_at,
        Some(Phase::Granted | Phase::Draining) => drain.granted_at,
        _ => None,
    };
    Some(Verdict {
        since: since.or_else(|| drain.since()),
        until: drain.deadline.filter(|_| !is_overdue),
        why: why.or_else(|| Some(describe::message(drain).to_owned())),
        ..Verdict::new(state, severity)
    })
}

/// Whether it passes when other drains end.
fn is_a_turn(reason: LockReason) -> bool {
    matches!(
        reason,
        LockReason::WaitsForDisruptions
            | LockReason::Reserved
            | LockReason::Queued
            | LockReason::WaitsForNodeGroup
            | LockReason::LedgerFull
            | LockReason::StatusBehind
    )
}
