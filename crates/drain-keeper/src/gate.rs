//! Gates: whether a node is drain-keeper's to act on.

use jiff::Timestamp;
use nodeward_api::reason::GateReason;
use nodeward_core::drain::NodeDrains;
use nodeward_core::node::{NodeView, Taint, UNSCHEDULABLE_TAINT};
use nodeward_core::signal::{SignalInputs, SignalNote, Tristate};

use crate::clock::{Cordon, Course};
use crate::policy::Policy;

/// What the gates say of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gates {
    /// The first gate that is closed, or [`GateReason::Open`]. Remediation and the clock come later, the node's turn in
    /// drain-lock before them: its clock is suspended while it waits.
    pub reason: GateReason,
    /// More on it.
    pub detail: String,
    /// The cordon, if there is one.
    pub cordon: Option<Cordon>,
    /// When the upgrade began, where its signal knows.
    pub upgrade_since: Option<Timestamp>,
    /// What a person should know about the signal's answer.
    pub notes: Vec<SignalNote>,
}

impl Gates {
    /// Whether the node is in scope, part of an upgrade, and being drained.
    pub fn are_open(&self) -> bool {
        self.reason == GateReason::Open
    }

    /// Whether its drain is to be timed. One that may have to wait for its turn is timed like one that has to.
    pub fn course(&self) -> Course {
        match self.reason {
            GateReason::Open => Course::GoesOn,
            GateReason::WaitsForTurn | GateReason::TurnUnknown => Course::Waits,
            _ => Course::Closed,
        }
    }
}

/// Looks at the gates in their order.
pub fn look(node: &NodeView, signals: &SignalInputs, drains: &NodeDrains, policy: &Policy) -> Gates {
    let cordon_taint = cordon_taint(node, policy);
    let cordon = cordon_taint.map(|taint| Cordon {
        time_added: taint.time_added,
    });
    let closed = |reason, detail: String, upgrade_since| Gates {
        reason,
        detail,
        cordon,
        upgrade_since,
        notes: Vec::new(),
    };
    if node.is_control_plane() {
        return closed(GateReason::ControlPlane, String::new(), None);
    }
    if !policy.node_selector.matches(&node.labels) {
        return closed(GateReason::NotSelected, String::new(), None);
    }
    if cordon.is_none() {
        let reason = if node.unschedulable {
            GateReason::CordonTaintMissing
        } else {
            GateReason::NotCordoned
        };
        return closed(reason, String::new(), None);
    }
    let answer = policy.signal.evaluate(signals, node);
    let detail = answer
        .notes
        .iter()
        .map(|note| note.message.as_str())
        .collect::<Vec<_>>()
        .join("; ");
    let gates = match answer.truth {
        Tristate::No => closed(GateReason::NotUpgrading, detail, None),
        Tristate::Unknown => closed(GateReason::UpgradeUnknown, detail, None),
        Tristate::Yes => {
            let mark = policy.drain_markers.is_being_drained(node, signals, drains);
            match mark.truth {
                Tristate::Yes => {
                    let (reason, detail) = turn(node, drains).unwrap_or((GateReason::Open, mark.because));
                    closed(reason, detail, answer.since)
                }
                Tristate::No => closed(GateReason::NotDraining, mark.because, answer.since),
                Tristate::Unknown => closed(GateReason::DrainUnknown, mark.because, answer.since),
            }
        }
    };
    Gates {
        notes: answer.notes,
        ..gates
    }
}

/// What keeps drain-keeper off a node whose turn in drain-lock has not come, or may not have: emptied by force it would
/// look drained.
fn turn(node: &NodeView, drains: &NodeDrains) -> Option<(GateReason, String)> {
    match drains.of(&node.name) {
        Err(why) => Some((GateReason::TurnUnknown, why.to_owned())),
        Ok(drain) => {
            let waiting = drain.filter(|drain| drain.is_of(&node.uid) && drain.waits_for_turn())?;
            let phase = waiting.phase.map_or("not taken up yet", |phase| phase.as_str());
            Some((GateReason::WaitsForTurn, format!("its NodeDrain is {phase}")))
        }
    }
}

/// The taint that makes the node cordoned: `spec.unschedulable` together with the taint that follows from it, or the
/// drain taint of a preset whose tool never sets `unschedulable`.
pub fn cordon_taint<'a>(node: &'a NodeView, policy: &Policy) -> Option<&'a Taint> {
    let unschedulable = node
        .unschedulable
        .then(|| node.taint(UNSCHEDULABLE_TAINT, Some("NoSchedule")))
        .flatten();
    unschedulable.or_else(|| {
        policy
            .cordon_taints
            .iter()
            .find_map(|mark| node.taint(mark.key.as_str(), mark.effect.as_deref()))
    })
}
