//! What must hold before a step is taken, each condition once. The plan asks all of it, and answers with what a cache may have
//! told too late: those [`Condition`]s are asked again under the permit, right before the create ([`crate::execute`]).

use std::collections::BTreeSet;

use jiff::Timestamp;
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::{is_due, saturating_add, to_the_second};
use nodeward_core::id::{NodeName, ResourceVersion};

use super::action::{LeaseChange, RemediationRef};
use super::case::{Case, Check, Standing};
use super::evidence::NodeEvidence;
use super::gates::{
    check_concurrency, check_enabled, check_paused, check_slot_is_kept, check_storm, check_threshold, unreadable,
};
use super::start::{Candidate, Tally};
use super::{Planner, backoff, lease};
use crate::observations::OverdueStop;
use crate::snapshot::{NodeFacts, Reading};

/// What a step rests on and a cache may tell too late.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// The Node is the same, and so is its condition.
    Node(NodeEvidence),
    /// The step is still intended, as it is in this version of the NodeHealthCheck.
    Intended(ResourceVersion),
    /// The template says what it said.
    Template,
    /// A remediation is gone: the node's last one, or one in whose place the node comes.
    Gone(RemediationRef),
    /// Nobody else has this lease: asking takes it.
    Lease(LeaseChange),
    /// Etcd keeps its quorum, of which these nodes have been members lately.
    EtcdQuorum(BTreeSet<NodeName>),
}

impl Condition {
    /// Why a step is not taken where this does not hold any more; `None`: the next plan says it.
    pub const fn refuses_with(&self) -> Option<HealthReason> {
        match self {
            Self::Node(_) => Some(HealthReason::NodeChanged),
            Self::Lease(change) => Some(lease::reason_of(&change.name)),
            Self::EtcdQuorum(_) => Some(HealthReason::EtcdQuorumAtRisk),
            Self::Intended(_) | Self::Template | Self::Gone(_) => None,
        }
    }
}

impl Planner<'_> {
    /// Whether a candidate may take its step; answers with what is asked again, in this order.
    ///
    /// # Errors
    /// With what stops it.
    pub(super) fn may_take(
        &mut self,
        check: &Check<'_>,
        case: &Case<'_>,
        node: &NodeFacts,
        candidate: &Candidate,
        tally: &Tally,
    ) -> Result<Vec<Condition>, Standing> {
        let (Some(step), Some(unhealthy)) = (check.spec.steps.get(candidate.step), case.expired()) else {
            return Err(Standing::new(HealthReason::NodeChanged, ""));
        };
        if candidate.is_escalation {
            self.may_escalate(check, case, node)?;
            check_slot_is_kept(check, case, self.now)?;
        } else {
            self.may_start(check, case, node, tally)?;
        }
        // It has not just come to nothing.
        self.check_refusal(check, candidate)?;
        // Nobody is at work on the machine for an earlier node or an earlier outage.
        self.check_leftovers(case, step)?;
        // The name of its remediation is free.
        self.check_name(check, case, node, candidate)?;
        // Its owners can be told.
        self.machine_of(node, step)?;
        // Nobody else has its leases.
        let leases = self.leases_to_start(check, node, step.timeout)?;
        // It is not only to be told what would be done.
        if check.only_reports() {
            return Err(Standing::new(HealthReason::WouldRemediate, step.template.to_string()));
        }
        let asks_etcd = self.is_control_plane(node) && !candidate.is_escalation;
        let mut again = vec![
            Condition::Node(unhealthy.evidence(node)),
            Condition::Intended(check.facts.resource_version.clone()),
            Condition::Template,
        ];
        again.extend(self.must_be_gone(check, node, tally));
        again.extend(leases.into_iter().map(Condition::Lease));
        again.extend(asks_etcd.then(|| Condition::EtcdQuorum(self.recent_members(self.now))));
        Ok(again)
    }

    /// What must hold of a first step, and of one whose remediation is gone, beyond what every step needs. What is cheap to
    /// tell comes first.
    fn may_start(
        &mut self,
        check: &Check<'_>,
        case: &Case<'_>,
        node: &NodeFacts,
        tally: &Tally,
    ) -> Result<(), Standing> {
        self.check_followed(check)?;
        // Neither we nor the API server were away.
        self.check_settled()?;
        // Nobody else remediates the node.
        self.check_other_owners(check, case, tally)?;
        self.check_node(check, node)?;
        // The watch of nodes is alive, or their number would be told wrong.
        self.check_nodes_heard()?;
        // Enough nodes are healthy, and have been for a while if many were not.
        check_threshold(check)?;
        check_storm(check)?;
        // A repeat waits.
        if let Some(until) = backoff::waits_until(node, check.spec.backoff.as_ref(), self.now) {
            let text = format!("until {}", to_the_second(until));
            return Err(Standing::new(HealthReason::BackingOff, text).until(until));
        }
        // No other control-plane node is away, and etcd keeps its quorum.
        self.check_control_plane(node, tally)?;
        // A slot is free.
        check_concurrency(check, case, tally)?;
        // No second failure domain of a Ceph goes down. What is not known of either postpones from now on: the two waits do
        // not add up.
        let ceph = self.check_ceph(node, tally);
        self.check_upgrade(node)?;
        ceph
    }

    /// What must hold of a step that follows another.
    fn may_escalate(&mut self, check: &Check<'_>, case: &Case<'_>, node: &NodeFacts) -> Result<(), Standing> {
        let stopped = self.check_any_step(check, node);
        self.goes_on(check, case, stopped)
    }

    /// What must hold for a step to be over whose time has passed. Where its node is held it is over all the same: its remediator
    /// would work on in the place of another node, without an end.
    pub(super) fn may_end(&mut self, check: &Check<'_>, case: &Case<'_>, node: &NodeFacts) -> Result<(), Standing> {
        let stopped = if case.chain.is_held {
            self.check_followed(check)
        } else {
            self.check_any_step(check, node)
        };
        self.goes_on(check, case, stopped)
    }

    /// What must hold of a chain that goes on. What has stopped it ends for many nodes at once, and machines may just be coming
    /// back: it goes on a while later. What is overdue when a process first looks may have been stopped until then.
    fn goes_on(&mut self, check: &Check<'_>, case: &Case<'_>, stopped: Result<(), Standing>) -> Result<(), Standing> {
        let key = (check.facts.name.clone(), case.name.clone());
        let stopped = stopped
            .and_then(|()| self.check_nodes_heard())
            .and_then(|()| check_threshold(check))
            .and_then(|()| check_storm(check));
        // One that only reports takes no step, either.
        let is_stopped = stopped.is_err() || check.only_reports();
        let is_node_held = case.chain.is_held;
        let before = self.snapshot.memory.found.overdue_stops.as_ref();
        let ended = match before.map(|stops| stops.get(&key)) {
            _ if is_stopped => None,
            Some(None) => Some(Timestamp::MIN),
            Some(Some(stop)) if is_node_held || !stop.is_node_held => Some(stop.ended.unwrap_or(self.now)),
            Some(Some(_)) | None => Some(self.now),
        };
        let may_go_on = match ended.map(|ended| saturating_add(ended, self.policy.settle)) {
            None => stopped,
            Some(until) if is_due(until, self.now) => self.check_settled(),
            Some(until) => {
                let text = "what stopped its next step has just ended, or may have";
                Err(Standing::new(HealthReason::Settling, text).until(until))
            }
        };
        if is_stopped || may_go_on.is_err() {
            let stops = self.plan.found.overdue_stops.get_or_insert_default();
            stops.insert(key, OverdueStop { ended, is_node_held });
        }
        may_go_on
    }

    /// What every step needs.
    ///
    /// # Errors
    /// With what stops it.
    pub(super) fn check_any_step(&mut self, check: &Check<'_>, node: &NodeFacts) -> Result<(), Standing> {
        self.check_followed(check)?;
        self.check_node(check, node)?;
        // The node is not being upgraded.
        self.check_upgrade(node)
    }

    /// What must hold of the NodeHealthCheck as a whole.
    ///
    /// # Errors
    /// With what stops it.
    pub(super) fn check_followed(&self, check: &Check<'_>) -> Result<(), Standing> {
        // The peer is not at work.
        self.check_peer()?;
        // No MachineHealthCheck is, either.
        if let Reading::Unknown(why) = &self.snapshot.machine_health_checks {
            return Err(unreadable(why));
        }
        // What is intended can be written down.
        self.check_status_is_written(check)?;
        // Its templates are there, and so are their remediators.
        check_enabled(check)?;
        check_paused(check)
    }

    /// What must hold of the node.
    fn check_node(&self, check: &Check<'_>, node: &NodeFacts) -> Result<(), Standing> {
        Self::check_exclusion(node)?;
        // Nor is it in maintenance, by declaration or by lease.
        self.check_maintenance(check, node)
    }
}
