//! The lease of a node, by which drainers and remediators keep out of each other's way, for as long as the node runs; and the
//! one of the control plane, for as long as a remediation of the node exists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::node_lease::{self, REMEDIATION_HOLDER_PREFIX};
use nodeward_api::reason::HealthReason;
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_core::lease::{LeaseState, LeaseView, lease_state};

use super::Planner;
use super::action::{Action, LeaseChange, LeaseName, LeaseStep};
use super::case::{Case, Check, Standing};
use super::index::Index;
use super::record::Stage;
use crate::snapshot::{CheckName, NodeFacts, RemediationFacts};

/// What a lease lasts beyond its step's timeout.
const MARGIN: SignedDuration = SignedDuration::from_mins(1);

/// What a lease lasts at most: the API's seconds have 32 bits.
const LONGEST: SignedDuration = SignedDuration::from_hours(24 * 365);

/// What a lease lasts, besides, for a step without a timeout.
pub const WITHOUT_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// How long a step without a timeout lasts at most, as in the peer: its lease is taken, and renewed twice.
pub const THREE_TERMS: SignedDuration = SignedDuration::from_mins(33);

/// For how long a lease is taken for a step.
pub fn duration(timeout: Option<SignedDuration>) -> SignedDuration {
    let timeout = timeout.unwrap_or(WITHOUT_TIMEOUT);
    let duration = timeout.min(LONGEST) + MARGIN;
    // The API counts whole seconds.
    SignedDuration::from_secs(duration.as_secs())
}

/// Who else has the node's lease, and until when.
pub fn taken_by(
    index: &Index<'_>,
    node: &NodeName,
    check: &Check<'_>,
    now: Timestamp,
) -> Option<(Arc<str>, Timestamp)> {
    let lease = index.leases.get(node.as_str())?;
    match lease_state(Some(lease), &node_lease::holder_of(&check.facts.name), now) {
        LeaseState::Others { holder, until } => Some((holder, until)),
        LeaseState::Free | LeaseState::Ours { .. } => None,
    }
}

/// The holder of the control plane's lease while a node is remediated.
pub fn control_plane_holder(check: &str, node: &NodeName) -> String {
    format!("{}/{node}", node_lease::holder_of(check))
}

/// A node whose lease is needed.
struct Need<'a> {
    node: Option<&'a Arc<NodeFacts>>,
    duration: SignedDuration,
    /// It is being remediated: its lease is needed.
    runs: bool,
    /// A remediation is there, and not only intended: the lease is kept whoever has let it run out.
    is_live: bool,
}

impl Need<'_> {
    /// Whether it is one for the lease.
    fn is_for(&self, lease: &LeaseName) -> bool {
        self.runs || *lease == LeaseName::ControlPlane
    }
}

impl<'a> Planner<'a> {
    /// The leases that a remediation takes before it is created: the control plane's first.
    ///
    /// # Errors
    /// Who else has one.
    pub(super) fn leases_to_start(
        &self,
        check: &Check<'_>,
        node: &NodeFacts,
        timeout: Option<SignedDuration>,
    ) -> Result<Vec<LeaseChange>, Standing> {
        let mut names = Vec::new();
        if self.is_control_plane(node) {
            names.push(LeaseName::ControlPlane);
        }
        names.push(LeaseName::Node(node.view.name.clone()));
        let mut changes = Vec::new();
        for name in names {
            let (holder, owner) = terms(&name, check, node);
            let seen = self.lease(&name);
            match lease_state(seen.map(|lease| &**lease), &holder, self.now) {
                LeaseState::Others { holder, until } => {
                    let text = format!("lease {name} is held by {holder}");
                    return Err(Standing::new(reason_of(&name), text).until(until));
                }
                // One of ours is renewed, too: the remediation has it in full then.
                LeaseState::Free | LeaseState::Ours { .. } => changes.push(LeaseChange {
                    name,
                    seen: seen.cloned(),
                    step: LeaseStep::Take {
                        holder,
                        duration: duration(timeout),
                        owner,
                    },
                }),
            }
        }
        Ok(changes)
    }

    fn lease(&self, name: &LeaseName) -> Option<&'a Arc<LeaseView>> {
        match name {
            LeaseName::Node(node) => self.index.leases.get(node.as_str()).copied(),
            LeaseName::ControlPlane => self.snapshot.leases.get(node_lease::CONTROL_PLANE),
        }
    }

    /// Renews the leases of nodes with a remediation, and gives back those of nodes without.
    pub(super) fn keep_leases(&mut self, checks: &[Check<'a>]) {
        let needs: BTreeMap<&CheckName, BTreeMap<&NodeName, Need<'a>>> = checks
            .iter()
            .map(|check| (&check.facts.name, needs_of(check, self.now)))
            .collect();
        let starting = self.leases_of_starts();
        let mut renewed = BTreeSet::new();
        for check in checks.iter().filter(|check| !check.only_reports()) {
            for (name, need) in needs.get(&check.facts.name).into_iter().flatten() {
                let lease = LeaseName::Node((*name).clone());
                let is_kept = need.runs && need.is_live && !starting.contains(&lease);
                // Of two that are at work on a node whose lease is lost, one takes it.
                if let Some(node) = need.node.filter(|_| is_kept && !renewed.contains(&lease))
                    && self.renew(lease.clone(), check, node, need.duration)
                {
                    renewed.insert(lease);
                }
            }
        }
        if !starting.contains(&LeaseName::ControlPlane) {
            self.keep_control_plane_lease(checks, &needs);
        }
        let node_leases: Vec<(NodeName, &'a Arc<LeaseView>)> = self
            .index
            .leases
            .iter()
            .map(|(node, lease)| (NodeName::from(*node), *lease))
            .collect();
        for (node, lease) in node_leases {
            let Some(holder) = lease
                .holder
                .as_deref()
                .and_then(|holder| holder.strip_prefix(REMEDIATION_HOLDER_PREFIX))
            else {
                continue;
            };
            let name = LeaseName::Node(node.clone());
            // Another NodeHealthCheck takes it now, from one that has let it run out.
            if starting.contains(&name) || renewed.contains(&name) {
                continue;
            }
            if !self.is_needed(checks, &needs, holder, &node, &name) {
                self.give_back(name, lease);
            } else if checks.iter().all(|known| *known.facts.name != *holder) {
                self.renew_for_gone_check(name, lease, &node);
            }
        }
    }

    fn keep_control_plane_lease(
        &mut self,
        checks: &[Check<'a>],
        needs: &BTreeMap<&CheckName, BTreeMap<&NodeName, Need<'a>>>,
    ) {
        let seen = self.lease(&LeaseName::ControlPlane);
        let held_for = seen
            .and_then(|lease| lease.holder.as_deref()?.strip_prefix(REMEDIATION_HOLDER_PREFIX))
            .and_then(|holder| holder.split_once('/'));
        if let (Some(lease), Some((check, node))) = (seen, held_for)
            && !self.is_needed(checks, needs, check, &NodeName::from(node), &LeaseName::ControlPlane)
        {
            self.give_back(LeaseName::ControlPlane, lease);
            return;
        }
        let planner = &*self;
        let mut live = checks.iter().filter(|check| !check.only_reports()).flat_map(|check| {
            let nodes = needs.get(&check.facts.name).into_iter().flatten();
            nodes.filter_map(move |(name, need)| {
                let node = need
                    .node
                    .filter(|node| need.is_live && planner.is_control_plane(node))?;
                Some((check, *name, node, need.duration))
            })
        });
        let is_held = |check: &Check<'_>, name: &NodeName| held_for == Some((&*check.facts.name, name.as_str()));
        let keeper = match held_for {
            Some(_) => live.find(|(check, name, ..)| is_held(check, name)),
            None => live.next(),
        };
        if let Some((check, _, node, duration)) = keeper {
            self.renew(LeaseName::ControlPlane, check, node, duration);
        }
    }

    /// Renews a lease at half its duration, and when another step has another timeout. One that somebody else has taken
    /// meanwhile is theirs. Answers whether it is renewed now.
    fn renew(&mut self, name: LeaseName, check: &Check<'a>, node: &'a NodeFacts, duration: SignedDuration) -> bool {
        let (holder, owner) = terms(&name, check, node);
        self.renew_as(name, holder, owner, duration)
    }

    /// The NodeHealthCheck is gone, and a finalizer keeps a remediation of it: its remediator is not done with the node.
    fn renew_for_gone_check(&mut self, name: LeaseName, lease: &LeaseView, node: &NodeName) {
        let (Some(holder), Some(duration), Some(node)) = (&lease.holder, lease.duration, self.snapshot.nodes.get(node))
        else {
            return;
        };
        if !self
            .index
            .remediations_of(&node.view.name)
            .iter()
            .any(|live| live.runs())
        {
            self.requeue_at.note(lease.until());
            return;
        }
        let owner = (node.view.name.clone(), node.view.uid.clone());
        self.renew_as(name, holder.to_string(), Some(owner), duration);
    }

    fn renew_as(
        &mut self,
        name: LeaseName,
        holder: String,
        owner: Option<(NodeName, NodeUid)>,
        duration: SignedDuration,
    ) -> bool {
        let seen = self.lease(&name);
        let is_due = match lease_state(seen.map(|lease| &**lease), &holder, self.now) {
            LeaseState::Free => true,
            LeaseState::Ours { renew_at } => {
                let has_another_duration = seen.and_then(|lease| lease.duration) != Some(duration);
                self.requeue_at.note(renew_at);
                renew_at <= self.now || has_another_duration
            }
            LeaseState::Others { until, .. } => {
                self.requeue_at.note(until);
                false
            }
        };
        if is_due {
            self.act(Action::Lease(LeaseChange {
                name,
                seen: seen.cloned(),
                step: LeaseStep::Take {
                    holder,
                    duration,
                    owner,
                },
            }));
        }
        is_due
    }

    /// Whether a NodeHealthCheck still has a remediation of a node, or intends one. One that is gone may have left some: of which
    /// kind this process knows only if it has seen it, and else the lease has its time.
    fn is_needed(
        &self,
        checks: &[Check<'a>],
        needs: &BTreeMap<&CheckName, BTreeMap<&NodeName, Need<'a>>>,
        check: &str,
        node: &NodeName,
        lease: &LeaseName,
    ) -> bool {
        let Some(known) = checks.iter().find(|known| *known.facts.name == *check) else {
            let has_owner = |live: &RemediationFacts| checks.iter().any(|known| live.owners.contains(&known.facts.uid));
            let mut remediations = self.snapshot.remediations.iter();
            let counts = |live: &RemediationFacts| live.runs() || *lease == LeaseName::ControlPlane;
            return remediations.any(|live| live.node == *node && !has_owner(live) && counts(live))
                || (!self.snapshot.memory.checks.contains(check) && self.is_valid(node));
        };
        known.only_reports()
            || needs
                .get(&known.facts.name)
                .and_then(|nodes| nodes.get(node))
                .is_some_and(|need| need.is_for(lease))
    }

    /// Whether a node's lease has not run out yet.
    fn is_valid(&self, node: &NodeName) -> bool {
        let lease = self.index.leases.get(node.as_str());
        lease
            .and_then(|lease| lease.until())
            .is_some_and(|until| self.now < until)
    }

    fn give_back(&mut self, name: LeaseName, lease: &Arc<LeaseView>) {
        self.act(Action::Lease(LeaseChange {
            name,
            seen: Some(Arc::clone(lease)),
            step: LeaseStep::GiveBack,
        }));
    }

    /// The leases that remediations take themselves which are to be started, or are being created.
    fn leases_of_starts(&self) -> BTreeSet<LeaseName> {
        let starts = self.plan.actions.iter().filter_map(|action| match action {
            Action::StartRemediation(start) => Some(start.leases()),
            _ => None,
        });
        let mut leases: BTreeSet<LeaseName> = starts.flatten().map(|change| change.name.clone()).collect();
        for ((_, node), start) in &self.snapshot.memory.starting {
            leases.insert(LeaseName::Node(node.clone()));
            if start.is_control_plane {
                leases.insert(LeaseName::ControlPlane);
            }
        }
        leases
    }
}

fn needs_of<'c, 'a>(check: &'c Check<'a>, now: Timestamp) -> BTreeMap<&'c NodeName, Need<'a>> {
    let needs = check.cases.iter().filter_map(|(name, case)| {
        let (runs, is_there) = (case.runs(check, now), case.chain.is_there());
        (runs || is_there).then(|| {
            let need = Need {
                node: case.node,
                duration: duration(present_timeout(check, case)),
                runs,
                is_live: is_there || case.chain.intent().is_none(),
            };
            (name, need)
        })
    });
    needs.collect()
}

/// The timeout of the step that runs, or of the last one.
fn present_timeout(check: &Check<'_>, case: &Case<'_>) -> Option<SignedDuration> {
    let mut there = case.chain.records.iter().filter(|record| record.live.is_some());
    let running = there.clone().find(|record| record.stage() == Stage::Running);
    let step = running.or(there.next_back()).and_then(|record| record.step)?;
    check.spec.steps.get(step)?.timeout
}

fn terms(name: &LeaseName, check: &Check<'_>, node: &NodeFacts) -> (String, Option<(NodeName, NodeUid)>) {
    match name {
        LeaseName::Node(_) => (
            node_lease::holder_of(&check.facts.name),
            Some((node.view.name.clone(), node.view.uid.clone())),
        ),
        LeaseName::ControlPlane => (control_plane_holder(&check.facts.name, &node.view.name), None),
    }
}

/// Why a step waits for a lease that somebody else has.
pub const fn reason_of(name: &LeaseName) -> HealthReason {
    match name {
        LeaseName::Node(_) => HealthReason::LeaseTaken,
        LeaseName::ControlPlane => HealthReason::ControlPlaneNodeAway,
    }
}
