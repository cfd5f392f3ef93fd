//! All pods, indexed by node, namespace and budget, so that no question about one of these walks all pods.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use nodeward_core::id::{BudgetKey, NodeName, PodKey};
use nodeward_core::selector::Selector;
use nodeward_scheduling::requirements::Namespaces;
use nodeward_scheduling::{NodeUsage, PodFacts};

use super::table::Store;

/// A pod in a set, told from others by namespace and name.
#[derive(Debug, Clone)]
pub(super) struct Named(pub(super) Arc<PodFacts>);

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for Named {}

impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

impl Borrow<PodKey> for Named {
    fn borrow(&self) -> &PodKey {
        &self.0.key
    }
}

/// Pods, each once.
pub(super) type PodSet = HashSet<Named>;

#[derive(Debug, Default)]
pub(super) struct PodIndex {
    namespaces: HashMap<Arc<str>, Namespace>,
    nodes: HashMap<NodeName, NodePods>,
    /// Pods without a node that are not finished, nor terminating.
    awaiting: PodSet,
    /// Pods that keep others from their neighbourhood by terms that reach beyond their own namespace.
    far_repelling: PodSet,
    len: usize,
    /// Counts lists, to tell what the present one has named.
    generation: u32,
}

/// The pods and the budgets of a namespace.
#[derive(Debug, Default)]
struct Namespace {
    pods: HashMap<Arc<str>, Entry>,
    /// Pods with required anti-affinity.
    repelling: PodSet,
    budgets: BTreeMap<Arc<str>, Covered>,
}

/// A pod in the index by name.
#[derive(Debug)]
struct Entry {
    pod: Arc<PodFacts>,
    /// The list that named it last, or that was the last when it changed.
    generation: u32,
    /// How many budgets select it.
    budgets: u32,
}

/// The pods that a budget selects.
#[derive(Debug, Default)]
struct Covered {
    selector: Selector,
    pods: PodSet,
}

#[derive(Debug, Default)]
struct NodePods {
    pods: PodSet,
    usage: Arc<NodeUsage>,
}

impl PodIndex {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&Arc<PodFacts>> {
        self.namespaces.get(namespace)?.pods.get(name).map(|entry| &entry.pod)
    }

    pub(super) fn of_node(&self, node: &str) -> impl Iterator<Item = &Arc<PodFacts>> {
        members(self.nodes.get(node).map(|node| &node.pods))
    }

    /// What the pods of a node have taken; shared, for it is asked of all nodes at once.
    pub(super) fn usage_of(&self, node: &str) -> Arc<NodeUsage> {
        let usage = self.nodes.get(node).map(|node| &node.usage);
        usage.map(Arc::clone).unwrap_or_default()
    }

    pub(super) fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<PodFacts>> {
        let namespace = self.namespaces.get(namespace).into_iter();
        let entries = namespace.flat_map(|namespace| namespace.pods.values());
        entries.map(|entry| &entry.pod)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<PodFacts>> {
        let entries = self.namespaces.values().flat_map(|namespace| namespace.pods.values());
        entries.map(|entry| &entry.pod)
    }

    pub(super) fn awaiting(&self) -> impl Iterator<Item = &Arc<PodFacts>> {
        members(Some(&self.awaiting))
    }

    /// Pods of a namespace that keep others from their neighbourhood.
    pub(super) fn repelling_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<PodFacts>> {
        members(self.namespaces.get(namespace).map(|namespace| &namespace.repelling))
    }

    /// Pods that keep pods of other namespaces from their neighbourhood.
    pub(super) fn repelling_far(&self) -> impl Iterator<Item = &Arc<PodFacts>> {
        members(Some(&self.far_repelling))
    }

    pub(super) fn of_budget(&self, budget: &BudgetKey) -> impl Iterator<Item = &Arc<PodFacts>> {
        let namespace = self.namespaces.get(&budget.namespace);
        let covered = namespace.and_then(|namespace| namespace.budgets.get(&budget.name));
        members(covered.map(|covered| &covered.pods))
    }

    /// The names of the budgets in the pod's namespace that select it.
    pub(super) fn budgets_of<'a>(&'a self, pod: &'a PodFacts) -> impl Iterator<Item = BudgetKey> + 'a {
        self.namespaces
            .get(&pod.key.namespace)
            .into_iter()
            .flat_map(|namespace| &namespace.budgets)
            .filter(|(_, covered)| covered.selector.matches(&pod.labels))
            .map(|(name, _)| BudgetKey::new(Arc::clone(&pod.key.namespace), Arc::clone(name)))
    }

    /// Whether several budgets select the pod.
    pub(super) fn has_several_budgets(&self, pod: &PodKey) -> bool {
        let namespace = self.namespaces.get(&pod.namespace);
        namespace
            .and_then(|namespace| namespace.pods.get(&pod.name))
            .is_some_and(|entry| entry.budgets > 1)
    }

    /// Takes a budget in, or one whose selector changed.
    pub(super) fn put_budget(&mut self, key: &BudgetKey, selector: &Selector) {
        let namespace = self.namespaces.entry(Arc::clone(&key.namespace)).or_default();
        let known = namespace.budgets.get(&key.name);
        if known.is_some_and(|covered| covered.selector == *selector) {
            return;
        }
        namespace.uncover(&key.name);
        let mut pods = PodSet::new();
        for entry in namespace.pods.values_mut() {
            if selector.matches(&entry.pod.labels) {
                entry.budgets += 1;
                pods.insert(Named(Arc::clone(&entry.pod)));
            }
        }
        let covered = Covered {
            selector: selector.clone(),
            pods,
        };
        namespace.budgets.insert(Arc::clone(&key.name), covered);
    }

    pub(super) fn remove_budget(&mut self, key: &BudgetKey) {
        if let Some(namespace) = self.namespaces.get_mut(&key.namespace) {
            namespace.uncover(&key.name);
            if namespace.is_empty() {
                self.namespaces.remove(&key.namespace);
            }
        }
    }

    fn add(&mut self, pod: &Arc<PodFacts>) {
        let named = || Named(Arc::clone(pod));
        let namespace = self.namespaces.entry(Arc::clone(&pod.key.namespace)).or_default();
        let mut budgets = 0;
        for covered in namespace.budgets.values_mut() {
            if covered.selector.matches(&pod.labels) {
                covered.pods.insert(named());
                budgets += 1;
            }
        }
        let entry = Entry {
            pod: Arc::clone(pod),
            generation: self.generation,
            budgets,
        };
        namespace.pods.insert(Arc::clone(&pod.key.name), entry);
        if repels(pod) {
            namespace.repelling.insert(named());
            if repels_far(pod) {
                self.far_repelling.insert(named());
            }
        }
        if let Some(node) = &pod.node {
            let node = self.nodes.entry(node.clone()).or_default();
            node.pods.insert(named());
            if takes_room(pod) {
                Arc::make_mut(&mut node.usage).add(pod);
            }
        }
        if pod.awaits_a_node() {
            self.awaiting.insert(named());
        }
    }

    /// Takes a pod out of all indexes but the one by name.
    fn remove_from_sets(&mut self, pod: &Arc<PodFacts>) {
        if let Some(namespace) = self.namespaces.get_mut(&pod.key.namespace) {
            for covered in namespace.budgets.values_mut() {
                covered.pods.remove(&pod.key);
            }
            namespace.repelling.remove(&pod.key);
        }
        self.far_repelling.remove(&pod.key);
        if let Some(name) = &pod.node
            && let Some(node) = self.nodes.get_mut(name)
        {
            node.pods.remove(&pod.key);
            if takes_room(pod) {
                Arc::make_mut(&mut node.usage).remove(pod);
            }
            if node.pods.is_empty() {
                self.nodes.remove(name);
            }
        }
        self.awaiting.remove(&pod.key);
    }
}

impl Store<PodKey, PodFacts> for PodIndex {
    fn len(&self) -> usize {
        self.len
    }

    fn begin_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    fn unlisted(&self) -> Vec<PodKey> {
        let entries = self.namespaces.values().flat_map(|namespace| namespace.pods.values());
        let old = entries.filter(|entry| entry.generation != self.generation);
        old.map(|entry| entry.pod.key.clone()).collect()
    }

    fn put(&mut self, _: PodKey, mut pod: PodFacts) -> bool {
        let generation = self.generation;
        let namespace = self.namespaces.get_mut(&pod.key.namespace);
        if let Some(entry) = namespace.and_then(|namespace| namespace.pods.get_mut(&pod.key.name)) {
            entry.generation = generation;
            if *entry.pod == pod {
                return false;
            }
            // The texts of a known pod stay where they are, so that years of changes do not scatter them.
            pod.summary.key = entry.pod.key.clone();
            if pod.uid == entry.pod.uid {
                pod.summary.uid = entry.pod.uid.clone();
            }
            let known = Arc::clone(&entry.pod);
            self.remove_from_sets(&known);
        } else {
            self.len += 1;
        }
        self.add(&Arc::new(pod));
        true
    }

    fn remove(&mut self, key: &PodKey) -> bool {
        let Some(pod) = self.get(&key.namespace, &key.name).map(Arc::clone) else {
            return false;
        };
        self.remove_from_sets(&pod);
        if let Some(own) = self.namespaces.get_mut(&key.namespace) {
            own.pods.remove(&key.name);
            if own.is_empty() {
                self.namespaces.remove(&key.namespace);
            }
        }
        self.len -= 1;
        true
    }
}

impl Namespace {
    /// Forgets a budget.
    fn uncover(&mut self, budget: &str) {
        let Some(covered) = self.budgets.remove(budget) else {
            return;
        };
        for pod in covered.pods {
            if let Some(entry) = self.pods.get_mut(&pod.0.key.name) {
                entry.budgets = entry.budgets.saturating_sub(1);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.budgets.is_empty()
    }
}

fn members(set: Option<&PodSet>) -> impl Iterator<Item = &Arc<PodFacts>> {
    set.into_iter().flatten().map(|pod| &pod.0)
}

/// Whether its requests count on its node: a finished pod has given everything back, a terminating one not yet.
fn takes_room(pod: &PodFacts) -> bool {
    !pod.is_finished()
}

/// Whether it keeps others from its neighbourhood.
fn repels(pod: &PodFacts) -> bool {
    !pod.requirements.anti_affinity.is_empty() && !pod.is_finished()
}

fn repels_far(pod: &PodFacts) -> bool {
    pod.requirements
        .anti_affinity
        .iter()
        .any(|term| term.namespaces != Namespaces::Own)
}
