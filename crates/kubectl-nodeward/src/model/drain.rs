//! A drain, as its NodeDrain tells.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nodeward_api::node_drain::{BlockedBy, Evictor, Fallback, HeldBudget, NodeDrain, Phase, PodCounts};
use nodeward_core::text::counted;
use serde::Serialize;

use crate::text::time::span;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    pub node: String,
    /// Where it stands; absent until drain-lock has answered.
    pub phase: Option<Phase>,
    /// Whether its claim has its grant.
    pub granted: bool,
    /// Its place in the queue: the lowest is the oldest.
    pub ticket: Option<i64>,
    /// Who asked for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requesters: Vec<String>,
    /// What it is for.
    pub purpose: Option<String>,
    /// Who evicts the pods.
    pub evict: Evictor,
    /// What happens when a deadline passes.
    pub fallback: Fallback,
    /// Planned only: nothing is evicted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Its NodeDrain is being deleted: the drain ends once its disruptions have returned.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ending: bool,
    pub asked_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    /// When its claim was granted last.
    pub granted_at: Option<Timestamp>,
    /// When no pod had to leave any more.
    pub drained_at: Option<Timestamp>,
    /// Until when its phase lasts at most.
    pub deadline: Option<Timestamp>,
    /// From when on it goes on without the pods that cannot go.
    pub leaves_out_at: Option<Timestamp>,
    pub pods: Option<PodCounts>,
    /// Disruptions of budgets that it holds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HeldBudget>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_by: Vec<BlockedBy>,
    /// What its status still names of that, and is over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outdated: Vec<BlockedBy>,
    /// What drain-lock says of it.
    pub message: Option<String>,
}

/// How long the drains that there are took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Durations {
    /// Median of the seconds from a grant to the moment when no pod had to leave any more; what follows is not in it.
    pub median_seconds: i64,
    /// Of so many drains.
    pub drains: usize,
}

impl Durations {
    pub fn of<'a>(drains: impl IntoIterator<Item = &'a Drain>) -> Option<Self> {
        let mut seconds: Vec<i64> = drains
            .into_iter()
            .filter_map(Drain::emptied_in)
            .map(|took| took.as_secs())
            .collect();
        seconds.sort_unstable();
        let median_seconds = *seconds.get(seconds.len() / 2)?;
        Some(Self {
            median_seconds,
            drains: seconds.len(),
        })
    }

    /// How long a drain waits if those before it take what others took. When a node is back nobody can tell.
    pub fn estimate(self, ahead: usize) -> Option<String> {
        let ahead = i64::try_from(ahead).ok().filter(|ahead| *ahead > 0)?;
        let one = SignedDuration::from_secs(self.median_seconds);
        let all = SignedDuration::from_secs(self.median_seconds.saturating_mul(ahead));
        let drains = counted(self.drains, "drain");
        Some(format!(
            "that takes about {} and their reboots, if each is drained {} after its grant (median of {drains} here)",
            span(all),
            span(one)
        ))
    }
}

impl Drain {
    /// A status of an older generation still tells the drain's phase.
    pub fn of(drain: &NodeDrain) -> Self {
        let (spec, status) = (&drain.spec, drain.status.clone().unwrap_or_default());
        Self {
            node: drain.name_any(),
            phase: status.phase,
            granted: status.is_granted(),
            ticket: status.ticket,
            requesters: spec.requesters.iter().map(|requester| requester.name.clone()).collect(),
            purpose: spec.purpose.clone(),
            evict: spec.evict,
            // One that waits for owners alone has nothing to release.
            fallback: match status.held_disruptions {
                None | Some(0) if spec.ask_owners => Fallback::Wait,
                _ => spec.fallback,
            },
            dry_run: spec.dry_run,
            ending: drain.metadata.deletion_timestamp.is_some(),
            asked_at: drain.metadata.creation_timestamp.as_ref().map(|time| time.0),
            started_at: status.started_at,
            granted_at: status.granted_at,
            drained_at: status.drained_at,
            deadline: status.deadline,
            leaves_out_at: status.leaves_out_at,
            pods: status.pods,
            holds: status.holds,
            blocked_by: status.blocked_by,
            outdated: Vec::new(),
            message: status.message.filter(|message| !message.is_empty()),
        }
    }

    /// Since when there is anything to tell of it.
    pub fn since(&self) -> Option<Timestamp> {
        self.started_at.or(self.asked_at)
    }

    /// Since when it is in its phase, as far as its NodeDrain tells.
    pub fn in_phase_since(&self) -> Option<Timestamp> {
        let since = match self.phase {
            Some(Phase::Drained) => self.drained_at,
            Some(Phase::Granted | Phase::Draining) => self.granted_at,
            _ => None,
        };
        since.or_else(|| self.since())
    }

    /// From its last grant to the moment when no pod had to leave any more.
    fn emptied_in(&self) -> Option<SignedDuration> {
        let (granted, drained) = (self.granted_at?, self.drained_at?);
        (granted <= drained).then(|| drained.duration_since(granted))
    }

    /// The nodes whose drains it waits for, each once.
    pub fn waits_for_nodes(&self) -> Vec<&str> {
        let mut nodes: Vec<&str> = Vec::new();
        for node in self.blocked_by.iter().filter_map(|blocked| blocked.node.as_deref()) {
            if node != self.node && !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn drain(granted: &str, drained: Option<&str>) -> Drain {
        let drain = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": "node-1" },
            "spec": { "nodeName": "node-1" }, "status": { "grantedAt": granted, "drainedAt": drained },
        });
        Drain::of(&serde_json::from_value(drain).unwrap())
    }

    #[test]
    fn durations_are_those_of_drained_nodes() {
        let drained = |at: &str| drain("2026-01-01T10:00:00Z", Some(at));
        let under_way = drain("2026-01-01T10:00:00Z", None);
        // Granted again since it was drained.
        let earlier = drained("2026-01-01T09:00:00Z");
        assert_eq!(Durations::of(&[under_way.clone(), earlier.clone()]), None);
        let all = [
            drained("2026-01-01T10:09:00Z"),
            under_way,
            drained("2026-01-01T10:01:00Z"),
            earlier,
            drained("2026-01-01T10:02:00Z"),
        ];
        let durations = Durations::of(&all).unwrap();
        assert_eq!((durations.median_seconds, durations.drains), (120, 3));
    }
}
