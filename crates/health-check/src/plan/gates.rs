//! What stops a remediation: some things stop every step, some only the first.

use std::sync::Arc;

use jiff::SignedDuration;
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::saturating_add;
use nodeward_core::drain::NodeDrains;
use nodeward_core::id::NodeName;
use nodeward_core::signal::Tristate;

use super::case::{Case, Check, Standing};
use super::enablement::Enablement;
use super::start::Tally;
use super::storm::Storm;
use super::{Planner, backoff, lease};
use crate::policy::UNKNOWN_POSTPONES;
use crate::snapshot::{NodeFacts, Reading};
use nodeward_core::node_health_check::ThresholdState;

/// A watch of nodes that is silent for longer may be dead, and what it told out of date.
const NODES_RELIED_ON_FOR: SignedDuration = SignedDuration::from_secs(90);

/// How soon a silent watch is looked at again.
const NODES_LOOKED_AT_AGAIN: SignedDuration = SignedDuration::from_secs(5);

impl Planner<'_> {
    /// What stops every step of the node's chain.
    ///
    /// # Errors
    /// With what does.
    pub(super) fn check_any_step(
        &mut self,
        check: &Check<'_>,
        name: &NodeName,
        node: &NodeFacts,
    ) -> Result<(), Standing> {
        self.check_followed(check)?;
        self.check_node(check, name, node)?;
        self.check_upgrade(node)
    }

    /// What stops the step that a candidate asks for: what is cheap to tell first.
    ///
    /// # Errors
    /// With what does.
    pub(super) fn check_step(
        &mut self,
        check: &Check<'_>,
        case: &Case<'_>,
        node: &NodeFacts,
        is_escalation: bool,
        tally: &Tally<'_>,
    ) -> Result<(), Standing> {
        if is_escalation {
            return self.check_any_step(check, &case.name, node);
        }
        self.check_followed(check)?;
        self.check_other_owners(check, case, tally)?;
        self.check_node(check, &case.name, node)?;
        self.check_first_step(check, case, node, tally)?;
        // What is not known of either postpones from now on: the two waits do not add up.
        let ceph = self.check_ceph(node, tally);
        self.check_upgrade(node)?;
        ceph
    }

    /// What stops a NodeHealthCheck as a whole.
    pub(super) fn check_followed(&self, check: &Check<'_>) -> Result<(), Standing> {
        self.check_peer()?;
        if let Reading::Unknown(why) = &self.snapshot.machine_api.health_checks {
            return Err(unreadable(why));
        }
        check_enabled(check)?;
        check_paused(check)?;
        self.check_settled()
    }

    /// What stops a node.
    fn check_node(&mut self, check: &Check<'_>, name: &NodeName, node: &NodeFacts) -> Result<(), Standing> {
        self.check_exclusion(check, node)?;
        self.check_maintenance(check, name)?;
        self.check_refusal(check, name)
    }

    /// What stops only the first step of a chain.
    fn check_first_step(
        &mut self,
        check: &Check<'_>,
        case: &Case<'_>,
        node: &NodeFacts,
        tally: &Tally<'_>,
    ) -> Result<(), Standing> {
        self.check_nodes_heard()?;
        check_threshold(check)?;
        check_storm(check)?;
        if let Some(backoff) = &check.spec.backoff
            && let Some(until) = backoff::waits_until(node, backoff, self.now)
        {
            return Err(Standing::new(HealthReason::BackingOff, "").until(until));
        }
        self.check_control_plane(node, tally)?;
        check_concurrency(check, case, tally)
    }

    fn check_peer(&self) -> Result<(), Standing> {
        match &self.snapshot.peer {
            Reading::Known(Some(peer)) => Err(Standing::new(HealthReason::PeerActive, peer.clone())),
            Reading::Known(None) => Ok(()),
            Reading::Unknown(why) => Err(unreadable(why)),
        }
    }

    fn check_settled(&self) -> Result<(), Standing> {
        match self.snapshot.settle_until.filter(|until| self.now < *until) {
            Some(until) => Err(Standing::new(HealthReason::Settling, "").until(until)),
            None => Ok(()),
        }
    }

    /// How many nodes are healthy is not told by a watch that may be dead: a bookmark comes each minute.
    fn check_nodes_heard(&self) -> Result<(), Standing> {
        if self.snapshot.nodes_silent_for < NODES_RELIED_ON_FOR {
            return Ok(());
        }
        let text = format!("nodes have not been heard of for {} s", NODES_RELIED_ON_FOR.as_secs());
        // A bookmark wakes nobody.
        Err(unreadable(&text).until(saturating_add(self.now, NODES_LOOKED_AT_AGAIN)))
    }

    fn check_exclusion(&mut self, check: &Check<'_>, node: &NodeFacts) -> Result<(), Standing> {
        if self.is_excluded(node, check) {
            return Err(Standing::new(HealthReason::ExcludedByLabel, ""));
        }
        Ok(())
    }

    fn check_maintenance(&self, check: &Check<'_>, name: &NodeName) -> Result<(), Standing> {
        if let Some(why) = self.maintenance_unknown() {
            return Err(unreadable(why));
        }
        if let Some(maintenance) = self.index.maintenance(name) {
            return Err(Standing {
                until: maintenance.until,
                ..Standing::new(HealthReason::UnderMaintenance, maintenance.because.clone())
            });
        }
        match lease::taken_by(self.index, name, check, self.now) {
            Some((holder, until)) => Err(Standing::new(HealthReason::LeaseTaken, holder.to_string()).until(until)),
            None => Ok(()),
        }
    }

    /// Why it is not known which nodes are in maintenance, if it is not.
    pub(super) fn maintenance_unknown(&self) -> Option<&str> {
        match (&self.snapshot.drains, &self.snapshot.maintenances) {
            (NodeDrains::Unknown(why), _) | (_, Reading::Unknown(why)) => Some(why),
            (NodeDrains::Known(_), Reading::Known(_)) => None,
        }
    }

    /// A start that came to nothing is not tried again at once.
    fn check_refusal(&self, check: &Check<'_>, name: &NodeName) -> Result<(), Standing> {
        match self.snapshot.memory.refusal(&check.facts.name, name, self.now) {
            Some(refusal) => Err(Standing::new(refusal.reason, refusal.detail.clone()).until(refusal.retry_at)),
            None => Ok(()),
        }
    }

    fn check_upgrade(&mut self, node: &NodeFacts) -> Result<(), Standing> {
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
        let since = *self.plan.unknown_since.entry(key).or_insert(self.now);
        let until = saturating_add(since, UNKNOWN_POSTPONES);
        if until <= self.now {
            return Ok(());
        }
        Err(Standing::new(reason, told).until(until))
    }

    /// It can be told.
    pub(super) fn forget_unknown(&mut self, node: &NodeFacts, reason: HealthReason) {
        self.plan.unknown_since.remove(&(node.view.name.clone(), reason));
    }

    /// Whoever remediates a node first has it to itself, be it a NodeHealthCheck that is gone: a finalizer may keep what it
    /// began.
    fn check_other_owners(&self, check: &Check<'_>, case: &Case<'_>, tally: &Tally<'_>) -> Result<(), Standing> {
        let by_another = |other: &str| {
            let text = format!("NodeHealthCheck {other}");
            Err(Standing::new(HealthReason::RemediatedByAnotherCheck, text))
        };
        let others = self
            .snapshot
            .checks
            .values()
            .filter(|other| other.uid != check.facts.uid);
        for other in others {
            if !self.index.owned_on(&other.uid, &case.name).is_empty() {
                return by_another(&other.name);
            }
        }
        match tally.starting.get(&case.name) {
            Some(other) if **other != *check.facts.name => return by_another(other),
            _ => {}
        }
        self.index.remediations_of(&case.name).iter().try_for_each(|live| {
            let what = format!("{} {}", live.kind.kind, live.key);
            foreign_remediation(&live.owners, check, &what)
        })
    }
}

/// What cannot be read may forbid the step.
pub(super) fn unreadable(why: &str) -> Standing {
    Standing::new(HealthReason::SourceUnreadable, why)
}

fn check_enabled(check: &Check<'_>) -> Result<(), Standing> {
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

fn check_paused(check: &Check<'_>) -> Result<(), Standing> {
    if check.spec.pauses.is_empty() {
        return Ok(());
    }
    Err(Standing::new(HealthReason::CheckPaused, check.spec.pauses.join("; ")))
}

fn check_storm(check: &Check<'_>) -> Result<(), Standing> {
    // While one is active the threshold refuses.
    let (Storm::CoolingDown { since }, Some(cooldown)) = (check.storm, check.spec.storm_cooldown) else {
        return Ok(());
    };
    let until = saturating_add(since, cooldown);
    Err(Standing::new(HealthReason::StormCooldown, "").until(until))
}

fn check_threshold(check: &Check<'_>) -> Result<(), Standing> {
    match &check.threshold {
        ThresholdState::Holds => Ok(()),
        ThresholdState::TooFewHealthy(text) | ThresholdState::Unusable(text) => {
            Err(Standing::new(HealthReason::TooFewHealthy, text.clone()))
        }
    }
}

fn check_concurrency(check: &Check<'_>, case: &Case<'_>, tally: &Tally<'_>) -> Result<(), Standing> {
    let Some(limit) = check.spec.max_concurrent else {
        return Ok(());
    };
    let all = tally.remediating.get(&*check.facts.name).copied().unwrap_or_default();
    // Its own place is not in its way.
    let running = all.saturating_sub(usize::from(case.is_remediated()));
    if running < limit {
        return Ok(());
    }
    let text = format!("{running} of {limit}");
    Err(Standing::new(HealthReason::ConcurrencyLimitReached, text))
}

/// Who is in the way of a remediation's name, if it is not ours.
pub(super) fn foreign_remediation(owners: &[Arc<str>], check: &Check<'_>, what: &str) -> Result<(), Standing> {
    if owners.contains(&check.facts.uid) {
        return Ok(());
    }
    Err(Standing::new(HealthReason::ForeignRemediation, what))
}
