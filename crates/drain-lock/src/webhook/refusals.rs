//! Which pods of a node were refused since one of its pods last went, as far as this process has answered. A drainer that asks for a
//! refused pod again, and meanwhile for none that could go, asks for them in an order of its own: its claim is asked for then.

use std::collections::{HashMap, HashSet};

use nodeward_core::id::{NodeUid, PodUid};

/// Nodes that are remembered; beyond that all are forgotten, which costs each drainer a further refusal.
const AT_MOST: usize = 4096;

/// Admitted pods of a node that are remembered, far more than a node has; beyond that its own are forgotten.
const ADMITTED_AT_MOST: usize = 1024;

/// The refusals.
#[derive(Debug, Default)]
pub struct Refusals(HashMap<NodeUid, OfNode>);

#[derive(Debug, Default)]
struct OfNode {
    refused: HashSet<PodUid>,
    admitted: HashSet<PodUid>,
}

impl Refusals {
    /// Notes a refusal. Answers whether the pod was refused before, and none of its node's has gone since.
    pub fn note(&mut self, node: &NodeUid, pod: &PodUid) -> bool {
        !self.of(node).refused.insert(pod.clone())
    }

    /// Notes that a pod of the node was admitted. One that is asked for again is still there: somebody else refuses it, and
    /// nothing has gone.
    pub fn admit(&mut self, node: &NodeUid, pod: &PodUid) {
        let of_node = self.of(node);
        if of_node.admitted.len() >= ADMITTED_AT_MOST {
            of_node.admitted.clear();
        }
        if of_node.admitted.insert(pod.clone()) {
            of_node.refused.clear();
        }
    }

    /// Notes that a pod of the node is on its way out, or that one is asked for that should go first.
    pub fn forget(&mut self, node: &NodeUid) {
        self.of(node).refused.clear();
    }

    fn of(&mut self, node: &NodeUid) -> &mut OfNode {
        if self.0.len() >= AT_MOST && !self.0.contains_key(node) {
            self.0.clear();
        }
        self.0.entry(node.clone()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_is_refused_again_only_while_none_of_its_node_goes() {
        let (mut refusals, node) = (Refusals::default(), NodeUid::from("n1"));
        assert!(!refusals.note(&node, &"a".into()));
        assert!(!refusals.note(&node, &"b".into()), "another pod");
        assert!(!refusals.note(&"n2".into(), &"a".into()), "another node");
        assert!(refusals.note(&node, &"a".into()));
        refusals.forget(&node);
        assert!(!refusals.note(&node, &"a".into()));
        refusals.admit(&node, &"c".into());
        assert!(!refusals.note(&node, &"a".into()));
    }

    #[test]
    fn pod_that_is_admitted_again_has_not_gone() {
        let (mut refusals, node) = (Refusals::default(), NodeUid::from("n1"));
        refusals.admit(&node, &"kept".into());
        assert!(!refusals.note(&node, &"a".into()));
        refusals.admit(&node, &"kept".into());
        assert!(refusals.note(&node, &"a".into()));
    }

    #[test]
    fn no_number_of_nodes_or_pods_makes_it_grow() {
        let mut refusals = Refusals::default();
        for number in 0..2 * AT_MOST {
            refusals.note(&format!("n{number}").into(), &"a".into());
            refusals.admit(&"n".into(), &format!("p{number}").into());
        }
        assert!(refusals.0.len() <= AT_MOST);
        assert!(
            refusals
                .0
                .values()
                .all(|of_node| of_node.admitted.len() <= ADMITTED_AT_MOST)
        );
    }
}
