//! What may stop a step, one by one; [`super::may_start`] says which of these stops which.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::annotation::REMEDIATION_TIMED_OUT;
use nodeward_api::condition::MAINTENANCE_IN_PROGRESS;
use nodeward_api::label::{EXCLUDE_FROM_REMEDIATION, EXCLUDE_FROM_REMEDIATION_TRUE};
use nodeward_api::node_lease;
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::saturating_add;
use nodeward_core::drain::NodeDrains;
use nodeward_core::id::NodeName;
use nodeward_core::lease::{LeaseState, lease_state};
use nodeward_core::signal::Tristate;

use super::Planner;
use super::action::LeaseName;
use super::case::{Case, Check, Standing};
use super::enablement::Enablement;
use super::escalation::record_name;
use super::record::longest_run;
use super::start::{Candidate, Tally};
use super::storm::Storm;
use crate::policy::UNKNOWN_POSTPONES;
use crate::snapshot::{CheckName, NodeFacts, Reading};
use nodeward_core::node_health_check::{Step, ThresholdState};

/// A watch of nodes that is silent for longer may be dead, and what it told out of date.
const NODES_RELIED_ON_FOR: SignedDuration = SignedDuration::from_secs(90);

/// Nodes that a reason names at most.
const NAMED_NODES: usize = 10;

/// How soon a silent watch is looked at again.
const NODES_LOOKED_AT_AGAIN: SignedDuration = SignedDuration::from_secs(5);

impl Planner<'_> {
    pub(super) fn check_peer(&self) -> Result<(), Standing> {
        match &self.snapshot.peer {
            Reading::Known(Some(peer)) => Err(Standing::new(HealthReason::PeerActive, peer.clone())),
            Reading::Known(None) => Ok(()),
            Reading::Unknown(why) => Err(unreadable(why)),
        }
    }

    /// Nothing starts that the status does not have.
    pub(super) fn check_status_is_written(&self, check: &Check<'_>) -> Result<(), Standing> {
        match self.snapshot.memory.unwritten.get(&check.facts.name) {
            Some(why) => {
                let text = format!("the status of the NodeHealthCheck cannot be written: {why}");
                Err(Standing::new(HealthReason::RemediationRejected, text))
            }
            None => Ok(()),
        }
    }

    pub(super) fn check_settled(&self) -> Result<(), Standing> {
        match self.snapshot.settle_until.filter(|until| self.now < *until) {
            Some(until) => Err(Standing::new(HealthReason::Settling, "").until(until)),
            None => Ok(()),
        }
    }

    /// How many nodes are healthy is not told by a watch that may be dead: a bookmark comes each minute.
    pub(super) fn check_nodes_heard(&mut self) -> Result<(), Standing> {
        if self.snapshot.nodes_silent_for < NODES_RELIED_ON_FOR {
            return Ok(());
        }
        // A bookmark wakes nobody.
        self.requeue_at.note(saturating_add(self.now, NODES_LOOKED_AT_AGAIN));
        let text = format!("nodes have not been heard of for {} s", NODES_RELIED_ON_FOR.as_secs());
        Err(unreadable(&text))
    }

    pub(super) fn check_exclusion(node: &NodeFacts) -> Result<(), Standing> {
        if is_excluded(node.view.labels.get(EXCLUDE_FROM_REMEDIATION)) {
            return Err(Standing::new(HealthReason::ExcludedByLabel, ""));
        }
        Ok(())
    }

    /// Whether the node is excluded, or in maintenance, for as long as somebody wants.
    pub(super) fn is_held(&self, node: &NodeFacts) -> bool {
        let maintenance = self.maintenance(node);
        Self::check_exclusion(node).is_err() || maintenance.is_some_and(|maintenance| maintenance.until.is_none())
    }

    /// What declares the node to be in maintenance, other than its lease.
    fn maintenance(&self, node: &NodeFacts) -> Option<Standing> {
        let name = &node.view.name;
        let because = |what: String| Some(Standing::new(HealthReason::UnderMaintenance, what));
        let drain = match &self.snapshot.drains {
            NodeDrains::Known(drains) => drains.get(name),
            NodeDrains::Unknown(_) => None,
        };
        match drain {
            Some(Err(why)) => return because(format!("its NodeDrain, which cannot be read ({why})")),
            Some(Ok(drain)) if drain.is_maintenance(self.now) && drain.is_of(&node.view.uid) => {
                let phase = drain.phase.map_or("", |phase| phase.as_str());
                return because(format!("its NodeDrain ({phase})")).map(|standing| standing.until(drain.deadline));
            }
            Some(Ok(_)) | None => {}
        }
        let maintained = self.snapshot.maintenances.known();
        if maintained.is_some_and(|nodes| nodes.contains(name)) {
            return because("a NodeMaintenance".to_owned());
        }
        let declared = node.condition(MAINTENANCE_IN_PROGRESS);
        let declared = declared.filter(|condition| *condition.status == *"True")?;
        let until = saturating_add(declared.counts_since, self.policy.longest_maintenance);
        let standing = because(format!("its condition {MAINTENANCE_IN_PROGRESS}"));
        standing
            .filter(|_| self.now < until)
            .map(|standing| standing.until(until))
    }

    pub(super) fn check_maintenance(&self, check: &Check<'_>, node: &NodeFacts) -> Result<(), Standing> {
        if let (NodeDrains::Unknown(why), _) | (_, Reading::Unknown(why)) =
            (&self.snapshot.drains, &self.snapshot.maintenances)
        {
            return Err(unreadable(why));
        }
        if let Some(maintenance) = self.maintenance(node) {
            return Err(maintenance);
        }
        let lease = self.lease(&LeaseName::Node(node.view.name.clone()));
        let us = node_lease::holder_of(&check.facts.name);
        match lease_state(lease.map(|lease| &**lease), &us, self.now) {
            LeaseState::Others { holder, until } => {
                Err(Standing::new(HealthReason::LeaseTaken, holder.to_string()).until(until))
            }
            LeaseState::Free | LeaseState::Ours { .. } => Ok(()),
        }
    }

    /// A start that came to nothing is not tried again at once.
    pub(super) fn check_refusal(&self, check: &Check<'_>, candidate: &Candidate) -> Result<(), Standing> {
        let refusal = self.snapshot.memory.refusal(&check.facts.name, &candidate.node);
        match refusal.filter(|refusal| refusal.step == candidate.step && self.now < refusal.retry_at) {
            Some(refusal) => Err(refusal.standing.clone().until(refusal.retry_at)),
            None => Ok(()),
        }
    }

    pub(super) fn check_upgrade(&mut self, node: &NodeFacts) -> Result<(), Standing> {
        let answer = self.policy.upgrade_signal.evaluate(&self.snapshot.signals, &node.view);
        let told = answer
            .notes
            .first()
            .map(|note| note.message.clone())
            .unwrap_or_default();
        if answer.truth == Tristate::Unknown {
            return self.postpone(node, HealthReason::UpgradeSignalUnknown, told);
        }
        self.forget_unknown(node, HealthReason::UpgradeSignalUnknown);
        if answer.truth == Tristate::Yes {
            return Err(Standing::new(HealthReason::ClusterUpgrading, told));
        }
        Ok(())
    }

    /// Waits for what cannot be told, but not for ever.
    ///
    /// # Errors
    /// While it is waited for.
    pub(super) fn postpone(&mut self, node: &NodeFacts, reason: HealthReason, told: String) -> Result<(), Standing> {
        let key = (node.view.name.clone(), reason);
        let since = *self.plan.found.unknown_since.entry(key).or_insert(self.now);
        let until = saturating_add(since, UNKNOWN_POSTPONES);
        if until <= self.now {
            return Ok(());
        }
        Err(Standing::new(reason, told).until(until))
    }

    /// It can be told.
    pub(super) fn forget_unknown(&mut self, node: &NodeFacts, reason: HealthReason) {
        self.plan.found.unknown_since.remove(&(node.view.name.clone(), reason));
    }

    /// Whoever remediates a node first has it to itself, be it a NodeHealthCheck that is gone, or somebody else's controller.
    pub(super) fn check_other_owners(&self, check: &Check<'_>, case: &Case<'_>, tally: &Tally) -> Result<(), Standing> {
        let mut running_for = tally.running_for.get(&case.name).into_iter().flatten();
        if let Some(other) = running_for.find(|other| **other != check.facts.name) {
            let text = format!("NodeHealthCheck {other}");
            return Err(Standing::new(HealthReason::RemediatedByAnotherCheck, text));
        }
        let others = self.index.remediations_of(&case.name).iter();
        for live in others.filter(|live| live.runs() && !live.owners.contains(&check.facts.uid)) {
            let Some(owner) = self.index.owner(live) else {
                let what = format!("{} {}", live.kind.kind, live.key);
                return Err(Standing::new(HealthReason::ForeignRemediation, what));
            };
            // It may be done with the node, and its remediator not before it is told, or had the time of its step.
            let step = owner
                .spec
                .step_of(&live.kind, &live.key.namespace, live.template.as_deref());
            let ends = saturating_add(live.created, longest_run(step, &owner.spec));
            let is_to_be_told = !owner.spec.dry_run && self.index.takes_annotation(live, REMEDIATION_TIMED_OUT);
            if self.now < ends || is_to_be_told {
                let text = format!("NodeHealthCheck {}", owner.name);
                let standing = Standing::new(HealthReason::RemediatedByAnotherCheck, text);
                return Err(standing.until((self.now < ends).then_some(ends)));
            }
        }
        Ok(())
    }

    /// No second remediator is at work on a machine: what is left of an earlier node, outage or step has been told to stop, and
    /// where it does not keep its name from the next it has had the time to do so.
    pub(super) fn check_leftovers(&self, case: &Case<'_>, step: &Step) -> Result<(), Standing> {
        let gone = |text: String| Standing::new(HealthReason::EarlierRemediation, text);
        let chain = &case.chain;
        let mut awaited = chain.awaited.iter();
        if let Some(record) = awaited.find(|record| record.timed_out.is_none() && self.now < record.ends()) {
            let text = format!("the node is not done yet with {}", record_name(record));
            return Err(gone(text).until(record.ends()));
        }
        if let Some(live) = chain.untold().next() {
            if !self.index.takes_annotation(live, REMEDIATION_TIMED_OUT) {
                return Err(self.cannot_be_told(live));
            }
            let text = format!("{} {} is being told that its time is over", live.kind.kind, live.key);
            return Err(Standing::new(HealthReason::Escalating, text));
        }
        for record in chain.orphans.iter().chain(&chain.earlier) {
            let text = || {
                format!(
                    "{} is of an earlier node of the name, or of an earlier outage",
                    record_name(record)
                )
            };
            let Some(told) = record.timed_out else {
                return Err(gone(text()));
            };
            let until = saturating_add(told, self.policy.settle);
            if self.supports_multiple(step) && self.now < until {
                return Err(gone(text()).until(until));
            }
        }
        Ok(())
    }

    /// The name of the step's remediation is free.
    pub(super) fn check_name(
        &self,
        check: &Check<'_>,
        case: &Case<'_>,
        node: &NodeFacts,
        candidate: &Candidate,
    ) -> Result<(), Standing> {
        let until = self.waits_for_name(check, case, node, candidate.step);
        let (Some(until), Some(step)) = (until, check.spec.steps.get(candidate.step)) else {
            return Ok(());
        };
        let wanted = self.identity(check, node, step, self.now);
        let what = format!("{} {}", wanted.kind.kind, wanted.key);
        let live = self.index.named(&wanted.kind, &wanted.key);
        let is_ours = live.is_some_and(|live| live.owners.contains(&check.facts.uid));
        let stopped = if is_ours {
            // Of an earlier step, node or outage, and on its way out.
            let why = if live.is_some_and(|live| live.deleting.is_some()) {
                "is still being deleted"
            } else {
                "has its name until it is deleted"
            };
            Standing::new(HealthReason::EarlierRemediation, format!("{what} {why}"))
        } else {
            Standing::new(HealthReason::ForeignRemediation, what)
        };
        Err(stopped.until((self.now < until && until < Timestamp::MAX).then_some(until)))
    }
}

/// Whether a node's label of that name excludes it; any other value is ignored.
pub fn is_excluded(label: Option<&str>) -> bool {
    label == Some(EXCLUDE_FROM_REMEDIATION_TRUE)
}

/// What cannot be read may forbid the step.
pub(super) fn unreadable(why: &str) -> Standing {
    Standing::new(HealthReason::SourceUnreadable, why)
}

pub(super) fn check_enabled(check: &Check<'_>) -> Result<(), Standing> {
    let disabled = |why: &str| Err(Standing::new(HealthReason::CheckDisabled, why));
    if check.facts.deleting {
        return disabled("the NodeHealthCheck is being deleted");
    }
    match &check.enablement {
        Enablement::Enabled if check.writes_selector() => disabled("its selector is being written"),
        Enablement::Enabled => Ok(()),
        Enablement::Disabled(_, why) | Enablement::NotKnown(why) => disabled(why),
    }
}

pub(super) fn check_paused(check: &Check<'_>) -> Result<(), Standing> {
    if check.spec.pauses.is_empty() {
        return Ok(());
    }
    Err(Standing::new(HealthReason::CheckPaused, check.spec.pauses.join("; ")))
}

pub(super) fn check_storm(check: &Check<'_>) -> Result<(), Standing> {
    // While one is active the threshold refuses.
    let (Storm::CoolingDown { since }, Some(cooldown)) = (check.storm, check.spec.storm_cooldown) else {
        return Ok(());
    };
    let until = saturating_add(since, cooldown);
    Err(Standing::new(HealthReason::StormCooldown, "").until(until))
}

pub(super) fn check_threshold(check: &Check<'_>) -> Result<(), Standing> {
    match &check.threshold {
        ThresholdState::Holds => Ok(()),
        ThresholdState::TooFewHealthy(text) | ThresholdState::Unusable(text) => {
            Err(Standing::new(HealthReason::TooFewHealthy, text.clone()))
        }
    }
}

pub(super) fn check_concurrency(check: &Check<'_>, case: &Case<'_>, tally: &Tally) -> Result<(), Standing> {
    // Its own place is not in its way.
    let is_in_its_way =
        |(node, checks): &(&NodeName, &BTreeSet<CheckName>)| **node != case.name && checks.contains(&check.facts.name);
    keep_limit(
        check,
        tally.running_for.iter().filter(is_in_its_way).map(|(node, _)| node),
    )
}

/// A node keeps its slot between two steps. One that is at its end has given it up, and comes back for a step that was added,
/// or for another limit: it waits for those who are at work.
pub(super) fn check_slot_is_kept(check: &Check<'_>, case: &Case<'_>, now: Timestamp) -> Result<(), Standing> {
    let cases = check.cases.values();
    let others = cases.filter(|other| other.name != case.name && other.is_at_work(now));
    keep_limit(check, others.map(|other| &other.name))
}

fn keep_limit<'n>(check: &Check<'_>, others: impl Iterator<Item = &'n NodeName> + Clone) -> Result<(), Standing> {
    let Some(limit) = check.spec.max_concurrent else {
        return Ok(());
    };
    let running = others.clone().count();
    if running < limit {
        return Ok(());
    }
    let names: Vec<&str> = others.take(NAMED_NODES).map(NodeName::as_str).collect();
    let text = format!("{running} of {limit}: {}", names.join(", "));
    Err(Standing::new(HealthReason::ConcurrencyLimitReached, text))
}
