//! Nodes that fail while others are upgraded, and health-check, which has those remediated that stay so.
//!
//! Only on a control plane of our own: on somebody's cluster no kinds are installed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use console::Style;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use nodeward_api::NodeHealthCheck;
use nodeward_testkit::foreign::Foreign;
use nodeward_testkit::remediator::{Behavior, Family, Remediator, node_of};
use nodeward_testkit::{fleet, wait};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::follow::subject_of;
use super::simulated_mco::SimulatedMco;
use crate::demo::environment::{Environment, RUN};
use crate::demo::narrator::{Line, Narrator, Voice};
use crate::demo::outcome::left_after;
use crate::watch::{self, Watched};

/// They fail when the upgrade comes to this node: their own turn comes when they are long back.
pub const FAIL_WITH: &str = "node-03";

/// It comes back by itself before it counts as unhealthy.
pub const RECOVERS: &str = "node-07";

/// It stays away, and the first remediator gives up on it.
pub const STAYS_AWAY: &str = "node-10";

/// It was switched off for maintenance.
pub const IN_MAINTENANCE: &str = "node-12";

/// Where, and what.
pub const FAILURES: [(&str, &str); 3] = [
    (RECOVERS, "is back by itself before it counts as unhealthy"),
    (
        STAYS_AWAY,
        "stays away; the first remediator fails, the second one helps",
    ),
    (IN_MAINTENANCE, "is in maintenance, and is left alone"),
];

/// For how long a node may be away before it counts as unhealthy: much longer than the first of them is, on a busy machine
/// too.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(15);

/// After how long the first of them is back.
const AWAY_FOR: Duration = Duration::from_secs(4);

/// How long all may take to be as before.
const BACK_WITHIN: Duration = Duration::from_mins(2);

const NAMESPACE: &str = "remediators";

/// The remediators, in the order in which they are tried.
const CHAIN: [(Family, &str); 2] = [(Family::SelfNode, "reboot"), (Family::FenceAgents, "power-cycle")];

/// The objects that exist before health-check does.
pub async fn create(env: &Environment) -> Result<()> {
    let client = env.client();
    env.create_namespace(NAMESPACE).await?;
    for (family, template) in CHAIN {
        family.install(&client).await?;
        family.create_template(&client, NAMESPACE, template).await?;
    }
    Foreign::NodeMaintenance.install(&client).await
}

/// health-check's configuration: the upgrade's signal is per node.
pub fn config(env: &Environment) -> Value {
    json!({ "upgradeSignal": { "node": SimulatedMco::of(env).mark() } })
}

/// The failures, and who deals with them; all ends when it is dropped.
pub struct Failures {
    env_nodes: Api<Node>,
    ours: String,
    client: Client,
    narrator: Arc<Narrator>,
    nodes: [String; 3],
    /// Kinds of remediations, each with its node.
    seen: Watched<BTreeSet<(String, String)>>,
    _remediators: [Remediator; 2],
    _events: JoinSet<()>,
}

/// What came of them.
#[derive(Debug, Default)]
pub struct Remediated {
    /// Kinds of remediations, each with its node, as they were created.
    pub remediations: BTreeSet<(String, String)>,
    /// Nodes that are not Ready, and remediations that are left.
    pub leftovers: Vec<String>,
}

impl Failures {
    /// Creates the NodeHealthCheck, starts the remediators, and tells what happens.
    pub async fn prepare(env: &Environment, narrator: &Arc<Narrator>) -> Result<Self> {
        let client = env.client();
        let steps: Vec<Value> = CHAIN
            .iter()
            .zip(1..)
            .map(|((family, template), order)| {
                // The first fails at once: no step's time runs out here.
                json!({ "remediationTemplate": family.reference(NAMESPACE, template), "order": order, "timeout": "1m" })
            })
            .collect();
        let duration = format!("{}s", UNHEALTHY_AFTER.as_secs());
        let check = json!({
            "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck",
            "metadata": { "name": "workers" },
            "spec": {
                "selector": { "matchLabels": { RUN: &env.run } },
                "unhealthyConditions": [{ "type": "Ready", "status": "Unknown", "duration": duration }],
                "maxUnhealthy": "40%",
                "escalatingRemediations": steps,
            },
        });
        let checks: Api<NodeHealthCheck> = Api::all(client.clone());
        checks
            .create(&PostParams::default(), &serde_json::from_value(check)?)
            .await?;
        let remediators = [
            Remediator::start(&client, CHAIN[0].0, NAMESPACE, |_| {
                Behavior::FAILURE.after(Duration::from_secs(1))
            }),
            Remediator::start(&client, CHAIN[1].0, NAMESPACE, |_| {
                Behavior::POWER_CYCLE.after(Duration::from_secs(1))
            }),
        ];
        let mut seen = Watched::new(BTreeSet::new());
        for (family, _) in CHAIN {
            let kind = family.remediation().resource().kind;
            let remediations = family.remediation().api(&client, Some(NAMESPACE));
            seen = seen.follow(
                remediations,
                watcher::Config::default(),
                move |seen, one: DynamicObject| {
                    seen.insert((kind.clone(), node_of(&one)));
                },
            );
        }
        Ok(Self {
            env_nodes: Api::all(client.clone()),
            ours: env.ours(),
            client,
            narrator: Arc::clone(narrator),
            nodes: [RECOVERS, STAYS_AWAY, IN_MAINTENANCE].map(|node| env.named(node)),
            seen,
            _remediators: remediators,
            _events: tell_events(env, narrator),
        })
    }

    /// They fail now. What happens to them goes on in the background, and ends when all are back.
    pub async fn begin(&self) -> Result<JoinSet<Result<()>>> {
        let [recovers, stays_away, maintained] = self.nodes.clone();
        let reason = json!({ "spec": { "nodeName": maintained, "reason": "a new disk" } });
        Foreign::NodeMaintenance
            .put(&self.client, None, &maintained, reason)
            .await?;
        for node in &self.nodes {
            fleet::stop_kubelet(&self.client, node).await?;
        }
        for node in [&recovers, &stays_away] {
            let text = Line::plain("its heartbeats stop").look(Style::new().red());
            self.narrator.remark(Voice::Machine, node, text);
        }
        let text = "creates a NodeMaintenance, and switches the node off";
        self.narrator.remark(Voice::Admin, &maintained, Line::plain(text));
        let (nodes, client, narrator) = (self.env_nodes.clone(), self.client.clone(), Arc::clone(&self.narrator));
        let mut task = JoinSet::new();
        task.spawn(async move {
            until_ready_is(&nodes, &recovers, "Unknown").await?;
            tokio::time::sleep(AWAY_FOR).await;
            fleet::start_kubelet(&client, &recovers).await?;
            let text = Line::plain("its heartbeats are back by themselves");
            narrator.remark(Voice::Machine, &recovers, text);
            until_ready_is(&nodes, &recovers, "True").await?;
            until_ready_is(&nodes, &stays_away, "True").await?;
            fleet::start_kubelet(&client, &maintained).await?;
            until_ready_is(&nodes, &maintained, "True").await?;
            Foreign::NodeMaintenance.delete(&client, None, &maintained).await?;
            let text = "has switched the node on, and deletes its NodeMaintenance";
            narrator.remark(Voice::Admin, &maintained, Line::plain(text));
            Ok(())
        });
        Ok(task)
    }

    /// What came of them, once health-check has cleaned up.
    pub async fn gather(&self) -> Result<Remediated> {
        let what = "no remediation and no node that is not Ready";
        let leftovers = left_after(what, BACK_WITHIN, || self.leftovers()).await?;
        let short = |(kind, node): &(String, String)| (kind.clone(), self.narrator.short(node));
        Ok(Remediated {
            remediations: self.seen.read().iter().map(short).collect(),
            leftovers,
        })
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for (family, _) in CHAIN {
            let remediations = family.remediation().api(&self.client, Some(NAMESPACE));
            let all = remediations.list(&ListParams::default()).await?;
            left.extend(all.iter().map(|one| format!("remediation {}", one.name_any())));
        }
        let nodes = self.env_nodes.list(&ListParams::default().labels(&self.ours)).await?;
        let not_ready = nodes.iter().filter(|node| !fleet::is_ready(node));
        left.extend(not_ready.map(|node| format!("{} is not Ready", node.name_any())));
        Ok(left)
    }
}

/// Waits until the node's Ready has this status.
pub async fn until_ready_is(nodes: &Api<Node>, name: &str, status: &str) -> Result<()> {
    wait::until(format!("Ready of {name} to be {status}"), BACK_WITHIN, || async {
        let node = nodes.get(name).await?;
        let ready = fleet::ready_status(&node).context("no Ready condition")?;
        ensure!(ready == status, "it is {ready}");
        Ok(())
    })
    .await
}

/// Tells health-check's Events on nodes, until dropped.
pub fn tell_events(env: &Environment, narrator: &Arc<Narrator>) -> JoinSet<()> {
    let narrator = Arc::clone(narrator);
    let events: Api<Event> = Api::all(env.client());
    let mut told = BTreeSet::new();
    watch::follow(events, watcher::Config::default(), move |event| {
        let node = subject_of(&event, "health-check", "Node");
        let Some(node) = node.and_then(|node| node.name.as_deref()) else {
            return;
        };
        let note = event.note.clone().unwrap_or_default();
        // A series of the same Event is no news.
        if told.insert((node.to_owned(), note.clone())) {
            let reason = event.reason.as_deref().unwrap_or_default();
            narrator.tell(
                Voice::Health,
                node,
                [
                    Line::plain(reason).look(Style::new().yellow().bold()),
                    Line::plain(format!("  {note}")),
                ],
            );
        }
    })
}

impl Remediated {
    /// Why this is not as promised.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for (family, _) in CHAIN {
            let kind = family.remediation().resource().kind;
            if !self.remediations.contains(&(kind.clone(), STAYS_AWAY.to_owned())) {
                broken.push(format!("{STAYS_AWAY} got no {kind}"));
            }
        }
        broken.extend(self.others().map(|(kind, node)| format!("{node} got a {kind}")));
        broken.extend(self.leftovers.iter().map(|what| format!("left behind: {what}")));
        broken
    }

    /// Remediations of nodes that came back by themselves, or are in maintenance.
    pub fn others(&self) -> impl Iterator<Item = &(String, String)> {
        self.remediations.iter().filter(|(_, node)| node != STAYS_AWAY)
    }
}
