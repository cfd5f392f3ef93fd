//! Whom the cordon of a node would strand.
//!
//! A cordon takes nothing from pods that go elsewhere: as each takes the first node with room, all would choose as they do
//! now. So the pods of a draining node are placed once, and again only for the cordon of a node that they would go to.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_core::id::{NodeName, PodKey};

use crate::PodFacts;
use crate::placement::{Basis, Placement};
use crate::view::SchedulingView;

/// Cordons of one node after another, each with those before it in force.
pub struct Cordons<'a> {
    basis: Rc<Basis<'a>>,
    /// Nodes that were cordoned since.
    cordoned: Rc<BTreeSet<usize>>,
    /// Pods that have waited for a node since before then find none, whatever it looks like from here.
    since: Timestamp,
    /// The pods that wait for a node, placed.
    waiting: Placement<'a>,
    leaving: Vec<Leaving>,
    /// How many times the pods of a node were placed.
    #[cfg(test)]
    pub(crate) placed: usize,
}

/// The pods that leave one node, and will be made again elsewhere.
struct Leaving {
    node: NodeName,
    pods: Vec<Arc<PodFacts>>,
    /// Where they go now; `None`: nobody has asked yet.
    places: Option<Places>,
}

/// Where the pods of one node go.
struct Places {
    /// Which of them find a place.
    found: Vec<bool>,
    /// The nodes that they go to.
    nodes: BTreeSet<usize>,
}

impl<'a> Cordons<'a> {
    pub fn new(view: &'a SchedulingView, since: Timestamp) -> Self {
        let (basis, cordoned) = (Rc::new(Basis::new(view)), Rc::default());
        Self {
            waiting: Placement::beginning(&basis, &cordoned),
            basis,
            cordoned,
            since,
            leaving: Vec::new(),
            #[cfg(test)]
            placed: 0,
        }
    }

    /// A placement of its own over the same nodes, as they were before any cordon.
    pub fn placement(&self) -> Placement<'a> {
        if self.cordoned.is_empty() {
            return self.waiting.clone();
        }
        Placement::beginning(&self.basis, &Rc::default())
    }

    /// From now on these pods leave this node.
    pub fn leave(&mut self, node: NodeName, pods: Vec<Arc<PodFacts>>) {
        self.leaving.push(Leaving {
            node,
            pods,
            places: None,
        });
    }

    /// From now on the node takes no pod.
    pub fn cordon(&mut self, node: &NodeName) {
        let Some(index) = self.basis.index_of(node) else { return };
        let all_move = self.waiting.uses(index);
        Rc::make_mut(&mut self.cordoned).insert(index);
        if all_move {
            self.waiting = Placement::beginning(&self.basis, &self.cordoned);
        } else {
            self.waiting.cordon(&self.cordoned);
        }
        for leaving in &mut self.leaving {
            leaving.places = leaving
                .places
                .take()
                .filter(|places| !all_move && !places.nodes.contains(&index));
        }
    }

    /// The first pod that finds a place now, and would find none if `node` were cordoned: of the pods that wait for a node,
    /// and of those that leave each other node. Those of one node share the places that there are; each node is looked at
    /// by itself. Where nothing leaves, nothing is stranded.
    ///
    /// A cordon of ours never takes the last room that a movable pod of another draining node finds, nor what has come to
    /// replace it.
    pub fn stranded_by(&mut self, node: &NodeName) -> Option<PodKey> {
        let index = self.basis.index_of(node)?;
        let since = self.since;
        let mut pending = self
            .basis
            .view
            .pending
            .iter()
            .filter(|pod| since <= pod.created)
            .peekable();
        let mut others = self.leaving.iter().filter(|leaving| leaving.node != *node).peekable();
        others.peek()?;
        if pending.peek().is_none() && others.all(|leaving| leaving.pods.is_empty()) {
            return None;
        }
        let mut cordoned = Rc::clone(&self.cordoned);
        Rc::make_mut(&mut cordoned).insert(index);
        let all_move = self.waiting.uses(index);
        let mut then = None;
        if all_move {
            let without = Placement::beginning(&self.basis, &cordoned);
            let loses_its_place = |pod: &&Arc<PodFacts>| self.waiting.finds_a_node(pod) && !without.finds_a_node(pod);
            if let Some(pod) = pending.find(loses_its_place) {
                return Some(pod.key.clone());
            }
            then = Some(without);
        }
        for leaving in self.leaving.iter_mut().filter(|leaving| leaving.node != *node) {
            let places = leaving.places.get_or_insert_with(|| {
                #[cfg(test)]
                {
                    self.placed += 1;
                }
                Places::of(&leaving.pods, &self.waiting)
            });
            if !all_move && !places.nodes.contains(&index) {
                continue;
            }
            #[cfg(test)]
            {
                self.placed += 1;
            }
            let then = then.get_or_insert_with(|| {
                let mut without = self.waiting.clone();
                without.cordon(&cordoned);
                without
            });
            let mut then = then.clone();
            let mut pods = leaving.pods.iter().zip(&places.found);
            if let Some((pod, _)) = pods.find(|(pod, found)| **found && then.place(pod, pod.node.as_ref()).is_err()) {
                return Some(pod.key.clone());
            }
        }
        None
    }
}

impl Places {
    fn of(pods: &[Arc<PodFacts>], waiting: &Placement<'_>) -> Self {
        let mut placement = waiting.clone();
        let (mut found, mut nodes) = (Vec::with_capacity(pods.len()), BTreeSet::new());
        for pod in pods {
            let place = placement.place(pod, pod.node.as_ref()).ok();
            found.push(place.is_some());
            nodes.extend(place.and_then(|node| placement.index_of(&node)));
        }
        Self { found, nodes }
    }
}
