//! No second failure domain of a Ceph goes down by a remediation while one is: by what ceph-pdb tells.

use std::collections::BTreeSet;

use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::PublishedDisruptions;
use nodeward_api::reason::{CephReason, HealthReason};
use nodeward_core::id::NodeName;

use super::Planner;
use super::case::{Check, Standing};
use super::expiry::Health;
use super::start::Tally;
use crate::snapshot::{NodeFacts, Reading};

impl Planner<'_> {
    /// Whether the OSDs of a node may go.
    ///
    /// # Errors
    /// With what stops its first step.
    pub(super) fn check_ceph(&mut self, node: &NodeFacts, tally: &Tally) -> Result<(), Standing> {
        let snapshot = self.snapshot;
        let (mut forbidden, mut unknown) = (None, Vec::new());
        for (namespace, reading) in &snapshot.ceph {
            let why = match reading {
                Reading::Unknown(why) => Some(why.clone()),
                Reading::Known(state) => {
                    let others = tally.away.iter().chain(&tally.starting);
                    let why = forbids(state, &node.view.name, others);
                    let why = why.map(|why| format!("CephCluster {namespace}/{}: {why}", state.cluster));
                    forbidden = forbidden.or(why);
                    not_told(state)
                }
            };
            unknown.extend(why.map(|why| format!("namespace {namespace}: {why}")));
        }
        if unknown.is_empty() {
            self.forget_unknown(node, HealthReason::CephStateUnknown);
        }
        match forbidden {
            Some(why) => Err(Standing::new(HealthReason::CephDomainDown, why)),
            None if unknown.is_empty() => Ok(()),
            None => self.postpone(node, HealthReason::CephStateUnknown, unknown.join("; ")),
        }
    }

    /// Nodes that run, or have a remediation that does, whoever owns it. A node that is healthy again is back, though `healthyDelay` may keep its
    /// remediations.
    pub(super) fn nodes_away(&self, checks: &[Check<'_>]) -> BTreeSet<NodeName> {
        let cases = || checks.iter().flat_map(|check| check.cases.values());
        let is_healthy = |health: &Health| matches!(health, Health::Healthy);
        let mut back: BTreeSet<&NodeName> = BTreeSet::new();
        back.extend(cases().filter(|case| is_healthy(&case.health)).map(|case| &case.name));
        for case in cases().filter(|case| !is_healthy(&case.health)) {
            back.remove(&case.name);
        }
        let run = checks.iter().flat_map(|check| {
            let run = check.cases.values().filter(|case| case.has_begun(check, self.now));
            run.map(|case| &case.name)
        });
        let remediated = self.index.remediated().chain(run);
        remediated.filter(|node| !back.contains(node)).cloned().collect()
    }
}

/// Why a state says nothing of what is down.
fn not_told(state: &CephClusterState) -> Option<String> {
    let is_silent = state.disruptions == PublishedDisruptions::Unmanaged
        // Its OSDs are on other nodes than ours.
        && state.reason != CephReason::ExternalCluster;
    is_silent.then(|| format!("CephCluster {} {}", state.cluster, state.reason.explanation()))
}

/// Why a node's OSDs may not go: another domain is away, or would be. `others` are nodes that are being remediated.
///
/// While the budgets are closed only the exempt domain may lose further OSDs, or else, so that nodes of several domains that
/// are down do not wait for each other, the first that is down.
fn forbids<'a>(
    state: &CephClusterState,
    node: &NodeName,
    others: impl Iterator<Item = &'a NodeName>,
) -> Option<String> {
    let domains = state.nodes.get(node.as_str()).filter(|domains| !domains.is_empty())?;
    let kind = state.failure_domain_type.as_deref().unwrap_or("failure domain");
    let listed = |domains: &BTreeSet<String>| {
        let names: Vec<&str> = domains.iter().map(String::as_str).collect();
        format!("{kind} {}", names.join(", "))
    };
    let ours = listed(domains);
    let is_exempt = state.exempt_nodes.contains(node.as_str());
    if state.disruptions.is_closed() && !is_exempt {
        let going = state.exempt_domain.as_ref().or_else(|| state.down_osds.keys().next());
        // A node that is exempt alone is exempt because the rest of its domain is not.
        let is_alone = state.exempt_domain.is_none() && !state.exempt_nodes.is_empty();
        let is_going = |going: &String| !is_alone && domains.len() == 1 && domains.contains(going);
        if !going.is_some_and(is_going) {
            let down = match (state.exempt(), going.map(String::as_str)) {
                (Some(exempt), _) => format!("only {exempt} may lose OSDs now"),
                (None, Some("")) => format!("OSDs of an unknown {kind} are down"),
                (None, Some(down)) => format!("{kind} {down} is down"),
                (None, None) => "placement groups have not recovered".to_owned(),
            };
            return Some(format!("the node has OSDs of {ours}, and {down} [{}]", state.reason));
        }
    }
    let mut others = others.filter(|other| *other != node);
    others.find_map(|other| {
        let theirs = state.nodes.get(other.as_str())?;
        let is_second = domains.union(theirs).count() > 1 && !theirs.is_empty();
        is_second.then(|| {
            let theirs = listed(theirs);
            format!("the node has OSDs of {ours}, and node {other}, with OSDs of {theirs}, is being remediated")
        })
    })
}
