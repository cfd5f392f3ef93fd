//! The drain clock: when a node's drain began, and whether a drain goes on where an earlier one left off.
//!
//! One exhaustive decision over what the Node's annotation records and what is seen now. What survives a restart is the
//! annotation alone; [`NodeHistory`] only sharpens the reading of changes that this process watched happen.

use jiff::{SignedDuration, Timestamp};
use nodeward_api::drain_clock::{ClockSource, DrainClock};
use nodeward_core::deadline::saturating_add;

/// What this process has seen of a node before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeHistory {
    /// When it first saw the present cordon.
    pub cordoned_since: Option<Timestamp>,
    /// When it saw the drain interrupted: the node uncordoned, or a gate closed.
    pub interrupted_at: Option<Timestamp>,
    /// It saw the present cordon while the gates were closed: the node was parked.
    pub parked: bool,
    /// When the last drain began that it saw timed under the present cordon: one that begins anew began no earlier.
    pub began: Option<Timestamp>,
    /// It saw the running drain without blockers: the drain has done its work.
    pub drained: bool,
    /// Since when the running drain has been in doubt: the signal or the drain's mark says no, or cannot be told.
    pub in_doubt_since: Option<Timestamp>,
    /// The node was in scope while this process watched: what stands on it is ours to clean up.
    pub was_selected: bool,
}

/// What is seen of the node now.
#[derive(Debug, Clone, Copy)]
pub struct ClockInput<'a> {
    /// What the annotation records; `None` also where it cannot be read.
    pub recorded: Option<&'a DrainClock>,
    /// The cordon, if there is one.
    pub cordon: Option<Cordon>,
    /// Whether its drain is to be timed.
    pub course: Course,
    /// When the upgrade began, where its signal knows.
    pub upgrade_since: Option<Timestamp>,
    /// The node's boot.
    pub boot_id: &'a str,
}

/// Whether a drain is to be timed, by the gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// The node is out of scope, not part of an upgrade, or not being drained.
    Closed,
    /// It is being drained, and waits for its turn in drain-lock.
    Waits,
    /// It is being drained.
    GoesOn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cordon {
    /// `timeAdded` of its taint.
    pub time_added: Option<Timestamp>,
}

/// What the clock says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClockState {
    /// No drain is timed, and nothing is to be written.
    Stopped,
    /// An interrupted drain is remembered until then.
    Interrupted(Timestamp),
    /// A drain is timed by this clock, which stands in the annotation.
    Running(DrainClock),
    /// A drain waits for its turn, and so does this clock, which stands in the annotation.
    Suspended(DrainClock),
    /// The annotation is to be written; nothing is done to a pod before it stands there.
    Write(ClockWrite),
}

/// A change of the annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClockWrite {
    Set(DrainClock),
    Remove,
}

impl NodeHistory {
    /// What has been seen once `input` has been seen too.
    #[must_use]
    pub fn and(self, input: &ClockInput<'_>, now: Timestamp) -> Self {
        let cordoned_since = self.cordoned_since.or(Some(now));
        let interrupted_at = self.interrupted_at.or(self.cordoned_since.map(|_| now));
        let (cordoned_since, interrupted_at, parked) = match (input.cordon, input.course) {
            (None, _) => (None, interrupted_at, false),
            (Some(_), Course::Closed) => (cordoned_since, interrupted_at, true),
            (Some(_), Course::Waits | Course::GoesOn) => (cordoned_since, None, self.parked),
        };
        Self {
            cordoned_since,
            interrupted_at,
            parked,
            began: self.began.filter(|_| input.cordon.is_some()),
            in_doubt_since: None,
            ..self
        }
    }
}

/// Reads the clock. `before` is what this process had seen until now.
pub fn evaluate(
    input: &ClockInput<'_>,
    before: NodeHistory,
    flap_tolerance: SignedDuration,
    now: Timestamp,
) -> ClockState {
    let history = before.and(input, now);
    match (input.recorded, input.cordon, input.course) {
        (None, None, _) | (None, Some(_), Course::Closed) => ClockState::Stopped,
        (None, Some(cordon), Course::Waits | Course::GoesOn) => {
            ClockState::of(begin(input, cordon, history, now), input, now)
        }
        (Some(clock), None, _) | (Some(clock), Some(_), Course::Closed) => {
            interrupt(clock, history, flap_tolerance, now)
        }
        (Some(clock), Some(cordon), Course::Waits | Course::GoesOn) => {
            // An interruption that was seen counts, whether or not it could be recorded in time.
            let clock = match clock.uncordoned_at.or(before.interrupted_at) {
                None => advance(clock, input, cordon, before, flap_tolerance, now),
                Some(interrupted) => {
                    let again = cordon.time_added.or(history.cordoned_since).unwrap_or(now);
                    let is_short = again < saturating_add(interrupted, flap_tolerance);
                    let is_over = clock.ended || history.drained || booted_since(clock, input);
                    if is_short && !is_over && !history.parked {
                        DrainClock {
                            uncordoned_at: None,
                            cordoned_at: cordon.time_added,
                            ..clock.resumed(interrupted)
                        }
                    } else {
                        begin(input, cordon, history, now)
                    }
                }
            };
            ClockState::of(clock, input, now)
        }
    }
}

impl ClockState {
    /// By this clock, which is suspended or goes on as its drain does, and is written first if it is not what is recorded.
    fn of(clock: DrainClock, input: &ClockInput<'_>, now: Timestamp) -> Self {
        let waits = input.course == Course::Waits;
        let clock = match clock.suspended_at {
            None if waits => DrainClock {
                suspended_at: Some(now),
                ..clock
            },
            Some(_) if !waits => clock.resumed(now),
            _ => clock,
        };
        match input.recorded {
            Some(recorded) if *recorded == clock && waits => Self::Suspended(clock),
            Some(recorded) if *recorded == clock => Self::Running(clock),
            _ => set(clock),
        }
    }
}

/// A new drain: its start is the latest of the cordon, the upgrade, what was seen to time it before, and the moment the gates
/// opened on a parked node.
fn begin(input: &ClockInput<'_>, cordon: Cordon, history: NodeHistory, now: Timestamp) -> DrainClock {
    let (mut start, mut from) = match cordon.time_added {
        Some(added) => (added, ClockSource::Taint),
        None => (history.cordoned_since.unwrap_or(now), ClockSource::FirstSeen),
    };
    if let Some(upgrade) = input.upgrade_since
        && start < upgrade
    {
        (start, from) = (upgrade, ClockSource::Upgrade);
    }
    // The annotation is gone, and the cordon may be far older than the drain that it timed.
    if let Some(began) = history.began.map(|began| began.min(now))
        && start < began
    {
        (start, from) = (began, ClockSource::Gate);
    }
    if history.parked && start < now {
        (start, from) = (now, ClockSource::Gate);
    }
    DrainClock {
        start,
        from,
        boot_id: input.boot_id.to_owned(),
        cordoned_at: cordon.time_added,
        uncordoned_at: None,
        suspended_at: None,
        ended: false,
        writer: None,
    }
}

/// The node was uncordoned, or a gate closed: the drain is remembered for a while, in case this is only a flap.
fn interrupt(clock: &DrainClock, history: NodeHistory, flap_tolerance: SignedDuration, now: Timestamp) -> ClockState {
    if let Some(interrupted) = clock.uncordoned_at {
        let forget_at = saturating_add(interrupted, flap_tolerance);
        return if forget_at <= now {
            ClockState::Write(ClockWrite::Remove)
        } else {
            ClockState::Interrupted(forget_at)
        };
    }
    match history.interrupted_at {
        Some(interrupted) if !clock.ended && !history.drained => set(DrainClock {
            uncordoned_at: Some(interrupted),
            ..clock.resumed(interrupted)
        }),
        // Done, or it happened while nobody watched, possibly long ago.
        Some(_) | None => ClockState::Write(ClockWrite::Remove),
    }
}

/// The clock of a drain that was not interrupted, or of a new one in its place.
fn advance(
    clock: &DrainClock,
    input: &ClockInput<'_>,
    cordon: Cordon,
    before: NodeHistory,
    flap_tolerance: SignedDuration,
    now: Timestamp,
) -> DrainClock {
    if booted_since(clock, input) {
        // The drain led to its reboot. Pods that block the node even so get the full waits anew.
        return DrainClock {
            start: now,
            from: ClockSource::Reboot,
            boot_id: input.boot_id.to_owned(),
            cordoned_at: cordon.time_added,
            uncordoned_at: None,
            suspended_at: None,
            ended: true,
            writer: None,
        };
    }
    if let Some(upgrade) = input.upgrade_since
        && clock.start < upgrade
    {
        return DrainClock {
            start: upgrade,
            from: ClockSource::Upgrade,
            ..clock.clone()
        };
    }
    match cordon.time_added {
        // A cordon younger than the one that the clock covers: where that has no time, it is not younger than the start.
        Some(added) if clock.cordoned_at.unwrap_or(clock.start) < added => {
            // Uncordoned and cordoned again without our seeing the node in between.
            let watched = before.cordoned_since.is_some();
            let is_over = clock.ended || before.drained;
            let is_a_flap = watched && !is_over && !before.parked && now < saturating_add(added, flap_tolerance);
            if is_a_flap {
                DrainClock {
                    cordoned_at: Some(added),
                    ..clock.clone()
                }
            } else {
                begin(input, cordon, before.and(input, now), now)
            }
        }
        Some(added) if added < clock.start && clock.from == ClockSource::Taint => {
            // The taint is where the start was read from, and it now says that the cordon is older.
            let start = input.upgrade_since.map_or(added, |upgrade| added.max(upgrade));
            DrainClock {
                start,
                cordoned_at: Some(added),
                ..clock.clone()
            }
        }
        _ => clock.clone(),
    }
}

fn set(clock: DrainClock) -> ClockState {
    ClockState::Write(ClockWrite::Set(clock))
}

fn booted_since(clock: &DrainClock, input: &ClockInput<'_>) -> bool {
    !clock.boot_id.is_empty() && !input.boot_id.is_empty() && clock.boot_id != input.boot_id
}

#[cfg(test)]
mod tests;
