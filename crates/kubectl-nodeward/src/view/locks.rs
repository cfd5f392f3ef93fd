//! Who holds, and who waits for, the disruptions that budgets allow.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use nodeward_api::annotation;
use nodeward_api::disruption_hold::{DisruptionHold, HoldPhase};
use nodeward_api::drain_ledger::{Claim, ClaimState, DrainLedgerSpec, Units};
use serde::Serialize;

use super::unread::Unread;

/// Who holds and who waits for what.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Locks {
    /// The budgets that somebody holds units of or waits for, in the order of their names.
    pub budgets: Vec<BudgetLocks>,
    /// Claims that wait and need no unit of a budget yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unplanned: Vec<Waiting>,
    /// What could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

/// A budget, and who holds or waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetLocks {
    /// The budget.
    pub pdb: String,
    /// What its status says; absent where it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<BudgetNumbers>,
    /// Claims that hold units of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<Held>,
    /// Claims that wait for units of it, in the order of their tickets.
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
    /// Healthy pods.
    pub current_healthy: i32,
    /// Healthy pods that there must be.
    pub desired_healthy: i32,
    /// Pods that it counts.
    pub expected_pods: i32,
}

/// A claim that holds units of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// The node that drains.
    pub node: String,
    /// Its ticket.
    pub ticket: i64,
    /// Where its claim stands.
    pub state: ClaimState,
    /// How many units.
    pub units: usize,
    /// The pods that the units are for, as `namespace/name`.
    pub pods: Vec<String>,
    /// Those of them that stay on the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retained: Vec<String>,
    /// Since when its claim stands so.
    pub since: Timestamp,
}

/// A claim that waits for units of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// The node that is to drain.
    pub node: String,
    /// Its ticket.
    pub ticket: i64,
    /// How many units it needs.
    pub units: usize,
    /// Since when it waits.
    pub since: Timestamp,
}

/// An owner's hold of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerHold {
    /// Name of the DisruptionHold; absent for the annotation on the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The budget.
    pub pdb: String,
    /// How many units; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub units: Option<i32>,
    /// Why.
    pub reason: String,
    /// When it ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// What drain-lock made of it; absent until it has answered, and for an annotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<HoldPhase>,
}

/// What [`of_budgets`] is made of; each part is absent where it could not be read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sources<'a> {
    /// The ledger.
    pub ledger: Option<&'a DrainLedgerSpec>,
    /// Budgets.
    pub budgets: &'a [PodDisruptionBudget],
    /// Holds.
    pub holds: &'a [DisruptionHold],
    /// Only what is in this namespace.
    pub namespace: Option<&'a str>,
}

impl Sources<'_> {
    fn covers(&self, pdb: &str) -> bool {
        let namespace = pdb.split_once('/').map_or("", |(namespace, _)| namespace);
        self.namespace.is_none_or(|only| only == namespace)
    }

    fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.ledger.iter().flat_map(|ledger| &ledger.claims)
    }
}

/// The budgets that somebody holds or waits for, and those that are `also` asked for.
pub fn of_budgets(sources: &Sources<'_>, also: &BTreeSet<String>, now: Timestamp) -> Vec<BudgetLocks> {
    let mut budgets: BTreeMap<String, BudgetLocks> = BTreeMap::new();
    let mut entry = |pdb: String, change: &mut dyn FnMut(&mut BudgetLocks)| {
        if sources.covers(&pdb) {
            change(budgets.entry(pdb.clone()).or_insert_with(|| BudgetLocks::new(pdb)));
        }
    };
    for pdb in also {
        entry(pdb.clone(), &mut |_| ());
    }
    for claim in sources.claims() {
        for units in &claim.holds {
            entry(units.pdb.to_string(), &mut |budget| {
                budget.held.push(Held::of(claim, units));
            });
        }
        // A claim that was granted goes on saying what it needs.
        let waits = claim.state == ClaimState::Waiting;
        for needed in claim.needs.iter().filter(|_| waits) {
            let held = claim.holds.iter().filter(|held| held.pdb == needed.pdb);
            let held: BTreeSet<&str> = held.flat_map(|held| &held.pods).map(|pod| pod.uid.as_str()).collect();
            let missing = needed
                .pods
                .iter()
                .filter(|pod| !held.contains(pod.uid.as_str()))
                .count();
            if missing > 0 {
                entry(needed.pdb.to_string(), &mut |budget| {
                    budget.waiting.push(Waiting::of(claim, missing));
                });
            }
        }
    }
    for hold in owner_holds(sources, now) {
        entry(hold.pdb.clone(), &mut |budget| budget.owner_holds.push(hold.clone()));
    }
    for budget in sources.budgets {
        if let Some(locks) = budgets.get_mut(&key(budget)) {
            locks.status = Some(BudgetNumbers::of(budget));
        }
    }
    budgets.into_values().collect()
}

/// Claims that wait and have not said yet what they need.
pub fn unplanned(sources: &Sources<'_>) -> Vec<Waiting> {
    sources
        .claims()
        .filter(|claim| claim.state == ClaimState::Waiting && claim.needs.is_empty() && claim.holds.is_empty())
        .map(|claim| Waiting::of(claim, 0))
        .collect()
}

/// Owners' holds that are in force at `now`, or are not answered yet.
fn owner_holds(sources: &Sources<'_>, now: Timestamp) -> Vec<OwnerHold> {
    let objects =
        sources.holds.iter().map(OwnerHold::of).filter(|hold| {
            !matches!(hold.phase, Some(HoldPhase::Expired)) && hold.until.is_none_or(|until| now < until)
        });
    let annotations = sources.budgets.iter().filter_map(|budget| {
        let reason = budget.annotations().get(annotation::HOLD)?;
        Some(OwnerHold {
            name: None,
            pdb: key(budget),
            units: None,
            reason: reason.clone(),
            until: None,
            phase: None,
        })
    });
    objects.chain(annotations).collect()
}

fn key(budget: &PodDisruptionBudget) -> String {
    format!("{}/{}", budget.namespace().unwrap_or_default(), budget.name_any())
}

impl BudgetLocks {
    fn new(pdb: String) -> Self {
        Self {
            pdb,
            status: None,
            held: Vec::new(),
            waiting: Vec::new(),
            owner_holds: Vec::new(),
        }
    }
}

impl BudgetNumbers {
    /// What the status says; what is absent is 0, as in the API server.
    pub fn of(budget: &PodDisruptionBudget) -> Self {
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
    fn of(claim: &Claim, units: &Units) -> Self {
        let name = |pod: &str| format!("{}/{pod}", units.pdb.namespace);
        let retained = units.pods.iter().filter(|pod| pod.retained);
        Self {
            node: claim.node.clone(),
            ticket: claim.ticket,
            state: claim.state,
            units: units.pods.len(),
            pods: units.pods.iter().map(|pod| name(&pod.name)).collect(),
            retained: retained.map(|pod| name(&pod.name)).collect(),
            since: claim.since,
        }
    }
}

impl Waiting {
    fn of(claim: &Claim, units: usize) -> Self {
        Self {
            node: claim.node.clone(),
            ticket: claim.ticket,
            units,
            since: claim.queued_at,
        }
    }
}

impl OwnerHold {
    /// What a DisruptionHold says.
    pub fn of(hold: &DisruptionHold) -> Self {
        let status = hold.status.clone().unwrap_or_default();
        Self {
            name: Some(hold.name_any()),
            pdb: format!("{}/{}", hold.namespace().unwrap_or_default(), hold.spec.pdb_ref),
            units: hold.spec.units,
            reason: hold.spec.reason.clone(),
            until: status.effective_until.or(hold.spec.expires_at),
            phase: status.phase,
        }
    }
}

#[cfg(test)]
mod tests;
