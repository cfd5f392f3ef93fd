//! drain-keeper: the real plan, and the steps of a forced pod as its executor takes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drain_keeper::action_tracker::ActionTracker;
use drain_keeper::clock::ClockWrite;
use drain_keeper::execute::force_pod::{record_patch, waits_for_eviction};
use drain_keeper::execute::preconditions::{VerifiedState, still_drains, still_due};
use drain_keeper::execute::{Forced, PodResult};
use drain_keeper::gate;
use drain_keeper::observe::claims_holds;
use drain_keeper::plan::budget_turn::{OverrideEvidence, may_override};
use drain_keeper::plan::{Action, ClockAction, PodAction, plan};
use drain_keeper::planned_pods::{PlannedDrain, PlannedPods};
use drain_keeper::policy::Policy;
use drain_keeper::settings::Settings;
use drain_keeper::snapshot::{LockKinds, NodePods, Snapshot};
use drain_lock::observe::Objects;
use jiff::SignedDuration;
use nodeward_api::annotation;
use nodeward_api::last_override::LastOverride;
use nodeward_core::budget::{BudgetView, Budgets};
use nodeward_core::drain::{NodeDrainView, NodeDrains};
use nodeward_core::id::{NodeName, NodeUid, PodUid};
use nodeward_core::ledger::Ledger;
use nodeward_core::node::NodeView;
use nodeward_core::pod::PodView;
use nodeward_core::signal::{SignalInputs, pdb_force_drain_timeout};
use nodeward_core::strategy::Remedy;
use nodeward_runtime::{ActionResult, ApiError, BackoffPolicy, Backoffs};
use serde_json::json;

use crate::api::{Eviction, Request, Response};
use crate::clock::{Millis, millis, timestamp};
use crate::world::{Event, World};

const USER: &str = "drain-keeper";

/// From one plan to the next at least.
const SPACING: Millis = 500;

const BACKOFF: BackoffPolicy = BackoffPolicy {
    first: SignedDuration::from_secs(1),
    limit: SignedDuration::from_secs(60),
};

/// What its watches show.
#[derive(Debug, Default)]
pub struct View {
    nodes: BTreeMap<String, Arc<NodeView>>,
    pods: BTreeMap<String, Arc<PodView>>,
    budgets: BTreeMap<String, Arc<BudgetView>>,
    drains: BTreeMap<NodeName, Result<Arc<NodeDrainView>, String>>,
    planned_pods: BTreeMap<NodeName, Arc<PlannedPods>>,
    ledger: Ledger,
}

impl View {
    /// A watch tells of objects.
    pub fn tell(&mut self, objects: &Objects, is_gone: bool) {
        for view in objects.nodes.iter().filter_map(NodeView::project) {
            self.nodes.insert(view.name.to_string(), Arc::new(view));
        }
        for view in objects.pods.iter().filter_map(PodView::project) {
            let name = view.key.name.to_string();
            if is_gone {
                self.pods.remove(&name);
            } else {
                self.pods.insert(name, Arc::new(view));
            }
        }
        for view in objects.budgets.iter().filter_map(BudgetView::project) {
            self.budgets.insert(view.key.name.to_string(), Arc::new(view));
        }
        for PlannedDrain { view, pods } in objects.drains.iter().filter_map(PlannedDrain::project) {
            if is_gone {
                self.drains.remove(&view.node);
                self.planned_pods.remove(&view.node);
            } else {
                self.planned_pods.insert(view.node.clone(), pods);
                self.drains.insert(view.node.clone(), Ok(view));
            }
        }
        if let Some(ledger) = &objects.ledger {
            self.ledger = Ledger::try_from(&ledger.spec).unwrap_or_default();
        }
    }

    fn pods_on(&self, node: &NodeName) -> Vec<Arc<PodView>> {
        self.pods
            .values()
            .filter(|pod| pod.node.as_ref() == Some(node))
            .cloned()
            .collect()
    }
}

/// drain-keeper's leader.
pub struct Keeper {
    policy: Policy,
    tracker: ActionTracker,
    backoffs: Backoffs<Key>,
    watched: BTreeSet<NodeName>,
    tasks: BTreeMap<u64, Running>,
    started: u64,
    planned_at: Millis,
    plans_at: Option<Millis>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Clock(NodeUid),
    Pod(PodUid),
}

struct Running {
    key: Key,
    action: Action,
    snapshot: Arc<Snapshot>,
    /// Whether its eviction was refused for a budget.
    is_refused: bool,
}

impl Keeper {
    /// As it is configured by this file.
    ///
    /// # Errors
    /// When the file is not one.
    pub fn new(config: &str, world: &mut World) -> anyhow::Result<Self> {
        let policy = Settings::parse(config)?.policy;
        let mut keeper = Self {
            tracker: ActionTracker::nothing(policy.forced_per_minute, false, timestamp(world.now)),
            policy,
            backoffs: Backoffs::new(BACKOFF),
            watched: BTreeSet::new(),
            tasks: BTreeMap::new(),
            started: 0,
            planned_at: -SPACING,
            plans_at: None,
        };
        keeper.wake(world, 0);
        Ok(keeper)
    }

    pub fn wake(&mut self, world: &mut World, at: Millis) {
        let at = at.max(self.planned_at + SPACING).max(world.now);
        if self.plans_at.is_none_or(|planned| at < planned) {
            self.plans_at = Some(at);
            world.after(at - world.now, Event::KeeperPlans);
        }
    }

    /// Plans, if it is time.
    pub fn plan(&mut self, world: &mut World) {
        if self.plans_at != Some(world.now) {
            return;
        }
        (self.plans_at, self.planned_at) = (None, world.now);
        let now = timestamp(world.now);
        let Some(view) = &world.keeper else { return };
        let memory = self.tracker.at(self.policy.forced_per_minute, now).clone();
        let drains = NodeDrains::Known(view.drains.clone());
        let signals = SignalInputs::at(now);
        let mut snapshot = Snapshot {
            nodes: view
                .nodes
                .values()
                .filter(|node| node.concerns_drains())
                .cloned()
                .collect(),
            pods: self
                .watched
                .iter()
                .map(|node| (node.clone(), NodePods::Synced(view.pods_on(node))))
                .collect(),
            budgets: Arc::new(Budgets::new(view.budgets.values().cloned())),
            pdb_force_drain_timeout: pdb_force_drain_timeout(&signals),
            signals,
            holds: claims_holds(view.ledger.claims(), &drains).into_iter().collect(),
            drains,
            planned_pods: view.planned_pods.clone(),
            lock_kinds: LockKinds {
                drains: true,
                ledger: true,
                holds: true,
            },
            memory,
            ..Snapshot::default()
        };
        self.tracker.compare(&mut snapshot, now);
        let plan = plan(&snapshot, &self.policy, now);
        self.tracker.planned(&plan);
        if self.watched != plan.watch_pods {
            self.watched.clone_from(&plan.watch_pods);
            self.wake(world, world.now);
        }
        for at in [plan.requeue_at, self.tracker.next_expiry()].into_iter().flatten() {
            self.wake(world, millis(at));
        }
        let snapshot = Arc::new(snapshot);
        for action in plan.actions {
            self.start(world, action, &snapshot);
        }
    }

    fn start(&mut self, world: &mut World, action: Action, snapshot: &Arc<Snapshot>) {
        let now = timestamp(world.now);
        let key = match &action {
            Action::WriteClock(action) => Key::Clock(action.node.uid.clone()),
            Action::Act(action) => Key::Pod(action.pod.uid.clone()),
        };
        if self.tasks.values().any(|running| running.key == key) {
            return;
        }
        if let Some(until) = self.backoffs.not_before(&key).filter(|until| now < *until) {
            self.wake(world, millis(until));
            return;
        }
        if let Action::Act(action) = &action {
            self.tracker.started(action, now);
        }
        self.started += 1;
        let snapshot = Arc::clone(snapshot);
        let running = Running {
            key,
            action,
            snapshot,
            is_refused: false,
        };
        self.tasks.insert(self.started, running);
        world.soon(2..60, Event::KeeperTask(self.started));
    }

    /// A task goes on.
    pub fn step(&mut self, world: &mut World, id: u64) {
        let Some(mut running) = self.tasks.remove(&id) else {
            return;
        };
        let now = timestamp(world.now);
        let is_done = match &running.action {
            Action::WriteClock(action) => {
                let result = write_clock(world, action);
                self.tracker.clock_completed(action, &result, now);
                matches!(result, ActionResult::Acted(()) | ActionResult::AlreadyDone)
            }
            Action::Act(action) => {
                let result = if running.is_refused {
                    self.force(world, action, &running.snapshot)
                } else {
                    evict(world, action)
                };
                let refused = matches!(result, ActionResult::Failed(ApiError::RefusedByBudget { .. }));
                let goes_on = action.strategy.remedy != Remedy::Evict && !running.is_refused;
                if goes_on && (refused || action.strategy.remedy != Remedy::EvictOrDelete) {
                    running.is_refused = true;
                    self.tasks.insert(id, running);
                    world.soon(5..60, Event::KeeperTask(id));
                    return;
                }
                let is_done = matches!(result, ActionResult::Acted(_) | ActionResult::AlreadyDone);
                let failures = self.backoffs.attempts(&running.key) + u32::from(!is_done);
                let retry_at = if is_done {
                    now
                } else {
                    self.backoffs.failed(running.key.clone(), now, None)
                };
                self.tracker.pod_completed(action, &result, retry_at, failures, now);
                is_done
            }
        };
        if is_done {
            self.backoffs.succeeded(&running.key);
        } else if matches!(running.action, Action::WriteClock(_)) {
            self.backoffs.failed(running.key.clone(), now, None);
        }
        self.wake(world, world.now);
    }

    /// Forces a pod that its budget does not let go, by what is read anew.
    fn force(&self, world: &mut World, action: &PodAction, snapshot: &Snapshot) -> PodResult {
        let now = timestamp(world.now);
        let outdated = |why: &str| ActionResult::Outdated(why.to_owned());
        let Some(node) = world.nodes.get(action.node.as_str()).and_then(NodeView::project) else {
            return outdated("the node is gone");
        };
        let planned = world.drains.get(action.node.as_str()).and_then(PlannedDrain::project);
        let drains = world.drains.values().filter_map(NodeDrainView::project);
        let drains = NodeDrains::Known(drains.map(|drain| (drain.node.clone(), Ok(Arc::new(drain)))).collect());
        let gates = gate::look(&node, &snapshot.signals, &drains, &self.policy);
        if let Err(why) = still_drains(action, &node, &gates) {
            return outdated(why);
        }
        let budgets = Budgets::new(world.budgets.values().filter_map(BudgetView::project).map(Arc::new));
        let state = VerifiedState {
            budgets: budgets.matching(&action.pod).into_iter().cloned().collect(),
            holds: claims_holds(world.ledger().claims(), &drains).into_iter().collect(),
            planned: planned
                .filter(|drain| drain.view.is_under_way_on(&node.uid))
                .map(|drain| drain.pods),
            workloads: None,
        };
        if let Err(why) = still_due(action, &node, &state, &BTreeSet::new(), snapshot, &self.policy, now) {
            return outdated(&why);
        }
        let Some(pod) = world.pod_by_uid(action.pod.uid.as_str()).cloned() else {
            return ActionResult::AlreadyDone;
        };
        let (grace, forced) = if action.strategy.remedy == Remedy::DeleteNow {
            (Some(0), Forced::DeletedNow)
        } else {
            let refusal = || ActionResult::Failed(ApiError::RefusedByBudget { retry_after: None });
            if state.budgets.is_empty() {
                return outdated("no budget selects the pod any more");
            }
            if waits_for_eviction(action, &state, now) {
                return refusal();
            }
            for budget in &state.budgets {
                let mut evidence = OverrideEvidence::of(budget, snapshot);
                let last = budget
                    .last_override
                    .as_ref()
                    .filter(|last| last.uid != action.pod.uid.as_str());
                let alive = last.filter(|last| world.pod_by_uid(&last.uid).is_some());
                evidence.alive.extend(alive.map(|last| PodUid::from(last.uid.as_str())));
                if may_override(budget, &action.pod, &evidence, self.policy.override_spacing, now).is_err() {
                    return refusal();
                }
            }
            for budget in &state.budgets {
                let record = LastOverride {
                    at: now,
                    pod: pod.name.clone(),
                    uid: pod.uid.clone(),
                    strategy: action.strategy.name.to_string(),
                    replica: USER.to_owned(),
                    signal: action.signal.to_string(),
                };
                let (name, patch) = (budget.key.name.to_string(), record_patch(budget, &record));
                if world.submit(USER, Request::PatchBudget { name, patch }) != Response::Done {
                    return outdated("a budget has changed");
                }
            }
            let keys = state.budgets.iter().map(|budget| budget.key.clone());
            (None, Forced::BudgetOverridden(keys.collect()))
        };
        world.judge_force(&pod);
        world.tell(|| format!("drain-keeper forces {} off {}", pod.name, action.node));
        let version = action.pod.resource_version.as_str().to_owned();
        let request = Request::DeletePod {
            name: pod.name,
            uid: pod.uid,
            version,
            grace,
        };
        match world.submit(USER, request).result() {
            Ok(()) => ActionResult::Acted(forced),
            Err(error) => error.into(),
        }
    }
}

fn evict(world: &mut World, action: &PodAction) -> PodResult {
    if !matches!(action.strategy.remedy, Remedy::Evict | Remedy::EvictOrDelete) {
        return ActionResult::AlreadyDone;
    }
    let eviction = Eviction {
        pod: action.pod.key.name.to_string(),
        uid: Some(action.pod.uid.to_string()),
        has_waited: true,
        ..Eviction::default()
    };
    if world.pod_by_uid(action.pod.uid.as_str()).is_none() {
        return ActionResult::AlreadyDone;
    }
    match world.submit(USER, Request::Evict(eviction)).result() {
        Ok(()) => ActionResult::Acted(Forced::Evicted),
        Err(error) => error.into(),
    }
}

/// Its patch insists on the annotation that it replaces.
fn write_clock(world: &mut World, action: &ClockAction) -> ActionResult {
    let name = action.node.name.to_string();
    let key = annotation::DRAIN_CLOCK;
    let present = world
        .nodes
        .get(&name)
        .and_then(|node| node.metadata.annotations.as_ref()?.get(key).cloned());
    if present.as_ref() != action.node.annotations.get(key) {
        return ActionResult::Failed(ApiError::Conflict);
    }
    let value = match &action.write {
        ClockWrite::Set(clock) => Some(clock.to_string()),
        ClockWrite::Remove => None,
    };
    world.tell(|| format!("drain-keeper's clock of {name}: {}", value.as_deref().unwrap_or("none")));
    let patch = json!({ "metadata": { "uid": action.node.uid, "annotations": { key: value } } });
    match world.submit(USER, Request::PatchNode { name, patch }).result() {
        Ok(()) => ActionResult::Acted(()),
        Err(error) => error.into(),
    }
}
