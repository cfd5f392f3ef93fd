//! A node as the page shows it: the answer about it, its groups, and what to type.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodeward_api::label::CONTROL_PLANE_ROLES;
use nodeward_api::node_drain::Phase;
use serde::Serialize;

use super::node_group::NodeGroup;
use super::{Command, Grouping, acts_for};
use crate::commands::printed::PrintedCommands;
use crate::model::answer::{Answer, NodeState, Severity};
use crate::model::drain::Drain;
use crate::model::node::NodeSummary;

/// A node, and the answer about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FleetNode {
    #[serde(flatten)]
    pub answer: Answer,
    pub ready: bool,
    pub cordoned: bool,
    /// By the name of the grouping.
    pub groups: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Command>,
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
    Grouping::new("pool", "node pool"),
    Grouping::new("zone", "zone"),
    Grouping::new("nodeGroup", "node group"),
    Grouping::new("role", "role"),
];

impl Grouping {
    const fn new(name: &'static str, label: &'static str) -> Self {
        Self { name, label }
    }
}

impl FleetNode {
    pub fn of(
        node: &Node,
        summary: &NodeSummary,
        answer: Answer,
        drain: Option<&Drain>,
        node_groups: &[NodeGroup],
        commands: &PrintedCommands,
    ) -> Self {
        let mut shown = Vec::new();
        if answer.severity > Severity::Fine {
            // The command of the phase does not help while something else counts more.
            let counts = matches!(answer.state, NodeState::Blocked | NodeState::Drained);
            let drain = drain.filter(|drain| counts && !drain.ending);
            shown = drain.map(|drain| acts_for(drain, commands)).unwrap_or_default();
            // A drain that is over, or was given up, is ended; of any other the obstacles come first.
            let is_over = drain.is_some_and(|drain| matches!(drain.phase, Some(Phase::Drained | Phase::Failed)));
            let why = Command {
                label: "show what it waits for, and what comes next".to_owned(),
                command: commands.why(&summary.name),
            };
            shown.insert(if is_over { shown.len() } else { 0 }, why);
        }
        Self {
            answer,
            ready: summary.ready,
            cordoned: summary.cordoned,
            groups: groups(node, node_groups),
            commands: shown,
        }
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
    let groups = [
        ("pool", pool),
        ("zone", zone),
        ("nodeGroup", NodeGroup::names_of(node_groups, node)),
        ("role", role),
    ];
    let filled = groups.into_iter().filter_map(|(name, value)| Some((name, value?)));
    filled.filter(|(_, value)| !value.is_empty()).collect()
}
