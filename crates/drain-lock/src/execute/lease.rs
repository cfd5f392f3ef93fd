//! The node's lease: taken, renewed and given back by compare-and-swap.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use nodeward_runtime::ApiError;

use crate::plan::lease::{DURATION, HOLDER, LeaseChange, LeaseStep, name_of};

use super::{ActionResult, ExecutorContext, TaskOutcome};

/// Carries out one change.
pub(super) async fn write(context: &ExecutorContext, change: &LeaseChange) -> TaskOutcome {
    let leases: Api<Lease> = Api::namespaced(context.clients.requests.clone(), &change.namespace);
    let name = name_of(&change.node);
    let _permit = match context.permits.next_write().await {
        Ok(permit) => permit,
        Err(stop) => return ActionResult::from(stop).into(),
    };
    match change.step {
        LeaseStep::Take => take(&leases, &name, change).await,
        LeaseStep::GiveBack => give_back(&leases, &name, change).await.into(),
    }
}

async fn take(leases: &Api<Lease>, name: &str, change: &LeaseChange) -> TaskOutcome {
    let now = MicroTime(Timestamp::now());
    let spec = LeaseSpec {
        holder_identity: Some(HOLDER.to_owned()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        ..LeaseSpec::default()
    };
    let mut lease = Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
    };
    let written = match &change.seen {
        None => leases.create(&PostParams::default(), &lease).await,
        Some(seen) => {
            lease.metadata.resource_version = Some(seen.resource_version.as_str().to_owned());
            leases.replace(name, &PostParams::default(), &lease).await
        }
    };
    match written {
        Ok(_) => ActionResult::Acted(()).into(),
        Err(error) => match ApiError::from(&error) {
            // Where nobody has made the namespace, nobody uses the leases. That nobody lets us in, the watch tells: an
            // API server that restarts forbids a write for a moment, and says nothing by that.
            ApiError::NotFound if change.seen.is_none() => TaskOutcome {
                leases_absent: true,
                ..ActionResult::AlreadyDone.into()
            },
            _ => ActionResult::from(error).into(),
        },
    }
}

async fn give_back(leases: &Api<Lease>, name: &str, change: &LeaseChange) -> ActionResult {
    let Some(seen) = &change.seen else {
        return ActionResult::AlreadyDone;
    };
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: None,
            resource_version: Some(seen.resource_version.as_str().to_owned()),
        }),
        ..DeleteParams::default()
    };
    match leases.delete(name, &params).await {
        Ok(_) => ActionResult::Acted(()),
        Err(error) => error.into(),
    }
}
