//! The decision: from one moment of the cluster, a policy and the time to what is done and said. Pure.
//!
//! The life of a drain is [`Stage`], and `Planner::run_stage` is the one place that says what each stage does.

mod action;
pub mod case;
mod claim;
mod cordon;
pub mod departures;
pub mod down;
mod end;
mod evict;
mod give_way;
pub mod holds;
pub mod intent;
pub mod lease;
pub mod need;
pub mod node_markers;
pub mod preview;
pub mod reserve;
pub mod returned;
mod run_out;
mod stage;
pub mod stale_budget;
#[cfg(test)]
mod tests;
pub mod time_limits;
pub mod verdict;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::node_drain::{NodeDrain, Phase};
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::RequeueAt;
use nodeward_core::id::{NodeName, NodeUid, PodUid};
use nodeward_core::ledger::{ClaimState, Fence, Ledger};
use nodeward_scheduling::{Placement, SchedulingView};

use crate::policy::Policy;
use crate::snapshot::{LedgerState, Memory, NodeFacts, PodFacts, Reserved, Snapshot, StaleBudgets};

use self::case::{Case, cases};
use self::departures::{Departures, NotEvictable, without};
use self::down::Down;
use self::holds::HoldVerdict;
use self::intent::{Intent, Quiet, intent};
use self::need::{NeedRules, classify};
use self::node_markers::{Cordon, Progress};
use self::time_limits::TimeLimits;
use self::verdict::{Announcement, DrainVerdict, Look};

pub use self::action::{Action, ConfirmAsk, Force, GrantAsk, LedgerWrite, PodEviction};
pub use self::stage::Stage;

/// What follows from one moment.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// What the ledger is to become.
    pub ledger: Option<LedgerWrite>,
    /// What else is to be done, each on its own.
    pub actions: Vec<Action>,
    /// Every drain, and how it stands.
    pub drains: Vec<DrainVerdict>,
    /// Every owner's hold, and how it stands.
    pub holds: Vec<HoldVerdict>,
    /// Movable pods that are on their way out: what replaces them will seek a place.
    pub departing: Vec<Arc<PodFacts>>,
    /// Reservations of retained pods in budgets' statuses.
    pub reserved: Reserved,
    /// Budgets whose status contradicts their pods.
    pub stale_budgets: StaleBudgets,
    /// When to plan again at the latest.
    pub requeue_at: Option<Timestamp>,
}

/// Decides.
pub fn plan(snapshot: &Snapshot, memory: &Memory, policy: &Policy, now: Timestamp) -> Plan {
    let (base, ledger) = match &snapshot.ledger {
        LedgerState::Absent => (None, Ledger::default()),
        // Whatever was done by an older reading of it, or by half of one, could be wrong.
        LedgerState::Present(facts) if !facts.ledger.is_readable() => return Plan::default(),
        LedgerState::Present(facts) => (Some(Arc::clone(facts)), facts.ledger.clone()),
    };
    let mut planner = Planner {
        snapshot,
        memory,
        policy,
        now,
        before: ledger.clone(),
        write: LedgerWrite {
            next: ledger,
            base,
            grants: Vec::new(),
            confirms: Vec::new(),
            gone: Vec::new(),
            absent: Vec::new(),
            leaving: BTreeSet::new(),
            announcements: Vec::new(),
        },
        departures: Departures::new(snapshot, memory, now),
        scheduling: Cow::Borrowed(&snapshot.scheduling),
        strangers: Vec::new(),
        plan: Plan::default(),
        requeue_at: RequeueAt::after(now),
    };
    if let Some(until) = memory.next_attempt(now) {
        planner.requeue_at.note(until);
    }
    let files = planner.open_files();
    planner.strangers = in_progress(&files);
    planner.plan.departing = files
        .iter()
        .filter_map(|file| file.look.as_ref())
        .flat_map(|look| look.departing.iter().cloned())
        .collect();
    for pod in memory.departed(now) {
        let from = pod.node.clone().unwrap_or_else(|| "".into());
        planner.strangers.push((from, vec![Arc::clone(pod)]));
    }
    for file in &files {
        planner.reconcile(file);
    }
    planner.give_way(&files);
    planner.plan.holds = holds::judge(snapshot, policy, now, &mut planner.requeue_at);
    planner.close()
}

/// A case, what is wanted of it, and what its node's pods are to this drain.
struct File {
    case: Case,
    down: Down,
    intent: Intent,
    look: Option<Look>,
}

/// The movable pods of nodes that are being emptied: none of them is to lose the last room there is for it.
fn in_progress(files: &[File]) -> Vec<(NodeName, Vec<Arc<PodFacts>>)> {
    files
        .iter()
        .filter(|file| file.intent == Intent::Drain)
        .filter(|file| file.case.node.as_deref().is_some_and(|node| node.is_cordoned()))
        .map(|file| {
            let pods = file
                .look
                .iter()
                .flat_map(|look| look.movable.iter().chain(&look.departing));
            (file.case.name.clone(), pods.cloned().collect())
        })
        .collect()
}

/// A plan in the making.
struct Planner<'a> {
    snapshot: &'a Snapshot,
    memory: &'a Memory,
    policy: &'a Policy,
    now: Timestamp,
    /// The ledger as it is.
    before: Ledger,
    write: LedgerWrite,
    departures: Departures<'a>,
    /// The room there is, less the nodes that this pass cordons.
    scheduling: Cow<'a, SchedulingView>,
    /// The movable pods of each node that is being emptied.
    strangers: Vec<(NodeName, Vec<Arc<PodFacts>>)>,
    plan: Plan,
    requeue_at: RequeueAt,
}

impl Planner<'_> {
    /// Every case, the oldest first, with what is known of it.
    fn open_files(&mut self) -> Vec<File> {
        let mut placement = Placement::new(&self.snapshot.scheduling);
        let rules = NeedRules::of(self.policy);
        let mut files = Vec::new();
        for case in cases(self.snapshot, &self.before) {
            let down = Down::look(&case, self.snapshot, self.memory, self.now);
            let quiet = Quiet {
                period: self.policy.auto.quiet_period,
                has_pods_down: down.has_any(),
            };
            let (intent, until) = intent(&case, quiet, self.now);
            if let Some(until) = until {
                self.requeue_at.note(until);
            }
            let is_judged = matches!(intent, Intent::Drain | Intent::Preview);
            let look = case.node.as_ref().filter(|_| is_judged).map(|node| {
                let need = classify(node, self.snapshot, &mut placement, &rules, self.now);
                if let Some(moment) = need.changes_at {
                    self.requeue_at.note(moment);
                }
                Look::of(&need, self.snapshot, self.memory, self.now)
            });
            files.push(File {
                case,
                down,
                intent,
                look,
            });
        }
        files
    }

    fn reconcile(&mut self, file: &File) {
        self.return_units(file);
        match (file.intent, &file.case.drain, &file.case.node, &file.look) {
            (Intent::Drain, Some(drain), Some(node), Some(look)) => self.drain(file, drain, node, look),
            (Intent::Preview, Some(_), _, look) => self.preview(file, look.as_ref()),
            (Intent::Impossible(reason), _, _, _) => self.impossible(file, reason),
            (Intent::Override, _, _, _) => self.release_by_override(file),
            (Intent::End(ending), _, _, _) => self.end(file, ending),
            // Only a drain with its node is wanted.
            (Intent::Drain | Intent::Preview, _, _, _) => {}
        }
    }

    /// Units of pods that are back return, whatever else becomes of the drain.
    fn return_units(&mut self, file: &File) {
        let Some(claim) = &file.case.claim else { return };
        let back = file.down.back();
        if !back.is_empty() && self.write.next.return_pods(&claim.node_uid, &back) > 0 {
            self.write.gone.extend_from_slice(file.down.gone());
        }
    }

    /// A drain that is wanted: one step of its life.
    fn drain(&mut self, file: &File, drain: &Arc<NodeDrain>, node: &Arc<NodeFacts>, look: &Look) {
        let (case, uid) = (&file.case, node.uid.as_str());
        if !case.is_adopted() || drain.spec.node_uid.is_none() {
            self.adopt(file, drain, uid);
            return;
        }
        let is_foreign = case.has_foreign_cordon();
        self.write.next.enqueue(case.name.as_str(), uid, is_foreign, self.now);
        let limits = TimeLimits::of(Some(drain), self.policy.deadlines);
        let forced = self.run_out(file, drain, node, &limits);
        let Some(claim) = self.write.next.claim(uid).cloned() else {
            return;
        };
        let mut verdict = self.verdict(file, Some(look));
        verdict.blocked_by.extend(look.problems.iter().cloned());
        for text in &limits.unreadable {
            verdict
                .blocked_by
                .push(verdict::about_node(LockReason::InvalidDrain, text.clone()));
        }
        verdict.gives_lease_up = limits.recover_until(&claim) <= self.now && case.is_granted();
        let stage = Stage::of(&claim, case, look, forced);
        self.run_stage(stage, file, node, look, forced, &mut verdict);
        self.conclude(stage, uid, &limits, verdict);
    }

    /// Takes a NodeDrain into care before anything is done for it: until it names the node's UID, another node of that
    /// name could take its place. Its status waits for that too, so that the two writes do not get into each other's way.
    fn adopt(&mut self, file: &File, drain: &Arc<NodeDrain>, node_uid: &str) {
        self.plan.actions.push(Action::Adopt {
            drain: Arc::clone(drain),
            node_uid: node_uid.to_owned(),
        });
        let mut verdict = self.verdict(file, file.look.as_ref());
        verdict.drain = None;
        verdict.says("is being taken into care");
        self.plan.drains.push(verdict);
    }

    /// What one stage does.
    fn run_stage(
        &mut self,
        stage: Stage,
        file: &File,
        node: &Arc<NodeFacts>,
        look: &Look,
        forced: bool,
        verdict: &mut DrainVerdict,
    ) {
        match stage {
            Stage::ComingBack => {
                self.write_node_markers(node, Cordon::Lift, false, None);
                verdict.says("its turn ended while pods were down; they come back before it queues again");
            }
            Stage::Uncordoned => self.cordon(file, node, verdict),
            Stage::Completing => {
                self.write_node_markers(node, Self::own_cordon(file), false, Some(Progress::InProgress));
                self.stand_aside(file, node);
                for pod in &look.completing {
                    let why = NotEvictable::because(LockReason::WaitCompleted);
                    verdict.blocked_by.push(verdict::not_evictable(pod, &why));
                }
                verdict.message = format!("waits for {} pods to finish", look.completing.len());
            }
            Stage::Leaving => {
                self.write_node_markers(node, Self::own_cordon(file), false, Some(Progress::InProgress));
                self.stand_aside(file, node);
                self.let_leave(file, node, &look.movable, look.leaving, Force::Never, verdict);
                verdict.message = format!("{} pods that find room elsewhere leave first", look.movable.len());
            }
            Stage::Claiming => self.claim(file, node, look, forced, verdict),
            Stage::Confirming => self.confirm(file, node, verdict),
            Stage::Evicting => self.evict(file, node, look, forced, verdict),
            Stage::Finishing | Stage::Drained if self.asks_again(file, node, look, verdict) => {
                self.keep_lease(file, verdict);
                self.write_node_markers(node, Self::own_cordon(file), false, Some(Progress::InProgress));
            }
            Stage::Finishing => {
                if let Some(claim) = self.write.next.claim(node.uid.as_str()) {
                    let fence = Fence::of(claim);
                    self.write.next.drained(node.uid.as_str(), fence, &node.boot_id);
                }
                self.keep_lease(file, verdict);
                self.write_node_markers(node, Self::own_cordon(file), false, Some(Progress::InProgress));
            }
            Stage::Drained => {
                self.keep_lease(file, verdict);
                self.write_node_markers(node, Self::own_cordon(file), false, Some(Progress::Drained));
                verdict.says("no pod has to leave any more: the node may go down");
            }
            Stage::Rebooted => {
                self.keep_lease(file, verdict);
                self.write_node_markers(node, Self::own_cordon(file), false, Some(Progress::Drained));
                verdict.says("the node has booted anew; its units return as its pods do");
            }
            Stage::LeftAlone => {
                let text = "a later version of drain-lock holds its claim: this one leaves it alone";
                verdict.says(text);
                verdict
                    .blocked_by
                    .push(verdict::about_node(LockReason::NotPlanned, text.to_owned()));
            }
            Stage::Suspect => {
                self.give_lease_back(&file.case.name);
                verdict.says(
                    "pods are down and nobody drains the node; what it holds returns as its pods do, or by \
                                   an administrator",
                );
                verdict.blocked_by.push(verdict::about_node(
                    LockReason::Suspect,
                    LockReason::Suspect.explanation().to_owned(),
                ));
            }
        }
    }

    /// What is known of every drain.
    fn verdict(&self, file: &File, look: Option<&Look>) -> DrainVerdict {
        let case = &file.case;
        let before = case
            .drain
            .as_deref()
            .and_then(|drain| drain.status.as_ref())
            .and_then(|status| status.pods);
        DrainVerdict {
            drain: case.drain.clone(),
            node: case.name.clone(),
            node_uid: case.node_uid.as_deref().map(NodeUid::from),
            phase: Phase::Queued,
            claim: case
                .node_uid
                .as_deref()
                .and_then(|uid| self.write.next.claim(uid))
                .cloned(),
            blocked_by: Vec::new(),
            plan: look.map(|look| look.plan.clone()),
            counts: look.map_or_else(|| before.unwrap_or_default(), |look| look.counts(before)),
            deadline: None,
            gives_lease_up: false,
            message: String::new(),
            lease_lost: false,
        }
    }

    /// The verdict on a drain that goes on, with its claim as this pass leaves it.
    fn conclude(&mut self, stage: Stage, node_uid: &str, limits: &TimeLimits, mut verdict: DrainVerdict) {
        let claim = self.write.next.claim(node_uid).cloned();
        let is_waiting = claim
            .as_ref()
            .is_some_and(|claim| claim.state == ClaimState::Queued || claim.state.is_asking());
        // Where this pass queued the whole need again, the node is not to go down under the old one.
        let stage = match stage {
            Stage::Evicting | Stage::Finishing | Stage::Drained if is_waiting => Stage::Claiming,
            stage => stage,
        };
        verdict.phase = stage.phase();
        verdict.deadline = claim.as_ref().map(|claim| stage.until(claim, limits));
        verdict.claim = claim;
        if let Some(until) = verdict.deadline {
            self.requeue_at.note(until);
            if until <= self.now {
                let text = LockReason::DeadlinePassed.explanation().to_owned();
                verdict
                    .blocked_by
                    .push(verdict::about_node(LockReason::DeadlinePassed, text));
            }
        }
        self.plan.drains.push(verdict);
    }

    /// Has people told, once the ledger is written.
    fn announce(&mut self, node: &NodeName, node_uid: &str, reason: LockReason, is_warning: bool, note: String) {
        self.write.announcements.push(Announcement {
            node: node.clone(),
            node_uid: node_uid.into(),
            reason,
            is_warning,
            note,
        });
    }

    /// The pods that leave without a unit of their own: those of this pass, and those that no watch shows yet.
    fn leaving(&self) -> BTreeSet<PodUid> {
        let now = self.plan.actions.iter().filter_map(|action| match action {
            Action::Evict { eviction } => Some(&eviction.pod.uid),
            _ => None,
        });
        let before = self.memory.asked_to_go(self.now);
        let all = now.chain(before);
        all.filter(|pod| !self.write.next.is_held(pod.as_str()))
            .cloned()
            .collect()
    }

    /// The end of the pass: of the claims that could be granted each by itself, those that can be granted together.
    fn close(mut self) -> Plan {
        self.reserve_retained_pods();
        self.touch_stale_budgets();
        self.write.leaving = self.leaving();
        let mut facts = self.snapshot.facts.clone();
        without(&mut facts, &self.write.leaving);
        self.write.next.count_needs(&self.snapshot.facts);
        let mut rehearsal = self.write.next.clone();
        let asks = std::mem::take(&mut self.write.grants);
        for ask in asks {
            let uid = ask.node_uid.as_str();
            match rehearsal.try_grant(uid, &ask.boot_id, &facts, self.now) {
                Ok(_) => self.write.grants.push(ask),
                Err(obstacles) => {
                    let verdict = self
                        .plan
                        .drains
                        .iter_mut()
                        .find(|verdict| verdict.node_uid.as_ref() == Some(&ask.node_uid));
                    if let Some(verdict) = verdict {
                        verdict.blocked_by.extend(obstacles.iter().map(verdict::blocked_by));
                    }
                }
            }
        }
        let is_new = self.write.base.is_none() && !self.write.next.claims().is_empty();
        let has_changed = self.write.base.is_some() && self.write.next != self.before;
        if is_new || has_changed || !self.write.grants.is_empty() || !self.write.confirms.is_empty() {
            self.plan.ledger = Some(self.write);
        }
        self.plan.requeue_at = self.requeue_at.at();
        self.plan
    }
}
