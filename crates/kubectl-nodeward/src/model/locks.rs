//! Who holds, and who waits for, the disruptions that budgets allow.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use nodeward_api::annotation;
use nodeward_api::disruption_hold::{DisruptionHold, HoldPhase};
use nodeward_api::reason::LockReason;
use nodeward_core::ledger::{Claim, ClaimState, Disruptions, HeldPod, Ledger};
use serde::Serialize;

use super::drain::Drain;
use super::qualified;

/// A budget, and who holds or waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetLocks {
    pub pdb: String,
    /// What its status says; absent where it could not be read.
    pub status: Option<BudgetNumbers>,
    /// Claims that hold disruptions of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<Held>,
    /// Claims that wait for disruptions of it, in the order of their tickets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
    /// Holds of its owner that are in force.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owner_holds: Vec<OwnerHold>,
}

/// A budget's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetNumbers {
    /// Disruptions that it allows now, before what claims hold is taken off.
    pub disruptions_allowed: i32,
    pub current_healthy: i32,
    pub desired_healthy: i32,
    pub expected_pods: i32,
}

/// A claim that holds disruptions of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    pub node: String,
    pub ticket: i64,
    pub state: ClaimState,
    pub disruptions: usize,
    /// The pods that the disruptions are for, as `namespace/name`.
    pub pods: Vec<String>,
    /// Those of them that stay on the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retained: Vec<String>,
    /// Since when its claim stands so.
    pub since: Timestamp,
}

/// A claim that waits for disruptions of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    pub node: String,
    pub ticket: i64,
    pub disruptions: usize,
    /// Since when it waits.
    pub since: Timestamp,
}

/// An owner's hold of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerHold {
    /// Name of the DisruptionHold; absent for the annotation on the budget.
    pub name: Option<String>,
    pub pdb: String,
    /// How many disruptions; absent: all.
    pub disruptions: Option<i32>,
    pub reason: String,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
    /// What drain-lock made of it; absent until it has answered, and for an annotation.
    pub phase: Option<HoldPhase>,
}

/// Who has the places of node groups, and who waits for one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeGroups {
    /// In the order of groups and tickets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<NodeAway>,
    /// In the order of tickets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitsForGroup>,
}

/// A node whose drain has a place in a node group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeAway {
    pub group: String,
    pub ticket: i64,
    pub node: String,
    /// Since when its claim stands so.
    pub since: Timestamp,
}

/// A drain that waits for a place in a node group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitsForGroup {
    pub node: String,
    pub ticket: Option<i64>,
    pub since: Option<Timestamp>,
    /// The group, and the nodes of it that are away.
    pub message: String,
}

impl NodeGroups {
    pub fn of<'a>(ledger: Option<&Ledger>, drains: impl IntoIterator<Item = &'a Drain>) -> Self {
        let claims = ledger.iter().flat_map(|ledger| ledger.claims());
        let away = claims.flat_map(|claim| {
            claim.node_groups.iter().map(|group| NodeAway {
                group: group.clone(),
                ticket: claim.ticket,
                node: claim.node.clone(),
                since: claim.since,
            })
        });
        let mut away: Vec<NodeAway> = away.collect();
        away.sort();
        let mut waiting: Vec<WaitsForGroup> = Vec::new();
        for drain in drains {
            let mut blocked = drain.blocked_by.iter();
            let group =
                blocked.find(|one| matches!(one.reason, LockReason::WaitsForNodeGroup | LockReason::GroupUnhealthy));
            waiting.extend(group.map(|group| WaitsForGroup {
                node: drain.node.clone(),
                ticket: drain.ticket,
                since: drain.since(),
                message: group.message.clone(),
            }));
        }
        waiting.sort_by_key(|waiting| (waiting.ticket.is_none(), waiting.ticket));
        Self { away, waiting }
    }

    pub fn is_empty(&self) -> bool {
        self.away.is_empty() && self.waiting.is_empty()
    }
}

/// What [`of_budgets`] is made of; each part is absent where it could not be read.
#[derive(Debug, Clone, Default)]
pub struct Sources<'a> {
    pub ledger: Option<&'a Ledger>,
    pub budgets: Vec<&'a PodDisruptionBudget>,
    pub holds: Vec<&'a DisruptionHold>,
    /// Only what is in this namespace.
    pub namespace: Option<&'a str>,
}

impl Sources<'_> {
    fn covers(&self, pdb: &str) -> bool {
        let namespace = pdb.split_once('/').map_or("", |(namespace, _)| namespace);
        self.namespace.is_none_or(|only| only == namespace)
    }

    fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.ledger.iter().flat_map(|ledger| ledger.claims())
    }
}

/// The budgets that somebody holds or waits for, and those that are `also` asked for.
pub fn of_budgets(sources: &Sources<'_>, also: &BTreeSet<String>, now: Timestamp) -> Vec<BudgetLocks> {
    let mut budgets: BTreeMap<String, BudgetLocks> = BTreeMap::new();
    for pdb in also {
        entry(&mut budgets, pdb);
    }
    for claim in sources.claims() {
        for disruptions in &claim.holds {
            entry(&mut budgets, &disruptions.pdb.to_string())
                .held
                .push(Held::of(claim, disruptions));
        }
        for needed in &claim.needs {
            let waiting = Waiting::of(claim, usize::try_from(needed.disruptions).unwrap_or_default());
            entry(&mut budgets, &needed.pdb.to_string()).waiting.push(waiting);
        }
    }
    for hold in owner_holds(sources, now) {
        entry(&mut budgets, &hold.pdb.clone()).owner_holds.push(hold);
    }
    for budget in &sources.budgets {
        if let Some(locks) = budgets.get_mut(&qualified(*budget)) {
            locks.status = Some(BudgetNumbers::of(budget));
        }
    }
    budgets
        .into_values()
        .filter(|locks| sources.covers(&locks.pdb))
        .collect()
}

fn entry<'a>(budgets: &'a mut BTreeMap<String, BudgetLocks>, pdb: &str) -> &'a mut BudgetLocks {
    let locks = budgets.entry(pdb.to_owned()).or_default();
    pdb.clone_into(&mut locks.pdb);
    locks
}

/// Claims that wait and whose needs are not known yet.
pub fn unplanned(sources: &Sources<'_>) -> Vec<Waiting> {
    sources
        .claims()
        .filter(|claim| claim.state == ClaimState::Waiting && !claim.asks())
        .map(|claim| Waiting::of(claim, 0))
        .collect()
}

/// Owners' holds that are in force at `now`, or are not answered yet.
fn owner_holds(sources: &Sources<'_>, now: Timestamp) -> Vec<OwnerHold> {
    let is_over = |hold: &OwnerHold| {
        matches!(hold.phase, Some(HoldPhase::Expired | HoldPhase::Overridden))
            || hold.until.is_some_and(|until| until <= now)
    };
    let objects = sources.holds.iter().map(|hold| OwnerHold::of(hold));
    let annotations = sources.budgets.iter().filter_map(|budget| {
        let until = budget.annotations().get(annotation::HOLD_UNTIL);
        Some(OwnerHold {
            pdb: qualified(*budget),
            reason: budget.annotations().get(annotation::HOLD)?.clone(),
            until: until.and_then(|time| time.parse().ok()),
            ..OwnerHold::default()
        })
    });
    objects.chain(annotations).filter(|hold| !is_over(hold)).collect()
}

impl BudgetNumbers {
    /// An absent number is 0, as in the API server.
    fn of(budget: &PodDisruptionBudget) -> Self {
        let status = budget.status.clone().unwrap_or_default();
        Self {
            disruptions_allowed: status.disruptions_allowed,
            current_healthy: status.current_healthy,
            desired_healthy: status.desired_healthy,
            expected_pods: status.expected_pods,
        }
    }
}

impl Held {
    fn of(claim: &Claim, disruptions: &Disruptions) -> Self {
        let name = |pod: &HeldPod| format!("{}/{}", disruptions.pdb.namespace, pod.name);
        Self {
            node: claim.node.clone(),
            ticket: claim.ticket,
            state: claim.state,
            disruptions: disruptions.pods.len(),
            pods: disruptions.pods.iter().map(name).collect(),
            retained: disruptions.pods.iter().filter(|pod| pod.retained).map(name).collect(),
            since: claim.since,
        }
    }
}

impl Waiting {
    fn of(claim: &Claim, disruptions: usize) -> Self {
        Self {
            node: claim.node.clone(),
            ticket: claim.ticket,
            disruptions,
            since: claim.queued_at,
        }
    }
}

impl OwnerHold {
    pub fn of(hold: &DisruptionHold) -> Self {
        let status = hold.status.clone().unwrap_or_default();
        Self {
            name: Some(hold.name_any()),
            pdb: format!("{}/{}", hold.namespace().unwrap_or_default(), hold.spec.pdb_ref),
            disruptions: hold.spec.disruptions,
            reason: hold.spec.reason.clone(),
            until: status.effective_until.or(hold.spec.expires_at),
            phase: status.phase,
        }
    }
}

#[cfg(test)]
mod tests;
