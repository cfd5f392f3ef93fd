//! Where a pod that has to leave can go, read as the scheduler reads it: requests, selectors, affinity, taints, volumes,
//! ports of the host, anti-affinity, spreading. Pure.
//!
//! A place is promised once: pods that wait for a node take theirs first, then each pod that asks, in the order of asking.
//! The scheduler may choose other places; what counts is that there are enough.

mod neighbourhood;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_core::id::{NodeName, PodKey};

use self::neighbourhood::Neighbourhood;
use crate::snapshot::scheduling::HostPort;
use crate::snapshot::{Floor, Labels, NodeFacts, PodFacts, Resources, Room, Scheduling};

/// Why a pod can go nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misplaced {
    /// One of its volumes can be reached from no other node.
    LocalVolume,
    /// Its selectors and affinity accept no other node.
    Pinned,
    /// Other nodes would do, and none has room: how many nodes each obstacle rules out.
    NoRoom(Tally),
}

/// How many nodes each obstacle rules out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally(BTreeMap<Misfit, usize>);

/// Why one node cannot take a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Misfit {
    /// It is cordoned.
    Cordoned,
    /// It is not Ready.
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

impl fmt::Display for Misfit {
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

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts: Vec<_> = self.0.iter().collect();
        counts.sort_by_key(|(misfit, count)| (std::cmp::Reverse(**count), **misfit));
        write!(f, "of {} other nodes", self.0.values().sum::<usize>())?;
        for (index, (misfit, count)) in counts.into_iter().enumerate() {
            write!(f, "{} {count} {misfit}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LocalVolume => f.write_str("no other node reaches its volume"),
            Self::Pinned => f.write_str("its selectors and affinity accept no other node"),
            Self::NoRoom(tally) => write!(f, "{tally}"),
        }
    }
}

/// The places that have been promised so far.
pub struct Placement<'a> {
    floor: &'a Floor,
    /// By room: what was promised of it.
    promised: Vec<Promised>,
    /// Every promise, in order: which pod, and the index of its room.
    promises: Vec<(Arc<PodFacts>, usize)>,
    /// By what pods ask for: how far the search has come.
    searches: HashMap<Group, Search>,
    /// What the pods that wait for a node find: the node, or nothing.
    awaiting: HashMap<PodKey, Option<NodeName>>,
}

#[derive(Debug, Clone, Default)]
struct Promised {
    requests: Resources,
    host_ports: Vec<HostPort>,
}

/// Pods that ask for the same: what one of them does not find, none finds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Group {
    scheduling: *const Scheduling,
    labels: *const Labels,
    namespace: Arc<str>,
    claims: Box<[Arc<str>]>,
    from: Option<NodeName>,
}

/// How far the search for a group has come.
struct Search {
    /// Rooms before this one cannot take the group; they will not do so later in this placement, for room only shrinks.
    next: usize,
    /// How many of those each obstacle rules out.
    tally: Tally,
    neighbourhood: Neighbourhood,
}

impl<'a> Placement<'a> {
    /// Begins with the promises to the pods that wait for a node.
    pub fn new(floor: &'a Floor) -> Self {
        let mut placement = Self {
            floor,
            promised: vec![Promised::default(); floor.rooms.len()],
            promises: Vec::new(),
            searches: HashMap::new(),
            awaiting: HashMap::new(),
        };
        for pod in floor.pending.iter().filter(|pod| !pod.gated && !pod.is_daemon()) {
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
    pub fn place(&mut self, pod: &Arc<PodFacts>, from: Option<&NodeName>) -> Result<NodeName, Misplaced> {
        let group = Group {
            scheduling: Arc::as_ptr(&pod.scheduling),
            labels: Arc::as_ptr(&pod.labels),
            namespace: Arc::clone(&pod.key.namespace),
            claims: pod.claims.clone(),
            from: from.cloned(),
        };
        let floor = self.floor;
        let mut search = self.searches.remove(&group).unwrap_or_else(|| Search {
            next: 0,
            tally: Tally::default(),
            neighbourhood: Neighbourhood::of(pod, floor),
        });
        search.neighbourhood.follow(pod, &self.promises, floor);
        if search.neighbourhood.may_open_up() {
            search.next = 0;
            search.tally = Tally::default();
        }
        let mut found = None;
        while let Some(room) = floor.rooms.get(search.next) {
            if from == Some(&room.node.name) {
                search.next += 1;
                continue;
            }
            match self.misfit(pod, room, search.next, &search.neighbourhood) {
                None => {
                    found = Some((search.next, room.node.name.clone()));
                    break;
                }
                Some(misfit) => {
                    *search.tally.0.entry(misfit).or_default() += 1;
                    search.next += 1;
                }
            }
        }
        let outcome = match found {
            Some((index, node)) => {
                self.promise(pod, index);
                Ok(node)
            }
            None => Err(why_nowhere(pod, from, floor, &search.tally)),
        };
        self.searches.insert(group, search);
        outcome
    }

    /// Every promise: the pod, and the node that it goes to.
    #[cfg(test)]
    pub(super) fn promises(&self) -> impl Iterator<Item = (&Arc<PodFacts>, &NodeFacts)> {
        let node = |index: &usize| &*self.floor.rooms[*index].node;
        self.promises.iter().map(move |(pod, index)| (pod, node(index)))
    }

    fn promise(&mut self, pod: &Arc<PodFacts>, index: usize) {
        if let Some(promised) = self.promised.get_mut(index) {
            promised.requests += &pod.scheduling.requests;
            promised.host_ports.extend(pod.scheduling.host_ports.iter().cloned());
        }
        self.promises.push((Arc::clone(pod), index));
    }

    /// Why a node cannot take a pod now.
    fn misfit(&self, pod: &PodFacts, room: &Room, index: usize, neighbourhood: &Neighbourhood) -> Option<Misfit> {
        let node = &*room.node;
        if node.is_cordoned() {
            return Some(Misfit::Cordoned);
        }
        if !node.ready {
            return Some(Misfit::NotReady);
        }
        if !is_selected(pod, node) {
            return Some(Misfit::NotSelected);
        }
        if repelling_taint(pod, node) {
            return Some(Misfit::Tainted);
        }
        if !self
            .floor
            .volumes_of(pod)
            .all(|volume| volume.accepts(node.name.as_str(), &node.labels))
        {
            return Some(Misfit::VolumeElsewhere);
        }
        let promised = self.promised.get(index)?;
        let asked = &pod.scheduling.requests;
        if let Some(short) = node
            .allocatable
            .shortage(&room.load.requests, &promised.requests, asked)
        {
            return Some(Misfit::Short(short));
        }
        let mut used = room.load.host_ports.iter().chain(&promised.host_ports);
        let is_taken = |used: &HostPort| pod.scheduling.host_ports.iter().any(|port| port.conflicts_with(used));
        if !pod.scheduling.host_ports.is_empty() && used.any(is_taken) {
            return Some(Misfit::PortTaken);
        }
        neighbourhood.misfit(pod, node)
    }
}

/// Whether the pod's selectors and affinity accept a node.
fn is_selected(pod: &PodFacts, node: &NodeFacts) -> bool {
    let scheduling = &pod.scheduling;
    let affinity = scheduling.node_affinity.as_ref();
    scheduling
        .node_selector
        .iter()
        .all(|(key, value)| node.labels.get(key) == Some(value))
        && affinity.is_none_or(|affinity| affinity.accepts(node.name.as_str(), &node.labels))
}

/// Whether a taint keeps the pod away: one that forbids scheduling, and that it does not tolerate.
fn repelling_taint(pod: &PodFacts, node: &NodeFacts) -> bool {
    node.taints
        .iter()
        .filter(|taint| taint.effect != "PreferNoSchedule")
        .any(|taint| !pod.scheduling.tolerates(taint))
}

/// Names the obstacle that no other room would take away, if there is one.
fn why_nowhere(pod: &PodFacts, from: Option<&NodeName>, floor: &Floor, tally: &Tally) -> Misplaced {
    let others = || {
        floor
            .rooms
            .iter()
            .map(|room| &*room.node)
            .filter(|node| Some(&node.name) != from)
    };
    let reaches_volumes = |node: &NodeFacts| {
        floor
            .volumes_of(pod)
            .all(|volume| volume.accepts(node.name.as_str(), &node.labels))
    };
    if !others().any(reaches_volumes) && floor.volumes_of(pod).next().is_some() {
        return Misplaced::LocalVolume;
    }
    let selects = !pod.scheduling.node_selector.is_empty() || pod.scheduling.node_affinity.is_some();
    if selects && !others().any(|node| is_selected(pod, node)) {
        return Misplaced::Pinned;
    }
    Misplaced::NoRoom(tally.clone())
}

/// The first of these movable pods, or of those that wait for a node since `since`, that finds a place now, and would
/// find none if `node` were cordoned.
///
/// A cordon of ours never takes the last room that a movable pod of another draining node finds, nor what has come to
/// replace it.
pub fn cordon_strands(floor: &Floor, node: &NodeFacts, movable: &[Arc<PodFacts>], since: Timestamp) -> Option<PodKey> {
    let mut pending = floor.pending.iter().filter(|pod| since <= pod.created).peekable();
    if movable.is_empty() && pending.peek().is_none() {
        return None;
    }
    let mut without = floor.clone();
    without.cordon(&node.name);
    let (mut now, mut then) = (Placement::new(floor), Placement::new(&without));
    let stranded = pending.find(|pod| now.finds_a_node(pod) && !then.finds_a_node(pod));
    let stranded = stranded.or_else(|| {
        movable.iter().find(|pod| {
            let from = pod.node.as_ref();
            now.place(pod, from).is_ok() && then.place(pod, from).is_err()
        })
    });
    stranded.map(|pod| pod.key.clone())
}
