//! The drains of a plan: each with its node and its claim, each claim that has no drain any more, and each node that
//! still carries a cordon of ours, or its record.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_api::finalizer;
use nodeward_api::node_drain::{Evictor, NodeDrain};
use nodeward_core::deadline::saturating_add;
use nodeward_core::id::{NodeName, NodeUid, PodUid};
use nodeward_core::ledger::{Claim, Ledger};

use crate::snapshot::{LeavingPods, Memory, NodeFacts, PodFacts, Snapshot};

use super::intent::{Intent, last_eviction};
use super::node_markers::Cordon;
use super::pod_classes::PodClasses;
use super::recovery::UnavailablePods;

/// A drain, and what this pass has found out about it.
pub struct DrainContext {
    pub record: DrainRecord,
    /// The pods of its claim that are down.
    pub unavailable: UnavailablePods,
    pub intent: Intent,
    /// The node's pods that are on their way out.
    pub leaving: LeavingPods,
    /// When it was last seen to go on.
    pub last_sign: Option<Timestamp>,
    /// Whether others evict, and have shown no sign of life for so long that what they do not use is others'.
    pub is_idle: bool,
    /// Its node's pods, where it is to be drained or previewed.
    pub classes: Option<PodClasses>,
}

impl Deref for DrainContext {
    type Target = DrainRecord;

    fn deref(&self) -> &DrainRecord {
        &self.record
    }
}

/// One drain, or what is left of one.
#[derive(Debug, Clone)]
pub struct DrainRecord {
    pub name: NodeName,
    /// UID of the node that the drain is about; `None` while nobody knows it.
    pub node_uid: Option<NodeUid>,
    /// Who asked; `None` for what is left of a drain.
    pub drain: Option<Arc<NodeDrain>>,
    /// That very node, if it is there.
    pub node: Option<Arc<NodeFacts>>,
    /// Whether another node has its name now.
    pub is_replaced: bool,
    /// Its claim as the ledger had it when this pass began.
    pub claim: Option<Claim>,
}

impl DrainContext {
    /// Whether its node is cordoned, and a drain is wanted of it.
    pub fn is_open(&self) -> bool {
        self.intent == Intent::Drain && self.node.as_deref().is_some_and(|node| node.is_cordoned())
    }
}

impl DrainRecord {
    /// Whether its claim lets the node go down.
    pub fn may_go_down(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.may_go_down)
    }

    fn of(
        name: NodeName,
        node_uid: Option<NodeUid>,
        drain: Option<&Arc<NodeDrain>>,
        snapshot: &Snapshot,
        ledger: &Ledger,
    ) -> Self {
        let present = snapshot.nodes.get(&name);
        let node = present.filter(|node| Some(&node.uid) == node_uid.as_ref());
        Self {
            drain: drain.cloned(),
            node: node.cloned(),
            is_replaced: present.is_some() && node.is_none(),
            claim: claim_of(node_uid.as_ref(), ledger).cloned(),
            name,
            node_uid,
        }
    }

    /// UID of the NodeDrain; empty without one.
    pub fn drain_uid(&self) -> &str {
        let drain = self.drain.as_deref();
        let uid = drain.and_then(|drain| drain.metadata.uid.as_deref());
        uid.unwrap_or_default()
    }

    /// Who evicts.
    pub fn evictor(&self) -> Evictor {
        self.drain.as_deref().map(|drain| drain.spec.evict).unwrap_or_default()
    }

    pub fn is_by_requester(&self) -> bool {
        self.evictor() == Evictor::Requester
    }

    pub fn has_foreign_cordon(&self) -> bool {
        let node = self.node.as_deref();
        node.is_some_and(|node| node.is_cordoned() && !node.is_cordoned_by_us())
    }

    /// The cordon that a node is to have that is drained by us; another's cordon is respected.
    pub fn own_cordon(&self) -> Cordon {
        if self.is_by_requester() {
            return Cordon::Keep;
        }
        if self.has_foreign_cordon() {
            return Cordon::Respect;
        }
        Cordon::Set {
            by: self.drain_uid().to_owned(),
        }
    }

    /// Until when drain-lock leaves its own cordon on the node: another drainer has evicted pods of it, and may not be done.
    pub fn cordon_stays_until(&self, quiet_period: SignedDuration, now: Timestamp) -> Option<Timestamp> {
        let is_ours = self.node.as_deref().is_some_and(|node| node.is_cordoned_by_us());
        let evicted = last_eviction(self.drain.as_deref().filter(|_| is_ours)?)?;
        Some(saturating_add(evicted, quiet_period)).filter(|until| *until > now)
    }

    /// Whether drain-lock has adopted the NodeDrain: it will not go before its claim has.
    pub fn is_adopted(&self) -> bool {
        let finalizers = self.drain.iter().filter_map(|drain| drain.metadata.finalizers.as_ref());
        let mut finalizers = finalizers.flatten();
        finalizers.any(|name| name == finalizer::DRAIN_LOCK)
    }

    /// Whether nobody wants the drain any more.
    pub fn is_over(&self) -> bool {
        let drain = self.drain.as_deref();
        drain.is_none_or(|drain| drain.metadata.deletion_timestamp.is_some())
    }

    /// Whether the node has booted anew since its claim was granted.
    pub fn has_rebooted(&self) -> bool {
        let node_and_claim = self.node.as_ref().zip(self.claim.as_ref());
        node_and_claim.is_some_and(|(node, claim)| claim.has_rebooted(&node.boot_id))
    }

    /// Whether the claim has its disruptions.
    pub fn is_granted(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.state.has_grant())
    }

    /// The node's pods that are on their way out and that drainers wait for, each with when its grace is over.
    fn leaving_pods<'a>(&self, snapshot: &'a Snapshot) -> impl Iterator<Item = (&'a PodUid, Timestamp)> {
        let waited_for = self.pods(snapshot).iter().filter(|pod| !pod.mirror && !pod.is_daemon());
        waited_for.filter_map(|pod| Some((&pod.uid, pod.deletion.as_ref()?.deadline)))
    }

    /// The same beside what is remembered of them.
    pub fn leaving(&self, snapshot: &Snapshot, memory: &Memory, now: Timestamp) -> LeavingPods {
        let pods = self.leaving_pods(snapshot).map(|(pod, _)| pod.clone()).collect();
        let before = memory.leaving.get(&self.name);
        before.unwrap_or(&LeavingPods::default()).updated(pods, now)
    }

    /// When the grace of the last pod that leaves the node is over.
    pub fn last_deadline(&self, snapshot: &Snapshot) -> Option<Timestamp> {
        self.leaving_pods(snapshot).map(|(_, deadline)| deadline).max()
    }

    /// The node's pods.
    pub fn pods<'a>(&self, snapshot: &'a Snapshot) -> &'a [Arc<PodFacts>] {
        snapshot.pods_of(&self.name)
    }
}

/// The claim of a node whose UID is known.
pub fn claim_of<'a>(node_uid: Option<&NodeUid>, ledger: &'a Ledger) -> Option<&'a Claim> {
    ledger.claim(node_uid?.as_str())
}

/// All drains, the oldest ticket first; those without a ticket come after in the order in which they were asked for.
pub fn drain_records(snapshot: &Snapshot, ledger: &Ledger) -> Vec<DrainRecord> {
    let mut records = Vec::new();
    for (name, drain) in &snapshot.drains {
        let present = || snapshot.nodes.get(name).map(|node| node.uid.clone());
        let node_uid = drain.spec.node_uid.as_deref().map(NodeUid::from).or_else(present);
        records.push(DrainRecord::of(name.clone(), node_uid, Some(drain), snapshot, ledger));
    }
    let known: BTreeSet<NodeUid> = records.iter().filter_map(|record| record.node_uid.clone()).collect();
    for claim in ledger.claims() {
        if !known.contains(claim.node_uid.as_str()) {
            let (name, uid) = (claim.node.as_str().into(), claim.node_uid.as_str().into());
            records.push(DrainRecord::of(name, Some(uid), None, snapshot, ledger));
        }
    }
    let named: BTreeSet<NodeName> = records.iter().map(|record| record.name.clone()).collect();
    for node in snapshot.nodes.values() {
        let is_marked = node.cordon_record().is_some() || node.has_do_not_disrupt_record();
        if is_marked && !named.contains(&node.name) {
            let uid = Some(node.uid.clone());
            records.push(DrainRecord::of(node.name.clone(), uid, None, snapshot, ledger));
        }
    }
    // What nobody can read may say that the drain goes on.
    records.retain(|record| !snapshot.unreadable_drains.contains_key(&record.name));
    records.sort_by_cached_key(|record| {
        let ticket = record.claim.as_ref().map_or(i64::MAX, |claim| claim.ticket);
        let drain = record.drain.as_deref();
        let created = drain.and_then(|drain| drain.metadata.creation_timestamp.as_ref());
        (ticket, created.map(|time| time.0), record.name.clone())
    });
    records
}
