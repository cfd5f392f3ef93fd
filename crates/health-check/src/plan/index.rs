//! What a pass looks up again and again, ordered once.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_core::id::{NamespacedName, NodeName};

use crate::snapshot::{CheckFacts, KindFacts, Listed, NodeFacts, RemediationFacts, RemediationKind, Snapshot};

/// A remediation, shared with the snapshot.
pub type Live<'a> = &'a Arc<RemediationFacts>;

/// What a pass looks up again and again.
pub struct Index<'a> {
    snapshot: &'a Snapshot,
    /// Remediations by the UID of an owner and by node.
    owned: HashMap<&'a str, BTreeMap<&'a NodeName, Vec<Live<'a>>>>,
    /// Remediations by node, of whatever owner.
    of_node: HashMap<&'a NodeName, Vec<Live<'a>>>,
    /// Remediations by group, kind and name.
    named: HashMap<(&'a str, &'a str, &'a NamespacedName), Live<'a>>,
    /// Control-plane nodes with a remediation, of whatever owner and kind.
    pub remediated_control_plane: BTreeMap<&'a NodeName, Live<'a>>,
}

/// Gives remediations back the node and the NodeHealthCheck whose status has them, by UID: without their annotation or their
/// owner they would seem to be gone, and their remediators are at work. One that another NodeHealthCheck owns now is its.
pub fn restore_recorded(snapshot: &Snapshot) -> Cow<'_, Snapshot> {
    let mut recorded: HashMap<&str, (&CheckFacts, &str)> = HashMap::new();
    for check in snapshot.checks.values() {
        for entry in &check.status.unhealthy_nodes {
            let uids = entry
                .all_remediations()
                .filter_map(|known| known.resource.uid.as_deref());
            recorded.extend(uids.map(|uid| (uid, (&**check, entry.name.as_str()))));
        }
    }
    let mut restored = Cow::Borrowed(snapshot);
    for (at, live) in snapshot.remediations.iter().enumerate() {
        let Some((check, node)) = recorded.get(&*live.uid) else {
            continue;
        };
        let is_its = live.owners.contains(&check.uid);
        let has_owner = || snapshot.checks.values().any(|check| live.owners.contains(&check.uid));
        if (is_its && live.node.as_str() != *node) || (!is_its && !has_owner()) {
            let live = Arc::make_mut(&mut restored.to_mut().remediations[at]);
            live.node = NodeName::from(*node);
            if !is_its {
                live.owners = [Arc::clone(&check.uid)].into();
            }
        }
    }
    restored
}

impl<'a> Index<'a> {
    /// Orders a snapshot.
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let mut index = Self {
            snapshot,
            owned: HashMap::new(),
            of_node: HashMap::new(),
            named: HashMap::new(),
            remediated_control_plane: BTreeMap::new(),
        };
        let mut seen = HashSet::new();
        for live in &snapshot.remediations {
            // Specifications and statuses may name a kind in several versions.
            if !seen.insert(&*live.uid) {
                continue;
            }
            index
                .named
                .insert((live.kind.group(), &live.kind.kind, &live.key), live);
            index.of_node.entry(&live.node).or_default().push(live);
            for owner in &live.owners {
                let nodes = index.owned.entry(owner).or_default();
                nodes.entry(&live.node).or_default().push(live);
            }
            let node = snapshot.nodes.get(&live.node);
            let was_member = snapshot.memory.found.etcd_members.contains_key(&live.node);
            if live.is_control_plane || was_member || node.is_some_and(|node| node.view.is_control_plane()) {
                index.remediated_control_plane.insert(&live.node, live);
            }
        }
        index
    }

    /// The NodeHealthCheck's own remediations, by node.
    pub fn owned_by(&self, check_uid: &str) -> impl Iterator<Item = (&'a NodeName, &[Live<'a>])> {
        let nodes = self.owned.get(check_uid).into_iter().flatten();
        nodes.map(|(node, live)| (*node, live.as_slice()))
    }

    /// The NodeHealthCheck's own remediations of a node.
    pub fn owned_on(&self, check_uid: &str, node: &NodeName) -> &[Live<'a>] {
        let nodes = self.owned.get(check_uid);
        nodes.and_then(|nodes| nodes.get(node)).map_or(&[], Vec::as_slice)
    }

    /// The remediations of a node, of whatever owner.
    pub fn remediations_of(&self, node: &NodeName) -> &[Live<'a>] {
        self.of_node.get(node).map_or(&[], Vec::as_slice)
    }

    /// The NodeHealthCheck that a remediation is of; `None`: that is gone, or it is somebody else's.
    pub fn owner(&self, live: &RemediationFacts) -> Option<&'a CheckFacts> {
        let mut checks = self.snapshot.checks.values();
        checks
            .find(|check| live.owners.contains(&check.uid))
            .map(|check| &**check)
    }

    /// The nodes that have a remediation whose remediator may be at work, of whatever owner.
    pub fn remediated(&self) -> impl Iterator<Item = &'a NodeName> {
        let running = self
            .of_node
            .iter()
            .filter(|(_, all)| all.iter().any(|live| live.runs()));
        running.map(|(node, _)| *node)
    }

    /// The remediation of this kind and name, of whatever owner.
    pub fn named(&self, kind: &'a RemediationKind, key: &'a NamespacedName) -> Option<Live<'a>> {
        self.named.get(&(kind.group(), &*kind.kind, key)).copied()
    }

    /// What is known of a kind, in whichever version it is listed.
    pub fn kind(&self, kind: &RemediationKind) -> Option<&'a KindFacts> {
        let mut kinds = self.snapshot.kinds.iter();
        self.snapshot
            .kinds
            .get(kind)
            .or_else(|| kinds.find(|(known, _)| known.is_same(kind)).map(|(_, facts)| facts))
    }

    /// Whether a remediation that is not seen does not exist.
    pub fn is_listed(&self, kind: &RemediationKind) -> bool {
        let listed = self.kind(kind).map(|facts| &facts.listed);
        matches!(listed, Some(Listed::Complete | Listed::NotServed))
    }

    /// Whether a remediation was found to be gone, whatever a list tells.
    pub fn is_gone(&self, uid: &str) -> bool {
        self.snapshot.memory.gone.contains(uid)
    }

    /// Whether a remediation's kind is not served, or was not while this process has known it: a definition that is made again
    /// has no objects.
    pub fn is_lost(&self, kind: &RemediationKind, uid: &str) -> bool {
        let listed = self.kind(kind).map(|facts| &facts.listed);
        listed == Some(&Listed::NotServed) || self.snapshot.memory.found.lost.contains(uid)
    }

    /// Whether remediations of the kind may be annotated.
    pub fn may_annotate(&self, kind: &RemediationKind) -> bool {
        self.kind(kind).is_some_and(|facts| facts.may_annotate)
    }

    /// Whether a remediation takes an annotation.
    pub fn takes_annotation(&self, live: Live<'_>, annotation: &'static str) -> bool {
        self.may_annotate(&live.kind) && self.refused_annotation(&live.uid, annotation).is_none()
    }

    /// Why the API server refuses an annotation of what has this UID, and when it is tried again.
    pub fn refused_annotation(&self, uid: &str, annotation: &'static str) -> Option<&'a (String, Timestamp)> {
        self.snapshot.memory.unannotated.get(&(uid.into(), annotation))
    }

    /// Whether a control-plane node is away for its NodeDrain, or may be: one that cannot be read counts.
    pub fn is_drained_away(&self, node: &NodeFacts, now: Timestamp) -> bool {
        match self.snapshot.drains.of(&node.view.name) {
            Ok(drain) => drain.is_some_and(|drain| drain.is_maintenance(now) && drain.is_of(&node.view.uid)),
            Err(_) => true,
        }
    }

    /// A kind of which somebody may have remediations that no list shows, and why; one that is listed in another version is
    /// known.
    pub fn unlisted_kind(&self) -> Option<(&'a RemediationKind, &'a str)> {
        let kinds = &self.snapshot.kinds;
        let is_complete = |kind: &RemediationKind| {
            let mut same = kinds.iter().filter(|(other, _)| other.is_same(kind));
            same.any(|(_, facts)| facts.listed == Listed::Complete)
        };
        let mut unlisted = kinds.iter().filter_map(|(kind, facts)| match &facts.listed {
            Listed::Complete | Listed::NotServed => None,
            Listed::NotYet => Some((kind, "their list is not complete yet")),
            Listed::Forbidden(why) => Some((kind, why.as_str())),
        });
        unlisted.find(|(kind, _)| !is_complete(kind))
    }

    /// A remediation of a node that nobody knows: somebody's who did not say of which one it is.
    pub fn unattributed(&self) -> Option<Live<'a>> {
        let mut remediations = self.snapshot.remediations.iter();
        remediations.find(|live| !live.tells_node && !self.snapshot.nodes.contains_key(&live.node))
    }
}
