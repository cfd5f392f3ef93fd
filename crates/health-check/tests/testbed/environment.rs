//! Where one test takes place: nodes, templates and NodeHealthChecks that only one operator looks after.
//!
//! Most tests share an operator, as they share the control plane. Tests of the operator's own life have one of their own;
//! proxies confine what each of them sees of the nodes and the NodeHealthChecks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use nodeward_api::node_health_check::{NodeHealthCheck, NodeHealthCheckStatus, UnhealthyNode};
use nodeward_testkit::audit::{Mark, Requests};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::foreign::Foreign;
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::{self, Operator, OperatorSpec};
use nodeward_testkit::proxy::Proxy;
use nodeward_testkit::remediator::{self, Behavior, Family, Remediator};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, names, ports};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// The label by which the NodeHealthChecks of a test select its nodes.
pub const ENVIRONMENT: &str = "test.nodeward.dev/environment";

/// The label of the nodes and NodeHealthChecks that an operator sees: its environment's name, or [`SHARED`].
pub const SEEN_BY: &str = "test.nodeward.dev/seen-by";

/// The value of [`SEEN_BY`] for the operator that most tests share.
const SHARED: &str = "shared";

const COMPONENT: &str = "health-check";

/// The namespace of the shared operator's leases.
pub const LEASES: &str = "medik8s-leases";

/// The release whose operator most tests share; it brings the CRDs.
const RELEASE: &str = "nodeward";
const SYSTEM: &str = "nodeward-system";

const FAMILIES: [Family; 4] = [
    Family::SelfNode,
    Family::FenceAgents,
    Family::MachineDeletion,
    Family::Metal3,
];

/// How long what follows at once may take on a loaded machine.
pub const SOON: Duration = secs(60);

/// How long something that must not happen is waited for.
pub const WHILE: Duration = secs(4);

/// The operator that most tests share.
struct SharedOperator {
    operator: Operator,
    _proxy: Proxy,
}

/// Where one test takes place.
pub struct Environment {
    pub plane: &'static ControlPlane,
    pub client: Client,
    /// The environment's name, and the namespace of its templates and remediations.
    pub name: String,
    seen_by: String,
    leases: String,
    began: Mark,
}

/// An environment with operators of its own.
pub struct OwnEnvironment {
    pub environment: Environment,
    /// Through which its operators reach the API.
    pub proxy: Proxy,
    service_account: String,
    /// The namespace of its operators.
    pub system: String,
}

impl std::ops::Deref for OwnEnvironment {
    type Target = Environment;

    fn deref(&self) -> &Environment {
        &self.environment
    }
}

/// The shared control plane, with the kinds and the release of the chart that all tests need.
async fn prepared() -> Result<&'static ControlPlane> {
    static PREPARED: OnceCell<()> = OnceCell::const_new();
    let plane = ControlPlane::shared().await;
    PREPARED.get_or_try_init(|| prepare(plane)).await?;
    Ok(plane)
}

/// Installs the kinds and the release of the chart that all tests need.
pub async fn prepare(plane: &ControlPlane) -> Result<()> {
    let client = plane.client().await?;
    for family in FAMILIES {
        family.install(&client).await?;
    }
    Foreign::NodeMaintenance.install(&client).await?;
    let chart = json!({
        "drainKeeper": { "enabled": false },
        // Its CRD NodeDrain.
        "drainLock": { "enabled": true, "deployment": { "enabled": false } },
        "healthCheck": { "enabled": true, "deployment": { "enabled": false } },
    });
    Release::new(RELEASE, SYSTEM).values(chart).install(plane).await?;
    until_granted(&client, SYSTEM, &format!("{RELEASE}-{COMPONENT}")).await
}

/// Waits until the API server goes by the rights that the chart grants.
async fn until_granted(client: &Client, system: &str, account: &str) -> Result<()> {
    let kinds = FAMILIES.map(|family| family.remediation().resource());
    let mut rights = vec![
        ["list", "", "nodes", ""],
        ["create", "coordination.k8s.io", "leases", system],
    ];
    rights.extend(kinds.iter().map(|kind| ["create", &*kind.group, &*kind.plural, ""]));
    operator::granted(client, system, account, &rights).await
}

async fn shared_operator() -> Result<&'static SharedOperator> {
    static OPERATOR: OnceCell<SharedOperator> = OnceCell::const_new();
    let start = || async {
        let plane = prepared().await?;
        let proxy = confined_proxy(plane, SHARED).await?;
        let operator = operator(
            SYSTEM,
            &format!("{RELEASE}-{COMPONENT}"),
            // A timeout that something has stopped fires as much later.
            &json!({ "safetyPass": "5s", "settle": "2s" }),
        )
        .through(&proxy.url())
        .start(plane)
        .await?;
        operator.ready(secs(60)).await?;
        Ok(SharedOperator {
            operator,
            _proxy: proxy,
        })
    };
    OPERATOR.get_or_try_init(start).await
}

/// An operator of the release whose objects have the name `account`. Its webhook is registered nowhere.
fn operator(system: &str, account: &str, config: &Value) -> OperatorSpec {
    operator_on(0, system, account, config)
}

/// The same, whose webhook is on this port.
fn operator_on(port: u16, system: &str, account: &str, config: &Value) -> OperatorSpec {
    OperatorSpec::new(COMPONENT, system, account)
        // JSON is YAML.
        .config(&config.to_string())
        .arg(&format!("--webhook-bind=127.0.0.1:{port}"))
        .arg(&format!("--webhook-configuration={account}"))
}

/// Through which an operator sees only the nodes and NodeHealthChecks that are meant for it.
pub async fn confined_proxy(plane: &ControlPlane, seen_by: &str) -> Result<Proxy> {
    let proxy = Proxy::start(plane).await?;
    for resource in ["nodes", "nodehealthchecks"] {
        proxy.confine(resource, SEEN_BY, seen_by);
    }
    Ok(proxy)
}

impl Environment {
    /// A new environment for the operator that most tests share.
    pub async fn new() -> Result<Self> {
        shared_operator().await?;
        Self::of(prepared().await?, SHARED, LEASES).await
    }

    async fn of(plane: &'static ControlPlane, seen_by: &str, leases: &str) -> Result<Self> {
        let client = plane.client().await?;
        let name = if seen_by == SHARED {
            names::unique("env")
        } else {
            seen_by.to_owned()
        };
        plane.namespace(&name).await?;
        Ok(Self {
            began: plane.audit().mark()?,
            plane,
            client,
            name,
            seen_by: seen_by.to_owned(),
            leases: leases.to_owned(),
        })
    }

    /// The name of a node of this environment.
    pub fn node_name(&self, node: &str) -> String {
        format!("{}-{node}", self.name)
    }

    /// A worker of this environment, to be created.
    pub fn worker(&self, node: &str) -> NodeSpec {
        self.labelled(NodeSpec::worker(self.node_name(node)))
    }

    /// The node with the labels by which it is seen and selected.
    pub fn labelled(&self, node: NodeSpec) -> NodeSpec {
        node.label(ENVIRONMENT, &self.name).label(SEEN_BY, &self.seen_by)
    }

    /// The labels of its nodes.
    pub fn labels(&self) -> Value {
        json!({ ENVIRONMENT: self.name, SEEN_BY: self.seen_by })
    }

    /// Creates workers, and waits until they are Ready.
    pub async fn add_nodes<const N: usize>(&self, nodes: [&str; N]) -> Result<[String; N]> {
        fleet::create(&self.client, nodes.map(|node| self.worker(node))).await?;
        Ok(nodes.map(|node| self.node_name(node)))
    }

    /// Creates a template, and gives the reference to it.
    pub async fn add_template(&self, family: Family, name: &str) -> Result<Value> {
        family.create_template(&self.client, &self.name, name).await
    }

    /// A remediator of this environment.
    pub fn remediate(&self, family: Family, behavior: Behavior) -> Remediator {
        Remediator::start(&self.client, family, &self.name, move |_| behavior)
    }

    /// Creates a NodeHealthCheck for the nodes of this environment: unhealthy after a second, without a threshold, remediated by
    /// the template `reboot` of Self Node Remediation. `changes` replace or, as null, remove fields of its specification.
    pub async fn add_check(&self, name: &str, changes: Value) -> Result<String> {
        let check = self.check(name, changes).await?;
        self.create_check(check).await
    }

    /// The NodeHealthCheck that [`Self::add_check`] creates.
    pub async fn check(&self, name: &str, changes: Value) -> Result<Value> {
        let unhealthy = |status: &str| json!({ "type": "Ready", "status": status, "duration": "1s" });
        let mut spec = json!({
            "selector": { "matchLabels": { ENVIRONMENT: self.name } },
            "unhealthyConditions": [unhealthy("Unknown"), unhealthy("False")],
            "maxUnhealthy": "100%",
            "remediationTemplate": self.add_template(Family::SelfNode, "reboot").await?,
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            if value.is_null() {
                spec.as_object_mut().map(|spec| spec.remove(key));
            } else {
                spec[key] = value.clone();
            }
        }
        Ok(json!({
            "apiVersion": "remediation.medik8s.io/v1alpha1",
            "kind": "NodeHealthCheck",
            "metadata": { "name": format!("{}-{name}", self.name), "labels": { SEEN_BY: self.seen_by } },
            "spec": spec,
        }))
    }

    /// Creates it, and gives its name.
    pub async fn create_check(&self, check: Value) -> Result<String> {
        let object: NodeHealthCheck = serde_json::from_value(check)?;
        let created = self.checks().create(&PostParams::default(), &object).await;
        Ok(created.context("create the NodeHealthCheck")?.name_any())
    }

    pub fn checks(&self) -> Api<NodeHealthCheck> {
        Api::all(self.client.clone())
    }

    /// Changes fields of its specification.
    pub async fn change_check(&self, check: &str, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.checks().patch(check, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub async fn status(&self, check: &str) -> Result<NodeHealthCheckStatus> {
        Ok(self.checks().get(check).await?.status.unwrap_or_default())
    }

    /// Waits until its status is as `is_so` has it.
    pub async fn until_status(
        &self,
        check: &str,
        what: &str,
        is_so: impl Fn(&NodeHealthCheckStatus) -> bool,
    ) -> Result<NodeHealthCheckStatus> {
        wait::until(format!("a status of {check} with {what}"), SOON, || async {
            let status = self.status(check).await?;
            ensure!(is_so(&status), "{}", serde_json::to_string(&status)?);
            Ok(status)
        })
        .await
    }

    /// Waits until its status has so many healthy nodes of so many.
    pub async fn until_counted(&self, check: &str, healthy: i32, observed: i32) -> Result<()> {
        let what = format!("{healthy} of {observed} nodes healthy");
        let is_so = |status: &NodeHealthCheckStatus| {
            (status.healthy_nodes, status.observed_nodes) == (Some(healthy), Some(observed))
        };
        self.until_status(check, &what, is_so).await.map(drop)
    }

    /// Waits until all of its nodes are healthy, and nothing of any remediation is left.
    pub async fn until_at_rest(&self, check: &str, nodes: i32) -> Result<()> {
        self.until_counted(check, nodes, nodes).await?;
        let is_clean = |status: &NodeHealthCheckStatus| status.unhealthy_nodes.is_empty();
        self.until_status(check, "no unhealthy nodes", is_clean).await?;
        for family in FAMILIES {
            self.until_none(family).await?;
        }
        wait::until("the leases of the nodes to be gone", SOON, || async {
            let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.leases);
            let leases = leases.list_metadata(&ListParams::default()).await?.items;
            let names = leases.iter().map(ResourceExt::name_any);
            let left: Vec<String> = names.filter(|name| name.contains(&self.name)).collect();
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })
        .await
    }

    /// The node's entry in the status.
    pub async fn entry(&self, check: &str, node: &str) -> Result<Option<UnhealthyNode>> {
        let entries = self.status(check).await?.unhealthy_nodes;
        Ok(entries.into_iter().find(|entry| entry.name == node))
    }

    /// The remediations of one kind.
    pub fn remediations(&self, family: Family) -> Api<DynamicObject> {
        family.remediation().api(&self.client, family.scope(&self.name))
    }

    /// The remediations that the node has.
    pub async fn remediations_of(&self, family: Family, node: &str) -> Result<Vec<DynamicObject>> {
        let all = self.remediations(family).list(&ListParams::default()).await?.items;
        Ok(all
            .into_iter()
            .filter(|object| remediator::node_of(object) == node)
            .collect())
    }

    /// Waits until the node has one remediation of the kind, and gives it.
    pub async fn remediation(&self, family: Family, node: &str) -> Result<DynamicObject> {
        let what = format!("a {:?} for {node}", family.remediation());
        wait::until(what, SOON, || async {
            let found = self.remediations_of(family, node).await?;
            ensure!(found.len() == 1, "{} of them", found.len());
            found.into_iter().next().context("none")
        })
        .await
    }

    /// Waits until there is none of the kind.
    pub async fn until_none(&self, family: Family) -> Result<()> {
        wait::until(format!("no {:?}", family.remediation()), SOON, || async {
            let left = self
                .remediations(family)
                .list_metadata(&ListParams::default())
                .await?
                .items;
            let names: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
            ensure!(names.is_empty(), "{names:?}");
            Ok(())
        })
        .await
    }

    /// The node has no remediation of the kind, and gets none for a while.
    pub async fn gets_none(&self, family: Family, node: &str) -> Result<()> {
        let what = format!("no {:?} for {node}", family.remediation());
        wait::throughout(what, WHILE, || async {
            let found = self.remediations_of(family, node).await?.len();
            ensure!(found == 0, "{found} of them");
            Ok(())
        })
        .await
    }

    /// How many remediations of the kind were ever created here.
    pub fn created(&self, family: Family) -> Result<usize> {
        Ok(self.created_names(family)?.len())
    }

    /// The names of the remediations that operators created: each begins with that of its node.
    pub fn created_names(&self, family: Family) -> Result<Vec<String>> {
        let plural = family.remediation().resource().plural;
        let all = self.plane.audit().since(self.began)?;
        let created = all.only(|request| {
            request.verb == "create"
                && request.resource == plural
                && request.namespace == family.scope(&self.name).unwrap_or_default()
                && request.code == 201
        });
        Ok(created
            .of_operators()
            .0
            .into_iter()
            .map(|request| request.name)
            .collect())
    }

    /// A remediator says that it did not succeed.
    pub async fn say_failed(&self, family: Family, remediation: &DynamicObject) -> Result<()> {
        let api = self.remediations(family);
        remediator::set_conditions(&api, &remediation.name_any(), &[("Succeeded", "False")]).await
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// The node's heartbeats stop; waits until the node-lifecycle controller has seen it.
    pub async fn lose_heartbeats(&self, node: &str) -> Result<()> {
        fleet::stop_kubelet(&self.client, node).await?;
        self.until_ready_is(node, "Unknown").await
    }

    /// The node's heartbeats stop.
    pub async fn lose_heartbeats_without_waiting(&self, node: &str) -> Result<()> {
        fleet::stop_kubelet(&self.client, node).await
    }

    /// Its kubelet says that it is not ready.
    pub async fn not_ready(&self, node: &str) -> Result<()> {
        fleet::set_ready(&self.client, node, false).await
    }

    /// Its kubelet runs, and says that it is ready.
    pub async fn recover(&self, node: &str) -> Result<()> {
        fleet::boot_kubelet(&self.client, node, Duration::ZERO).await?;
        self.until_ready_is(node, "True").await
    }

    pub async fn until_ready_is(&self, node: &str, status: &str) -> Result<()> {
        wait::until(format!("Ready of {node} to be {status}"), secs(60), || async {
            let found = self.nodes().get(node).await?;
            let ready = fleet::ready_status(&found);
            ensure!(ready == Some(status), "{ready:?}");
            Ok(())
        })
        .await
    }

    pub fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.leases)
    }

    /// Who holds the node's lease.
    pub async fn lease_holder(&self, node: &str) -> Result<Option<String>> {
        let lease = self.leases().get_opt(&format!("node-{node}")).await?;
        Ok(lease.and_then(|lease| lease.spec?.holder_identity))
    }

    /// Takes the node's lease for somebody else, for ten minutes.
    pub async fn hold_lease(&self, node: &str, holder: &str) -> Result<()> {
        self.hold_lease_for(node, holder, 600).await
    }

    /// As [`Environment::hold_lease`], valid for so many seconds.
    pub async fn hold_lease_for(&self, node: &str, holder: &str, seconds: u32) -> Result<()> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let lease = json!({
            "metadata": { "name": format!("node-{node}") },
            "spec": { "holderIdentity": holder, "leaseDurationSeconds": seconds, "acquireTime": now, "renewTime": now },
        });
        let lease = serde_json::from_value(lease)?;
        self.leases().create(&PostParams::default(), &lease).await?;
        Ok(())
    }

    /// Waits until an Event of this reason is about the object of this name.
    pub async fn event(&self, about: &str, reason: &str) -> Result<Event> {
        wait::until(format!("the Event {reason} about {about}"), SOON, || async {
            let events: Api<Event> = Api::all(self.client.clone());
            let events = events.list(&ListParams::default()).await?.items;
            let about_it: Vec<Event> = events
                .into_iter()
                .filter(|event| event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(about))
                .collect();
            let reasons: Vec<_> = about_it.iter().filter_map(|event| event.reason.clone()).collect();
            let found = about_it
                .into_iter()
                .find(|event| event.reason.as_deref() == Some(reason));
            found.with_context(|| format!("{reasons:?}"))
        })
        .await
    }

    /// The metrics of the operator that most tests share.
    pub async fn shared_metrics(&self) -> Result<operator::Metrics> {
        shared_operator().await?.operator.metrics().await
    }

    /// Removes what the operator that most tests share would look after for ever, and checks what holds in every test.
    pub async fn end<const N: usize>(self, checks: [String; N]) -> Result<()> {
        for check in checks {
            self.checks().delete(&check, &DeleteParams::default()).await?;
        }
        let shared = shared_operator().await?;
        ensure!(shared.operator.process().is_running(), "the operator has ended");
        ensure!(!shared.operator.log().contains("panicked"), "the operator has panicked");
        let refused = self
            .plane
            .audit()
            .since(self.began)?
            .of_service_account(SYSTEM, &format!("{RELEASE}-{COMPONENT}"));
        let refused = refused.only(|request| request.code == 403 || request.code == 401);
        ensure!(refused.count() == 0, "the chart grants too little: {:?}", refused.0);
        Ok(())
    }
}

impl OwnEnvironment {
    /// A new environment with a release of the chart of its own, with these values.
    pub async fn new(changes: Value) -> Result<Self> {
        Self::named(names::unique("own"), changes).await
    }

    /// The same under this name.
    pub async fn named(name: String, changes: Value) -> Result<Self> {
        Self::on(prepared().await?, name, changes).await
    }

    /// The same on another control plane, which is prepared.
    pub async fn on(plane: &'static ControlPlane, name: String, changes: Value) -> Result<Self> {
        let leases = format!("{name}-leases");
        let environment = Environment::of(plane, &name, &leases).await?;
        let mut own = json!({
            "enabled": true,
            "deployment": { "enabled": false },
            "webhook": { "enabled": false },
            "leases": { "namespace": leases },
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            own[key] = value.clone();
        }
        // For the tests that run one, too.
        let lock = json!({
            "enabled": true, "deployment": { "enabled": false }, "webhook": { "enabled": false },
            "medik8sLease": { "namespace": leases },
        });
        let system = format!("{name}-system");
        let values = json!({
            "crds": { "enabled": false }, "drainKeeper": { "enabled": false }, "drainLock": lock, "healthCheck": own,
        });
        Release::new(&name, &system).values(values).install(plane).await?;
        let service_account = format!("{name}-nodeward-{COMPONENT}");
        until_granted(&environment.client, &system, &service_account).await?;
        Ok(Self {
            proxy: confined_proxy(plane, &name).await?,
            service_account,
            system,
            environment,
        })
    }

    /// An operator of this environment, to be started.
    pub fn spec(&self, config: &Value) -> OperatorSpec {
        Self::spec_of(&self.name, config).through(&self.proxy.url())
    }

    /// An operator of the environment of this name, to be started.
    pub fn spec_of(name: &str, config: &Value) -> OperatorSpec {
        let own = Self::config_of(name, config);
        operator(&format!("{name}-system"), &format!("{name}-nodeward-{COMPONENT}"), &own)
    }

    /// The configuration of an operator of the environment of this name, with these fields.
    fn config_of(name: &str, config: &Value) -> Value {
        let mut own = json!({ "leaseNamespace": format!("{name}-leases"), "safetyPass": "3s" });
        for (key, value) in config.as_object().into_iter().flatten() {
            own[key] = value.clone();
        }
        own
    }

    /// Changes its configuration while it runs.
    pub fn reload(&self, operator: &Operator, config: &Value) -> Result<()> {
        operator.write_config(&Self::config_of(&self.name, config).to_string())
    }

    /// Starts an operator, and waits until it is ready.
    pub async fn start(&self, config: Value) -> Result<Operator> {
        let operator = self.spec(&config).start(self.plane).await?;
        operator.ready(secs(60)).await?;
        Ok(operator)
    }

    /// A new environment whose operator's webhook is registered, and that operator.
    pub async fn reviewed() -> Result<(Self, Operator)> {
        Self::reviewed_on(prepared().await?).await
    }

    /// The same on another control plane, which is prepared.
    pub async fn reviewed_on(plane: &'static ControlPlane) -> Result<(Self, Operator)> {
        let port = ports::free()?;
        let webhook = json!({ "enabled": true, "url": format!("https://127.0.0.1:{port}") });
        let own = Self::on(plane, names::unique("own"), json!({ "webhook": webhook })).await?;
        let config = Self::config_of(&own.name, &json!({}));
        let spec = operator_on(port, &own.system, &own.service_account, &config);
        let operator = spec.through(&own.proxy.url()).start(own.plane).await?;
        operator.ready(secs(60)).await?;
        Ok((own, operator))
    }

    /// Takes the registration of its webhook back, which is asked for every NodeHealthCheck.
    pub async fn unregister_webhook(&self) -> Result<()> {
        let registrations: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        registrations
            .delete(&self.service_account, &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Creates a namespace in which its operators may keep leases.
    pub async fn add_lease_namespace(&self, namespace: &str) -> Result<()> {
        self.plane.namespace(namespace).await?;
        let api_group = "rbac.authorization.k8s.io";
        let role = json!({
            "metadata": { "name": "leases" },
            "rules": [{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"] }],
        });
        let roles: Api<Role> = Api::namespaced(self.client.clone(), namespace);
        roles
            .create(&PostParams::default(), &serde_json::from_value(role)?)
            .await?;
        let binding = json!({
            "metadata": { "name": "leases" },
            "roleRef": { "apiGroup": api_group, "kind": "Role", "name": "leases" },
            "subjects": [{ "kind": "ServiceAccount", "name": self.service_account, "namespace": self.system }],
        });
        let bindings: Api<RoleBinding> = Api::namespaced(self.client.clone(), namespace);
        bindings
            .create(&PostParams::default(), &serde_json::from_value(binding)?)
            .await?;
        Ok(())
    }

    /// What its operators have asked for.
    pub fn requests(&self) -> Result<Requests> {
        let all = self.plane.audit().since(self.began)?;
        Ok(all.of_service_account(&self.system, &self.service_account))
    }

    /// Ends operators as a kubelet does: they end well, and have never panicked.
    pub async fn end<const N: usize>(self, operators: [Operator; N]) -> Result<()> {
        for operator in &operators {
            let status = operator.stop(SOON).await?;
            let tail = operator.process().log_tail(25);
            ensure!(status.success(), "it ended with {status}:\n{tail}");
            ensure!(!operator.log().contains("panicked"), "it has panicked:\n{tail}");
        }
        Ok(())
    }
}

/// Requests of ServiceAccounts, not of the tests.
trait OfOperators {
    fn of_operators(self) -> Requests;
}

impl OfOperators for Requests {
    fn of_operators(self) -> Requests {
        self.only(|request| request.user.starts_with("system:serviceaccount:"))
    }
}

/// A moment, as a lease has it.
pub fn micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// A moment in the past, as the API has it.
pub fn ago(span: SignedDuration) -> String {
    (Timestamp::now() - span).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
