//! What expressions came to, kept from one pass to the next: of thousands of objects and hundreds of nodes few have changed,
//! and only those are looked at again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use crate::id::NodeUid;

/// What each expression came to, by its text and kind.
#[derive(Debug, Default)]
pub struct Evaluations(Mutex<HashMap<String, OfExpression>>);

/// Of one expression over the objects of a kind.
#[derive(Debug, Clone, Default)]
struct OfExpression {
    objects: Vec<Arc<Value>>,
    /// Those are the objects of this moment.
    is_current: bool,
    /// By node; under none what is the same for all of them.
    by_node: HashMap<Option<NodeUid>, OfNode>,
}

#[derive(Debug, Clone)]
struct OfNode {
    /// The node as the expression saw it.
    node: Arc<Value>,
    found: Found,
    /// Objects that are new since then.
    unseen: Vec<Arc<Value>>,
    /// Somebody has asked since the last pass.
    is_asked: bool,
}

/// What an expression came to over all objects.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Found {
    /// True for this one.
    True(Arc<Value>),
    /// It could not be told for this one, for this reason, and is true for none.
    Unknown(Arc<Value>, String),
    /// False for all.
    False,
}

impl Found {
    fn object(&self) -> Option<&Arc<Value>> {
        match self {
            Self::True(object) | Self::Unknown(object, _) => Some(object),
            Self::False => None,
        }
    }
}

impl Evaluations {
    /// For the next pass: what nobody asked for in this one is forgotten.
    pub(super) fn carried_on(&self) -> Self {
        let mut all = self.0.lock().clone();
        for of in all.values_mut() {
            of.is_current = false;
            of.by_node.retain(|_, of| std::mem::take(&mut of.is_asked));
        }
        all.retain(|_, of| !of.by_node.is_empty());
        Self(Mutex::new(all))
    }

    /// The objects have changed, or may have.
    pub(super) fn outdate(&self) {
        self.0.lock().values_mut().for_each(|of| of.is_current = false);
    }

    /// What the expression of this name comes to over all objects. `node` is what it sees of the node, `is_true` evaluates it.
    pub(super) fn over(
        &self,
        name: String,
        objects: &[Arc<Value>],
        uid: Option<NodeUid>,
        node: &Arc<Value>,
        mut is_true: impl FnMut(&Value) -> Result<bool, String>,
    ) -> Found {
        let mut all = self.0.lock();
        let of = all.entry(name).or_default();
        if !of.is_current {
            of.turn_to(objects);
        }
        let known = of.by_node.remove(&uid).filter(|known| known.node == *node);
        let (mut found, unseen) = match known {
            Some(known) => (known.found, known.unseen),
            None => (Found::False, objects.to_vec()),
        };
        for object in unseen {
            if matches!(found, Found::True(_)) {
                break;
            }
            match is_true(&object) {
                Ok(true) => found = Found::True(object),
                Err(problem) if found == Found::False => found = Found::Unknown(object, problem),
                Ok(false) | Err(_) => {}
            }
        }
        let known = OfNode {
            node: Arc::clone(node),
            found: found.clone(),
            unseen: Vec::new(),
            is_asked: true,
        };
        of.by_node.insert(uid, known);
        found
    }
}

impl OfExpression {
    /// The objects that are there now. One that has changed is another one: what rested on its old state is forgotten.
    fn turn_to(&mut self, objects: &[Arc<Value>]) {
        self.is_current = true;
        let is_same = |(before, now): (&Arc<Value>, &Arc<Value>)| Arc::ptr_eq(before, now);
        if self.objects.len() == objects.len() && self.objects.iter().zip(objects).all(is_same) {
            return;
        }
        let pointers = |objects: &[Arc<Value>]| objects.iter().map(Arc::as_ptr).collect::<HashSet<_>>();
        let (before, now) = (pointers(&self.objects), pointers(objects));
        let is_there = |object: &Arc<Value>| now.contains(&Arc::as_ptr(object));
        let is_new = |object: &&Arc<Value>| !before.contains(&Arc::as_ptr(object));
        // Looked for once: there are hundreds of nodes.
        let new: Vec<_> = objects.iter().filter(is_new).cloned().collect();
        self.by_node.retain(|_, of| of.found.object().is_none_or(is_there));
        for of in self.by_node.values_mut() {
            of.unseen.retain(is_there);
            of.unseen.extend_from_slice(&new);
        }
        self.objects = objects.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// True for an object of the node, not to be told for one without a node.
    fn of_node(object: &Value, node: &Value) -> Result<bool, String> {
        if object["node"].is_null() {
            return Err("no node".to_owned());
        }
        Ok(object["node"] == *node)
    }

    fn kind(found: &Found) -> Option<bool> {
        match found {
            Found::True(_) => Some(true),
            Found::False => Some(false),
            Found::Unknown(..) => None,
        }
    }

    struct Asked {
        evaluations: Evaluations,
        times: usize,
    }

    impl Asked {
        fn about(&mut self, node: &str, objects: &[Arc<Value>]) -> Option<bool> {
            let value = Arc::new(json!(node));
            let times = &mut self.times;
            let found = self
                .evaluations
                .over("e".to_owned(), objects, Some(node.into()), &value, |object| {
                    *times += 1;
                    of_node(object, &value)
                });
            kind(&found)
        }

        fn next_pass(&mut self) {
            self.evaluations = self.evaluations.carried_on();
        }
    }

    fn objects(nodes: &[Option<&str>]) -> Vec<Arc<Value>> {
        nodes.iter().map(|node| Arc::new(json!({ "node": node }))).collect()
    }

    #[test]
    fn only_changed_objects_are_evaluated_again() {
        let mut asked = Asked {
            evaluations: Evaluations::default(),
            times: 0,
        };
        let mut objects = objects(&[Some("x"); 100]);
        for _ in 0..3 {
            assert_eq!(
                [asked.about("a", &objects), asked.about("b", &objects)],
                [Some(false); 2]
            );
            asked.next_pass();
        }
        assert_eq!(asked.times, 200, "each object once for each node");
        objects[7] = Arc::new(json!({ "node": "a" }));
        assert_eq!(
            [asked.about("a", &objects), asked.about("b", &objects)],
            [Some(true), Some(false)]
        );
        assert_eq!(asked.times, 202);
        // Of a node that nobody asks for nothing is kept.
        asked.next_pass();
        assert_eq!(asked.about("a", &objects), Some(true));
        asked.next_pass();
        assert_eq!(asked.about("b", &objects), Some(false));
        assert_eq!(asked.times, 302);
    }

    proptest! {
        /// Whatever came before, the answer is that of an evaluation from nothing.
        #[test]
        fn kept_evaluations_answer_as_fresh_ones(
            passes in prop::collection::vec(
                (prop::collection::vec((0..6_usize, prop::option::of(0..3_usize)), 0..5), prop::collection::vec(0..3_usize, 0..4)),
                1..12,
            ),
        ) {
            let names = ["a", "b", "c"];
            let mut asked = Asked { evaluations: Evaluations::default(), times: 0 };
            let mut slots: Vec<Option<Arc<Value>>> = vec![None; 6];
            for (changes, nodes) in passes {
                for (slot, node) in changes {
                    // An object comes, changes or goes.
                    let is_gone = slots[slot].is_some() && node == Some(0);
                    slots[slot] = (!is_gone).then(|| Arc::new(json!({ "node": node.map(|node| names[node]) })));
                }
                let objects: Vec<Arc<Value>> = slots.iter().flatten().cloned().collect();
                for node in nodes {
                    let mut fresh = Asked { evaluations: Evaluations::default(), times: 0 };
                    prop_assert_eq!(asked.about(names[node], &objects), fresh.about(names[node], &objects));
                }
                asked.next_pass();
            }
        }
    }
}
