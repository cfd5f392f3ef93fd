//! A Pod, with what decides where it can go.

use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use nodeward_core::intern::Pool;
use nodeward_core::pod::{self, Phase, PodSummary, surge_record};
use nodeward_core::surge::SurgeRecord;

use crate::requirements::Requirements;

/// A Pod, with what decides where it can go. A hundred and fifty thousand of them are kept: what siblings have in common
/// is shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// What all operators read.
    pub summary: PodSummary,
    /// What it asks of its node.
    pub requirements: Arc<Requirements>,
    /// The PersistentVolumeClaims that it mounts, by name.
    pub claims: Box<[Arc<str>]>,
    /// Whether a volume is an emptyDir, whose data goes with the pod.
    pub has_empty_dir: bool,
    /// Whether scheduling gates keep it from being scheduled at all.
    pub gated: bool,
    /// Since when the scheduler has found no node for it.
    pub unschedulable_since: Option<Timestamp>,
    /// That its Deployment is told to roll so that it moves.
    pub surge: Option<Arc<SurgeRecord>>,
}

impl Deref for PodFacts {
    type Target = PodSummary;

    fn deref(&self) -> &PodSummary {
        &self.summary
    }
}

impl PodFacts {
    /// Projects one pod alone, for one that was read by itself; `None` without namespace or name.
    pub fn project(pod: &Pod) -> Option<Self> {
        PodProjector::default().project(pod)
    }

    /// Whether it waits for the scheduler.
    pub fn awaits_a_node(&self) -> bool {
        self.node.is_none() && self.phase == Phase::Pending && self.deletion.is_none()
    }
}

/// Projects pods, and lets them share what they have in common.
#[derive(Debug, Default)]
pub struct PodProjector {
    summaries: pod::PodProjector,
    requirements: Pool<Requirements>,
}

impl PodProjector {
    /// Projects a pod; `None` without namespace or name.
    pub fn project(&mut self, pod: &Pod) -> Option<PodFacts> {
        let summary = self.summaries.project(pod)?;
        let texts = &mut self.summaries.texts;
        let spec = pod.spec.as_ref();
        let requirements = match spec {
            None => Requirements::default(),
            // The affinity of a DaemonSet's pod names its node, so that no two are alike, and nobody asks where else it
            // could go.
            Some(spec) if summary.is_daemon() => Requirements::of_bound(spec, texts),
            Some(spec) => Requirements::parse(spec, texts),
        };
        let unschedulable = pod::condition(pod, "PodScheduled")
            .filter(|scheduled| scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable"));
        Some(PodFacts {
            claims: spec
                .map(|spec| claims(spec, &summary.key.name, texts))
                .unwrap_or_default(),
            requirements: self.requirements.value(requirements),
            has_empty_dir: spec
                .is_some_and(|spec| spec.volumes.iter().flatten().any(|volume| volume.empty_dir.is_some())),
            gated: spec.is_some_and(|spec| spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty())),
            // drain-keeper does not go on with what cannot be read.
            surge: surge_record(&pod.metadata).and_then(Result::ok).map(Arc::new),
            unschedulable_since: unschedulable.and_then(|condition| Some(condition.last_transition_time.as_ref()?.0)),
            summary,
        })
    }
}

fn claims(spec: &PodSpec, name: &str, texts: &mut Pool<str>) -> Box<[Arc<str>]> {
    let volumes = spec.volumes.iter().flatten();
    volumes
        .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(texts.text(&claim.claim_name)),
            // The claim of an ephemeral volume is named after pod and volume.
            (None, Some(_)) => Some(Arc::from(format!("{name}-{}", volume.name))),
            (None, None) => None,
        })
        .collect()
}
