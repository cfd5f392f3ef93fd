//! What drain-lock says of each drain, followed as it says it.

use std::collections::BTreeMap;
use std::sync::Arc;

use console::Style;
use futures::StreamExt;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use nodeward_api::node_drain::{BlockedBy, NodeDrain, NodeDrainStatus, Phase};
use tokio::task::JoinSet;

use crate::demo::narrator::{Line, Narrator, Voice};
use crate::demo::place::Place;

/// Tells each drain's phases, and what it waits for, until dropped.
pub fn drains(narrator: &Arc<Narrator>, place: &Place) -> JoinSet<()> {
    let narrator = Arc::clone(narrator);
    let drains: Api<NodeDrain> = Api::all(place.client());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut known: BTreeMap<String, Told> = BTreeMap::new();
        let mut changes = watcher(drains, watcher::Config::default())
            .default_backoff()
            .applied_objects()
            .boxed();
        while let Some(change) = changes.next().await {
            if let Ok(drain) = change
                && let Some(told) = drain.status.as_ref().and_then(Told::of)
                && known.get(&drain.name_any()) != Some(&told)
            {
                narrator.remark(Voice::Lock, &drain.name_any(), told.line());
                known.insert(drain.name_any(), told);
            }
        }
    });
    tasks
}

/// What a status says that is worth telling: the same while only times and numbers change.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    phase: Phase,
    ticket: Option<i64>,
    /// The budgets that it waits for or holds.
    about: Vec<String>,
}

impl Told {
    fn of(status: &NodeDrainStatus) -> Option<Self> {
        let phase = status.phase?;
        let mut about: Vec<String> = match phase {
            Phase::Queued => status.blocked_by.iter().map(waits_for).collect(),
            Phase::Granted | Phase::Draining | Phase::Suspect => {
                status.holds.iter().map(|held| held.pdb.to_string()).collect()
            }
            Phase::Drained | Phase::Recovering | Phase::Released | Phase::Failed => Vec::new(),
        };
        about.sort();
        about.dedup();
        Some(Self {
            phase,
            ticket: status.ticket.filter(|_| phase == Phase::Queued),
            about,
        })
    }

    fn line(&self) -> Line {
        let Self { phase, ticket, about } = self;
        let ticket = ticket.map_or_else(String::new, |ticket| format!(", ticket {ticket}"));
        let about = match (phase, about.as_slice()) {
            (_, []) => String::new(),
            (Phase::Queued, about) => format!(": {}", about.join("; ")),
            (_, about) => format!(": holds {}", about.join(" and ")),
        };
        let look = match phase {
            Phase::Queued => Style::new().yellow(),
            Phase::Failed | Phase::Suspect => Style::new().red(),
            _ => Style::new().green(),
        };
        Line::plain(format!("{phase}{ticket}{about}")).look(look)
    }
}

fn waits_for(blocked: &BlockedBy) -> String {
    match (&blocked.pdb, &blocked.node) {
        (Some(pdb), Some(node)) => format!("waits for budget {pdb}, which {node} has"),
        _ if blocked.message.is_empty() => blocked.reason.to_string(),
        _ => blocked.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(status: serde_json::Value) -> Told {
        Told::of(&serde_json::from_value(status).unwrap()).unwrap()
    }

    #[test]
    fn what_only_changes_in_numbers_is_told_once() {
        let blocked = json!([{ "reason": "WaitsForUnits", "pdb": "data/kafka", "node": "db-1", "message": "1 of 1" }]);
        let first = told(json!({ "phase": "Queued", "ticket": 2, "blockedBy": blocked, "observedGeneration": 1 }));
        let same = told(json!({ "phase": "Queued", "ticket": 2, "blockedBy": blocked, "message": "for 8 s" }));
        assert_eq!(first, same);
        assert_eq!(first.about, ["waits for budget data/kafka, which db-1 has"]);
        assert_ne!(first, told(json!({ "phase": "Queued", "ticket": 2 })));
    }
}
