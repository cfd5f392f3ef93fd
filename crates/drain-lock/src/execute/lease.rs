//! The leases of nodes and of the control plane: taken, renewed and given back by compare-and-swap.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use nodeward_runtime::LeaseTerms;
use nodeward_runtime::lease::{give_back_lease, take_lease};

use crate::plan::lease::{DURATION, LeaseChange, LeaseStep};

use super::{ActionResult, ExecutorContext, TaskOutcome, Written};

/// Carries out one change.
pub(super) async fn write(context: &ExecutorContext, change: &LeaseChange) -> TaskOutcome {
    let written = compare_and_swap(context, change).await;
    let is_new = change.step == LeaseStep::Take && change.seen.is_none();
    TaskOutcome {
        // Where nobody has made the namespace, nobody uses the leases. That nobody lets us in, the watch tells: an API
        // server that restarts forbids a write for a moment, and says nothing by that.
        leases_absent: is_new && written == Err(ActionResult::AlreadyDone),
        ..written.into()
    }
}

async fn compare_and_swap(context: &ExecutorContext, change: &LeaseChange) -> Written {
    let (name, seen) = (change.name.as_str(), change.seen.as_deref());
    let _permit = context.permits.next_write().await?;
    let leases: Api<Lease> = context.api_in(&change.namespace);
    match (change.step, seen) {
        (LeaseStep::Take, seen) => {
            let terms = LeaseTerms {
                holder: change.holder.clone(),
                duration: DURATION,
                owner: None,
            };
            take_lease(&leases, name, seen, &terms).await?;
        }
        (LeaseStep::Release, Some(seen)) => give_back_lease(&leases, name, &seen.resource_version).await?,
        (LeaseStep::Release, None) => return Err(ActionResult::AlreadyDone),
    }
    Ok(())
}
