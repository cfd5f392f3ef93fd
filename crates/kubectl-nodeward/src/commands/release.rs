//! `release`: ends requests for drains, and holds of budgets.

use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use nodeward_api::node_drain::NodeDrain;
use nodeward_api::{DisruptionHold, annotation};
use nodeward_core::drain_request::{leave, other_requesters};
use serde::Serialize;
use serde_json::json;

use super::request::{ATTEMPTS, changes_too_fast, if_unchanged, requester};
use crate::args::{ReleaseArgs, Target};
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::text::Style;
use crate::text::page::Page;

/// The outcomes of all targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Releases {
    pub released: Vec<Released>,
}

/// The outcome of one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Released {
    /// `node/NAME` or `hold/NAMESPACE/NAME`.
    pub target: String,
    pub outcome: ReleaseOutcome,
    /// The same for a person.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ReleaseOutcome {
    /// The drain ends: its last requester has released it.
    Ends,
    /// The drain goes on for others.
    GoesOn,
    /// The hold is deleted.
    Deleted,
    /// The override is recorded; drain-lock carries it out.
    Overridden,
    /// Nothing was changed.
    Failed,
}

type Outcome = Result<(ReleaseOutcome, String), Failure>;

impl Releases {
    /// Releases each target; one that fails does not stop the others.
    pub async fn run(cluster: &Cluster, args: &ReleaseArgs) -> Result<Self, Failure> {
        let (user, own) = requester(cluster).await?;
        let requester = args.requester.as_ref().unwrap_or(&own);
        let reason = args.reason.as_ref().filter(|_| args.force);
        let forced = reason.map(|reason| format!("{user}: {reason}"));
        let mut released = Vec::new();
        for target in &args.targets {
            let (target, outcome) = match target {
                Target::Node(node) => (
                    format!("node/{node}"),
                    release_node(cluster, node, requester, forced.as_deref()).await,
                ),
                Target::Hold(hold) => (
                    format!("hold/{}/{hold}", cluster.one_namespace()),
                    release_hold(cluster, hold, forced.as_deref()).await,
                ),
            };
            let (outcome, message) = outcome.unwrap_or_else(|error| (ReleaseOutcome::Failed, error.to_string()));
            released.push(Released {
                target,
                outcome,
                message,
            });
        }
        Ok(Self { released })
    }

    pub fn has_failed(&self) -> bool {
        let mut released = self.released.iter();
        released.any(|released| released.outcome == ReleaseOutcome::Failed)
    }

    pub fn print(&self, page: &mut Page) {
        for released in &self.released {
            let is_bad = released.outcome == ReleaseOutcome::Failed;
            let style = if is_bad { Style::Bad } else { Style::Plain };
            page.text(style, format!("{}: {}", released.target, released.message));
        }
    }
}

async fn release_node(cluster: &Cluster, node: &str, requester: &str, forced: Option<&str>) -> Outcome {
    cluster.require::<NodeDrain>()?;
    let drains: Api<NodeDrain> = Api::all(cluster.client.clone());
    for _ in 0..ATTEMPTS {
        let Some(drain) = cluster.ask(drains.get_opt(node)).await? else {
            return Err(Failure::Other(format!("there is no drain of {node}")));
        };
        let outcome = match forced {
            Some(forced) => override_drain(cluster, &drains, &drain, forced).await,
            None => end_request(cluster, &drains, &drain, requester).await,
        };
        // Otherwise the drain has changed since it was read.
        if !matches!(outcome, Err(Failure::Conflict(_) | Failure::NotFound(_))) {
            return outcome;
        }
    }
    Err(changes_too_fast(node))
}

async fn override_drain(cluster: &Cluster, drains: &Api<NodeDrain>, drain: &NodeDrain, forced: &str) -> Outcome {
    let node = &drain.spec.node_name;
    let patch = json!({ "metadata": { "uid": drain.metadata.uid, "annotations": { annotation::RELEASE: forced } } });
    let patch = Patch::Merge(&patch);
    cluster.ask(drains.patch(node, &PatchParams::default(), &patch)).await?;
    let message = "your override, which is recorded, releases all that its drain holds";
    Ok((ReleaseOutcome::Overridden, message.to_owned()))
}

/// Takes the requester off the list. The last one deletes the drain: drain-lock, which keeps it until its disruptions have
/// returned, then uncordons the node if the cordon is its own.
async fn end_request(cluster: &Cluster, drains: &Api<NodeDrain>, drain: &NodeDrain, requester: &str) -> Outcome {
    let node = &drain.spec.node_name;
    if drain.metadata.deletion_timestamp.is_some() {
        return Ok((ReleaseOutcome::Ends, "its drain is ending already".to_owned()));
    }
    let others = other_requesters(drain, requester).map(|other| other.name.as_str());
    let others = others.collect::<Vec<_>>().join(", ");
    if others.is_empty() {
        cluster.ask(drains.delete(node, &if_unchanged(drain))).await?;
        let message = "its drain ends; its disruptions return as its pods become ready";
        return Ok((ReleaseOutcome::Ends, message.to_owned()));
    }
    let Some(patch) = leave(drain, requester) else {
        return Err(Failure::Other(format!(
            "the drain of {node} was not requested by {requester}, but by {others}: name one with --requester"
        )));
    };
    let patch = Patch::Merge(patch);
    cluster.ask(drains.patch(node, &PatchParams::default(), &patch)).await?;
    let message = format!("your request has ended; its drain goes on for {others}");
    Ok((ReleaseOutcome::GoesOn, message))
}

async fn release_hold(cluster: &Cluster, hold: &str, forced: Option<&str>) -> Outcome {
    cluster.require::<DisruptionHold>()?;
    let holds: Api<DisruptionHold> = Api::namespaced(cluster.client.clone(), cluster.one_namespace());
    let Some(forced) = forced else {
        cluster.ask(holds.delete(hold, &DeleteParams::default())).await?;
        return Ok((ReleaseOutcome::Deleted, "it holds nothing any more".to_owned()));
    };
    let patch = json!({ "metadata": { "annotations": { annotation::RELEASE: forced } } });
    let patch = Patch::Merge(&patch);
    cluster.ask(holds.patch(hold, &PatchParams::default(), &patch)).await?;
    let message = "your override, which is recorded, suspends it";
    Ok((ReleaseOutcome::Overridden, message.to_owned()))
}
