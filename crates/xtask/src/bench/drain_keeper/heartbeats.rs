//! What the kubelets of a cluster send without any cause: lease renewals and status updates.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::bench::large::nodes::{conditions, micros};
use crate::bench::large::size::node_name;

/// A kubelet renews its lease each quarter of the 40 s for which it is good.
const LEASE_EVERY: Duration = Duration::from_secs(10);

/// A kubelet's `nodeStatusReportFrequency`.
const STATUS_EVERY: Duration = Duration::from_mins(5);

/// How many requests of one kind are under way at once; what a busy API server delays is caught up with.
const AT_ONCE: usize = 8;

/// Heartbeats of all nodes, until dropped.
pub struct Heartbeats {
    nodes: usize,
    began: Instant,
    leases: Arc<AtomicU64>,
    statuses: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

#[derive(Clone, Copy)]
enum Beat {
    Lease,
    Status,
}

impl Heartbeats {
    pub fn start(client: &Client, nodes: usize) -> Self {
        let (leases, statuses) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        tasks.spawn(beat(
            client.clone(),
            nodes,
            Beat::Lease,
            LEASE_EVERY,
            Arc::clone(&leases),
        ));
        tasks.spawn(beat(
            client.clone(),
            nodes,
            Beat::Status,
            STATUS_EVERY,
            Arc::clone(&statuses),
        ));
        Self {
            nodes,
            began: Instant::now(),
            leases,
            statuses,
            _tasks: tasks,
        }
    }

    /// What was sent, and what kubelets would have sent.
    pub fn told(&self) -> String {
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = |sent: &AtomicU64| {
            // Exact up to 2^53.
            #[allow(clippy::cast_precision_loss)]
            let sent = sent.load(Ordering::Relaxed) as f64;
            sent / seconds
        };
        #[allow(clippy::cast_precision_loss)]
        let nodes = self.nodes as f64;
        format!(
            "{:.0} of {:.0} lease renewals and {:.1} of {:.1} status updates a second",
            rate(&self.leases),
            nodes / LEASE_EVERY.as_secs_f64(),
            rate(&self.statuses),
            nodes / STATUS_EVERY.as_secs_f64(),
        )
    }
}

async fn beat(client: Client, nodes: usize, beat: Beat, every: Duration, sent: Arc<AtomicU64>) {
    let mut pace = interval(every / u32::try_from(nodes).unwrap_or(u32::MAX));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let turns = futures::stream::unfold((pace, 0), |(mut pace, node)| async move {
        pace.tick().await;
        // 4099 is prime, so that all nodes have their turn, in no order that shows.
        Some((node * 4099 % nodes, (pace, node + 1)))
    });
    turns
        .for_each_concurrent(AT_ONCE, |node| {
            let (client, sent) = (client.clone(), Arc::clone(&sent));
            async move {
                if send(&client, beat, node).await.is_ok() {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
        .await;
}

async fn send(client: &Client, beat: Beat, node: usize) -> anyhow::Result<()> {
    let (name, now) = (node_name(node), Timestamp::now());
    let params = PatchParams::default();
    let request = match beat {
        Beat::Lease => {
            let patch = Patch::Merge(json!({ "spec": { "renewTime": micros(now) } }));
            Request::new("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
                .patch(&name, &params, &patch)?
        }
        Beat::Status => {
            let patch = Patch::Strategic(json!({ "status": { "conditions": conditions(now) } }));
            Request::new("/api/v1/nodes").patch_subresource("status", &name, &params, &patch)?
        }
    };
    client.request_text(request).await?;
    Ok(())
}
