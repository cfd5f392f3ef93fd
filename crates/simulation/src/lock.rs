//! drain-lock's leader: the real plan and the real ledger, with the steps between them as its executor takes them. Reads and
//! writes are apart in time, and it may die at any write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drain_lock::action_tracker::{ActionTracker, BACKOFF};
use drain_lock::execute::drain::{adoption, contradiction, released, without_our_finalizer};
use drain_lock::execute::ledger::{Read, settle};
use drain_lock::execute::{Eviction as Evicted, StatusUpdate, Task, TaskKey, TaskOutcome, node};
use drain_lock::plan::need::Class;
use drain_lock::plan::node_markers::{ConditionWrite, DRAIN_CONDITIONS};
use drain_lock::plan::recovery::is_replaced;
use drain_lock::plan::residents::{Resident, in_the_way};
use drain_lock::plan::verdict::DrainVerdict;
use drain_lock::plan::{Action, GonePod, LedgerWrite, PodEviction, plan};
use drain_lock::report::status;
use drain_lock::snapshot::{Snapshot, SnapshotScope};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodeward_api::drain_ledger::DrainLedgerSpec;
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::whole_second;
use nodeward_core::id::BudgetKey;
use nodeward_core::ledger::Fence;
use nodeward_runtime::{Action as _, ActionResult, ApiError, Backoffs, LeaderState};
use serde_json::json;

use crate::api::{Eviction, Request};
use crate::clock::{Millis, SECOND, millis, stored, timestamp};
use crate::webhook::OWN_USER;
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
        };
        self.tracker.leads(leads, None);
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
    pub fn go_on(&mut self, world: &mut World, id: u64) {
        let Some(mut running) = self.tasks.remove(&id) else {
            return;
        };
        if matches!(running.stage, Stage::Reads) {
            running.stage = read(world, &running);
            self.tasks.insert(id, running);
            world.soon(2..40, Event::LockTask(id));
            return;
        }
        let key = running.key.clone();
        let Ok(outcome) = Self::write(world, running) else {
            self.die(world);
            return;
        };
        let now = timestamp(world.now);
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
        self.tracker.completed(&outcome, now);
        self.wake(world, world.now);
    }

    /// Sends a write, and may die before or after it.
    fn submit(world: &mut World, request: Request) -> Result<ActionResult, Died> {
        let (dies, before) = (world.happens(world.faults.death), world.rng.bool());
        if dies && before {
            return Err(Died);
        }
        let response = world.submit(OWN_USER, request);
        if dies {
            return Err(Died);
        }
        Ok(match response.result() {
            Ok(()) => ActionResult::Acted(()),
            Err(error) => error.into(),
        })
    }

    fn write(world: &mut World, running: Running) -> Result<TaskOutcome, Died> {
        let snapshot = running.snapshot;
        Ok(match (running.task, running.stage) {
            (Task::Ledger(mut write), Stage::Settles(read)) => {
                let settled = settle(&mut write, *read, timestamp(world.now));
                settled.written(swap(world, &write)?)
            }
            (Task::Act(Action::Evict { .. }), Stage::Evicts(pods)) => evict(world, pods, None)?,
            (Task::Act(Action::EvictHeld { fence, .. }), Stage::Evicts(pods)) => evict(world, pods, Some(fence))?,
            (Task::Act(Action::Node(write)), _) => {
                let name = write.node.name.to_string();
                let Some(present) = world.nodes.get(&name) else {
                    return Ok(ActionResult::AlreadyDone.into());
                };
                let seen = snapshot.drains.get(name.as_str()).map(Arc::as_ref);
                if node::contradicts_lift(&write, seen, world.drains.get(&name).map(|drain| &drain.metadata)) {
                    return Ok(ActionResult::Outdated("the node has a drain that was not seen".to_owned()).into());
                }
                match node::patch(present, &write, whole_second(timestamp(world.now))) {
                    Err(contradiction) => ActionResult::Outdated(contradiction.to_owned()).into(),
                    Ok(None) => ActionResult::AlreadyDone.into(),
                    Ok(Some(patch)) => Self::submit(world, Request::PatchNode { name, patch })?.into(),
                }
            }
            (Task::Act(Action::Conditions(write)), _) => write_conditions(world, &write).into(),
            (Task::Act(Action::Adopt { drain, node_uid }), _) => {
                let (name, patch) = (drain.spec.node_name.clone(), adoption(&drain, &node_uid));
                Self::submit(world, Request::PatchDrain { name, patch })?.into()
            }
            (Task::Act(Action::Delete { drain, reason }), _) => {
                let node = world.truth.node(&drain.spec.node_name);
                let is_about_node = matches!(reason, LockReason::NodeGone | LockReason::Uncordoned);
                match contradiction(&drain, reason, node.as_deref()).filter(|_| is_about_node) {
                    Some(contradiction) => ActionResult::Outdated(contradiction.to_owned()).into(),
                    None => Self::submit(
                        world,
                        Request::DeleteDrain {
                            name: drain.spec.node_name.clone(),
                            uid: drain.metadata.uid.clone(),
                            version: drain.metadata.resource_version.clone(),
                        },
                    )?
                    .into(),
                }
            }
            (Task::Act(Action::Finish { drain }), _) => {
                let (name, patch) = (drain.spec.node_name.clone(), released(&drain));
                let written = Self::submit(
                    world,
                    Request::PatchDrain {
                        name: name.clone(),
                        patch,
                    },
                )?;
                match world.drains.get(&name).map(without_our_finalizer) {
                    Some(patch) if written == ActionResult::Acted(()) => {
                        Self::submit(world, Request::PatchDrain { name, patch })?.into()
                    }
                    _ => written.into(),
                }
            }
            (Task::Act(Action::Touch(touch)), _) => {
                let name = touch.budget.name.to_string();
                let patch = json!({ "metadata": { "annotations": { "nodeward.dev/locked-by": touch.annotation } } });
                Self::submit(world, Request::PatchBudget { name, patch })?.into()
            }
            (Task::StatusUpdate(StatusUpdate::Drain { name, uid, status }), _) => {
                let patch = json!({ "metadata": { "uid": uid }, "status": status });
                Self::submit(world, Request::PatchDrain { name, patch })?.into()
            }
            _ => ActionResult::AlreadyDone.into(),
        })
    }
}

/// What a task reads by quorum before it writes.
fn read(world: &World, running: &Running) -> Stage {
    match &running.task {
        Task::Ledger(write) => Stage::Settles(Box::new(quorum(world, &running.snapshot, write))),
        // Who bears the pod's name now.
        Task::Act(Action::Evict { eviction }) => {
            let is_there = world.pod_by_uid(eviction.pod.uid.as_str()).is_some();
            Stage::Evicts(vec![(eviction.clone(), is_there)])
        }
        Task::Act(Action::EvictHeld {
            node_uid, fence, pods, ..
        }) => {
            let ledger = world.ledger();
            let may = |pod: &str| ledger.may_evict(node_uid.as_str(), *fence, pod) && world.pod_by_uid(pod).is_some();
            let pods = pods
                .iter()
                .map(|eviction| (eviction.clone(), may(eviction.pod.uid.as_str())));
            Stage::Evicts(pods.collect())
        }
        _ => Stage::Writes,
    }
}

/// What a write of the ledger rests on.
fn quorum(world: &World, snapshot: &Snapshot, write: &LedgerWrite) -> Read {
    let (truth, now) = (&world.truth, timestamp(world.now));
    let mut facts = snapshot.facts.clone();
    let needs = write
        .next
        .claims()
        .iter()
        .flat_map(nodeward_core::ledger::Claim::budgets);
    let keys: BTreeSet<BudgetKey> = facts.keys().cloned().chain(needs).collect();
    for key in keys {
        match truth.budget_facts(&key, now) {
            Some(fresh) => _ = facts.insert(key, fresh),
            None => _ = facts.remove(&key),
        }
    }
    let mut doubted = BTreeMap::new();
    let mut doubt =
        |uid: &nodeward_core::id::NodeUid, why: String| _ = doubted.insert(uid.clone(), ActionResult::Outdated(why));
    for gone in &write.gone {
        let there = truth.pod(&gone.key.namespace, &gone.key.name);
        if there.is_some_and(|pod| pod.uid.as_str() == gone.uid && pod.deletion.is_none() && !pod.is_finished()) {
            doubt(
                &gone.node_uid,
                format!("pod {} was taken for gone and is there", gone.key),
            );
        }
        if let Some(false) = is_replaced_by_number(snapshot, write, gone, &facts) {
            doubt(&gone.node_uid, format!("no pod is in the place of {}", gone.key));
        }
    }
    for ask in &write.drained {
        let node = truth.node(ask.node.as_str());
        let drain = truth.drain(ask.node.as_str());
        let residents = truth
            .pods_on(ask.node.as_str())
            .into_iter()
            .filter(|pod| !pod.is_finished())
            .map(|pod| Resident {
                class: match &node {
                    Some(node) => Class::in_drain(&pod, node, drain.as_deref()),
                    None => Class::by_itself(&pod),
                },
                budgets: truth.budgets_of(&pod).iter().map(|budget| budget.reference()).collect(),
                pod: (*pod).clone(),
            });
        let residents: Vec<Resident> = residents.collect();
        if let Some(why) = write
            .next
            .claim(ask.node_uid.as_str())
            .and_then(|claim| in_the_way(claim, &residents))
        {
            doubt(&ask.node_uid, why);
        }
    }
    for called_off in &write.called_off {
        let node = truth.node(called_off.node.as_str());
        if !node.is_some_and(|node| node.uid == called_off.node_uid && node.boot_id == called_off.boot_id && node.ready)
        {
            doubt(&called_off.node_uid, format!("node {} may be down", called_off.node));
        }
    }
    for (node, uid) in &write.absent {
        let seen = snapshot
            .drains
            .get(node)
            .and_then(|drain| drain.metadata.uid.as_deref());
        let drain = truth.drain(node.as_str());
        if drain
            .is_some_and(|drain| drain.metadata.uid.as_deref() != seen && drain.metadata.deletion_timestamp.is_none())
        {
            doubt(uid, format!("the drain of node {node} was taken for gone and is there"));
        }
    }
    Read {
        facts,
        doubted,
        scales: Vec::new(),
    }
}

/// Whether the number of a budget's pods tells that there is another in the place of one that is gone; `None`: it is not asked.
fn is_replaced_by_number(
    snapshot: &Snapshot,
    write: &LedgerWrite,
    gone: &GonePod,
    facts: &nodeward_core::ledger::Facts,
) -> Option<bool> {
    let (pdb, base) = (gone.by_number_of.as_ref()?, write.base.as_deref()?);
    let claim = base.ledger.claim(gone.node_uid.as_str())?;
    let held = claim.holds.iter().find(|held| held.pdb == *pdb)?;
    let pod = held.pods.iter().find(|pod| pod.uid == gone.uid)?;
    Some(is_replaced(
        held,
        pod,
        Some(base),
        facts.get(&BudgetKey::from(pdb)),
        &snapshot.held,
    ))
}

/// The compare-and-swap of the ledger, whose answer may be lost.
fn swap(world: &mut World, write: &LedgerWrite) -> Result<ActionResult, Died> {
    let read = write
        .base
        .as_ref()
        .map(|base| (base.uid.to_string(), base.resource_version.as_str().to_owned()));
    let is_so = match &write.base {
        Some(base) => base.ledger == write.next,
        None => write.next.claims().is_empty(),
    };
    if is_so {
        return Ok(ActionResult::AlreadyDone);
    }
    let spec = Box::new(DrainLedgerSpec::from(&write.next));
    let done = Lock::submit(world, Request::SwapLedger { read, spec })?;
    if world.happens(world.faults.lost_answer) {
        world.tell(|| "the answer to a write of the ledger is lost".to_owned());
        return Ok(ActionResult::Failed(ApiError::Timeout));
    }
    Ok(done)
}

/// Evicts those of the pods that may go.
fn evict(world: &mut World, pods: Vec<(PodEviction, bool)>, fence: Option<Fence>) -> Result<TaskOutcome, Died> {
    let mut outcome = TaskOutcome::from(ActionResult::Acted(()));
    for (eviction, may_go) in pods {
        let request = Eviction {
            pod: eviction.pod.key.name.to_string(),
            uid: Some(eviction.pod.uid.to_string()),
            ticket: fence.map(|fence| fence.to_string()),
            has_waited: false,
        };
        let done = if may_go {
            Lock::submit(world, Request::Evict(request))?
        } else if fence.is_some() {
            ActionResult::Outdated("its grant is no longer in force".to_owned())
        } else {
            ActionResult::AlreadyDone
        };
        outcome.evictions.push(Evicted {
            pod: eviction.pod,
            node: eviction.node,
            done,
            deleted: false,
        });
    }
    Ok(outcome)
}

fn write_conditions(world: &mut World, write: &ConditionWrite) -> ActionResult {
    let Some(mut node) = world.nodes.get(write.node.name.as_str()).cloned() else {
        return ActionResult::AlreadyDone;
    };
    let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
    conditions.retain(|condition| !DRAIN_CONDITIONS.contains(&condition.type_.as_str()));
    let now = Time(stored(world.now));
    let wanted = write.progress.iter().flat_map(|progress| progress.conditions());
    conditions.extend(
        wanted.map(|(kind, holds, reason)| k8s_openapi::api::core::v1::NodeCondition {
            type_: kind.to_owned(),
            status: if holds { "True" } else { "False" }.to_owned(),
            reason: Some(reason.to_owned()),
            last_transition_time: Some(now.clone()),
            ..k8s_openapi::api::core::v1::NodeCondition::default()
        }),
    );
    world.put_node(node);
    ActionResult::Acted(())
}
