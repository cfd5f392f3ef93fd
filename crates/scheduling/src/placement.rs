//! Where a pod that has to leave can go.
//!
//! A place is promised once: pods that wait for a node take theirs first, then each pod that asks, in the order of asking.
//! The scheduler may choose other places; what counts is that there are enough.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use nodeward_core::id::{NodeName, PodKey};
use nodeward_core::labels::Labels;

use crate::neighbours::Neighbours;
use crate::requirements::{HostPort, Requirements};
use crate::view::{NodeCapacity, NodeUsage, SchedulingView};
use crate::{NodeFacts, PodFacts};

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
    view: &'a SchedulingView,
    /// By node: what was promised of it.
    promised: Vec<NodeUsage>,
    /// Every promise, in order: which pod, and the index of its node.
    promises: Vec<(Arc<PodFacts>, usize)>,
    /// By what pods ask for: how far the search has come.
    searches: HashMap<Group, Search>,
    /// What the pods that wait for a node find: the node, or nothing.
    awaiting: HashMap<PodKey, Option<NodeName>>,
}

/// Pods that ask for the same: what one of them does not find, none finds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Group {
    requirements: *const Requirements,
    labels: *const Labels,
    namespace: Arc<str>,
    claims: Box<[Arc<str>]>,
    from: Option<NodeName>,
}

/// How far the search for a group has come.
#[derive(Clone)]
struct Search {
    /// Nodes before this one cannot take the group; they will not do so later in this placement, for room only shrinks.
    next: usize,
    /// How many of those each obstacle rules out.
    counts: ReasonCounts,
    neighbours: Neighbours,
}

impl<'a> Placement<'a> {
    /// Begins with the promises to the pods that wait for a node.
    pub fn new(view: &'a SchedulingView) -> Self {
        let mut placement = Self {
            view,
            promised: vec![NodeUsage::default(); view.nodes.len()],
            promises: Vec::new(),
            searches: HashMap::new(),
            awaiting: HashMap::new(),
        };
        for pod in view.pending.iter().filter(|pod| !pod.gated && !pod.is_daemon()) {
            let place = placement.place(pod, None).ok();
            placement.awaiting.insert(pod.key.clone(), place);
        }
        placement
    }

    /// Whether a pod that waits for a node will find one.
    pub fn finds_a_node(&self, pod: &PodFacts) -> bool {
        self.awaiting.get(&pod.key).is_some_and(Option::is_some)
    }

    /// Promises a pod the first place that it finds on a node other than `from`.
    ///
    /// # Errors
    /// If there is none.
    pub fn place(&mut self, pod: &Arc<PodFacts>, from: Option<&NodeName>) -> Result<NodeName, PlacementError> {
        let group = Group {
            requirements: Arc::as_ptr(&pod.requirements),
            labels: Arc::as_ptr(&pod.labels),
            namespace: Arc::clone(&pod.key.namespace),
            claims: pod.claims.clone(),
            from: from.cloned(),
        };
        let view = self.view;
        let mut search = self.searches.remove(&group).unwrap_or_else(|| Search {
            next: 0,
            counts: ReasonCounts::default(),
            neighbours: Neighbours::of(pod, view),
        });
        search.neighbours.follow(pod, &self.promises, view);
        if search.neighbours.may_open_up() {
            search.next = 0;
            search.counts = ReasonCounts::default();
        }
        let mut found = None;
        while let Some(capacity) = view.nodes.get(search.next) {
            if from == Some(&capacity.node.name) {
                search.next += 1;
                continue;
            }
            match self.unschedulable(pod, capacity, search.next, &search.neighbours) {
                None => {
                    found = Some((search.next, capacity.node.name.clone()));
                    break;
                }
                Some(reason) => {
                    *search.counts.0.entry(reason).or_default() += 1;
                    search.next += 1;
                }
            }
        }
        let outcome = match found {
            Some((index, node)) => {
                self.promise(pod, index);
                Ok(node)
            }
            None => Err(why_nowhere(pod, from, view, &search.counts)),
        };
        self.searches.insert(group, search);
        outcome
    }

    /// Every promise: the pod, and the node that it goes to.
    pub fn promises(&self) -> impl Iterator<Item = (&Arc<PodFacts>, &NodeFacts)> {
        let promises = self.promises.iter();
        promises.filter_map(|(pod, index)| Some((pod, &*self.view.nodes.get(*index)?.node)))
    }

    fn promise(&mut self, pod: &Arc<PodFacts>, index: usize) {
        if let Some(promised) = self.promised.get_mut(index) {
            promised.add(pod);
        }
        self.promises.push((Arc::clone(pod), index));
    }

    /// Why a node cannot take a pod now.
    fn unschedulable(
        &self,
        pod: &PodFacts,
        capacity: &NodeCapacity,
        index: usize,
        neighbours: &Neighbours,
    ) -> Option<UnschedulableReason> {
        let node = &*capacity.node;
        if node.is_cordoned() {
            return Some(UnschedulableReason::Cordoned);
        }
        if !node.ready {
            return Some(UnschedulableReason::NotReady);
        }
        if !pod.requirements.select(node) {
            return Some(UnschedulableReason::NotSelected);
        }
        if !pod.requirements.tolerate(node) {
            return Some(UnschedulableReason::Tainted);
        }
        if !self.view.volumes_of(pod).all(|volume| volume.accepts(node)) {
            return Some(UnschedulableReason::VolumeElsewhere);
        }
        let promised = self.promised.get(index)?;
        let asked = &pod.requirements.requests;
        if let Some(short) = node
            .allocatable
            .shortage(&capacity.usage.requests, &promised.requests, asked)
        {
            return Some(UnschedulableReason::Short(short));
        }
        let mut used = capacity.usage.host_ports.iter().chain(&promised.host_ports);
        let is_taken = |used: &HostPort| pod.requirements.host_ports.iter().any(|port| port.conflicts_with(used));
        if !pod.requirements.host_ports.is_empty() && used.any(is_taken) {
            return Some(UnschedulableReason::PortTaken);
        }
        neighbours.unschedulable(pod, node)
    }
}

/// Names the obstacle that no other room would take away, if there is one.
fn why_nowhere(
    pod: &PodFacts,
    from: Option<&NodeName>,
    view: &SchedulingView,
    counts: &ReasonCounts,
) -> PlacementError {
    let others = || {
        view.nodes
            .iter()
            .map(|capacity| &*capacity.node)
            .filter(|node| Some(&node.name) != from)
    };
    let reaches_volumes = |node: &NodeFacts| view.volumes_of(pod).all(|volume| volume.accepts(node));
    if !others().any(reaches_volumes) && view.volumes_of(pod).next().is_some() {
        return PlacementError::LocalVolume;
    }
    let selects = !pod.requirements.node_selector.is_empty() || pod.requirements.node_affinity.is_some();
    if selects && !others().any(|node| pod.requirements.select(node)) {
        return PlacementError::Pinned;
    }
    PlacementError::NoRoom(counts.clone())
}
