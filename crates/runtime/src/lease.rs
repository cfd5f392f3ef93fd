//! Leases by which components take turns, whoever leads: taken, renewed and given back by compare-and-swap.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use nodeward_core::id::ResourceVersion;
use nodeward_core::lease::LeaseView;

use crate::api_error::ApiError;

/// How a lease is to be held.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseTerms {
    /// `spec.holderIdentity`.
    pub holder: String,
    /// How long others leave it alone that is not renewed; whole seconds.
    pub duration: SignedDuration,
    /// What it goes away with.
    pub owner: Option<OwnerReference>,
}

/// Takes or renews a lease that was seen as `seen`, or was seen to be absent.
///
/// # Errors
/// [`ApiError::Conflict`] where it has changed since or was created by another; [`ApiError::NotFound`] where it or its
/// namespace is gone.
pub async fn take_lease(
    leases: &Api<Lease>,
    name: &str,
    seen: Option<&LeaseView>,
    terms: &LeaseTerms,
) -> Result<LeaseView, ApiError> {
    let lease = desired(name, seen, terms, Timestamp::now());
    let params = PostParams::default();
    let written = match seen {
        None => leases.create(&params, &lease).await,
        Some(_) => leases.replace(name, &params, &lease).await,
    };
    LeaseView::project(&written?).ok_or_else(|| ApiError::Invalid {
        message: "the API server returned a lease without a name".to_owned(),
    })
}

/// Deletes a lease as it was seen, so that one that another has taken meanwhile stays.
///
/// # Errors
/// [`ApiError::Conflict`] where it has changed since, [`ApiError::NotFound`] where it is gone.
pub async fn give_back_lease(leases: &Api<Lease>, name: &str, seen: &ResourceVersion) -> Result<(), ApiError> {
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: None,
        resource_version: Some(seen.as_str().to_owned()),
    });
    leases.delete(name, &params).await?;
    Ok(())
}

fn desired(name: &str, seen: Option<&LeaseView>, terms: &LeaseTerms, now: Timestamp) -> Lease {
    let renewed = seen.filter(|seen| seen.is_held_by(&terms.holder));
    let transitions = match (renewed, seen) {
        (None, Some(seen)) => Some(seen.transitions.saturating_add(1)),
        (Some(seen), _) => Some(seen.transitions),
        (None, None) => Some(0),
    };
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            resource_version: seen.map(|seen| seen.resource_version.as_str().to_owned()),
            owner_references: terms.owner.clone().map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(terms.holder.clone()),
            lease_duration_seconds: i32::try_from(terms.duration.as_secs()).ok(),
            acquire_time: Some(MicroTime(renewed.and_then(|seen| seen.acquired).unwrap_or(now))),
            renew_time: Some(MicroTime(now)),
            lease_transitions: transitions,
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn seen(holder: &str) -> LeaseView {
        LeaseView {
            name: "node-a".into(),
            resource_version: "7".into(),
            holder: Some(holder.into()),
            acquired: Some(at(1)),
            renewed: Some(at(2)),
            duration: Some(SignedDuration::from_mins(1)),
            transitions: 3,
        }
    }

    #[rstest]
    #[case::created(None, None, at(9), 0)]
    #[case::renewed(Some(seen("us")), Some("7"), at(1), 3)]
    #[case::taken_over(Some(seen("them")), Some("7"), at(9), 4)]
    fn lease_is_written_onto_what_was_seen(
        #[case] seen: Option<LeaseView>,
        #[case] version: Option<&str>,
        #[case] acquired: Timestamp,
        #[case] transitions: i32,
    ) {
        let terms = LeaseTerms {
            holder: "us".to_owned(),
            duration: SignedDuration::from_secs(90),
            owner: None,
        };
        let lease = desired("node-a", seen.as_ref(), &terms, at(9));
        assert_eq!(lease.metadata.resource_version.as_deref(), version);
        let spec = lease.spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("us"));
        assert_eq!(spec.lease_duration_seconds, Some(90));
        assert_eq!(spec.acquire_time, Some(MicroTime(acquired)));
        assert_eq!(spec.renew_time, Some(MicroTime(at(9))));
        assert_eq!(spec.lease_transitions, Some(transitions));
    }
}
