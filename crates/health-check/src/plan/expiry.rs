//! Whether a node is unhealthy, and for long enough.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_core::deadline::{is_due, saturating_add};

use super::evidence::{NodeEvidence, RestsOn};
use crate::observations::Moment;
use crate::snapshot::NodeFacts;
use nodeward_core::node_health_check::UnhealthyCondition;

const READY: &str = "Ready";

/// On a Node, by the Machine API: its cloud is about to take the machine away.
pub const TERMINATING: &str = "Terminating";

/// How a node's conditions stand.
#[derive(Debug, Clone, PartialEq)]
pub enum Health {
    /// No unhealthy condition holds.
    Healthy,
    /// It is being terminated, and a MachineHealthCheck sees to that.
    LeftToTerminationHandler,
    /// It has no condition Ready yet.
    ReadyUnknown,
    /// What makes a node unhealthy cannot be read.
    NotJudged,
    /// An unhealthy condition holds, but not for long enough.
    NotExpired(Unhealthy),
    /// An unhealthy condition holds for long enough.
    Expired(Unhealthy),
}

impl Health {
    /// Whether nothing is to be done for the node.
    pub const fn is_fine(&self) -> bool {
        matches!(self, Self::Healthy | Self::LeftToTerminationHandler)
    }

    /// The unhealthy condition that holds, for however long.
    pub const fn unhealthy(&self) -> Option<&Unhealthy> {
        match self {
            Self::NotExpired(unhealthy) | Self::Expired(unhealthy) => Some(unhealthy),
            Self::Healthy | Self::LeftToTerminationHandler | Self::ReadyUnknown | Self::NotJudged => None,
        }
    }
}

/// An unhealthy condition that holds: of several the one that expires first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unhealthy {
    /// Type.
    pub type_: Arc<str>,
    /// Status; `None`: missing.
    pub status: Option<Arc<str>>,
    /// Since when it counts.
    pub since: Timestamp,
    /// When it has lasted for long enough.
    pub expires: Timestamp,
    /// `lastTransitionTime`.
    pub last_transition: Option<Timestamp>,
}

impl Unhealthy {
    /// What an act that rests on it has to find.
    pub fn evidence(&self, node: &NodeFacts) -> NodeEvidence {
        NodeEvidence {
            name: node.view.name.clone(),
            rests_on: RestsOn::Unhealthy {
                uid: node.view.uid.clone(),
                type_: Arc::clone(&self.type_),
                status: self.status.clone(),
                last_transition: self.last_transition,
            },
        }
    }
}

/// Judges a node; `absent_since` tells since when it lacks a condition.
pub fn judge(
    node: &NodeFacts,
    conditions: &[UnhealthyCondition],
    has_termination_handler: bool,
    mut absent_since: impl FnMut(&Arc<str>) -> Timestamp,
    moment: Moment,
) -> Health {
    if conditions.is_empty() {
        return Health::NotJudged;
    }
    let is_true = |type_| {
        node.condition(type_)
            .is_some_and(|condition| *condition.status == *"True")
    };
    if has_termination_handler && is_true(TERMINATING) {
        return Health::LeftToTerminationHandler;
    }
    let holding = conditions.iter().filter(|unhealthy| holds(unhealthy, node));
    let holding = holding.map(|unhealthy| {
        let found = node.condition(&unhealthy.type_);
        let since = match found {
            None => absent_since(&unhealthy.type_),
            Some(found) => saturating_add(found.counts_since, moment.stepped_by),
        };
        Unhealthy {
            type_: Arc::clone(&unhealthy.type_),
            status: unhealthy.status.clone(),
            since,
            expires: saturating_add(since, unhealthy.duration),
            last_transition: found.and_then(|found| found.last_transition),
        }
    });
    match holding.min_by_key(|unhealthy| unhealthy.expires) {
        Some(unhealthy) if is_due(unhealthy.expires, moment.now) => Health::Expired(unhealthy),
        Some(unhealthy) => Health::NotExpired(unhealthy),
        None if node.condition(READY).is_none() => Health::ReadyUnknown,
        None => Health::Healthy,
    }
}

/// Whether an unhealthy condition holds, for however long.
fn holds(unhealthy: &UnhealthyCondition, node: &NodeFacts) -> bool {
    let found = node.condition(&unhealthy.type_);
    found.map(|found| &*found.status) == unhealthy.status.as_deref()
}

/// Whether a node is healthy at any time, until its conditions change.
pub fn is_plainly_healthy(node: &NodeFacts, conditions: &[UnhealthyCondition]) -> bool {
    let any_holds = conditions.iter().any(|unhealthy| holds(unhealthy, node));
    !conditions.is_empty() && !any_holds && node.condition(READY).is_some()
}
