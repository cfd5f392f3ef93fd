//! The ledger as it is stored, and as it is read.

use std::collections::{BTreeMap, BTreeSet};

use nodeward_api::budget_ref::BudgetRef;
use nodeward_api::drain_ledger::{DrainLedgerSpec, FORMAT_VERSION, StoredBudget, StoredClaim, StoredHold, StoredNeed};

use super::{BudgetRow, Claim, FirstGrant, Ledger};

/// Place of each row in the table of budgets. Claims that were granted when different numbers of a budget's pods were
/// healthy have a row each: with the number of another, a claim could wait for a pod that has nothing to do with it.
type Places<'a> = BTreeMap<(&'a BudgetRef, i32), u32>;

impl TryFrom<&DrainLedgerSpec> for Ledger {
    /// What of it cannot be read, and why. Such a ledger is left alone: what it holds would be lost.
    type Error = String;

    fn try_from(stored: &DrainLedgerSpec) -> Result<Self, String> {
        if let Some(why) = &stored.unreadable {
            return Err(why.clone());
        }
        let budget = |place: u32| {
            let row = usize::try_from(place).ok().and_then(|place| stored.budgets.get(place));
            let row = row.ok_or_else(|| format!("there is no budget {place} in a list of {}", stored.budgets.len()))?;
            Ok((budget_ref(row), row.healthy_at_grant))
        };
        let claims = stored
            .claims
            .iter()
            .enumerate()
            .map(|(place, claim)| Claim::restore(claim, budget).map_err(|why| format!("claims[{place}].{why}")));
        let claims: Vec<Claim> = claims.collect::<Result<_, String>>()?;
        let mut nodes = BTreeSet::new();
        if let Some(claim) = claims.iter().find(|claim| !nodes.insert(&claim.node_uid)) {
            return Err(format!("node {} has two claims", claim.node));
        }
        let mut budgets = BTreeMap::new();
        for row in &stored.budgets {
            // Of several rows of a budget the first has what is kept of it.
            let kept = budget_row(row);
            if kept != BudgetRow::default() {
                budgets.entry(budget_ref(row)).or_insert(kept);
            }
        }
        Ok(Self {
            next_ticket: stored.next_ticket,
            claims,
            leaderless: stored.leaderless.clone(),
            budgets,
            ..Self::default()
        })
    }
}

impl From<&Ledger> for DrainLedgerSpec {
    fn from(ledger: &Ledger) -> Self {
        let holds = ledger.claims.iter().flat_map(|claim| &claim.holds);
        let mut places: Places<'_> = holds
            .map(|disruptions| ((&disruptions.pdb, disruptions.healthy_at_grant), 0))
            .collect();
        let needed = ledger
            .claims
            .iter()
            .flat_map(|claim| &claim.needs)
            .map(|need| &need.pdb);
        let moving = ledger.claims.iter().flat_map(|claim| &claim.moving);
        for pdb in needed.chain(moving.map(|moving| &moving.pdb)) {
            if place_of(&places, pdb).is_none() {
                places.insert((pdb, 0), 0);
            }
        }
        for (place, number) in places.values_mut().zip(0..) {
            *place = number;
        }
        let budgets = places.iter().map(|((pdb, healthy), place)| {
            let kept = ledger.budgets.get(pdb);
            let first = kept.filter(|_| place_of(&places, pdb) == Some(*place));
            let first_grant = first.and_then(|row| row.first_grant);
            StoredBudget {
                namespace: pdb.namespace.clone(),
                name: pdb.name.clone(),
                uid: pdb.uid.clone(),
                healthy_at_grant: *healthy,
                expected_pods: first.and_then(|row| row.expected_pods),
                owners: first.map(|row| row.owners.clone()).unwrap_or_default(),
                newest_pod: first_grant.map(|first| first.newest_pod),
                missing_pods: first_grant.map(|first| first.missing_pods).unwrap_or_default(),
            }
        });
        Self {
            format_version: FORMAT_VERSION,
            next_ticket: ledger.next_ticket,
            budgets: budgets.collect(),
            claims: ledger.claims.iter().map(|claim| stored_claim(claim, &places)).collect(),
            leaderless: ledger.leaderless.clone(),
            unreadable: None,
        }
    }
}

fn budget_row(row: &StoredBudget) -> BudgetRow {
    BudgetRow {
        expected_pods: row.expected_pods,
        owners: row.owners.clone(),
        first_grant: row.newest_pod.map(|newest_pod| FirstGrant {
            newest_pod,
            missing_pods: row.missing_pods,
        }),
    }
}

fn budget_ref(row: &StoredBudget) -> BudgetRef {
    BudgetRef {
        namespace: row.namespace.clone(),
        name: row.name.clone(),
        uid: row.uid.clone(),
    }
}

/// Place of the first row of a budget.
fn place_of(places: &Places<'_>, pdb: &BudgetRef) -> Option<u32> {
    let mut rows = places.range((pdb, i32::MIN)..=(pdb, i32::MAX));
    rows.next().map(|(_, place)| *place)
}

fn stored_claim(claim: &Claim, places: &Places<'_>) -> StoredClaim {
    let needs = claim.needs.iter().map(|need| StoredNeed {
        budget: place_of(places, &need.pdb).unwrap_or(u32::MAX),
        disruptions: need.disruptions,
        healthy: need.healthy,
        several: need.several.clone(),
    });
    let holds = claim.holds.iter().flat_map(|disruptions| {
        let row = (&disruptions.pdb, disruptions.healthy_at_grant);
        let budget = places.get(&row).copied().unwrap_or(u32::MAX);
        disruptions.pods.iter().map(move |pod| StoredHold {
            budget,
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            retained: pod.retained,
            containers: pod.containers.clone(),
        })
    });
    let moving = claim.moving.iter().flat_map(|moving| {
        let budget = place_of(places, &moving.pdb).unwrap_or(u32::MAX);
        moving.pods.iter().map(move |pod| StoredHold {
            budget,
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            ..StoredHold::default()
        })
    });
    let movable = claim.holds.iter().filter(|disruptions| disruptions.movable);
    let movable = movable.map(|disruptions| {
        let row = (&disruptions.pdb, disruptions.healthy_at_grant);
        places.get(&row).copied().unwrap_or(u32::MAX)
    });
    StoredClaim {
        ticket: claim.ticket,
        node: claim.node.clone(),
        node_uid: claim.node_uid.clone(),
        state: claim.state,
        may_go_down: claim.may_go_down,
        since: claim.since,
        queued_at: claim.queued_at,
        grant: claim.grant,
        boot_id: claim.boot_id.clone(),
        foreign_cordon: claim.foreign_cordon,
        obstructed_since: claim.obstructed_since,
        reserves: claim.reserves,
        node_groups: claim.node_groups.clone(),
        needs: needs.collect(),
        holds: holds.collect(),
        movable: movable.collect(),
        moving: moving.collect(),
    }
}
