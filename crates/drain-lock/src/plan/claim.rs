//! Asking for units: all at once, holding nothing before.

use std::sync::Arc;

use nodeward_api::reason::LockReason;

use crate::snapshot::NodeFacts;

use super::lease::LeaseStand;
use super::node_markers::Progress;
use super::verdict::{self, DrainVerdict, Look};
use super::{ConfirmAsk, File, GrantAsk, Planner};

impl Planner<'_> {
    /// Keeps its place in the queue, and asks for nothing.
    pub(super) fn stand_aside(&mut self, file: &File, node: &NodeFacts) {
        let down = &file.down;
        self.write
            .next
            .set_needs(node.uid.as_str(), Vec::new(), &|pod| down.is_down(pod), self.now);
    }

    /// Asks for all that it needs, unless somebody else has the node's lease.
    pub(super) fn claim(
        &mut self,
        file: &File,
        node: &Arc<NodeFacts>,
        look: &Look,
        forced: bool,
        verdict: &mut DrainVerdict,
    ) {
        if let LeaseStand::Others { holder, until } = self.lease(file) {
            if let Some(until) = until {
                self.requeue_at.note(until);
            }
            self.stand_aside(file, node);
            self.write_node_markers(node, Self::own_cordon(file), true, Some(Progress::InProgress));
            let text = format!("{} ({holder})", LockReason::LeaseHeldByOther.explanation());
            verdict
                .blocked_by
                .push(verdict::about_node(LockReason::LeaseHeldByOther, text.clone()));
            verdict.message = text;
            return;
        }
        let (uid, down) = (node.uid.as_str(), &file.down);
        self.write
            .next
            .set_needs(uid, look.needs.clone(), &|pod| down.is_down(pod), self.now);
        if forced {
            self.write
                .next
                .grant_by_fallback(uid, &node.boot_id, &self.snapshot.facts, self.now);
            return;
        }
        let refused = self.memory.refused_grant(uid, self.now);
        let obstacles = match refused {
            Some(refused) => {
                self.requeue_at.note(refused.not_before);
                refused.obstacles.clone()
            }
            None => self.write.next.obstacles(uid, &self.snapshot.facts),
        };
        if obstacles.is_empty() {
            self.write.grants.push(GrantAsk {
                node_uid: node.uid.clone(),
                boot_id: Arc::clone(&node.boot_id),
            });
            verdict.says("asks for its units");
        } else {
            verdict.message = obstacles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        }
        let is_blocked = !obstacles.is_empty();
        verdict.blocked_by.extend(obstacles.iter().map(verdict::blocked_by));
        self.write_node_markers(node, Self::own_cordon(file), is_blocked, Some(Progress::InProgress));
    }

    /// Makes sure of a grant, with the node's lease in hand.
    pub(super) fn confirm(&mut self, file: &File, node: &Arc<NodeFacts>, verdict: &mut DrainVerdict) {
        verdict.blocked_by.push(verdict::about_node(
            LockReason::AwaitsConfirmation,
            LockReason::AwaitsConfirmation.explanation().to_owned(),
        ));
        self.write_node_markers(node, Self::own_cordon(file), false, Some(Progress::InProgress));
        match self.lease(file) {
            LeaseStand::Others { holder, .. } => {
                let down = &file.down;
                self.write
                    .next
                    .time_out(node.uid.as_str(), &|pod| down.is_down(pod), self.now);
                verdict.message = format!("gives its units back: {holder} has the node's lease");
                let (name, uid) = (&node.name, node.uid.as_str());
                self.announce(name, uid, LockReason::LeaseHeldByOther, true, verdict.message.clone());
            }
            LeaseStand::Free => {
                self.take_lease(&file.case.name);
                verdict.says("takes the node's lease");
            }
            LeaseStand::Ours { .. } | LeaseStand::NotUsed => {
                let Some(claim) = self.write.next.claim(node.uid.as_str()) else {
                    return;
                };
                let confirm = ConfirmAsk {
                    node_uid: node.uid.clone(),
                    grant: claim.grant,
                    down: file.down.uids().clone(),
                };
                self.write.confirms.push(confirm);
                verdict.says("reads its budgets once more");
            }
        }
    }
}
