//! A drain in words: where it stands, how far its pods are, what comes when its time is up.

use std::fmt::Write as _;

use jiff::Timestamp;
use nodeward_api::node_drain::{Fallback, Phase, PodCounts};

use crate::text::line::Tone;
use crate::text::time::{moment, span};
use crate::view::drain::Drain;

/// The tone of a phase.
pub fn tone(phase: Option<Phase>) -> Tone {
    match phase {
        Some(Phase::Drained | Phase::Released) => Tone::Good,
        Some(Phase::Granted | Phase::Draining | Phase::Recovering) => Tone::Plain,
        Some(Phase::Queued) | None => Tone::Warning,
        Some(Phase::Suspect | Phase::Failed) => Tone::Bad,
    }
}

/// The phase in one word.
pub fn phase(drain: &Drain) -> &'static str {
    match drain.phase {
        _ if drain.ending => "Ending",
        _ if drain.dry_run => "Planned",
        Some(phase) => phase.as_str(),
        None => "Asked",
    }
}

/// What the phase means.
pub fn meaning(drain: &Drain) -> &'static str {
    match drain.phase {
        _ if drain.ending => "was cancelled, and ends when its units have returned",
        None => "has not been answered by drain-lock yet",
        Some(Phase::Queued) => "waits for its claim; pods that need none may leave already",
        Some(Phase::Granted) => "has its claim, which is being confirmed",
        Some(Phase::Draining) => "has its claim, and its pods are leaving",
        Some(Phase::Drained) => "is done: no pod has to leave any more, the node may go down",
        Some(Phase::Recovering) => "its turn is over, and its units return as its pods do",
        Some(Phase::Released) => "is over and holds nothing any more",
        Some(Phase::Suspect) => {
            "lost its drainer while pods are down; what it holds is freed by what is seen, or by an administrator"
        }
        Some(Phase::Failed) => "was given up",
    }
}

/// How far its pods are: `3 of 8 gone, 2 evicting, 1 stays`.
pub fn pods(counts: PodCounts) -> String {
    if counts.total == 0 {
        return "no pods to leave".to_owned();
    }
    let mut text = format!("{} of {} gone", counts.gone, counts.total);
    for (count, what) in [(counts.evicting, "evicting"), (counts.waiting, "waiting")] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    match counts.retained {
        ..=0 => text,
        1 => text + ", 1 stays",
        more => format!("{text}, {more} stay"),
    }
}

/// The same in few columns: `3/8`.
pub fn pods_short(counts: PodCounts) -> String {
    format!("{}/{}", counts.gone, counts.total)
}

/// What comes when the time of the present phase is up.
pub fn when_late(drain: &Drain, now: Timestamp) -> Option<String> {
    let deadline = drain.deadline?;
    let then = match (drain.phase?, drain.fallback) {
        (Phase::Released | Phase::Failed, _) => return None,
        (Phase::Drained | Phase::Recovering | Phase::Suspect, _) => "it counts as overdue",
        (_, Fallback::Wait) => "it goes on waiting (fallback Wait)",
        (_, Fallback::ReleaseAndRequeue) => "it gives back what it can, and queues again (fallback ReleaseAndRequeue)",
        (_, Fallback::EvictAnyway) => "its pods are evicted without units, as any drain would (fallback EvictAnyway)",
        (_, Fallback::Delete) => "its pods are deleted around their budgets (fallback Delete)",
    };
    let verb = if deadline <= now { "was due at" } else { "is at" };
    Some(format!("its deadline {verb} {}; then {then}", moment(deadline, now)))
}

/// Since when it stands so, as far as that can be told.
pub fn age(drain: &Drain, now: Timestamp) -> Option<String> {
    let since = match drain.phase {
        Some(Phase::Drained) => drain.drained_at,
        Some(Phase::Granted | Phase::Draining) => drain.granted_at,
        _ => None,
    };
    since
        .or_else(|| drain.since())
        .map(|since| span(now.duration_since(since)))
}
