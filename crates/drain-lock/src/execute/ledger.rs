//! The ledger: one compare-and-swap a pass, with every grant in it resting on what was read by quorum just before.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use nodeward_api::drain_ledger::{self, DrainLedger, DrainLedgerSpec};
use nodeward_api::reason::LockReason;
use nodeward_core::id::{BudgetKey, NodeUid};
use nodeward_core::ledger::{Claim, Facts, HeldPod, Ledger, Lost, Obstacle};
use nodeward_runtime::ApiError;
use serde_json::json;

use crate::plan::departures::without;
use crate::plan::verdict::Announcement;
use crate::plan::{ConfirmAsk, LedgerWrite};
use crate::snapshot::{LedgerFacts, Snapshot};

use super::{ActionResult, ExecutorContext, TaskOutcome, fresh};

/// Confirms, grants, writes.
pub(super) async fn write(context: &ExecutorContext, write: LedgerWrite, snapshot: &Arc<Snapshot>) -> TaskOutcome {
    let asked: BTreeSet<&str> = write
        .grants
        .iter()
        .map(|ask| ask.node_uid.as_str())
        .chain(write.confirms.iter().map(|ask| ask.node_uid.as_str()))
        .collect();
    let keys: BTreeSet<BudgetKey> = asked
        .iter()
        .filter_map(|uid| write.next.claim(uid))
        .flat_map(Claim::budgets)
        .collect();
    let (facts, still_there, still_drained) = tokio::join!(
        fresh::facts(context, &snapshot.facts, &keys),
        fresh::still_there(context, &write.gone),
        fresh::still_drained(context, &write.absent, snapshot)
    );
    let mut facts = match facts {
        Ok(facts) => facts,
        Err(error) => return ActionResult::from(error).into(),
    };
    match still_there {
        Ok(None) => {}
        Ok(Some(pod)) => return ActionResult::Outdated(format!("pod {pod} was taken for gone and is there")).into(),
        Err(error) => return ActionResult::from(error).into(),
    }
    match still_drained {
        Ok(None) => {}
        Ok(Some(node)) => {
            return ActionResult::Outdated(format!("the drain of node {node} was taken for gone and is there")).into();
        }
        Err(error) => return ActionResult::from(error).into(),
    }
    without(&mut facts, &write.leaving);
    let now = Timestamp::now();
    let mut entry = Entry {
        next: write.next,
        announcements: write.announcements,
        granted: Vec::new(),
        refused: Vec::new(),
    };
    for ask in &write.confirms {
        entry.confirm(ask, &facts, now);
    }
    for ask in &write.grants {
        entry.grant(&ask.node_uid, &ask.boot_id, &facts, now);
    }
    let done = match context.permits.next_write().await {
        Ok(_permit) => entry.put(context, write.base.as_deref()).await,
        Err(stop) => stop.into(),
    };
    // A lost answer may be that of a write: what is on the record by then is told all the same.
    let may_be_written = done.may_have_acted();
    TaskOutcome {
        announcements: if may_be_written {
            entry.announcements
        } else {
            Vec::new()
        },
        granted: if may_be_written { entry.granted } else { Vec::new() },
        refused_grants: entry.refused,
        ..done.into()
    }
}

/// The ledger in the making.
struct Entry {
    next: Ledger,
    announcements: Vec<Announcement>,
    granted: Vec<NodeUid>,
    refused: Vec<(NodeUid, Vec<Obstacle>)>,
}

impl Entry {
    fn confirm(&mut self, ask: &ConfirmAsk, facts: &Facts, now: Timestamp) {
        let uid = ask.node_uid.as_str();
        let is_down = |pod: &HeldPod| ask.down.contains(&pod.uid);
        match self.next.confirm(uid, ask.grant, facts, &is_down, now) {
            Ok(()) => self.announce(
                uid,
                LockReason::Granted,
                false,
                "all of its units are granted".to_owned(),
            ),
            Err(Lost::Returned { obstacles, kept }) => {
                let why = obstacles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                let note = format!("its units are returned ({kept} stay), and it waits under its ticket: {why}");
                self.announce(uid, LockReason::GrantLost, true, note);
            }
            Err(Lost::NotGranted) => {}
        }
    }

    fn grant(&mut self, uid: &NodeUid, boot_id: &str, facts: &Facts, now: Timestamp) {
        match self.next.try_grant(uid.as_str(), boot_id, facts, now) {
            Ok(_) => self.granted.push(uid.clone()),
            Err(obstacles) => self.refused.push((uid.clone(), obstacles)),
        }
    }

    fn announce(&mut self, uid: &str, reason: LockReason, is_warning: bool, note: String) {
        if let Some(claim) = self.next.claim(uid) {
            self.announcements.push(Announcement {
                node: claim.node.as_str().into(),
                node_uid: uid.into(),
                reason,
                is_warning,
                note,
            });
        }
    }

    async fn put(&self, context: &ExecutorContext, base: Option<&LedgerFacts>) -> ActionResult {
        let ledgers: Api<DrainLedger> = Api::all(context.clients.requests.clone());
        let Some(base) = base else {
            let ledger = DrainLedger::new(drain_ledger::NAME, DrainLedgerSpec::from(&self.next));
            let params = PostParams {
                field_manager: Some(context.field_manager.to_owned()),
                ..PostParams::default()
            };
            return match ledgers.create(&params, &ledger).await {
                Ok(_) => ActionResult::Acted(()),
                Err(error) => error.into(),
            };
        };
        if base.ledger == self.next {
            return ActionResult::AlreadyDone;
        }
        let patch = json!({
            "metadata": { "uid": base.uid, "resourceVersion": base.resource_version },
            "spec": DrainLedgerSpec::from(&self.next),
        });
        let params = PatchParams {
            field_manager: Some(context.field_manager.to_owned()),
            ..PatchParams::default()
        };
        match ledgers.patch(drain_ledger::NAME, &params, &Patch::Merge(&patch)).await {
            Ok(_) => ActionResult::Acted(()),
            // A ledger that is gone is made anew by the next plan.
            Err(error) => match ApiError::from(&error) {
                ApiError::NotFound => ActionResult::Outdated("the ledger is gone".to_owned()),
                _ => error.into(),
            },
        }
    }
}
