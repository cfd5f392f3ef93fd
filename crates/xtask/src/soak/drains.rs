//! The part of drain-keeper, drain-lock and ceph-pdb: applications with budgets, upgrades that drain several nodes at once,
//! owners' holds, and a Ceph where one can be had.

mod applications;
mod event;
pub mod judge;
mod maintenance;
pub mod storage;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use nodeward_api::annotation::DRAIN_CLOCK;
use nodeward_api::disruption_hold::{DisruptionHold, DisruptionHoldSpec};
use nodeward_api::{DrainLedger, NodeDrain, drain_ledger};
use nodeward_core::ledger::Ledger;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::prometheus::Job;
use nodeward_testkit::{ControlPlane, bulk, fleet, reboot, unless_gone, unless_refused, wait, workload};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use self::applications::{APPS, Application};
pub use self::event::{Dice, Event};
use self::judge::Judge;
use self::maintenance::Maintenance;
use self::storage::Storage;
use super::cluster::{CLEAN_WITHIN, installation, name};
use super::replicas::Replicas;
use crate::watch::Watched;

/// After an override of a budget, another may follow even if the first pod is not back.
const OVERRIDE_SPACING: Duration = Duration::from_secs(20);

/// How long the watches may take to tell of the pods that are there at first.
const SEEN_WITHIN: Duration = Duration::from_mins(1);

/// Where operators and drains take place beside the nodes that fail: the same nodes.
pub struct Drains {
    /// What the events are drawn from.
    pub dice: Dice,
    client: Client,
    applications: Vec<Application>,
    operators: Vec<Replicas>,
    judge: Watched<Judge>,
    maintenance: Maintenance,
    storage: Option<Storage>,
    /// What ends by itself later, of what has begun.
    later: Mutex<JoinSet<Result<()>>>,
}

impl Drains {
    /// With a Ceph unless there is none to be had.
    pub async fn start(plane: &ControlPlane, seed: u64, has_ceph: bool) -> Result<Self> {
        let client = plane.client().await?;
        let applications = applications::draw(seed);
        let storage = if has_ceph {
            Some(Storage::start(plane).await?)
        } else {
            None
        };
        let progress = Progress::begin(format!("{} applications", applications.len()));
        plane.namespace(APPS).await?;
        applications::create(&client, &applications).await?;
        progress.done("all pods are Ready");
        let mut operators = Vec::new();
        for (operator, config) in configurations(storage.as_ref()) {
            let progress = Progress::begin(operator);
            let replicas = Replicas::start(&installation(operator, config).await?, plane).await?;
            replicas.ready().await?;
            progress.done("two replicas, installed by helm");
            operators.push(replicas);
        }
        if let Some(storage) = &storage {
            storage.is_open().await?;
        }
        let judge = watch(&client, &applications);
        let all = applications.iter().map(|app| app.replicas).sum::<u32>();
        let all_seen = |judge: &Judge| (judge.ready_pods() >= usize::try_from(all).ok()?).then_some(());
        judge.until("all pods to be seen", SEEN_WITHIN, all_seen).await?;
        let hosts = storage.as_ref().map_or(0, Storage::hosts);
        Ok(Self {
            dice: Dice::new(seed, applications.clone(), operators.len(), hosts),
            maintenance: Maintenance::new(client.clone(), Kubectl::of(plane)?),
            client,
            applications,
            operators,
            judge,
            storage,
            later: Mutex::default(),
        })
    }

    pub fn jobs(&self) -> impl Iterator<Item = Job> {
        self.operators.iter().map(Replicas::job)
    }

    pub async fn let_happen(&self, event: Event) -> Result<()> {
        let client = self.client.clone();
        match event {
            Event::Upgrade(nodes, by) => {
                for node in nodes {
                    self.maintain(name(node), by).await;
                }
                Ok(())
            }
            Event::HostUpgrade(host, by) => match &self.storage {
                Some(storage) => {
                    self.maintain(storage.node(host), by).await;
                    Ok(())
                }
                None => Ok(()),
            },
            Event::OsdEvicted(osd) => match &self.storage {
                Some(storage) => storage.evict(osd).await,
                None => Ok(()),
            },
            Event::Cordoned(node, time) => {
                let node = name(node);
                unless_gone(fleet::cordon(&client, &node).await)?;
                self.after(time, async move { unless_gone(fleet::uncordon(&client, &node).await) })
                    .await
            }
            Event::Held(app, time) => {
                let hold = DisruptionHold::new(
                    &app,
                    DisruptionHoldSpec {
                        pdb_ref: app.clone(),
                        reason: "the owner says so".to_owned(),
                        ..DisruptionHoldSpec::default()
                    },
                );
                let holds: Api<DisruptionHold> = Api::namespaced(client, APPS);
                unless_refused(holds.create(&PostParams::default(), &hold).await, &[409])?;
                let end = async move { unless_gone(holds.delete(&app, &DeleteParams::default()).await) };
                self.after(time, end).await
            }
            Event::Scaled(app, replicas) => scale(&client, &app, replicas).await,
            Event::WritesFail(operator, replica, fault, count) => {
                self.operators[operator].fail_writes(replica, fault, count);
                Ok(())
            }
            Event::WatchesBreak(operator, replica) => {
                self.operators[operator].break_watches(replica);
                Ok(())
            }
            Event::Killed(operator, replica) => self.operators[operator].kill(replica),
            Event::LeaderKilled(operator) => self.operators[operator].kill_leader(&client).await,
        }
    }

    /// Forces a pod whose budget forbids it, as a drain-keeper would that does not look.
    pub async fn break_a_rule(&self) -> Result<()> {
        let app = self.applications.iter().find(|app| app.is_never);
        let app = app.context("no application with such a budget")?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), APPS);
        let selected = ListParams::default().labels(&format!("app={}", app.name));
        let mut pods_of_app = pods.list(&selected).await?.items.into_iter();
        let Some(pod) = pods_of_app.find(|pod| pod.metadata.deletion_timestamp.is_none()) else {
            return Ok(());
        };
        let condition = json!({ "type": "DisruptionTarget", "status": "True", "reason": judge::FORCED });
        let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
        let name = pod.name_any();
        pods.patch_status(&name, &PatchParams::default(), &patch).await?;
        pods.delete(&name, &DeleteParams::default()).await?;
        Ok(())
    }

    async fn maintain(&self, node: String, by: event::Drainer) {
        let judge = self.judge.handle();
        let reboots = move |node: &str, begins: bool| judge.send_modify(|judge| judge.reboots(node, begins));
        self.maintenance.begin(node, by, reboots).await;
    }

    async fn after(&self, time: Duration, act: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
        self.later.lock().await.spawn(async move {
            tokio::time::sleep(time).await;
            act.await
        });
        Ok(())
    }

    /// Everything held so far.
    pub fn hold(&self) -> Result<()> {
        self.judge.modify(Judge::settle);
        if let Some(storage) = &self.storage {
            storage.hold()?;
        }
        self.judge.read().hold()
    }

    /// All drains, holds and faults end.
    pub async fn mend(&self) -> Result<()> {
        for operator in &self.operators {
            operator.heal();
        }
        let mut later = self.later.lock().await;
        while let Some(done) = later.join_next().await {
            done??;
        }
        self.maintenance.end_all().await;
        self.judge.modify(Judge::nothing_reboots);
        let drains: Api<NodeDrain> = Api::all(self.client.clone());
        drains
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        bulk::each(nodes.list(&ListParams::default()).await?.items, |node| async move {
            let name = node.name_any();
            let is_cordoned = node.spec.and_then(|spec| spec.unschedulable).unwrap_or_default();
            if is_cordoned {
                unless_gone(fleet::uncordon(&self.client, &name).await)?;
            }
            unless_gone(fleet::boot_kubelet(&self.client, &name, Duration::ZERO).await)?;
            reboot::restart_pods(&self.client, &name).await
        })
        .await?;
        for app in &self.applications {
            scale(&self.client, &app.name, app.replicas).await?;
        }
        Ok(())
    }

    /// Waits until all pods are Ready, no drain is left, and no operator has anything more to do.
    pub async fn nothing_is_left(&self) -> Result<()> {
        wait::until("nothing to be left of the drains", CLEAN_WITHIN, || async {
            let drains: Api<NodeDrain> = Api::all(self.client.clone());
            let drains = drains.list_metadata(&ListParams::default()).await?.items;
            let drains: Vec<String> = drains.iter().map(ResourceExt::name_any).collect();
            ensure!(drains.is_empty(), "NodeDrains {drains:?}");
            let ledgers: Api<DrainLedger> = Api::all(self.client.clone());
            let claims = ledgers
                .get_opt(drain_ledger::NAME)
                .await?
                .map(|ledger| ledger.spec.claims);
            ensure!(claims.iter().all(Vec::is_empty), "claims {claims:?}");
            let nodes: Api<Node> = Api::all(self.client.clone());
            for node in nodes.list(&ListParams::default()).await? {
                let clock = node.annotations().get(DRAIN_CLOCK);
                ensure!(clock.is_none(), "{} has the drain clock {clock:?}", node.name_any());
            }
            for app in &self.applications {
                let pods: Api<Pod> = Api::namespaced(self.client.clone(), APPS);
                let selected = ListParams::default().labels(&format!("app={}", app.name));
                let pods = pods.list(&selected).await?.items;
                // A node that was found silent after it was mended has had its pods marked. Its kubelet reports them again.
                for pod in pods.iter().filter(|pod| runs_unready(pod)) {
                    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                    reboot::restart_pods(&self.client, node.unwrap_or_default()).await?;
                }
                let ready = pods.iter().filter(|pod| workload::is_ready(pod)).count();
                let (wanted, all) = (usize::try_from(app.replicas)?, pods.len());
                ensure!(
                    ready == wanted && all == wanted,
                    "{}: {ready} of {all} pods are Ready",
                    app.name
                );
            }
            Ok(())
        })
        .await?;
        match &self.storage {
            Some(storage) => storage.is_at_rest().await,
            None => Ok(()),
        }
    }

    /// Ends the operators, which must end well.
    pub async fn end(&self) -> Result<()> {
        for operator in &self.operators {
            operator.end().await?;
        }
        Ok(())
    }

    /// How much was done and looked at.
    pub fn text(&self) -> String {
        let storage = self.storage.as_ref().map(Storage::text);
        let parts = [Some(self.maintenance.text()), Some(self.judge.read().text()), storage];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    pub fn logs(&self) -> String {
        self.operators.iter().map(Replicas::logs).collect()
    }
}

/// Minutes are seconds here.
fn configurations(storage: Option<&Storage>) -> Vec<(&'static str, Value)> {
    let keeper = json!({
        "nodeDrain": { "timeOut": "8s", "expectedNodeDrainTime": "6s" },
        "pdbForceDrainTimeout": "4s",
        "forceAfter": "4s",
        "overrideSpacing": format!("{}s", OVERRIDE_SPACING.as_secs()),
        "flapTolerance": "5s",
        "upgradeSignal": "always",
        "overrideBudgets": "all",
        "countsAsDrain": "all",
    });
    let mut all = vec![("drain-keeper", keeper), ("drain-lock", json!({}))];
    all.extend(storage.map(|storage| ("ceph-pdb", json!({ "namespaces": [storage.namespace()] }))));
    all
}

fn watch(client: &Client, applications: &[Application]) -> Watched<Judge> {
    let config = watcher::Config::default;
    let pods: Api<Pod> = Api::namespaced(client.clone(), APPS);
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), APPS);
    let holds: Api<DisruptionHold> = Api::namespaced(client.clone(), APPS);
    let ledgers: Api<DrainLedger> = Api::all(client.clone());
    Watched::new(Judge::new(applications))
        .follow_events(pods, config(), Judge::take_pod)
        .follow(budgets, config(), |judge, budget| judge.take_budget(&budget))
        .follow_events(holds, config(), Judge::take_hold)
        .follow(ledgers, config(), |judge, ledger: DrainLedger| {
            judge.take_ledger(Ledger::try_from(&ledger.spec));
        })
}

async fn scale(client: &Client, app: &str, replicas: u32) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), APPS);
    let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    deployments.patch(app, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn runs_unready(pod: &Pod) -> bool {
    workload::phase(pod) == "Running" && !workload::is_ready(pod) && pod.metadata.deletion_timestamp.is_none()
}
