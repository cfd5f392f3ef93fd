//! How long drains wait for their turn, as their NodeDrains tell it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, ListParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use nodeward_api::DrainLedger;
use nodeward_api::node_drain::{NodeDrain, Phase};
use nodeward_testkit::wait;
use tokio::task::JoinHandle;

use super::stage::NAMESPACE;

/// NodeDrains under watch.
pub struct QueueWatch {
    seen: Arc<Mutex<BTreeMap<String, Turn>>>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy)]
struct Turn {
    seen: Instant,
    granted: Option<Instant>,
}

impl QueueWatch {
    pub fn start(client: Client) -> Self {
        let seen: Arc<Mutex<BTreeMap<String, Turn>>> = Arc::default();
        let task = tokio::spawn({
            let seen = Arc::clone(&seen);
            async move {
                let drains: Api<NodeDrain> = Api::all(client);
                let mut changes = watcher(drains, watcher::Config::default())
                    .default_backoff()
                    .applied_objects()
                    .boxed();
                while let Some(change) = changes.next().await {
                    let Ok(drain) = change else { continue };
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    let turn = seen.entry(drain.name_any()).or_insert(Turn {
                        seen: Instant::now(),
                        granted: None,
                    });
                    let phase = drain.status.as_ref().and_then(|status| status.phase);
                    if turn.granted.is_none() && phase.is_some_and(|phase| phase != Phase::Queued) {
                        turn.granted = Some(Instant::now());
                    }
                }
            }
        });
        Self { seen, task }
    }

    /// From each drain's first sight to its grant, in seconds; those that were never granted are left out.
    pub fn waits(&self) -> Vec<f64> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let granted = seen
            .values()
            .filter_map(|turn| Some(turn.granted?.duration_since(turn.seen)));
        granted.map(|wait| wait.as_secs_f64()).collect()
    }
}

impl Drop for QueueWatch {
    fn drop(&mut self) {
        self.task.abort();
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
    for budget in Api::<PodDisruptionBudget>::namespaced(client.clone(), NAMESPACE)
        .list(&all)
        .await?
    {
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
    drains
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    wait::until("all NodeDrains to be gone", Duration::from_mins(1), || async {
        let left: Vec<String> = drains
            .list(&ListParams::default())
            .await?
            .iter()
            .map(|drain| {
                let phase = drain.status.as_ref().and_then(|status| status.phase);
                format!("{} {phase:?}", drain.name_any())
            })
            .collect();
        ensure!(left.is_empty(), "{}", left.join(", "));
        Ok(())
    })
    .await
}
