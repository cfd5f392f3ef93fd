//! What a write that matters rests on: the executor reads the Node by quorum right before it, and asks here whether that still
//! holds. A cache may be old, and a machine is not rebooted for what was true a minute ago.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use nodeward_core::id::{NodeName, NodeUid};

use nodeward_core::node_health_check::UnhealthyCondition;

/// What must hold of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEvidence {
    /// The Node.
    pub name: NodeName,
    /// What must hold of it.
    pub rests_on: RestsOn,
}

/// What must hold of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestsOn {
    /// It is the same Node, and this condition has not changed.
    Unhealthy {
        /// Its UID.
        uid: NodeUid,
        /// Type of the condition.
        type_: Arc<str>,
        /// Its status; `None`: the Node has no condition of the type.
        status: Option<Arc<str>>,
        /// When it last changed.
        last_transition: Option<Timestamp>,
    },
    /// It is the same Node, and none of these conditions holds.
    Healthy {
        /// Its UID.
        uid: NodeUid,
        /// What would make it unhealthy.
        conditions: Arc<[UnhealthyCondition]>,
    },
    /// It is gone.
    Gone {
        /// UID of the Node that has its name now, if one has.
        replaced_by: Option<NodeUid>,
    },
}

impl RestsOn {
    /// The UID of the Node that has the name.
    pub const fn node_uid(&self) -> Option<&NodeUid> {
        match self {
            Self::Unhealthy { uid, .. } | Self::Healthy { uid, .. } => Some(uid),
            Self::Gone { replaced_by } => replaced_by.as_ref(),
        }
    }
}

impl NodeEvidence {
    /// Whether it still holds of the Node as the API server has it; `None`: there is no Node of the name.
    ///
    /// # Errors
    /// What has changed, for a person.
    pub fn check(&self, node: Option<&Node>) -> Result<(), String> {
        let name = &self.name;
        let is_gone = matches!(self.rests_on, RestsOn::Gone { .. });
        let Some(node) = node else {
            let why = || format!("node {name} does not exist any more");
            return is_gone.then_some(()).ok_or_else(why);
        };
        let known_uid = self.rests_on.node_uid().map(NodeUid::as_str);
        if known_uid.is_none() || node.metadata.uid.as_deref() != known_uid {
            return Err(match known_uid {
                None => format!("node {name} exists again"),
                Some(_) if is_gone => format!("node {name} was made again once more"),
                Some(_) => format!("node {name} was made again"),
            });
        }
        match &self.rests_on {
            RestsOn::Gone { .. } => Ok(()),
            RestsOn::Unhealthy {
                type_,
                status,
                last_transition,
                ..
            } => {
                let found = condition(node, type_);
                let stamp = found.and_then(|found| Some(found.last_transition_time.as_ref()?.0));
                let is_same =
                    found.map(|found| found.status.as_str()) == status.as_deref() && stamp == *last_transition;
                let why = || format!("condition {type_} of node {name} has changed");
                is_same.then_some(()).ok_or_else(why)
            }
            RestsOn::Healthy { conditions, .. } => {
                let holds = |unhealthy: &&UnhealthyCondition| {
                    condition(node, &unhealthy.type_).map(|found| found.status.as_str()) == unhealthy.status.as_deref()
                };
                conditions.iter().find(holds).map_or(Ok(()), |unhealthy| {
                    let type_ = &unhealthy.type_;
                    Err(format!("condition {type_} of node {name} is unhealthy again"))
                })
            }
        }
    }
}

fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    let status = node.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == *type_)
}

#[cfg(test)]
mod tests;
