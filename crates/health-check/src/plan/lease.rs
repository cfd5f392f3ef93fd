//! The lease of a node, by which drainers and remediators keep out of each other's way, for as long as the node runs; and the
//! one of the control plane, for as long as a remediation of the node exists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use nodeward_api::node_lease::{self, REMEDIATION_HOLDER_PREFIX};
use nodeward_api::reason::HealthReason;
use nodeward_core::id::NodeName;
use nodeward_core::lease::{LeaseState, LeaseView, lease_state};
use nodeward_runtime::LeaseTerms;

use super::Planner;
use super::action::{Action, LeaseChange, LeaseName, LeaseStep};
use super::case::{Case, Check, Standing};
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

/// A node whose lease is needed.
struct Need<'a> {
    node: Option<&'a Arc<NodeFacts>>,
    duration: SignedDuration,
    /// It is being remediated: its lease is needed.
    runs: bool,
    /// A remediation is there, and not only intended: the lease is kept whoever has let it run out.
    is_live: bool,
}

/// By NodeHealthCheck and node.
type Needs<'a> = BTreeMap<(CheckName, NodeName), Need<'a>>;

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
        let control_plane = self.is_control_plane(node).then_some(LeaseName::ControlPlane);
        let names = control_plane
            .into_iter()
            .chain([LeaseName::Node(node.view.name.clone())]);
        let changes = names.map(|name| {
            let terms = terms(&name, &check.facts.name, node, duration(timeout));
            let seen = self.lease(&name);
            match lease_state(seen.map(|lease| &**lease), &terms.holder, self.now) {
                LeaseState::Others { holder, until } => {
                    let text = format!("lease {name} is held by {holder}");
                    Err(Standing::new(reason_of(&name), text).until(until))
                }
                // One of ours is renewed, too: the remediation has it in full then.
                LeaseState::Free | LeaseState::Ours { .. } => Ok(LeaseChange {
                    name,
                    seen: seen.cloned(),
                    step: LeaseStep::Take(terms),
                }),
            }
        });
        changes.collect()
    }

    pub(super) fn lease(&self, name: &LeaseName) -> Option<&'a Arc<LeaseView>> {
        self.snapshot.leases.get(&*name.to_string())
    }

    /// Renews the leases of nodes with a remediation, and gives back those of nodes without.
    pub(super) fn keep_leases(&mut self, checks: &[Check<'a>]) {
        let needs: Needs<'a> = checks.iter().flat_map(|check| needs_of(check, self.now)).collect();
        let mut taken = self.leases_of_starts();
        for ((check, name), need) in needs.iter().filter(|(_, need)| need.runs) {
            let lease = LeaseName::Node(name.clone());
            // Of two that are at work on a node whose lease is lost, one takes it.
            if let Some(node) = self.kept_node(check, need).filter(|_| !taken.contains(&lease))
                && self.renew(lease.clone(), terms(&lease, check, node, need.duration))
            {
                taken.insert(lease);
            }
        }
        if !taken.contains(&LeaseName::ControlPlane) {
            self.keep_control_plane_lease(&needs);
        }
        let snapshot = self.snapshot;
        for (name, lease) in &snapshot.leases {
            let Some(node) = name.strip_prefix(&*node_lease::name_of("")) else {
                continue;
            };
            let holder = lease.holder.as_deref();
            let (node, name) = (NodeName::from(node), LeaseName::Node(node.into()));
            // Another NodeHealthCheck takes it now, from one that has let it run out.
            let Some(check) = holder
                .and_then(|holder| holder.strip_prefix(REMEDIATION_HOLDER_PREFIX))
                .filter(|_| !taken.contains(&name))
            else {
                continue;
            };
            if !self.is_needed(&needs, check, &node, &name) {
                self.give_back(name, lease);
            } else if !self.snapshot.checks.contains_key(check) {
                self.renew_for_gone_check(name, lease, &node);
            }
        }
    }

    /// The node of which the NodeHealthCheck keeps a lease; one that only reports keeps none.
    fn kept_node(&self, check: &CheckName, need: &Need<'a>) -> Option<&'a Arc<NodeFacts>> {
        let only_reports = self.snapshot.checks.get(check).is_none_or(|check| check.spec.dry_run);
        need.node.filter(|_| need.is_live && !only_reports)
    }

    fn keep_control_plane_lease(&mut self, needs: &Needs<'a>) {
        let name = LeaseName::ControlPlane;
        let seen = self.lease(&name);
        let held_for = seen
            .and_then(|lease| lease.holder.as_deref()?.strip_prefix(REMEDIATION_HOLDER_PREFIX))
            .and_then(|holder| holder.split_once('/'));
        if let (Some(lease), Some((check, node))) = (seen, held_for)
            && !self.is_needed(needs, check, &node.into(), &name)
        {
            self.give_back(name, lease);
            return;
        }
        let mut wanted = needs.iter().filter_map(|((check, node), need)| {
            let is_its = held_for.is_none_or(|held_for| held_for == (&**check, node.as_str()));
            let node = self
                .kept_node(check, need)
                .filter(|node| is_its && self.is_control_plane(node))?;
            Some(terms(&name, check, node, need.duration))
        });
        if let Some(terms) = wanted.next() {
            self.renew(name, terms);
        }
    }

    /// The NodeHealthCheck is gone, and a finalizer keeps a remediation of it: its remediator is not done with the node.
    fn renew_for_gone_check(&mut self, name: LeaseName, lease: &LeaseView, node: &NodeName) {
        let (Some(holder), Some(duration), Some(node)) = (&lease.holder, lease.duration, self.snapshot.nodes.get(node))
        else {
            return;
        };
        let mut remediations = self.index.remediations_of(&node.view.name).iter();
        if !remediations.any(|live| live.runs()) {
            self.requeue_at.note(lease.until());
            return;
        }
        let terms = LeaseTerms {
            holder: holder.to_string(),
            duration,
            owner: Some(owner(node)),
        };
        self.renew(name, terms);
    }

    /// Renews a lease at half its duration, and when another step has another timeout. One that somebody else has taken
    /// meanwhile is theirs. Answers whether it is renewed now.
    fn renew(&mut self, name: LeaseName, terms: LeaseTerms) -> bool {
        let seen = self.lease(&name);
        let is_due = match lease_state(seen.map(|lease| &**lease), &terms.holder, self.now) {
            LeaseState::Free => true,
            LeaseState::Ours { renew_at } => {
                let has_another_duration = seen.and_then(|lease| lease.duration) != Some(terms.duration);
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
                step: LeaseStep::Take(terms),
            }));
        }
        is_due
    }

    /// Whether a NodeHealthCheck still has a remediation of a node, or intends one. One that is gone may have left some: of which
    /// kind this process knows only if it has seen it, and else the lease has its time.
    fn is_needed(&self, needs: &Needs<'a>, check: &str, node: &NodeName, lease: &LeaseName) -> bool {
        let checks = &self.snapshot.checks;
        let is_of_control_plane = *lease == LeaseName::ControlPlane;
        let Some(known) = checks.get(check) else {
            let is_of_nobody = |live: &RemediationFacts| self.index.owner(live).is_none();
            let mut remediations = self.snapshot.remediations.iter();
            let counts = |live: &RemediationFacts| live.runs() || is_of_control_plane;
            let lasts = self
                .lease(&LeaseName::Node(node.clone()))
                .and_then(|lease| lease.until());
            return remediations.any(|live| live.node == *node && is_of_nobody(live) && counts(live))
                || (!self.snapshot.memory.checks.contains(check) && Some(self.now) < lasts);
        };
        let need = needs.get(&(Arc::clone(&known.name), node.clone()));
        known.spec.dry_run || need.is_some_and(|need| need.runs || is_of_control_plane)
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
        for ((_, node), is_control_plane) in &self.snapshot.memory.starting {
            leases.insert(LeaseName::Node(node.clone()));
            if *is_control_plane {
                leases.insert(LeaseName::ControlPlane);
            }
        }
        leases
    }
}

fn needs_of<'a>(check: &Check<'a>, now: Timestamp) -> impl Iterator<Item = ((CheckName, NodeName), Need<'a>)> {
    check.cases.iter().filter_map(move |(name, case)| {
        let (runs, is_there) = (case.runs(check, now), case.chain.is_there());
        (runs || is_there).then(|| {
            let need = Need {
                node: case.node,
                duration: duration(present_timeout(check, case)),
                runs,
                is_live: is_there || case.chain.intent().is_none(),
            };
            ((Arc::clone(&check.facts.name), name.clone()), need)
        })
    })
}

/// The timeout of the step that runs, or of the last one.
fn present_timeout(check: &Check<'_>, case: &Case<'_>) -> Option<SignedDuration> {
    let mut there = case.chain.records.iter().filter(|record| record.live.is_some());
    let running = there.clone().find(|record| record.stage() == Stage::Running);
    let step = running.or(there.next_back()).and_then(|record| record.step)?;
    check.spec.steps.get(step)?.timeout
}

fn terms(name: &LeaseName, check: &CheckName, node: &NodeFacts, duration: SignedDuration) -> LeaseTerms {
    let (holder, owner) = match name {
        LeaseName::Node(_) => (node_lease::holder_of(check), Some(owner(node))),
        LeaseName::ControlPlane => (format!("{}/{}", node_lease::holder_of(check), node.view.name), None),
    };
    LeaseTerms {
        holder,
        duration,
        owner,
    }
}

/// A lease goes away with its node.
fn owner(node: &NodeFacts) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.view.name.to_string(),
        uid: node.view.uid.to_string(),
        ..OwnerReference::default()
    }
}

/// Why a step waits for a lease that somebody else has.
pub const fn reason_of(name: &LeaseName) -> HealthReason {
    match name {
        LeaseName::Node(_) => HealthReason::LeaseTaken,
        LeaseName::ControlPlane => HealthReason::ControlPlaneNodeAway,
    }
}
