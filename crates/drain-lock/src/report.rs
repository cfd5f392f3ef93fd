//! Report: what a plan says, as people and monitoring see it. Nothing here is read for a decision.

pub mod events;
pub mod locked_by;
pub mod metrics;
pub mod status;
mod write_pace;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::reason::LockReason;
use nodeward_core::deadline::RequeueAt;
use nodeward_runtime::{EventSink, OperatorContext};

use crate::execute::{Eviction, StatusUpdate, TaskKey, TaskOutcome};
use crate::plan::Plan;
use crate::settings::Settings;
use crate::snapshot::Snapshot;

use self::events::Announcer;
use self::metrics::LockMetrics;
use self::write_pace::WritePace;

/// How often the status of one drain is written.
const STATUS_INTERVAL: SignedDuration = SignedDuration::from_secs(1);

/// How often the annotation of one budget is: it changes with each drain's turn.
const ANNOTATION_INTERVAL: SignedDuration = SignedDuration::from_secs(5);

/// Everything that people and monitoring see.
pub struct Reporter {
    metrics: LockMetrics,
    announcer: Announcer,
    events: EventSink,
    audits: bool,
    statuses: WritePace,
    annotations: WritePace,
}

impl Reporter {
    /// Registers the metrics; nothing is said yet.
    pub fn new(context: &OperatorContext<Settings>) -> Self {
        Self {
            metrics: LockMetrics::register(&context.metrics),
            announcer: Announcer::new(context.events.clone()),
            events: context.events.clone(),
            audits: false,
            statuses: WritePace::new(STATUS_INTERVAL),
            annotations: WritePace::new(ANNOTATION_INTERVAL),
        }
    }

    /// An audit sends no Events, it only logs what they would say; they are told once it is over.
    pub fn keep_audit(&mut self, audits: bool) {
        if self.audits != audits {
            self.audits = audits;
            let sink = if audits {
                self.events.silenced()
            } else {
                self.events.clone()
            };
            self.announcer = Announcer::new(sink);
        }
    }

    /// Says what the plan says. Returns what is to be written, and when more is.
    pub fn report(
        &mut self,
        snapshot: &Snapshot,
        plan: &Plan,
        now: Timestamp,
    ) -> (Vec<StatusUpdate>, Option<Timestamp>) {
        let ledger_bytes = snapshot.ledger.as_ref().map_or(0, |ledger| ledger.bytes);
        self.metrics.show(plan, &snapshot.facts, ledger_bytes, now);
        self.announcer.problems(&plan.drains);
        let mut later = RequeueAt::after(now);
        let mut updates: Vec<StatusUpdate> = Vec::new();
        let of_drain = |verdict| status::of_drain(verdict, &snapshot.facts, now);
        let mut pace = |pace: &mut WritePace, update: StatusUpdate| match pace.write(&update.about().1, now) {
            Ok(()) => updates.push(update),
            Err(until) => later.note(until),
        };
        for update in plan.drains.iter().filter_map(of_drain) {
            pace(&mut self.statuses, update);
        }
        for update in locked_by::changes(snapshot) {
            pace(&mut self.annotations, update);
        }
        updates.extend(plan.holds.iter().filter_map(status::of_hold));
        updates.extend(plan.annotated_holds.iter().filter_map(status::of_annotated_hold));
        for _ in 0..self.announcer.expired_holds(&plan.annotated_holds) {
            self.metrics.announced(LockReason::HoldExpired);
        }
        for _ in 0..self.announcer.overridden_holds(&plan.holds) {
            self.metrics.announced(LockReason::HoldOverridden);
        }
        for _ in 0..self.announcer.bypassed(&plan.bypassed) {
            self.metrics.announced(LockReason::BudgetBypassed);
        }
        (updates, later.at())
    }

    /// Says what was done, and what was not.
    pub fn acted(&mut self, key: &TaskKey, outcome: &TaskOutcome) {
        self.metrics.acted(key, outcome);
        for announcement in &outcome.announcements {
            self.metrics.announced(announcement.reason);
            self.announcer.announce(announcement);
        }
        for eviction in &outcome.evictions {
            self.evicted(eviction);
        }
    }

    fn evicted(&mut self, eviction: &Eviction) {
        self.metrics.evicted(eviction);
        self.announcer.evicted(eviction);
    }

    /// Only the leader speaks: takes back what this process has exported.
    pub fn on_leadership_lost(&mut self) {
        self.metrics.clear();
    }
}
