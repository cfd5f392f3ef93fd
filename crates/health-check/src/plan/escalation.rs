//! The chain of an unhealthy node: the step that runs, when it is over, and what comes next.

use jiff::Timestamp;
use nodeward_api::annotation;
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::{is_due, saturating_add};

use super::Planner;
use super::action::RemediationChange;
use super::case::{Case, Check, Standing};
use super::chain::Next;
use super::evidence::NodeEvidence;
use super::index::Live;
use super::record::{Record, Stage};
use super::start::Candidate;
use crate::snapshot::NodeFacts;

impl Planner<'_> {
    /// Moves the chain of an unhealthy node on; answers with the step that is to be started.
    pub(super) fn escalate(&mut self, check: &Check<'_>, case: &mut Case<'_>, node: &NodeFacts) -> Option<Candidate> {
        let evidence = case.expired()?.evidence(node);
        self.end_earlier(check, case, node, &evidence);
        loop {
            match case.chain.next(check.spec) {
                // An intent beside it was made before it was seen.
                Next::Runs(_) | Next::Nothing if case.chain.intent().is_some() => {
                    case.chain.withdraw_intent();
                }
                Next::Runs(at) => {
                    if !self.run_step(check, case, node, at) {
                        return None;
                    }
                }
                Next::Start(step) if self.clear_replaced(check, case, node, step, &evidence) => return None,
                Next::Start(step) => return self.start_step(check, case, node, step),
                Next::Nothing => {
                    if !self.exhaust(check, case, node, &evidence) {
                        return None;
                    }
                }
            }
        }
    }

    /// The remediators of an earlier outage, and of steps that are over though nobody has told them, are told that their time is
    /// over; what is of an earlier outage goes then, and counts though nobody has seen it end.
    fn end_earlier(&mut self, check: &Check<'_>, case: &Case<'_>, node: &NodeFacts, evidence: &NodeEvidence) {
        for live in case.chain.untold() {
            self.tell_that_time_is_over(check, live, evidence);
        }
        self.count_outage(check, node, &case.chain.earlier, case.chain.began);
        for record in &case.chain.earlier {
            self.tell_and_delete(check, record, evidence);
        }
    }

    /// Tells a remediator that its time is over, unless it was told, or does not listen. Answers whether it is being told.
    pub(super) fn tell_that_time_is_over(
        &mut self,
        check: &Check<'_>,
        live: Live<'_>,
        evidence: &NodeEvidence,
    ) -> bool {
        let takes = self.index.takes_annotation(live, annotation::REMEDIATION_TIMED_OUT);
        let is_told = live.timed_out.is_none() && takes && !check.only_reports();
        if is_told {
            let change = RemediationChange::TimedOut(self.now_to_the_second());
            self.annotate(check, live, change, Some(evidence.clone()));
        }
        is_told
    }

    /// No step starts beside a remediator that does not learn that its time is over.
    pub(super) fn cannot_be_told(&self, live: Live<'_>) -> Standing {
        let (kind, key) = (&live.kind.kind, &live.key);
        let text = format!("{kind} {key} may not be annotated, so its remediator cannot be told to stop");
        match self
            .index
            .refused_annotation(&live.uid, annotation::REMEDIATION_TIMED_OUT)
        {
            Some((why, again)) => {
                Standing::new(HealthReason::RemediationRejected, format!("{text}: {why}")).until(*again)
            }
            None => Standing::new(HealthReason::PermissionMissing, text),
        }
    }

    /// The step that runs. Answers whether it is over by now.
    fn run_step(&mut self, check: &Check<'_>, case: &mut Case<'_>, node: &NodeFacts, at: usize) -> bool {
        let record = &case.chain.records[at];
        let ends = record.ends();
        let succeeded = record.live.and_then(|live| live.succeeded.as_deref());
        let has_failed = succeeded == Some("False");
        if !has_failed && !is_due(ends, self.now) {
            case.standing = Standing::new(HealthReason::RemediationRunning, record_name(record)).until(ends);
            return false;
        }
        if let Err(stopped) = self.may_end(check, case, node) {
            case.standing = stopped;
            return false;
        }
        let record = &case.chain.records[at];
        // A single template has no further step of which its remediator would have to be told.
        let is_told = succeeded != Some("True") && (check.spec.escalates || !has_failed);
        let live = record.live.filter(|live| is_told && live.timed_out.is_none());
        case.standing = Standing::new(HealthReason::Escalating, record_name(record));
        if check.only_reports() {
            return false;
        }
        let evidence = case.expired().map(|unhealthy| unhealthy.evidence(node));
        match live.zip(evidence) {
            // The remediator is told first; the status and the next step follow once that is seen.
            Some((live, evidence)) if self.tell_that_time_is_over(check, live, &evidence) => false,
            Some((live, _)) if has_next(check, record) => {
                case.standing = self.cannot_be_told(live);
                false
            }
            _ => {
                case.chain.records[at].timed_out = Some(self.now_to_the_second());
                true
            }
        }
    }

    /// No step is left. The chain begins anew once all of its remediations are gone: somebody has deleted them, or with backoff
    /// they are deleted after a while. Answers whether it does.
    fn exhaust(&mut self, check: &Check<'_>, case: &mut Case<'_>, node: &NodeFacts, evidence: &NodeEvidence) -> bool {
        if let Err(stopped) = self.check_followed(check).and_then(|()| self.check_settled()) {
            case.standing = stopped;
            return false;
        }
        case.standing = Standing::new(HealthReason::ChainExhausted, "no template is left");
        let records = &case.chain.records;
        let is_there = case.is_starting || records.iter().any(Record::may_be_there);
        let ended = records.iter().filter_map(|record| record.timed_out).max();
        let Some(ended) = ended.filter(|_| !is_there || check.spec.backoff.is_some()) else {
            return false;
        };
        let begun = records.iter().map(|record| record.started).min().unwrap_or(ended);
        let Some(history) = self.count_end(check, node, begun, ended.min(self.now)) else {
            case.standing = self.not_counted(node);
            return false;
        };
        if !is_there {
            if !check.only_reports() {
                case.chain.records.clear();
            }
            return !check.only_reports();
        }
        let retry_at = saturating_add(ended, history.delay(check.spec.backoff.as_ref()));
        if !is_due(retry_at, self.now) {
            case.standing.until = Some(retry_at);
            return false;
        }
        if let Err(stopped) = self.check_any_step(check, node) {
            case.standing = stopped;
            return false;
        }
        if !check.only_reports() {
            for record in &case.chain.records {
                self.delete(check, record, evidence);
            }
        }
        false
    }

    /// Deletes what is left of a template that somebody has replaced, and keeps its name from the step in its place: nobody else
    /// does before the node is healthy. Answers whether that is under way.
    fn clear_replaced(
        &mut self,
        check: &Check<'_>,
        case: &mut Case<'_>,
        node: &NodeFacts,
        step: usize,
        evidence: &NodeEvidence,
    ) -> bool {
        let Some(step) = check.spec.steps.get(step) else {
            return false;
        };
        let wanted = self.identity(check, node, step, self.now);
        let named = self.index.named(&wanted.kind, &wanted.key);
        let is_replaced = |record: &&Record<'_>| {
            let has_name = record
                .live
                .zip(named)
                .is_some_and(|(live, named)| live.uid == named.uid);
            has_name && !record.is_deleting() && record.step.is_none() && record.stage() == Stage::Over
        };
        let Some(record) = case.chain.records.iter().find(is_replaced) else {
            return false;
        };
        if let Err(stopped) = self.check_any_step(check, node) {
            case.standing = stopped;
            return true;
        }
        let ended = record.timed_out.unwrap_or(self.now);
        if self.count_end(check, node, record.started, ended).is_none() {
            case.standing = self.not_counted(node);
            return true;
        }
        let text = format!(
            "{} is of a template that was replaced, and is deleted first",
            record_name(record)
        );
        case.standing = Standing::new(HealthReason::EarlierRemediation, text);
        self.tell_and_delete(check, record, evidence);
        true
    }

    /// The step that is to be started, or a later one whose turn has come because the name of its remediation is free.
    fn start_step(
        &mut self,
        check: &Check<'_>,
        case: &mut Case<'_>,
        node: &NodeFacts,
        step: usize,
    ) -> Option<Candidate> {
        let intent = case.chain.intent().and_then(|intent| intent.step);
        let mut due = step;
        while intent.is_some_and(|intent| due < intent && intent < check.spec.steps.len())
            || self.name_is_waited_out(check, case, node, due)
        {
            due += 1;
        }
        // A step whose predecessor did not run in this outage passes all gates.
        let is_escalation = due == step && case.chain.is_escalation(step);
        if !case.is_selected && !is_escalation {
            case.chain.withdraw_intent();
            // Without an earlier step that is over nothing would ever begin it again.
            if case.chain.step_over().is_none() {
                case.chain.records.retain(|record| record.stage() != Stage::Gone);
            }
            case.standing = Standing::new(
                HealthReason::ExcludedByLabel,
                "the NodeHealthCheck no longer selects the node",
            );
            return None;
        }
        let gone = case.chain.gone(due).map(|record| record.started);
        if let Some(started) = gone
            && self.count_end(check, node, started, self.now_to_the_second()).is_none()
        {
            case.standing = self.not_counted(node);
            return None;
        }
        Some(Candidate {
            node: case.name.clone(),
            step: due,
            is_escalation,
            expired: case.expired()?.expires,
            intended: case.chain.intent().map(|intent| intent.started),
        })
    }

    /// What has ended is being counted, or may not be: uncounted repeats would make a loop of reboots.
    fn not_counted(&self, node: &NodeFacts) -> Standing {
        let annotation = annotation::REMEDIATIONS;
        match self.index.refused_annotation(node.view.uid.as_str(), annotation) {
            Some((why, _)) => Standing::new(
                HealthReason::RemediationRejected,
                format!("the node may not be annotated {annotation}: {why}"),
            ),
            None => Standing::new(HealthReason::StartingRemediation, "its remediation is gone"),
        }
    }

    /// Whether a step has waited for its own timeout for the name of its remediation, which another one has; the last step
    /// waits until it is free.
    fn name_is_waited_out(&self, check: &Check<'_>, case: &Case<'_>, node: &NodeFacts, step: usize) -> bool {
        let is_last = step + 1 >= check.spec.steps.len();
        let waits = self.waits_for_name(check, case, node, step);
        !is_last && waits.is_some_and(|until| is_due(until, self.now))
    }

    /// Until when a step waits for the name of its remediation, which another one has; `None`: it is free.
    pub(super) fn waits_for_name(
        &self,
        check: &Check<'_>,
        case: &Case<'_>,
        node: &NodeFacts,
        step: usize,
    ) -> Option<Timestamp> {
        let step = check.spec.steps.get(step)?;
        let wanted = self.identity(check, node, step, self.now);
        let named = self.index.named(&wanted.kind, &wanted.key)?;
        let over = case.chain.records.iter().filter_map(|record| record.timed_out).max();
        // Whoever makes the NodeHealthCheck, or its steps, anew on a node that has long been unhealthy waits from then on.
        let in_its_way = named.deleting.unwrap_or(named.created).min(self.now);
        let since = over.max(Some(case.expired()?.expires)).max(Some(in_its_way))?;
        Some(
            step.timeout
                .map_or(Timestamp::MAX, |timeout| saturating_add(since, timeout)),
        )
    }
}

/// Whether a step follows the record's.
fn has_next(check: &Check<'_>, record: &Record<'_>) -> bool {
    record.step.is_none_or(|step| step + 1 < check.spec.steps.len())
}

/// A remediation, for people.
pub(super) fn record_name(record: &Record<'_>) -> String {
    let more = if record.is_unseen() {
        ", whose kind is not listed"
    } else if record.is_deleting() {
        ", which is being deleted"
    } else {
        ""
    };
    format!("{} {}{more}", record.kind.kind, record.key)
}
