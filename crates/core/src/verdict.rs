//! Verdicts: the single source of every explanation. Conditions, Events, metrics, logs and the command line all say what
//! stands here, and nothing else.

use std::fmt;

use jiff::Timestamp;
use nodeward_api::reason::{BlockerReason, GateReason};
use serde::Serialize;

use crate::id::{BudgetKey, NodeName, PodKey, PodUid};
use crate::strategy::StrategyName;

/// What stands between a node and the end of its drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeVerdict {
    /// The node.
    pub node: NodeName,
    /// Whether it is acted on, and if not, why.
    pub gate: GateReason,
    /// More on the gate: which pool, which signal; empty if there is no more to say.
    pub gate_detail: String,
    /// When its drain began; absent while the gate is closed.
    pub since: Option<Timestamp>,
    /// The pods that its drain waits for.
    pub blockers: Vec<Blocker>,
    /// Whether everything has been tried and its time has passed.
    pub drain_failed: bool,
}

/// A pod that a drain waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Blocker {
    /// The pod.
    pub pod: PodKey,
    /// Its UID.
    pub uid: PodUid,
    /// Why it is still there.
    pub reason: BlockerReason,
    /// Budgets that select it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<BudgetKey>,
    /// Finalizers that keep it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// When its grace ends or ended, if it terminates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ends: Option<Timestamp>,
    /// Who holds its budget, the error of the last attempt, or the like; empty if there is nothing more to say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// What drain-keeper does next.
    pub next: Next,
}

/// What happens to a blocker next, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Next {
    /// A strategy's time is still to come.
    At {
        /// The strategy.
        strategy: StrategyName,
        /// When it falls due.
        due: Timestamp,
    },
    /// A strategy is due and is being carried out.
    Now {
        /// The strategy.
        strategy: StrategyName,
        /// When it fell due.
        due: Timestamp,
    },
    /// A strategy is due, and something holds it back for now.
    HeldBack {
        /// The strategy.
        strategy: StrategyName,
        /// When it fell due.
        due: Timestamp,
        /// When it is looked at again at the latest; absent: when something changes.
        until: Option<Timestamp>,
    },
    /// drain-keeper will not touch it: somebody has to.
    Nothing,
}

impl Next {
    /// Whether a strategy's time is still to come.
    pub fn is_pending(&self) -> bool {
        matches!(self, Self::At { .. })
    }

    /// When the strategy falls or fell due, if there is one.
    pub fn due(&self) -> Option<Timestamp> {
        match self {
            Self::At { due, .. } | Self::Now { due, .. } | Self::HeldBack { due, .. } => Some(*due),
            Self::Nothing => None,
        }
    }
}

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { strategy, due } => write!(f, "{strategy} at {}: {}", seconds(*due), strategy.intent()),
            Self::Now { strategy, .. } => write!(f, "{strategy} now: {}", strategy.intent()),
            Self::HeldBack {
                strategy,
                until: Some(until),
                ..
            } => {
                write!(f, "{strategy}, not before {}: {}", seconds(*until), strategy.intent())
            }
            Self::HeldBack {
                strategy, until: None, ..
            } => write!(f, "{strategy} when that ends: {}", strategy.intent()),
            Self::Nothing => f.write_str("nothing by itself: somebody has to look"),
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pod, self.reason.explanation())?;
        let mut about = Vec::new();
        if !self.budgets.is_empty() {
            about.push(format!("PDB {}", join(&self.budgets)));
        }
        if !self.finalizers.is_empty() {
            about.push(format!("finalizers {}", join(&self.finalizers)));
        }
        if let Some(ends) = self.grace_ends {
            about.push(format!("grace until {}", seconds(ends)));
        }
        if !self.detail.is_empty() {
            about.push(self.detail.clone());
        }
        if !about.is_empty() {
            write!(f, " ({})", about.join("; "))?;
        }
        write!(f, "; next: {}", self.next)
    }
}

/// A moment to the second, as people read it.
fn seconds(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn join<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
