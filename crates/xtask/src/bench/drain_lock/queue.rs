//! How long drains wait for their turn, as their NodeDrains tell it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, ListParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use nodeward_api::DrainLedger;
use nodeward_api::node_drain::NodeDrain;
use nodeward_testkit::wait;

use super::stage::NAMESPACE;
use crate::watch::Watched;

/// When each drain was seen first, and granted.
type Turns = BTreeMap<String, (Instant, Option<Instant>)>;

/// NodeDrains under watch.
pub struct QueueWatch(Watched<Turns>);

impl QueueWatch {
    pub fn start(client: Client) -> Self {
        let look = |turns: &mut Turns, drain: NodeDrain| {
            let granted_at = drain.status.as_ref().and_then(|status| status.granted_at);
            let (_, granted) = turns.entry(drain.name_any()).or_insert((Instant::now(), None));
            if granted_at.is_some() {
                granted.get_or_insert_with(Instant::now);
            }
        };
        Self(Watched::new(Turns::new()).follow(Api::all(client), watcher::Config::default(), look))
    }

    /// From each drain's first sight to its grant, in seconds; those that were never granted are left out.
    pub fn waits(&self) -> Vec<f64> {
        let wait = |(seen, granted): &(Instant, Option<Instant>)| Some((*granted)?.duration_since(*seen).as_secs_f64());
        self.0.read().values().filter_map(wait).collect()
    }
}

/// Who waits for what: for a run that has no end.
pub async fn state(client: &Client) -> Result<String> {
    let all = ListParams::default();
    let mut text = String::new();
    for drain in Api::<NodeDrain>::all(client.clone()).list(&all).await? {
        let _ = writeln!(text, "{}: {}", drain.name_any(), serde_json::to_string(&drain.status)?);
    }
    for ledger in Api::<DrainLedger>::all(client.clone()).list(&all).await? {
        let _ = writeln!(text, "ledger: {}", serde_json::to_string(&ledger.spec)?);
    }
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), NAMESPACE);
    for budget in budgets.list(&all).await? {
        let _ = writeln!(
            text,
            "{}: {}",
            budget.name_any(),
            serde_json::to_string(&budget.status)?
        );
    }
    Ok(text)
}

/// Deletes all NodeDrains and waits until they are gone: nothing of a run is left for the next.
pub async fn forget(client: &Client) -> Result<()> {
    let drains: Api<NodeDrain> = Api::all(client.clone());
    let all = ListParams::default();
    drains.delete_collection(&DeleteParams::default(), &all).await?;
    wait::until("all NodeDrains to be gone", Duration::from_mins(1), || async {
        let left = drains.list(&all).await?.items;
        let phase = |drain: &NodeDrain| drain.status.as_ref().and_then(|status| status.phase);
        let told: Vec<_> = left.iter().map(|drain| (drain.name_any(), phase(drain))).collect();
        ensure!(told.is_empty(), "{told:?}");
        Ok(())
    })
    .await
}
