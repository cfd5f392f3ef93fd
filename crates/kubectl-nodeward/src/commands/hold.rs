//! `hold`: creates a DisruptionHold, and waits a moment for drain-lock's answer.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::wait::await_condition;
use nodeward_api::disruption_hold::{DisruptionHold, DisruptionHoldSpec, HoldPhase};
use nodeward_core::deadline::saturating_add;
use nodeward_core::text::counted;

use crate::args::HoldArgs;
use crate::cluster::Cluster;
use crate::describe::prefixed;
use crate::failure::Failure;
use crate::model::locks::OwnerHold;
use crate::text::Style;
use crate::text::page::Page;
use crate::text::time::moment;

/// How long the command waits for drain-lock's answer; the hold stands without one.
const ANSWER: Duration = Duration::from_secs(5);

/// The longest prefix that the API server makes names from.
const LONGEST_PREFIX: usize = 57;

pub async fn hold(cluster: &Cluster, args: &HoldArgs) -> Result<OwnerHold, Failure> {
    cluster.require::<DisruptionHold>()?;
    let namespace = cluster.one_namespace();
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), namespace);
    match cluster.ask(budgets.get_metadata(&args.budget)).await {
        // Who may hold a budget need not be allowed to read it: drain-lock looks again.
        Ok(_) | Err(Failure::MissingRight(_)) => (),
        Err(Failure::NotFound(_)) => {
            let budget = &args.budget;
            return Err(Failure::Other(format!(
                "there is no PodDisruptionBudget {budget} in namespace {namespace}"
            )));
        }
        Err(failure) => return Err(failure),
    }
    let holds: Api<DisruptionHold> = Api::namespaced(cluster.client.clone(), namespace);
    let hold = new(args, Timestamp::now());
    let created = cluster.ask(holds.create(&PostParams::default(), &hold)).await?;
    let name = created.metadata.name.clone().unwrap_or_default();
    let is_answered = |hold: Option<&DisruptionHold>| {
        hold.is_none_or(|hold| hold.status.as_ref().is_some_and(|status| status.phase.is_some()))
    };
    let answered = tokio::time::timeout(ANSWER, await_condition(holds, &name, is_answered)).await;
    let hold = answered.ok().and_then(Result::ok).flatten().unwrap_or(created);
    Ok(OwnerHold::of(&hold))
}

pub fn print(hold: &OwnerHold, page: &mut Page, now: Timestamp) {
    let pdb = &hold.pdb;
    let name = hold.name.as_deref().unwrap_or_default();
    let namespace = pdb.split_once('/').map_or("", |(namespace, _)| namespace);
    let disruptions = hold.disruptions.map(|number| counted(number, "disruption"));
    let disruptions = disruptions.unwrap_or_else(|| "all disruptions".to_owned());
    let until = prefixed(" until ", hold.until.map(|until| moment(until, now)));
    page.text(Style::Good, format!("hold/{name} keeps {disruptions} of {pdb}{until}."));
    let warning = match hold.phase {
        Some(HoldPhase::Capped) => "That is sooner than requested: drain-lock's configuration limits holds.",
        None => "drain-lock has not answered yet: is it running? See kubectl nodeward status",
        Some(_) => "",
    };
    if !warning.is_empty() {
        page.text(Style::Warning, warning);
    }
    page.command("end it", format!("kubectl nodeward release hold/{name} -n {namespace}"));
}

fn new(args: &HoldArgs, now: Timestamp) -> DisruptionHold {
    let prefix: String = args.budget.chars().take(LONGEST_PREFIX).collect();
    let spec = DisruptionHoldSpec {
        pdb_ref: args.budget.clone(),
        disruptions: args.disruptions,
        reason: args.reason.clone(),
        expires_at: Some(saturating_add(now, args.duration.get())),
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
