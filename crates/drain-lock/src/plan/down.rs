//! Which pods of a claim are down, and which of those are back.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nodeward_core::id::PodKey;
use nodeward_core::ledger::{HeldPod, Units};

use crate::snapshot::{Memory, PodFacts, Snapshot};

use super::case::Case;
use super::returned;

/// The pods of one claim.
#[derive(Debug, Clone, Default)]
pub struct Down {
    away: BTreeSet<String>,
    back: BTreeSet<String>,
    gone: Vec<(PodKey, String)>,
}

impl Down {
    /// Looks at the pods that the claim of a case holds.
    pub fn look(case: &Case, snapshot: &Snapshot, memory: &Memory, now: Timestamp) -> Self {
        let mut this = Self::default();
        let Some(claim) = &case.claim else {
            return this;
        };
        let present: BTreeMap<&str, &PodFacts> = case
            .pods(snapshot)
            .iter()
            .map(|pod| (pod.uid.as_str(), pod.as_ref()))
            .collect();
        for units in &claim.holds {
            for held in &units.pods {
                let pod = present.get(held.uid.as_str()).copied();
                this.judge(case, snapshot, memory, now, units, held, pod);
            }
        }
        this
    }

    #[allow(clippy::too_many_arguments, reason = "one pod, and all that is known of it")]
    fn judge(
        &mut self,
        case: &Case,
        snapshot: &Snapshot,
        memory: &Memory,
        now: Timestamp,
        units: &Units,
        held: &HeldPod,
        pod: Option<&PodFacts>,
    ) {
        let (is_down, is_back) = match pod {
            Some(pod) if pod.deletion.is_some() || memory.is_asked_to_go(&held.uid, now) => (true, false),
            Some(pod) => {
                let is_awake = match &case.node {
                    Some(node) => node.ready && !case.has_rebooted(),
                    // It outlived its node, under another one of that name.
                    None => {
                        case.is_replaced && pod.is_healthy() && snapshot.nodes.get(&case.name).is_some_and(|n| n.ready)
                    }
                };
                // Until it is deleted with its node, a pod looks as it did last.
                let went_with_its_node = case.node.is_none() && !case.is_replaced;
                let is_back = case.has_rebooted()
                    && case
                        .node
                        .as_deref()
                        .zip(case.claim.as_ref())
                        .is_some_and(|(node, claim)| returned::is_back(pod, node, claim));
                // A pod that was to be evicted and still runs is not down; one that stays is, from when its node goes.
                ((held.retained || went_with_its_node) && !is_awake && !is_back, is_back)
            }
            None => {
                let key = PodKey::new(units.pdb.namespace.as_str(), held.name.as_str());
                let is_back = returned::has_replacement(&key, &held.uid, snapshot)
                    || returned::has_recovered(units, held, snapshot);
                if is_back {
                    self.gone.push((key, held.uid.clone()));
                }
                (true, is_back)
            }
        };
        if is_back {
            self.back.insert(held.uid.clone());
        } else if is_down {
            self.away.insert(held.uid.clone());
        }
    }

    /// Whether the unit of this pod cannot be given back by a write.
    pub fn is_down(&self, held: &HeldPod) -> bool {
        self.away.contains(&held.uid)
    }

    /// Whether any pod is down.
    pub fn has_any(&self) -> bool {
        !self.away.is_empty()
    }

    /// UIDs of the pods that are down.
    pub fn uids(&self) -> &BTreeSet<String> {
        &self.away
    }

    /// UIDs of the pods that are back.
    pub fn back(&self) -> Vec<&str> {
        self.back.iter().map(String::as_str).collect()
    }

    /// Pods that are taken for gone, and whose units return for that.
    pub fn gone(&self) -> &[(PodKey, String)] {
        &self.gone
    }
}
