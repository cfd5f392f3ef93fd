//! What placements begin with: which nodes could take pods as long as nothing is promised, and what bound pods say. Worked
//! out once for all placements over one view, and no further than somebody asks.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use nodeward_core::id::{NodeName, PodUid};
use nodeward_core::labels::Labels;

use super::{ReasonCounts, UnschedulableReason};
use crate::neighbours::{Itself, Neighbours, Relation};
use crate::requirements::{NodeAffinity, Requirements};
use crate::resources::Resources;
use crate::view::{NodeCapacity, SchedulingView};
use crate::{NodeFacts, PodFacts};

/// What all placements over one view share.
pub(crate) struct Basis<'a> {
    pub(crate) view: &'a SchedulingView,
    indices: HashMap<&'a NodeName, usize>,
    /// All nodes, in the order in which places are looked for.
    order: Vec<usize>,
    /// Where each node is in that order.
    ranks: Vec<usize>,
    /// Nodes that are drained, as they will be in service.
    drained: HashMap<usize, NodeFacts>,
    /// Node by node, side by side: each is asked for each kind of pods.
    offers: Vec<Offer>,
    candidates: RefCell<HashMap<Asked, Rc<Candidates>>>,
    groups: RefCell<HashMap<Kind, Rc<Group>>>,
}

/// What a node has for pods as long as nothing is promised.
struct Offer {
    /// What keeps all pods away.
    closed: Option<UnschedulableReason>,
    is_tainted: bool,
    left: Resources,
}

/// What pods ask of a node, whatever is near it. Equal requirements are kept once, and so are volumes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Asked {
    requirements: *const Requirements,
    volumes: Box<[*const NodeAffinity]>,
}

/// Pods that ask for the same, and mean the same to their neighbours.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    asked: Asked,
    labels: *const Labels,
    namespace: Arc<str>,
    /// Whether they terminate.
    leaving: bool,
}

/// The nodes that could take pods that ask for the same.
pub(super) struct Candidates {
    pub(super) id: usize,
    search: RefCell<Search>,
    accepted: OnceCell<Accepted>,
}

/// How far the nodes have been looked at.
#[derive(Default)]
struct Search {
    looked_at: usize,
    /// Ranks of those that could take the pods, in order.
    found: Vec<usize>,
    /// What rules out the others.
    unsuitable: ReasonCounts,
}

/// Nodes that would do if they had room.
pub(super) struct Accepted {
    pub(super) reach_volumes: FirstTwo,
    pub(super) are_selected: FirstTwo,
}

/// The first two nodes of which something holds; `None`: nobody asked.
pub(super) struct FirstTwo(Option<Vec<usize>>);

impl FirstTwo {
    fn of(view: &SchedulingView, holds: impl Fn(&NodeFacts) -> bool) -> Self {
        let nodes = view.nodes.iter().enumerate();
        let found = nodes.filter(|(_, capacity)| holds(&capacity.node));
        Self(Some(found.map(|(index, _)| index).take(2).collect()))
    }

    /// Whether it holds of no node but perhaps this one.
    pub(super) fn is_none_but(&self, node: Option<usize>) -> bool {
        let Some(found) = &self.0 else { return false };
        found.iter().all(|index| Some(*index) == node)
    }
}

/// Pods of one kind.
pub(super) struct Group {
    pub(super) id: usize,
    pub(super) candidates: Rc<Candidates>,
    /// What the bound pods say.
    pub(super) neighbours: Rc<Neighbours>,
    /// What one of them means to another.
    relation: Relation,
    /// Those that are bound, where they mean something to each other.
    bound: HashSet<PodUid>,
}

impl<'a> Basis<'a> {
    pub(crate) fn new(view: &'a SchedulingView) -> Self {
        Self::beside_drains(view, &BTreeSet::new(), &[])
    }

    /// The same with nodes that are `drained` as they will be in service: it is for placements to leave them out. Places on the
    /// nodes in `last` are looked for last, in that order.
    pub(crate) fn beside_drains(view: &'a SchedulingView, drained: &BTreeSet<NodeName>, last: &[NodeName]) -> Self {
        let nodes = || view.nodes.iter().enumerate();
        let indices: HashMap<&NodeName, usize> = nodes().map(|(index, node)| (&node.node.name, index)).collect();
        let drained: HashMap<usize, NodeFacts> = drained
            .iter()
            .filter_map(|name| indices.get(name).copied())
            .filter_map(|index| Some((index, view.nodes.get(index)?.node.in_service())))
            .collect();
        let last: Vec<usize> = last.iter().filter_map(|name| indices.get(name).copied()).collect();
        let is_last: HashSet<usize> = last.iter().copied().collect();
        let first = (0..view.nodes.len()).filter(|index| !is_last.contains(index));
        let order: Vec<usize> = first.chain(last).collect();
        let mut ranks = vec![0; order.len()];
        for (rank, index) in order.iter().enumerate() {
            if let Some(of_node) = ranks.get_mut(*index) {
                *of_node = rank;
            }
        }
        Self {
            view,
            offers: nodes()
                .map(|(index, capacity)| Offer::of(capacity, drained.get(&index)))
                .collect(),
            indices,
            order,
            ranks,
            drained,
            candidates: RefCell::default(),
            groups: RefCell::default(),
        }
    }

    /// The indices of the nodes that are drained.
    pub(crate) fn drained(&self) -> BTreeSet<usize> {
        self.drained.keys().copied().collect()
    }

    pub(crate) fn index_of(&self, node: &NodeName) -> Option<usize> {
        self.indices.get(node).copied()
    }

    pub(crate) fn node(&self, name: &NodeName) -> Option<&'a NodeFacts> {
        Some(&*self.view.nodes.get(self.index_of(name)?)?.node)
    }

    /// The pods that are as `pod` is.
    pub(super) fn group(&self, pod: &PodFacts) -> Rc<Group> {
        let volumes = self.view.volumes_of(pod).map(Arc::as_ptr);
        let kind = Kind {
            asked: Asked {
                requirements: Arc::as_ptr(&pod.requirements),
                volumes: volumes.collect(),
            },
            labels: Arc::as_ptr(&pod.labels),
            namespace: Arc::clone(&pod.key.namespace),
            leaving: pod.deletion.is_some(),
        };
        let mut groups = self.groups.borrow_mut();
        let id = groups.len();
        let group = groups.entry(kind).or_insert_with_key(|kind| {
            let relation = Relation::of(pod, pod);
            let mut bound = HashSet::default();
            if !relation.is_empty() {
                bound.extend(self.view.neighbours.of_kind(pod).map(|pod| pod.uid.clone()));
            }
            Rc::new(Group {
                id,
                candidates: self.candidates(&kind.asked),
                neighbours: Rc::new(Neighbours::of(pod, self)),
                bound,
                relation,
            })
        });
        Rc::clone(group)
    }

    fn candidates(&self, asked: &Asked) -> Rc<Candidates> {
        let mut candidates = self.candidates.borrow_mut();
        let id = candidates.len();
        let known = candidates.entry(asked.clone()).or_insert_with(|| {
            Rc::new(Candidates {
                id,
                search: RefCell::default(),
                accepted: OnceCell::new(),
            })
        });
        Rc::clone(known)
    }

    /// Why a node cannot take a pod whatever is promised, and whoever is near.
    pub(super) fn unsuitable(&self, pod: &PodFacts, index: usize) -> Option<UnschedulableReason> {
        let reason = self.unsuitable_in_service(pod, index)?;
        let is_drained = self.drained.contains_key(&index);
        Some(if is_drained {
            UnschedulableReason::Cordoned
        } else {
            reason
        })
    }

    fn unsuitable_in_service(&self, pod: &PodFacts, index: usize) -> Option<UnschedulableReason> {
        let (offer, capacity) = (self.offers.get(index)?, self.view.nodes.get(index)?);
        if let Some(reason) = offer.closed {
            return Some(reason);
        }
        let asked = &pod.requirements;
        // The node is looked at only where the pod asks for more than room.
        if !asked.select_all() && !asked.select(&capacity.node) {
            return Some(UnschedulableReason::NotSelected);
        }
        let as_tainted = || self.drained.get(&index).unwrap_or(&capacity.node);
        if offer.is_tainted && !asked.tolerate(as_tainted()) {
            return Some(UnschedulableReason::Tainted);
        }
        if !self.view.volumes_of(pod).all(|volume| volume.accepts(&capacity.node)) {
            return Some(UnschedulableReason::VolumeElsewhere);
        }
        let nothing = Resources::default();
        if let Some(short) = offer.left.shortage(&nothing, &nothing, &asked.requests) {
            return Some(UnschedulableReason::Short(short));
        }
        (!asked.host_ports.is_empty() && asked.conflicts_with_ports(&capacity.usage.host_ports))
            .then_some(UnschedulableReason::PortTaken)
    }
}

impl Offer {
    fn of(capacity: &NodeCapacity, in_service: Option<&NodeFacts>) -> Self {
        let node = in_service.unwrap_or(&capacity.node);
        let closed = if node.is_cordoned() {
            Some(UnschedulableReason::Cordoned)
        } else {
            (!node.ready).then_some(UnschedulableReason::NotReady)
        };
        Self {
            closed,
            is_tainted: !node.taints.is_empty(),
            left: node.allocatable.less(&capacity.usage.requests),
        }
    }
}

impl Candidates {
    /// The candidate at this position, for a pod that asks for just that.
    pub(super) fn get(&self, position: usize, pod: &PodFacts, basis: &Basis<'_>) -> Option<usize> {
        let mut search = self.search.borrow_mut();
        while search.found.len() <= position {
            let rank = search.looked_at;
            let index = *basis.order.get(rank)?;
            search.looked_at += 1;
            match basis.unsuitable(pod, index) {
                None => search.found.push(rank),
                Some(reason) => search.unsuitable.add(reason),
            }
        }
        basis.order.get(*search.found.get(position)?).copied()
    }

    /// Where among the candidates the node is.
    pub(super) fn position(&self, node: usize, basis: &Basis<'_>) -> Option<usize> {
        let rank = basis.ranks.get(node)?;
        self.search.borrow().found.binary_search(rank).ok()
    }

    /// What rules out the nodes that are no candidates, as far as they have been looked at.
    pub(super) fn unsuitable(&self) -> ReasonCounts {
        self.search.borrow().unsuitable.clone()
    }

    /// The nodes that would do if they had room.
    pub(super) fn accepted(&self, pod: &PodFacts, basis: &Basis<'_>) -> &Accepted {
        self.accepted.get_or_init(|| {
            let (view, asked) = (basis.view, &pod.requirements);
            let has_volumes = view.volumes_of(pod).next().is_some();
            let selects = !asked.select_all();
            let reach_volumes = || FirstTwo::of(view, |node| view.volumes_of(pod).all(|volume| volume.accepts(node)));
            let are_selected = || FirstTwo::of(view, |node| asked.select(node));
            Accepted {
                reach_volumes: if has_volumes { reach_volumes() } else { FirstTwo(None) },
                are_selected: if selects { are_selected() } else { FirstTwo(None) },
            }
        })
    }
}

impl Group {
    /// The pod as one of the bound ones that its neighbours were made of.
    pub(super) fn itself<'s>(&'s self, pod: &PodFacts, basis: &Basis<'s>) -> Option<Itself<'s>> {
        let node = pod.node.as_ref().filter(|_| self.bound.contains(&pod.uid))?;
        Some(Itself {
            relation: &self.relation,
            node: basis.node(node)?,
        })
    }
}
