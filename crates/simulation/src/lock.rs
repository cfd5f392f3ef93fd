//! drain-lock's leader: the real plan and the real ledger, with the steps between them as its executor takes them. Reads and
//! writes are apart in time, and it may die at any write.

mod execute;

use std::collections::BTreeMap;
use std::sync::Arc;

use drain_lock::action_tracker::{ActionTracker, BACKOFF};
use drain_lock::execute::ledger::Read;
use drain_lock::execute::{Task, TaskKey};
use drain_lock::plan::verdict::DrainVerdict;
use drain_lock::plan::{PodEviction, plan};
use drain_lock::report::status;
use drain_lock::snapshot::{Snapshot, SnapshotScope};
use nodeward_runtime::{Action as _, ActionResult, Backoffs, LeaderState};

use crate::clock::{Millis, SECOND, millis, timestamp};
use crate::world::{Event, REPLICAS, World};

/// From one plan to the next at least. The real one is shorter; what that changes is only how much work a run is.
const SPACING: Millis = 200;

/// A status is written so often at most.
const STATUS_EVERY: Millis = SECOND;

/// The leader.
pub struct Lock {
    /// Counts the leaders: what an earlier one has begun is dropped.
    term: u64,
    replica: usize,
    leads: bool,
    since: Millis,
    tracker: ActionTracker,
    backoffs: Backoffs<TaskKey>,
    tasks: BTreeMap<u64, Running>,
    started: u64,
    statuses: BTreeMap<String, Millis>,
    /// Verdicts that the statuses say already.
    said: BTreeMap<String, DrainVerdict>,
    planned_at: Millis,
    /// When it plans next.
    plans_at: Option<Millis>,
}

/// A task under way.
struct Running {
    key: TaskKey,
    task: Task,
    snapshot: Arc<Snapshot>,
    stage: Stage,
}

/// How far it has come.
enum Stage {
    /// It has yet to read.
    Reads,
    /// It has read this, and writes.
    Settles(Box<Read>),
    /// Of these pods it has read that they may be evicted.
    Evicts(Vec<(PodEviction, bool)>),
    Writes,
}

/// That the leader died.
struct Died;

impl Lock {
    /// The first leader.
    pub fn new(world: &mut World) -> Self {
        let mut lock = Self {
            term: 0,
            replica: 0,
            leads: false,
            since: 0,
            tracker: ActionTracker::nothing(),
            backoffs: Backoffs::new(BACKOFF),
            tasks: BTreeMap::new(),
            started: 0,
            statuses: BTreeMap::new(),
            said: BTreeMap::new(),
            planned_at: -SPACING,
            plans_at: None,
        };
        lock.lead(world);
        lock
    }

    /// This process takes the lead, and knows nothing but what its watches show.
    pub fn lead(&mut self, world: &mut World) {
        (self.leads, self.since) = (true, world.now);
        self.tracker = ActionTracker::nothing();
        self.backoffs = Backoffs::new(BACKOFF);
        self.statuses.clear();
        self.said.clear();
        self.wake(world, world.now);
    }

    fn die(&mut self, world: &mut World) {
        world.tell(|| "drain-lock's leader dies".to_owned());
        world.replicas[self.replica].restart();
        self.leads = false;
        self.term += 1;
        self.replica = (self.replica + 1) % REPLICAS;
        self.tasks.clear();
        self.plans_at = None;
        world.soon(2 * SECOND..20 * SECOND, Event::LockLeads);
    }

    /// A watch of its process has told of something.
    pub fn told(&mut self, world: &mut World, replica: usize) {
        if replica == self.replica {
            self.wake(world, world.now);
        }
    }

    fn wake(&mut self, world: &mut World, at: Millis) {
        let at = at.max(self.planned_at + SPACING).max(world.now);
        if self.leads && self.plans_at.is_none_or(|planned| at < planned) {
            self.plans_at = Some(at);
            world.after(at - world.now, Event::LockPlans(self.term));
        }
    }

    /// Plans, if it is time.
    pub fn plan(&mut self, world: &mut World, term: u64) {
        if term != self.term || self.plans_at != Some(world.now) {
            return;
        }
        (self.plans_at, self.planned_at) = (None, world.now);
        let now = timestamp(world.now);
        let (cache, policy) = (
            Arc::clone(&world.replicas[self.replica].cache),
            world.replicas[self.replica].policy.clone(),
        );
        let scope = SnapshotScope {
            budgets: cache.annotated_budgets().into_iter().collect(),
            ..SnapshotScope::default()
        };
        let Some(mut snapshot) = cache.snapshot(&scope, now) else {
            return;
        };
        snapshot.leases = None;
        let snapshot = Arc::new(snapshot);
        let leads = LeaderState::Leading {
            since: timestamp(self.since),
            unrenewed_for: std::time::Duration::ZERO,
            leaderless_for: std::time::Duration::ZERO,
        };
        self.tracker.leads(leads, None, now);
        let mut plan = plan(&snapshot, self.tracker.at(now), &policy, now);
        self.tracker.planned(&mut plan, now);
        let ledger = plan.ledger.take().map(|write| Task::Ledger(Box::new(write)));
        let actions = std::mem::take(&mut plan.actions).into_iter().map(Task::Act);
        let tasks: Vec<Task> = ledger.into_iter().chain(actions).collect();
        for task in tasks {
            self.start(world, task, &snapshot, now);
        }
        for verdict in plan.drains {
            let name = verdict.node.to_string();
            // Nothing has come of the same verdict before: most of the work is to find that out.
            if self.said.get(&name) == Some(&verdict) {
                continue;
            }
            let Some(update) = status::of_drain(&verdict, &snapshot.facts, now) else {
                self.said.insert(name, verdict);
                continue;
            };
            let next = self
                .statuses
                .get(&name)
                .map_or(world.now, |written| written + STATUS_EVERY);
            if next <= world.now {
                self.statuses.insert(name, world.now);
                self.start(world, Task::StatusUpdate(update), &snapshot, now);
            } else {
                self.wake(world, next);
            }
        }
        if let Some(at) = plan.requeue_at {
            self.wake(world, millis(at));
        }
    }

    fn start(&mut self, world: &mut World, task: Task, snapshot: &Arc<Snapshot>, now: jiff::Timestamp) {
        let key = task.key();
        if self.tasks.values().any(|running| running.key == key) {
            return;
        }
        if let Some(until) = self.backoffs.not_before(&key).filter(|until| now < *until) {
            self.wake(world, millis(until));
            return;
        }
        self.tracker.started(&task.pods(), now);
        self.started += 1;
        let running = Running {
            key,
            task,
            snapshot: Arc::clone(snapshot),
            stage: Stage::Reads,
        };
        self.tasks.insert(self.started, running);
        world.soon(2..30, Event::LockTask(self.started));
    }

    /// A task goes on: it reads, or writes by what it has read.
    pub fn step(&mut self, world: &mut World, id: u64) {
        let Some(mut running) = self.tasks.remove(&id) else {
            return;
        };
        if matches!(running.stage, Stage::Reads) {
            running.stage = execute::read(world, &running);
            self.tasks.insert(id, running);
            world.soon(2..40, Event::LockTask(id));
            return;
        }
        let key = running.key.clone();
        let Ok(outcome) = execute::write(world, running) else {
            self.die(world);
            return;
        };
        let now = timestamp(world.now);
        self.tracker.completed(&key, &outcome, now);
        match &outcome.done {
            ActionResult::Acted(()) | ActionResult::AlreadyDone => self.backoffs.succeeded(&key),
            ActionResult::Stopped(_) => {}
            ActionResult::Failed(error) => {
                self.backoffs.failed(key, now, error.retry_after());
            }
            ActionResult::Outdated(_) => {
                self.backoffs.failed(key, now, None);
            }
        }
        self.wake(world, world.now);
    }
}
