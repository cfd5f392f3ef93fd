//! What other pods say about where a pod can go: anti-affinity of either side, affinity, spreading.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::placement::UnschedulableReason;
use crate::requirements::{PodTerm, Spread};
use crate::view::SchedulingView;
use crate::{NodeFacts, PodFacts};

/// Values of one topology label.
type Domains = BTreeSet<Arc<str>>;

/// How many pods a spread constraint counts.
#[derive(Debug, Clone, Default)]
struct Counts {
    domains: BTreeMap<Arc<str>, i64>,
    /// In the least filled domain.
    least: i64,
}

/// What the bound and the promised pods say about one group of pods.
#[derive(Debug, Clone, Default)]
pub(crate) struct Neighbours {
    /// By topology label: domains that a pod of either side keeps free of the other.
    forbidden: BTreeMap<Arc<str>, Domains>,
    /// For each affinity term of the group, the domains in which there is a pod that it seeks.
    sought: Vec<Domains>,
    /// For each spread constraint of the group, how many pods are counted in each domain.
    spread: Vec<Counts>,
    /// How many of the promises have been looked at.
    followed: usize,
    /// Whether a promise can make a node eligible that was not.
    opens: bool,
}

impl Neighbours {
    /// What the bound pods say about `pod`.
    pub(crate) fn of(pod: &PodFacts, view: &SchedulingView) -> Self {
        let requirements = &pod.requirements;
        let mut this = Self {
            sought: vec![Domains::new(); requirements.affinity.len()],
            spread: requirements
                .spread
                .iter()
                .map(|constraint| Counts {
                    domains: eligible_domains(constraint, pod, view),
                    least: 0,
                })
                .collect(),
            opens: !requirements.affinity.is_empty() || !requirements.spread.is_empty(),
            ..Self::default()
        };
        for neighbour in &view.neighbours {
            let capacity = neighbour.node.as_ref().and_then(|node| view.node(node));
            if let Some(capacity) = capacity {
                this.note(pod, neighbour, &capacity.node);
            }
        }
        this
    }

    /// Takes in the promises that were made since.
    pub(crate) fn follow(&mut self, pod: &PodFacts, promises: &[(Arc<PodFacts>, usize)], view: &SchedulingView) {
        for (other, index) in promises.get(self.followed..).unwrap_or_default() {
            if let Some(capacity) = view.nodes.get(*index) {
                self.note(pod, other, &capacity.node);
            }
        }
        self.followed = promises.len();
        for (constraint, counts) in pod.requirements.spread.iter().zip(&mut self.spread) {
            let has_enough = i32::try_from(counts.domains.len()).unwrap_or(i32::MAX) >= constraint.min_domains;
            let least = counts.domains.values().min().copied().unwrap_or_default();
            counts.least = if has_enough { least } else { 0 };
        }
    }

    /// Whether a node that was not eligible can become so by a promise.
    pub(crate) fn may_open_up(&self) -> bool {
        self.opens
    }

    /// Takes in that `other` is on `node`, or is to be.
    fn note(&mut self, pod: &PodFacts, other: &PodFacts, node: &NodeFacts) {
        if other.uid == pod.uid {
            // It leaves, and its replacement does not mind it.
            return;
        }
        let domain = |key: &Arc<str>| {
            node.labels
                .shared(key)
                .map(|value| (Arc::clone(key), Arc::clone(value)))
        };
        let own: &str = &pod.key.namespace;
        let theirs: &str = &other.key.namespace;
        let repelled = pod
            .requirements
            .anti_affinity
            .iter()
            .filter(|term| term.may_speak_of(own, theirs, &other.labels));
        let repelling = other.requirements.anti_affinity.iter();
        let repelling = repelling.filter(|term| term.may_speak_of(theirs, own, &pod.labels));
        for (key, value) in repelled.chain(repelling).filter_map(|term| domain(&term.topology_key)) {
            self.forbidden.entry(key).or_default().insert(value);
        }
        for (term, domains) in pod.requirements.affinity.iter().zip(&mut self.sought) {
            if term.surely_speaks_of(own, theirs, &other.labels)
                && let Some((_, value)) = domain(&term.topology_key)
            {
                domains.insert(value);
            }
        }
        let is_counted = own == theirs && other.deletion.is_none();
        for (constraint, counts) in pod.requirements.spread.iter().zip(&mut self.spread) {
            if is_counted
                && constraint.counts(&pod.labels, &other.labels)
                && let Some((_, value)) = domain(&constraint.topology_key)
                && let Some(count) = counts.domains.get_mut(&value)
            {
                *count += 1;
            }
        }
    }

    /// What the other pods have against `pod` on `node`.
    pub(crate) fn unschedulable(&self, pod: &PodFacts, node: &NodeFacts) -> Option<UnschedulableReason> {
        let is_forbidden =
            |(key, domains): (&Arc<str>, &Domains)| node.labels.get(key).is_some_and(|value| domains.contains(value));
        if self.forbidden.iter().any(is_forbidden) {
            return Some(UnschedulableReason::AntiAffinity);
        }
        if !self.is_where_it_wants_to_be(pod, node) {
            return Some(UnschedulableReason::Affinity);
        }
        let constraints = pod.requirements.spread.iter().zip(&self.spread);
        let mut skewed = constraints.filter(|(constraint, counts)| !keeps_even(constraint, counts, pod, node));
        skewed.next().map(|_| UnschedulableReason::Spread)
    }

    /// Whether every affinity term finds its pods in the node's domain. The first of a series that seek each other finds
    /// nobody anywhere, and may go where the label is.
    fn is_where_it_wants_to_be(&self, pod: &PodFacts, node: &NodeFacts) -> bool {
        let own: &str = &pod.key.namespace;
        let terms = || pod.requirements.affinity.iter().zip(&self.sought);
        let has_label = |term: &PodTerm| node.labels.get(&term.topology_key);
        let is_first = terms().all(|(term, domains)| {
            domains.is_empty() && term.surely_speaks_of(own, own, &pod.labels) && has_label(term).is_some()
        });
        is_first || terms().all(|(term, domains)| has_label(term).is_some_and(|value| domains.contains(value)))
    }
}

/// The domains that count for a constraint, each with nobody in it. Cordoned nodes count, as they do for the scheduler.
fn eligible_domains(constraint: &Spread, pod: &PodFacts, view: &SchedulingView) -> BTreeMap<Arc<str>, i64> {
    let nodes = view.nodes.iter().map(|capacity| &*capacity.node);
    nodes
        .filter(|node| !constraint.honors_affinity || pod.requirements.select(node))
        .filter(|node| !constraint.honors_taints || pod.requirements.tolerate(node))
        .filter_map(|node| node.labels.shared(&constraint.topology_key))
        .map(|value| (Arc::clone(value), 0))
        .collect()
}

/// Whether a pod more on this node keeps its domain within the allowed distance of the least filled one.
fn keeps_even(constraint: &Spread, counts: &Counts, pod: &PodFacts, node: &NodeFacts) -> bool {
    let domain = node.labels.get(&constraint.topology_key);
    let Some(here) = domain.and_then(|value| counts.domains.get(value)) else {
        return false;
    };
    let itself = i64::from(constraint.counts(&pod.labels, &pod.labels));
    here + itself - counts.least <= i64::from(constraint.max_skew)
}
