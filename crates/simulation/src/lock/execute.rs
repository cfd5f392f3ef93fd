//! What a task of the leader reads and writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drain_lock::execute::drain::{adoption, contradiction, without_our_finalizer};
use drain_lock::execute::ledger::{Read, settle};
use drain_lock::execute::{Eviction as Evicted, StatusUpdate, Task, TaskOutcome, node};
use drain_lock::observe::project_node;
use drain_lock::plan::need::Class;
use drain_lock::plan::node_markers::{ChangedCondition, NodeWrite, changed_conditions};
use drain_lock::plan::recovery::is_replaced;
use drain_lock::plan::residents::{Resident, in_the_way};
use drain_lock::plan::{Action, GonePod, LedgerWrite, PodEviction};
use drain_lock::snapshot::Snapshot;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodeward_api::annotation;
use nodeward_api::drain_ledger::DrainLedgerSpec;
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::whole_second;
use nodeward_core::id::{BudgetKey, NodeUid};
use nodeward_core::ledger::{Claim, Facts, Fence};
use nodeward_runtime::{ActionResult, ApiError};
use serde_json::json;

use crate::api::{Eviction, Request};
use crate::clock::{stored, timestamp};
use crate::webhook::OWN_USER;
use crate::world::World;

use super::{Died, Running, Stage};

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

/// A task writes by what it has read.
///
/// # Errors
/// When the leader dies of it.
pub(super) fn write(world: &mut World, running: Running) -> Result<TaskOutcome, Died> {
    let snapshot = running.snapshot;
    Ok(match (running.task, running.stage) {
        (Task::Ledger(mut write), Stage::Settles(read)) => {
            let settled = settle(&mut write, *read, timestamp(world.now));
            settled.written(swap(world, &write)?)
        }
        (Task::Act(Action::Evict { .. } | Action::AskOwner { .. }), Stage::Evicts(pods)) => evict(world, pods, None)?,
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
            let spec = match node::patch(present, &write, whole_second(timestamp(world.now))) {
                Err(contradiction) => ActionResult::Outdated(contradiction.to_owned()),
                Ok(None) => ActionResult::Acted(()),
                Ok(Some(patch)) => submit(world, Request::PatchNode { name, patch })?,
            };
            match spec {
                ActionResult::Acted(()) => write_conditions(world, &write).into(),
                failed => failed.into(),
            }
        }
        (Task::Act(Action::Adopt { drain, node_uid }), _) => {
            let (name, patch) = (drain.spec.node_name.clone(), adoption(&drain, &node_uid));
            submit(world, Request::PatchDrain { name, patch })?.into()
        }
        (Task::Act(Action::Delete { drain, reason }), _) => {
            let node = world.truth.node(&drain.spec.node_name);
            let is_about_node = matches!(reason, LockReason::NodeGone | LockReason::Uncordoned);
            match contradiction(&drain, reason, node.as_deref()).filter(|_| is_about_node) {
                Some(contradiction) => ActionResult::Outdated(contradiction.to_owned()).into(),
                None => submit(
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
            let (name, patch) = (drain.spec.node_name.clone(), without_our_finalizer(&drain));
            submit(world, Request::PatchDrain { name, patch })?.into()
        }
        (Task::Act(Action::Touch(touch)), _) => {
            let name = touch.budget.name.to_string();
            let patch = json!({ "metadata": { "annotations": { annotation::LOCKED_BY: touch.annotation } } });
            submit(world, Request::PatchBudget { name, patch })?.into()
        }
        (Task::StatusUpdate(StatusUpdate::Drain { name, uid, status }), _) => {
            let patch = json!({ "metadata": { "uid": uid }, "status": status });
            submit(world, Request::PatchDrain { name, patch })?.into()
        }
        _ => ActionResult::AlreadyDone.into(),
    })
}

/// What a task reads by quorum before it writes.
pub(super) fn read(world: &World, running: &Running) -> Stage {
    match &running.task {
        Task::Ledger(write) => Stage::Settles(Box::new(quorum(world, &running.snapshot, write))),
        // Who bears the pod's name now.
        Task::Act(Action::Evict { eviction } | Action::AskOwner { eviction, .. }) => {
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
    let needs = write.next.claims().iter().flat_map(Claim::budgets);
    let keys: BTreeSet<BudgetKey> = facts.keys().cloned().chain(needs).collect();
    for key in keys {
        match truth.budget_facts(&key, now) {
            Some(fresh) => _ = facts.insert(key, fresh),
            None => _ = facts.remove(&key),
        }
    }
    let mut doubted = BTreeMap::new();
    let mut doubt = |uid: &NodeUid, why: String| _ = doubted.insert(uid.clone(), ActionResult::Outdated(why));
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
                class: Class::in_drain(&pod, node.as_deref(), drain.as_deref(), timestamp(world.now)),
                budgets: truth.budgets_of(&pod).iter().map(|budget| budget.reference()).collect(),
                pod: (*pod).clone(),
            });
        let residents: Vec<Resident> = residents.collect();
        if let Some(why) = write
            .next
            .claim(ask.node_uid.as_str())
            .and_then(|claim| in_the_way(claim, &residents, &ask.unclaimed))
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
fn is_replaced_by_number(snapshot: &Snapshot, write: &LedgerWrite, gone: &GonePod, facts: &Facts) -> Option<bool> {
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
    let done = submit(world, Request::SwapLedger { read, spec })?;
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
            submit(world, Request::Evict(request))?
        } else if fence.is_some() {
            ActionResult::Outdated("its grant is no longer in force".to_owned())
        } else {
            ActionResult::AlreadyDone
        };
        outcome.evictions.push(Evicted {
            pod: eviction.pod,
            node: eviction.node,
            done,
        });
    }
    Ok(outcome)
}

fn write_conditions(world: &mut World, write: &NodeWrite) -> ActionResult {
    let Some(mut node) = world.nodes.get(write.node.name.as_str()).cloned() else {
        return ActionResult::AlreadyDone;
    };
    let changes = project_node(&node).map(|node| changed_conditions(&node, write.progress));
    let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
    let now = stored(world.now);
    for change in changes.into_iter().flatten() {
        let (ChangedCondition::Set { kind, .. } | ChangedCondition::Removed(kind)) = change;
        conditions.retain(|condition| condition.type_ != kind);
        if let ChangedCondition::Set {
            status, reason, since, ..
        } = change
        {
            conditions.push(NodeCondition {
                type_: kind.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                last_transition_time: Some(Time(since.unwrap_or(now))),
                ..NodeCondition::default()
            });
        }
    }
    world.put_node(node);
    ActionResult::Acted(())
}
