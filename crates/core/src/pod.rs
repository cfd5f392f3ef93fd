//! What decisions need to know of a Pod.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Toleration};
use nodeward_api::opt_out::OptOut;
use nodeward_api::{annotation, label};

use crate::id::{NodeName, PodKey, PodUid, ResourceVersion};
use crate::node::Taint;

/// Annotation that the kubelet puts on the API's copy of a static pod.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// A Pod, projected to what decisions read.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about the pod, none of which rules out another"
)]
pub struct PodView {
    /// Namespace and name.
    pub key: PodKey,
    /// UID.
    pub uid: PodUid,
    /// Resource version, the precondition of finalizer removal and of deletes without grace.
    pub resource_version: ResourceVersion,
    /// `spec.nodeName`.
    pub node: Option<NodeName>,
    /// Labels, which budgets select by.
    pub labels: BTreeMap<String, String>,
    /// Controller.
    pub owner: Owner,
    /// `status.phase`.
    pub phase: Phase,
    /// Whether the `Ready` condition is `True`.
    pub ready: bool,
    /// Whether it is the API's copy of a static pod.
    pub mirror: bool,
    /// When it was created.
    pub created: Timestamp,
    /// Present while it terminates.
    pub deletion: Option<Deletion>,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// What its owner asked of drains.
    pub opt_out: Option<OptOut>,
    /// Whether a volume is a PersistentVolumeClaim.
    pub has_persistent_volume: bool,
    /// Whether a volume is an emptyDir, whose data goes with the pod.
    pub has_empty_dir: bool,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
}

/// That, and since when, a pod terminates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// `metadata.deletionTimestamp`: the server has already added the grace, so the pod should be gone by then.
    pub deadline: Timestamp,
    /// `metadata.deletionGracePeriodSeconds`.
    pub grace: SignedDuration,
}

impl Deletion {
    /// When the delete was asked for.
    pub fn requested_at(&self) -> Timestamp {
        self.deadline.checked_sub(self.grace).unwrap_or(self.deadline)
    }

    /// Whether the grace has passed at `now`.
    pub fn is_beyond_grace(&self, now: Timestamp) -> bool {
        self.deadline <= now
    }
}

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not all containers have started.
    Pending,
    /// Bound, and at least one container runs.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// The kubelet cannot be asked, or a phase we do not know.
    Unknown,
}

/// The controller that would make the pod again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// None: deleted is gone.
    Unmanaged,
    /// A DaemonSet, which drains leave alone.
    DaemonSet,
    /// A StatefulSet, whose pods have an identity.
    StatefulSet,
    /// Another kind of the groups `apps` or `batch`.
    Stateless,
    /// A kind of any other group, of which we cannot know what two copies would do.
    Foreign,
}

impl PodView {
    /// Projects a Pod as the API server sends it; `None` without namespace or name.
    pub fn project(pod: &Pod) -> Option<Self> {
        let meta = &pod.metadata;
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let volumes = spec.and_then(|s| s.volumes.as_deref()).unwrap_or_default();
        let annotations = meta.annotations.as_ref();
        let opt_out = meta
            .labels
            .as_ref()
            .and_then(|l| l.get(label::DRAIN))
            .or_else(|| annotations.and_then(|a| a.get(annotation::DRAIN)))
            .map(|value| OptOut::parse(value));
        Some(Self {
            key: PodKey::new(meta.namespace.as_deref()?, meta.name.as_deref()?),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            resource_version: meta.resource_version.as_deref().unwrap_or_default().into(),
            node: spec.and_then(|s| s.node_name.as_deref()).map(Into::into),
            labels: meta.labels.clone().unwrap_or_default(),
            owner: owner(pod),
            phase: match status.and_then(|s| s.phase.as_deref()) {
                Some("Pending") => Phase::Pending,
                Some("Running") => Phase::Running,
                Some("Succeeded") => Phase::Succeeded,
                Some("Failed") => Phase::Failed,
                _ => Phase::Unknown,
            },
            ready: status
                .iter()
                .flat_map(|s| s.conditions.iter().flatten())
                .any(|c| c.type_ == "Ready" && c.status == "True"),
            mirror: annotations.is_some_and(|a| a.contains_key(MIRROR_ANNOTATION)),
            created: meta.creation_timestamp.as_ref().map_or(Timestamp::MIN, |t| t.0),
            deletion: meta.deletion_timestamp.as_ref().map(|t| Deletion {
                deadline: t.0,
                grace: SignedDuration::from_secs(meta.deletion_grace_period_seconds.unwrap_or(0)),
            }),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            opt_out,
            has_persistent_volume: volumes
                .iter()
                .any(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some()),
            has_empty_dir: volumes.iter().any(|v| v.empty_dir.is_some()),
            tolerations: spec.and_then(|s| s.tolerations.clone()).unwrap_or_default(),
        })
    }

    /// Whether it has ended, well or badly.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether the eviction API deletes it without asking any budget (Kubernetes `canIgnorePDB`).
    pub fn skips_budgets(&self) -> bool {
        self.is_finished() || self.phase == Phase::Pending || self.deletion.is_some()
    }

    /// Whether one of its tolerations matches the taint, as the scheduler matches them.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| {
            let effect = toleration.effect.as_deref().unwrap_or_default();
            let key = toleration.key.as_deref().unwrap_or_default();
            let value_matches = match toleration.operator.as_deref().unwrap_or("Equal") {
                "Exists" => true,
                "Equal" | "" => toleration.value.as_deref().unwrap_or_default() == taint.value,
                _ => false,
            };
            (effect.is_empty() || effect == taint.effect) && (key.is_empty() || key == taint.key) && value_matches
        })
    }
}

fn owner(pod: &Pod) -> Owner {
    let controller = pod
        .metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true));
    let Some(controller) = controller else {
        return Owner::Unmanaged;
    };
    let group = controller.api_version.split_once('/').map_or("", |(group, _)| group);
    match (group, controller.kind.as_str()) {
        ("apps", "DaemonSet") => Owner::DaemonSet,
        ("apps", "StatefulSet") => Owner::StatefulSet,
        ("apps" | "batch", _) => Owner::Stateless,
        _ => Owner::Foreign,
    }
}
