//! Where one test takes place: a Ceph under Rook's objects, and a release of the chart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{Api, EvictParams, ListParams, PostParams};
use kube::{Client, ResourceExt};
use nodeward_testkit::audit::{Mark, Requests};
use nodeward_testkit::ceph::{Ceph, CephOptions};
use nodeward_testkit::fleet;
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::{self, Operator, OperatorSpec};
use nodeward_testkit::rook::Rook;
use nodeward_testkit::wait;
use nodeward_testkit::{ControlPlane, Options, names, workload};
use serde_json::{Value, json};

const COMPONENT: &str = "ceph-pdb";

/// The budget of all OSDs.
pub const DEFAULT: &str = "rook-ceph-osd";

/// How long what must come may take, on a loaded machine: a manager alone may take a minute to start there.
pub const DEADLINE: Duration = Duration::from_mins(3);

/// A Ceph that hangs is reported within 20 s, at rest too: before the next command of the minute's, even on a loaded machine.
const REPORTED: Duration = Duration::from_secs(40);

/// Statistics of placement groups that were stale are fresh after two of Ceph's periods, of 5 s each. What must not happen on
/// stale ones is watched for longer.
pub const SEVERAL_PERIODS: Duration = Duration::from_secs(12);

/// Where one test takes place.
pub struct Environment {
    pub plane: &'static ControlPlane,
    pub client: Client,
    pub rook: Rook,
    namespaces: Vec<String>,
    /// The operator's namespace.
    pub system: String,
    service_account: String,
    began: Mark,
}

/// Hosts, dealt out to three racks.
pub fn hosts(hosts: usize) -> CephOptions {
    CephOptions {
        hosts,
        ..CephOptions::default()
    }
}

impl Environment {
    /// Three hosts in three racks, one OSD each, and a pool whose copies lie in different racks.
    pub async fn new() -> Result<Self> {
        Self::with(hosts(3)).await
    }

    /// Another Ceph.
    pub async fn with(options: CephOptions) -> Result<Self> {
        Ok(Self::with_clusters([options]).await?.0)
    }

    /// Several, each in a namespace of its own, for one operator: the first is the environment's.
    pub async fn with_clusters<const N: usize>(clusters: [CephOptions; N]) -> Result<(Self, Vec<Rook>)> {
        let plane = ControlPlane::shared_with(Options::patient()).await;
        let client = plane.client().await?;
        let (mut rooks, mut namespaces) = (Vec::new(), Vec::new());
        for options in clusters {
            let name = names::unique("ceph");
            plane.namespace(&name).await?;
            let ceph = Ceph::start(CephOptions {
                prefix: format!("{name}-"),
                ..options
            });
            let rook = Rook::start(&client, &name, Arc::new(ceph.await?)).await?;
            rook.add_pool("data", 3, 8, "rack").await?;
            rooks.push(rook);
            namespaces.push(name);
        }
        let rook = rooks.remove(0);
        let name = rook.namespace().to_owned();
        let system = format!("{name}-system");
        let values = json!({
            "drainKeeper": {"enabled": false},
            "cephPdb": {"enabled": true, "namespaces": namespaces, "deployment": {"enabled": false}},
        });
        Release::new(&name, &system).values(values).install(plane).await?;
        let service_account = format!("{name}-nodeward-ceph-pdb");
        let mut rights = vec![
            ["list", "", "nodes", ""],
            ["create", "coordination.k8s.io", "leases", &system],
        ];
        rights.extend(
            namespaces
                .iter()
                .map(|name| ["create", "policy", "poddisruptionbudgets", name]),
        );
        operator::granted(&client, &system, &service_account, &rights).await?;
        let env = Self {
            service_account,
            began: plane.audit().mark()?,
            plane,
            client,
            rook,
            namespaces,
            system,
        };
        Ok((env, rooks))
    }

    /// Its Ceph.
    pub fn ceph(&self) -> &Ceph {
        self.rook.ceph()
    }

    /// An operator of this environment, to be started; `changes` come on top of the defaults.
    pub fn spec(&self, changes: &Value) -> OperatorSpec {
        let mut config = json!({"namespaces": self.namespaces});
        for (key, value) in changes.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        OperatorSpec::new(COMPONENT, &self.system, &self.service_account).config(&config.to_string())
    }

    /// Starts an operator, and waits until it is ready.
    pub async fn start(&self, changes: Value) -> Result<Operator> {
        self.run(self.spec(&changes)).await
    }

    /// Starts `spec`, and waits until it is ready.
    pub async fn run(&self, spec: OperatorSpec) -> Result<Operator> {
        let operator = spec.start(self.plane).await?;
        operator.ready(DEADLINE).await?;
        Ok(operator)
    }

    /// All budgets in the CephCluster's namespace.
    pub async fn budgets(&self) -> Result<BTreeMap<String, PodDisruptionBudget>> {
        let budgets = self.rook.budgets().list(&ListParams::default()).await?;
        Ok(budgets.into_iter().map(|budget| (budget.name_any(), budget)).collect())
    }

    /// The budgets of OSDs: the default one, and those of failure domains.
    pub async fn osd_budgets(&self) -> Result<BTreeMap<String, PodDisruptionBudget>> {
        let mut budgets = self.budgets().await?;
        budgets.retain(|name, _| name.starts_with(DEFAULT));
        Ok(budgets)
    }

    /// The OSDs whose pods run, and whose eviction would be allowed now. None is evicted.
    pub async fn may_go(&self) -> Result<BTreeSet<usize>> {
        let dry_run = EvictParams {
            post_options: PostParams {
                dry_run: true,
                ..PostParams::default()
            },
            ..EvictParams::default()
        };
        let mut may_go = BTreeSet::new();
        for osd in 0..self.ceph().options().osds() {
            for pod in self.rook.osd_pods(osd).await? {
                let is_asked = workload::is_up(&pod);
                if is_asked && self.rook.pods().evict(&pod.name_any(), &dry_run).await.is_ok() {
                    may_go.insert(osd);
                }
            }
        }
        Ok(may_go)
    }

    /// The default budget is there alone, and lets one OSD go, whichever it is.
    pub async fn is_open(&self) -> Result<()> {
        let budgets = self.osd_budgets().await?;
        let names: Vec<&String> = budgets.keys().collect();
        ensure!(names == [DEFAULT], "{names:?}, state {}", self.state().await?);
        let budget = &budgets[DEFAULT];
        let spec = budget.spec.as_ref().context("no spec")?;
        let allows = spec.max_unavailable == Some(IntOrString::Int(1));
        ensure!(allows, "{spec:?}, state {}", self.state().await?);
        let may_go = self.may_go().await?;
        let all = self.ceph().options().osds();
        ensure!(may_go.len() == all, "only {may_go:?} may go: {:?}", budget.status);
        Ok(())
    }

    /// Waits until [`Environment::is_open`].
    pub async fn open(&self) -> Result<()> {
        self.open_within(DEADLINE).await
    }

    /// As [`Environment::open`], with another deadline.
    pub async fn open_within(&self, deadline: Duration) -> Result<()> {
        wait::until("the budget to be open", deadline, || self.is_open()).await
    }

    /// No OSD may go but those of this rack.
    pub async fn is_closed_but_for(&self, rack: &str) -> Result<()> {
        let may_go = self.may_go().await?;
        let elsewhere = may_go.iter().find(|osd| self.ceph().options().rack_of(**osd) != rack);
        ensure!(elsewhere.is_none(), "{may_go:?} may go, state {}", self.state().await?);
        Ok(())
    }

    /// Cordons the OSD's node, and evicts it as often as it takes; waits until it is stopped.
    pub async fn drain(&self, osd: usize) -> Result<()> {
        fleet::cordon(&self.client, &self.rook.node_of(osd)).await?;
        self.evict(osd).await?;
        self.rook.osd_gone(osd, DEADLINE).await
    }

    /// Evicts an OSD as often as it takes.
    pub async fn evict(&self, osd: usize) -> Result<()> {
        wait::until(format!("OSD {osd} to be evicted"), DEADLINE, || async {
            let code = self.rook.evict_osd(osd).await?;
            ensure!(code == Some(201), "{code:?}, state {}", self.state().await?);
            Ok(())
        })
        .await
    }

    /// Who leads; empty when nobody does.
    pub async fn leader(&self) -> Result<String> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.system);
        let leases = leases.list(&ListParams::default()).await?;
        let mut holders = leases.into_iter().filter_map(|lease| lease.spec?.holder_identity);
        Ok(holders.next().unwrap_or_default())
    }

    /// Uncordons the OSD's node, and waits until all OSDs are up.
    pub async fn bring_back(&self, osd: usize) -> Result<()> {
        fleet::uncordon(&self.client, &self.rook.node_of(osd)).await?;
        self.ceph().all_up().await
    }

    /// The CRUSH buckets with a `noout` of their own.
    pub async fn noout(&self) -> Result<BTreeSet<String>> {
        self.ceph().buckets_with_noout().await
    }

    /// `noout` is on these buckets and no other.
    pub async fn has_noout<const N: usize>(&self, buckets: [&str; N]) -> Result<()> {
        let (noout, expected) = (self.noout().await?, BTreeSet::from(buckets.map(str::to_owned)));
        ensure!(noout == expected, "noout on {noout:?}, state {}", self.state().await?);
        Ok(())
    }

    /// Waits until [`Environment::has_noout`].
    pub async fn noout_is<const N: usize>(&self, buckets: [&str; N]) -> Result<()> {
        wait::until(format!("noout on {buckets:?}"), DEADLINE, || self.has_noout(buckets)).await
    }

    /// What is recorded of buckets, by bucket.
    pub async fn records(&self) -> Result<BTreeMap<String, String>> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), self.rook.namespace());
        let map = maps.get_opt("rook-ceph-pdbstatemap").await?;
        let data = map.and_then(|map| map.data).unwrap_or_default();
        let of_bucket = |(key, text): (String, String)| Some((key.strip_prefix("nodeward-noout-")?.to_owned(), text));
        Ok(data.into_iter().filter_map(of_bucket).collect())
    }

    /// Waits until nothing is recorded.
    pub async fn no_records(&self) -> Result<()> {
        wait::until("no record to be left", DEADLINE, || async {
            let records = self.records().await?;
            ensure!(records.is_empty(), "{records:?}");
            Ok(())
        })
        .await
    }

    /// What is published of the cluster; null before that.
    pub async fn state(&self) -> Result<Value> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), self.rook.namespace());
        let map = maps.get_opt("nodeward-ceph-pdb").await?;
        let text = map.and_then(|map| map.data).and_then(|mut data| data.remove("state"));
        Ok(text.map_or(Ok(Value::Null), |text| serde_json::from_str(&text))?)
    }

    /// The published state has this condition.
    pub async fn has_condition(&self, kind: &str) -> Result<()> {
        let state = self.state().await?;
        let conditions = state["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        ensure!(conditions.iter().any(|condition| condition["type"] == kind), "{state}");
        Ok(())
    }

    /// Waits until [`Environment::has_condition`].
    pub async fn condition(&self, kind: &str) -> Result<()> {
        wait::until(format!("condition {kind}"), DEADLINE, || self.has_condition(kind)).await
    }

    /// Waits until it is reported that Ceph does not answer: in time, at rest too.
    pub async fn reported_unavailable(&self) -> Result<()> {
        const KIND: &str = "CephUnavailable";
        wait::until(format!("condition {KIND}"), REPORTED, || self.has_condition(KIND)).await
    }

    /// What this environment's operators have asked the API server for since `mark`.
    pub fn requests_since(&self, mark: Mark) -> Result<Requests> {
        let all = self.plane.audit().since(mark)?;
        Ok(all.of_service_account(&self.system, &self.service_account))
    }

    /// Their writes since `mark`, but of leases and Events.
    pub fn writes_since(&self, mark: Mark) -> Result<Requests> {
        let writes = self.requests_since(mark)?.writes().without_leases();
        Ok(writes.only(|request| request.resource != "events"))
    }

    /// Ends operators as a kubelet does, and checks what holds in every test: each ends well, without ever having panicked or
    /// been refused a right.
    pub async fn end<const N: usize>(self, operators: [Operator; N]) -> Result<()> {
        let refused = self
            .requests_since(self.began)?
            .only(|request| matches!(request.code, 401 | 403));
        ensure!(refused.count() == 0, "the chart grants too little: {:?}", refused.0);
        for operator in &operators {
            let status = operator.stop(DEADLINE).await?;
            let tail = operator.process().log_tail(25);
            ensure!(status.success(), "it ended with {status}:\n{tail}");
            ensure!(!operator.log().contains("panicked"), "it has panicked:\n{tail}");
        }
        Ok(())
    }
}
