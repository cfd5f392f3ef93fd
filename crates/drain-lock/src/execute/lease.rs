//! The node's lease: taken, renewed and given back by compare-and-swap.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};

use crate::plan::lease::{DURATION, HOLDER, LeaseChange, LeaseStep, name_of};

use super::{ActionResult, ExecutorContext, TaskOutcome, Written};

/// Carries out one change.
pub(super) async fn write(context: &ExecutorContext, change: &LeaseChange) -> TaskOutcome {
    let written = match change.step {
        LeaseStep::Take => take(context, change).await,
        LeaseStep::Release => release(context, change).await,
    };
    TaskOutcome {
        // Where nobody has made the namespace, nobody uses the leases. That nobody lets us in, the watch tells: an API
        // server that restarts forbids a write for a moment, and says nothing by that.
        leases_absent: change.step == LeaseStep::Take
            && change.seen.is_none()
            && written == Err(ActionResult::AlreadyDone),
        ..written.into()
    }
}

async fn take(context: &ExecutorContext, change: &LeaseChange) -> Written {
    let now = MicroTime(Timestamp::now());
    let seen = change.seen.as_ref();
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name_of(&change.node)),
            resource_version: seen.map(|seen| seen.resource_version.as_str().to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(HOLDER.to_owned()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    };
    let _permit = context.permits.next_write().await?;
    let leases: Api<Lease> = context.api_in(&change.namespace);
    match seen {
        None => leases.create(&PostParams::default(), &lease).await?,
        Some(seen) => leases.replace(&seen.name, &PostParams::default(), &lease).await?,
    };
    Ok(())
}

async fn release(context: &ExecutorContext, change: &LeaseChange) -> Written {
    let Some(seen) = &change.seen else {
        return Err(ActionResult::AlreadyDone);
    };
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: None,
            resource_version: Some(seen.resource_version.as_str().to_owned()),
        }),
        ..DeleteParams::default()
    };
    let _permit = context.permits.next_write().await?;
    let leases: Api<Lease> = context.api_in(&change.namespace);
    leases.delete(&seen.name, &params).await?;
    Ok(())
}
