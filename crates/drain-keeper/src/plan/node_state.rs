//! How each node stands: its gates and its drain clock.

use std::sync::Arc;

use nodeward_api::annotation;
use nodeward_api::drain_clock::{ClockSource, DrainClock};
use nodeward_api::reason::{DrainReason, GateReason};
use nodeward_core::deadline::saturating_add;
use nodeward_core::node::NodeView;
use nodeward_core::pod::PodView;
use nodeward_core::signal::{NoteLevel, PdbForceDrainTimeout};
use nodeward_core::verdict::Blocker;

use crate::clock::{self, ClockInput, ClockState, ClockWrite, NodeHistory};
use crate::gate::{self, Gates};
use crate::snapshot::NodePods;

use super::{Action, ClockAction, Planner, Warning};

/// A node, and how it stands.
pub(super) struct NodeInPlan<'a> {
    pub node: &'a Arc<NodeView>,
    pub state: NodeState<'a>,
}

/// How a node stands before its pods are looked at.
pub(super) enum NodeState<'a> {
    /// Nothing is done on it.
    Closed { gates: Gates },
    /// A gate that comes after the clock keeps it, or its pods or its clock are not known yet.
    NotYet {
        reason: GateReason,
        clock: Option<DrainClock>,
        detail: String,
    },
    /// Its pods are judged.
    Draining {
        clock: DrainClock,
        pods: &'a [Arc<PodView>],
        blockers: Vec<Blocker>,
    },
}

impl<'a> Planner<'a> {
    /// Gates and clock of one node.
    pub(super) fn evaluate_node(&mut self, node: &Arc<NodeView>) -> NodeState<'a> {
        let gates = gate::look(node, &self.snapshot.signals, &self.snapshot.drains, self.policy);
        self.collect_warnings(node, &gates);
        if node.is_being_deleted {
            self.plan.being_deleted.insert(node.name.clone());
        }
        if gates.are_open() {
            // Before the clock runs: the pods are known when the first deadline comes.
            self.plan.watch_pods.insert(node.name.clone());
        }
        let known = self.snapshot.memory.node_history.get(&node.uid);
        let mut before = known.copied().unwrap_or(NodeHistory {
            // It may have been parked until a moment ago: an open gate that is seen first opened just now.
            parked: self.snapshot.memory.is_first_look && gates.cordon.is_some(),
            ..NodeHistory::default()
        });
        let is_selected = gates.reason != GateReason::NotSelected;
        let is_ours = is_selected || before.was_selected;
        let recorded = if is_ours {
            self.recorded_clock(node, &gates, &mut before)
        } else {
            None
        };
        let input = ClockInput {
            recorded: recorded.as_ref(),
            cordon: gates.cordon,
            course: gates.course(),
            upgrade_since: gates.upgrade_since,
            boot_id: &node.boot_id,
        };
        if self.is_in_doubt(&gates, recorded.as_ref(), before) {
            let history = NodeHistory {
                in_doubt_since: before.in_doubt_since.or(Some(self.now)),
                ..before
            };
            self.plan.node_history.insert(node.uid.clone(), history);
            return NodeState::NotYet {
                reason: gates.reason,
                clock: recorded,
                detail: gates.detail,
            };
        }
        let mut history = before.and(&input, self.now);
        history.was_selected |= is_selected;
        if !is_selected && !history.was_selected {
            // What stands there is another drain-keeper's, or nobody's: only what was in scope before is cleaned up.
            self.plan.node_history.insert(node.uid.clone(), history);
            return NodeState::Closed { gates };
        }
        let state = match clock::evaluate(&input, before, self.policy.flap_tolerance, self.now) {
            ClockState::Stopped => {
                history.drained = false;
                if recorded.is_none() && node.annotations.contains_key(annotation::DRAIN_CLOCK) {
                    self.write_clock(node, ClockWrite::Remove);
                }
                NodeState::Closed { gates }
            }
            // An uncordon that may be a flap: the clock is kept, and nothing is done until that is known.
            ClockState::Interrupted(until) => {
                self.requeue_at.note(until);
                NodeState::Closed { gates }
            }
            ClockState::Write(write) => {
                // No deadline counts before the clock is in the cluster, where a restart and the standby find it.
                self.write_clock(node, write);
                if gates.are_open() {
                    NodeState::NotYet {
                        reason: GateReason::ClockStarting,
                        clock: None,
                        detail: gates.detail,
                    }
                } else {
                    NodeState::Closed { gates }
                }
            }
            ClockState::Suspended(clock) => {
                history.parked = false;
                history.began = Some(clock.resumed(self.now).start);
                self.warn_of_second_writer(node, &clock);
                NodeState::Closed { gates }
            }
            ClockState::Running(clock) => {
                history.parked = false;
                history.began = Some(clock.start);
                self.warn_of_second_writer(node, &clock);
                self.draining(node, clock, gates)
            }
        };
        self.plan.node_history.insert(node.uid.clone(), history);
        state
    }

    /// Whether the drain of a node whose clock runs is in doubt: the upgrade or the drain's mark says no, or cannot be told,
    /// and has not done so for longer than a flap may last. Nothing is done to its pods, and its drain is not interrupted.
    fn is_in_doubt(&mut self, gates: &Gates, recorded: Option<&DrainClock>, before: NodeHistory) -> bool {
        let runs = recorded.is_some_and(|clock| clock.uncordoned_at.is_none());
        let is_doubtful = match gates.reason {
            GateReason::UpgradeUnknown | GateReason::DrainUnknown => true,
            // A drain that has done its work ends with its mark.
            GateReason::NotUpgrading | GateReason::NotDraining => {
                !before.drained && !recorded.is_some_and(|clock| clock.ended)
            }
            _ => false,
        };
        if !is_doubtful || !runs {
            return false;
        }
        let until = saturating_add(before.in_doubt_since.unwrap_or(self.now), self.policy.flap_tolerance);
        self.requeue_at.note(until);
        self.now < until
    }

    /// A node whose clock runs.
    fn draining(&mut self, node: &NodeView, clock: DrainClock, gates: Gates) -> NodeState<'a> {
        let not_yet = |reason, clock, detail| NodeState::NotYet {
            reason,
            clock: Some(clock),
            detail,
        };
        if let Some((reason, detail)) = self.remediation(node) {
            return not_yet(reason, clock, detail);
        }
        match self.snapshot.pods.get(&node.name) {
            None | Some(NodePods::Syncing) => not_yet(GateReason::PodsSyncing, clock, gates.detail),
            Some(NodePods::Synced(pods)) => NodeState::Draining {
                clock,
                pods,
                blockers: Vec::new(),
            },
        }
    }

    /// What keeps drain-keeper off a node that somebody is remediating: whoever reboots it takes its pods with it.
    fn remediation(&mut self, node: &NodeView) -> Option<(GateReason, String)> {
        let (reason, detail) = match self.snapshot.remediations.of(&node.name, self.now) {
            Ok(None) => return None,
            Ok(Some(open)) => {
                self.requeue_at.note(open.until());
                (GateReason::UnderRemediation, open.to_string())
            }
            Err(why) => (GateReason::RemediationUnknown, why.to_owned()),
        };
        let text = format!("nothing is forced on it: the node {}: {detail}", reason.explanation());
        // The text names moments that change with each renewal, the key does not.
        self.warn(node, reason.as_str(), format!("{reason}/{}", node.name), text);
        Some((reason, detail))
    }

    fn write_clock(&mut self, node: &Arc<NodeView>, mut write: ClockWrite) {
        if let ClockWrite::Set(clock) = &mut write {
            clock.writer = self.snapshot.installation.as_deref().map(str::to_owned);
        }
        self.plan.actions.push(Action::WriteClock(ClockAction {
            node: Arc::clone(node),
            write,
        }));
    }

    fn recorded_clock(&mut self, node: &NodeView, gates: &Gates, before: &mut NodeHistory) -> Option<DrainClock> {
        match DrainClock::of(&node.annotations)? {
            Ok(clock) => {
                // A cordon or an upgrade from a clock ahead of ours is waited for.
                let cordoned_at = gates.cordon.and_then(|cordon| cordon.time_added);
                let latest = [Some(self.now), cordoned_at, gates.upgrade_since]
                    .into_iter()
                    .flatten()
                    .max();
                if Some(clock.start) <= latest {
                    return Some(clock);
                }
                // The cordon's time would make all of its deadlines past at once, where it had not begun with its cordon.
                before.parked |= clock.from != ClockSource::Taint;
                let text = format!(
                    "annotation {} begins in the future ({}) and does not count: the drain begins anew",
                    annotation::DRAIN_CLOCK,
                    clock.start
                );
                self.warn_unreadable(node, format!("drain-clock/{}", node.name), text);
                None
            }
            Err(error) => {
                // When it began nobody can tell, perhaps a moment ago on a node that had been parked for days.
                before.parked = true;
                let text = format!(
                    "annotation {} is not readable and does not count: the drain begins anew, now: {error}",
                    annotation::DRAIN_CLOCK
                );
                self.warn_unreadable(node, format!("drain-clock/{}", node.name), text);
                None
            }
        }
    }

    /// Another drain-keeper looks after the node, too: each forces by its own timetable.
    fn warn_of_second_writer(&mut self, node: &NodeView, clock: &DrainClock) {
        let own = self.snapshot.installation.as_deref();
        let Some((writer, own)) = clock.writer.as_deref().zip(own).filter(|(writer, own)| writer != own) else {
            return;
        };
        let reason = DrainReason::SecondWriter.as_str();
        let text = format!(
            "its drain clock was written by drain-keeper {writer}, and this is {own}: if both run, each forces its pods; give each \
             nodes of its own (nodeSelector), or uninstall one"
        );
        self.warn(node, reason, format!("{reason}/{}", node.name), text);
    }

    fn warn_unreadable(&mut self, node: &NodeView, key: String, text: String) {
        self.warn(node, DrainReason::Unreadable.as_str(), key, text);
    }

    fn warn(&mut self, node: &NodeView, reason: &'static str, key: String, text: String) {
        let (node, node_uid) = (node.name.clone(), node.uid.clone());
        let warning = Warning {
            key,
            reason,
            text,
            node,
            node_uid,
            pod: None,
        };
        self.plan.warnings.insert(warning);
    }

    fn collect_warnings(&mut self, node: &NodeView, gates: &Gates) {
        for note in gates.notes.iter().filter(|note| note.level == NoteLevel::Warning) {
            self.warn_unreadable(node, note.key.clone(), note.message.clone());
        }
        let (text, counts) = match &self.snapshot.pdb_force_drain_timeout {
            PdbForceDrainTimeout::Malformed(text) | PdbForceDrainTimeout::Missing(text) => {
                (text, "the configured pdbForceDrainTimeout counts")
            }
            PdbForceDrainTimeout::TooLong(text) => (text, "a hundred years count"),
            PdbForceDrainTimeout::NotSet | PdbForceDrainTimeout::Minutes(_) => return,
        };
        if gates.are_open() {
            let text = format!("{text}; {counts} instead");
            self.warn_unreadable(node, "PDBForceDrainTimeout".to_owned(), text);
        }
    }
}
