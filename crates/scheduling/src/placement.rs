//! Where a pod that has to leave can go.
//!
//! A place is promised once: pods that wait for a node take theirs first, then each pod that asks, in the order of asking.
//! The scheduler may choose other places; what counts is that there are enough.

mod basis;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::HashMap;
use nodeward_core::id::{NodeName, PodKey};

use crate::neighbours::{Neighbours, Reach, Relation, reaches_far};
use crate::view::{NodeUsage, SchedulingView};
use crate::{NodeFacts, PodFacts};

use self::basis::Group;

pub(crate) use self::basis::Basis;

/// Why a pod can go nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlacementError {
    /// One of its volumes can be reached from no other node.
    LocalVolume,
    /// Its selectors and affinity accept no other node.
    Pinned,
    /// Other nodes would do, and none has room: how many nodes each obstacle rules out.
    NoRoom(ReasonCounts),
}

/// How many nodes each obstacle rules out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReasonCounts(BTreeMap<UnschedulableReason, usize>);

impl ReasonCounts {
    fn add(&mut self, reason: UnschedulableReason) {
        *self.0.entry(reason).or_default() += 1;
    }

    fn add_all(&mut self, other: &Self) {
        for (reason, count) in &other.0 {
            *self.0.entry(*reason).or_default() += count;
        }
    }

    fn take_one(&mut self, reason: UnschedulableReason) {
        if let Some(count) = self.0.get_mut(&reason) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&reason);
            }
        }
    }
}

/// Why one node cannot take a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnschedulableReason {
    Cordoned,
    NotReady,
    /// The pod's selectors and affinity do not accept it.
    NotSelected,
    /// It has a taint that the pod does not tolerate.
    Tainted,
    /// A volume of the pod cannot be reached from it.
    VolumeElsewhere,
    /// It has too little left of this.
    Short(&'static str),
    /// A port of the host is in use.
    PortTaken,
    /// A pod near it keeps the pod away, or the pod keeps away from one.
    AntiAffinity,
    /// No pod that the pod wants to be near is there.
    Affinity,
    /// The pods would be spread too unevenly.
    Spread,
}

impl fmt::Display for UnschedulableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cordoned => f.write_str("are cordoned"),
            Self::NotReady => f.write_str("are not ready"),
            Self::NotSelected => f.write_str("are not what it selects"),
            Self::Tainted => f.write_str("have taints that it does not tolerate"),
            Self::VolumeElsewhere => f.write_str("do not reach its volume"),
            Self::Short(resource) => write!(f, "have too little {resource} left"),
            Self::PortTaken => f.write_str("have its port in use"),
            Self::AntiAffinity => f.write_str("are ruled out by anti-affinity"),
            Self::Affinity => f.write_str("have no pod that it must be near"),
            Self::Spread => f.write_str("would spread its pods too unevenly"),
        }
    }
}

impl fmt::Display for ReasonCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts: Vec<_> = self.0.iter().collect();
        counts.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), **reason));
        write!(f, "of {} other nodes", self.0.values().sum::<usize>())?;
        for (index, (reason, count)) in counts.into_iter().enumerate() {
            write!(f, "{} {count} {reason}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LocalVolume => f.write_str("no other node reaches its volume"),
            Self::Pinned => f.write_str("its selectors and affinity accept no other node"),
            Self::NoRoom(counts) => write!(f, "{counts}"),
        }
    }
}

/// The places that have been promised so far.
#[derive(Clone)]
pub struct Placement<'a> {
    basis: Rc<Basis<'a>>,
    /// Nodes that are taken for cordoned, besides those that are.
    cordoned: Rc<BTreeSet<usize>>,
    /// By node: what was promised of it.
    promised: HashMap<usize, NodeUsage>,
    promises: Promises,
    /// By what pods ask for: how many of its nodes have no room left.
    exhausted: HashMap<usize, Exhausted>,
    /// By kind of pods: what their neighbours say by now.
    neighbours: HashMap<usize, KnownNeighbours>,
    /// What the pods that wait for a node find: the node, or nothing.
    awaiting: HashMap<PodKey, Option<NodeName>>,
}

/// A placement before some more pods were promised places: how many promises there were, and what was known of their likes.
pub(crate) struct Mark {
    promises: usize,
    /// By what they ask for: how many nodes had no room left.
    exhausted: HashMap<usize, usize>,
    neighbours: HashMap<usize, Option<KnownNeighbours>>,
}

/// Every promise, in order: which pod, and the index of its node.
#[derive(Clone, Default)]
struct Promises {
    all: Vec<(Arc<PodFacts>, usize)>,
    /// Those of a namespace, by their place in the list, but for those that reach beyond it.
    of_namespace: HashMap<Arc<str>, Vec<usize>>,
    /// Of these, the ones that repel others.
    repelling: HashMap<Arc<str>, Vec<usize>>,
    /// Those that repel pods of other namespaces.
    far: Vec<usize>,
}

/// The first nodes of those that could take pods that ask for the same: they have no room left, and will have none later in
/// this placement, for room only shrinks.
#[derive(Clone, Default)]
struct Exhausted {
    /// What each of them lacked when it was found so. Of more that was promised since it may lack something else, too.
    lacking: Vec<UnschedulableReason>,
}

/// What neighbours say, and how many of the promises that is by.
#[derive(Clone)]
struct KnownNeighbours {
    neighbours: Rc<Neighbours>,
    near: usize,
    far: usize,
}

impl Promises {
    fn push(&mut self, pod: &Arc<PodFacts>, node: usize) {
        let place = self.all.len();
        self.all.push((Arc::clone(pod), node));
        let (repels, namespace) = (&pod.requirements.anti_affinity, &pod.key.namespace);
        if reaches_far(repels) {
            self.far.push(place);
            return;
        }
        if !repels.is_empty() {
            self.repelling.entry(Arc::clone(namespace)).or_default().push(place);
        }
        self.of_namespace.entry(Arc::clone(namespace)).or_default().push(place);
    }

    /// Takes the last one back.
    fn pop(&mut self) -> Option<(Arc<PodFacts>, usize)> {
        let (pod, node) = self.all.pop()?;
        let place = self.all.len();
        let namespace = &pod.key.namespace;
        let of_namespace = [&mut self.of_namespace, &mut self.repelling].map(|all| all.get_mut(namespace));
        for places in of_namespace.into_iter().flatten().chain([&mut self.far]) {
            if places.last() == Some(&place) {
                places.pop();
            }
        }
        Some((pod, node))
    }

    /// Brings up to date what neighbours say to `pod`.
    fn follow(&self, pod: &PodFacts, known: &mut KnownNeighbours, view: &SchedulingView) {
        let near = match Reach::of(&pod.requirements) {
            Reach::Everywhere => {
                let new = known.near..self.all.len();
                known.near = self.all.len();
                for place in new {
                    self.note(place, pod, known, view);
                }
                return;
            }
            Reach::OwnNamespace => self.of_namespace.get(&pod.key.namespace),
            Reach::Nowhere => self.repelling.get(&pod.key.namespace),
        };
        let near = near.map(Vec::as_slice).unwrap_or_default();
        for place in near.iter().skip(known.near).chain(self.far.iter().skip(known.far)) {
            self.note(*place, pod, known, view);
        }
        (known.near, known.far) = (near.len(), self.far.len());
    }

    fn note(&self, place: usize, pod: &PodFacts, known: &mut KnownNeighbours, view: &SchedulingView) {
        let Some((other, node)) = self.all.get(place) else {
            return;
        };
        let relation = Relation::of(pod, other);
        if let Some(capacity) = view.nodes.get(*node).filter(|_| !relation.is_empty()) {
            Rc::make_mut(&mut known.neighbours).note(&relation, &capacity.node);
        }
    }
}

impl<'a> Placement<'a> {
    /// Begins with the promises to the pods that wait for a node.
    pub fn new(view: &'a SchedulingView) -> Self {
        Self::beginning(&Rc::new(Basis::new(view)), &Rc::default())
    }

    /// Nothing is promised, and these nodes are cordoned, too.
    pub(crate) fn empty(basis: &Rc<Basis<'a>>, cordoned: &Rc<BTreeSet<usize>>) -> Self {
        Self {
            basis: Rc::clone(basis),
            cordoned: Rc::clone(cordoned),
            promised: HashMap::default(),
            promises: Promises::default(),
            exhausted: HashMap::default(),
            neighbours: HashMap::default(),
            awaiting: HashMap::default(),
        }
    }

    /// The same with the promises to the pods that wait for a node.
    pub(crate) fn beginning(basis: &Rc<Basis<'a>>, cordoned: &Rc<BTreeSet<usize>>) -> Self {
        let mut placement = Self::empty(basis, cordoned);
        let pending = basis.view.pending.iter();
        for pod in pending.filter(|pod| !pod.gated && !pod.is_daemon()) {
            let place = placement.place(pod, None).ok();
            placement.awaiting.insert(pod.key.clone(), place);
        }
        placement
    }

    /// From now on these nodes take nothing, whatever was promised of them.
    pub(crate) fn cordon(&mut self, cordoned: &Rc<BTreeSet<usize>>) {
        self.cordoned = Rc::clone(cordoned);
    }

    /// Those of `among` that would take the pod, each by itself, beside the pods that are bound.
    pub fn takers(&self, pod: &PodFacts, among: &BTreeSet<NodeName>) -> Vec<NodeName> {
        let (basis, group) = (&*self.basis, self.basis.group(pod));
        let itself = group.itself(pod, basis);
        let least_filled = group.neighbours.least_filled(pod, itself);
        let takes = |name: &&NodeName| {
            let (Some(index), Some(node)) = (basis.index_of(name), basis.node(name)) else {
                return false;
            };
            basis.unsuitable(pod, index).is_none()
                && self.lacks(pod, index).is_none()
                && group
                    .neighbours
                    .unschedulable(pod, node, itself, &least_filled)
                    .is_none()
        };
        among.iter().filter(takes).cloned().collect()
    }

    /// Whether a pod that waits for a node will find one.
    pub fn finds_a_node(&self, pod: &PodFacts) -> bool {
        self.awaiting.get(&pod.key).is_some_and(Option::is_some)
    }

    /// Whether something was promised of this node.
    pub(crate) fn uses(&self, node: usize) -> bool {
        self.promised.contains_key(&node)
    }

    /// Promises a pod the first place that it finds on a node other than `from`.
    ///
    /// # Errors
    /// If there is none.
    pub fn place(&mut self, pod: &Arc<PodFacts>, from: Option<&NodeName>) -> Result<NodeName, PlacementError> {
        let basis = Rc::clone(&self.basis);
        let group = basis.group(pod);
        let from = from.and_then(|name| basis.index_of(name));
        match self.first_place(pod, from, &group) {
            Ok((index, node)) => {
                self.promise(pod, index);
                Ok(node)
            }
            Err(beyond) => Err(self.why_nowhere(pod, from, &group, beyond)),
        }
    }

    /// The same for a pod that leaves its node, without the reason.
    pub(crate) fn moves(&mut self, pod: &Arc<PodFacts>) -> bool {
        let basis = Rc::clone(&self.basis);
        let from = pod.node.as_ref().and_then(|name| basis.index_of(name));
        let place = self.first_place(pod, from, &basis.group(pod)).ok();
        if let Some((index, _)) = place {
            self.promise(pod, index);
        }
        place.is_some()
    }

    /// Promises each of the pods that leave their node a place, or none of them any. Answers how to take the promises back.
    ///
    /// # Errors
    /// The first that finds none.
    pub(crate) fn move_all<'p>(&mut self, pods: &'p [Arc<PodFacts>]) -> Result<Mark, &'p Arc<PodFacts>> {
        let mark = self.mark(pods);
        match pods.iter().find(|pod| !self.moves(pod)) {
            None => Ok(mark),
            Some(pod) => {
                self.take_back(mark);
                Err(pod)
            }
        }
    }

    fn promise(&mut self, pod: &Arc<PodFacts>, index: usize) {
        self.promised.entry(index).or_default().add(pod);
        self.promises.push(pod, index);
    }

    fn mark(&self, pods: &[Arc<PodFacts>]) -> Mark {
        let (mut exhausted, mut neighbours) = (HashMap::default(), HashMap::default());
        for pod in pods {
            let group = self.basis.group(pod);
            let candidates = group.candidates.id;
            let known = self.exhausted.get(&candidates);
            exhausted.insert(candidates, known.map_or(0, |known| known.lacking.len()));
            neighbours.insert(group.id, self.neighbours.get(&group.id).cloned());
        }
        Mark {
            promises: self.promises.all.len(),
            exhausted,
            neighbours,
        }
    }

    /// Takes back what was promised since, to those very pods.
    pub(crate) fn take_back(&mut self, mark: Mark) {
        while self.promises.all.len() > mark.promises {
            let Some((pod, index)) = self.promises.pop() else { break };
            if let Entry::Occupied(mut usage) = self.promised.entry(index) {
                usage.get_mut().remove(&pod);
                if *usage.get() == NodeUsage::default() {
                    usage.remove();
                }
            }
        }
        for (candidates, length) in mark.exhausted {
            if let Some(exhausted) = self.exhausted.get_mut(&candidates) {
                exhausted.lacking.truncate(length);
            }
        }
        for (group, known) in mark.neighbours {
            match known {
                Some(known) => self.neighbours.insert(group, known),
                None => self.neighbours.remove(&group),
            };
        }
    }

    /// The first node that takes the pod. If there is none: what rules out those that are not exhausted.
    fn first_place(
        &mut self,
        pod: &PodFacts,
        from: Option<usize>,
        group: &Group,
    ) -> Result<(usize, NodeName), ReasonCounts> {
        let (basis, candidates) = (Rc::clone(&self.basis), &group.candidates);
        let known = self.neighbours.entry(group.id).or_insert_with(|| KnownNeighbours {
            neighbours: Rc::clone(&group.neighbours),
            near: 0,
            far: 0,
        });
        self.promises.follow(pod, known, basis.view);
        let neighbours = Rc::clone(&known.neighbours);
        let itself = group.itself(pod, &basis);
        let least_filled = neighbours.least_filled(pod, itself);
        let mut exhausted = self.exhausted.remove(&candidates.id).unwrap_or_default();
        let mut beyond = ReasonCounts::default();
        let mut position = exhausted.lacking.len();
        let mut found = None;
        while let Some(index) = candidates.get(position, pod, &basis) {
            let is_from = Some(index) == from;
            match self.lacks(pod, index) {
                Some(reason) if position == exhausted.lacking.len() => exhausted.lacking.push(reason),
                _ if is_from => {}
                Some(reason) => beyond.add(reason),
                None => {
                    let Some(node) = basis.view.nodes.get(index).map(|capacity| &capacity.node) else {
                        break;
                    };
                    match neighbours.unschedulable(pod, node, itself, &least_filled) {
                        None => {
                            found = Some((index, node.name.clone()));
                            break;
                        }
                        Some(reason) => beyond.add(reason),
                    }
                }
            }
            position += 1;
        }
        self.exhausted.insert(candidates.id, exhausted);
        found.ok_or(beyond)
    }

    /// Why a node that could take the pod has no room left.
    fn lacks(&self, pod: &PodFacts, index: usize) -> Option<UnschedulableReason> {
        if self.cordoned.contains(&index) {
            return Some(UnschedulableReason::Cordoned);
        }
        let (promised, capacity) = (self.promised.get(&index)?, self.basis.view.nodes.get(index)?);
        let (offered, taken) = (&capacity.node.allocatable, &capacity.usage.requests);
        let asked = &pod.requirements;
        if let Some(short) = offered.shortage(taken, &promised.requests, &asked.requests) {
            return Some(UnschedulableReason::Short(short));
        }
        asked
            .conflicts_with_ports(&promised.host_ports)
            .then_some(UnschedulableReason::PortTaken)
    }

    /// Names the obstacle that no other room would take away, if there is one.
    fn why_nowhere(&self, pod: &PodFacts, from: Option<usize>, group: &Group, beyond: ReasonCounts) -> PlacementError {
        let (basis, candidates) = (&*self.basis, &group.candidates);
        let accepted = candidates.accepted(pod, basis);
        if accepted.reach_volumes.is_none_but(from) {
            return PlacementError::LocalVolume;
        }
        if accepted.are_selected.is_none_but(from) {
            return PlacementError::Pinned;
        }
        let mut counts = beyond;
        counts.add_all(&candidates.unsuitable());
        let exhausted = self.exhausted.get(&candidates.id);
        let lacking = exhausted.map(|exhausted| &*exhausted.lacking).unwrap_or_default();
        for reason in lacking {
            counts.add(*reason);
        }
        // The node that it leaves is none of the others.
        if let Some(from) = from {
            let found_so = || lacking.get(candidates.position(from, basis)?).copied();
            if let Some(own) = basis.unsuitable(pod, from).or_else(found_so) {
                counts.take_one(own);
            }
        }
        PlacementError::NoRoom(counts)
    }

    /// Every promise: the pod, and the node that it goes to.
    pub fn promises(&self) -> impl Iterator<Item = (&Arc<PodFacts>, &NodeFacts)> {
        let promises = self.promises.all.iter();
        promises.filter_map(|(pod, index)| Some((pod, &*self.basis.view.nodes.get(*index)?.node)))
    }
}
