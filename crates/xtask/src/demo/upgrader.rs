//! A small upgrader that drains as OpenShift's machine-config-operator does: it marks the node, cordons it, evicts until
//! nothing is left that it would evict, reboots, and uncordons.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, EvictParams, ListParams};
use kube::{Client, ResourceExt};
use nodeward_testkit::{fleet, workload};

use super::narrator::{Narrator, Voice};
use super::scenario;

const DESIRED: &str = "machineconfiguration.openshift.io/desiredDrain";
const APPLIED: &str = "machineconfiguration.openshift.io/lastAppliedDrain";

/// How often evictions are tried again; `kubectl drain` waits 5 s.
const RETRY: Duration = Duration::from_secs(1);

/// The upgrader.
pub struct Upgrader {
    client: Client,
    narrator: Arc<Narrator>,
}

/// What came of an upgrade.
#[derive(Debug, Default)]
pub struct Upgrade {
    /// Nodes that were upgraded.
    pub upgraded: usize,
    /// The node that it got stuck on, and the pods that were left there.
    pub stuck: Option<(String, Vec<String>)>,
    /// Evictions that were accepted.
    pub evicted: usize,
    /// Evictions that a budget refused.
    pub refused: usize,
    /// The longest time that a node took to drain.
    pub longest_drain: Duration,
}

impl Upgrader {
    pub fn new(client: Client, narrator: Arc<Narrator>) -> Self {
        Self { client, narrator }
    }

    /// Upgrades the nodes one by one; stops at the first that does not drain within `patience`.
    pub async fn upgrade_all(&self, nodes: &[String], patience: Duration) -> Result<Upgrade> {
        let mut upgrade = Upgrade::default();
        for (index, node) in nodes.iter().enumerate() {
            self.narrator.progress(index, nodes.len(), &format!("draining {node}"));
            let began = Instant::now();
            self.start_drain(node).await?;
            let left = self.evict_all(node, patience, &mut upgrade).await?;
            upgrade.longest_drain = upgrade.longest_drain.max(began.elapsed());
            if !left.is_empty() {
                let text = format!("gives up after {} s: {}", patience.as_secs(), left.join(", "));
                self.narrator.say(Voice::Upgrader, node, &text);
                upgrade.stuck = Some((node.clone(), left));
                return Ok(upgrade);
            }
            let text = format!("drained in {:.1} s, reboots and is back", began.elapsed().as_secs_f32());
            self.narrator.say(Voice::Upgrader, node, &text);
            self.end_drain(node).await?;
            upgrade.upgraded += 1;
            scenario::set_pool(&self.client, upgrade.upgraded).await?;
        }
        self.narrator.progress(nodes.len(), nodes.len(), "all upgraded");
        Ok(upgrade)
    }

    async fn start_drain(&self, node: &str) -> Result<()> {
        fleet::annotate(&self.client, node, APPLIED, Some("uncordon-rendered-worker-1")).await?;
        fleet::annotate(&self.client, node, DESIRED, Some("drain-rendered-worker-2")).await?;
        fleet::cordon(&self.client, node).await?;
        self.narrator.say(Voice::Upgrader, node, "cordoned, drain begins");
        Ok(())
    }

    async fn end_drain(&self, node: &str) -> Result<()> {
        fleet::annotate(&self.client, node, APPLIED, Some("drain-rendered-worker-2")).await?;
        fleet::reboot(&self.client, node).await?;
        fleet::annotate(&self.client, node, DESIRED, Some("uncordon-rendered-worker-2")).await?;
        fleet::uncordon(&self.client, node).await?;
        fleet::annotate(&self.client, node, APPLIED, Some("uncordon-rendered-worker-2")).await
    }

    /// Evicts until nothing is left, or patience ends: then the pods that are left.
    async fn evict_all(&self, node: &str, patience: Duration, upgrade: &mut Upgrade) -> Result<Vec<String>> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let deadline = Instant::now() + patience;
        let mut refused_before = BTreeSet::new();
        loop {
            let left: Vec<Pod> = pods.list(&on_node).await?.items.into_iter().filter(is_drained_off).collect();
            if left.is_empty() || Instant::now() >= deadline {
                return Ok(left.iter().map(full_name).collect());
            }
            for pod in left.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
                let namespaced: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
                match namespaced.evict(&pod.name_any(), &EvictParams::default()).await {
                    Ok(_) => upgrade.evicted += 1,
                    Err(kube::Error::Api(status)) if status.code == 429 => {
                        upgrade.refused += 1;
                        if refused_before.insert(pod.uid()) {
                            let text = format!("eviction of {} is refused by its budget", full_name(pod));
                            self.narrator.say(Voice::Upgrader, node, &text);
                        }
                    }
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    Err(error) => return Err(error.into()),
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Whether a drain evicts it: not one of a DaemonSet, and not one that has ended.
fn is_drained_off(pod: &Pod) -> bool {
    let of_daemon_set = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
    !of_daemon_set && !matches!(workload::phase(pod), "Succeeded" | "Failed")
}

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}
