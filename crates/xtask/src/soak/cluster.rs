//! health-check's part: the nodes that fail, remediators that answer in many ways, and two replicas of the operator.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use nodeward_api::NodeHealthCheck;
use nodeward_api::node_health_check::{NodeHealthCheckStatus, Phase};
use nodeward_testkit::binaries::Profile;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::Operator;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::prometheus::Job;
use nodeward_testkit::remediator::{self, Behavior, Family, Remediator};
use nodeward_testkit::{ControlPlane, Options, binaries, bulk, lock, reboot, unless_gone, unless_refused, wait};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::event::Event;
use super::invariants::Invariants;
use super::replicas::Replicas;
use crate::bench::{create_health_check, health_checks};
use crate::install::Installation;

/// How many NodeHealthChecks there are.
pub const CHECKS: usize = 2;

/// How many templates there are.
pub const TEMPLATES: usize = 3;

/// The label by which nodes are selected.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// The label that excludes a node.
pub const EXCLUDED: &str = "remediation.medik8s.io/exclude-from-remediation";

/// The namespace of templates and remediations.
pub const NAMESPACE: &str = "remediators";

/// The remediators that are there.
pub const FAMILIES: [Family; 2] = [Family::SelfNode, Family::FenceAgents];

/// The templates: by which remediator, and their names.
const TEMPLATE_NAMES: [(Family, &str); TEMPLATES] = [
    (Family::SelfNode, "gentle"),
    (Family::SelfNode, "forceful"),
    (Family::FenceAgents, "power-off"),
];

/// The NodeHealthChecks in `objects/soak-checks.yaml`, each for the nodes of its zone.
const CHECK_NAMES: [&str; CHECKS] = ["escalates", "limited"];

/// The operators' own namespace.
pub const SYSTEM: &str = nodeward_api::DEFAULT_NAMESPACE;

const LEASES: &str = "medik8s-leases";

/// How long a silent node is waited for.
const GRACE: Duration = Duration::from_secs(14);

/// How long all may take to be as before, once everything is mended. A drain that is called off after its node was drained
/// keeps the node's lease until the kubelet has renewed its own five minutes later.
pub const CLEAN_WITHIN: Duration = Duration::from_mins(8);

pub struct SoakCluster {
    client: Client,
    nodes: usize,
    began: Instant,
    replicas: Replicas,
    pub invariants: Invariants,
    /// What happens later, of what has begun.
    later: Mutex<JoinSet<Result<()>>>,
    _remediators: Vec<Remediator>,
}

impl SoakCluster {
    pub async fn start(plane: &ControlPlane, nodes: usize, seed: u64) -> Result<Self> {
        let client = plane.client().await?;
        plane.namespace(NAMESPACE).await?;
        for family in FAMILIES {
            family.install(&client).await?;
        }
        let progress = Progress::begin(format!("{nodes} nodes"));
        fleet::create(&client, (0..nodes).map(node)).await?;
        progress.done("are Ready");

        let installation = installation("health-check", json!({})).await?;
        let replicas = Replicas::start(&installation, plane).await?;
        for template in 0..TEMPLATES {
            put_template(&client, template, 0).await?;
        }
        for check in checks()? {
            create_health_check(&client, &check).await?;
        }
        replicas.ready().await?;
        let remediators = FAMILIES.map(|family| {
            let tries = Arc::new(std::sync::Mutex::new(fastrand::Rng::with_seed(seed)));
            Remediator::start(&client, family, NAMESPACE, move |_| behavior(&mut lock(&tries)))
        });
        Ok(Self {
            invariants: Invariants::watch(&client),
            client,
            nodes,
            began: Instant::now(),
            replicas,
            later: Mutex::default(),
            _remediators: remediators.into(),
        })
    }

    pub fn job(&self) -> Job {
        self.replicas.job()
    }

    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    pub async fn let_happen(&self, event: Event) -> Result<()> {
        let client = self.client.clone();
        let happened = match event {
            Event::Silent(node) => fleet::stop_kubelet(&client, &name(node)).await,
            Event::NotReady(node) => fleet::set_ready(&client, &name(node), false).await,
            Event::Recovers(node) => recover(&client, &name(node)).await,
            Event::Flaps(node, time) => {
                unless_gone(fleet::set_ready(&client, &name(node), false).await)?;
                let recover = async move { unless_gone(recover(&client, &name(node)).await) };
                self.after(time, recover).await
            }
            Event::MassFailure(nodes) => {
                for node in nodes {
                    unless_gone(fleet::stop_kubelet(&client, &name(node)).await)?;
                }
                Ok(())
            }
            Event::Relabelled(node) => self.toggle(node, ZONE, Some(zone(node))).await,
            Event::Excluded(node) => self.toggle(node, EXCLUDED, Some("true")).await,
            Event::Deleted(node, time) => {
                let nodes: Api<Node> = Api::all(client.clone());
                unless_gone(nodes.delete(&name(node), &DeleteParams::default()).await)?;
                self.after(time, async move { create_again(&client, node).await }).await
            }
            Event::TemplateEdited(template) => {
                let edit = u64::try_from(self.age().as_millis()).unwrap_or_default();
                put_template(&client, template, edit).await
            }
            Event::TemplateDeleted(template, time) => {
                let (family, name) = TEMPLATE_NAMES[template];
                unless_gone(family.template().delete(&client, Some(NAMESPACE), name).await)?;
                let put_back = async move { put_template(&client, template, 0).await };
                self.after(time, put_back).await
            }
            Event::Paused(check, time) => {
                let check = CHECK_NAMES[check];
                pause(&client, check, json!(["soak"])).await?;
                self.after(time, async move { pause(&client, check, json!([])).await })
                    .await
            }
            Event::WritesFail(replica, fault, count) => {
                self.replicas.fail_writes(replica, fault, count);
                Ok(())
            }
            Event::WatchesBreak(replica) => {
                self.invariants.operators_are_blind();
                self.replicas.break_watches(replica);
                Ok(())
            }
            Event::Killed(replica) => self.replicas.kill(replica),
        };
        unless_gone(happened)
    }

    async fn after(&self, time: Duration, act: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
        self.later.lock().await.spawn(async move {
            tokio::time::sleep(time).await;
            act.await
        });
        Ok(())
    }

    async fn toggle(&self, node: usize, label: &str, value: Option<&str>) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let Some(found) = nodes.get_metadata_opt(&name(node)).await? else {
            return Ok(());
        };
        let value = value.filter(|_| !found.labels().contains_key(label));
        unless_gone(fleet::label(&self.client, &name(node), label, value).await)
    }

    /// All faults end: every node is there as it was made, its kubelet runs, nothing is paused or missing.
    pub async fn mend(&self) -> Result<()> {
        self.replicas.heal();
        let mut later = self.later.lock().await;
        while let Some(done) = later.join_next().await {
            done??;
        }
        for template in 0..TEMPLATES {
            put_template(&self.client, template, 0).await?;
        }
        for check in CHECK_NAMES {
            pause(&self.client, check, json!([])).await?;
        }
        let mended = (0..self.nodes).map(|number| async move {
            let node = name(number);
            create_again(&self.client, number).await?;
            fleet::label(&self.client, &node, ZONE, Some(zone(number))).await?;
            fleet::label(&self.client, &node, EXCLUDED, None).await?;
            recover(&self.client, &node).await
        });
        stream::iter(mended).buffer_unordered(8).try_collect().await
    }

    /// Waits until all is healthy, and nothing of any remediation is left.
    pub async fn nothing_is_left(&self) -> Result<()> {
        wait::until("nothing to be left of the remediations", CLEAN_WITHIN, || async {
            let nodes: Api<Node> = Api::all(self.client.clone());
            // Others' hosts do not fail.
            let ours = ListParams::default().labels(ZONE);
            let nodes = nodes.list(&ours).await?.items;
            let unhealthy = nodes.iter().filter(|node| !fleet::is_ready(node)).count();
            let there = nodes.len();
            ensure!(
                unhealthy == 0 && there == self.nodes,
                "{unhealthy} of {there} nodes are not Ready"
            );
            for family in FAMILIES {
                let left = names(&family.remediation().api(&self.client, Some(NAMESPACE))).await?;
                ensure!(left.is_empty(), "{:?} for {left:?}", family.remediation());
            }
            let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASES);
            let leases = names(&leases).await?;
            ensure!(leases.is_empty(), "leases {leases:?}");
            for check in CHECK_NAMES {
                let status = health_checks(&self.client).get(check).await?.status;
                is_at_rest(&status.unwrap_or_default()).context(check)?;
            }
            for operator in self.replicas.operators() {
                no_series(operator).await?;
            }
            Ok(())
        })
        .await
    }

    pub async fn end(&self) -> Result<()> {
        self.replicas.end().await
    }

    pub fn logs(&self) -> String {
        self.replicas.logs()
    }
}

/// The control plane of a soak.
pub async fn control_plane(scheduler: bool) -> Result<ControlPlane> {
    let progress = Progress::begin("control plane");
    let plane = ControlPlane::start(Options {
        scheduler,
        node_monitor_grace: GRACE,
        ..Options::default()
    })
    .await?;
    progress.done("runs on this machine");
    Ok(plane)
}

/// An operator of the soak's release of the chart.
pub async fn installation(operator: &'static str, config: Value) -> Result<Installation> {
    Ok(Installation {
        release: Release::new("nodeward", SYSTEM),
        operator,
        binary: tokio::task::spawn_blocking(|| binaries::operator(operator, Profile::Release)).await??,
        config,
    })
}

fn checks() -> Result<Vec<NodeHealthCheck>> {
    Ok(serde_yaml::from_str(include_str!("../../objects/soak-checks.yaml"))?)
}

fn is_at_rest(status: &NodeHealthCheckStatus) -> Result<()> {
    let unhealthy = &status.unhealthy_nodes;
    ensure!(unhealthy.is_empty(), "unhealthyNodes: {unhealthy:?}");
    let (phase, reason) = (status.phase, &status.reason);
    ensure!(phase == Some(Phase::Enabled), "phase {phase:?}: {reason}");
    let (observed, healthy) = (status.observed_nodes, status.healthy_nodes);
    let are_all = observed == healthy && observed.is_some_and(|observed| observed > 0);
    ensure!(are_all, "{healthy:?} of {observed:?} nodes are healthy");
    let storm = status.conditions.iter().find(|condition| condition.status == "True");
    ensure!(storm.is_none(), "condition {storm:?}");
    Ok(())
}

async fn names<K: Clone + Debug + DeserializeOwned>(api: &Api<K>) -> Result<Vec<String>> {
    let list = api.list_metadata(&ListParams::default()).await?;
    let objects = list.items.into_iter();
    Ok(objects.filter_map(|object| object.metadata.name).collect())
}

async fn no_series(operator: &Operator) -> Result<()> {
    let metrics = operator.metrics().await?;
    for name in [
        "nodehealthcheck_ongoing_remediation",
        "nodehealthcheck_old_remediation_cr",
    ] {
        let sum = metrics.sum(name, &[]);
        ensure!(sum == 0.0, "{name} is {sum}");
    }
    Ok(())
}

/// What a remediator does next.
fn behavior(rng: &mut fastrand::Rng) -> Behavior {
    let later = Duration::from_millis(rng.u64(..4000));
    match rng.u32(..100) {
        0..60 => Behavior::POWER_CYCLE.after(later),
        60..75 => Behavior::slow_boot(Duration::from_secs(rng.u64(1..8))),
        75..90 => Behavior::FAILURE.after(later),
        _ => Behavior::NOTHING,
    }
}

/// The name of a node that may fail.
pub fn name(node: usize) -> String {
    format!("node-{node:03}")
}

fn zone(node: usize) -> &'static str {
    CHECK_NAMES[node % CHECKS]
}

fn node(number: usize) -> NodeSpec {
    NodeSpec::worker(name(number)).label(ZONE, zone(number))
}

/// Its kubelet runs again, and starts the node's pods.
async fn recover(client: &Client, node: &str) -> Result<()> {
    fleet::boot_kubelet(client, node, Duration::ZERO).await?;
    reboot::restart_pods(client, node).await
}

async fn create_again(client: &Client, number: usize) -> Result<()> {
    unless_refused(bulk::create_one(client.clone(), node(number).build()?).await, &[409])
}

async fn put_template(client: &Client, template: usize, edit: u64) -> Result<()> {
    let (family, name) = TEMPLATE_NAMES[template];
    let body = json!({
        "metadata": { "annotations": { remediator::MULTIPLE_TEMPLATES: "true" } },
        "spec": { "template": { "spec": { "strategy": name, "edit": edit } } },
    });
    family.template().put(client, Some(NAMESPACE), name, body).await?;
    Ok(())
}

async fn pause(client: &Client, check: &str, requests: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "pauseRequests": requests } }));
    let checks = health_checks(client);
    checks.patch(check, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    #[test]
    fn checks_use_all_templates_and_zones() {
        let checks = checks().unwrap();
        let names: Vec<String> = checks.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, CHECK_NAMES);
        let mut templates = BTreeSet::new();
        for spec in checks.iter().map(|check| &check.spec) {
            let zone = spec.selector.clone().unwrap().match_labels.unwrap().remove(ZONE);
            assert!(zone.is_some_and(|zone| names.contains(&zone)));
            let steps = spec.escalating_remediations.iter().flatten();
            templates.extend(steps.map(|step| json!(step.remediation_template).to_string()));
            templates.extend(
                spec.remediation_template
                    .iter()
                    .map(|template| json!(template).to_string()),
            );
        }
        let known = TEMPLATE_NAMES.map(|(family, name)| family.reference(NAMESPACE, name));
        let known = known.map(|template| serde_json::from_value::<ObjectReference>(template).unwrap());
        assert_eq!(
            templates,
            known.iter().map(|template| json!(template).to_string()).collect()
        );
    }
}
