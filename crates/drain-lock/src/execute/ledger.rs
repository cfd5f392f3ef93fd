//! The ledger: one compare-and-swap a pass, with every grant in it resting on what was read by quorum just before.

use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PostParams};
use nodeward_api::drain_ledger::{self, DrainLedger, DrainLedgerSpec};
use nodeward_api::reason::LockReason;
use nodeward_core::id::NodeUid;
use nodeward_core::ledger::{Facts, HeldPod, Lost};
use nodeward_runtime::{ApiError, Stop};
use serde_json::json;

use crate::plan::eviction_budget::take_out;
use crate::plan::verdict::{Announcement, in_words};
use crate::plan::{ConfirmAsk, DrainedAsk, LedgerWrite};
use crate::snapshot::LedgerFacts;

use super::fresh;
pub use super::fresh::Read;
use super::{ActionResult, ExecutorContext, TaskOutcome, Written};

/// Confirms, grants, writes. A claim whose reads failed, or do not bear the plan out, is left as it is, and the rest is
/// written.
pub(super) async fn write(context: &ExecutorContext, mut write: LedgerWrite) -> TaskOutcome {
    let read = fresh::read(context, &write).await;
    let settled = settle(&mut write, read, Timestamp::now());
    let mut outcome = settled.written(compare_and_swap(context, &write).await.into());
    if outcome.done.may_have_acted() {
        outcome.written_bytes = write.next.stored_bytes();
    }
    outcome
}

/// What is to be written by what was read by quorum just before, and what comes of it once it is written. Pure.
pub fn settle(write: &mut LedgerWrite, read: Read, now: Timestamp) -> TaskOutcome {
    let asked = write.reading_claims();
    let Read {
        mut facts,
        doubted,
        scales,
    } = read;
    for (node_uid, doubt) in &doubted {
        tracing::debug!(%node_uid, ?doubt, "its claim is left as it is");
        write.leave_out(node_uid);
    }
    for (pdb, scale) in scales {
        write.next.note_scale(&pdb, scale.expected_pods, scale.owners);
    }
    take_out(&mut facts, &write.leaving);
    let confirms = std::mem::take(&mut write.confirms);
    for ask in &confirms {
        confirm(write, ask, &facts, now);
    }
    let drained = std::mem::take(&mut write.drained);
    for ask in &drained {
        confirm_drained(write, ask, &facts, now);
    }
    // What was returned is asked for again, and other processes know of it what is stored.
    write.next.count_needs(&facts);
    let (mut granted, mut refused_grants) = (Vec::new(), Vec::new());
    for ask in &write.grants {
        match write.next.try_grant(ask.node_uid.as_str(), &ask.boot_id, &facts, now) {
            Ok(_) => {
                write.next.take_node_groups(ask.node_uid.as_str(), &ask.node_groups);
                granted.push(ask.node_uid.clone());
            }
            Err(obstacles) => refused_grants.push((ask.node_uid.clone(), obstacles)),
        }
    }
    TaskOutcome {
        granted,
        refused_grants,
        announcements: std::mem::take(&mut write.announcements),
        checked: asked.into_iter().filter(|uid| !doubted.contains_key(uid)).collect(),
        doubted: doubted.into_iter().map(|(uid, doubt)| (uid, why(doubt))).collect(),
        scales_read: write.scales.iter().cloned().collect(),
        ..ActionResult::Acted(()).into()
    }
}

fn why(doubt: ActionResult) -> String {
    match doubt {
        ActionResult::Failed(error) => error.to_string(),
        ActionResult::Outdated(contradiction) => contradiction,
        other => format!("{other:?}"),
    }
}

/// Confirms a grant whose disruptions are all there still. Otherwise those of pods that run are returned, and it waits again.
fn confirm(write: &mut LedgerWrite, ask: &ConfirmAsk, facts: &Facts, now: Timestamp) {
    let uid = ask.node_uid.as_str();
    let is_down = |pod: &HeldPod| ask.down.contains(&pod.uid);
    let (reason, note) = match write.next.confirm(uid, ask.grant, facts, &is_down, now) {
        Ok(()) => (LockReason::Granted, "all of its disruptions are granted".to_owned()),
        Err(lost) => match returned(&lost) {
            Some(note) => (LockReason::GrantLost, note),
            None => return,
        },
    };
    announce(write, &ask.node_uid, reason, note);
}

/// Notes that a node is drained, if the disruptions of the pods that stay on it are there still. Otherwise it waits again.
fn confirm_drained(write: &mut LedgerWrite, ask: &DrainedAsk, facts: &Facts, now: Timestamp) {
    let uid = ask.node_uid.as_str();
    let is_down = |pod: &HeldPod| ask.down.contains(&pod.uid);
    let confirmed = write
        .next
        .confirm_drained(uid, ask.fence, &ask.boot_id, facts, &is_down, now);
    if let Some(note) = confirmed.err().as_ref().and_then(returned) {
        announce(write, &ask.node_uid, LockReason::GrantLost, note);
    }
}

fn returned(lost: &Lost) -> Option<String> {
    match lost {
        Lost::Returned { obstacles, kept } => {
            let why = in_words(obstacles);
            Some(format!(
                "its disruptions are returned ({kept} stay), and it waits under its ticket: {why}"
            ))
        }
        Lost::NotGranted => None,
    }
}

fn announce(write: &mut LedgerWrite, node_uid: &NodeUid, reason: LockReason, note: String) {
    let claim = write.next.claim(node_uid.as_str());
    let announcement = claim.map(|claim| Announcement {
        node: claim.node.as_str().into(),
        node_uid: node_uid.clone(),
        reason,
        note,
    });
    write.announcements.extend(announcement);
}

async fn compare_and_swap(context: &ExecutorContext, write: &LedgerWrite) -> Written {
    // It may grant or release what others wait for.
    let permit = context.permits.next_act().await;
    if permit.as_ref().err() == Some(&Stop::DryRun) {
        if LedgerFacts::content(write.base.as_deref()) == write.next {
            return Err(ActionResult::AlreadyDone);
        }
        context.pass.cache.keep_ledger(write.next.clone());
        return Ok(());
    }
    let _permit = permit?;
    let ledgers: Api<DrainLedger> = context.api();
    let spec = DrainLedgerSpec::from(&write.next);
    let Some(base) = &write.base else {
        if write.next.claims().is_empty() {
            return Err(ActionResult::AlreadyDone);
        }
        let params = PostParams {
            field_manager: Some(context.pass.field_manager.to_owned()),
            ..PostParams::default()
        };
        let ledger = DrainLedger::new(drain_ledger::NAME, spec);
        ledgers.create(&params, &ledger).await?;
        return Ok(());
    };
    if base.ledger == write.next {
        return Err(ActionResult::AlreadyDone);
    }
    let metadata = json!({ "uid": base.uid, "resourceVersion": base.resource_version });
    let patch = Patch::Merge(json!({ "metadata": metadata, "spec": spec }));
    let written = ledgers.patch(drain_ledger::NAME, &context.patch_params(), &patch).await;
    match written.map_err(ApiError::from) {
        Ok(_) => Ok(()),
        // A ledger that is gone is made anew by the next plan.
        Err(ApiError::NotFound) => Err(ActionResult::Outdated("the ledger is gone".to_owned())),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
