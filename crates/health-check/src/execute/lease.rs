//! Leases of nodes and of the control plane: taken, renewed and given back as they were seen.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use nodeward_core::lease::LeaseView;
use nodeward_runtime::lease::{give_back_lease, take_lease};
use nodeward_runtime::{ActionResult, ApiError, Permits};

use super::quorum::Unmet;
use super::{Effect, Ended, PassContext, Written};
use crate::plan::{LeaseChange, LeaseStep};

/// A lease that was taken or renewed.
pub(super) struct Taken {
    lease: Arc<LeaseView>,
    /// This process took it: it was nobody's, or had run out.
    pub(super) is_new: bool,
    pub(super) written: Written,
}

/// Carries out one change.
pub(super) async fn write(pass: &PassContext, permits: &Permits, change: &LeaseChange) -> Ended {
    let _permit = permits.next_write().await?;
    match (&change.step, &change.seen) {
        (LeaseStep::Take(_), _) => Ok(Effect::acted(take(pass, change).await?.written)),
        (LeaseStep::GiveBack, None) => Ok(ActionResult::AlreadyDone.into()),
        (LeaseStep::GiveBack, Some(seen)) => {
            match give_back_lease(&leases(pass), &seen.name, &seen.resource_version).await {
                Ok(()) | Err(ApiError::NotFound) => Ok(Effect::acted(given_back(seen))),
                Err(error) => Err(error.into()),
            }
        }
    }
}

/// Takes or renews it.
pub(super) async fn take(pass: &PassContext, change: &LeaseChange) -> Result<Taken, Unmet> {
    let LeaseStep::Take(terms) = &change.step else {
        return Err(Unmet::Refused("a lease that is given back cannot be taken".to_owned()));
    };
    let (name, seen) = (change.name.to_string(), change.seen.as_deref());
    let leases = leases(pass);
    let mut written = take_lease(&leases, &name, seen, terms).await;
    if seen.is_none() && written == Err(ApiError::NotFound) {
        create_namespace(pass).await?;
        written = take_lease(&leases, &name, seen, terms).await;
    }
    let (lease, was_free) = match written {
        Ok(lease) => (lease, seen.is_none_or(|seen| !seen.is_held_by(&terms.holder))),
        // Another leader of ours may have taken it, whose create succeeds: it is not this process's to give back.
        Err(ApiError::Conflict) => (conflicting(&leases, &name, &terms.holder).await?, false),
        Err(error) => return Err(explained(pass, error).into()),
    };
    let lease = Arc::new(lease);
    Ok(Taken {
        is_new: was_free,
        written: Written::Lease {
            name: name.into(),
            base: seen.map(|seen| seen.resource_version.clone()),
            lease: Some(Arc::clone(&lease)),
        },
        lease,
    })
}

/// Somebody was faster. That may have been an earlier attempt of ours, whose answer was lost.
async fn conflicting(leases: &Api<Lease>, name: &str, holder: &str) -> Result<LeaseView, Unmet> {
    let found = leases.get_opt(name).await?;
    let found = found.as_ref().and_then(LeaseView::project);
    let holder_now = found.as_ref().and_then(|lease| lease.holder.as_deref());
    match &found {
        Some(lease) if lease.is_held_by(holder) => Ok(lease.clone()),
        _ => {
            let holder = holder_now.unwrap_or("nobody any more");
            Err(Unmet::Refused(format!("lease {name} is held by {holder}")))
        }
    }
}

/// Gives back a lease that was taken a moment ago. Returns what is to be expected of it.
pub(super) async fn give_back_taken(pass: &PassContext, taken: &Taken) -> Vec<Written> {
    let lease = &taken.lease;
    match give_back_lease(&leases(pass), &lease.name, &lease.resource_version).await {
        Ok(()) | Err(ApiError::NotFound) => vec![taken.written.clone(), given_back(lease)],
        Err(error) => {
            tracing::warn!(lease = %lease.name, %error, "not given back: the next plan does it");
            vec![taken.written.clone()]
        }
    }
}

fn given_back(lease: &LeaseView) -> Written {
    Written::Lease {
        name: Arc::clone(&lease.name),
        base: Some(lease.resource_version.clone()),
        lease: None,
    }
}

fn leases(pass: &PassContext) -> Api<Lease> {
    Api::namespaced(pass.clients.requests.clone(), &pass.lease_namespace)
}

async fn create_namespace(pass: &PassContext) -> Result<(), ApiError> {
    let namespaces: Api<Namespace> = Api::all(pass.clients.requests.clone());
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(pass.lease_namespace.to_string()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    match namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .map_err(ApiError::from)
    {
        Ok(_) | Err(ApiError::Conflict) => Ok(()),
        Err(error) => Err(explained(pass, error)),
    }
}

/// In a namespace that does not exist nobody has rights: the API server says that they are missing, not that it is.
fn explained(pass: &PassContext, error: ApiError) -> ApiError {
    match error {
        ApiError::Forbidden { message } => ApiError::Forbidden {
            message: format!(
                "{message}; leases are kept in namespace {0}: if it does not exist, create it; then `helm upgrade`, which \
                 grants the rights on leases in healthCheck.leases.namespace",
                pass.lease_namespace
            ),
        },
        error => error,
    }
}
