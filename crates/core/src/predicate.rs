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
    pod.mirror || pod.is_daemon()
}

/// Two copies of it could do harm if the node that cannot be asked still ran it.
pub fn must_not_run_twice(pod: &PodView) -> bool {
    pod.has_persistent_volume || matches!(pod.owner(), Owner::StatefulSet | Owner::Foreign)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: Value, spec: Value, status: Value) -> PodView {
        let mut pod = json!({ "metadata": metadata, "spec": spec, "status": status });
        pod["metadata"]["namespace"] = "shop".into();
        pod["metadata"]["name"] = "web-0".into();
        pod["spec"]["containers"] = json!([]);
        PodView::project(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn owned_by(api_version: &str, kind: &str) -> PodView {
        let owner = json!([{ "apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": true }]);
        pod(json!({ "ownerReferences": owner }), json!({}), json!({}))
    }

    fn with_finalizers(finalizers: &[&str]) -> PodView {
        pod(json!({ "finalizers": finalizers }), json!({}), json!({}))
    }

    fn protected() -> Vec<String> {
        vec![
            "batch.kubernetes.io/job-tracking".to_owned(),
            "foregroundDeletion".to_owned(),
        ]
    }

    #[rstest]
    #[case::none(&[], &[], false, false)]
    #[case::ordinary(&["a.io/x"], &["a.io/x"], true, true)]
    #[case::protected_only(&["foregroundDeletion"], &[], true, false)]
    #[case::both_protected(&["foregroundDeletion", "batch.kubernetes.io/job-tracking"], &[], true, false)]
    #[case::mixed(&["foregroundDeletion", "b.io/y", "a.io/x"], &["b.io/y", "a.io/x"], true, true)]
    #[case::a_longer_name_is_another_finalizer(&["foregroundDeletion.io"], &["foregroundDeletion.io"], true, true)]
    fn only_unprotected_finalizers_are_removable(
        #[case] finalizers: &[&str],
        #[case] removable: &[&str],
        #[case] kept: bool,
        #[case] has_removable: bool,
    ) {
        let pod = with_finalizers(finalizers);
        let subject = Subject {
            pod: &pod,
            covered_by_budget: false,
            protected_finalizers: &protected(),
        };
        assert_eq!(subject.removable_finalizers(), removable);
        assert_eq!(KEPT_BY_FINALIZERS.holds(&subject), kept);
        assert_eq!(HAS_REMOVABLE_FINALIZERS.holds(&subject), has_removable);
    }

    #[rstest]
    #[case::finished(FINISHED, pod(json!({}), json!({}), json!({ "phase": "Succeeded" })), true)]
    #[case::failed(FINISHED, pod(json!({}), json!({}), json!({ "phase": "Failed" })), true)]
    #[case::running(FINISHED, pod(json!({}), json!({}), json!({ "phase": "Running" })), false)]
    #[case::terminating(TERMINATING, pod(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), json!({}), json!({})), true)]
    #[case::not_terminating(TERMINATING, with_finalizers(&["a.io/x"]), false)]
    fn a_predicate_and_its_negation_say_opposite_things(
        #[case] predicate: Predicate,
        #[case] pod: PodView,
        #[case] holds: bool,
    ) {
        let subject = Subject {
            pod: &pod,
            covered_by_budget: false,
            protected_finalizers: &[],
        };
        assert_eq!(predicate.holds(&subject), holds);
        assert_eq!(Requirement::Is(predicate).is_met_by(&subject), holds);
        assert_eq!(Requirement::IsNot(predicate).is_met_by(&subject), !holds);
    }

    #[rstest]
    fn coverage_is_what_the_caller_knows(#[values(true, false)] covered: bool) {
        let pod = with_finalizers(&[]);
        let subject = Subject {
            pod: &pod,
            covered_by_budget: covered,
            protected_finalizers: &[],
        };
        assert_eq!(COVERED_BY_BUDGET.holds(&subject), covered);
    }

    #[test]
    fn a_predicate_shows_its_name() {
        assert_eq!(format!("{:?}", Requirement::IsNot(FINISHED)), "IsNot(finished)");
    }

    #[rstest]
    #[case::daemon_set(owned_by("apps/v1", "DaemonSet"), true)]
    #[case::mirror(pod(json!({ "annotations": { "kubernetes.io/config.mirror": "h" } }), json!({}), json!({})), true)]
    #[case::replica_set(owned_by("apps/v1", "ReplicaSet"), false)]
    #[case::unmanaged(with_finalizers(&[]), false)]
    // A DaemonSet of another group is not one that drains leave alone.
    #[case::foreign_daemon_set(owned_by("apps.kruise.io/v1", "DaemonSet"), false)]
    fn daemon_sets_and_mirrors_belong_to_their_node(#[case] pod: PodView, #[case] belongs: bool) {
        assert_eq!(belongs_to_node(&pod), belongs);
    }

    #[rstest]
    #[case::stateful_set(owned_by("apps/v1", "StatefulSet"), true)]
    #[case::foreign_owner(owned_by("kubevirt.io/v1", "VirtualMachineInstance"), true)]
    #[case::replica_set(owned_by("apps/v1", "ReplicaSet"), false)]
    #[case::job(owned_by("batch/v1", "Job"), false)]
    #[case::unmanaged(with_finalizers(&[]), false)]
    #[case::claim(pod(json!({}), json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }] }), json!({})), true)]
    #[case::empty_dir(pod(json!({}), json!({ "volumes": [{ "name": "v", "emptyDir": {} }] }), json!({})), false)]
    fn state_identity_and_foreign_owners_must_not_run_twice(#[case] pod: PodView, #[case] must_not: bool) {
        assert_eq!(must_not_run_twice(&pod), must_not);
    }
}
