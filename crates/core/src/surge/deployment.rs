//! What decides about a rollout of a Deployment.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStatus};
use k8s_openapi::api::core::v1::{NodeSelectorTerm, PodSpec, Toleration};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use nodeward_api::annotation;

use crate::id::{NamespacedName, ResourceVersion};
use crate::pod::{controller_of, is_of_this_copy_alone, refuses_surge};

/// By this label the Operator Lifecycle Manager tells what it manages.
const OLM_MANAGED: &str = "olm.managed";

const REVISION: &str = "deployment.kubernetes.io/revision";

const HOSTNAME: &str = "kubernetes.io/hostname";

/// What the API server puts where a Deployment says nothing.
const DEFAULT_PROGRESS_DEADLINE: i32 = 600;

/// A `progressDeadlineSeconds` of this means that there is none.
const NO_DEADLINE: i32 = i32::MAX;

/// A Deployment.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is true or not, whatever the others are"
)]
#[derive(Debug, Clone, PartialEq)]
pub struct DeploymentView {
    pub key: NamespacedName,
    pub uid: Arc<str>,
    pub resource_version: ResourceVersion,
    pub generation: i64,
    /// Its revision, as `kubectl rollout undo` counts.
    pub revision: Option<i64>,
    pub replicas: i32,
    /// Its rollout starts a new pod before it stops an old one.
    pub is_new_first: bool,
    pub is_refused: bool,
    /// Another controller manages it.
    pub is_managed: bool,
    pub is_paused: bool,
    pub is_being_deleted: bool,
    /// Its last rollout is complete, as `kubectl rollout status` tells it.
    pub is_complete: bool,
    /// No pod of it could be created.
    pub has_replica_failure: bool,
    /// Something tells that a new pod serves.
    pub awaits_readiness: bool,
    /// How long a rollout may make no progress; `None`: for ever.
    pub progress_deadline: Option<SignedDuration>,
    /// When it was last told to roll, whatever the text says.
    pub restarted_at: Option<Arc<str>>,
    pub tolerations: Vec<Toleration>,
    pub names_node: bool,
    /// The claims that its pods mount.
    pub claims: Vec<Arc<str>>,
    /// A volume that is no claim, and may be one that no second pod can mount.
    pub unshared_volume: Option<Arc<str>>,
}

impl DeploymentView {
    /// Projects a Deployment as the API server sends it; `None` without name or spec.
    pub fn project(deployment: &Deployment) -> Option<Self> {
        let meta = &deployment.metadata;
        let spec = deployment.spec.as_ref()?;
        let generation = meta.generation.unwrap_or_default();
        let annotation = |key: &str| meta.annotations.as_ref()?.get(key);
        let template = spec.template.metadata.as_ref();
        let restarted_at = template.and_then(|template| template.annotations.as_ref()?.get(annotation::RESTARTED_AT));
        let pod = spec.template.spec.as_ref();
        let is_olm_managed = meta
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key(OLM_MANAGED));
        let replicas = spec.replicas.unwrap_or(1);
        let deadline = spec.progress_deadline_seconds.unwrap_or(DEFAULT_PROGRESS_DEADLINE);
        let volumes = || pod.and_then(|pod| pod.volumes.as_ref()).into_iter().flatten();
        let unshared =
            volumes().find(|volume| !is_of_this_copy_alone(volume) && volume.persistent_volume_claim.is_none());
        let claims = volumes().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        Some(Self {
            key: NamespacedName::of(meta)?,
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            resource_version: meta.resource_version.as_deref().unwrap_or_default().into(),
            generation,
            revision: annotation(REVISION).and_then(|revision| revision.parse().ok()),
            replicas,
            is_new_first: is_new_first(spec, replicas),
            is_refused: refuses_surge(meta),
            is_managed: controller_of(meta).is_some() || is_olm_managed,
            is_paused: spec.paused.unwrap_or_default(),
            is_being_deleted: meta.deletion_timestamp.is_some(),
            is_complete: is_complete(generation, replicas, deployment.status.as_ref()),
            has_replica_failure: condition(deployment.status.as_ref(), "ReplicaFailure")
                .is_some_and(|(status, _)| status == "True"),
            awaits_readiness: spec.min_ready_seconds.unwrap_or_default() > 0 || pod.is_some_and(has_readiness_probe),
            progress_deadline: (deadline != NO_DEADLINE).then(|| SignedDuration::from_secs(deadline.into())),
            restarted_at: restarted_at.map(|text| text.as_str().into()),
            tolerations: pod.and_then(|pod| pod.tolerations.clone()).unwrap_or_default(),
            names_node: pod.is_some_and(names_node),
            claims: claims.map(|claim| claim.claim_name.as_str().into()).collect(),
            unshared_volume: unshared.map(|volume| volume.name.as_str().into()),
        })
    }
}

fn condition<'a>(status: Option<&'a DeploymentStatus>, type_: &str) -> Option<(&'a str, &'a str)> {
    let mut conditions = status?.conditions.iter().flatten();
    let condition = conditions.find(|condition| condition.type_ == type_)?;
    Some((&condition.status, condition.reason.as_deref().unwrap_or_default()))
}

/// As `kubectl rollout status` tells it (`DeploymentStatusViewer`).
fn is_complete(generation: i64, replicas: i32, status: Option<&DeploymentStatus>) -> bool {
    let Some(counted) = status else {
        return false;
    };
    let has_timed_out =
        condition(status, "Progressing").is_some_and(|(_, reason)| reason == "ProgressDeadlineExceeded");
    let updated = counted.updated_replicas.unwrap_or_default();
    generation <= counted.observed_generation.unwrap_or_default()
        && !has_timed_out
        && replicas <= updated
        && counted.replicas.unwrap_or_default() <= updated
        && updated <= counted.available_replicas.unwrap_or_default()
}

/// Whether a rollout may add a pod and may stop none before (`ResolveFenceposts` of the Deployment controller).
fn is_new_first(spec: &DeploymentSpec, replicas: i32) -> bool {
    let strategy = spec.strategy.as_ref();
    let rolls = strategy
        .and_then(|strategy| strategy.type_.as_deref())
        .unwrap_or("RollingUpdate")
        == "RollingUpdate";
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let default = IntOrString::String("25%".to_owned());
    let given =
        |value: Option<&IntOrString>, is_rounded_up| resolved(value.unwrap_or(&default), replicas, is_rounded_up);
    let surge = given(rolling.and_then(|rolling| rolling.max_surge.as_ref()), true);
    let unavailable = given(rolling.and_then(|rolling| rolling.max_unavailable.as_ref()), false);
    rolls && matches!((surge, unavailable), (Some(1..), Some(0)))
}

/// A number of pods, or a share of them; `None` for what the API server would not take.
fn resolved(value: &IntOrString, replicas: i32, is_rounded_up: bool) -> Option<i64> {
    match value {
        IntOrString::Int(count) => Some(i64::from(*count)),
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
            let hundredths = percent.checked_mul(i64::from(replicas))?;
            let up = i64::from(is_rounded_up && hundredths % 100 > 0);
            Some(hundredths / 100 + up)
        }
    }
}

fn has_readiness_probe(pod: &PodSpec) -> bool {
    pod.containers
        .iter()
        .any(|container| container.readiness_probe.is_some())
}

/// Whether its pods are bound to a node by its name.
fn names_node(pod: &PodSpec) -> bool {
    let by_selector = pod
        .node_selector
        .as_ref()
        .is_some_and(|labels| labels.contains_key(HOSTNAME));
    let affinity = pod
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let by_affinity = |term: &NodeSelectorTerm| {
        let by_label = term.match_expressions.iter().flatten();
        let by_name = term.match_fields.iter().flatten();
        by_label
            .filter(|label| label.key == HOSTNAME)
            .chain(by_name)
            .any(|named| named.operator == "In")
    };
    let terms = required
        .map(|required| required.node_selector_terms.as_slice())
        .unwrap_or_default();
    pod.node_name.is_some() || by_selector || terms.iter().any(by_affinity)
}
