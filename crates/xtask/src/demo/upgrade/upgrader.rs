//! A small upgrader that drains as OpenShift's machine-config-operator does: it marks the node, cordons it, evicts until
//! nothing is left that it would evict, reboots, and uncordons.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use console::Style;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, EvictParams, ListParams};
use kube::{Client, ResourceExt};
use nodeward_testkit::{fleet, workload};
use tokio::task::JoinSet;

use super::failures::{self, Failures};
use super::simulated_mco::SimulatedMco;
use crate::demo::environment::Environment;
use crate::demo::narrator::{Line, Narrator, Voice};
use crate::demo::page::seconds;

/// How often evictions are tried again; `kubectl drain` waits 5 s.
const RETRY: Duration = Duration::from_secs(1);

/// After how long a silence it says that it still waits.
const REMINDS: Duration = Duration::from_secs(8);

pub struct Upgrader<'a> {
    env: &'a Environment,
    client: Client,
    mco: SimulatedMco,
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

impl<'a> Upgrader<'a> {
    pub fn new(env: &'a Environment, narrator: Arc<Narrator>) -> Self {
        Self {
            env,
            client: env.client(),
            mco: SimulatedMco::of(env),
            narrator,
        }
    }

    /// Upgrades the nodes one by one, while some of those fail whose turn is still to come; stops at the first that does not drain within `patience`.
    pub async fn upgrade_all(
        &self,
        nodes: &[String],
        patience: Duration,
        failures: Option<&Failures>,
    ) -> Result<Upgrade> {
        let mut upgrade = Upgrade::default();
        let mut failing: Option<JoinSet<Result<()>>> = None;
        for (index, node) in nodes.iter().enumerate() {
            self.narrator.heading(node, index + 1, nodes.len());
            if let Some(failures) = failures {
                let name = self.narrator.short(node);
                if name == failures::FAIL_WITH {
                    failing = Some(failures.begin().await?);
                } else if name == failures::RECOVERS
                    && let Some(mut story) = failing.take()
                {
                    // A node that is away is not upgraded.
                    while let Some(ended) = story.join_next().await {
                        ended??;
                    }
                }
            }
            self.narrator.progress(index, nodes.len(), &format!("draining {node}"));
            let began = Instant::now();
            self.mco.drain_begins(&self.client, node).await?;
            fleet::cordon(&self.client, node).await?;
            self.narrator
                .say(Voice::Upgrader, node, "cordons the node and evicts its pods");
            let left = self.evict_all(node, patience, &mut upgrade).await?;
            upgrade.longest_drain = upgrade.longest_drain.max(began.elapsed());
            if !left.is_empty() {
                let text = format!(
                    "gives up after {} s; still there: {}",
                    patience.as_secs(),
                    left.join(", ")
                );
                self.narrator.tell(
                    Voice::Upgrader,
                    node,
                    [Line::plain(text).look(Style::new().red().bold())],
                );
                upgrade.stuck = Some((self.narrator.short(node), left));
                return Ok(upgrade);
            }
            let text = format!("drained in {}; it reboots and is back", seconds(began.elapsed()));
            self.narrator
                .tell(Voice::Upgrader, node, [Line::plain(text).look(Style::new().green())]);
            self.end_drain(node).await?;
            upgrade.upgraded += 1;
            self.mco.upgraded(&self.client, upgrade.upgraded).await?;
        }
        self.narrator.progress(nodes.len(), nodes.len(), "all upgraded");
        Ok(upgrade)
    }

    async fn end_drain(&self, node: &str) -> Result<()> {
        self.mco.drained(&self.client, node).await?;
        fleet::reboot(&self.client, node).await?;
        fleet::uncordon(&self.client, node).await?;
        self.mco.back(&self.client, node).await
    }

    /// Evicts until nothing is left, or patience ends: then the pods that are left.
    async fn evict_all(&self, node: &str, patience: Duration, upgrade: &mut Upgrade) -> Result<Vec<String>> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let deadline = Instant::now() + patience;
        let mut refused_before = BTreeSet::new();
        loop {
            let left = pods
                .list(&on_node)
                .await?
                .items
                .into_iter()
                .filter(|pod| self.is_drained_off(pod));
            let left: Vec<Pod> = left.collect();
            if left.is_empty() || Instant::now() >= deadline {
                return Ok(left.iter().map(|pod| self.narrator.short(&full_name(pod))).collect());
            }
            for pod in left.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
                let namespaced: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
                match namespaced.evict(&pod.name_any(), &EvictParams::default()).await {
                    Ok(_) => upgrade.evicted += 1,
                    Err(kube::Error::Api(status)) if status.code == 429 => {
                        upgrade.refused += 1;
                        if refused_before.insert(pod.uid()) {
                            let text = format!("{} is not evicted: its budget has no room", full_name(pod));
                            self.narrator.say(Voice::Upgrader, node, &text);
                        }
                    }
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if self.narrator.silence() >= REMINDS {
                let names: Vec<String> = left.iter().map(full_name).collect();
                let text = format!("still waits for {}", names.join(", "));
                self.narrator
                    .tell(Voice::Upgrader, node, [Line::plain(text).look(Style::new().dim())]);
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Whether a drain evicts it: one of the demo's, not of a DaemonSet, and not one that has ended.
    fn is_drained_off(&self, pod: &Pod) -> bool {
        let is_ours = pod.namespace().is_some_and(|namespace| self.env.is_ours(&namespace));
        let of_daemon_set = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
        is_ours && !of_daemon_set && !matches!(workload::phase(pod), "Succeeded" | "Failed")
    }
}

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}
