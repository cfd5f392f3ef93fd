//! What a plan has done: a write of the ledger, and actions beside it.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::BudgetRef;
use nodeward_api::node_drain::NodeDrain;
use nodeward_api::reason::LockReason;
use nodeward_core::id::{BudgetKey, NodeName, NodeUid, PodKey, PodUid};
use nodeward_core::ledger::{Fence, Ledger};

use crate::snapshot::{LedgerFacts, PodFacts};

use super::lease::LeaseChange;
use super::node_markers::NodeWrite;
use super::stale_budget::Touch;
use super::stale_entries::StaleEntries;
use super::verdict::Announcement;

/// A write of the ledger: one compare-and-swap.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LedgerWrite {
    /// What it was; `None`: there is none yet.
    pub base: Option<Arc<LedgerFacts>>,
    /// What it is to be, before the grants.
    pub next: Ledger,
    /// Claims to be granted, the oldest first, if what is read by quorum allows it.
    pub grants: Vec<GrantAsk>,
    /// Grants to be made sure of.
    pub confirms: Vec<ConfirmAsk>,
    /// Nodes of which it is to be made sure that they are drained.
    pub drained: Vec<DrainedAsk>,
    /// Pods that were taken for gone, with the claims that return their disruptions: none of them may be there.
    pub gone: Vec<GonePod>,
    /// Budgets whose pods' owners may have been scaled down.
    pub scales: BTreeSet<BudgetKey>,
    /// Nodes that are taken not to go down any more.
    pub called_off: Vec<CalledOff>,
    /// NodeDrains that were taken for gone, with the UIDs of their nodes: none of them may be there.
    pub absent: Vec<(NodeName, NodeUid)>,
    /// Pods without a disruption whose eviction is asked for: what is read by quorum may still count them.
    pub leaving: BTreeSet<PodUid>,
    /// What to say once it is written.
    pub announcements: Vec<Announcement>,
}

impl LedgerWrite {
    /// Whether what is read by quorum decides on more than `next` has.
    pub fn asks(&self) -> bool {
        !(self.grants.is_empty() && self.confirms.is_empty() && self.drained.is_empty() && self.scales.is_empty())
    }

    /// The claims of which something rests on what has yet to be read by quorum.
    pub fn reading_claims(&self) -> BTreeSet<NodeUid> {
        let asked = self.grants.iter().map(|ask| &ask.node_uid);
        let asked = asked.chain(self.confirms.iter().map(|ask| &ask.node_uid));
        let asked = asked.chain(self.drained.iter().map(|ask| &ask.node_uid));
        let taken = self.gone.iter().map(|gone| &gone.node_uid);
        let taken = taken.chain(self.called_off.iter().map(|called_off| &called_off.node_uid));
        let taken = taken.chain(self.absent.iter().map(|(_, uid)| uid));
        asked.chain(taken).cloned().collect()
    }

    /// Whether what `next` makes of it does.
    fn changes_by_reads(&self, node_uid: &NodeUid) -> bool {
        self.gone.iter().any(|gone| gone.node_uid == *node_uid)
            || self
                .called_off
                .iter()
                .any(|called_off| called_off.node_uid == *node_uid)
            || self.absent.iter().any(|(_, uid)| uid == node_uid)
    }

    /// Leaves out what rests on reads of one claim, which could not be made or were contradicted. Its place in the queue and
    /// what it asks for rest on none, and stand unless disruptions were to return with it.
    pub fn leave_out(&mut self, node_uid: &NodeUid) {
        if self.changes_by_reads(node_uid) {
            let before = LedgerFacts::content(self.base.as_deref());
            self.next.put_back(node_uid.as_str(), &before);
            self.announcements
                .retain(|announcement| announcement.node_uid != *node_uid);
        }
        self.gone.retain(|gone| gone.node_uid != *node_uid);
        self.called_off.retain(|called_off| called_off.node_uid != *node_uid);
        self.absent.retain(|(_, uid)| uid != node_uid);
        self.grants.retain(|ask| ask.node_uid != *node_uid);
        self.confirms.retain(|ask| ask.node_uid != *node_uid);
        self.drained.retain(|ask| ask.node_uid != *node_uid);
    }
}

/// A pod that was taken for gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GonePod {
    /// The claim that returns its disruption.
    pub node_uid: NodeUid,
    pub key: PodKey,
    pub uid: String,
    /// The budget whose number of pods tells that there is another in its place: it is to tell so by quorum, too.
    pub by_number_of: Option<BudgetRef>,
}

/// A node that was told that it may go down, and is taken not to any more, for its drain was called off: its kubelet is
/// heard of later than this, in the boot of then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalledOff {
    pub node: NodeName,
    pub node_uid: NodeUid,
    pub boot_id: Arc<str>,
    pub since: Timestamp,
}

/// A claim to be granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantAsk {
    pub node_uid: NodeUid,
    pub boot_id: Arc<str>,
    /// The node groups that it takes its places in with the same write.
    pub node_groups: Vec<String>,
}

/// A grant to be made sure of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfirmAsk {
    pub node_uid: NodeUid,
    pub grant: i64,
    /// Its pods that are down.
    pub down: BTreeSet<String>,
}

/// A node that seems to be drained: it is, if what is read by quorum shows no pod that has yet to leave, and what was
/// granted for those that stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainedAsk {
    pub node: NodeName,
    pub node_uid: NodeUid,
    pub fence: Fence,
    pub boot_id: Arc<str>,
    /// Its pods that are down.
    pub down: BTreeSet<String>,
    /// Those of its pods that stay for which it claims nothing.
    pub unclaimed: BTreeSet<PodUid>,
}

/// Something to do. Each carries its own preconditions, and each may be done twice without harm.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Take a NodeDrain into care: it will not go before its claim has.
    Adopt { drain: Arc<NodeDrain>, node_uid: String },
    /// Delete a NodeDrain that is over. From then on nothing begins it anew.
    Delete {
        drain: Arc<NodeDrain>,
        /// Why it is over.
        reason: LockReason,
    },
    /// Let a NodeDrain go that has nothing left.
    Finish { drain: Arc<NodeDrain> },
    /// Cordon, uncordon, taint, and say on the node how far its drain has come.
    Node(NodeWrite),
    /// Evict one pod that has no disruption of its own.
    Evict { eviction: PodEviction },
    /// Ask for a pod that its budget never lets go, so that whoever runs it hears of that.
    AskOwner { eviction: PodEviction, budget: BudgetKey },
    /// Evict the pods of a granted claim.
    EvictHeld {
        node_uid: NodeUid,
        /// The grant that it rests on.
        fence: Fence,
        /// UID of the ledger that the grant is in.
        ledger_uid: Arc<str>,
        pods: Vec<PodEviction>,
    },
    /// Take, renew or give back the lease of a node or of the control plane.
    Lease(LeaseChange),
    /// Have a budget's status count pods that it takes for evicted.
    RemoveStaleEntries(StaleEntries),
    /// Have Kubernetes count a budget's pods anew.
    Touch(Touch),
}

/// A pod that has to leave.
#[derive(Debug, Clone, PartialEq)]
pub struct PodEviction {
    pub pod: Arc<PodFacts>,
    pub node: NodeName,
}
