//! What claims ahead in the queue are to have: worked out once for all questions about one version of a ledger, and no further
//! down the queue than somebody asks.

use std::collections::{BTreeMap, BTreeSet};

use super::waits::{Waits, order, returning};
use super::{BudgetFacts, Claim, Facts, Ledger, NeedChange};
use crate::id::{BudgetKey, NodeName};

/// The order of the queue, and the disruptions that claims in it keep from those behind them. It follows from a ledger and the
/// facts of its budgets, and is made anew when that ledger has changed; the facts are the same for as long as it is used.
#[derive(Debug, Clone)]
pub struct Reservations {
    version: u64,
    /// Tickets of the claims whose disruptions come back without anybody's help.
    pub(super) returning: BTreeSet<i64>,
    /// Tickets of the claims that ask, in the order in which they are served.
    order: Vec<i64>,
    /// Whether that is the order of their tickets whatever they need, for none of them holds anything.
    is_by_ticket: bool,
    /// How many of them have been looked at.
    looked_at: usize,
    /// The first that waits for disruptions. One is enough to keep it from starving; each further one would keep disruptions
    /// idle.
    waits: Option<i64>,
    kept: BTreeMap<BudgetKey, Vec<Kept>>,
    /// What is free of the budgets that the claims need which were looked at.
    free: BTreeMap<BudgetKey, i32>,
    /// How many times it was made anew.
    #[cfg(test)]
    pub(super) made: usize,
}

/// What one claim keeps of a budget.
#[derive(Debug, Clone)]
struct Kept {
    /// Its place in the order.
    place: usize,
    disruptions: i32,
    node: NodeName,
}

impl Reservations {
    /// Of no claim.
    pub(super) fn of_nobody() -> Self {
        Self {
            version: 0,
            returning: BTreeSet::new(),
            order: Vec::new(),
            is_by_ticket: true,
            looked_at: 0,
            waits: None,
            kept: BTreeMap::new(),
            free: BTreeMap::new(),
            #[cfg(test)]
            made: 1,
        }
    }

    /// Of no claim, with so much free of a budget.
    pub(super) fn with_free(budget: BudgetKey, free: i32) -> Self {
        Self {
            free: BTreeMap::from([(budget, free)]),
            ..Self::of_nobody()
        }
    }

    /// Nobody has been looked at yet.
    pub fn new(ledger: &Ledger, facts: &Facts) -> Self {
        let (order, is_by_ticket) = order(ledger);
        let mut this = Self {
            version: ledger.version.0,
            order,
            is_by_ticket,
            ..Self::of_nobody()
        };
        this.returning = returning(ledger, facts, &this);
        this
    }

    /// Everybody has been looked at.
    pub fn of_all(ledger: &Ledger, facts: &Facts) -> Self {
        let mut this = Self::new(ledger, facts);
        this.look_until(ledger, facts, usize::MAX);
        this
    }

    /// Looks at those ahead of a node's claim.
    pub fn look_ahead_of(&mut self, node_uid: &str, ledger: &Ledger, facts: &Facts) {
        if self.version != ledger.version.0 {
            #[cfg(test)]
            let made = self.made;
            *self = Self::new(ledger, facts);
            #[cfg(test)]
            {
                self.made += made;
            }
        }
        let claim = ledger.claim(node_uid);
        let place = claim.map_or(usize::MAX, |claim| self.place_of(claim.ticket));
        self.look_until(ledger, facts, place);
        if let Some(claim) = claim {
            self.note_free(claim, ledger, facts);
        }
    }

    fn note_free(&mut self, claim: &Claim, ledger: &Ledger, facts: &Facts) {
        for need in &claim.needs {
            let key = BudgetKey::from(&need.pdb);
            if let Some(budget) = facts.get(&key) {
                self.free.entry(key).or_insert_with(|| ledger.free(budget));
            }
        }
    }

    /// What is free of a budget.
    pub(super) fn free(&self, budget: &BudgetFacts, ledger: &Ledger) -> i32 {
        let known = self.free.get(&budget.key).copied();
        known.unwrap_or_else(|| ledger.free(budget))
    }

    /// All who could be granted now are counted, up to the first that waits for disruptions; that one is the last.
    fn look_until(&mut self, ledger: &Ledger, facts: &Facts, place: usize) {
        while self.waits.is_none() && self.looked_at < place {
            let place = self.looked_at;
            let Some(ticket) = self.order.get(place) else { return };
            self.looked_at += 1;
            let Some(claim) = ledger.claims().iter().find(|claim| claim.ticket == *ticket) else {
                continue;
            };
            self.note_free(claim, ledger, facts);
            let waits = Waits::new(ledger, facts, self);
            if !waits.are_for_disruptions_at_most(claim, place, &self.returning) {
                // Nobody knows when it could go: to reserve for it would stop the queue for nothing.
                continue;
            }
            let is_waiting = waits.of(claim, place, &|_| true).next().is_some();
            for need in &claim.needs {
                let budget = BudgetKey::from(&need.pdb);
                let (_, healthy, _) = need.counted(claim, facts);
                let kept = Kept {
                    place,
                    disruptions: if facts.contains_key(&budget) { healthy } else { 0 },
                    node: claim.node.as_str().into(),
                };
                self.kept.entry(budget).or_default().push(kept);
            }
            if is_waiting {
                self.waits = Some(claim.ticket);
            }
        }
    }

    /// Follows a change of what a claim needs, where that leaves all that has been worked out as it is: the claim holds
    /// nothing, and has not been looked at. `before` is the ledger's version before it.
    pub(super) fn follow(&mut self, change: NeedChange, node_uid: &str, before: u64, ledger: &Ledger) {
        let is_planned = matches!(change, NeedChange::Planned | NeedChange::Unchanged);
        let Some(claim) = ledger.claim(node_uid).filter(|claim| claim.holds.is_empty()) else {
            return;
        };
        let place = self.order.partition_point(|ticket| *ticket < claim.ticket);
        if self.version != before || !is_planned || !self.is_by_ticket || place < self.looked_at {
            return;
        }
        let is_there = self.order.get(place) == Some(&claim.ticket);
        match (claim.asks(), is_there) {
            (true, false) => self.order.insert(place, claim.ticket),
            (false, true) => _ = self.order.remove(place),
            (true, true) | (false, false) => {}
        }
        self.version = ledger.version.0;
    }

    /// Follows a grant of disruptions of these budgets: of the others as many are free as before.
    pub(super) fn follow_grant(&mut self, budgets: &BTreeSet<BudgetKey>, ledger: &Ledger, facts: &Facts) {
        let mut free = std::mem::take(&mut self.free);
        free.retain(|budget, _| !budgets.contains(budget));
        *self = Self {
            free,
            ..Self::new(ledger, facts)
        };
    }

    /// Where the claim of this ticket is in the order; behind all others, if it does not ask.
    pub(super) fn place_of(&self, ticket: i64) -> usize {
        let place = self.order.iter().position(|known| *known == ticket);
        place.unwrap_or(self.order.len())
    }

    /// What claims ahead of this place keep of a budget, and the node of the first of them.
    pub(super) fn ahead_of(&self, place: usize, budget: &BudgetKey) -> Option<(i32, &NodeName)> {
        let kept = self.kept.get(budget)?;
        let ahead = kept.get(..kept.partition_point(|kept| kept.place < place))?;
        let disruptions: i32 = ahead.iter().map(|kept| kept.disruptions).sum();
        let first = ahead.first().filter(|_| disruptions > 0)?;
        Some((disruptions, &first.node))
    }

    /// The claim that reserves, of those that were looked at.
    pub(super) fn reserver(&self) -> Option<i64> {
        self.waits
    }
}
