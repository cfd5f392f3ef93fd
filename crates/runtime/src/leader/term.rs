//! One holder's time in a lease, and how a new one is begun.

use jiff::{Timestamp, Unit};
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};

/// What tells one term from another: renewals move neither field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Term {
    acquired: Option<Timestamp>,
    transitions: i32,
}

impl Term {
    /// The term in which `identity` holds the lease; `None` if another holds it.
    pub(super) fn of(lease: &Lease, identity: &str) -> Option<Self> {
        let spec = lease.spec.as_ref()?;
        (spec.holder_identity.as_deref() == Some(identity)).then(|| Self {
            acquired: spec.acquire_time.as_ref().map(|time| time.0),
            transitions: spec.lease_transitions.unwrap_or_default(),
        })
    }

    /// Whether it is the first of a lease, which begins with the lease's creation.
    pub(super) fn is_first(&self) -> bool {
        self.transitions == 0
    }
}

/// The beginning of a term.
pub(super) struct Claim {
    /// What the lease will show if the claim succeeds.
    pub(super) term: Term,
    /// A merge patch. It carries the resourceVersion of the lease that was found free, so of several candidates the server
    /// accepts one; and it sets every field, so a malformed lease is mended by it.
    pub(super) patch: Value,
}

impl Claim {
    pub(super) fn new(free: &Lease, identity: &str, duration_seconds: u64, now: Timestamp) -> Self {
        let before = free
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_transitions)
            .unwrap_or_default();
        // A lease keeps its times in whole microseconds.
        let now = now.round(Unit::Microsecond).unwrap_or(now);
        let term = Term {
            acquired: Some(now),
            transitions: before.saturating_add(1),
        };
        let written = format!("{now:.6}");
        let patch = json!({
            "metadata": { "resourceVersion": free.metadata.resource_version },
            "spec": {
                "holderIdentity": identity,
                "leaseDurationSeconds": duration_seconds,
                "acquireTime": written,
                "renewTime": written,
                "leaseTransitions": term.transitions,
            }
        });
        Self { term, patch }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::Lease;
    use rstest::rstest;
    use serde_json::json;

    use super::{Claim, Term};

    fn lease(spec: &serde_json::Value) -> Lease {
        serde_json::from_value(json!({"metadata": {"name": "l", "resourceVersion": "7"}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_term_is_ours_only_while_the_lease_names_us() {
        let held = lease(&json!({"holderIdentity": "us", "leaseTransitions": 3}));
        assert!(Term::of(&held, "us").is_some());
        assert_eq!(Term::of(&held, "other"), None);
        assert_eq!(Term::of(&lease(&json!(null)), "us"), None);
    }

    #[rstest]
    #[case::renewed(json!({"holderIdentity": "us", "leaseTransitions": 3, "renewTime": "2026-01-01T00:00:05.000000Z"}), true)]
    #[case::taken_and_taken_back(json!({"holderIdentity": "us", "leaseTransitions": 5}), false)]
    fn a_renewal_continues_a_term_and_nothing_else_does(#[case] spec: serde_json::Value, #[case] same: bool) {
        let first = Term::of(&lease(&json!({"holderIdentity": "us", "leaseTransitions": 3})), "us");
        assert_eq!(Term::of(&lease(&spec), "us") == first, same);
    }

    #[rstest]
    #[case::held_before(json!({"holderIdentity": "other", "leaseTransitions": 3}), 4)]
    #[case::malformed(json!(null), 1)]
    fn a_claim_names_the_version_that_it_rests_on(#[case] spec: serde_json::Value, #[case] transitions: i32) {
        let now = "2026-01-01T00:00:00.123456789Z".parse().unwrap();
        let claim = Claim::new(&lease(&spec), "us", 15, now);
        assert_eq!(claim.patch["metadata"]["resourceVersion"], "7");
        let claimed: Lease = serde_json::from_value(claim.patch).unwrap();
        let spec = claimed.spec.clone().unwrap();
        assert_eq!(
            (spec.lease_transitions, spec.lease_duration_seconds),
            (Some(transitions), Some(15))
        );
        assert_eq!(Term::of(&claimed, "us"), Some(claim.term));
    }
}
