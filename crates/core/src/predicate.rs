//! Predicates over a pod in its drain: small named facts that strategies are composed of.

use crate::pod::{Owner, PodView};

/// A pod, with what a predicate may ask besides.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The pod.
    pub pod: &'a PodView,
    /// Whether a budget selects it, as far as anyone knows: one in the cache, or one that the server refused by.
    pub covered_by_budget: bool,
    /// Finalizers that are never removed.
    pub protected_finalizers: &'a [String],
}

impl Subject<'_> {
    /// The finalizers that may be removed.
    pub fn removable_finalizers(&self) -> Vec<String> {
        self.pod
            .finalizers
            .iter()
            .filter(|finalizer| !self.protected_finalizers.contains(finalizer))
            .cloned()
            .collect()
    }
}

/// A named fact about a [`Subject`].
#[derive(Clone, Copy)]
pub struct Predicate {
    /// What is true when it holds.
    pub name: &'static str,
    holds: fn(&Subject<'_>) -> bool,
}

impl Predicate {
    /// Whether it holds.
    pub fn holds(&self, subject: &Subject<'_>) -> bool {
        (self.holds)(subject)
    }
}

impl std::fmt::Debug for Predicate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// What a strategy asks of a predicate.
#[derive(Debug, Clone, Copy)]
pub enum Requirement {
    /// It holds.
    Is(Predicate),
    /// It does not hold.
    IsNot(Predicate),
}

impl Requirement {
    /// Whether the subject meets it.
    pub fn is_met_by(&self, subject: &Subject<'_>) -> bool {
        match self {
            Self::Is(predicate) => predicate.holds(subject),
            Self::IsNot(predicate) => !predicate.holds(subject),
        }
    }
}

/// A PodDisruptionBudget selects the pod.
pub const COVERED_BY_BUDGET: Predicate = Predicate {
    name: "covered by a budget",
    holds: |subject| subject.covered_by_budget,
};

/// A delete has been asked for.
pub const TERMINATING: Predicate = Predicate {
    name: "terminating",
    holds: |subject| subject.pod.deletion.is_some(),
};

/// All of its containers have ended for good.
pub const FINISHED: Predicate = Predicate {
    name: "finished",
    holds: |subject| subject.pod.is_finished(),
};

/// At least one finalizer keeps it.
pub const KEPT_BY_FINALIZERS: Predicate = Predicate {
    name: "kept by finalizers",
    holds: |subject| !subject.pod.finalizers.is_empty(),
};

/// At least one of its finalizers may be removed.
pub const HAS_REMOVABLE_FINALIZERS: Predicate = Predicate {
    name: "has removable finalizers",
    holds: |subject| {
        subject
            .pod
            .finalizers
            .iter()
            .any(|f| !subject.protected_finalizers.contains(f))
    },
};

/// Its place is on this node, drained or not.
pub fn belongs_to_node(pod: &PodView) -> bool {
    pod.mirror || pod.owner == Owner::DaemonSet
}

/// Two copies of it could do harm if the node that cannot be asked still ran it.
pub fn must_not_run_twice(pod: &PodView) -> bool {
    pod.has_persistent_volume || matches!(pod.owner, Owner::StatefulSet | Owner::Foreign)
}
