//! The annotation `nodeward.dev/locked-by` on budgets: whose drains hold disruptions of them.

use std::collections::{BTreeMap, BTreeSet};

use nodeward_core::id::BudgetKey;
use nodeward_core::ledger::{Claim, ClaimState};

use crate::execute::StatusUpdate;
use crate::snapshot::Snapshot;

/// Budgets whose annotation is not as it should be.
pub fn changes(snapshot: &Snapshot) -> Vec<StatusUpdate> {
    let mut holders: BTreeMap<BudgetKey, BTreeSet<&str>> = BTreeMap::new();
    // What is granted and not confirmed may be gone in a moment.
    let is_confirmed = |claim: &&Claim| !matches!(claim.state, ClaimState::Granted);
    for claim in snapshot.claims().iter().filter(is_confirmed) {
        for disruptions in &claim.holds {
            let key = BudgetKey::from(&disruptions.pdb);
            holders.entry(key).or_default().insert(&claim.node);
        }
    }
    let changes = snapshot.budgets.iter().filter_map(|(key, entry)| {
        let nodes = holders
            .get(key)
            .map(|nodes| nodes.iter().copied().collect::<Vec<_>>().join(","));
        (entry.locked_by.as_deref() != nodes.as_deref()).then(|| StatusUpdate::LockedBy {
            key: key.clone(),
            uid: entry.view.uid.to_string(),
            nodes,
        })
    });
    changes.collect()
}
