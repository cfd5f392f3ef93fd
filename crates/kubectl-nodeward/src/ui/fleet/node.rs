//! A node as the page shows it: the answer about it, its groups, and what to type.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodeward_api::label::CONTROL_PLANE_ROLES;
use nodeward_api::node_drain::Phase;
use serde::Serialize;

use super::node_group::NodeGroup;
use super::{Command, Grouping, commands_for};
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
            shown.push(Command {
                label: "show what it waits for, and what comes next".to_owned(),
                command: commands.nodeward("why", &summary.name),
            });
            // The command of the phase does not help while something else counts more.
            if let Some(drain) =
                drain.filter(|drain| matches!(answer.state, NodeState::Blocked | NodeState::Drained) && !drain.ending)
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
            answer,
            ready: summary.ready,
            cordoned: summary.cordoned,
            groups: groups(node, node_groups),
            commands: shown,
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
