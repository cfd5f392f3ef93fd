//! The progress of drains: what is told of each change, the picture of the moment, and when it is over. Pure.

pub mod painter;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_drain::Phase;
use serde::Serialize;

use crate::render::drain as words;
use crate::render::obstacle;
use crate::text::line::{Line, Tone};
use crate::text::table::{Cell, Column, Table};
use crate::text::time::{clock, span};
use crate::text::wrap::shorten;
use crate::view::drain::Drain;

/// After this long without an answer of drain-lock the user is told.
const ANSWER: SignedDuration = SignedDuration::from_secs(10);

/// How a drain came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// It is not over yet.
    Waiting,
    /// No pod has to leave the node any more: that was seen while it was so.
    Drained,
    /// It was given up.
    Failed,
    /// It is over, and was not seen drained: released, deleted, or its node was uncordoned or has rebooted.
    Cancelled,
}

/// A drain that is watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Watched {
    /// How it came out.
    pub outcome: Outcome,
    /// What is known of it.
    pub drain: Drain,
    /// Its NodeDrain is gone, or ends: its node may be in use again.
    pub ended: bool,
    #[serde(skip)]
    uid: String,
    #[serde(skip)]
    silence_told: bool,
}

/// All drains that are watched, in the order in which they were asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Board {
    /// The drains.
    pub drains: Vec<Watched>,
}

/// Something to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// The node.
    pub node: String,
    /// How it is meant.
    pub tone: Tone,
    /// What has happened.
    pub text: String,
    /// Whether it is said where the picture of the moment shows the rest.
    pub matters: bool,
}

impl News {
    /// As a line of its own: `15:02:11 node-1: …`.
    pub fn line(&self, now: Timestamp) -> Line {
        let mut line = Line::new(Tone::Faint, clock(now));
        line.push(Tone::Plain, " ");
        line.push(Tone::Strong, &self.node);
        line.push(Tone::Plain, ": ");
        line.push(self.tone, &self.text);
        line
    }
}

impl Board {
    /// Adds a drain that was asked for.
    pub fn add(&mut self, uid: String, drain: Drain) {
        let outcome = outcome(&drain);
        self.drains.push(Watched {
            outcome,
            ended: drain.ending,
            drain,
            uid,
            silence_told: false,
        });
    }

    /// Takes in what a watch shows of a drain; what there is to tell of it.
    pub fn see(&mut self, uid: &str, drain: Drain) -> Option<News> {
        let watched = self
            .drains
            .iter_mut()
            .find(|watched| watched.drain.node == drain.node)?;
        if watched.outcome != Outcome::Waiting {
            watched.ended |= watched.uid != uid || drain.ending || drain.phase != Some(Phase::Drained);
            return None;
        }
        if watched.uid != uid {
            // The one that was asked for has gone, and this is somebody else's.
            return Some(watched.end());
        }
        let news = news(&watched.drain, &drain);
        watched.outcome = outcome(&drain);
        watched.ended |= drain.ending;
        watched.drain = drain;
        news
    }

    /// A drain is gone.
    pub fn gone(&mut self, node: &str, uid: &str) -> Option<News> {
        let watched = self
            .drains
            .iter_mut()
            .find(|watched| watched.drain.node == node && watched.uid == uid)?;
        watched.ended = true;
        (watched.outcome == Outcome::Waiting).then(|| watched.end())
    }

    /// The drains that there are, when the watch begins anew: others that are waited for are gone.
    pub fn present(&mut self, uids: &[String]) -> Vec<News> {
        let missing = self.drains.iter_mut().filter(|watched| !uids.contains(&watched.uid));
        let mut news = Vec::new();
        for watched in missing {
            watched.ended = true;
            if watched.outcome == Outcome::Waiting {
                news.push(watched.end());
            }
        }
        news
    }

    /// What has not come, though it is time: said once.
    pub fn silence(&mut self, now: Timestamp) -> Vec<News> {
        let mut news = Vec::new();
        for watched in &mut self.drains {
            if !watched.silence_told && watched.is_silent(now) {
                watched.silence_told = true;
                news.push(News {
                    node: watched.drain.node.clone(),
                    tone: Tone::Warning,
                    text: "drain-lock has not answered yet: is it running? See kubectl nodeward status".to_owned(),
                    matters: true,
                });
            }
        }
        news
    }

    /// Whether all drains are over.
    pub fn is_over(&self) -> bool {
        self.drains.iter().all(|watched| watched.outcome != Outcome::Waiting)
    }

    /// Whether all came out well.
    pub fn is_drained(&self) -> bool {
        self.drains.iter().all(|watched| watched.outcome == Outcome::Drained)
    }

    /// The nodes that are waited for.
    pub fn waited_for(&self) -> Vec<&str> {
        let waiting = self.drains.iter().filter(|watched| watched.outcome == Outcome::Waiting);
        waiting.map(|watched| watched.drain.node.as_str()).collect()
    }

    /// The picture of the moment, in at most `width` columns and `height` lines.
    pub fn picture(&self, now: Timestamp, began: Timestamp, width: usize, height: usize) -> Vec<Line> {
        let drained = self
            .drains
            .iter()
            .filter(|watched| watched.outcome == Outcome::Drained)
            .count();
        let foot = format!(
            "{drained} of {} drained after {}. Ctrl-C leaves the drains going.",
            self.drains.len(),
            span(now.duration_since(began))
        );
        let foot = Line::new(Tone::Faint, shorten(&foot, width));
        // Those that are over have been told of; where there is not enough room, only some of the others are shown.
        let mut shown: Vec<&Watched> = self
            .drains
            .iter()
            .filter(|watched| watched.outcome == Outcome::Waiting)
            .collect();
        loop {
            let mut lines = if shown.is_empty() {
                Vec::new()
            } else {
                table(&shown, now).lines(Some(width))
            };
            let hidden = self.waited_for().len() - shown.len();
            if hidden > 0 {
                lines.push(Line::new(Tone::Faint, shorten(&format!("and {hidden} more"), width)));
            }
            lines.push(foot.clone());
            if lines.len() <= height || shown.pop().is_none() {
                lines.truncate(height);
                return lines;
            }
        }
    }
}

impl Watched {
    fn is_silent(&self, now: Timestamp) -> bool {
        let asked = self.drain.asked_at.unwrap_or(now);
        self.outcome == Outcome::Waiting && self.drain.phase.is_none() && now.duration_since(asked) >= ANSWER
    }

    /// The drain is gone, and nobody has seen its node drained: the node may be in use again.
    fn end(&mut self) -> News {
        self.ended = true;
        self.outcome = Outcome::Cancelled;
        News {
            node: self.drain.node.clone(),
            tone: Tone::Bad,
            text: over(&self.drain).to_owned(),
            matters: true,
        }
    }
}

/// How a drain came out, by what its NodeDrain says. A node may go down in the one phase that says so, and only while
/// its drain goes on: `drainedAt` may tell of a drain whose node is in use again.
fn outcome(drain: &Drain) -> Outcome {
    match drain.phase {
        Some(Phase::Failed) => Outcome::Failed,
        _ if drain.ending => Outcome::Cancelled,
        Some(Phase::Drained) => Outcome::Drained,
        // Its turn ended while pods were down: it queues again once they are back. Of one that is over or whose node
        // has rebooted, the claim is gone or granted.
        Some(Phase::Recovering) if drain.ticket.is_some() && drain.granted_at.is_none() => Outcome::Waiting,
        Some(Phase::Recovering | Phase::Released) => Outcome::Cancelled,
        Some(Phase::Queued | Phase::Granted | Phase::Draining | Phase::Suspect) | None => Outcome::Waiting,
    }
}

/// What is told of a drain that is over and was not seen drained.
fn over(drain: &Drain) -> &'static str {
    if drain.drained_at.is_some() {
        "was drained, and its drain is over: the node may be in use again"
    } else {
        "its drain was cancelled before it was done"
    }
}

/// What has changed, for a person; `None` if nothing has that is worth a line.
fn news(before: &Drain, after: &Drain) -> Option<News> {
    let told = |drain: &Drain| (drain.phase, drain.ending, drain.ticket, waits_for(drain), drain.pods);
    if told(before) == told(after) {
        return None;
    }
    let (tone, text) = match outcome(after) {
        Outcome::Drained => (Tone::Good, drained(after)),
        Outcome::Failed => {
            let why = after
                .message
                .clone()
                .unwrap_or_else(|| words::meaning(after).to_owned());
            (Tone::Bad, format!("its drain has failed: {why}"))
        }
        Outcome::Cancelled => (Tone::Bad, over(after).to_owned()),
        Outcome::Waiting => (words::tone(after.phase), state(after)),
    };
    // Where the picture shows them, counts and obstacles that change are not told on top.
    let matters = (before.phase, before.ending) != (after.phase, after.ending);
    Some(News {
        node: after.node.clone(),
        tone,
        text,
        matters,
    })
}

/// Where a drain stands: `Queued, ticket 4, 5 of 8 gone; waits for node-2 (shop/web)`.
pub fn state(drain: &Drain) -> String {
    let mut parts = vec![words::phase(drain).to_owned()];
    parts.extend(drain.ticket.map(|ticket| format!("ticket {ticket}")));
    parts.extend(drain.pods.filter(|pods| pods.total > 0).map(words::pods));
    let text = parts.join(", ");
    match waits_for(drain).as_str() {
        "" => text,
        waits => format!("{text}; waits for {waits}"),
    }
}

fn waits_for(drain: &Drain) -> String {
    obstacle::summary(&drain.blocked_by)
}

fn drained(drain: &Drain) -> String {
    let took = match (drain.since(), drain.drained_at) {
        (Some(began), Some(drained)) => format!(" after {}", span(drained.duration_since(began))),
        _ => String::new(),
    };
    match drain.pods.filter(|pods| pods.total > 0) {
        Some(pods) => format!("is drained{took}: {}", words::pods(pods)),
        None => format!("is drained{took}"),
    }
}

fn table(drains: &[&Watched], now: Timestamp) -> Table {
    let mut table = Table::new([
        Column::flexible("NODE"),
        Column::fixed("PHASE"),
        Column::fixed("FOR"),
        Column::number("TICKET"),
        Column::fixed("GONE"),
        Column::flexible("WAITS FOR"),
    ]);
    for watched in drains {
        let drain = &watched.drain;
        let waits = if watched.is_silent(now) {
            "drain-lock, which has not answered".to_owned()
        } else {
            waits_for(drain)
        };
        table.row([
            Cell::new(Tone::Strong, drain.node.clone()),
            Cell::new(words::tone(drain.phase), words::phase(drain)),
            words::age(drain, now).unwrap_or_default().into(),
            drain.ticket.map(|ticket| ticket.to_string()).unwrap_or_default().into(),
            drain.pods.map(words::pods_short).unwrap_or_default().into(),
            waits.into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests;
