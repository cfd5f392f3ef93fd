//! Where one test takes place: nodes and a namespace of its own on the control plane that all tests share, with one
//! drain-lock and one drain-keeper.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, ListParams};
use nodeward_api::node_drain::{NodeDrain, NodeDrainStatus, Phase};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::{self, Operator, OperatorSpec};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use nodeward_testkit::{ControlPlane, Options, bulk, names};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::person::{Answer, Person};

/// Namespace of the operators.
const SYSTEM: &str = "nodeward-system";

/// Before the chart is installed.
const BARE: [&[&str]; 5] = [
    &["status"],
    &["locks"],
    &["plan", "n1"],
    &["drain", "n1"],
    &["hold", "web", "--reason", "r", "--for", "1h"],
];

static SET_UP: OnceCell<SetUp> = OnceCell::const_new();

struct SetUp {
    bare: Vec<Answer>,
    operators: [Operator; 2],
}

/// Where one test takes place.
pub struct Environment {
    pub plane: &'static ControlPlane,
    pub client: Client,
    /// The environment's namespace.
    pub name: String,
    /// The cluster's administrator.
    pub admin: Person,
}

impl Environment {
    pub async fn new() -> Result<Self> {
        let plane = ControlPlane::shared_with(Options::patient()).await;
        SET_UP.get_or_try_init(|| SetUp::of(plane)).await?;
        Self::on(plane).await
    }

    /// On a control plane of its own, whose drain-lock may stop.
    pub async fn alone() -> Result<(Self, Operator)> {
        let plane: &ControlPlane = Box::leak(Box::new(ControlPlane::start(Options::patient()).await?));
        let SetUp { operators, .. } = SetUp::of(plane).await?;
        let [lock, keeper] = operators;
        // It is ended with the control plane.
        std::mem::forget(keeper);
        Ok((Self::on(plane).await?, lock))
    }

    async fn on(plane: &'static ControlPlane) -> Result<Self> {
        let name = names::unique("shop");
        plane.namespace(&name).await?;
        Ok(Self {
            client: plane.client().await?,
            admin: Person::admin(plane)?,
            plane,
            name,
        })
    }

    /// What the administrator was told before the chart was installed, by command.
    pub async fn bare() -> Result<Vec<(&'static [&'static str], &'static Answer)>> {
        let plane = ControlPlane::shared_with(Options::patient()).await;
        let set_up = SET_UP.get_or_try_init(|| SetUp::of(plane)).await?;
        Ok(BARE.into_iter().zip(&set_up.bare).collect())
    }

    /// Creates workers of this environment, and gives their names.
    pub async fn workers<const N: usize>(&self) -> Result<[String; N]> {
        let nodes: [String; N] = std::array::from_fn(|index| format!("{}-n{}", self.name, index + 1));
        fleet::create(&self.client, nodes.iter().map(NodeSpec::worker)).await?;
        Ok(nodes)
    }

    /// An application with one pod on each of the nodes, which fits no other, and a budget of one.
    pub async fn add_pinned(&self, app: &str, nodes: &[String]) -> Result<()> {
        let template = PodTemplate::new().pinned(app, nodes);
        let pods = u32::try_from(nodes.len())?;
        bulk::create(&self.client, [template.stateful_set(&self.name, app, pods)?]).await?;
        let budget = Budget::max_unavailable(&self.name, app, 1).of(app).build()?;
        bulk::create(&self.client, [budget]).await?;
        workload::ready_pods(&self.client, &self.name, app, nodes.len(), secs(90)).await?;
        let pods = i32::try_from(pods)?;
        // A budget may have counted its pods before they were Ready.
        wait::until(format!("budget {app} to have room"), secs(60), || async {
            let budget = workload::counted_budget(&self.client, &self.name, app, pods, secs(60)).await?;
            let healthy = budget.status.map(|status| status.current_healthy);
            ensure!(healthy == Some(pods), "{healthy:?} healthy pods");
            Ok(())
        })
        .await
    }

    pub fn drains(&self) -> Api<NodeDrain> {
        Api::all(self.client.clone())
    }

    /// Waits until the drain's status is as `is_so` has it.
    pub async fn status_that(
        &self,
        node: &str,
        what: &str,
        is_so: impl Fn(&NodeDrainStatus) -> bool,
    ) -> Result<NodeDrainStatus> {
        let drains = self.drains();
        wait::until(format!("the drain of {node} {what}"), secs(90), || async {
            let status = drains.get(node).await?.status.context("no status")?;
            ensure!(is_so(&status), "{}", serde_json::to_string(&status)?);
            Ok(status)
        })
        .await
    }

    /// Waits until the drain is in this phase.
    pub async fn phase(&self, node: &str, phase: Phase) -> Result<NodeDrainStatus> {
        let what = format!("to be {phase}");
        self.status_that(node, &what, |status| status.phase == Some(phase))
            .await
    }

    /// Waits until the NodeDrain is gone.
    pub async fn gone(&self, node: &str) -> Result<()> {
        let drains = self.drains();
        wait::until(format!("the drain of {node} to be gone"), secs(90), || async {
            let found = drains.get_opt(node).await?;
            ensure!(found.is_none(), "{found:?}");
            Ok(())
        })
        .await
    }
}

/// The configuration that the chart gives a component.
async fn installed_config(client: &Client, name: &str) -> Result<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM);
    let data = maps.get(name).await?.data.unwrap_or_default();
    data.get("config.yaml").cloned().context("no config.yaml")
}

/// Starts drain-lock as the chart configures it.
pub async fn drain_lock(plane: &ControlPlane) -> Result<Operator> {
    let config = installed_config(&plane.client().await?, "nodeward-drain-lock").await?;
    let lock = OperatorSpec::new("drain-lock", SYSTEM, "nodeward-drain-lock").config(&config);
    lock.arg("--webhook-bind=127.0.0.1:0").start(plane).await
}

impl SetUp {
    async fn of(plane: &ControlPlane) -> Result<Self> {
        let client = plane.client().await?;
        fleet::create(&client, [NodeSpec::worker("n1")]).await?;
        let admin = Person::admin(plane)?;
        let mut bare = Vec::new();
        for command in BARE {
            bare.push(admin.nodeward(command).await?);
        }
        // The operators run outside, so nobody could answer the webhook.
        let outside = json!({ "enabled": false });
        let values = json!({
            "drainKeeper": { "enabled": true, "deployment": outside },
            "drainLock": { "enabled": true, "deployment": outside, "webhook": outside },
        });
        Release::new("nodeward", SYSTEM).values(values).install(plane).await?;
        wait::until("the kinds to be served", secs(60), || async {
            Api::<NodeDrain>::all(client.clone())
                .list(&ListParams::default())
                .await?;
            Api::<nodeward_api::DrainLedger>::all(client.clone())
                .list(&ListParams::default())
                .await?;
            Api::<nodeward_api::DisruptionHold>::all(client.clone())
                .list(&ListParams::default())
                .await?;
            Ok(())
        })
        .await?;
        for account in ["nodeward-drain-lock", "nodeward-drain-keeper"] {
            let rights = [
                ["list", "", "nodes", ""],
                ["create", "coordination.k8s.io", "leases", SYSTEM],
            ];
            operator::granted(&client, SYSTEM, account, &rights).await?;
        }
        let keeper = serde_yaml::to_string(
            &json!({ "upgradeSignal": "always", "overrideBudgets": "all", "countsAsDrain": "nodeDrain" }),
        )?;
        let keeper = OperatorSpec::new("drain-keeper", SYSTEM, "nodeward-drain-keeper").config(&keeper);
        let operators = [drain_lock(plane).await?, keeper.start(plane).await?];
        for operator in &operators {
            operator.ready(secs(60)).await?;
            // There is nothing to warn of in what the chart installs.
            let log = operator.log();
            ensure!(!log.contains("WARN"), "{log}");
        }
        Ok(Self { bare, operators })
    }
}
