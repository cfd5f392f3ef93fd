//! In place of a kubelet for the pods of OSDs: a pod that is bound to its node starts its OSD, one that is deleted ends when its
//! OSD has stopped in order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::{RwLock, watch};
use tokio::task::JoinSet;

use super::OSD_ID;
use crate::ceph::Ceph;
use crate::{unless_refused, workload};

/// Before what failed is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Follows the pods until it is dropped.
pub(super) struct OsdPods {
    _tasks: JoinSet<()>,
}

impl OsdPods {
    /// OSDs that run already go on.
    pub(super) fn follow(client: Client, namespace: &str, ceph: &Arc<Ceph>, stops: &Arc<RwLock<()>>) -> Self {
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let (seen, _) = watch::channel(Vec::new());
        let mut tasks = JoinSet::new();
        for id in 0..ceph.options().osds() {
            let osd = Osd {
                id,
                pods: pods.clone(),
                ceph: Arc::clone(ceph),
                stops: Arc::clone(stops),
            };
            tasks.spawn(osd.follow(seen.subscribe()));
        }
        tasks.spawn(observe(pods, seen));
        Self { _tasks: tasks }
    }
}

/// Tells of all OSDs' pods whenever one has changed.
async fn observe(pods: Api<Pod>, seen: watch::Sender<Vec<Arc<Pod>>>) {
    let (all, writer) = reflector::store();
    let events = watcher(pods, watcher::Config::default().labels("app=rook-ceph-osd"));
    let mut events = Box::pin(events.default_backoff().reflect(writer));
    while events.next().await.is_some() {
        seen.send_replace(all.state());
    }
}

struct Osd {
    id: usize,
    pods: Api<Pod>,
    ceph: Arc<Ceph>,
    /// Whoever delays stops holds it for reading.
    stops: Arc<RwLock<()>>,
}

impl Osd {
    async fn follow(self, mut seen: watch::Receiver<Vec<Arc<Pod>>>) {
        let id = self.id.to_string();
        // Before its first pod it is not for us to stop.
        let mut had_pod = false;
        loop {
            let mut pods = seen.borrow_and_update().clone();
            pods.retain(|pod| pod.labels().get(OSD_ID) == Some(&id));
            had_pod |= !pods.is_empty();
            if had_pod && let Err(error) = self.follow_pods(&pods).await {
                eprintln!("the testbed's OSD {id}: {error:#}");
                tokio::time::sleep(RETRY_AFTER).await;
                continue;
            }
            if seen.changed().await.is_err() {
                return;
            }
        }
    }

    async fn follow_pods(&self, pods: &[Arc<Pod>]) -> Result<()> {
        let is_bound = |pod: &&Arc<Pod>| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let (ending, live): (Vec<_>, Vec<_>) = pods
            .iter()
            .filter(is_bound)
            .partition(|pod| pod.metadata.deletion_timestamp.is_some());
        if (live.is_empty() || !ending.is_empty()) && self.ceph.osd(self.id).is_running() {
            drop(self.stops.write().await);
            self.ceph.stop_osd(self.id).await?;
        }
        for pod in ending {
            let now = DeleteParams::default().grace_period(0).preconditions(Preconditions {
                uid: pod.uid(),
                resource_version: None,
            });
            unless_refused(self.pods.delete(&pod.name_any(), &now).await, &[404, 409])?;
        }
        match live.first() {
            // One that has crashed stays so until its pod goes.
            Some(pod) if workload::phase(pod) == "Pending" => self.start(pod).await,
            _ => Ok(()),
        }
    }

    async fn start(&self, pod: &Pod) -> Result<()> {
        if !self.ceph.osd(self.id).is_running() {
            self.ceph.start_osd(self.id)?;
        }
        let now = Timestamp::now();
        let conditions = ["Initialized", "ContainersReady", "Ready"]
            .map(|type_| json!({"type": type_, "status": "True", "lastTransitionTime": now}));
        let container = json!({
            "name": "osd", "image": "quay.io/ceph/ceph:v16.2.15", "imageID": "", "restartCount": 0,
            "ready": true, "started": true, "state": {"running": {"startedAt": now}},
        });
        let status = json!({
            "phase": "Running", "startTime": now, "conditions": conditions, "containerStatuses": [container],
        });
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.uid()}, "status": status}));
        let name = pod.name_any();
        let patched = self.pods.patch_status(&name, &PatchParams::default(), &patch).await;
        unless_refused(patched, &[404, 409])
    }
}
