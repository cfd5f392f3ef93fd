//! Limits: how many pods are forced at once on a node, and how many a minute in the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::drain_clock::DrainClock;
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::NodeName;
use nodeward_core::node::NodeView;
use nodeward_core::pod::PodView;

use crate::policy::Policy;
use crate::snapshot::Snapshot;

use super::budget_turn::NotYet;

/// How far the API server's clock may be from ours, at most.
const CLOCKS_APART: SignedDuration = SignedDuration::from_mins(1);

/// What the limits leave in this pass.
pub struct Limits<'a> {
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    acts_left: u32,
    next_act_at: Option<Timestamp>,
    taken: BTreeMap<NodeName, usize>,
    now: Timestamp,
}

impl<'a> Limits<'a> {
    /// Nothing taken yet.
    pub fn new(policy: &'a Policy, snapshot: &'a Snapshot, now: Timestamp) -> Self {
        Self {
            snapshot,
            policy,
            acts_left: snapshot.memory.acts_left,
            next_act_at: snapshot.memory.next_act_at,
            taken: BTreeMap::new(),
            now,
        }
    }

    /// Whether one more pod of this node may be acted on.
    ///
    /// # Errors
    /// With what to wait for.
    pub fn check(&self, node: &NodeView, clock: &DrainClock, pods: &[Arc<PodView>]) -> Result<(), NotYet> {
        let policy = self.policy;
        // A mistake of ours or of the configuration is seen before it has reached the whole cluster.
        if self.acts_left == 0 {
            return Err(NotYet {
                until: self.next_act_at,
                detail: format!("limits.forcedPerMinute: {} reached", policy.forced_per_minute),
            });
        }
        let waits = policy.waits_for(node, &self.snapshot.pdb_force_drain_timeout);
        let forced_since = saturating_add(clock.start, waits.first());
        // A delete that was asked for after the first strategy fell due counts as forced: that can be read from the API, so
        // a restart does not forget it. Beyond its grace it is stuck, no longer in flight.
        let in_flight = pods
            .iter()
            .filter(|pod| !self.is_of_others(pod))
            .filter_map(|pod| pod.deletion.as_deref())
            .filter(|deletion| forced_since <= deletion.requested_at() && !deletion.is_beyond_grace(self.now));
        let (count, first_end) = in_flight.fold((0, None::<Timestamp>), |(count, end), deletion| {
            (
                count + 1,
                Some(end.map_or(deletion.deadline, |end| end.min(deletion.deadline))),
            )
        });
        // What was asked for a moment ago counts before the watch shows it.
        let not_seen_yet = pods
            .iter()
            .filter(|pod| self.snapshot.memory.is_asked_to_go(pod, self.now))
            .count();
        let taken = self.taken.get(&node.name).copied().unwrap_or(0);
        if count + not_seen_yet + taken < policy.forced_per_node {
            return Ok(());
        }
        Err(NotYet {
            until: first_end,
            detail: format!("limits.forcedPerNode: {} reached", policy.forced_per_node),
        })
    }

    /// Whether somebody else asked the pod to go, such as the drainer, whose pods may have graces of hours: while this process
    /// led, and without an attempt of its own.
    fn is_of_others(&self, pod: &PodView) -> bool {
        let memory = &self.snapshot.memory;
        let Some((deletion, since)) = pod.deletion.as_deref().zip(memory.leads_since) else {
            return false;
        };
        !memory.attempts.contains_key(&pod.uid) && saturating_add(since, CLOCKS_APART) <= deletion.requested_at()
    }

    /// Counts one.
    pub fn take(&mut self, node: &NodeView) {
        self.acts_left = self.acts_left.saturating_sub(1);
        *self.taken.entry(node.name.clone()).or_default() += 1;
    }
}
