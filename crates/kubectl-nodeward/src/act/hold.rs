//! Holds a budget: creates a DisruptionHold, and waits a moment for what drain-lock makes of it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::wait::await_condition;
use nodeward_api::disruption_hold::{DisruptionHold, DisruptionHoldSpec};
use nodeward_core::deadline::later;

use super::ActError;
use crate::args::Hold;
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::view::locks::OwnerHold;

/// How long drain-lock's answer is waited for: without one the hold stands all the same.
const ANSWER: Duration = Duration::from_secs(5);

/// The longest prefix that the API server makes names from.
const LONGEST_PREFIX: usize = 57;

/// Holds a budget.
///
/// # Errors
/// There is no such budget, or the hold cannot be created.
pub async fn hold(cluster: &Cluster, args: &Hold) -> Result<OwnerHold, ActError> {
    if !cluster.kinds().disruption_holds {
        return Err(ActError::NotInstalled("DisruptionHold"));
    }
    let namespace = cluster.one_namespace();
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), namespace);
    match cluster.ask(budgets.get_metadata(&args.budget)).await {
        // Who may hold a budget need not be allowed to read it: drain-lock looks again.
        Ok(_) | Err(Failure::MissingRight(_)) => (),
        Err(Failure::NotFound { .. }) => {
            return Err(ActError::Refused(format!(
                "there is no PodDisruptionBudget {} in namespace {namespace}",
                args.budget
            )));
        }
        Err(failure) => return Err(failure.into()),
    }
    let holds: Api<DisruptionHold> = Api::namespaced(cluster.client.clone(), namespace);
    let created = cluster
        .ask(holds.create(&PostParams::default(), &new(args, Timestamp::now())))
        .await?;
    let name = created.metadata.name.clone().unwrap_or_default();
    let is_answered = |hold: Option<&DisruptionHold>| {
        hold.is_none_or(|hold| hold.status.as_ref().is_some_and(|status| status.phase.is_some()))
    };
    let answered = tokio::time::timeout(ANSWER, await_condition(holds, &name, is_answered)).await;
    let hold = answered.ok().and_then(Result::ok).flatten().unwrap_or(created);
    Ok(OwnerHold::of(&hold))
}

fn new(args: &Hold, now: Timestamp) -> DisruptionHold {
    let prefix: String = args.budget.chars().take(LONGEST_PREFIX).collect();
    let spec = DisruptionHoldSpec {
        pdb_ref: args.budget.clone(),
        units: args.units,
        reason: args.reason.clone(),
        expires_at: Some(later(now, args.duration.get())),
    };
    DisruptionHold {
        metadata: ObjectMeta {
            generate_name: Some(format!("{prefix}-")),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}
