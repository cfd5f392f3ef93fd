//! The cases of a plan: each drain with its node and its claim, each claim that has no drain any more, and each node that
//! still carries a cordon of ours.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodeward_api::node_drain::{Evictor, NodeDrain};
use nodeward_core::id::NodeName;
use nodeward_core::ledger::{Claim, Ledger};

use crate::snapshot::{NodeFacts, PodFacts, Snapshot};

/// One drain, or what is left of one.
#[derive(Debug, Clone)]
pub struct Case {
    /// The node's name.
    pub name: NodeName,
    /// UID of the node that the drain is about; `None` while nobody knows it.
    pub node_uid: Option<String>,
    /// Who asked; `None` for what is left of a drain.
    pub drain: Option<Arc<NodeDrain>>,
    /// That very node, if it is there.
    pub node: Option<Arc<NodeFacts>>,
    /// Whether another node has its name now.
    pub is_replaced: bool,
    /// Its claim as the ledger had it when this pass began.
    pub claim: Option<Claim>,
}

impl Case {
    /// UID of the NodeDrain; empty without one.
    pub fn drain_uid(&self) -> &str {
        self.drain
            .as_deref()
            .and_then(|drain| drain.metadata.uid.as_deref())
            .unwrap_or_default()
    }

    /// Who evicts.
    pub fn evictor(&self) -> Evictor {
        self.drain.as_deref().map(|drain| drain.spec.evict).unwrap_or_default()
    }

    /// Whether the node carries a cordon of ours, of this drain or of one before it.
    pub fn has_own_cordon(&self) -> bool {
        self.node.as_deref().is_some_and(|node| node.is_cordoned_by_us())
    }

    /// Whether the node carries a cordon that is not ours.
    pub fn has_foreign_cordon(&self) -> bool {
        let is_cordoned = self.node.as_deref().is_some_and(|node| node.is_cordoned());
        is_cordoned && !self.has_own_cordon()
    }

    /// Whether drain-lock has adopted the NodeDrain: it will not go before its claim has.
    pub fn is_adopted(&self) -> bool {
        let finalizers = self
            .drain
            .as_deref()
            .and_then(|drain| drain.metadata.finalizers.as_deref());
        finalizers
            .unwrap_or_default()
            .iter()
            .any(|finalizer| finalizer == nodeward_api::finalizer::DRAIN_LOCK)
    }

    /// Whether the node has booted anew since its claim was granted.
    pub fn has_rebooted(&self) -> bool {
        let (Some(node), Some(claim)) = (&self.node, &self.claim) else {
            return false;
        };
        claim.has_rebooted(&node.boot_id)
    }

    /// Whether the claim has its units.
    pub fn is_granted(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.state.has_grant())
    }

    /// The node's pods.
    pub fn pods<'a>(&self, snapshot: &'a Snapshot) -> &'a [Arc<PodFacts>] {
        snapshot.pods_of(&self.name)
    }
}

/// All cases, the oldest ticket first; those without a ticket come after in the order in which they were asked for.
pub fn cases(snapshot: &Snapshot, ledger: &Ledger) -> Vec<Case> {
    let mut cases: Vec<Case> = snapshot
        .drains
        .iter()
        .map(|(name, drain)| of_drain(name, drain, snapshot, ledger))
        .collect();
    let known: BTreeSet<String> = cases.iter().filter_map(|case| case.node_uid.clone()).collect();
    for claim in ledger.claims() {
        if !known.contains(&claim.node_uid) {
            cases.push(of_claim(claim, snapshot));
        }
    }
    let named: BTreeSet<NodeName> = cases.iter().map(|case| case.name.clone()).collect();
    for node in snapshot.nodes.values() {
        if node.cordoned_by().is_some() && !named.contains(&node.name) {
            cases.push(Case {
                name: node.name.clone(),
                node_uid: Some(node.uid.as_str().to_owned()),
                drain: None,
                node: Some(Arc::clone(node)),
                is_replaced: false,
                claim: None,
            });
        }
    }
    cases.sort_by_cached_key(|case| {
        let ticket = case.claim.as_ref().map_or(i64::MAX, |claim| claim.ticket);
        let created = case
            .drain
            .as_deref()
            .and_then(|drain| drain.metadata.creation_timestamp.as_ref())
            .map(|time| time.0);
        (ticket, created, case.name.clone())
    });
    cases
}

fn of_drain(name: &NodeName, drain: &Arc<NodeDrain>, snapshot: &Snapshot, ledger: &Ledger) -> Case {
    let present = snapshot.nodes.get(name);
    let node_uid = drain
        .spec
        .node_uid
        .clone()
        .or_else(|| present.map(|node| node.uid.as_str().to_owned()));
    let is_meant = |node: &&Arc<NodeFacts>| node_uid.as_deref() == Some(node.uid.as_str());
    Case {
        name: name.clone(),
        drain: Some(Arc::clone(drain)),
        node: present.filter(is_meant).cloned(),
        is_replaced: present.is_some_and(|node| !is_meant(&node)),
        claim: node_uid.as_deref().and_then(|uid| ledger.claim(uid)).cloned(),
        node_uid,
    }
}

fn of_claim(claim: &Claim, snapshot: &Snapshot) -> Case {
    let name = NodeName::from(claim.node.as_str());
    let present = snapshot.nodes.get(&name);
    let is_meant = |node: &&Arc<NodeFacts>| claim.node_uid == node.uid.as_str();
    Case {
        node_uid: Some(claim.node_uid.clone()),
        drain: None,
        node: present.filter(is_meant).cloned(),
        is_replaced: present.is_some_and(|node| !is_meant(&node)),
        claim: Some(claim.clone()),
        name,
    }
}
