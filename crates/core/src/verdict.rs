//! Verdicts: the single source of every explanation. Conditions, Events, metrics, logs and the command line all say what
//! stands here, and nothing else.

use std::fmt;

use jiff::Timestamp;
use nodeward_api::reason::{BlockerReason, GateReason};
use serde::Serialize;

use crate::deadline::to_the_second;
use crate::id::{BudgetKey, NodeName, PodKey, PodUid};
use crate::strategy::StrategyName;

/// What stands between a node and the end of its drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeVerdict {
    pub node: NodeName,
    /// Whether it is acted on, and if not, why.
    pub gate: GateReason,
    /// More on the gate: which pool, which signal; empty if there is no more to say.
    pub gate_detail: String,
    /// When its drain began; absent while the gate is closed.
    pub since: Option<Timestamp>,
    /// The pods that its drain waits for.
    pub blockers: Vec<Blocker>,
    /// Whether everything has been tried and its time has passed.
    pub drain_failed: bool,
}

/// A pod that a drain waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    pub pod: PodKey,
    pub uid: PodUid,
    /// Why it is still there.
    pub reason: BlockerReason,
    /// Budgets that select it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<BudgetKey>,
    /// Finalizers that keep it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// When its grace ends or ended, if it terminates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ends: Option<Timestamp>,
    /// Who holds its budget, the error of the last attempt, or the like; empty if there is nothing more to say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// What drain-keeper does next.
    pub next: Next,
    /// When the last wait that applied to it ends or ended, be anything done then or not; absent where none ever applied.
    #[serde(skip)]
    pub last_due: Option<Timestamp>,
}

/// What happens to a blocker next, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Next {
    /// A strategy's time is still to come.
    At {
        strategy: StrategyName,
        /// When it falls due.
        due: Timestamp,
    },
    /// A strategy is due and is being carried out.
    Now {
        strategy: StrategyName,
        /// When it fell due.
        due: Timestamp,
    },
    /// A strategy is due, and something holds it back for now.
    HeldBack {
        strategy: StrategyName,
        /// When it fell due.
        due: Timestamp,
        /// When it is looked at again at the latest; absent: when something changes.
        until: Option<Timestamp>,
    },
    /// drain-keeper will not touch it: somebody has to.
    Nothing,
}

impl Next {
    /// Whether a strategy's time is still to come.
    pub const fn is_pending(&self) -> bool {
        matches!(self, Self::At { .. })
    }

    /// When the strategy falls or fell due, if there is one.
    pub fn due(&self) -> Option<Timestamp> {
        match self {
            Self::At { due, .. } | Self::Now { due, .. } | Self::HeldBack { due, .. } => Some(*due),
            Self::Nothing => None,
        }
    }
}

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { strategy, due } => write!(f, "{strategy} at {}: {}", to_the_second(*due), strategy.intent()),
            Self::Now { strategy, .. } => write!(f, "{strategy} now: {}", strategy.intent()),
            Self::HeldBack { strategy, until, .. } => {
                match until {
                    Some(until) => write!(f, "{strategy}, not before {}", to_the_second(*until))?,
                    None => write!(f, "{strategy}{WHEN_THAT_ENDS}")?,
                }
                write!(f, ": {}", strategy.intent())
            }
            Self::Nothing => f.write_str(NOTHING),
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pod, self.reason.explanation())?;
        let mut about = Vec::new();
        if !self.budgets.is_empty() {
            about.push(format!("PDB {}", join(&self.budgets)));
        }
        if !self.finalizers.is_empty() {
            about.push(format!("finalizers {}", join(&self.finalizers)));
        }
        if let Some(ends) = self.grace_ends {
            about.push(format!("grace until {}", to_the_second(ends)));
        }
        if !self.detail.is_empty() {
            about.push(self.detail.clone());
        }
        if !about.is_empty() {
            write!(f, " ({})", about.join("; "))?;
        }
        write!(f, "{NEXT}{}", self.next)?;
        match self.next {
            Next::Nothing => write!(f, "; to do: {}", self.reason.remedy()),
            _ => Ok(()),
        }
    }
}

/// What the condition `nodeward.dev/DrainBlocked` says: which pods keep a drain from ending, and what happens next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockedMessage {
    /// Everything has been tried and its time has passed.
    pub drain_failed: bool,
    /// How many pods there are.
    pub pods: usize,
    /// The first of them, each as a [`Blocker`] says it.
    pub named: Vec<String>,
}

const NEXT: &str = "; next: ";
const NOTHING: &str = "nothing by itself";
const WHEN_THAT_ENDS: &str = " when that ends";
const DRAIN_FAILED: &str = "The drain has failed: everything that may be done has been. ";
const ONE_KEEPS: &str = " pod keeps the drain from ending: ";
const MANY_KEEP: &str = " pods keep the drain from ending: ";
const BETWEEN: &str = " | ";

impl BlockedMessage {
    /// Reads what `Display` writes; `None` for anything else.
    pub fn parse(message: &str) -> Option<Self> {
        let (drain_failed, rest) = match message.strip_prefix(DRAIN_FAILED) {
            Some(rest) => (true, rest),
            None => (false, message),
        };
        let (pods, list) = rest.split_once(ONE_KEEPS).or_else(|| rest.split_once(MANY_KEEP))?;
        let pods: usize = pods.parse().ok()?;
        let named = list.split(BETWEEN).filter(|text| !text.is_empty());
        let mut named: Vec<String> = named.map(str::to_owned).collect();
        let is_rest = |last: &String| last.strip_prefix("and ").is_some_and(|last| last.ends_with(" more"));
        if named.len() > 1 && named.last().is_some_and(is_rest) {
            named.pop();
        }
        Some(Self {
            drain_failed,
            pods,
            named,
        })
    }

    /// What is done first to one of the named pods, if a time is told; it may have passed.
    pub fn next_act(&self) -> Option<NextAct<'_>> {
        let acts = self.named.iter().filter_map(|named| NextAct::parse(named));
        acts.min_by_key(|act| act.at)
    }

    /// Whether somebody has to deal with one of the named pods, for nothing else will.
    pub fn needs_person(&self) -> bool {
        self.drain_failed || self.nexts().any(|next| next.starts_with(NOTHING))
    }

    /// Whether one of the named pods is forced, now or at a time that is told. An eviction is what its drainer asks for, too.
    pub fn forces(&self) -> bool {
        let evicts = StrategyName::Delete.intent();
        let is_left_to_others = |next: &str| {
            let intent = next.rsplit_once(": ").map(|(_, intent)| intent);
            next.starts_with(NOTHING) || next.contains(WHEN_THAT_ENDS) || intent == Some(evicts)
        };
        self.nexts().any(|next| !is_left_to_others(next))
    }

    /// Whether what is done to the [chief](Self::chief) waits for something that has no time.
    pub fn waits_for_others(&self) -> bool {
        let next = self.chief().and_then(next_of);
        next.is_some_and(|next| next.contains(WHEN_THAT_ENDS))
    }

    /// What is done to the [chief](Self::chief) of the named pods, if a time is told.
    pub fn chief_act(&self) -> Option<NextAct<'_>> {
        self.chief().and_then(NextAct::parse)
    }

    /// The named pod that somebody has to deal with, else the first one.
    pub fn chief(&self) -> Option<&str> {
        let of_person = self
            .named
            .iter()
            .find(|named| next_of(named).is_some_and(|next| next.starts_with(NOTHING)));
        of_person.or(self.named.first()).map(String::as_str)
    }

    fn nexts(&self) -> impl Iterator<Item = &str> {
        self.named.iter().filter_map(|named| next_of(named))
    }
}

/// What happens to a named pod next, as [`Next`] says it.
fn next_of(named: &str) -> Option<&str> {
    named.rsplit_once(NEXT).map(|(_, next)| next)
}

/// What is done to a pod at its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextAct<'a> {
    pub at: Timestamp,
    /// `NAMESPACE/NAME`.
    pub pod: &'a str,
    /// As [`StrategyName::intent`] says it.
    pub intent: &'a str,
}

impl<'a> NextAct<'a> {
    /// Of what a [`Blocker`] says, where its next is `Delete at TIME: INTENT` or `Delete, not before TIME: INTENT`.
    fn parse(named: &'a str) -> Option<Self> {
        let next = next_of(named)?;
        let (_, rest) = next.split_once(" at ").or_else(|| next.split_once(", not before "))?;
        let (at, intent) = rest.split_once(": ")?;
        Some(Self {
            at: at.parse().ok()?,
            pod: named.split(' ').next()?,
            intent,
        })
    }
}

impl fmt::Display for BlockedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = if self.drain_failed { DRAIN_FAILED } else { "" };
        let keeps = if self.pods == 1 { ONE_KEEPS } else { MANY_KEEP };
        write!(f, "{failed}{}{keeps}{}", self.pods, self.named.join(BETWEEN))?;
        match self.pods.checked_sub(self.named.len()) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "{BETWEEN}and {more} more"),
        }
    }
}

fn join<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    const DUE: &str = "2026-01-01T10:45:00.987Z";

    fn blocker(reason: BlockerReason, next: Next) -> Blocker {
        Blocker {
            pod: PodKey::new("shop", "web-0"),
            uid: "u1".into(),
            reason,
            budgets: Vec::new(),
            finalizers: Vec::new(),
            grace_ends: None,
            detail: String::new(),
            next,
            last_due: next.due(),
        }
    }

    #[rstest]
    #[case(
        Next::At { strategy: StrategyName::Delete, due: at(DUE) },
        "Delete at 2026-01-01T10:45:00Z: evict it", true
    )]
    #[case(
        Next::Now { strategy: StrategyName::PdbDelete, due: at(DUE) },
        "PdbDelete now: evict it, or delete it if the budget refuses", false
    )]
    #[case(
        Next::HeldBack { strategy: StrategyName::PdbStuckTerminating, due: at(DUE), until: Some(at("2026-01-01T11:00:00Z")) },
        "PdbStuckTerminating, not before 2026-01-01T11:00:00Z: delete it without grace", false
    )]
    #[case(
        Next::HeldBack { strategy: StrategyName::Finalizer, due: at(DUE), until: None },
        "Finalizer when that ends: remove its finalizers", false
    )]
    fn what_comes_next_is_said_with_its_time(#[case] next: Next, #[case] text: &str, #[case] pending: bool) {
        assert_eq!(next.to_string(), text);
        assert_eq!(next.is_pending(), pending);
        assert_eq!(next.due(), Some(at(DUE)));
    }

    #[test]
    fn nothing_by_itself_has_no_moment() {
        assert_eq!(Next::Nothing.to_string(), "nothing by itself");
        assert_eq!((Next::Nothing.is_pending(), Next::Nothing.due()), (false, None));
    }

    #[rstest]
    #[case::by_time(&[Next::At { strategy: StrategyName::PdbDelete, due: at(DUE) }], Some("2026-01-01T10:45:00Z"), false)]
    #[case::held_back(
        &[Next::HeldBack { strategy: StrategyName::Delete, due: at(DUE), until: Some(at("2026-01-01T11:00:00Z")) }],
        Some("2026-01-01T11:00:00Z"), false
    )]
    #[case::the_first_counts(
        &[
            Next::HeldBack { strategy: StrategyName::Delete, due: at(DUE), until: Some(at("2026-01-01T11:00:00Z")) },
            Next::At { strategy: StrategyName::PdbDelete, due: at(DUE) },
        ],
        Some("2026-01-01T10:45:00Z"), false
    )]
    #[case::when_something_changes(&[Next::HeldBack { strategy: StrategyName::Delete, due: at(DUE), until: None }], None, false)]
    #[case::by_a_person(&[Next::At { strategy: StrategyName::Delete, due: at(DUE) }, Next::Nothing], Some("2026-01-01T10:45:00Z"), true)]
    fn message_says_who_acts_and_when(
        #[case] nexts: &[Next],
        #[case] acts_at: Option<&str>,
        #[case] needs_person: bool,
    ) {
        let named = nexts
            .iter()
            .map(|next| blocker(BlockerReason::BudgetExhausted, *next).to_string());
        let written = BlockedMessage {
            drain_failed: false,
            pods: nexts.len(),
            named: named.collect(),
        };
        let read = BlockedMessage::parse(&written.to_string()).unwrap();
        assert_eq!(
            (read.next_act().map(|act| act.at), read.needs_person()),
            (acts_at.map(at), needs_person)
        );
        assert!(
            read.next_act()
                .is_none_or(|act| act.pod == "shop/web-0" && act.intent.starts_with("evict it"))
        );
        assert_eq!(read.chief().is_some_and(|chief| chief.contains(NOTHING)), needs_person);
    }

    #[test]
    fn blocker_that_nothing_removes_says_what_to_do() {
        let blocker = blocker(BlockerReason::Unmanaged, Next::Nothing);
        assert_eq!(
            blocker.to_string(),
            "shop/web-0 has no controller that would replace it; next: nothing by itself; to do: delete the pod by hand if it is \
             not needed, or set unmanagedPods: delete"
        );
    }

    #[test]
    fn a_blocker_names_budgets_finalizers_grace_and_detail() {
        let blocker = Blocker {
            budgets: vec![BudgetKey::new("shop", "a"), BudgetKey::new("shop", "b")],
            finalizers: vec!["a.io/x".to_owned(), "b.io/y".to_owned()],
            grace_ends: Some(at("2026-01-01T10:00:30Z")),
            detail: "held by node n2".to_owned(),
            ..blocker(
                BlockerReason::FinalizerStuck,
                Next::At {
                    strategy: StrategyName::PdbFinalizer,
                    due: at(DUE),
                },
            )
        };
        assert_eq!(
            blocker.to_string(),
            "shop/web-0 is kept by finalizers beyond its grace period (PDB shop/a, shop/b; finalizers a.io/x, b.io/y; \
             grace until 2026-01-01T10:00:30Z; held by node n2); next: PdbFinalizer at 2026-01-01T10:45:00Z: remove its \
             finalizers"
        );
    }

    #[rstest]
    #[case(false, 1, &["shop/web-0 is stuck"], "1 pod keeps the drain from ending: shop/web-0 is stuck")]
    #[case(false, 2, &["a", "b"], "2 pods keep the drain from ending: a | b")]
    #[case(false, 12, &["a", "b"], "12 pods keep the drain from ending: a | b | and 10 more")]
    #[case(
        true, 1, &["a"],
        "The drain has failed: everything that may be done has been. 1 pod keeps the drain from ending: a"
    )]
    #[case(true, 0, &[], "The drain has failed: everything that may be done has been. 0 pods keep the drain from ending: ")]
    fn what_the_condition_says_can_be_read_again(
        #[case] drain_failed: bool,
        #[case] pods: usize,
        #[case] named: &[&str],
        #[case] text: &str,
    ) {
        let message = BlockedMessage {
            drain_failed,
            pods,
            named: named.iter().map(|&name| name.to_owned()).collect(),
        };
        assert_eq!(message.to_string(), text);
        assert_eq!(BlockedMessage::parse(text), Some(message));
    }

    #[rstest]
    #[case("")]
    #[case("many pods keep the drain from ending: a")]
    #[case("somebody else's words")]
    fn another_message_is_not_taken_for_one(#[case] text: &str) {
        assert_eq!(BlockedMessage::parse(text), None);
    }

    #[test]
    fn verdict_json_omits_absent_fields() {
        let verdict = NodeVerdict {
            node: "n1".into(),
            gate: GateReason::Open,
            gate_detail: String::new(),
            since: Some(at("2026-01-01T10:00:00Z")),
            blockers: vec![blocker(
                BlockerReason::BudgetExhausted,
                Next::HeldBack {
                    strategy: StrategyName::PdbDelete,
                    due: at(DUE),
                    until: None,
                },
            )],
            drain_failed: false,
        };
        assert_eq!(
            serde_json::to_value(&verdict).unwrap(),
            json!({
                "node": "n1", "gate": "Open", "gateDetail": "", "since": "2026-01-01T10:00:00Z", "drainFailed": false,
                "blockers": [{
                    "pod": { "namespace": "shop", "name": "web-0" }, "uid": "u1", "reason": "BudgetExhausted",
                    "next": { "kind": "heldBack", "strategy": "PdbDelete", "due": DUE, "until": null },
                }],
            })
        );
    }
}
