//! What other pods say about where a pod can go: anti-affinity of either side, affinity, spreading.
//!
//! Pods are looked at by kind, not one by one: what one pod of a kind means to another pod, all of its kind mean.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashMap;

use crate::placement::{Basis, UnschedulableReason};
use crate::requirements::{Namespaces, PodTerm, Requirements, Spread};
use crate::{NodeFacts, PodFacts};

/// The bound pods that may decide where others can go, by kind: of one namespace, with the same labels and requirements.
#[derive(Debug, Clone, Default)]
pub struct BoundPods {
    kinds: Vec<Vec<Arc<PodFacts>>>,
    /// The kinds of each namespace, but for those that reach beyond it.
    by_namespace: HashMap<Arc<str>, Vec<usize>>,
    /// Of these, the ones that repel others.
    repelling: HashMap<Arc<str>, Vec<usize>>,
    /// Kinds that repel pods of other namespaces.
    far: Vec<usize>,
}

impl FromIterator<Arc<PodFacts>> for BoundPods {
    fn from_iter<I: IntoIterator<Item = Arc<PodFacts>>>(pods: I) -> Self {
        let mut this = Self::default();
        // What is shared is alike; what is not may be, and is a kind more.
        let mut known: HashMap<(usize, usize, usize, bool), usize> = HashMap::default();
        for pod in pods {
            let key = (
                Arc::as_ptr(&pod.requirements).addr(),
                Arc::as_ptr(&pod.labels).addr(),
                Arc::as_ptr(&pod.key.namespace).cast::<u8>().addr(),
                pod.deletion.is_some(),
            );
            let kind = *known.entry(key).or_insert_with(|| {
                let kind = this.kinds.len();
                this.kinds.push(Vec::new());
                let (repels, namespace) = (&pod.requirements.anti_affinity, &pod.key.namespace);
                if reaches_far(repels) {
                    this.far.push(kind);
                    return kind;
                }
                if !repels.is_empty() {
                    this.repelling.entry(Arc::clone(namespace)).or_default().push(kind);
                }
                this.by_namespace.entry(Arc::clone(namespace)).or_default().push(kind);
                kind
            });
            if let Some(alike) = this.kinds.get_mut(kind) {
                alike.push(pod);
            }
        }
        this
    }
}

impl BoundPods {
    /// The bound pods that are as `pod` is.
    pub(crate) fn of_kind<'a>(&'a self, pod: &'a PodFacts) -> impl Iterator<Item = &'a Arc<PodFacts>> {
        let is_alike = |kind: &&Vec<Arc<PodFacts>>| {
            kind.first().is_some_and(|other| {
                Arc::ptr_eq(&other.requirements, &pod.requirements)
                    && Arc::ptr_eq(&other.labels, &pod.labels)
                    && other.key.namespace == pod.key.namespace
            })
        };
        let of_namespace = self.by_namespace.get(&pod.key.namespace).into_iter().flatten();
        let kinds = of_namespace.chain(&self.far).filter_map(|kind| self.kinds.get(*kind));
        kinds.filter(is_alike).flatten()
    }

    /// The kinds that may mean something to `pod`.
    fn kinds_near<'a>(&'a self, pod: &PodFacts) -> impl Iterator<Item = &'a Vec<Arc<PodFacts>>> + use<'a> {
        let namespace = &pod.key.namespace;
        let (all, near) = match Reach::of(&pod.requirements) {
            Reach::Everywhere => (Some(&self.kinds), None),
            Reach::OwnNamespace => (None, Some(self.by_namespace.get(namespace))),
            Reach::Nowhere => (None, Some(self.repelling.get(namespace))),
        };
        let near = near
            .into_iter()
            .flat_map(|own| own.into_iter().flatten().chain(&self.far));
        let near = near.filter_map(|kind| self.kinds.get(*kind));
        all.into_iter().flatten().chain(near)
    }
}

/// Whether one of these terms may speak of pods of other namespaces.
pub(crate) fn reaches_far(terms: &[PodTerm]) -> bool {
    terms.iter().any(|term| term.namespaces != Namespaces::Own)
}

/// Which other pods mean something to a pod by what it asks for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// None: only what repels it does.
    Nowhere,
    /// Those of its namespace.
    OwnNamespace,
    Everywhere,
}

impl Reach {
    pub(crate) fn of(requirements: &Requirements) -> Self {
        let (seeks, repels) = (&requirements.affinity, &requirements.anti_affinity);
        if reaches_far(seeks) || reaches_far(repels) {
            Self::Everywhere
        } else if seeks.is_empty() && repels.is_empty() && requirements.spread.is_empty() {
            Self::Nowhere
        } else {
            Self::OwnNamespace
        }
    }
}

/// What a pod of one kind, wherever it is, means to a pod of another.
#[derive(Debug, Clone, Default)]
pub(crate) struct Relation {
    /// The topology labels by which either side keeps its domain free of the other; one a term.
    forbidden: Vec<Arc<str>>,
    /// The affinity terms that seek it: their places in the list, and their topology labels.
    sought: Vec<(usize, Arc<str>)>,
    /// The spread constraints that count it, likewise.
    spread: Vec<(usize, Arc<str>)>,
}

impl Relation {
    pub(crate) fn of(pod: &PodFacts, other: &PodFacts) -> Self {
        let requirements = &pod.requirements;
        let own: &str = &pod.key.namespace;
        let theirs: &str = &other.key.namespace;
        let repelled = requirements.anti_affinity.iter();
        let repelled = repelled.filter(|term| term.may_speak_of(own, theirs, &other.labels));
        let repelling = other.requirements.anti_affinity.iter();
        let repelling = repelling.filter(|term| term.may_speak_of(theirs, own, &pod.labels));
        let is_counted = own == theirs && other.deletion.is_none();
        let sought = requirements.affinity.iter().enumerate();
        let spread = requirements.spread.iter().enumerate().filter(|_| is_counted);
        Self {
            forbidden: repelled
                .chain(repelling)
                .map(|term| Arc::clone(&term.topology_key))
                .collect(),
            sought: sought
                .filter(|(_, term)| term.surely_speaks_of(own, theirs, &other.labels))
                .map(|(place, term)| (place, Arc::clone(&term.topology_key)))
                .collect(),
            spread: spread
                .filter(|(_, constraint)| constraint.counts(&pod.labels, &other.labels))
                .map(|(place, constraint)| (place, Arc::clone(&constraint.topology_key)))
                .collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.forbidden.is_empty() && self.sought.is_empty() && self.spread.is_empty()
    }
}

/// How many pods are in each domain: by the value of one topology label.
type Domains = BTreeMap<Arc<str>, i64>;

/// What the bound and the promised pods say about pods of one kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Neighbours {
    /// By topology label: how many reasons there are to keep away from a domain.
    forbidden: BTreeMap<Arc<str>, Domains>,
    /// For each affinity term, the pods that it seeks.
    sought: Vec<Domains>,
    /// For each spread constraint, the pods that it counts; with each domain that counts, be there a pod or not.
    spread: Vec<Domains>,
}

impl Neighbours {
    /// What the bound pods say about `pod`, itself included if it is one of them.
    pub(crate) fn of(pod: &PodFacts, basis: &Basis<'_>) -> Self {
        let requirements = &pod.requirements;
        let spread = requirements.spread.iter();
        let mut this = Self {
            forbidden: BTreeMap::new(),
            sought: vec![Domains::new(); requirements.affinity.len()],
            spread: spread
                .map(|constraint| eligible_domains(constraint, pod, basis))
                .collect(),
        };
        for alike in basis.view.neighbours.kinds_near(pod) {
            let Some(relation) = alike.first().map(|other| Relation::of(pod, other)) else {
                continue;
            };
            if relation.is_empty() {
                continue;
            }
            for node in alike.iter().filter_map(|other| basis.node(other.node.as_ref()?)) {
                this.note(&relation, node);
            }
        }
        this
    }

    /// Takes in that there is a pod with this relation on `node`, or that it is to be there.
    pub(crate) fn note(&mut self, relation: &Relation, node: &NodeFacts) {
        for key in &relation.forbidden {
            if let Some(value) = node.labels.shared(key) {
                let domains = self.forbidden.entry(Arc::clone(key)).or_default();
                *domains.entry(Arc::clone(value)).or_default() += 1;
            }
        }
        for (place, key) in &relation.sought {
            if let Some((domains, value)) = self.sought.get_mut(*place).zip(node.labels.shared(key)) {
                *domains.entry(Arc::clone(value)).or_default() += 1;
            }
        }
        for (place, key) in &relation.spread {
            let domains = self.spread.get_mut(*place).zip(node.labels.shared(key));
            if let Some(count) = domains.and_then(|(domains, value)| domains.get_mut(value)) {
                *count += 1;
            }
        }
    }

    /// For each spread constraint of `pod`, how many pods are in its least filled domain.
    pub(crate) fn least_filled(&self, pod: &PodFacts, itself: Option<Itself<'_>>) -> Vec<i64> {
        let constraints = pod.requirements.spread.iter().zip(&self.spread).enumerate();
        let least = constraints.map(|(place, (constraint, domains))| {
            let has_enough = i32::try_from(domains.len()).unwrap_or(i32::MAX) >= constraint.min_domains;
            let least = domains.values().min().copied().unwrap_or_default();
            let own = itself.and_then(|itself| itself.counted_in(place, domains));
            let least = own.map_or(least, |count| least.min(count - 1));
            if has_enough { least } else { 0 }
        });
        least.collect()
    }

    /// What the other pods have against `pod` on `node`.
    pub(crate) fn unschedulable(
        &self,
        pod: &PodFacts,
        node: &NodeFacts,
        itself: Option<Itself<'_>>,
        least_filled: &[i64],
    ) -> Option<UnschedulableReason> {
        let is_forbidden = |(key, domains): (&Arc<str>, &Domains)| {
            let Some(value) = node.labels.get(key) else {
                return false;
            };
            let own = itself.map_or(0, |itself| itself.forbids(key, value));
            domains.get(value).is_some_and(|reasons| *reasons > own)
        };
        if self.forbidden.iter().any(is_forbidden) {
            return Some(UnschedulableReason::AntiAffinity);
        }
        if !self.is_where_it_wants_to_be(pod, node, itself) {
            return Some(UnschedulableReason::Affinity);
        }
        let constraints = pod.requirements.spread.iter().zip(&self.spread).zip(least_filled);
        let is_skewed = |(place, ((constraint, domains), least)): (usize, ((&Spread, &Domains), &i64))| {
            let domain = node.labels.get(&constraint.topology_key);
            let Some((value, here)) = domain.and_then(|value| Some((value, domains.get(value)?))) else {
                return true;
            };
            let own = itself.map_or(0, |itself| itself.counts(&itself.relation.spread, place, value));
            let more = i64::from(constraint.counts(&pod.labels, &pod.labels));
            here - own + more - least > i64::from(constraint.max_skew)
        };
        constraints
            .enumerate()
            .any(is_skewed)
            .then_some(UnschedulableReason::Spread)
    }

    /// Whether every affinity term finds its pods in the node's domain. The first of a series that seek each other finds
    /// nobody anywhere, and may go where the label is.
    fn is_where_it_wants_to_be(&self, pod: &PodFacts, node: &NodeFacts, itself: Option<Itself<'_>>) -> bool {
        let own: &str = &pod.key.namespace;
        let mut terms = pod.requirements.affinity.iter().zip(&self.sought).enumerate();
        let others_in = |place: usize, domains: &Domains, value: &str| {
            let of_itself = itself.map_or(0, |itself| itself.counts(&itself.relation.sought, place, value));
            domains.get(value).copied().unwrap_or_default() - of_itself
        };
        let label = |term: &PodTerm| node.labels.get(&term.topology_key);
        let is_first = terms.clone().all(|(place, (term, domains))| {
            domains.keys().all(|value| others_in(place, domains, value) == 0)
                && term.surely_speaks_of(own, own, &pod.labels)
                && label(term).is_some()
        });
        is_first
            || terms
                .all(|(place, (term, domains))| label(term).is_some_and(|value| others_in(place, domains, value) > 0))
    }
}

/// A pod that is one of the bound ones: it leaves, and its replacement does not mind it.
#[derive(Clone, Copy)]
pub(crate) struct Itself<'a> {
    /// What it means to another of its kind.
    pub relation: &'a Relation,
    /// Where it is.
    pub node: &'a NodeFacts,
}

impl Itself<'_> {
    fn forbids(self, key: &str, value: &str) -> i64 {
        let is_here = self.node.labels.get(key) == Some(value);
        let reasons = self.relation.forbidden.iter().filter(|of| is_here && ***of == *key);
        i64::try_from(reasons.count()).unwrap_or(i64::MAX)
    }

    /// How many of these it is in that domain: one, or none.
    fn counts(self, counted: &[(usize, Arc<str>)], place: usize, value: &str) -> i64 {
        let mut keys = counted.iter().filter(|(of, _)| *of == place).map(|(_, key)| key);
        i64::from(keys.any(|key| self.node.labels.get(key) == Some(value)))
    }

    /// How many pods are in its own domain, where it is counted.
    fn counted_in(self, place: usize, domains: &Domains) -> Option<i64> {
        let (_, key) = self.relation.spread.iter().find(|(of, _)| *of == place)?;
        domains.get(self.node.labels.get(key)?).copied()
    }
}

/// The domains that count for a constraint, each with nobody in it. Cordoned nodes count, as they do for the scheduler.
fn eligible_domains(constraint: &Spread, pod: &PodFacts, basis: &Basis<'_>) -> Domains {
    let nodes = basis.view.nodes.iter().map(|capacity| &*capacity.node);
    nodes
        .filter(|node| !constraint.honors_affinity || pod.requirements.select(node))
        .filter(|node| !constraint.honors_taints || pod.requirements.tolerate(node))
        .filter_map(|node| node.labels.shared(&constraint.topology_key))
        .map(|value| (Arc::clone(value), 0))
        .collect()
}
