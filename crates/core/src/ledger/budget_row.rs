//! What the ledger keeps of a budget, whichever claims have disruptions of it.

use jiff::Timestamp;
use nodeward_api::budget_ref::BudgetRef;

use super::{BudgetPods, Claim, Facts, Ledger, disruptions};
use crate::id::BudgetKey;

/// What is kept of one budget.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct BudgetRow {
    /// How many pods there should be, where the budget's own status counts those that exist: the scale of their owners when
    /// it was read last, or the most pods that were seen.
    pub expected_pods: Option<i32>,
    /// Those owners, as [`nodeward_api::drain_ledger::StoredBudget::owners`] has them.
    pub owners: Vec<String>,
    /// The first of the grants in force; `None` where all of its pods come back under their names, or an earlier version
    /// made the grant.
    pub first_grant: Option<FirstGrant>,
}

/// A budget's pods at the first of the grants in force: what later pods are told from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FirstGrant {
    /// When the newest of them was created that is told from later ones ([`BudgetPods::newest`]), by the API server's clock.
    pub newest_pod: Timestamp,
    /// How many pods fewer there were than there should be.
    pub missing_pods: i32,
}

impl FirstGrant {
    /// How many of the pods that are down under claims have another in their place.
    ///
    /// Pods of the first grant count whether they are healthy or not, so that one that fails keeps nobody waiting. Those created
    /// since count once they are healthy, beyond what makes up for pods of then that are gone and held by nobody, and for a
    /// scale that has risen since. While there are more pods than there should be, some are there in the place of pods that
    /// go next: a rolling restart returns nothing.
    pub fn in_place_of(self, down: usize, pods: BudgetPods) -> usize {
        let expected = pods.expected - self.missing_pods;
        let excess = (pods.all - expected).max(0);
        let in_place = pods.standing.saturating_add(disruptions::count(down)) - expected - excess;
        usize::try_from(in_place).unwrap_or_default()
    }
}

impl Ledger {
    /// What is kept of this very budget.
    pub fn budget_row(&self, pdb: &BudgetRef) -> Option<&BudgetRow> {
        self.budgets.get(pdb)
    }

    /// Keeps how many pods of a budget there should be, and who owns them; of one that no claim names, nothing.
    pub fn note_scale(&mut self, pdb: &BudgetRef, expected_pods: i32, owners: Vec<String>) {
        let needs = self.claims.iter().flat_map(|claim| &claim.needs).map(|need| &need.pdb);
        let holds = self.claims.iter().flat_map(|claim| &claim.holds).map(|held| &held.pdb);
        if needs.chain(holds).any(|named| named == pdb) {
            let row = self.budgets.entry(pdb.clone()).or_default();
            (row.expected_pods, row.owners) = (Some(expected_pods), owners);
        }
    }

    /// Keeps what the budget's pods are before a grant, unless another grant of it is in force. So many of them are `leaving` under it
    /// already.
    pub(super) fn note_first_grant(&mut self, pdb: &BudgetRef, leaving: i32, facts: &Facts) {
        let key = BudgetKey::from(pdb);
        let is_held = |claim: &Claim| claim.holds.iter().any(|held| held.pdb == *pdb);
        if self.holders_of(&key).any(is_held) {
            return;
        }
        let budget = facts.get(&key).filter(|budget| *budget.uid == *pdb.uid);
        let first_grant = budget.and_then(|budget| {
            Some(FirstGrant {
                newest_pod: budget.pods.newest?,
                missing_pods: (budget.pods.expected - budget.pods.all - leaving).max(0),
            })
        });
        if first_grant.is_some() || self.budgets.contains_key(pdb) {
            self.budgets.entry(pdb.clone()).or_default().first_grant = first_grant;
        }
    }
}
