//! An outage of a node: which of its remediations are steps of it, and which are left of an earlier one.

use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::node_health_check::UnhealthyNode;
use nodeward_core::deadline::whole_second;

use super::expiry::{Health, Unhealthy};

/// The outage of a node in the eyes of a NodeHealthCheck. It lasts until the node's remediations are to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnhealthyPeriod {
    /// What was started before is of an earlier one.
    pub since: Timestamp,
    /// When the unhealthy condition last changed, as far as that was seen.
    pub last_transition: Option<Timestamp>,
    /// Type and status of that condition; `None`: none holds now, or none was seen yet.
    condition: Option<(Arc<str>, Option<Arc<str>>)>,
}

impl UnhealthyPeriod {
    /// What has become of an outage. What the status knows of it was followed by another process, while this one had not begun yet, or
    /// stood still: a process that has not looked before goes by that alone, for the node may have been healthy between.
    pub fn follow(
        before: Option<&Self>,
        looked_at: Option<Timestamp>,
        health: &Health,
        entry: Option<&UnhealthyNode>,
    ) -> Option<Self> {
        let Some(unhealthy) = health.unhealthy() else {
            let (since, last_transition) = match before {
                Some(before) => (before.since, before.last_transition),
                None if looked_at.is_some() => return None,
                None => (Timestamp::MIN, None),
            };
            return Some(Self {
                since,
                last_transition,
                condition: None,
            });
        };
        let followed = before
            .filter(|before| before.goes_on(unhealthy))
            .map(|before| before.since);
        let noted = entry.and_then(|entry| noted_since(entry, unhealthy));
        let goes_on_since = followed.into_iter().chain(noted).min();
        // Others may have seen it before, and started a remediation since this process has heard of nodes last.
        let at_least = unhealthy.last_transition.max(looked_at).filter(|_| looked_at.is_some());
        let first_seen = at_least.map_or(unhealthy.since, |at_least| at_least.min(unhealthy.since));
        let since = goes_on_since.unwrap_or(first_seen);
        Some(Self {
            // Starts are told to the second, and none comes before it expires, though the clock may have been stepped back.
            since: whole_second(since.min(unhealthy.expires)),
            last_transition: unhealthy.last_transition,
            condition: Some((Arc::clone(&unhealthy.type_), unhealthy.status.clone())),
        })
    }

    /// The same status at another time was another one between, and that was not seen.
    fn goes_on(&self, unhealthy: &Unhealthy) -> bool {
        let same = |(type_, status): &(Arc<str>, _)| *type_ == unhealthy.type_ && *status == unhealthy.status;
        self.last_transition == unhealthy.last_transition || !self.condition.as_ref().is_some_and(same)
    }
}

/// Since when at least the outage lasts that another process has followed, if it is the same.
fn noted_since(entry: &UnhealthyNode, unhealthy: &Unhealthy) -> Option<Timestamp> {
    let started = entry
        .remediations
        .iter()
        .filter_map(|remediation| remediation.started)
        .min();
    // No time is noted where the condition has not changed since the first step.
    let is_same = |started: &Timestamp| match entry.last_transition_time {
        Some(changed) => Some(changed) == unhealthy.last_transition,
        None => unhealthy.last_transition <= Some(*started),
    };
    started.filter(is_same)
}
