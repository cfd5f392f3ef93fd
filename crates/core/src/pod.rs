//! What decisions need to know of a Pod.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    ContainerStateRunning, ContainerStatus, Pod, PodCondition, PodStatus, Toleration, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use nodeward_api::annotation;
use nodeward_api::surge_record::SurgeRecord;
use sha2::{Digest, Sha256};

use crate::id::{NodeName, PodKey, PodUid, ResourceVersion};
use crate::intern::Pool;
use crate::labels::Labels;
use crate::node::Taint;
use crate::opt_out::{OptOut, OptOutSource, OptOuts};

/// Annotation that the kubelet puts on the API's copy of a static pod.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// What the API server puts where a pod says nothing (`DefaultTerminationGracePeriodSeconds`).
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// What every operator reads of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSummary {
    /// Namespace and name.
    pub key: PodKey,
    pub uid: PodUid,
    /// The node that it is bound to.
    pub node: Option<NodeName>,
    /// Labels, which budgets select by.
    pub labels: Arc<Labels>,
    /// Its controller.
    pub owner: Option<Arc<OwnerView>>,
    /// `status.phase`.
    pub phase: Phase,
    /// Whether the `Ready` condition is `True`.
    pub ready: bool,
    /// When the present `Ready` became what it is.
    pub ready_since: Option<Timestamp>,
    /// Since when all of its containers have run: when the first of them that runs was started.
    pub started_at: Option<Timestamp>,
    /// A hash of the ids of its running containers, which are others after a reboot; `None` while no id is known.
    pub containers: Option<ContainersHash>,
    /// Whether it is the API's copy of a static pod.
    pub mirror: bool,
    /// When it was created.
    pub created: Timestamp,
    /// Present while it terminates.
    pub deletion: Option<Box<Deletion>>,
    /// What its owner asked of drains, and where.
    pub opt_outs: OptOuts,
}

/// A hash of the ids of a pod's running containers. Written as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContainersHash(NonZeroU64);

impl ContainersHash {
    fn of(status: &PodStatus) -> Option<Self> {
        let mut ids: Vec<&str> = running_containers(status)
            .filter_map(|(container, _)| container.container_id.as_deref().filter(|id| !id.is_empty()))
            .collect();
        ids.sort_unstable();
        let (first, others) = ids.split_first()?;
        let mut hash = Sha256::new_with_prefix(first);
        for id in others {
            hash.update("\n");
            hash.update(id);
        }
        let digest = hash.finalize();
        let head = digest.iter().take(8).fold(0, |head, byte| head << 8 | u64::from(*byte));
        NonZeroU64::new(head).map(Self)
    }
}

impl fmt::Display for ContainersHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A Pod, with what decides whether and how it is removed by force.
#[derive(Debug, Clone, PartialEq)]
pub struct PodView {
    /// What all operators read.
    pub summary: PodSummary,
    /// Resource version, the precondition of finalizer removal and of deletes without grace.
    pub resource_version: ResourceVersion,
    /// `spec.terminationGracePeriodSeconds`: what a delete without a grace of its own gives it.
    pub own_grace: SignedDuration,
    pub finalizers: Vec<String>,
    /// Whether a volume may hold data that a second copy of the pod would write, too.
    pub has_persistent_volume: bool,
    /// Whether a volume is an emptyDir, whose data goes with the pod.
    pub has_empty_dir: bool,
    pub tolerations: Vec<Toleration>,
    pub surge: SurgeMarks,
}

/// What a pod says of a surge of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SurgeMarks {
    /// That its Deployment is told to roll so that it moves; or why what is written cannot be read.
    pub record: Option<Result<SurgeRecord, String>>,
    pub is_refused: bool,
    /// When its Deployment had last been told to roll by the time that the pod was made, whatever the text says.
    pub restarted_at: Option<Arc<str>>,
}

impl SurgeMarks {
    fn of(meta: &ObjectMeta) -> Self {
        let annotation = |key: &str| meta.annotations.as_ref()?.get(key).map(String::as_str);
        Self {
            record: surge_record(meta),
            is_refused: refuses_surge(meta),
            restarted_at: annotation(annotation::RESTARTED_AT).map(Arc::from),
        }
    }
}

/// That a pod's Deployment is told to roll so that it moves; or why what is written cannot be read.
pub fn surge_record(meta: &ObjectMeta) -> Option<Result<SurgeRecord, String>> {
    let text = meta.annotations.as_ref()?.get(annotation::SURGED)?;
    Some(SurgeRecord::parse(text).map_err(|error| error.to_string()))
}

/// Whether the object is marked with [`annotation::SURGE`].
pub fn refuses_surge(meta: &ObjectMeta) -> bool {
    let marks = [&meta.labels, &meta.annotations];
    marks
        .into_iter()
        .flatten()
        .any(|marks| marks.contains_key(annotation::SURGE))
}

impl Deref for PodView {
    type Target = PodSummary;

    fn deref(&self) -> &PodSummary {
        &self.summary
    }
}

/// That, and since when, a pod terminates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// `metadata.deletionTimestamp`: the server has already added the grace, so the pod should be gone by then.
    pub deadline: Timestamp,
    /// `metadata.deletionGracePeriodSeconds`.
    pub grace: SignedDuration,
    /// What keeps it beyond that.
    pub finalizers: Vec<String>,
    /// Whether Kubernetes names a disruption as the cause (condition `DisruptionTarget`): an eviction, a preemption, a taint.
    /// A plain delete has none.
    pub is_disruption: bool,
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnerView {
    /// Group and version.
    pub api_version: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

impl OwnerView {
    pub fn project(owner: &OwnerReference) -> Self {
        Self {
            api_version: owner.api_version.as_str().into(),
            kind: owner.kind.as_str().into(),
            name: owner.name.as_str().into(),
            uid: owner.uid.as_str().into(),
        }
    }
}

/// The owner that controls the object.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = meta.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

/// What a pod's controller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// None: deleted is gone.
    Unmanaged,
    /// A DaemonSet, which drains leave alone.
    DaemonSet,
    /// A StatefulSet, whose pods have an identity.
    StatefulSet,
    /// A Job, which counts how its pods end.
    Job,
    /// Another kind of the groups `apps` or `batch`, or a ReplicationController.
    Stateless,
    /// A kind of another group whose pods have an identity: a StatefulSet of OpenKruise, a Job of Volcano.
    ForeignWithIdentity,
    /// Any other kind of another group, of which we cannot know what two copies would do.
    Foreign,
}

impl Owner {
    /// Whether a later pod may have the name of an earlier one. ReplicaSets, Jobs and DaemonSets of Kubernetes end their pods'
    /// names in five random characters.
    pub const fn reuses_names(self) -> bool {
        match self {
            Self::Unmanaged | Self::StatefulSet | Self::ForeignWithIdentity | Self::Foreign => true,
            Self::DaemonSet | Self::Job | Self::Stateless => false,
        }
    }

    /// Whether it makes each pod that goes again under the same name, once that has gone.
    pub const fn keeps_names(self) -> bool {
        matches!(self, Self::StatefulSet | Self::ForeignWithIdentity)
    }

    /// Whether it is of a kind that is not Kubernetes' own.
    pub const fn is_foreign(self) -> bool {
        matches!(self, Self::ForeignWithIdentity | Self::Foreign)
    }
}

impl PodSummary {
    /// What its controller is.
    pub fn owner(&self) -> Owner {
        let Some(owner) = &self.owner else {
            return Owner::Unmanaged;
        };
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        match (group, &*owner.kind) {
            ("apps", "DaemonSet") => Owner::DaemonSet,
            ("apps", "StatefulSet") => Owner::StatefulSet,
            ("batch", "Job") => Owner::Job,
            ("apps" | "batch", _) | ("", "ReplicationController") => Owner::Stateless,
            ("apps.kruise.io", "StatefulSet") | ("batch.volcano.sh", "Job") => Owner::ForeignWithIdentity,
            _ => Owner::Foreign,
        }
    }

    /// Whether a DaemonSet of Kubernetes itself made it: drains leave it alone.
    pub fn is_daemon(&self) -> bool {
        self.owner() == Owner::DaemonSet
    }

    /// Whether it counts towards the pods that its controller is to have: a controller makes another in the place of one that
    /// has ended or is on its way out. A DaemonSet has one a node.
    pub fn is_kept_up(&self) -> bool {
        let is_counted = !matches!(self.owner(), Owner::Unmanaged | Owner::DaemonSet);
        is_counted && self.deletion.is_none() && !self.is_finished()
    }

    /// Whether both are made by the same controller.
    pub fn is_sibling_of(&self, other: &Self) -> bool {
        match (&self.owner, &other.owner) {
            (Some(own), Some(others)) => own.uid == others.uid,
            _ => false,
        }
    }

    /// Whether it has ended, well or badly.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether the disruption controller counts it as healthy, but for evictions that it has yet to see.
    pub fn is_healthy(&self) -> bool {
        self.ready && self.deletion.is_none()
    }

    /// What its owner asked of drains, where all of it is honoured.
    pub fn opt_out(&self, now: Timestamp) -> Option<(OptOut, OptOutSource)> {
        self.opt_outs.first(now)
    }

    /// Whether the eviction API deletes it without asking any budget (Kubernetes `canIgnorePDB`).
    pub fn skips_budgets(&self) -> bool {
        self.is_finished() || self.phase == Phase::Pending || self.deletion.is_some()
    }
}

impl PodView {
    /// Projects a Pod as the API server sends it; `None` without namespace or name.
    pub fn project(pod: &Pod) -> Option<Self> {
        let meta = &pod.metadata;
        let spec = pod.spec.as_ref();
        let grace = spec.and_then(|spec| spec.termination_grace_period_seconds);
        let volumes = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        Some(Self {
            summary: PodProjector::default().project(pod)?,
            resource_version: meta.resource_version.as_deref().unwrap_or_default().into(),
            own_grace: SignedDuration::from_secs(grace.unwrap_or(DEFAULT_GRACE_SECONDS)),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            has_persistent_volume: !volumes.iter().all(is_of_this_copy_alone),
            has_empty_dir: volumes.iter().any(|volume| volume.empty_dir.is_some()),
            tolerations: spec.and_then(|spec| spec.tolerations.clone()).unwrap_or_default(),
            surge: SurgeMarks::of(meta),
        })
    }

    /// Whether one of its tolerations matches the taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        taint.tolerated_by(&self.tolerations).is_some()
    }
}

/// Projects pods, and lets them share what they have in common.
#[derive(Debug, Default)]
pub struct PodProjector {
    /// Texts, of other parts of the pods too.
    pub texts: Pool<str>,
    labels: Pool<Labels>,
    owners: Pool<OwnerView>,
}

impl PodProjector {
    /// Projects a pod; `None` without namespace or name.
    pub fn project(&mut self, pod: &Pod) -> Option<PodSummary> {
        let meta = &pod.metadata;
        let name: Arc<str> = meta.name.as_deref()?.into();
        let namespace = self.texts.text(meta.namespace.as_deref()?);
        let annotation = |key: &str| meta.annotations.as_ref()?.get(key).map(String::as_str);
        let label = |key: &str| meta.labels.as_ref()?.get(key).map(String::as_str);
        let status = pod.status.as_ref();
        let ready = condition(pod, "Ready");
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let node = node.filter(|node| !node.is_empty());
        let created = meta.creation_timestamp.as_ref().map(|time| time.0);
        // A StatefulSet labels each of its pods with its own name.
        let labels = Labels::project(meta.labels.as_ref(), |text| {
            if *text == *name {
                Arc::clone(&name)
            } else {
                self.texts.text(text)
            }
        });
        Some(PodSummary {
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            node: node.map(|node| self.texts.text(node).into()),
            labels: self.labels.value(labels),
            owner: self.owner(pod),
            phase: match status.and_then(|status| status.phase.as_deref()) {
                Some("Pending") => Phase::Pending,
                Some("Running") => Phase::Running,
                Some("Succeeded") => Phase::Succeeded,
                Some("Failed") => Phase::Failed,
                _ => Phase::Unknown,
            },
            ready: ready.is_some_and(|ready| ready.status == "True"),
            ready_since: ready.and_then(|ready| Some(ready.last_transition_time.as_ref()?.0)),
            started_at: status.and_then(started_at),
            containers: status.and_then(ContainersHash::of),
            mirror: annotation(MIRROR_ANNOTATION).is_some(),
            created: created.unwrap_or(Timestamp::UNIX_EPOCH),
            deletion: meta.deletion_timestamp.as_ref().map(|time| {
                Box::new(Deletion {
                    deadline: time.0,
                    grace: SignedDuration::from_secs(meta.deletion_grace_period_seconds.unwrap_or(0)),
                    finalizers: meta.finalizers.clone().unwrap_or_default(),
                    is_disruption: condition(pod, "DisruptionTarget").is_some_and(|target| target.status == "True"),
                })
            }),
            opt_outs: OptOuts::read(
                label,
                annotation,
                status.and_then(|status| status.start_time.as_ref()).map(|time| time.0),
            ),
            key: PodKey::new(namespace, name),
        })
    }

    fn owner(&mut self, pod: &Pod) -> Option<Arc<OwnerView>> {
        let controller = controller_of(&pod.metadata)?;
        Some(self.owners.value(OwnerView {
            api_version: self.texts.text(&controller.api_version),
            kind: self.texts.text(&controller.kind),
            name: self.texts.text(&controller.name),
            uid: self.texts.text(&controller.uid),
        }))
    }
}

/// Whether the volume is read only, or no copy of the pod on another node sees it. One of a type that is not known here
/// may be shared.
pub const fn is_of_this_copy_alone(volume: &Volume) -> bool {
    volume.empty_dir.is_some()
        || volume.host_path.is_some()
        || volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
        || volume.image.is_some()
        || volume.git_repo.is_some()
}

pub fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == type_)
}

/// The containers that run; sidecars count, for they run as long as the pod does.
fn running_containers(status: &PodStatus) -> impl Iterator<Item = (&ContainerStatus, &ContainerStateRunning)> {
    let containers = status.container_statuses.iter().flatten();
    let init_containers = status.init_container_statuses.iter().flatten();
    containers
        .chain(init_containers)
        .filter_map(|container| Some((container, container.state.as_ref()?.running.as_ref()?)))
}

/// When the first of the running containers was started, so that nothing in the pod is older.
fn started_at(status: &PodStatus) -> Option<Timestamp> {
    running_containers(status)
        .filter_map(|(_, running)| running.started_at.as_ref())
        .map(|time| time.0)
        .min()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn project(pod: Value) -> PodView {
        PodView::project(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn with_metadata(mut metadata: Value) -> PodView {
        metadata["namespace"] = "shop".into();
        metadata["name"] = "web-0".into();
        project(json!({ "metadata": metadata }))
    }

    #[test]
    fn a_pod_is_projected_to_what_decisions_read() {
        let pod = project(json!({
            "metadata": {
                "namespace": "shop", "name": "web-0", "uid": "u1", "resourceVersion": "7",
                "labels": { "app": "web" }, "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-01T01:00:30Z", "deletionGracePeriodSeconds": 30,
                "finalizers": ["example.com/a"],
            },
            "spec": { "nodeName": "n1", "containers": [] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        }));
        assert_eq!(pod.key, PodKey::new("shop", "web-0"));
        assert_eq!((pod.uid.as_str(), pod.resource_version.as_str()), ("u1", "7"));
        assert_eq!(pod.node, Some("n1".into()));
        assert_eq!(pod.labels.get("app"), Some("web"));
        assert_eq!(pod.created, "2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(pod.finalizers, ["example.com/a"]);
        assert!(pod.ready && !pod.mirror && pod.phase == Phase::Running);
        let deletion = pod.deletion.as_deref().unwrap();
        assert_eq!(deletion.deadline, "2026-01-01T01:00:30Z".parse().unwrap());
        assert_eq!(deletion.requested_at(), "2026-01-01T01:00:00Z".parse().unwrap());
    }

    #[rstest]
    #[case(json!({ "metadata": { "name": "web-0" } }))]
    #[case(json!({ "metadata": { "namespace": "shop" } }))]
    fn a_pod_without_namespace_or_name_is_none(#[case] pod: Value) {
        assert_eq!(PodView::project(&serde_json::from_value(pod).unwrap()), None);
    }

    /// The server has already added the grace to `deletionTimestamp`.
    #[rstest]
    #[case("2026-01-01T00:59:59Z", false)]
    #[case("2026-01-01T01:00:00Z", true)]
    #[case("2026-01-01T01:00:01Z", true)]
    fn grace_is_over_at_the_deletion_timestamp(#[case] now: &str, #[case] beyond: bool) {
        let deletion = Deletion {
            deadline: "2026-01-01T01:00:00Z".parse().unwrap(),
            grace: SignedDuration::from_secs(30),
            finalizers: Vec::new(),
            is_disruption: false,
        };
        assert_eq!(deletion.is_beyond_grace(now.parse().unwrap()), beyond);
    }

    /// The later of the readings, so that nothing that counts from the delete comes early.
    #[test]
    fn deletion_without_grace_was_requested_at_its_deadline() {
        let deletion = with_metadata(json!({ "deletionTimestamp": "2026-01-01T01:00:00Z" }))
            .summary
            .deletion
            .unwrap();
        assert_eq!(deletion.requested_at(), deletion.deadline);
    }

    #[rstest]
    #[case(json!([]), Owner::Unmanaged)]
    #[case(json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u" }]), Owner::Unmanaged)]
    #[case(json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": false }]), Owner::Unmanaged)]
    #[case(json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true }]), Owner::Stateless)]
    #[case(json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true }]), Owner::Job)]
    #[case(json!([{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "u", "controller": true }]), Owner::StatefulSet)]
    #[case(json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true }]), Owner::DaemonSet)]
    #[case(json!([{ "apiVersion": "apps.kruise.io/v1beta1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true }]), Owner::Foreign)]
    #[case(json!([{ "apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "s", "uid": "u", "controller": true }]), Owner::ForeignWithIdentity)]
    #[case(json!([{ "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "u", "controller": true }]), Owner::ForeignWithIdentity)]
    #[case(json!([{ "apiVersion": "example.com/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true }]), Owner::Foreign)]
    // It is of the core group.
    #[case(json!([{ "apiVersion": "v1", "kind": "ReplicationController", "name": "r", "uid": "u", "controller": true }]), Owner::Stateless)]
    #[case(json!([
        { "apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u" },
        { "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true },
    ]), Owner::DaemonSet)]
    fn only_the_controller_reference_is_the_owner(#[case] references: Value, #[case] owner: Owner) {
        assert_eq!(with_metadata(json!({ "ownerReferences": references })).owner(), owner);
    }

    #[rstest]
    #[case::stateful_set("apps/v1", "StatefulSet", true, true)]
    #[case::volcanos_job("batch.volcano.sh/v1alpha1", "Job", true, true)]
    #[case::job_of_kubernetes("batch/v1", "Job", false, false)]
    #[case::replica_set("apps/v1", "ReplicaSet", false, false)]
    #[case::replication_controller("v1", "ReplicationController", false, false)]
    // Nobody knows how it names its pods.
    #[case::foreign("example.com/v1", "Job", true, false)]
    fn names_come_back_as_the_owners_group_has_it(
        #[case] api_version: &str,
        #[case] kind: &str,
        #[case] reuses: bool,
        #[case] keeps: bool,
    ) {
        let owner = json!([{ "apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": true }]);
        let owner = with_metadata(json!({ "ownerReferences": owner })).owner();
        assert_eq!((owner.reuses_names(), owner.keeps_names()), (reuses, keeps));
    }

    #[rstest]
    #[case(json!({}), None)]
    #[case(json!({ "labels": { "nodeward.dev/drain": "skip" } }), Some((OptOut::Skip, OptOutSource::Label)))]
    #[case(
        json!({ "annotations": { "nodeward.dev/drain": "wait-completed" } }),
        Some((OptOut::WaitCompleted, OptOutSource::Annotation))
    )]
    #[case(
        json!({ "labels": { "nodeward.dev/drain": "wait-completed" }, "annotations": { "nodeward.dev/drain": "skip" } }),
        Some((OptOut::WaitCompleted, OptOutSource::Label))
    )]
    // A label that is not understood does not let the annotation through.
    #[case(
        json!({ "labels": { "nodeward.dev/drain": "never" }, "annotations": { "nodeward.dev/drain": "skip" } }),
        Some((OptOut::Unknown, OptOutSource::Label))
    )]
    #[case(json!({ "labels": { "cluster.x-k8s.io/drain": "skip" } }), Some((OptOut::Skip, OptOutSource::ClusterApi)))]
    #[case(
        json!({ "annotations": { "karpenter.sh/do-not-disrupt": "true" } }),
        Some((OptOut::WaitCompleted, OptOutSource::Karpenter))
    )]
    fn an_opt_out_is_read_with_its_source(#[case] metadata: Value, #[case] opt_out: Option<(OptOut, OptOutSource)>) {
        assert_eq!(with_metadata(metadata).opt_out(Timestamp::UNIX_EPOCH), opt_out);
    }

    #[test]
    fn static_pods_api_copy_is_a_mirror() {
        assert!(with_metadata(json!({ "annotations": { "kubernetes.io/config.mirror": "hash" } })).mirror);
        assert!(!with_metadata(json!({ "labels": { "kubernetes.io/config.mirror": "hash" } })).mirror);
    }

    #[rstest]
    #[case("Pending", Phase::Pending, false, true)]
    #[case("Running", Phase::Running, false, false)]
    #[case("Succeeded", Phase::Succeeded, true, true)]
    #[case("Failed", Phase::Failed, true, true)]
    #[case("Unknown", Phase::Unknown, false, false)]
    #[case("New", Phase::Unknown, false, false)]
    fn phase_tells_finished_and_skips_budgets(
        #[case] text: &str,
        #[case] phase: Phase,
        #[case] finished: bool,
        #[case] skips: bool,
    ) {
        let pod = project(json!({ "metadata": { "namespace": "shop", "name": "p" }, "status": { "phase": text } }));
        assert_eq!(
            (pod.phase, pod.is_finished(), pod.skips_budgets()),
            (phase, finished, skips)
        );
    }

    #[test]
    fn a_terminating_pod_skips_budgets() {
        assert!(with_metadata(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" })).skips_budgets());
    }

    #[rstest]
    #[case(json!([]), false, false)]
    #[case(json!([{ "name": "a", "persistentVolumeClaim": { "claimName": "c" } }]), true, false)]
    #[case(json!([{ "name": "a", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }]), true, false)]
    #[case(json!([{ "name": "a", "nfs": { "server": "s", "path": "/" } }]), true, false)]
    #[case(json!([{ "name": "a", "iscsi": { "targetPortal": "p", "iqn": "i", "lun": 0 } }]), true, false)]
    #[case(json!([{ "name": "a", "csi": { "driver": "d.example.com" } }]), true, false)]
    #[case(json!([{ "name": "a" }]), true, false)]
    #[case(json!([{ "name": "a", "hostPath": { "path": "/" } }, { "name": "b", "projected": {} }]), false, false)]
    #[case(json!([{ "name": "a", "emptyDir": {} }, { "name": "b", "configMap": { "name": "c" } }]), false, true)]
    fn volumes_that_hold_data_are_seen(#[case] volumes: Value, #[case] persistent: bool, #[case] empty_dir: bool) {
        let pod = project(json!({
            "metadata": { "namespace": "shop", "name": "p" }, "spec": { "containers": [], "volumes": volumes },
        }));
        assert_eq!((pod.has_persistent_volume, pod.has_empty_dir), (persistent, empty_dir));
    }

    #[rstest]
    #[case::none(json!([]), false)]
    #[case::all(json!([{ "operator": "Exists" }]), true)]
    #[case::key_exists(json!([{ "key": "node.kubernetes.io/unschedulable", "operator": "Exists" }]), true)]
    #[case::key_and_effect(json!([{ "key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule" }]), true)]
    #[case::another_effect(json!([{ "key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoExecute" }]), false)]
    #[case::another_key(json!([{ "key": "node.kubernetes.io/not-ready", "operator": "Exists" }]), false)]
    #[case::equal_is_the_default(json!([{ "key": "node.kubernetes.io/unschedulable", "value": "" }]), true)]
    #[case::equal_without_value(json!([{ "key": "node.kubernetes.io/unschedulable", "operator": "Equal" }]), true)]
    #[case::another_value(json!([{ "key": "node.kubernetes.io/unschedulable", "operator": "Equal", "value": "x" }]), false)]
    #[case::unknown_operator(json!([{ "key": "node.kubernetes.io/unschedulable", "operator": "Gt", "value": "1" }]), false)]
    #[case::the_second_of_two(json!([{ "key": "a", "operator": "Exists" }, { "operator": "Exists", "effect": "NoSchedule" }]), true)]
    fn a_toleration_matches_as_the_scheduler_matches_it(#[case] tolerations: Value, #[case] tolerates: bool) {
        let pod = project(json!({
            "metadata": { "namespace": "shop", "name": "p" }, "spec": { "containers": [], "tolerations": tolerations },
        }));
        let taint = Taint {
            key: crate::node::UNSCHEDULABLE_TAINT.to_owned(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        };
        assert_eq!(pod.tolerates(&taint), tolerates);
    }
}
