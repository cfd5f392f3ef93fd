//! The progress of drains: the events worth a line, the live table, and the end. Pure.

use console::truncate_str;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nodeward_api::NodeDrain;
use nodeward_api::node_drain::Phase;
use serde::Serialize;

use crate::describe::{self, prefixed};
use crate::model::drain::Drain;
use crate::text::Style;
use crate::text::page::Page;
use crate::text::table::{Cell, Column, Table};
use crate::text::time::{age, clock, span};

/// The user is told if drain-lock does not answer for this long.
const ANSWER: SignedDuration = SignedDuration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum DrainOutcome {
    /// It is not over yet.
    Waiting,
    /// No pod has to leave the node any more: that was seen while it was so.
    Drained,
    /// It was abandoned.
    Failed,
    /// It is over, and was not seen drained: released, deleted, or its node was uncordoned or has rebooted.
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchedDrain {
    pub outcome: DrainOutcome,
    pub drain: Drain,
    /// Its NodeDrain is gone, or ends: its node may be in use again.
    pub ended: bool,
    #[serde(skip)]
    uid: String,
    #[serde(skip)]
    silence_told: bool,
}

/// All drains that are watched, in the order in which they were requested.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainProgress {
    pub drains: Vec<WatchedDrain>,
}

/// A change that is worth a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressEvent {
    pub node: String,
    pub style: Style,
    pub text: String,
    /// Whether it is told even above the live table, which shows the rest.
    pub matters: bool,
}

impl ProgressEvent {
    /// One that matters.
    fn new(drain: &Drain, style: Style, text: impl Into<String>) -> Self {
        Self {
            node: drain.node.clone(),
            style,
            text: text.into(),
            matters: true,
        }
    }

    /// As a line of its own: `15:02:11 node-1: …`.
    pub fn print(&self, page: &mut Page, now: Timestamp) {
        let (time, node) = (Style::Faint.paint(&clock(now)), Style::Strong.paint(&self.node));
        page.paragraph(&format!("{time} {node}: "), self.style, &self.text);
    }
}

impl DrainProgress {
    /// Adds a drain that was requested.
    pub fn add(&mut self, drain: &NodeDrain) {
        let uid = drain.uid().unwrap_or_default();
        let drain = Drain::of(drain);
        self.drains.push(WatchedDrain {
            outcome: outcome(&drain),
            ended: drain.ending,
            drain,
            uid,
            silence_told: false,
        });
    }

    /// Takes in the state of a drain.
    pub fn observe(&mut self, drain: &NodeDrain) -> Option<ProgressEvent> {
        let (uid, drain) = (drain.uid().unwrap_or_default(), Drain::of(drain));
        let mut drains = self.drains.iter_mut();
        let watched = drains.find(|watched| watched.drain.node == drain.node)?;
        if watched.outcome != DrainOutcome::Waiting {
            watched.ended |= watched.uid != uid || drain.ending || drain.phase != Some(Phase::Drained);
            return None;
        }
        if watched.uid != uid {
            // The requested drain is gone; this one is somebody else's.
            return watched.end();
        }
        let event = change(&watched.drain, &drain);
        watched.outcome = outcome(&drain);
        watched.ended |= drain.ending;
        watched.drain = drain;
        event
    }

    pub fn observe_deleted(&mut self, drain: &NodeDrain) -> Option<ProgressEvent> {
        let mut drains = self.drains.iter_mut();
        let watched = drains.find(|watched| Some(&watched.uid) == drain.metadata.uid.as_ref())?;
        watched.end()
    }

    /// When the watch begins anew with the drains that are `present`: the others are gone.
    pub fn observe_missing(&mut self, present: &[String]) -> Vec<ProgressEvent> {
        let missing = self.drains.iter_mut().filter(|watched| !present.contains(&watched.uid));
        missing.filter_map(WatchedDrain::end).collect()
    }

    /// The drains that drain-lock should have answered by now, each once.
    pub fn unanswered(&mut self, now: Timestamp) -> Vec<ProgressEvent> {
        let mut events = Vec::new();
        for watched in &mut self.drains {
            if watched.is_unanswered(now) && !std::mem::replace(&mut watched.silence_told, true) {
                let text = "drain-lock has not answered yet: is it running? See kubectl nodeward status";
                events.push(ProgressEvent::new(&watched.drain, Style::Warning, text));
            }
        }
        events
    }

    pub fn is_over(&self) -> bool {
        self.with(DrainOutcome::Waiting).next().is_none()
    }

    pub fn is_drained(&self) -> bool {
        self.with(DrainOutcome::Drained).count() == self.drains.len()
    }

    /// The nodes whose drains are not over.
    pub fn waited_for(&self) -> Vec<&str> {
        let waiting = self.with(DrainOutcome::Waiting);
        waiting.map(|watched| watched.drain.node.as_str()).collect()
    }

    fn with(&self, outcome: DrainOutcome) -> impl Iterator<Item = &WatchedDrain> {
        self.drains.iter().filter(move |watched| watched.outcome == outcome)
    }

    /// The drains that are not over, in at most `width` columns and `height` lines.
    pub fn live_table(&self, now: Timestamp, began: Timestamp, width: usize, height: usize) -> Vec<String> {
        let (drained, of) = (self.with(DrainOutcome::Drained).count(), self.drains.len());
        let took = span(now.duration_since(began));
        let foot = format!("{drained} of {of} drained after {took}. Ctrl-C does not stop the drains.");
        let faint = |text: &str| Style::Faint.paint(&truncate_str(text, width, "…"));
        let mut shown: Vec<&WatchedDrain> = self.with(DrainOutcome::Waiting).collect();
        let all = shown.len();
        loop {
            let mut page = Page::new(width);
            if !shown.is_empty() {
                page.table(0, table(&shown, now));
            }
            let mut lines = page.lines();
            let hidden = all - shown.len();
            lines.extend((hidden > 0).then(|| faint(&format!("and {hidden} more"))));
            lines.push(faint(&foot));
            if lines.len() <= height || shown.pop().is_none() {
                lines.truncate(height);
                return lines;
            }
        }
    }
}

impl WatchedDrain {
    fn is_unanswered(&self, now: Timestamp) -> bool {
        let requested = self.drain.asked_at.unwrap_or(now);
        self.outcome == DrainOutcome::Waiting && self.drain.phase.is_none() && now.duration_since(requested) >= ANSWER
    }

    /// The drain is gone: its node may be in use again. An event, unless its outcome is known already.
    fn end(&mut self) -> Option<ProgressEvent> {
        self.ended = true;
        if self.outcome != DrainOutcome::Waiting {
            return None;
        }
        self.outcome = DrainOutcome::Cancelled;
        Some(ProgressEvent::new(&self.drain, Style::Bad, cancelled(&self.drain)))
    }
}

/// The outcome that a NodeDrain tells. Only the phase `Drained` of a drain that goes on says that the node may go down:
/// `drainedAt` may tell of a drain whose node is in use again.
fn outcome(drain: &Drain) -> DrainOutcome {
    match drain.phase {
        Some(Phase::Failed) => DrainOutcome::Failed,
        _ if drain.ending => DrainOutcome::Cancelled,
        Some(Phase::Drained) => DrainOutcome::Drained,
        // Its turn ended while pods were down: it queues again once they are back. A drain that is over or whose node has
        // rebooted has no claim, or a granted one.
        Some(Phase::Recovering) if drain.ticket.is_some() && drain.granted_at.is_none() => DrainOutcome::Waiting,
        Some(Phase::Recovering | Phase::Released) => DrainOutcome::Cancelled,
        Some(Phase::Scheduled | Phase::Queued | Phase::Granted | Phase::Draining | Phase::Suspect) | None => {
            DrainOutcome::Waiting
        }
    }
}

fn cancelled(drain: &Drain) -> &'static str {
    if drain.drained_at.is_some() {
        "was drained, and its drain is over: the node may be in use again"
    } else {
        "its drain was cancelled before it was done"
    }
}

/// The event of a change; `None` if it is not worth a line.
fn change(before: &Drain, after: &Drain) -> Option<ProgressEvent> {
    let told = |drain: &Drain| (drain.phase, drain.ending, drain.ticket, waits_for(drain), drain.pods);
    if told(before) == told(after) {
        return None;
    }
    let (style, text) = match outcome(after) {
        DrainOutcome::Drained => (Style::Good, drained(after)),
        DrainOutcome::Failed => (
            Style::Bad,
            format!("its drain has failed: {}", describe::message(after)),
        ),
        DrainOutcome::Cancelled => (Style::Bad, cancelled(after).to_owned()),
        DrainOutcome::Waiting => (describe::phase_style(after.phase), state(after)),
    };
    Some(ProgressEvent {
        matters: (before.phase, before.ending) != (after.phase, after.ending),
        ..ProgressEvent::new(after, style, text)
    })
}

/// `Queued, ticket 4, 5 of 8 gone; waits for node-2 (shop/web)`.
pub fn state(drain: &Drain) -> String {
    let ticket = prefixed(", ticket ", drain.ticket);
    let pods = drain.pods.filter(|pods| pods.total > 0).map(describe::pods);
    let waits = Some(waits_for(drain)).filter(|waits| !waits.is_empty());
    let (pods, waits) = (prefixed(", ", pods), prefixed("; waits for ", waits));
    format!("{}{ticket}{pods}{waits}", describe::phase(drain))
}

fn waits_for(drain: &Drain) -> String {
    describe::obstacles_short(&drain.blocked_by)
}

fn drained(drain: &Drain) -> String {
    let took = drain.since().zip(drain.drained_at);
    let took = prefixed(" after ", took.map(|(began, drained)| age(began, drained)));
    let pods = drain.pods.filter(|pods| pods.total > 0).map(describe::pods);
    format!("is drained{took}{}", prefixed(": ", pods))
}

fn table(drains: &[&WatchedDrain], now: Timestamp) -> Table {
    let mut table = Table::new([
        Column::Flexible("NODE"),
        Column::Fixed("PHASE"),
        Column::Fixed("FOR"),
        Column::Number("TICKET"),
        Column::Fixed("GONE"),
        Column::Flexible("WAITS FOR"),
    ]);
    for watched in drains {
        let drain = &watched.drain;
        let waits = if watched.is_unanswered(now) {
            "drain-lock, which has not answered".to_owned()
        } else {
            waits_for(drain)
        };
        table.row([
            Cell::new(Style::Strong, &drain.node),
            Cell::new(describe::phase_style(drain.phase), describe::phase(drain)),
            describe::phase_age(drain, now).unwrap_or_default().into(),
            prefixed("", drain.ticket).into(),
            prefixed("", drain.pods.map(describe::pods_short)).into(),
            waits.into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests;
