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
    Gone,
    /// It is gone, or was made again: a Node with this UID has its name.
    Replaced {
        /// The UID.
        by: NodeUid,
    },
}

impl NodeEvidence {
    /// Whether it still holds of the Node as the API server has it; `None`: there is no Node of the name.
    ///
    /// # Errors
    /// What has changed, for a person.
    pub fn check(&self, node: Option<&Node>) -> Result<(), String> {
        let uid = |node: &Node| node.metadata.uid.clone().unwrap_or_default();
        match (&self.rests_on, node) {
            (RestsOn::Gone | RestsOn::Replaced { .. }, None) => Ok(()),
            (RestsOn::Gone, Some(_)) => Err(format!("node {} exists again", self.name)),
            (RestsOn::Replaced { by }, Some(node)) if uid(node) == by.as_str() => Ok(()),
            (RestsOn::Unhealthy { .. } | RestsOn::Healthy { .. }, None) => {
                Err(format!("node {} does not exist any more", self.name))
            }
            (RestsOn::Unhealthy { uid: known, .. } | RestsOn::Healthy { uid: known, .. }, Some(node))
                if uid(node) != known.as_str() =>
            {
                Err(format!("node {} was made again", self.name))
            }
            (RestsOn::Replaced { .. }, Some(_)) => Err(format!("node {} was made again once more", self.name)),
            (
                RestsOn::Unhealthy {
                    type_,
                    status,
                    last_transition,
                    ..
                },
                Some(node),
            ) => {
                let found = condition(node, type_);
                let stamp = found.and_then(|found| Some(found.last_transition_time.as_ref()?.0));
                let is_same =
                    found.map(|found| found.status.as_str()) == status.as_deref() && stamp == *last_transition;
                if is_same {
                    Ok(())
                } else {
                    Err(format!("condition {type_} of node {} has changed", self.name))
                }
            }
            (RestsOn::Healthy { conditions, .. }, Some(node)) => {
                let holds = |unhealthy: &&UnhealthyCondition| {
                    condition(node, &unhealthy.type_).map(|found| found.status.as_str()) == unhealthy.status.as_deref()
                };
                match conditions.iter().find(holds) {
                    None => Ok(()),
                    Some(unhealthy) => Err(format!(
                        "condition {} of node {} is unhealthy again",
                        unhealthy.type_, self.name
                    )),
                }
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
