//! Runs actions beside the loop: each as a task of its own, at most one for a key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use crate::leader::Leadership;
use crate::task_set::{self, TaskSet};

use super::permit::{Gate, Permits};
use super::{Action, Lane};

/// Actions under way.
pub(super) struct Executor<A: Action> {
    gate: Arc<Gate>,
    tasks: TaskSet<A::Key, Option<A::Outcome>>,
    under_way: BTreeMap<A::Key, UnderWay<A>>,
}

struct UnderWay<A: Action> {
    started_at: Timestamp,
    /// Empty once the action has its slot.
    queued: Queued<A>,
}

type Queued<A> = Arc<Mutex<Option<(A, <A as Action>::Context, u64)>>>;

/// An action that has ended.
pub(super) struct Ended<A: Action> {
    pub(super) key: A::Key,
    pub(super) started_at: Timestamp,
    pub(super) outcome: Option<A::Outcome>,
}

impl<A: Action> Executor<A> {
    pub(super) fn new(leadership: Leadership, dry_run: bool) -> Self {
        Self {
            gate: Gate::new(leadership, dry_run),
            tasks: TaskSet::new(),
            under_way: BTreeMap::new(),
        }
    }

    /// From now on no action of an earlier plan writes.
    pub(super) fn policy_changed(&self) {
        self.gate.policy_changed();
    }

    pub(super) fn is_under_way(&self, key: &A::Key) -> bool {
        self.under_way.contains_key(key)
    }

    /// Puts a newer plan's action in place of one that still waits for its slot.
    pub(super) fn replace_queued(&self, action: A, context: &A::Context) {
        let Some(under_way) = self.under_way.get(&action.key()) else {
            return;
        };
        let mut queued = under_way.queued.lock().unwrap_or_else(PoisonError::into_inner);
        if queued.is_some() {
            *queued = Some((action, context.clone(), self.gate.policy()));
        }
    }

    /// Starts an action whose key is free.
    pub(super) fn start(&mut self, action: A, context: &A::Context, now: Timestamp) {
        let (key, lane, gate) = (action.key(), action.lane(), Arc::clone(&self.gate));
        let queued: Queued<A> = Arc::new(Mutex::new(Some((action, context.clone(), gate.policy()))));
        let under_way = UnderWay {
            started_at: now,
            queued: Arc::clone(&queued),
        };
        self.under_way.insert(key.clone(), under_way);
        self.tasks.start(key, run(gate, lane, queued));
    }

    /// Returns when an action has ended; never while none is under way. May be dropped and called again.
    pub(super) async fn wait(&mut self) {
        self.tasks.wait().await;
    }

    /// Takes the actions that have ended.
    pub(super) fn take_ended(&mut self) -> Vec<Ended<A>> {
        let ended = self.tasks.take_ended();
        ended.into_iter().filter_map(|task| self.take(task)).collect()
    }

    /// Waits for all actions.
    pub(super) async fn finish(&mut self) -> Vec<Ended<A>> {
        let ended = self.tasks.finish().await;
        ended.into_iter().filter_map(|task| self.take(task)).collect()
    }

    fn take(&mut self, task: task_set::Ended<A::Key, Option<A::Outcome>>) -> Option<Ended<A>> {
        let under_way = self.under_way.remove(&task.key)?;
        Some(Ended {
            key: task.key,
            started_at: under_way.started_at,
            outcome: task.outcome.flatten(),
        })
    }
}

/// Hundreds of actions may wait for a slot at once, and a future takes the memory of its largest part: so the action's own is
/// boxed when it begins.
async fn run<A: Action>(gate: Arc<Gate>, lane: Lane, queued: Queued<A>) -> Option<A::Outcome> {
    let slot = gate.slot(lane).await;
    let (action, context, policy) = queued.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    let permits = Permits::new(gate, lane, policy, slot);
    Some(Box::pin(action.run(context, permits)).await)
}
