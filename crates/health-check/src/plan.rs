//! The decision: from one [`crate::snapshot::Snapshot`], a [`crate::policy::Policy`] and the time to what is done, said and waited for. Pure.

pub mod action;
mod backoff;
mod case;
mod ceph;
mod chain;
mod conclude;
mod control_plane;
mod count;
mod enablement;
mod escalation;
pub mod evidence;
mod expiry;
mod gates;
mod index;
mod lease;
mod may_start;
mod record;
mod recovery;
mod remediation;
mod start;
mod status;
mod storm;
mod survey;
mod unhealthy_period;
pub mod verdict;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nodeward_api::reason::HealthReason;
use nodeward_core::deadline::{RequeueAt, saturating_add};
use nodeward_core::id::NodeName;

use crate::observations::Findings;
use crate::policy::Policy;
use crate::snapshot::{Reading, Snapshot};

use self::case::{Case, Check};
use self::expiry::Health;
use self::index::Index;
use self::start::Candidate;

pub use self::action::{
    Action, ActionKey, Announcement, CheckRef, LeaseChange, LeaseName, LeaseStep, NodeChange, RemediationChange,
    RemediationRef, RemediationWrite, SelectorWrite, StartRemediation, StatusWrite,
};
pub use self::backoff::RemediationHistory;
pub use self::case::Standing;
pub use self::control_plane::{Members, keeps_quorum};
pub use self::enablement::topology_problem;
pub use self::evidence::{NodeEvidence, RestsOn};
pub use self::expiry::TERMINATING;
pub use self::gates::is_excluded;
pub use self::may_start::Condition;
pub use self::record::longest_run;
pub use self::survey::Survey;
pub use self::unhealthy_period::UnhealthyPeriod;
pub use self::verdict::{CheckVerdict, NodeVerdict, Verdicts};

/// What follows from a [`crate::snapshot::Snapshot`].
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// What is to be done, each on its own.
    pub actions: Vec<Action>,
    /// How each NodeHealthCheck and each of its nodes stands.
    pub verdicts: Verdicts,
    /// For the next plan.
    pub found: Findings,
    /// When to plan again at the latest.
    pub requeue_at: Option<Timestamp>,
}

/// Decides.
pub fn plan(snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> Plan {
    let snapshot = &*index::restore_recorded(snapshot);
    let index = Index::new(snapshot);
    let mut planner = Planner::new(snapshot, policy, &index, now);
    let mut checks: Vec<Check<'_>> = snapshot.checks.values().map(|facts| planner.count(facts)).collect();
    let mut candidates = Vec::new();
    for (at, check) in checks.iter_mut().enumerate() {
        let due = planner.follow(check);
        planner.advance_storm(check, due.iter().any(|candidate| !candidate.is_escalation));
        candidates.extend(due.into_iter().map(|candidate| (at, candidate)));
    }
    planner.decide_starts(candidates, &mut checks);
    planner.keep_leases(&checks);
    for check in checks {
        planner.write_status(&check);
        planner.conclude(check);
    }
    planner.finish()
}

/// A plan in the making.
struct Planner<'a> {
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    index: &'a Index<'a>,
    now: Timestamp,
    has_termination_handler: bool,
    plan: Plan,
    requeue_at: RequeueAt,
}

impl<'a> Planner<'a> {
    fn new(snapshot: &'a Snapshot, policy: &'a Policy, index: &'a Index<'a>, now: Timestamp) -> Self {
        let mut requeue_at = RequeueAt::after(now);
        requeue_at.note(saturating_add(now, policy.safety_pass));
        let etcd_members = control_plane::see_members(&snapshot.nodes, &snapshot.memory.found.etcd_members, now);
        for end in control_plane::ends_of_gone(&etcd_members, &snapshot.nodes) {
            requeue_at.note(end);
        }
        Self {
            snapshot,
            policy,
            index,
            now,
            has_termination_handler: enablement::has_termination_handler(snapshot),
            plan: Plan {
                found: Findings {
                    unknown_since: snapshot.memory.found.unknown_since.clone(),
                    overdue_stops: Some(BTreeMap::new()),
                    looked_at: now.checked_sub(snapshot.nodes_silent_for).ok().or(Some(Timestamp::MIN)),
                    etcd_members,
                    ..Findings::default()
                },
                ..Plan::default()
            },
            requeue_at,
        }
    }

    fn act(&mut self, action: Action) {
        self.plan.actions.push(action);
    }

    /// Looks at each node of a NodeHealthCheck that is not plainly healthy; answers with the steps that are due.
    fn follow(&mut self, check: &mut Check<'a>) -> Vec<Candidate> {
        let mut cases = std::mem::take(&mut check.cases);
        let due = cases
            .values_mut()
            .filter_map(|case| self.follow_case(check, case))
            .collect();
        check.cases = cases;
        due
    }

    fn follow_case(&mut self, check: &Check<'a>, case: &mut Case<'a>) -> Option<Candidate> {
        self.clear_gone(check, case);
        let node = case.node?;
        match case.health.clone() {
            Health::Healthy => self.recover(check, case, node, HealthReason::Healthy),
            Health::LeftToTerminationHandler => {
                self.recover(check, case, node, HealthReason::LeftToTerminationHandler);
            }
            Health::Expired(_) => {
                self.relapse(check, case);
                return self.escalate(check, case, node);
            }
            Health::NotExpired(unhealthy) => {
                let expires = unhealthy.expires;
                self.relapse(check, case);
                leave(case, Standing::new(HealthReason::NotExpired, "").until(expires));
            }
            Health::ReadyUnknown => leave(case, Standing::new(HealthReason::ReadyUnknown, "")),
            Health::NotJudged => {
                let text = "what makes a node unhealthy cannot be read";
                leave(case, Standing::new(HealthReason::CheckDisabled, text));
            }
        }
        None
    }

    fn finish(mut self) -> Plan {
        match &self.snapshot.peer {
            Reading::Known(None) => {}
            Reading::Known(Some(_)) => self.plan.actions.clear(),
            // Two controllers would write one status in turns; what ends a remediation is the same from either.
            Reading::Unknown(_) => self.plan.actions.retain(Action::is_clean_up),
        }
        self.plan.verdicts.warnings.sort();
        self.plan.verdicts.warnings.dedup();
        let nodes = self.plan.verdicts.nodes.iter();
        let unhealthy = nodes.filter(|verdict| verdict.condition.is_some());
        let unhealthy: BTreeSet<&NodeName> = unhealthy.map(|verdict| &verdict.node).collect();
        let unknown_since = &mut self.plan.found.unknown_since;
        unknown_since.retain(|(node, _), _| unhealthy.contains(node));
        self.plan.requeue_at = self.requeue_at.at();
        self.plan
    }
}

/// A node that is neither healthy nor unhealthy for long enough is left as it is: its remediations neither end nor go on.
fn leave(case: &mut Case<'_>, standing: Standing) {
    case.chain.withdraw_intent();
    case.standing = standing;
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use self::tests::world;
