//! What the remediations of one node are: made in one place from the status, the remediations that are there, and the node. A
//! record is not a remediation: whether a *node* is being remediated tells [`Chain::runs`].

use jiff::Timestamp;
use nodeward_api::node_health_check::UnhealthyNode;

use super::expiry::Health;
use super::index::Live;
use super::record::{Known, Record, Stage};
use super::unhealthy_period::UnhealthyPeriod;
use nodeward_core::node_health_check::CheckSpec;

/// The remediations of one node.
#[derive(Debug, Clone, Default)]
pub struct Chain<'a> {
    /// Of the present node and its present outage, in the order in which they were started.
    pub records: Vec<Record<'a>>,
    /// Of an earlier node, or of one that is gone, whose remediator is not done: they are left alone.
    pub awaited: Vec<Record<'a>>,
    /// Of an earlier node, or of one that is gone: they are to be deleted.
    pub orphans: Vec<Record<'a>>,
    /// Of an earlier outage of the present node: they are to be deleted.
    pub earlier: Vec<Record<'a>>,
    /// A step that was refused too often to keep its slot.
    pub refused: Option<usize>,
    /// Whether the node is kept from further steps, and no end of that is known: it keeps no slot for one.
    pub is_held: bool,
    /// When the present outage began.
    pub began: Timestamp,
}

/// What comes next in a chain whose node is unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This record's step runs.
    Runs(usize),
    /// This step is to be started.
    Start(usize),
    /// There is no further step.
    Nothing,
}

impl<'a> Chain<'a> {
    /// Puts together what the status and the remediations say of a node.
    pub fn new(entry: Option<&UnhealthyNode>, live: &[Live<'a>], known: &Known<'_, 'a>) -> Self {
        let mut unclaimed: Vec<Live<'a>> = live.to_vec();
        let mut chain = Self::default();
        for remediation in entry.into_iter().flat_map(UnhealthyNode::all_remediations) {
            let Some(mut record) = known.read(remediation) else {
                continue;
            };
            let is_it = |live: &Live<'a>| match &record.uid {
                Some(uid) => live.uid == *uid,
                None => live.key == record.key && live.kind.is_same(&record.kind),
            };
            if let Some(position) = unclaimed.iter().position(is_it) {
                record.see(unclaimed.swap_remove(position), known.now);
            }
            chain.sort_in(record, known);
        }
        for live in unclaimed {
            chain.sort_in(known.found(live), known);
        }
        chain.records.sort_by_key(|record| record.started);
        chain.part_from_earlier_outage(known.unhealthy_period);
        chain.forget_replaced();
        chain
    }

    fn sort_in(&mut self, record: Record<'a>, known: &Known<'_, 'a>) {
        if record.is_of(known.node) {
            self.records.push(record);
        } else if !record.may_be_there() {
            // Nothing is left of it.
        } else if record.is_awaited(known.node.is_some(), known.health, known.now) {
            self.awaited.push(record);
        } else {
            self.orphans.push(record);
        }
    }

    /// A remediation of an earlier outage is no step of this one: or else a machine would be deleted hours later, without the
    /// steps before that.
    fn part_from_earlier_outage(&mut self, period: Option<&UnhealthyPeriod>) {
        self.began = period.map_or(Timestamp::MIN, |period| period.since);
        // The API server tells whole seconds: one that was deleted in the second in which the outage began was so before it.
        let was_deleted = |live: Live<'_>| live.deleting.is_some_and(|deleted| deleted <= self.began);
        let is_earlier = |record: &mut Record<'_>| record.started < self.began || record.live.is_some_and(was_deleted);
        let earlier = self.records.extract_if(.., is_earlier);
        self.earlier = earlier.filter(Record::may_be_there).collect();
        for record in &mut self.earlier {
            // That its step was over is no matter any more: its remediator is at work until it is told.
            record.timed_out = record
                .timed_out
                .filter(|_| record.live.is_none_or(|live| live.timed_out.is_some()));
        }
    }

    /// Forgets what is gone once its step is there again.
    fn forget_replaced(&mut self) {
        let there = self.records.iter().filter(|record| record.live.is_some());
        let there: Vec<Option<usize>> = there.map(|record| record.step).collect();
        let is_gone = |record: &Record<'_>| record.stage() == Stage::Gone || record.is_lost;
        self.records
            .retain(|record| !is_gone(record) || !there.contains(&record.step));
    }

    /// Whether the node is being remediated: it takes a slot, and its lease is held. It runs from its intent until it is
    /// healthy, its last step is over, or the remediation of its present step is gone or an orphan; between two steps, too,
    /// unless the next is refused, or the node held.
    pub fn runs(&self, health: &Health, spec: &CheckSpec, now: Timestamp) -> bool {
        (self.intent().is_some() && !health.is_fine()) || self.has_begun(health, spec, now)
    }

    /// The same of what is more than intended.
    pub fn has_begun(&self, health: &Health, spec: &CheckSpec, now: Timestamp) -> bool {
        let is_possible = |next: usize| !self.is_held && self.refused != Some(next);
        let is_next = |next: usize| next < spec.steps.len() && self.gone(next).is_none() && is_possible(next);
        let is_between = |over: usize| is_next(over + 1);
        self.is_at_work(health, now) || (!health.is_fine() && self.step_over().is_some_and(is_between))
    }

    /// Whether a remediator is at work on the node, or may be.
    pub fn is_at_work(&self, health: &Health, now: Timestamp) -> bool {
        let is_running = |record: &Record<'_>| record.stage() == Stage::Running;
        // Their node may fail again before they are being deleted.
        let may_go_on =
            |record: &Record<'_>| record.may_be_there() && !record.is_deleting() && record.timed_out.is_none();
        let goes_on = |record: &Record<'_>| {
            if health.is_fine() {
                may_go_on(record)
            } else {
                is_running(record)
            }
        };
        let is_awaited = |record: &Record<'_>| is_running(record) && now < record.ends();
        let was_deleted = |live: Live<'_>| live.deleting.is_some_and(|deleted| deleted < self.began);
        let is_to_be_told = |record: &Record<'_>| is_running(record) && !record.live.is_some_and(was_deleted);
        self.awaited.iter().any(is_awaited)
            || self.earlier.iter().any(is_to_be_told)
            || self.records.iter().any(goes_on)
    }

    /// The highest step that is over: an edited chain is not begun anew.
    pub fn step_over(&self) -> Option<usize> {
        let over = self.records.iter().filter(|record| record.stage() == Stage::Over);
        over.filter_map(|record| record.step).max()
    }

    /// What comes next. A step that is gone is started again.
    pub fn next(&self, spec: &CheckSpec) -> Next {
        let mut records = self.records.iter();
        if let Some(at) = records.position(|record| record.stage() == Stage::Running) {
            return Next::Runs(at);
        }
        match self.step_over().map_or(0, |step| step + 1) {
            step if step < spec.steps.len() => Next::Start(step),
            _ => Next::Nothing,
        }
    }

    /// All remediations that are there, or may be.
    pub fn all(&self) -> impl Iterator<Item = &Record<'a>> {
        let others = self.awaited.iter().chain(&self.orphans).chain(&self.earlier);
        self.records.iter().chain(others)
    }

    /// The remediations that are there, of the present node.
    pub fn live(&self) -> impl Iterator<Item = Live<'a>> {
        self.records.iter().filter_map(|record| record.live)
    }

    /// Remediations whose step is over, and whose remediators may be at work for all they have been told.
    pub fn untold(&self) -> impl Iterator<Item = Live<'a>> {
        let over = self.records.iter().filter(|record| record.stage() == Stage::Over);
        over.filter_map(|record| record.live).filter(|live| live.runs())
    }

    /// Whether any remediation is there, or may be, of whichever node.
    pub fn is_there(&self) -> bool {
        self.all().any(Record::may_be_there)
    }

    /// Whether an earlier step is over: a step that starts then is an escalation, unless its own remediation is gone. Steps
    /// that are not in the specification any more lead to no other.
    pub fn is_escalation(&self, step: usize) -> bool {
        let is_at = |stage: Stage, of: &dyn Fn(usize) -> bool| {
            let mut records = self.records.iter();
            records.any(|record| record.stage() == stage && record.step.is_some_and(of))
        };
        is_at(Stage::Over, &|over| over < step) && !is_at(Stage::Gone, &|gone| gone == step)
    }

    /// The record of a step whose remediation is gone.
    pub fn gone(&self, step: usize) -> Option<&Record<'a>> {
        let mut gone = self.records.iter().filter(|record| record.stage() == Stage::Gone);
        gone.find(|record| record.step == Some(step))
    }

    /// The intended remediation.
    pub fn intent(&self) -> Option<&Record<'a>> {
        self.records.iter().find(|record| record.stage() == Stage::Intended)
    }

    /// Withdraws what is intended. What is gone is kept until its step is there again, for it starts as a first step does.
    pub fn withdraw_intent(&mut self) {
        self.records.retain(|record| record.stage() != Stage::Intended);
    }
}
