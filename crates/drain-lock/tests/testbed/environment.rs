//! Where one test takes place: a control plane of its own, for there is one ledger in a cluster, with nodes, applications
//! whose pods fit one node each, and drain-locks.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use nodeward_api::drain_ledger::DrainLedger;
use nodeward_api::node_drain::{NodeDrain, NodeDrainSpec, NodeDrainStatus, Phase, Requester};
use nodeward_api::reason::LockReason;
use nodeward_core::ledger::{Claim, Ledger};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::{Operator, OperatorSpec};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use nodeward_testkit::{ControlPlane, Options, Pool, PooledControlPlane, bulk};
use serde_json::{Value, json};

const COMPONENT: &str = "drain-lock";

/// The chart's release.
pub const RELEASE: &str = "nodeward";

/// Its ServiceAccount for drain-lock.
pub const ACCOUNT: &str = "nodeward-drain-lock";

/// Namespace of the operator.
pub const SYSTEM: &str = "nodeward-system";

/// Namespace of the applications.
pub const APPS: &str = "apps";

/// Each environment has a control plane of its own while it lasts: no more of them at once than the machine bears.
static PLANES: Pool = Pool::new(4);

/// Where one test takes place.
pub struct Environment {
    pub client: Client,
    pub plane: PooledControlPlane,
}

pub struct Lock {
    operator: Operator,
}

impl Deref for Lock {
    type Target = Operator;

    fn deref(&self) -> &Operator {
        &self.operator
    }
}

impl Lock {
    /// One that was started, whether it is ready or not.
    pub fn of(operator: Operator) -> Self {
        Self { operator }
    }

    /// Ends it as a kubelet does, and checks what holds in every test.
    pub async fn end(&self) -> Result<()> {
        let status = self.stop(secs(30)).await?;
        let tail = self.process().log_tail(25);
        ensure!(status.success(), "it ended with {status}:\n{tail}");
        let log = self.log();
        ensure!(!log.contains("panicked"), "it has panicked:\n{tail}");
        if let Some(line) = log.lines().find(|line| is_forbidden(line)) {
            anyhow::bail!("the chart does not grant what it needs: {line}");
        }
        Ok(())
    }
}

/// What a test that fails shows of it.
const LOG_LINES: usize = 60;

impl Drop for Lock {
    fn drop(&mut self) {
        println!(
            "--- {}:\n{}",
            self.operator.process().name(),
            self.operator.process().log_tail(LOG_LINES)
        );
    }
}

impl Environment {
    /// A new environment with these workers.
    pub async fn new(nodes: &[&str]) -> Result<Self> {
        // A machine that is busy with many control planes must not make a node look silent.
        Self::with_options(nodes, Options::patient()).await
    }

    /// The same on a control plane that is set up so.
    pub async fn with_options(nodes: &[&str], options: Options) -> Result<Self> {
        let prepare = async |plane: &ControlPlane| {
            install(plane, &plane.client().await?).await?;
            plane.namespace(APPS).await
        };
        let plane = PLANES.get(options, prepare).await?;
        let client = plane.client().await?;
        fleet::create(&client, nodes.iter().map(|node| NodeSpec::worker(*node))).await?;
        Ok(Self { client, plane })
    }

    /// Starts a drain-lock, and waits until it is ready.
    pub async fn start(&self, config: Value) -> Result<Lock> {
        self.run(spec(&config)).await
    }

    /// Starts `spec`, and waits until it is ready.
    pub async fn run(&self, spec: OperatorSpec) -> Result<Lock> {
        let operator = spec.start(&self.plane).await?;
        operator.ready(secs(60)).await?;
        Ok(Lock { operator })
    }

    /// An application with one pod on each of the nodes, which fits no other, and a budget of one.
    ///
    /// It is a Deployment: where a pod of a StatefulSet is back before the disruption controller has seen it go, that
    /// counts it as on its way out for two minutes, by its name. On a busy machine that comes to pass.
    pub async fn add_pinned(&self, app: &str, nodes: &[&str]) -> Result<()> {
        self.add_deployment(app, nodes.len(), pinned(app, nodes)).await
    }

    /// A pod on each of these nodes that fits no other, even where that is empty, and a budget of one over all of them.
    pub async fn add_fixed(&self, app: &str, nodes: &[&str]) -> Result<()> {
        for node in nodes {
            let template = PodTemplate::new().node_selector("kubernetes.io/hostname", node);
            let name = format!("{app}-{node}");
            bulk::create(
                &self.client,
                [template.label("budget", app).deployment(APPS, &name, 1)?],
            )
            .await?;
        }
        bulk::create(&self.client, [fixed_budget(app)?]).await?;
        self.counts_healthy(app, nodes.len()).await
    }

    /// A Deployment with so many pods of this template, wherever they fit, and a budget of one.
    pub async fn add_deployment(&self, app: &str, pods: usize, template: PodTemplate) -> Result<()> {
        let replicas = u32::try_from(pods)?;
        bulk::create(&self.client, [template.deployment(APPS, app, replicas)?]).await?;
        self.cover(app, pods).await
    }

    /// A StatefulSet with so many pods of this template, wherever they fit, and a budget of one.
    pub async fn add_app(&self, app: &str, pods: usize, template: PodTemplate) -> Result<()> {
        let replicas = u32::try_from(pods)?;
        bulk::create(&self.client, [template.stateful_set(APPS, app, replicas)?]).await?;
        self.cover(app, pods).await
    }

    /// A budget of one for an application, once all of its pods are Ready.
    async fn cover(&self, app: &str, pods: usize) -> Result<()> {
        bulk::create(&self.client, [Budget::max_unavailable(APPS, app, 1).of(app).build()?]).await?;
        workload::ready_pods(&self.client, APPS, app, pods, secs(120)).await?;
        // The controller's count may lag behind the pods, and a watch that begins now would see too few healthy ones.
        self.counts_healthy(app, pods).await
    }

    /// Waits until the budget counts so many healthy pods.
    pub async fn counts_healthy(&self, app: &str, pods: usize) -> Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), APPS);
        wait::until(
            format!("budget {app} to count {pods} healthy pods"),
            secs(60),
            || async {
                let status = budgets.get(app).await?.status;
                let healthy = status.as_ref().map(|status| status.current_healthy);
                ensure!(healthy == Some(i32::try_from(pods)?), "{status:?}");
                Ok(())
            },
        )
        .await
    }

    /// Waits until the drain-lock of this identity leads: one that is ready may not have been elected yet.
    pub async fn leads(&self, identity: &str) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), SYSTEM);
        wait::until(format!("{identity} to lead"), secs(60), || async {
            let holder = leases.get(COMPONENT).await?.spec.and_then(|spec| spec.holder_identity);
            ensure!(holder.as_deref() == Some(identity), "{holder:?}");
            Ok(())
        })
        .await
    }

    pub fn drains(&self) -> Api<NodeDrain> {
        Api::all(self.client.clone())
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), APPS)
    }

    /// Asks for the drain of a node; `changes` of its spec come on top.
    pub async fn drain(&self, node: &str, changes: Value) -> Result<NodeDrain> {
        create_drain(&self.client, node, changes).await
    }

    /// Waits until the drain's status is as `is_so` has it.
    pub async fn status_that(
        &self,
        node: &str,
        what: &str,
        deadline: Duration,
        is_so: impl Fn(&NodeDrainStatus) -> bool,
    ) -> Result<NodeDrainStatus> {
        let drains = self.drains();
        wait::until(format!("the drain of {node} {what}"), deadline, || async {
            let status = drains.get(node).await?.status.context("no status")?;
            ensure!(is_so(&status), "{}", serde_json::to_string(&status)?);
            Ok(status)
        })
        .await
    }

    /// Waits until the drain has a ticket: those that are asked for at once queue in no certain order.
    pub async fn queued(&self, node: &str) -> Result<()> {
        wait::until(format!("{node} to have a ticket"), secs(60), || async {
            ensure!(self.claim(node).await?.is_some(), "it has none");
            Ok(())
        })
        .await
    }

    /// Waits until the drain is in this phase.
    pub async fn phase(&self, node: &str, phase: Phase, deadline: Duration) -> Result<NodeDrainStatus> {
        self.status_that(node, &format!("to be {phase}"), deadline, |status| {
            status.phase == Some(phase)
        })
        .await
    }

    /// Waits until the NodeDrain is gone, and no claim of its node is left.
    pub async fn released(&self, node: &str, deadline: Duration) -> Result<()> {
        let drains = self.drains();
        wait::until(format!("the drain of {node} to be released"), deadline, || async {
            if let Some(mut drain) = drains.get_opt(node).await? {
                drain.metadata.managed_fields = None;
                let drain = serde_json::to_string(&drain)?;
                anyhow::bail!("{drain}; {}", unready(&self.client).await);
            }
            let claim = self.claim(node).await?;
            ensure!(claim.is_none(), "{claim:?}");
            Ok(())
        })
        .await
    }

    /// The ledger, if there is one.
    pub async fn ledger(&self) -> Result<Option<DrainLedger>> {
        let ledgers: Api<DrainLedger> = Api::all(self.client.clone());
        Ok(ledgers.get_opt(nodeward_api::drain_ledger::NAME).await?)
    }

    pub async fn claim(&self, node: &str) -> Result<Option<Claim>> {
        let Some(ledger) = self.ledger().await? else {
            return Ok(None);
        };
        let ledger = Ledger::try_from(&ledger.spec).map_err(Error::msg)?;
        Ok(ledger.claims.into_iter().find(|claim| claim.node == node))
    }

    pub async fn uncordon(&self, node: &str) -> Result<()> {
        fleet::uncordon(&self.client, node).await
    }

    pub async fn delete_drain(&self, node: &str) -> Result<()> {
        self.drains().delete(node, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Changes a NodeDrain.
    pub async fn patch_drain(&self, node: &str, patch: Value) -> Result<()> {
        let params = PatchParams::default();
        self.drains().patch(node, &params, &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Pods of the applications on the node.
    pub async fn pods_on(&self, node: &str) -> Result<Vec<Pod>> {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        Ok(self.pods().list(&on_node).await?.items)
    }

    /// Deletes a worker as this client's user, and creates another one of its name, on which so many pods are Ready.
    pub async fn replace_worker(&self, client: &Client, node: &str, pods: usize) -> Result<()> {
        let nodes: Api<Node> = Api::all(client.clone());
        nodes.delete(node, &DeleteParams::default()).await?;
        self.add_worker(node, pods).await
    }

    /// Creates a worker, and waits until so many pods are Ready on it.
    ///
    /// A scheduler to which the node's creation comes while it tries a pod may not try that pod again for five minutes,
    /// unless the node changes once more. A kubelet changes its node several times as it starts; here a label does.
    pub async fn add_worker(&self, node: &str, pods: usize) -> Result<()> {
        fleet::create(&self.client, [NodeSpec::worker(node)]).await?;
        wait::until(format!("{pods} Ready pods on {node}"), secs(60), || async {
            let bound = self.pods_on(node).await?;
            if bound.len() < pods {
                let change =
                    json!({ "metadata": { "labels": { "changed": Timestamp::now().as_millisecond().to_string() } } });
                let patch = Patch::Merge(change);
                self.nodes().patch(node, &PatchParams::default(), &patch).await?;
            }
            let ready = bound.iter().filter(|pod| workload::is_ready(pod)).count();
            ensure!(ready >= pods, "{} are bound, {ready} are Ready", bound.len());
            Ok(())
        })
        .await
    }

    /// Watches from now on that no budget ever has fewer healthy pods than it demands.
    pub fn watch_budgets(&self) -> BudgetWatch {
        BudgetWatch::begin(self.client.clone())
    }

    /// Ends drain-locks, and with them the test.
    pub async fn end<const N: usize>(self, locks: [Lock; N]) -> Result<()> {
        for lock in &locks {
            lock.end().await?;
        }
        Ok(())
    }

    /// Waits for an Event with this reason that is about an object of this name, and answers with its text.
    pub async fn event(&self, about: &str, reason: LockReason, deadline: Duration) -> Result<String> {
        let events: Api<Event> = Api::all(self.client.clone());
        let of_reason = ListParams::default().fields(&format!("reason={reason}"));
        wait::until(format!("an Event {reason} about {about}"), deadline, || async {
            let events = events.list(&of_reason).await?;
            let is_meant =
                |event: &&Event| event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(about);
            let event = events.items.iter().find(is_meant).context("there is none")?;
            event.note.clone().context("it says nothing")
        })
        .await
    }
}

/// As the API server says it of a right that is missing.
fn is_forbidden(line: &str) -> bool {
    line.to_lowercase().contains("forbidden") && line.contains("cannot")
}

/// A drain-lock with this configuration, to be started.
pub fn spec(config: &Value) -> OperatorSpec {
    let mut config = config.clone();
    // As the chart has it where the leases' namespace does not exist.
    if config["medik8sLease"].is_null() {
        config["medik8sLease"] = json!({ "enabled": false });
    }
    OperatorSpec::new(COMPONENT, SYSTEM, ACCOUNT)
        .binary(env!("CARGO_BIN_EXE_drain-lock"))
        .config(&serde_yaml::to_string(&config).expect("a configuration is YAML"))
        .arg("--webhook-bind=127.0.0.1:0")
}

/// Asks for the drain of a node.
pub async fn create_drain(client: &Client, node: &str, changes: Value) -> Result<NodeDrain> {
    let mut drain = serde_json::to_value(NodeDrain::new(
        node,
        NodeDrainSpec {
            node_name: node.to_owned(),
            requesters: vec![Requester {
                name: "test".to_owned(),
                since: None,
            }],
            ..NodeDrainSpec::default()
        },
    ))?;
    for (key, value) in changes.as_object().into_iter().flatten() {
        drain["spec"][key] = value.clone();
    }
    // As a person sends it: the type would mend a value that the API server is to refuse.
    let drains: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<NodeDrain>(&()));
    let made = drains
        .create(&PostParams::default(), &serde_json::from_value(drain)?)
        .await?;
    Ok(made.try_parse()?)
}

/// Installs the chart: the kinds, and a ServiceAccount that may do what drain-lock does and nothing more.
pub async fn install(plane: &ControlPlane, client: &Client) -> Result<()> {
    plane.namespace(SYSTEM).await?;
    grant(plane, json!({})).await?;
    wait::until("the kinds to be served", secs(60), || async {
        let drains: Api<NodeDrain> = Api::all(client.clone());
        let ledgers: Api<DrainLedger> = Api::all(client.clone());
        let holds: Api<nodeward_api::DisruptionHold> = Api::all(client.clone());
        drains.list(&ListParams::default()).await?;
        ledgers.list(&ListParams::default()).await?;
        holds.list(&ListParams::default()).await?;
        Ok(())
    })
    .await
}

/// Installs or upgrades the chart with these values of drain-lock's.
pub async fn grant(plane: &ControlPlane, values: Value) -> Result<()> {
    let mut all = json!({ "enabled": true, "deployment": { "enabled": false } });
    for (field, value) in values.as_object().into_iter().flatten() {
        all[field] = value.clone();
    }
    let values = json!({ "drainKeeper": { "enabled": false }, "drainLock": all });
    Release::new(RELEASE, SYSTEM).values(values).install(plane).await
}

/// The budget of [`Environment::add_fixed`].
pub fn fixed_budget(app: &str) -> Result<PodDisruptionBudget> {
    let pods = json!({ "matchLabels": { "budget": app } });
    Budget::max_unavailable(APPS, app, 1).selector(pods).build()
}

/// A pod of this application that fits these nodes alone, one a node.
pub fn pinned(app: &str, nodes: &[&str]) -> PodTemplate {
    PodTemplate::new().pinned(app, nodes)
}

/// The pods that are not Ready, and the nodes: what explains a violated budget, and a drain that does not end.
async fn unready(client: &Client) -> String {
    let pods: Api<Pod> = Api::namespaced(client.clone(), APPS);
    let nodes: Api<Node> = Api::all(client.clone());
    let (Ok(pods), Ok(nodes)) = (
        pods.list(&ListParams::default()).await,
        nodes.list(&ListParams::default()).await,
    ) else {
        return "nobody could look".to_owned();
    };
    let pods = pods.iter().filter(|pod| !workload::is_ready(pod)).map(|pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let said: Vec<&str> = conditions
            .filter_map(|condition| condition.message.as_deref())
            .collect();
        format!("{} on {} {said:?}", pod.name_any(), node.unwrap_or("no node"))
    });
    let is_ready = |node: &&Node| {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let nodes = nodes.iter().filter(|node| !is_ready(node)).map(ResourceExt::name_any);
    let (pods, nodes): (Vec<_>, Vec<_>) = (pods.collect(), nodes.collect());
    format!("pods that are not ready {pods:?}, nodes {nodes:?}")
}

pub struct BudgetWatch {
    task: tokio::task::JoinHandle<()>,
    worst: Arc<Mutex<BTreeMap<String, String>>>,
    looks: Arc<Mutex<usize>>,
}

impl BudgetWatch {
    fn begin(client: Client) -> Self {
        let worst: Arc<Mutex<BTreeMap<String, String>>> = Arc::default();
        let looks: Arc<Mutex<usize>> = Arc::default();
        let (seen, counted) = (Arc::clone(&worst), Arc::clone(&looks));
        let task = tokio::spawn(async move {
            let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), APPS);
            let changes = watcher(budgets, watcher::Config::default()).default_backoff();
            let mut changes = pin!(changes.applied_objects());
            // One that is below its minimum from the beginning is not violated unless it falls further.
            let mut last: BTreeMap<String, i32> = BTreeMap::new();
            // The watcher goes on after an error.
            while let Some(change) = changes.next().await {
                let Ok(budget) = change else { continue };
                *counted.lock().expect("unpoisoned") += 1;
                let Some(status) = budget.status.clone() else { continue };
                let before = last.insert(budget.name_any(), status.current_healthy);
                let has_fallen = before.is_some_and(|before| status.current_healthy < before);
                if has_fallen && status.current_healthy < status.desired_healthy && status.expected_pods > 0 {
                    let text = format!(
                        "{} of {} healthy, {} demanded, at {}; disrupted {:?}; {}",
                        status.current_healthy,
                        status.expected_pods,
                        status.desired_healthy,
                        Timestamp::now(),
                        status.disrupted_pods.unwrap_or_default().keys(),
                        unready(&client).await,
                    );
                    seen.lock().expect("unpoisoned").insert(budget.name_any(), text);
                }
            }
        });
        Self { task, worst, looks }
    }

    /// What was seen: no violation.
    pub fn none_was_violated(self) -> Result<()> {
        self.task.abort();
        let worst = self.worst.lock().expect("unpoisoned");
        ensure!(*self.looks.lock().expect("unpoisoned") > 0, "nobody looked");
        ensure!(worst.is_empty(), "{worst:?}");
        Ok(())
    }
}
