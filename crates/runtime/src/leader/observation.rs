//! When another's lease may be taken, judged by our own clock alone.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};

/// The last state of the lease that we saw, and since when it has not moved. Like client-go, we never compare the
/// holder's clock with ours.
#[derive(Debug, Default)]
pub struct Observation {
    last: Option<(LeaseSpec, Instant)>,
}

impl Observation {
    /// Notes what the lease looks like at `now`, and tells whether it may be taken.
    pub fn is_free(&mut self, lease: &Lease, now: Instant) -> bool {
        let Some(spec) = lease.spec.clone() else { return true };
        let duration = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or_default();
        let is_held = spec.holder_identity.as_deref().is_some_and(|holder| !holder.is_empty()) && duration > 0;
        let since = match &self.last {
            Some((known, since)) if *known == spec => *since,
            _ => now,
        };
        self.last = Some((spec, since));
        !is_held || now.saturating_duration_since(since) >= Duration::from_secs(duration)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use k8s_openapi::api::coordination::v1::Lease;
    use rstest::rstest;
    use serde_json::json;

    use super::Observation;

    fn lease(spec: &serde_json::Value) -> Lease {
        serde_json::from_value(json!({"metadata": {"name": "l"}, "spec": spec})).unwrap()
    }

    fn held(renewed: &str) -> Lease {
        lease(&json!({"holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": renewed}))
    }

    const LONG_AGO: &str = "2001-01-01T00:00:00.000000Z";
    const LONG_AHEAD: &str = "2099-01-01T00:00:00.000000Z";

    #[rstest]
    #[case::holder_clock_behind(LONG_AGO)]
    #[case::holder_clock_ahead(LONG_AHEAD)]
    fn unchanged_lease_is_free_after_its_duration(#[case] renewed: &str) {
        let mut observation = Observation::default();
        let start = Instant::now();
        assert!(!observation.is_free(&held(renewed), start));
        assert!(!observation.is_free(&held(renewed), start + Duration::from_millis(14_999)));
        assert!(observation.is_free(&held(renewed), start + Duration::from_secs(15)));
    }

    #[test]
    fn every_renewal_starts_the_wait_again() {
        let mut observation = Observation::default();
        let start = Instant::now();
        observation.is_free(&held("2026-01-01T00:00:00.000000Z"), start);
        let renewed = held("2026-01-01T00:00:05.000000Z");
        assert!(!observation.is_free(&renewed, start + Duration::from_secs(14)));
        assert!(!observation.is_free(&renewed, start + Duration::from_secs(28)));
        assert!(observation.is_free(&renewed, start + Duration::from_secs(29)));
    }

    #[rstest]
    #[case::released(json!({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": LONG_AHEAD}))]
    #[case::no_holder(json!({"leaseDurationSeconds": 15, "renewTime": LONG_AHEAD}))]
    #[case::no_duration(json!({"holderIdentity": "other", "renewTime": LONG_AHEAD}))]
    #[case::empty(json!({}))]
    #[case::absent(json!(null))]
    fn a_lease_that_nobody_holds_is_free_at_once(#[case] spec: serde_json::Value) {
        assert!(Observation::default().is_free(&lease(&spec), Instant::now()));
    }
}
