//! What acts on remediation CRs: the remediators' kinds and rights, as their operators install them, and one that
//! power-cycles simulated nodes.
//!
//! It never writes a node's Ready: the kubelet's simulation and the node-lifecycle controller do, once the node's
//! heartbeats are back.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::foreign::Foreign;
use crate::{bulk, fleet, unless_refused};

/// The annotation of a remediation CR that names its node.
pub const NODE_NAME: &str = "remediation.medik8s.io/node-name";

/// The annotation by which a template says that a node may have several CRs of its kind.
pub const MULTIPLE_TEMPLATES: &str = "remediation.medik8s.io/multiple-templates-support";

/// What a remediator that must clean up puts on its CRs.
const FINALIZER: &str = "test.nodeward.dev/remediator";

/// What is granted to who creates the CRs of a remediator, by aggregation.
const VERBS: [&str; 7] = ["get", "list", "watch", "create", "update", "patch", "delete"];

/// A remediator, by the kinds that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// The node reboots itself.
    SelfNode,
    /// Its management controller is told to.
    FenceAgents,
    /// Its Machine is deleted.
    MachineDeletion,
    /// Its host is power-cycled, and the Node deleted and restored.
    Metal3,
    /// Nobody has heard of it.
    Custom,
    /// Nobody has heard of it, and its kinds have no namespaces.
    ClusterScoped,
}

impl Family {
    /// Group, version and kind of its CRs.
    pub(crate) const fn identity(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::SelfNode => ("self-node-remediation.medik8s.io", "v1alpha1", "SelfNodeRemediation"),
            Self::FenceAgents => (
                "fence-agents-remediation.medik8s.io",
                "v1alpha1",
                "FenceAgentsRemediation",
            ),
            Self::MachineDeletion => (
                "machine-deletion-remediation.medik8s.io",
                "v1alpha1",
                "MachineDeletionRemediation",
            ),
            Self::Metal3 => ("infrastructure.cluster.x-k8s.io", "v1beta1", "Metal3Remediation"),
            Self::Custom => ("remediators.example.com", "v1", "CustomRemediation"),
            Self::ClusterScoped => ("global.example.com", "v1", "GlobalRemediation"),
        }
    }

    /// The namespace of its objects where others' are in `namespace`.
    pub fn scope(self, namespace: &str) -> Option<&str> {
        (self != Self::ClusterScoped).then_some(namespace)
    }

    /// The kind of its CRs.
    pub const fn remediation(self) -> Foreign {
        Foreign::Remediation(self)
    }

    /// The kind of its templates.
    pub const fn template(self) -> Foreign {
        Foreign::RemediationTemplate(self)
    }

    /// Installs its CRDs and its ClusterRole, as its operator does.
    ///
    /// # Errors
    /// When the server refuses them, or does not serve the kinds in time.
    pub async fn install(self, client: &Client) -> Result<()> {
        self.install_with(client, &VERBS).await
    }

    /// The same with a role that grants only these verbs on its CRs.
    ///
    /// # Errors
    /// As [`Family::install`].
    pub async fn install_with(self, client: &Client, verbs: &[&str]) -> Result<()> {
        for kind in [self.remediation(), self.template()] {
            kind.install(client).await?;
        }
        let (remediation, template) = (self.remediation().resource(), self.template().resource());
        let name = format!("{}-ext-remediation", remediation.group);
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": { "name": name, "labels": { "rbac.ext-remediation/aggregate-to-ext-remediation": "true" } },
            "rules": [
                { "apiGroups": [template.group], "resources": [template.plural], "verbs": ["get", "list", "watch"] },
                { "apiGroups": [remediation.group], "resources": [remediation.plural], "verbs": verbs },
            ],
        });
        let roles: Api<ClusterRole> = Api::all(client.clone());
        let params = PatchParams::apply("nodeward-testbed").force();
        let written = roles.patch(&name, &params, &Patch::Apply(role)).await;
        written.map(drop).with_context(|| format!("write ClusterRole {name}"))
    }

    /// Creates a template that allows several CRs for a node, and gives the reference to it that a NodeHealthCheck holds.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn create_template(self, client: &Client, namespace: &str, name: &str) -> Result<Value> {
        let body = json!({
            "metadata": { "annotations": { MULTIPLE_TEMPLATES: "true" } },
            "spec": { "template": { "spec": { "strategy": name } } },
        });
        self.template().put(client, self.scope(namespace), name, body).await?;
        Ok(self.reference(namespace, name))
    }

    /// The reference to a template of this name.
    pub fn reference(self, namespace: &str, name: &str) -> Value {
        let resource = self.template().resource();
        let namespace = self.scope(namespace);
        json!({ "apiVersion": resource.api_version, "kind": resource.kind, "namespace": namespace, "name": name })
    }
}

/// What a remediator does with one CR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behavior {
    answer: Answer,
    after: Duration,
    keeps_finalizer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Nothing,
    PowerCycle { not_ready: Duration },
    Failure,
    DeleteNode,
}

impl Behavior {
    const fn of(answer: Answer) -> Self {
        Self {
            answer,
            after: Duration::ZERO,
            keeps_finalizer: false,
        }
    }

    /// It never answers.
    pub const NOTHING: Self = Self::of(Answer::Nothing);

    /// The node's pods end, and it boots again, with heartbeats. Then the CR says `Succeeded=True`.
    pub const POWER_CYCLE: Self = Self::of(Answer::PowerCycle {
        not_ready: Duration::ZERO,
    });

    /// The CR says `Succeeded=False`.
    pub const FAILURE: Self = Self::of(Answer::Failure);

    /// The CR says `PermanentNodeDeletionExpected=True`, and the Node is deleted. Who replaces it says `Succeeded`.
    pub const DELETE_NODE: Self = Self::of(Answer::DeleteNode);

    /// A power cycle after which the kubelet says for so long that it is not ready yet.
    pub const fn slow_boot(not_ready: Duration) -> Self {
        Self::of(Answer::PowerCycle { not_ready })
    }

    /// Begins so much later.
    #[must_use]
    pub const fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    /// The CR gets a finalizer, which stays until [`Remediator::release`].
    #[must_use]
    pub const fn keeps_finalizer(self) -> Self {
        Self {
            keeps_finalizer: true,
            ..self
        }
    }
}

/// A running remediator. It ends when it is dropped.
pub struct Remediator {
    released: watch::Sender<bool>,
    _task: JoinSet<()>,
}

impl Remediator {
    /// Acts on the CRs of this kind in `namespace`, on each once; `choose` says how, from the CR's node.
    pub fn start(
        client: &Client,
        family: Family,
        namespace: &str,
        choose: impl Fn(&str) -> Behavior + Send + Sync + 'static,
    ) -> Self {
        let released = watch::Sender::new(false);
        let served = Served {
            api: family.remediation().api(client, family.scope(namespace)),
            client: client.clone(),
            released: released.subscribe(),
        };
        let mut task = JoinSet::new();
        task.spawn(served.follow(Arc::new(choose)));
        Self { released, _task: task }
    }

    /// Takes its finalizer from all CRs that are deleted, from now on.
    pub fn release(&self) {
        self.released.send_replace(true);
    }
}

#[derive(Clone)]
struct Served {
    api: Api<DynamicObject>,
    client: Client,
    released: watch::Receiver<bool>,
}

impl Served {
    async fn follow(self, choose: Arc<dyn Fn(&str) -> Behavior + Send + Sync>) {
        let mut seen = HashSet::new();
        let mut under_way = JoinSet::new();
        let changes = watcher(self.api.clone(), watcher::Config::default()).default_backoff();
        let mut changes = std::pin::pin!(changes.applied_objects());
        while let Some(change) = changes.next().await {
            // The watch begins again by itself.
            let Ok(remediation) = change else { continue };
            if remediation.metadata.deletion_timestamp.is_some() || !seen.insert(remediation.uid()) {
                continue;
            }
            let behavior = choose(&node_of(&remediation));
            let served = self.clone();
            under_way.spawn(async move {
                let name = remediation.name_any();
                if let Err(error) = served.serve(&remediation, behavior).await {
                    eprintln!("the remediator gave up on {name}: {error:#}");
                }
            });
        }
    }

    async fn serve(mut self, remediation: &DynamicObject, behavior: Behavior) -> Result<()> {
        if behavior.keeps_finalizer {
            self.set_finalizers(remediation, json!([FINALIZER])).await?;
        }
        tokio::time::sleep(behavior.after).await;
        // Whoever deletes a CR wants nothing more of it.
        if self.is_wanted(remediation).await? {
            self.answer(remediation, behavior.answer).await?;
        }
        if behavior.keeps_finalizer {
            self.released.wait_for(|released| *released).await?;
            self.set_finalizers(remediation, json!([])).await?;
        }
        Ok(())
    }

    async fn answer(&self, remediation: &DynamicObject, answer: Answer) -> Result<()> {
        let (client, node) = (&self.client, node_of(remediation));
        match answer {
            Answer::Nothing => {}
            Answer::Failure => {
                set_conditions(&self.api, &remediation.name_any(), &[("Succeeded", "False")]).await?;
            }
            Answer::PowerCycle { not_ready } => {
                power_cycle(client, &node, not_ready).await?;
                set_conditions(&self.api, &remediation.name_any(), &[("Succeeded", "True")]).await?;
            }
            Answer::DeleteNode => {
                let expected = [("PermanentNodeDeletionExpected", "True"), ("Succeeded", "Unknown")];
                set_conditions(&self.api, &remediation.name_any(), &expected).await?;
                let nodes: Api<Node> = Api::all(client.clone());
                unless_gone(nodes.delete(&node, &DeleteParams::default()).await)?;
            }
        }
        Ok(())
    }

    async fn is_wanted(&self, remediation: &DynamicObject) -> Result<bool> {
        let now = self.api.get_metadata_opt(&remediation.name_any()).await?;
        Ok(now.is_some_and(|now| now.uid() == remediation.uid() && now.metadata.deletion_timestamp.is_none()))
    }

    async fn set_finalizers(&self, remediation: &DynamicObject, finalizers: Value) -> Result<()> {
        let patch = json!({ "metadata": { "uid": remediation.uid(), "finalizers": finalizers } });
        let (name, patch) = (remediation.name_any(), Patch::Merge(patch));
        unless_gone(self.api.patch(&name, &PatchParams::default(), &patch).await)
    }
}

/// The node that the CR is for.
pub fn node_of(remediation: &DynamicObject) -> String {
    let named = remediation.annotations().get(NODE_NAME).cloned();
    named.unwrap_or_else(|| remediation.name_any())
}

/// Sets the CR's conditions (type, status) in place of those that it has; one that is gone is left alone.
///
/// # Errors
/// When the server refuses it.
pub async fn set_conditions(api: &Api<DynamicObject>, name: &str, conditions: &[(&str, &str)]) -> Result<()> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |(kind, status): &(&str, &str)| json!({ "type": kind, "status": status, "reason": "Testbed", "message": "", "lastTransitionTime": now });
    let conditions: Vec<Value> = conditions.iter().map(condition).collect();
    let patch = Patch::Merge(json!({ "status": { "conditions": conditions } }));
    unless_gone(api.patch_status(name, &PatchParams::default(), &patch).await)
}

/// Switches the node off and on: its pods end, it has another `bootID`, and its kubelet sends heartbeats again, for so
/// long as one that is not ready.
///
/// # Errors
/// When the server refuses it; a node that is gone is left alone.
pub async fn power_cycle(client: &Client, node: &str, not_ready: Duration) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    if nodes.get_metadata_opt(node).await?.is_none() {
        return Ok(());
    }
    end_pods(client, node).await?;
    fleet::reboot(client, node).await?;
    fleet::boot_kubelet(client, node, not_ready).await
}

async fn end_pods(client: &Client, node: &str) -> Result<()> {
    let pods: Api<Pod> = Api::all(client.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    bulk::each(pods.list_metadata(&on_node).await?.items, |pod| async move {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        let now = DeleteParams::default().grace_period(0);
        unless_gone(pods.delete(&pod.name_any(), &now).await)
    })
    .await
    .map(drop)
}

/// Gone, or replaced by another of its name.
fn unless_gone<T>(outcome: kube::Result<T>) -> Result<()> {
    unless_refused(outcome, &[404, 409])
}
