//! Runs actions beside the loop: each as a task of its own, at most one for a key.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::task::{Id, JoinError, JoinSet};

use crate::leader::Leadership;
use crate::pause::Pause;

use super::permit::{Gate, Permits};
use super::{Action, Lane};

/// Actions under way. Dropping it cuts them off.
pub(super) struct Executor<A: Action> {
    gate: Arc<Gate>,
    tasks: JoinSet<Option<A::Outcome>>,
    keys: HashMap<Id, A::Key>,
    /// Keys whose outcome has not been taken.
    in_flight: BTreeMap<A::Key, InFlight<A>>,
    ended: Vec<Ended<A>>,
}

struct InFlight<A: Action> {
    started_at: Timestamp,
    /// Empty once the action has its slot.
    queued: Queued<A>,
    stops_when_unplanned: bool,
    /// It stays so for an action that has begun: what it rests on was gone for a moment.
    is_unplanned: Arc<AtomicBool>,
}

type Queued<A> = Arc<Mutex<Option<Planned<A>>>>;

struct Planned<A: Action> {
    action: A,
    context: A::Context,
    /// The policy that it was planned with.
    policy: u64,
    at: Timestamp,
}

pub(super) struct Ended<A: Action> {
    pub(super) key: A::Key,
    pub(super) started_at: Timestamp,
    pub(super) outcome: Option<A::Outcome>,
}

impl<A: Action> Executor<A> {
    pub(super) fn new(leadership: Leadership, pause: Pause, dry_run: bool) -> Self {
        Self {
            gate: Gate::new(leadership, pause, dry_run),
            tasks: JoinSet::new(),
            keys: HashMap::new(),
            in_flight: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    /// From now on no action of an earlier plan writes; and none at all where the new policy only audits.
    pub(super) fn policy_changed(&self, audits: bool) {
        self.gate.policy_changed(audits);
    }

    pub(super) fn is_in_flight(&self, key: &A::Key) -> bool {
        self.in_flight.contains_key(key)
    }

    /// From now on no action writes that asks for it and is of none of the newest plan's keys.
    pub(super) fn stop_unplanned(&self, planned: &BTreeSet<A::Key>) {
        let unplanned = self.in_flight.iter().filter(|(key, _)| !planned.contains(key));
        for (_, in_flight) in unplanned.filter(|(_, in_flight)| in_flight.stops_when_unplanned) {
            in_flight.is_unplanned.store(true, Ordering::Release);
        }
    }

    /// Puts a newer plan's action in place of one that still waits for its slot. Of several in one plan the first counts.
    pub(super) fn replace_queued(&self, action: A, context: &A::Context, now: Timestamp) {
        let Some(in_flight) = self.in_flight.get(&action.key()) else {
            return;
        };
        let mut queued = in_flight.queued.lock();
        if queued.as_ref().is_some_and(|queued| queued.at < now) {
            *queued = Some(self.planned(action, context, now));
            in_flight.is_unplanned.store(false, Ordering::Release);
        }
    }

    /// Starts an action whose key is free.
    pub(super) fn start(&mut self, action: A, context: &A::Context, now: Timestamp) {
        let (key, lane, gate) = (action.key(), action.lane(), Arc::clone(&self.gate));
        let stops_when_unplanned = action.stops_when_unplanned();
        let queued: Queued<A> = Arc::new(Mutex::new(Some(self.planned(action, context, now))));
        let is_unplanned = Arc::new(AtomicBool::new(false));
        let in_flight = InFlight {
            started_at: now,
            queued: Arc::clone(&queued),
            stops_when_unplanned,
            is_unplanned: Arc::clone(&is_unplanned),
        };
        self.in_flight.insert(key.clone(), in_flight);
        let task = self.tasks.spawn(run(gate, lane, queued, is_unplanned));
        self.keys.insert(task.id(), key);
    }

    fn planned(&self, action: A, context: &A::Context, at: Timestamp) -> Planned<A> {
        Planned {
            action,
            context: context.clone(),
            policy: self.gate.policy(),
            at,
        }
    }

    /// Returns when an action has ended; never while none is under way. May be dropped and called again.
    pub(super) async fn wait(&mut self) {
        match self.tasks.join_next_with_id().await {
            Some(joined) => self.note(joined),
            None => std::future::pending().await,
        }
    }

    /// Takes the actions that have ended. From then on their keys are free.
    pub(super) fn take_ended(&mut self) -> Vec<Ended<A>> {
        while let Some(joined) = self.tasks.try_join_next_with_id() {
            self.note(joined);
        }
        // Not as soon as the task ends: until its outcome is known the key must not start again.
        for ended in &self.ended {
            self.in_flight.remove(&ended.key);
        }
        std::mem::take(&mut self.ended)
    }

    /// Waits for all actions.
    pub(super) async fn finish(&mut self) -> Vec<Ended<A>> {
        while let Some(joined) = self.tasks.join_next_with_id().await {
            self.note(joined);
        }
        self.take_ended()
    }

    fn note(&mut self, joined: Result<(Id, Option<A::Outcome>), JoinError>) {
        let (id, outcome) = match joined {
            Ok((id, outcome)) => (id, Ok(outcome)),
            Err(error) => (error.id(), Err(error)),
        };
        let Some(key) = self.keys.remove(&id) else {
            return;
        };
        let Some(started_at) = self.in_flight.get(&key).map(|in_flight| in_flight.started_at) else {
            return;
        };
        let outcome = outcome.unwrap_or_else(|error| {
            tracing::error!(action = %key, %error, "an action ended without an outcome");
            None
        });
        self.ended.push(Ended {
            key,
            started_at,
            outcome,
        });
    }
}

/// Hundreds of actions may wait for a slot at once, and a future takes the memory of its largest part: so the action's own is
/// boxed when it begins.
async fn run<A: Action>(
    gate: Arc<Gate>,
    lane: Lane,
    queued: Queued<A>,
    is_unplanned: Arc<AtomicBool>,
) -> Option<A::Outcome> {
    let slot = gate.slot(lane).await;
    // Taken only now: until its slot comes a newer plan may put another action in its place.
    let planned = queued.lock().take()?;
    let permits = Permits::new(gate, lane, planned.policy, is_unplanned, slot);
    Some(Box::pin(planned.action.run(planned.context, permits)).await)
}
