//! What drain-keeper says of the node, and why it does not act.

use jiff::Timestamp;
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::GateReason;

use super::{Why, print_rest};
use crate::describe::prefixed;
use crate::model::component::{Component, DRAIN_KEEPER};
use crate::model::node::{Blocked, KeeperVerdict};
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::Cell;
use crate::text::time::{distance, moment, with_distances};

impl Why {
    /// The gate that keeps drain-keeper off the node: what its condition says, or what follows from the other objects shown.
    pub(super) fn closed_gate(&self) -> Option<Blocked> {
        let keeper = self.node.as_ref().and_then(|node| node.drain_keeper.as_ref());
        if let Some(gate) = keeper.and_then(|keeper| keeper.gate.clone()) {
            return Some(gate);
        }
        let derived = |reason: GateReason| Blocked {
            reason: reason.to_string(),
            since: None,
            pods: None,
            message: format!(
                "drain-keeper does not act: the node {}; to do: {}",
                reason.explanation(),
                reason.remedy()
            ),
        };
        if self.health.iter().flatten().any(|health| health.step.is_some()) {
            return keeper.map(|_| derived(GateReason::UnderRemediation));
        }
        let waits =
            |phase: Option<Phase>| matches!(phase, None | Some(Phase::Scheduled | Phase::Queued | Phase::Granted));
        let drain = self.drain.as_ref().filter(|drain| !drain.ending && !drain.dry_run);
        let is_cordoned = self.node.as_ref().is_some_and(|node| node.cordoned);
        let is_keeper = |component: &Component| component.name == DRAIN_KEEPER && component.is_installed();
        let waits = drain.is_some_and(|drain| waits(drain.phase)) && is_cordoned;
        (waits && self.components.iter().any(is_keeper)).then(|| derived(GateReason::WaitsForTurn))
    }

    pub(super) fn print_keeper(&self, page: &mut Page, now: Timestamp) {
        let keeper = self.node.as_ref().and_then(|node| node.drain_keeper.as_ref());
        let gate = self.closed_gate();
        if keeper.is_none() && gate.is_none() {
            return;
        }
        page.heading("drain-keeper");
        if let Some(began) = keeper.and_then(|keeper| keeper.drain_began) {
            let suspended = keeper.and_then(|keeper| keeper.clock_suspended_since);
            let suspended = suspended.map(|since| format!("since {}, while the drain waits", moment(since, now)));
            let suspended = prefixed("; its clock stands still ", suspended);
            page.field("times", format!("the drain since {}{suspended}", moment(began, now)));
        }
        if let Some(gate) = &gate {
            let since = prefixed(", ", gate.since.map(|since| distance(since, now)));
            let text = with_distances(&gate.message, now);
            let text = format!("{text} [{}{since}]", gate.reason);
            page.field("stopped by", Cell::new(Style::Warning, text));
        }
        if let Some(keeper) = keeper {
            print_blocked(page, keeper, gate.is_some(), now);
        }
        if !self.done.is_empty() {
            let done = self.done.iter().map(|act| {
                let at = prefixed(" at ", act.at.map(|at| moment(at, now)));
                format!("{}{at}: {} [{}]", act.pod, act.note, act.reason)
            });
            page.fields("done", done);
        }
    }
}

fn print_blocked(page: &mut Page, keeper: &KeeperVerdict, is_stopped: bool, now: Timestamp) {
    let Some(blocked) = &keeper.blocked else {
        if !is_stopped {
            let text = "no: only the pace of the drain itself limits it";
            page.field("blocked", Cell::new(Style::Good, text));
        }
        return;
    };
    let since = prefixed(", ", blocked.since.map(|since| distance(since, now)));
    let reason = format!("[{}{since}]", blocked.reason);
    let Some(message) = &blocked.pods else {
        let text = with_distances(&blocked.message, now);
        page.field("blocked", Cell::new(Style::Warning, format!("{text} {reason}")));
        return;
    };
    let has_failed = message.drain_failed;
    let style = if has_failed { Style::Bad } else { Style::Warning };
    let failed = "the drain has failed: everything that may be done has been; ";
    let failed = if has_failed { failed } else { "" };
    let keep = if message.pods == 1 { "pod keeps" } else { "pods keep" };
    let text = format!("{failed}{} {keep} it from ending {reason}", message.pods);
    page.field("blocked", Cell::new(style, text));
    for pod in &message.named {
        page.point(Style::Plain, with_distances(pod, now));
    }
    print_rest(page, message.pods.saturating_sub(message.named.len()));
}
