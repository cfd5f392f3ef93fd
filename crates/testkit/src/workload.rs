//! Workloads: pods, what owns them, and their budgets.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

use crate::wait;

/// The annotation that says how long a pod takes to get Ready, as `1500ms`.
pub(crate) const READY_AFTER: &str = "testbed.nodeward.dev/ready-after";

/// How a pod starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Ready at once, or after the given time (it stays Pending until then).
    Ready(Duration),
    /// Running at once, Ready after the given time.
    SlowReady(Duration),
    /// Running, never Ready.
    NeverReady,
    /// Waiting in `CrashLoopBackOff`.
    CrashLoop,
    /// Bound to its node and never started.
    NeverStarted,
    /// Succeeded at once.
    Finished,
    /// Failed at once.
    Failed,
    /// Ready at once, Succeeded after the given time.
    FinishesAfter(Duration),
}

/// How a deleted pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At once.
    Prompt,
    /// So many seconds after its `deletionTimestamp`, into which the server has already put the grace: with 0, it
    /// uses its whole grace.
    Slow(u32),
    /// So long after it was deleted, whatever its grace.
    Takes(Duration),
    /// Never: it stays until somebody deletes it with grace 0.
    Stuck,
}

/// Pods that are gone at once come back under their names before Kubernetes' own controller of budgets has seen them go: it
/// then takes the new ones for evicted, for two minutes.
pub const TERMINATES: End = End::Takes(Duration::from_secs(1));

#[derive(Clone, Debug)]
pub struct PodTemplate {
    metadata: Value,
    owner: Option<Value>,
    spec: Value,
}

impl PodTemplate {
    /// One container; no grace to speak of is used unless [`PodTemplate::end`] says so. The label `app` is its
    /// workload's (or its own) name.
    pub fn new() -> Self {
        let spec = json!({
            "containers": [{"name": "main", "image": "registry.example/app:1"}],
            "automountServiceAccountToken": false,
        });
        Self {
            metadata: json!({"finalizers": []}),
            owner: None,
            spec,
        }
    }

    metadata_builders! {
        /// Adds a label.
        label => "labels",
        /// Adds an annotation.
        annotation => "annotations",
    }

    /// Adds a finalizer.
    #[must_use]
    pub fn finalizer(mut self, finalizer: &str) -> Self {
        if let Some(finalizers) = self.metadata["finalizers"].as_array_mut() {
            finalizers.push(json!(finalizer));
        }
        self
    }

    /// Its pods fit these nodes alone, and of them rather those in `rather`.
    #[must_use]
    pub fn on_nodes(self, nodes: &[impl Serialize], rather: &[impl Serialize]) -> Self {
        self.spec(
            "affinity",
            json!({ "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [on_one_of(nodes)] },
                "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100, "preference": on_one_of(rather) }],
            } }),
        )
    }

    /// The pods of this app fit these nodes alone, no two on one.
    #[must_use]
    pub fn pinned(self, app: &str, nodes: &[impl Serialize]) -> Self {
        self.spec(
            "affinity",
            json!({
                "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [on_one_of(nodes)] } },
                "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
                    { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": app } } },
                ] },
            }),
        )
    }

    #[must_use]
    pub fn start(self, start: Start) -> Self {
        let seconds = |duration: Duration| format!("{}ms", duration.as_millis());
        let key = "testbed.nodeward.dev/start";
        match start {
            Start::Ready(after) if after.is_zero() => self,
            Start::Ready(after) => self.annotation(READY_AFTER, &seconds(after)),
            Start::SlowReady(after) => self
                .annotation(key, "slow-ready")
                .annotation(READY_AFTER, &seconds(after)),
            Start::NeverReady => self.annotation(key, "never-ready"),
            Start::CrashLoop => self.annotation(key, "crash-loop"),
            Start::NeverStarted => self.annotation(key, "never-started"),
            Start::Finished => self.annotation(key, "finished"),
            Start::Failed => self.annotation(key, "failed"),
            Start::FinishesAfter(after) => self.annotation("testbed.nodeward.dev/finish-after", &seconds(after)),
        }
    }

    #[must_use]
    pub fn end(self, end: End) -> Self {
        let key = "testbed.nodeward.dev/end";
        match end {
            End::Prompt => self,
            End::Slow(after) => self
                .annotation(key, "slow")
                .annotation("testbed.nodeward.dev/end-after", &after.to_string()),
            End::Takes(time) => self
                .annotation(key, "takes")
                .annotation("testbed.nodeward.dev/end-takes", &format!("{}ms", time.as_millis())),
            End::Stuck => self.annotation(key, "stuck"),
        }
    }

    /// `terminationGracePeriodSeconds`.
    #[must_use]
    pub fn grace(self, seconds: i64) -> Self {
        self.spec("terminationGracePeriodSeconds", json!(seconds))
    }

    /// Bound to this node without the scheduler.
    #[must_use]
    pub fn on(self, node: &str) -> Self {
        self.spec("nodeName", json!(node))
    }

    /// Only on nodes with this label.
    #[must_use]
    pub fn node_selector(self, key: &str, value: &str) -> Self {
        self.spec("nodeSelector", json!({key: value}))
    }

    /// Tolerates every taint.
    #[must_use]
    pub fn tolerates_all(self) -> Self {
        self.spec("tolerations", json!([{"operator": "Exists"}]))
    }

    /// With an emptyDir volume.
    #[must_use]
    pub fn empty_dir(self) -> Self {
        self.spec("volumes", json!([{"name": "scratch", "emptyDir": {}}]))
    }

    /// With a volume of this PersistentVolumeClaim (bind the pod by name: nothing provisions volumes here).
    #[must_use]
    pub fn claim(self, claim: &str) -> Self {
        let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
        self.spec("volumes", json!([volume]))
    }

    /// A mirror pod, as the kubelet makes for a static one.
    #[must_use]
    pub fn mirror(self) -> Self {
        self.annotation("kubernetes.io/config.mirror", "0123456789abcdef")
    }

    /// Owned by an object that need not exist: a controller whose kind no API server has to serve. The garbage
    /// collector removes pods whose owner's kind it knows and does not find, so give an unknown kind or a real `uid`.
    #[must_use]
    pub fn owned_by(mut self, api_version: &str, kind: &str, name: &str, uid: &str) -> Self {
        self.owner =
            Some(json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true}));
        self
    }

    /// Sets any field of the pod's spec.
    #[must_use]
    pub fn spec(mut self, field: &str, value: Value) -> Self {
        self.spec[field] = value;
        self
    }

    /// A pod of its own.
    ///
    /// # Errors
    /// When a field given to [`PodTemplate::spec`] has no place in a pod.
    pub fn pod(&self, namespace: &str, name: &str) -> Result<Pod> {
        let mut template = self.template(name);
        template["metadata"]["namespace"] = json!(namespace);
        template["metadata"]["name"] = json!(name);
        if let Some(owner) = &self.owner {
            template["metadata"]["ownerReferences"] = json!([owner]);
        }
        Ok(serde_json::from_value(template)?)
    }

    /// A Deployment of such pods.
    ///
    /// # Errors
    /// As [`PodTemplate::pod`].
    pub fn deployment(&self, namespace: &str, name: &str, replicas: u32) -> Result<Deployment> {
        self.workload(namespace, name, json!({"replicas": replicas}))
    }

    /// A StatefulSet of such pods, all started at once.
    ///
    /// # Errors
    /// As [`PodTemplate::pod`].
    pub fn stateful_set(&self, namespace: &str, name: &str, replicas: u32) -> Result<StatefulSet> {
        let spec = json!({"replicas": replicas, "serviceName": name, "podManagementPolicy": "Parallel"});
        self.workload(namespace, name, spec)
    }

    /// A DaemonSet of such pods.
    ///
    /// # Errors
    /// As [`PodTemplate::pod`].
    pub fn daemon_set(&self, namespace: &str, name: &str) -> Result<DaemonSet> {
        self.workload(namespace, name, json!({}))
    }

    /// A Job of one such pod; give it [`Start::FinishesAfter`].
    ///
    /// # Errors
    /// As [`PodTemplate::pod`].
    pub fn job(&self, namespace: &str, name: &str) -> Result<Job> {
        let mut template = self.template(name);
        template["spec"]["restartPolicy"] = json!("Never");
        let job = json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"template": template, "backoffLimit": 0}});
        Ok(serde_json::from_value(job)?)
    }

    fn workload<K: serde::de::DeserializeOwned>(&self, namespace: &str, name: &str, mut spec: Value) -> Result<K> {
        spec["selector"] = json!({"matchLabels": {"app": name}});
        spec["template"] = self.template(name);
        let workload = json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec});
        Ok(serde_json::from_value(workload)?)
    }

    fn template(&self, app: &str) -> Value {
        let mut template = json!({"metadata": self.metadata, "spec": self.spec});
        let label = &mut template["metadata"]["labels"]["app"];
        if label.is_null() {
            *label = json!(app);
        }
        template
    }
}

impl Default for PodTemplate {
    fn default() -> Self {
        Self::new()
    }
}

/// A PodDisruptionBudget to be created.
#[derive(Clone, Debug)]
pub struct Budget {
    metadata: Value,
    spec: Value,
}

impl Budget {
    fn new(namespace: &str, name: &str, field: &str, value: &Value) -> Self {
        // Not setting the selector means a null one, which selects nothing.
        Self {
            metadata: json!({"name": name, "namespace": namespace}),
            spec: json!({field: value}),
        }
    }

    /// `minAvailable`, a number or a percentage (`"50%"`).
    pub fn min_available(namespace: &str, name: &str, value: impl Into<Value>) -> Self {
        Self::new(namespace, name, "minAvailable", &value.into())
    }

    /// `maxUnavailable`, a number or a percentage.
    pub fn max_unavailable(namespace: &str, name: &str, value: impl Into<Value>) -> Self {
        Self::new(namespace, name, "maxUnavailable", &value.into())
    }

    /// Selects the pods of the workload `app`.
    #[must_use]
    pub fn of(self, app: &str) -> Self {
        self.selector(json!({"matchLabels": {"app": app}}))
    }

    /// Selects by any label selector, in the API's form; `{}` selects all.
    #[must_use]
    pub fn selector(mut self, selector: Value) -> Self {
        self.spec["selector"] = selector;
        self
    }

    metadata_builders! {
        /// Adds a label.
        label => "labels",
    }

    /// The API object.
    ///
    /// # Errors
    /// When the selector is not one.
    pub fn build(&self) -> Result<PodDisruptionBudget> {
        let budget = json!({"metadata": self.metadata, "spec": self.spec});
        Ok(serde_json::from_value(budget)?)
    }
}

/// Waits until the workload `app` has `count` Ready pods, and gives them.
///
/// # Errors
/// When the deadline passes.
pub async fn ready_pods(
    client: &Client,
    namespace: &str,
    app: &str,
    count: usize,
    deadline: Duration,
) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let of_app = ListParams::default().labels(&format!("app={app}"));
    wait::until(format!("{count} Ready pods of {namespace}/{app}"), deadline, || async {
        let mut ready = pods.list(&of_app).await?.items;
        let all = ready.len();
        ready.retain(is_up);
        ensure!(ready.len() == count, "{} Ready of {all}", ready.len());
        Ok(ready)
    })
    .await
}

/// Waits until the controller has counted the budget's pods: `observedGeneration` is current and `expectedPods` is
/// `expected`. Gives the budget.
///
/// # Errors
/// When the deadline passes.
pub async fn counted_budget(
    client: &Client,
    namespace: &str,
    name: &str,
    expected: i32,
    deadline: Duration,
) -> Result<PodDisruptionBudget> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), namespace);
    wait::until(format!("budget {namespace}/{name} to be counted"), deadline, || async {
        let budget = budgets.get(name).await?;
        let status = budget.status.clone().context("no status")?;
        let is_current = status.observed_generation == budget.metadata.generation;
        ensure!(is_current && status.expected_pods == expected, "{status:?}");
        Ok(budget)
    })
    .await
}

/// Waits until a budget allows so many disruptions.
///
/// # Errors
/// When the deadline passes.
pub async fn disruptions_allowed(
    client: &Client,
    namespace: &str,
    budget: &str,
    allowed: usize,
    deadline: Duration,
) -> Result<()> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), namespace);
    let allowed = i32::try_from(allowed)?;
    wait::until(format!("budget {budget} to allow {allowed}"), deadline, || async {
        let status = budgets.get(budget).await?.status.context("not counted")?;
        ensure!(status.disruptions_allowed == allowed, "{status:?}");
        Ok(())
    })
    .await
}

fn on_one_of(nodes: &[impl Serialize]) -> Value {
    json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": nodes }] })
}

/// Whether the pod counts as healthy for its budget: Ready, and not on its way out.
pub fn is_up(pod: &Pod) -> bool {
    is_ready(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// What is told of the pod's first container.
///
/// # Errors
/// When nothing is told yet.
pub fn container(pod: &Pod) -> Result<&ContainerStatus> {
    let mut statuses = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    statuses.next().context("its container")
}

/// Whether the pod's Ready condition is True.
pub fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The pod's phase; empty before it has one.
pub fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status.and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Waits until no object with this pod's UID exists any more (a StatefulSet makes another of the same name).
///
/// # Errors
/// When the deadline passes.
pub async fn gone(client: &Client, pod: &Pod, deadline: Duration) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let (name, uid) = (pod.name_any(), pod.uid());
    wait::until(format!("pod {name} to be gone"), deadline, || async {
        if let Some(now) = pods.get_opt(&name).await?.filter(|now| now.uid() == uid) {
            let (deleted, finalizers) = (&now.metadata.deletion_timestamp, now.finalizers());
            bail!("deletionTimestamp {deleted:?}, finalizers {finalizers:?}");
        }
        Ok(())
    })
    .await
}

/// Deletes with the pod's own grace, and does not wait.
///
/// # Errors
/// When the server refuses.
pub async fn delete(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let deleted = pods.delete(name, &DeleteParams::default()).await;
    deleted
        .map(drop)
        .with_context(|| format!("delete pod {namespace}/{name}"))
}

/// Patches pod metadata: finalizers, labels or annotations.
///
/// # Errors
/// When the server refuses.
pub async fn patch_metadata(client: &Client, namespace: &str, name: &str, metadata: Value) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let patch = Patch::Merge(json!({"metadata": metadata}));
    let patched = pods.patch(name, &PatchParams::default(), &patch).await;
    patched
        .map(drop)
        .with_context(|| format!("patch pod {namespace}/{name}"))
}
