//! What the kubelets of a cluster send without any cause: lease renewals and status updates.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use nodeward_testkit::lock;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::nodes::{conditions, micros};
use super::size::node_name;
use crate::bench::figures::count;

/// How many requests of one kind are under way at once; what a busy API server delays is caught up with.
const AT_ONCE: usize = 8;

/// Heartbeats of all nodes, until dropped.
pub struct Heartbeats {
    nodes: usize,
    began: Instant,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    /// How many were sent, by [`Beat`].
    sent: [AtomicUsize; 2],
    /// Nodes that send none.
    stopped: Mutex<HashSet<usize>>,
}

#[derive(Clone, Copy)]
enum Beat {
    Lease,
    Status,
}

impl Beat {
    const fn interval(self) -> Duration {
        match self {
            // A quarter of the 40 s for which a kubelet's lease is good.
            Self::Lease => Duration::from_secs(10),
            // A kubelet's `nodeStatusReportFrequency`.
            Self::Status => Duration::from_mins(5),
        }
    }
}

impl Heartbeats {
    pub fn start(client: &Client, nodes: usize) -> Self {
        let shared = Arc::default();
        let mut tasks = JoinSet::new();
        for beat in [Beat::Lease, Beat::Status] {
            tasks.spawn(send_all(client.clone(), nodes, beat, Arc::clone(&shared)));
        }
        Self {
            nodes,
            began: Instant::now(),
            shared,
            _tasks: tasks,
        }
    }

    /// The node sends none from now on.
    pub fn stop(&self, node: usize) {
        lock(&self.shared.stopped).insert(node);
    }

    /// The node sends them again.
    pub fn resume(&self, node: usize) {
        lock(&self.shared.stopped).remove(&node);
    }

    /// What was sent, and what kubelets would have sent.
    pub fn text(&self) -> String {
        let rate = |beat: Beat| {
            let sent = count(self.shared.sent[beat as usize].load(Ordering::Relaxed));
            (
                sent / self.began.elapsed().as_secs_f64(),
                count(self.nodes) / beat.interval().as_secs_f64(),
            )
        };
        let ((leases, of), (statuses, of_statuses)) = (rate(Beat::Lease), rate(Beat::Status));
        format!("{leases:.0} of {of:.0} lease renewals and {statuses:.1} of {of_statuses:.1} status updates a second")
    }
}

async fn send_all(client: Client, nodes: usize, beat: Beat, shared: Arc<Shared>) {
    let mut pace = interval(beat.interval() / u32::try_from(nodes).unwrap_or(u32::MAX));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let turns = futures::stream::unfold((pace, 0), |(mut pace, node)| async move {
        pace.tick().await;
        // 4099 is prime, so that all nodes have their turn, in no order that shows.
        Some((node * 4099 % nodes, (pace, node + 1)))
    });
    let (client, shared) = (&client, &shared);
    let send = |node| async move {
        let is_stopped = lock(&shared.stopped).contains(&node);
        if !is_stopped && send(client, beat, node).await.is_ok() {
            shared.sent[beat as usize].fetch_add(1, Ordering::Relaxed);
        }
    };
    turns.for_each_concurrent(AT_ONCE, send).await;
}

async fn send(client: &Client, beat: Beat, node: usize) -> anyhow::Result<()> {
    let (name, now, params) = (node_name(node), Timestamp::now(), PatchParams::default());
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
