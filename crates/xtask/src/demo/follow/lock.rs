//! What drain-lock says of each drain, followed as it says it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use console::Style;
use futures::StreamExt;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use nodeward_api::node_drain::{BlockedBy, NodeDrain, NodeDrainStatus, Phase};
use nodeward_api::reason::LockReason;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::demo::environment::Environment;
use crate::demo::narrator::{Line, Narrator, Voice};

/// How long a drain waits for the same before that is told: while others come back it changes several times a second.
const SETTLES_IN: Duration = Duration::from_millis(500);

/// Tells each drain's phases, and what it waits for, until dropped.
pub fn drains(narrator: &Arc<Narrator>, env: &Environment) -> JoinSet<()> {
    let narrator = Arc::clone(narrator);
    let drains: Api<NodeDrain> = Api::all(env.client());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut known: BTreeMap<String, Told> = BTreeMap::new();
        let mut unsettled: BTreeMap<String, (Told, Instant)> = BTreeMap::new();
        let mut changes = watcher(drains, watcher::Config::default())
            .default_backoff()
            .applied_objects()
            .boxed();
        loop {
            let settles = unsettled.values().map(|(_, at)| *at).min();
            tokio::select! {
                change = changes.next() => {
                    let Some(change) = change else { break };
                    let Ok(drain) = change else { continue };
                    let Some(told) = drain.status.as_ref().and_then(Told::of) else { continue };
                    let at = Instant::now() + if told.is_wait() { SETTLES_IN } else { Duration::ZERO };
                    unsettled.insert(drain.name_any(), (told, at));
                }
                () = sleep_until(settles.unwrap_or_else(Instant::now)), if settles.is_some() => {}
            }
            let now = Instant::now();
            for (node, (told, _)) in unsettled.extract_if(.., |_, (_, at)| *at <= now) {
                if known.get(&node) != Some(&told) {
                    narrator.remark(Voice::Lock, &node, told.line());
                    known.insert(node, told);
                }
            }
        }
    });
    tasks
}

/// What a status says that is worth telling: the same while only times and numbers change.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// It waits for its turn: for these budgets, by the nodes that have them, and for whatever else.
    Waits {
        ticket: Option<i64>,
        disruptions: BTreeMap<String, Vec<String>>,
        other: Vec<String>,
    },
    /// It has these budgets, or needs none.
    Has(Vec<String>),
    Other(Phase),
}

impl Told {
    fn of(status: &NodeDrainStatus) -> Option<Self> {
        Some(match status.phase? {
            Phase::Queued => {
                let (mut disruptions, mut other) = (BTreeMap::<String, Vec<String>>::new(), Vec::new());
                for blocked in &status.blocked_by {
                    match (&blocked.pdb, &blocked.node) {
                        (Some(pdb), Some(node)) => disruptions.entry(node.clone()).or_default().push(of_budget(pdb)),
                        _ => other.push(told(blocked)),
                    }
                }
                let lists = disruptions.values_mut().chain([&mut other]);
                for list in lists {
                    list.sort();
                    list.dedup();
                }
                Self::Waits {
                    ticket: status.ticket,
                    disruptions,
                    other,
                }
            }
            Phase::Granted | Phase::Draining if status.granted_at.is_some() => {
                let mut budgets: Vec<String> = status.holds.iter().map(|held| held.pdb.name.clone()).collect();
                budgets.sort();
                budgets.dedup();
                Self::Has(budgets)
            }
            phase @ (Phase::Scheduled
            | Phase::Granted
            | Phase::Draining
            | Phase::Drained
            | Phase::Recovering
            | Phase::Released
            | Phase::Failed
            | Phase::Suspect) => Self::Other(phase),
        })
    }

    const fn is_wait(&self) -> bool {
        matches!(self, Self::Waits { .. })
    }

    fn line(&self) -> Line {
        match self {
            Self::Waits {
                ticket,
                disruptions,
                other,
            } => {
                let disruptions = disruptions
                    .iter()
                    .map(|(node, budgets)| format!("{node}, which has {}", and(budgets)));
                let mut text = "queued".to_owned();
                if let Some(ticket) = ticket {
                    let _ = write!(text, " with ticket {ticket}");
                }
                let disruptions: Vec<String> = disruptions.collect();
                if !disruptions.is_empty() {
                    let _ = write!(text, ", waits for {}", disruptions.join(" and for "));
                }
                for other in other {
                    let _ = write!(text, "; {other}");
                }
                Line::plain(text).look(Style::new().yellow())
            }
            Self::Has(budgets) => {
                let text = if budgets.is_empty() {
                    "its turn: it needs no budget".to_owned()
                } else {
                    format!("its turn: has {}", and(budgets))
                };
                Line::plain(text).look(Style::new().green())
            }
            Self::Other(phase) => {
                let look = match phase {
                    Phase::Failed | Phase::Suspect => Style::new().red(),
                    _ => Style::new().green(),
                };
                Line::plain(phase.to_string().to_lowercase()).look(look)
            }
        }
    }
}

/// As `a, b and c`.
fn and(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [word] => word.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// What it waits for; the longest of the messages are cut down to what matters here.
fn told(blocked: &BlockedBy) -> String {
    match (blocked.reason, &blocked.pdb) {
        (LockReason::CephClosed, _) => "waits for Ceph's data to be complete again".to_owned(),
        (LockReason::BudgetUnhealthy, Some(pdb)) => format!("waits for all pods of {} to be back", of_budget(pdb)),
        _ if blocked.message.is_empty() => blocked.reason.to_string(),
        _ => blocked.message.clone(),
    }
}

/// Its name: the budgets that a drain here waits for have names of their own.
fn of_budget(budget: &str) -> String {
    budget.rsplit('/').next().unwrap_or(budget).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(status: serde_json::Value) -> Told {
        Told::of(&serde_json::from_value(status).unwrap()).unwrap()
    }

    #[test]
    fn changed_numbers_are_no_news() {
        let blocked = |message: &str| json!([{ "reason": "WaitsForDisruptions", "pdb": "data/kafka", "node": "db-1", "message": message }]);
        let first =
            told(json!({ "phase": "Queued", "ticket": 2, "blockedBy": blocked("1 of 1"), "observedGeneration": 1 }));
        let same =
            told(json!({ "phase": "Queued", "ticket": 2, "blockedBy": blocked("2 of 2"), "message": "for 8 s" }));
        assert_eq!(first, same);
        assert_ne!(first, told(json!({ "phase": "Queued", "ticket": 2 })));
        let granted = told(json!({ "phase": "Draining", "grantedAt": "2026-01-01T12:00:00Z" }));
        assert_ne!(
            granted,
            told(json!({ "phase": "Draining" })),
            "pods that find room leave before"
        );
    }
}
