//! How long evictions from a node have been refused because its drain has no plan. Planning takes a second; where it does
//! not come at all (nobody leads, the kinds are not installed), evictions go by the free disruptions of their budgets again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nodeward_core::id::NodeUid;

/// How long a plan is waited for.
pub const LIMIT: Duration = Duration::from_mins(2);

/// A wait that nobody has asked about for this long is forgotten: the next one begins anew.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);

/// Nodes whose drains wait for a plan.
#[derive(Debug, Default)]
pub struct PlanningTimeouts(HashMap<NodeUid, Wait>);

#[derive(Debug, Clone, Copy)]
struct Wait {
    began: Instant,
    asked: Instant,
}

impl Wait {
    fn counts(self, now: Instant) -> bool {
        now.saturating_duration_since(self.asked) < FORGOTTEN_AFTER
    }
}

impl PlanningTimeouts {
    /// Notes that evictions from a node wait for a plan.
    pub fn note(&mut self, node: &NodeUid, now: Instant) {
        self.0.retain(|_, wait| wait.counts(now));
        let wait = self.0.entry(node.clone()).or_insert(Wait { began: now, asked: now });
        wait.asked = now;
    }

    /// Whether they have waited for too long.
    pub fn is_over(&self, node: &NodeUid, now: Instant) -> bool {
        let wait = self.0.get(node).filter(|wait| wait.counts(now));
        wait.is_some_and(|wait| now.saturating_duration_since(wait.began) >= LIMIT)
    }

    /// Notes that a node has a plan.
    pub fn planned(&mut self, node: &NodeUid) {
        self.0.remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_after_two_minutes_without_a_plan() {
        let (mut planning_timeouts, now) = (PlanningTimeouts::default(), Instant::now());
        let node = NodeUid::from("u1");
        planning_timeouts.note(&node, now);
        assert!(!planning_timeouts.is_over(&node, now + LIMIT.checked_sub(Duration::from_secs(1)).unwrap()));
        assert!(planning_timeouts.is_over(&node, now + LIMIT));
        assert!(!planning_timeouts.is_over(&"u2".into(), now + LIMIT));
    }

    #[test]
    fn looking_begins_no_wait() {
        let (planning_timeouts, now) = (PlanningTimeouts::default(), Instant::now());
        let node = NodeUid::from("u1");
        assert!(!planning_timeouts.is_over(&node, now));
        assert!(!planning_timeouts.is_over(&node, now + LIMIT));
    }

    #[test]
    fn a_plan_in_between_begins_the_wait_anew() {
        let (mut planning_timeouts, now) = (PlanningTimeouts::default(), Instant::now());
        let node = NodeUid::from("u1");
        planning_timeouts.note(&node, now);
        planning_timeouts.planned(&node);
        planning_timeouts.note(&node, now + LIMIT);
        assert!(!planning_timeouts.is_over(&node, now + LIMIT));
    }

    #[test]
    fn a_wait_of_another_day_does_not_count() {
        let (mut planning_timeouts, now) = (PlanningTimeouts::default(), Instant::now());
        let node = NodeUid::from("u1");
        planning_timeouts.note(&node, now);
        assert!(!planning_timeouts.is_over(&node, now + FORGOTTEN_AFTER));
        planning_timeouts.note(&node, now + FORGOTTEN_AFTER);
        assert!(!planning_timeouts.is_over(&node, now + FORGOTTEN_AFTER));
    }
}
