//! Leases by which components take turns at a node, or at the control plane, or elect their leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use nodeward_api::annotation;
use nodeward_api::node_lease::{REMEDIATION_HOLDER_PREFIX, name_of};
use nodeward_api::planned_at::{self, PlannedAt};

use crate::deadline::saturating_add;
use crate::id::{NodeName, ResourceVersion};

/// A Lease, projected to what decisions read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseView {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// The precondition of taking it or giving it back.
    pub resource_version: ResourceVersion,
    /// Who holds it; `None`: nobody.
    pub holder: Option<Arc<str>>,
    /// Since when its holder has it.
    pub acquired: Option<Timestamp>,
    /// When it was last renewed.
    pub renewed: Option<Timestamp>,
    /// How long it lasts from then.
    pub duration: Option<SignedDuration>,
    /// How often it has changed hands.
    pub transitions: i32,
}

/// Who holds a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// Nobody is seen to hold it. Whether that is so, taking it tells: that is a compare-and-swap.
    Free,
    /// We do, or did when it was last renewed.
    Ours {
        /// When half of it has passed.
        renew_at: Timestamp,
    },
    /// Somebody else does.
    Others {
        /// Who.
        holder: Arc<str>,
        /// When it expires unless it is renewed.
        until: Timestamp,
    },
}

impl LeaseView {
    /// Projects a Lease as the API server sends it; `None` without a name.
    pub fn project(lease: &Lease) -> Option<Self> {
        let meta = &lease.metadata;
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        Some(Self {
            name: meta.name.as_deref()?.into(),
            resource_version: meta.resource_version.as_deref().unwrap_or_default().into(),
            holder: holder.filter(|holder| !holder.is_empty()).map(Arc::from),
            acquired: spec.and_then(|spec| Some(spec.acquire_time.as_ref()?.0)),
            renewed: spec.and_then(|spec| Some(spec.renew_time.as_ref()?.0)),
            duration: seconds.map(|seconds| SignedDuration::from_secs(seconds.into())),
            transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or_default(),
        })
    }

    /// When it expires. As medik8s has it, a lease that was never renewed or says no duration has expired: `None`.
    pub fn until(&self) -> Option<Timestamp> {
        Some(saturating_add(self.renewed?, self.duration?))
    }

    /// Whether `holder` is in it, expired or not.
    pub fn is_held_by(&self, holder: &str) -> bool {
        self.holder.as_deref() == Some(holder)
    }
}

/// How a lease stands for `us` at `now`.
pub fn lease_state(lease: Option<&LeaseView>, us: &str, now: Timestamp) -> LeaseState {
    let Some((lease, holder)) = lease.and_then(|lease| Some((lease, lease.holder.as_ref()?))) else {
        return LeaseState::Free;
    };
    if **holder == *us {
        let half = lease.duration.map_or(SignedDuration::ZERO, |duration| duration / 2);
        let renew_at = lease.renewed.map_or(now, |renewed| saturating_add(renewed, half));
        return LeaseState::Ours { renew_at };
    }
    match lease.until() {
        Some(until) if now < until => LeaseState::Others {
            holder: Arc::clone(holder),
            until,
        },
        _ => LeaseState::Free,
    }
}

/// The NodeHealthCheck that remediates the node, as its lease tells it, and until when the lease lasts.
pub fn remediation_lease(
    leases: &BTreeMap<Arc<str>, Arc<LeaseView>>,
    node: &NodeName,
    now: Timestamp,
) -> Option<(Arc<str>, Timestamp)> {
    let lease = leases.get(name_of(node.as_str()).as_str())?;
    let check = lease.holder.as_deref()?.strip_prefix(REMEDIATION_HOLDER_PREFIX)?;
    let until = lease.until().filter(|until| now < *until)?;
    Some((check.into(), until))
}

/// What the Lease of an operator tells of its leader's passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    pub at: PlannedAt,
    /// Whether it is of the term that the Lease is in.
    pub is_of_present_term: bool,
    /// When it was written, by the API server's clock; `None` where that has kept no times.
    pub written: Option<Timestamp>,
    /// When the Lease was written last, by renewals too, by the same clock.
    last_write: Option<Timestamp>,
}

impl Planned {
    /// For how long the Lease has been renewed without another. No clock of the leader's, or of whoever reads, comes into it.
    pub fn silent_for(&self) -> Option<Duration> {
        let silent_for = self.last_write?.duration_since(self.written?);
        Duration::try_from(silent_for).ok()
    }
}

/// What the Lease of an operator tells of its leader's passes; `None`: nothing.
pub fn planned(lease: &Lease) -> Option<Planned> {
    let annotations = lease.metadata.annotations.as_ref()?;
    let at = PlannedAt::parse(annotations.get(annotation::PLANNED_AT)?)?;
    let term = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
    let writes = lease.metadata.managed_fields.iter().flatten();
    let (mut written, mut last_write) = (None, None);
    for write in writes {
        let time = write.time.as_ref().map(|time| time.0);
        last_write = last_write.max(time);
        if write.manager.as_deref() == Some(planned_at::FIELD_MANAGER) {
            written = written.max(time);
        }
    }
    Some(Planned {
        at,
        is_of_present_term: at.term == term.unwrap_or_default(),
        written,
        last_write,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lease(spec: Value) -> LeaseView {
        let object = json!({ "metadata": { "name": "node-a", "resourceVersion": "7" }, "spec": spec });
        LeaseView::project(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn others(until: i64) -> LeaseState {
        LeaseState::Others {
            holder: "them".into(),
            until: at(until),
        }
    }

    fn ours(renew_at: i64) -> LeaseState {
        LeaseState::Ours { renew_at: at(renew_at) }
    }

    #[rstest]
    #[case::never_taken(json!({}), LeaseState::Free)]
    #[case::given_back(json!({ "holderIdentity": "", "renewTime": at(0), "leaseDurationSeconds": 60 }), LeaseState::Free)]
    #[case::of_another(json!({ "holderIdentity": "them", "renewTime": at(0), "leaseDurationSeconds": 60 }), others(60))]
    #[case::expired(json!({ "holderIdentity": "them", "renewTime": at(0), "leaseDurationSeconds": 50 }), LeaseState::Free)]
    #[case::without_duration(json!({ "holderIdentity": "them", "renewTime": at(0) }), LeaseState::Free)]
    #[case::never_renewed(json!({ "holderIdentity": "them", "leaseDurationSeconds": 60 }), LeaseState::Free)]
    #[case::ours(json!({ "holderIdentity": "us", "renewTime": at(0), "leaseDurationSeconds": 110 }), ours(55))]
    #[case::ours_but_expired(json!({ "holderIdentity": "us", "renewTime": at(0), "leaseDurationSeconds": 10 }), ours(5))]
    #[case::ours_but_never_renewed(json!({ "holderIdentity": "us" }), ours(50))]
    fn state_at_second_50(#[case] spec: Value, #[case] expected: LeaseState) {
        assert_eq!(lease_state(Some(&lease(spec)), "us", at(50)), expected);
    }

    #[rstest]
    #[case::nothing_said(json!({}), json!([]), None)]
    #[case::garbage(json!({ annotation::PLANNED_AT: "now" }), json!([]), None)]
    #[case::of_this_term(json!({ annotation::PLANNED_AT: "3@7" }), json!([]), Some((7, true, None)))]
    #[case::of_an_earlier_term(json!({ annotation::PLANNED_AT: "2@7" }), json!([]), Some((7, false, None)))]
    #[case::renewed_since(
        json!({ annotation::PLANNED_AT: "3@7" }),
        json!([
            { "manager": "us", "time": at(90) }, { "manager": planned_at::FIELD_MANAGER, "time": at(20) }, { "manager": "nodeward", "time": at(5) },
        ]),
        Some((7, true, Some(70)))
    )]
    #[case::written_last(
        json!({ annotation::PLANNED_AT: "3@7" }),
        json!([{ "manager": "us", "time": at(15) }, { "manager": planned_at::FIELD_MANAGER, "time": at(20) }, { "manager": "odd" }]),
        Some((7, true, Some(0)))
    )]
    fn leases_tell_of_their_leaders_passes(
        #[case] annotations: Value,
        #[case] writes: Value,
        #[case] expected: Option<(u64, bool, Option<u64>)>,
    ) {
        let lease: Lease = serde_json::from_value(json!({
            "metadata": { "name": "drain-lock", "annotations": annotations, "managedFields": writes },
            "spec": { "leaseTransitions": 3 },
        }))
        .unwrap();
        let told = planned(&lease).map(|planned| {
            let silent_for = planned.silent_for().map(|time| time.as_secs());
            (planned.at.passes, planned.is_of_present_term, silent_for)
        });
        assert_eq!(told, expected);
    }

    #[test]
    fn absent_lease_is_free() {
        assert_eq!(lease_state(None, "us", at(50)), LeaseState::Free);
    }
}
