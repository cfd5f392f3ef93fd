//! Makes nodes unhealthy and healthy, and sees when their remediations come and go.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use nodeward_api::NodeHealthCheck;
use nodeward_testkit::remediator::{self, Family};
use nodeward_testkit::wait;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::NAMESPACE;
use crate::bench::fleet::heartbeats::Heartbeats;
use crate::bench::fleet::nodes::conditions;
use crate::bench::fleet::size::node_name;
use crate::watch::Watched;

/// How long a remediation may take to come, or to go.
const WITHIN: Duration = Duration::from_mins(3);

/// How long a new kind may take to be served.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// What the watch of the remediations has told.
#[derive(Default)]
struct Seen {
    has_begun: bool,
    /// By their node: when they were last seen to come, and to go.
    remediations: HashMap<String, (Option<Instant>, Option<Instant>)>,
}

impl Seen {
    fn take(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Apply(remediation) | Event::InitApply(remediation) => {
                let (created, deleted) = self.remediations.entry(remediator::node_of(&remediation)).or_default();
                if created.is_none() || deleted.is_some() {
                    (*created, *deleted) = (Some(Instant::now()), None);
                }
            }
            Event::Delete(remediation) => {
                self.remediations
                    .entry(remediator::node_of(&remediation))
                    .or_default()
                    .1 = Some(Instant::now());
            }
            Event::InitDone => self.has_begun = true,
            Event::Init => {}
        }
    }
}

pub struct Meter {
    nodes: Api<Node>,
    heartbeats: Heartbeats,
    seen: Watched<Seen>,
}

impl Meter {
    pub async fn start(client: &Client, heartbeats: Heartbeats) -> Result<Self> {
        let remediations = Family::SelfNode.remediation().api(client, Some(NAMESPACE));
        let seen = Watched::new(Seen::default());
        let seen = seen.follow_events(remediations, watcher::Config::default(), Seen::take);
        let has_begun = |seen: &Seen| seen.has_begun.then_some(());
        seen.until("the watch of the remediations to begin", WITHIN, has_begun)
            .await?;
        Ok(Self {
            nodes: Api::all(client.clone()),
            heartbeats,
            seen,
        })
    }

    pub const fn heartbeats(&self) -> &Heartbeats {
        &self.heartbeats
    }

    /// The node's heartbeats have stopped, and it is Unknown; gives when the API server had answered.
    pub async fn fail(&self, node: usize) -> Result<Instant> {
        self.heartbeats.stop(node);
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let unknown = |kind: &str| {
            json!({
                "type": kind, "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.",
                "lastTransitionTime": now,
            })
        };
        let all = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(unknown);
        self.set_conditions(node, json!(all)).await
    }

    /// Its heartbeats are back; gives when the API server had answered.
    pub async fn recover(&self, node: usize) -> Result<Instant> {
        let answered = self.set_conditions(node, conditions(Timestamp::now())).await?;
        self.heartbeats.resume(node);
        Ok(answered)
    }

    async fn set_conditions(&self, node: usize, conditions: Value) -> Result<Instant> {
        let patch = Patch::Strategic(json!({ "status": { "conditions": conditions } }));
        self.nodes
            .patch_status(&node_name(node), &PatchParams::default(), &patch)
            .await?;
        Ok(Instant::now())
    }

    /// When the node's remediation was created.
    pub async fn created(&self, node: usize) -> Result<Instant> {
        // Not that of an earlier remediation, which is deleted.
        let is_there = |(created, deleted): &(Option<Instant>, Option<Instant>)| created.filter(|_| deleted.is_none());
        self.seen(node, "created", is_there).await
    }

    /// When the node's remediation was gone.
    pub async fn deleted(&self, node: usize) -> Result<Instant> {
        self.seen(node, "deleted", |(_, deleted)| *deleted).await
    }

    async fn seen(
        &self,
        node: usize,
        what: &str,
        when: impl Fn(&(Option<Instant>, Option<Instant>)) -> Option<Instant>,
    ) -> Result<Instant> {
        let name = node_name(node);
        let moment = |seen: &Seen| seen.remediations.get(&name).and_then(&when);
        let what = format!("the remediation of {name} to be {what}");
        self.seen.until(what, WITHIN, moment).await
    }
}

/// From one moment to another, in milliseconds; 0 where the second is not later.
pub fn millis(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1000.0
}

/// The kind NodeHealthCheck.
pub fn health_checks(client: &Client) -> Api<NodeHealthCheck> {
    Api::all(client.clone())
}

/// Creates it, as soon as its kind is served.
pub async fn create_health_check(client: &Client, check: &NodeHealthCheck) -> Result<()> {
    wait::until("to create a NodeHealthCheck", SERVED_WITHIN, || async {
        Ok(health_checks(client)
            .create(&PostParams::default(), check)
            .await
            .map(drop)?)
    })
    .await
}
