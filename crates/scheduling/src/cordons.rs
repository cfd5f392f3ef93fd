//! Whether all pods that have to move find room together while nodes are cordoned, one after another.
//!
//! A cordon takes nothing from pods that go elsewhere: as each takes the first node with room, all would choose as they do
//! now. So all that move are placed once, and again only for the cordon of a node that one of them would go to.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use nodeward_core::id::NodeName;

use crate::PodFacts;
use crate::placement::{Basis, Placement};
use crate::view::SchedulingView;

/// Cordons of one node after another, each with those before it in force.
pub struct Cordons<'a> {
    basis: Rc<Basis<'a>>,
    /// The nodes that take no pod for their drain: those of the beginning, and those that were cordoned since.
    cordoned: Rc<BTreeSet<usize>>,
    /// Pods that wait for a node, and are to find one.
    waiting: Vec<Arc<PodFacts>>,
    /// Pods that leave their node and are to find another one, in the order in which they take places.
    moving: Vec<Arc<PodFacts>>,
    /// Where all go.
    placement: Placement<'a>,
    /// Which of those that move have a place: of the first ones, for the others are not placed before somebody asks.
    placed: Vec<bool>,
    /// Where the pods that wait for a node would go if no node were drained; worked out when somebody asks.
    in_service: OnceCell<Placement<'a>>,
    /// How many times all were placed anew for a cordon.
    #[cfg(test)]
    pub(crate) replaced: usize,
}

impl<'a> Cordons<'a> {
    /// Nodes that are `drained` are cordoned for that. Those in `last` are about to be, the last one first: pods go there where
    /// nothing else is left.
    pub fn new(view: &'a SchedulingView, drained: &BTreeSet<NodeName>, last: &[NodeName]) -> Self {
        let basis = Rc::new(Basis::beside_drains(view, drained, last));
        let cordoned = Rc::new(basis.drained());
        Self {
            placement: Placement::beginning(&basis, &cordoned),
            basis,
            cordoned,
            waiting: Vec::new(),
            moving: Vec::new(),
            placed: Vec::new(),
            in_service: OnceCell::new(),
            #[cfg(test)]
            replaced: 0,
        }
    }

    /// A placement of its own over the same nodes, with those cordoned that are by now.
    pub fn placement(&self) -> Placement<'a> {
        if self.placed.is_empty() {
            return self.placement.clone();
        }
        Placement::beginning(&self.basis, &self.cordoned)
    }

    /// These pods wait for a node, and are to find one.
    pub fn wait(&mut self, pods: impl IntoIterator<Item = Arc<PodFacts>>) {
        self.waiting.extend(pods);
    }

    /// From now on these pods leave their nodes, and are to find others.
    pub fn leave(&mut self, pods: impl IntoIterator<Item = Arc<PodFacts>>) {
        self.moving.extend(pods);
    }

    /// Those of `pods` that would find room beside `others`, which leave the same node, if no node were drained. The pods that left
    /// those nodes would be back by then.
    pub fn crowded_out(&self, others: &[Arc<PodFacts>], pods: &[Arc<PodFacts>]) -> Vec<Arc<PodFacts>> {
        if pods.is_empty() {
            return Vec::new();
        }
        let mut in_service = self.in_service().clone();
        for pod in others {
            in_service.moves(pod);
        }
        pods.iter().filter(|pod| in_service.moves(pod)).cloned().collect()
    }

    /// Those of the nodes that would take the pod if none were drained.
    pub fn takers(&self, pod: &PodFacts, among: &BTreeSet<NodeName>) -> Vec<NodeName> {
        self.in_service().takers(pod, among)
    }

    fn in_service(&self) -> &Placement<'a> {
        self.in_service
            .get_or_init(|| Placement::beginning(&self.basis, &Rc::default()))
    }

    /// Cordons the node, whose pods leave it, if all find room together: these, and all that find room now of those that
    /// wait for a node or leave another one.
    ///
    /// # Errors
    /// The first pod that would find none. The node is not cordoned then.
    pub fn cordon_if_room(&mut self, node: &NodeName, own: &[Arc<PodFacts>]) -> Result<(), Arc<PodFacts>> {
        let Some(index) = self.basis.index_of(node) else {
            return Ok(());
        };
        self.place_all();
        let mark = self.placement.move_all(own).map_err(Arc::clone)?;
        let mut cordoned = Rc::clone(&self.cordoned);
        Rc::make_mut(&mut cordoned).insert(index);
        if self.placement.uses(index) {
            self.placement.take_back(mark);
            self.placement = self.without(&cordoned, own)?;
        } else {
            self.placement.cordon(&cordoned);
        }
        self.cordoned = cordoned;
        self.moving.extend(own.iter().cloned());
        self.placed.resize(self.moving.len(), true);
        Ok(())
    }

    /// Cordons the node, whose pods leave it, whatever room is left for whom.
    pub fn cordon(&mut self, node: &NodeName, own: &[Arc<PodFacts>]) {
        if let Some(index) = self.basis.index_of(node) {
            Rc::make_mut(&mut self.cordoned).insert(index);
            self.placement = Placement::beginning(&self.basis, &self.cordoned);
            self.placed.clear();
        }
        self.moving.extend(own.iter().cloned());
    }

    /// Where all that have a place would go while these nodes are cordoned.
    fn without(
        &mut self,
        cordoned: &Rc<BTreeSet<usize>>,
        own: &[Arc<PodFacts>],
    ) -> Result<Placement<'a>, Arc<PodFacts>> {
        #[cfg(test)]
        {
            self.replaced += 1;
        }
        let mut then = Placement::beginning(&self.basis, cordoned);
        let loses_its_node = |pod: &&Arc<PodFacts>| self.placement.finds_a_node(pod) && !then.finds_a_node(pod);
        if let Some(pod) = self.waiting.iter().find(loses_its_node) {
            return Err(Arc::clone(pod));
        }
        let with_place = self
            .moving
            .iter()
            .zip(&self.placed)
            .filter(|(_, has_place)| **has_place);
        let mut all = with_place.map(|(pod, _)| pod).chain(own);
        let lost = all.find(|pod| !then.moves(pod));
        lost.map_or(Ok(()), |pod| Err(Arc::clone(pod)))?;
        Ok(then)
    }

    /// Places all that move and have not been placed yet.
    fn place_all(&mut self) {
        let new = self.moving.get(self.placed.len()..).unwrap_or_default();
        self.placed.extend(new.iter().map(|pod| self.placement.moves(pod)));
    }
}
