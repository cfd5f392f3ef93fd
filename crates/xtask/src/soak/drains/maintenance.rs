//! Nodes under maintenance, several at once: each is drained, rebooted and uncordoned, or given up after a while.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use nodeward_api::NodeDrain;
use nodeward_api::node_drain::{NodeDrainSpec, Phase, Requester};
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::{fleet, lock, reboot, unless_gone, unless_refused, wait};
use tokio::task::JoinSet;

use super::event::Drainer;

/// After so long whoever upgrades a node gives it up.
const PATIENCE: Duration = Duration::from_secs(40);

/// How long a node is away while it reboots.
const AWAY: Duration = Duration::from_secs(2);

/// What is under way.
pub struct Maintenance {
    client: Client,
    kubectl: Kubectl,
    under_way: tokio::sync::Mutex<JoinSet<()>>,
    counts: Arc<Mutex<Counts>>,
}

#[derive(Default)]
struct Counts {
    nodes: BTreeSet<String>,
    upgraded: usize,
    given_up: usize,
}

impl Maintenance {
    pub fn new(client: Client, kubectl: Kubectl) -> Self {
        Self {
            client,
            kubectl,
            under_way: tokio::sync::Mutex::default(),
            counts: Arc::default(),
        }
    }

    /// Begins it, unless it is under way; `reboots` is told when the node's reboot begins, and when the node is back.
    pub async fn begin(&self, node: String, by: Drainer, reboots: impl Fn(&str, bool) + Send + 'static) {
        if !lock(&self.counts).nodes.insert(node.clone()) {
            return;
        }
        let (client, kubectl, counts) = (self.client.clone(), self.kubectl.clone(), Arc::clone(&self.counts));
        self.under_way.lock().await.spawn(async move {
            let upgraded = upgrade(&client, &kubectl, &node, by, reboots).await.is_ok();
            let ended = give_back(&client, &node, upgraded).await.is_ok();
            let mut counts = lock(&counts);
            if upgraded && ended {
                counts.upgraded += 1;
            } else {
                counts.given_up += 1;
            }
            counts.nodes.remove(&node);
        });
    }

    /// Gives up all that is under way. The nodes stay as they are.
    pub async fn end_all(&self) {
        self.under_way.lock().await.shutdown().await;
        let mut counts = lock(&self.counts);
        counts.given_up += counts.nodes.len();
        counts.nodes.clear();
    }

    pub fn text(&self) -> String {
        let counts = lock(&self.counts);
        format!("{} nodes upgraded, {} given up", counts.upgraded, counts.given_up)
    }
}

/// # Errors
/// When the drain does not end in time, or the node fails meanwhile.
async fn upgrade(
    client: &Client,
    kubectl: &Kubectl,
    node: &str,
    by: Drainer,
    reboots: impl Fn(&str, bool),
) -> Result<()> {
    match by {
        Drainer::Kubectl => {
            let args = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data"];
            kubectl.run(args, PATIENCE).await?;
        }
        Drainer::NodeDrain => {
            let drains: Api<NodeDrain> = Api::all(client.clone());
            let requester = Requester {
                name: "soak".to_owned(),
                since: None,
            };
            let spec = NodeDrainSpec {
                node_name: node.to_owned(),
                requesters: vec![requester],
                ..NodeDrainSpec::default()
            };
            let created = drains.create(&PostParams::default(), &NodeDrain::new(node, spec)).await;
            unless_refused(created, &[409])?;
            wait::until(format!("{node} to be drained"), PATIENCE, || async {
                let status = drains.get(node).await?.status.context("no status")?;
                ensure!(status.phase == Some(Phase::Drained), "{:?}", status.phase);
                Ok(())
            })
            .await?;
        }
    }
    reboots(node, true);
    let rebooted = reboot::reboot(client, node, AWAY).await;
    reboots(node, false);
    rebooted.map(drop)
}

/// Uncordons it, which ends a drain that came to its end; one that did not is deleted.
async fn give_back(client: &Client, node: &str, upgraded: bool) -> Result<()> {
    if !upgraded {
        let drains: Api<NodeDrain> = Api::all(client.clone());
        unless_gone(drains.delete(node, &DeleteParams::default()).await)?;
    }
    unless_gone(fleet::uncordon(client, node).await)
}
