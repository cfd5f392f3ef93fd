//! What the kubelets of a cluster send without any cause: lease renewals and status updates.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
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
    /// How many were sent, by [`Beat`].
    sent: Arc<[AtomicUsize; 2]>,
    /// Nodes that send none.
    stopped: Arc<Mutex<HashSet<usize>>>,
    _tasks: JoinSet<()>,
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
        let sent = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let stopped = Arc::default();
        let mut tasks = JoinSet::new();
        for beat in [Beat::Lease, Beat::Status] {
            let (sent, stopped) = (Arc::clone(&sent), Arc::clone(&stopped));
            tasks.spawn(send_all(client.clone(), nodes, beat, sent, stopped));
        }
        Self {
            nodes,
            began: Instant::now(),
            sent,
            stopped,
            _tasks: tasks,
        }
    }

    /// The node sends none from now on.
    pub fn stop(&self, node: usize) {
        lock(&self.stopped).insert(node);
    }

    /// The node sends them again.
    pub fn resume(&self, node: usize) {
        lock(&self.stopped).remove(&node);
    }

    /// What was sent, and what kubelets would have sent.
    pub fn text(&self) -> String {
        let rate = |beat: Beat| {
            let sent = count(self.sent[beat as usize].load(Ordering::Relaxed)) / self.began.elapsed().as_secs_f64();
            (sent, count(self.nodes) / beat.interval().as_secs_f64())
        };
        let ((leases, of), (statuses, of_statuses)) = (rate(Beat::Lease), rate(Beat::Status));
        format!("{leases:.0} of {of:.0} lease renewals and {statuses:.1} of {of_statuses:.1} status updates a second")
    }
}

fn lock(stopped: &Mutex<HashSet<usize>>) -> std::sync::MutexGuard<'_, HashSet<usize>> {
    stopped.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn send_all(
    client: Client,
    nodes: usize,
    beat: Beat,
    sent: Arc<[AtomicUsize; 2]>,
    stopped: Arc<Mutex<HashSet<usize>>>,
) {
    let mut pace = interval(beat.interval() / u32::try_from(nodes).unwrap_or(u32::MAX));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let turns = futures::stream::unfold((pace, 0), |(mut pace, node)| async move {
        pace.tick().await;
        // 4099 is prime, so that all nodes have their turn, in no order that shows.
        Some((node * 4099 % nodes, (pace, node + 1)))
    });
    let send = |node| {
        let (client, sent, stopped) = (&client, &sent, &stopped);
        async move {
            if lock(stopped).contains(&node) {
                return;
            }
            if send(client, beat, node).await.is_ok() {
                sent[beat as usize].fetch_add(1, Ordering::Relaxed);
            }
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
