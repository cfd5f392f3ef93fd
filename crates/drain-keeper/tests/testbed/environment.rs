//! Where one test takes place: nodes that only its own drain-keeper looks after, a namespace for pods, and a release of
//! the chart.

use std::collections::BTreeSet;
use std::ops::Deref;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use nodeward_api::annotation::DRAIN_CLOCK;
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_api::drain_clock::DrainClock;
use nodeward_testkit::audit::{Mark, Requests};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::{Operator, OperatorSpec};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use nodeward_testkit::{ControlPlane, bulk, names};
use serde_json::{Value, json};

/// The label by which a drain-keeper finds the nodes of its own test.
pub const ENVIRONMENT: &str = "test.nodeward.dev/environment";

const COMPONENT: &str = "drain-keeper";

/// Where one test takes place.
pub struct Environment<'a> {
    pub plane: &'a ControlPlane,
    pub client: Client,
    /// The environment's name, and its namespace.
    pub name: String,
    /// The operator's namespace.
    pub system: String,
    pub release: Release,
    service_account: String,
    began: Mark,
}

pub struct Keeper {
    operator: Operator,
}

impl Deref for Keeper {
    type Target = Operator;

    fn deref(&self) -> &Operator {
        &self.operator
    }
}

impl Environment<'static> {
    /// A new environment on the control plane that all tests share.
    pub async fn new() -> Result<Self> {
        Environment::with(ControlPlane::shared().await, json!({})).await
    }
}

impl<'a> Environment<'a> {
    /// A new environment, with these values of the chart's block `drainKeeper`.
    pub async fn with(plane: &'a ControlPlane, values: Value) -> Result<Self> {
        let client = plane.client().await?;
        let name = names::unique("env");
        let system = format!("{name}-system");
        plane.namespace(&name).await?;
        let release = Release::new(&name, &system).values(json!({ "drainKeeper": merged(chart_values(), &values) }));
        release.install(plane).await?;
        Ok(Self {
            service_account: format!("{name}-nodeward-drain-keeper"),
            began: plane.audit().mark()?,
            plane,
            client,
            name,
            system,
            release,
        })
    }

    pub fn node_name(&self, node: &str) -> String {
        format!("{}-{node}", self.name)
    }

    /// A worker of this environment, to be created.
    pub fn worker(&self, node: &str) -> NodeSpec {
        NodeSpec::worker(self.node_name(node)).label(ENVIRONMENT, &self.name)
    }

    /// Creates a worker of this environment.
    pub async fn add_node(&self, node: &str) -> Result<String> {
        fleet::create(&self.client, [self.worker(node)]).await?;
        Ok(self.node_name(node))
    }

    /// Creates a worker that has been cordoned for an hour.
    pub async fn add_cordoned_node(&self, node: &str) -> Result<String> {
        let spec = self.worker(node).cordoned_since(an_hour_ago());
        fleet::create(&self.client, [spec]).await?;
        Ok(self.node_name(node))
    }

    /// Creates pods, and waits until they are Ready.
    pub async fn add_pods<const N: usize>(&self, pods: [(&str, PodTemplate); N]) -> Result<[Pod; N]> {
        let built = pods
            .iter()
            .map(|(name, template)| template.pod(&self.name, name))
            .collect::<Result<Vec<_>>>()?;
        bulk::create(&self.client, built).await?;
        let mut ready = Vec::new();
        for (name, _) in &pods {
            let found: Api<Pod> = self.pods();
            ready.push(
                wait::until(format!("pod {name} to be Ready"), secs(60), || async {
                    let pod = found.get(name).await?;
                    ensure!(workload::is_ready(&pod), "phase {}", workload::phase(&pod));
                    Ok(pod)
                })
                .await?,
            );
        }
        ready.try_into().ok().context("as many as were made")
    }

    /// Creates a budget, and waits until it is counted to cover so many pods.
    pub async fn add_budget(&self, budget: Budget, covers: i32) -> Result<()> {
        let budget = budget.build()?;
        let name = budget.name_any();
        bulk::create(&self.client, [budget]).await?;
        workload::counted_budget(&self.client, &self.name, &name, covers, secs(60)).await?;
        Ok(())
    }

    /// Waits until the budget counts so many healthy pods; that it counts them at all may come before.
    pub async fn counts_healthy(&self, budget: &str, pods: i32) -> Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &self.name);
        wait::until(format!("budget {budget} to count {pods} healthy"), secs(60), || async {
            let status = budgets.get(budget).await?.status.context("no status")?;
            ensure!(
                status.expected_pods == pods && status.current_healthy == pods,
                "{status:?}"
            );
            Ok(())
        })
        .await
    }

    /// A budget of this environment that leaves no room to its `pods` pods, which have the label `app` of the same name.
    pub fn tight(&self, app: &str, pods: i32) -> Budget {
        Budget::min_available(&self.name, app, pods).of(app)
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// A configuration under which everything on this environment's cordoned nodes falls due within seconds, but budgets are
    /// respected for an hour; `changes` come on top.
    pub fn config(&self, changes: &Value) -> String {
        let quick = json!({
            "nodeDrain": { "timeOut": "2s", "expectedNodeDrainTime": "1s" },
            "pdbForceDrainTimeout": "1h",
            "forceAfter": "2s",
            "upgradeSignal": "always",
            "overrideBudgets": "all",
            "countsAsDrain": "all",
            "nodeSelector": { ENVIRONMENT: self.name },
        });
        serde_yaml::to_string(&merged(quick, changes)).unwrap_or_default()
    }

    /// A drain-keeper of this environment, to be started.
    pub fn spec(&self, changes: &Value) -> OperatorSpec {
        self.keeper().config(&self.config(changes))
    }

    /// A drain-keeper under this environment's ServiceAccount, without a configuration yet.
    pub fn keeper(&self) -> OperatorSpec {
        OperatorSpec::new(COMPONENT, &self.system, &self.service_account)
    }

    /// Starts a drain-keeper, and waits until it is ready.
    pub async fn start(&self, changes: Value) -> Result<Keeper> {
        self.run(self.spec(&changes)).await
    }

    /// Starts `spec`, and waits until it is ready.
    pub async fn run(&self, spec: OperatorSpec) -> Result<Keeper> {
        let operator = spec.start(self.plane).await?;
        operator.ready(secs(60)).await?;
        Ok(Keeper { operator })
    }

    /// What this environment's drain-keepers have asked the API server for since `mark`.
    pub fn requests_since(&self, mark: Mark) -> Result<Requests> {
        let all = self.plane.audit().since(mark)?;
        Ok(all.of_service_account(&self.system, &self.service_account))
    }

    /// All that this environment's drain-keepers have asked for.
    pub fn requests(&self) -> Result<Requests> {
        self.requests_since(self.began)
    }

    /// Names of the pods that they have written to, or tried to.
    pub fn pods_written(&self) -> Result<BTreeSet<String>> {
        let writes = self
            .requests()?
            .writes()
            .only(|request| request.resource.starts_with("pods"));
        Ok(writes.0.into_iter().map(|request| request.name).collect())
    }

    /// The node's drain clock, if it has one.
    pub async fn clock(&self, node: &str) -> Result<Option<DrainClock>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(node).await?;
        Ok(node
            .annotations()
            .get(DRAIN_CLOCK)
            .map(|text| DrainClock::parse(text))
            .transpose()?)
    }

    /// Waits until the node's drain clock is as `is_so` has it.
    pub async fn clock_that(&self, node: &str, what: &str, is_so: impl Fn(&DrainClock) -> bool) -> Result<DrainClock> {
        wait::until(format!("a clock of {node} that {what}"), secs(60), || async {
            let clock = self.clock(node).await?.context("there is none")?;
            ensure!(is_so(&clock), "{clock}");
            Ok(clock)
        })
        .await
    }

    /// The node's condition DrainBlocked, if it has it.
    pub async fn drain_blocked(&self, node: &str) -> Result<Option<NodeCondition>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let conditions = nodes.get(node).await?.status.and_then(|status| status.conditions);
        Ok(conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == DRAIN_BLOCKED))
    }

    /// Who holds the lease.
    pub async fn lease_holder(&self, lease: &str) -> Result<Option<String>> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.system);
        let holder = leases.get(lease).await?.spec.and_then(|spec| spec.holder_identity);
        Ok(holder.filter(|holder| !holder.is_empty()))
    }

    /// Ends drain-keepers as a kubelet does, and checks what holds in every test: it ends well and at once, without ever
    /// having panicked or been refused a right.
    pub async fn end<const N: usize>(self, keepers: [Keeper; N]) -> Result<()> {
        let refused = self
            .requests()?
            .only(|request| request.code == 403 || request.code == 401);
        ensure!(refused.count() == 0, "the chart grants too little: {:?}", refused.0);
        self.end_whatever_was_refused(keepers).await
    }

    /// As [`Environment::end`], but rights may have been refused.
    pub async fn end_whatever_was_refused<const N: usize>(self, keepers: [Keeper; N]) -> Result<()> {
        for keeper in &keepers {
            let status = keeper.stop(secs(30)).await?;
            let tail = keeper.process().log_tail(25);
            ensure!(status.success(), "it ended with {status}:\n{tail}");
            ensure!(!keeper.log().contains("panicked"), "it has panicked:\n{tail}");
        }
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.system);
        for lease in leases.list(&ListParams::default()).await? {
            let holder = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.as_deref())
                .unwrap_or_default();
            let ours = keepers.iter().any(|keeper| keeper.process().name() == holder);
            ensure!(!ours, "{holder} has ended and still holds {}", lease.name_any());
        }
        Ok(())
    }
}

/// A pod on `node` that a controller would make again.
pub fn managed(node: &str) -> PodTemplate {
    // Nobody serves this kind, so the garbage collector leaves the pod alone.
    PodTemplate::new()
        .on(node)
        .owned_by("apps/v1", "Widget", "widget", "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a01")
}

pub fn an_hour_ago() -> Timestamp {
    Timestamp::now() - SignedDuration::from_hours(1)
}

/// The pod as it stands now: the same one, not asked to go, its finalizers in place.
pub async fn is_untouched(pods: &Api<Pod>, before: &Pod) -> Result<()> {
    let name = before.name_any();
    let now = pods.get(&name).await.with_context(|| format!("pod {name}"))?;
    ensure!(now.uid() == before.uid(), "pod {name} is another one");
    ensure!(
        now.metadata.deletion_timestamp == before.metadata.deletion_timestamp,
        "pod {name} was asked to go"
    );
    ensure!(
        now.finalizers() == before.finalizers(),
        "pod {name} has finalizers {:?}",
        now.finalizers()
    );
    Ok(())
}

fn chart_values() -> Value {
    json!({ "enabled": true, "deployment": { "enabled": false } })
}

/// `changes` replace or, as null, remove what `base` has under the same key.
fn merged(mut base: Value, changes: &Value) -> Value {
    for (key, value) in changes.as_object().into_iter().flatten() {
        if value.is_null() {
            base.as_object_mut().map(|base| base.remove(key));
        } else {
            base[key] = value.clone();
        }
    }
    base
}
