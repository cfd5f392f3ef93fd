//! Whether the pods that a node really has let it go down: what was read just before, for the watches may be late. Pure.

use std::collections::BTreeSet;

use nodeward_api::BudgetRef;
use nodeward_core::id::PodUid;
use nodeward_core::ledger::{Claim, Disruptions, HeldPod};

use crate::snapshot::PodFacts;

use super::need::Class;

/// A pod on a node, and the budgets that select it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    pub pod: PodFacts,
    /// What becomes of it in its node's drain; `None`: it leaves.
    pub class: Option<Class>,
    pub budgets: Vec<BudgetRef>,
}

impl Resident {
    /// Whether the claim has a disruption of each of the budgets for the pod, which stays.
    fn stays_under(&self, claim: &Claim) -> bool {
        let needs: Vec<Disruptions> = self
            .budgets
            .iter()
            .map(|pdb| Disruptions {
                pdb: pdb.clone(),
                healthy_at_grant: 0,
                movable: false,
                pods: vec![HeldPod::new(&self.pod.key, &self.pod.uid, true)],
            })
            .collect();
        !claim.lacks(&needs, |_| true)
    }
}

/// The first of all pods of the claim's node that it may not go down over, in words: neither is it a pod that no drain
/// concerns, nor one that stays under the claim, or one of `unclaimed`, which stay without.
pub fn in_the_way(claim: &Claim, residents: &[Resident], unclaimed: &BTreeSet<PodUid>) -> Option<String> {
    let node = &claim.node;
    residents.iter().find_map(|resident| {
        let key = &resident.pod.key;
        match resident.class {
            Some(Class::Ignored(_) | Class::Finished) => None,
            Some(Class::Retained(_)) if unclaimed.contains(&resident.pod.uid) || resident.stays_under(claim) => None,
            Some(Class::Retained(_)) => Some(format!(
                "pod {key} stays on node {node}, and its drain does not hold all disruptions that this takes"
            )),
            _ => Some(format!("pod {key} has yet to leave node {node}")),
        }
    })
}
