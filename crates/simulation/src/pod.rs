//! A pod, as far as the simulated cluster needs it, and as the API server writes it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStatus, PersistentVolumeClaimVolumeSource, Pod,
    PodCondition, PodSpec, PodStatus, Toleration, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};

use nodeward_api::label;

use crate::clock::{Millis, SECOND, stored};

/// The one namespace.
pub const NAMESPACE: &str = "shop";

/// The label by which budgets select.
pub const APP: &str = "app";

/// A pod.
#[derive(Debug, Clone)]
pub struct SimPod {
    pub name: String,
    pub uid: String,
    pub version: u64,
    /// Which application it belongs to, by its place in the topology.
    pub app: usize,
    pub owner: Owner,
    /// The node that its volume is on.
    pub home: Option<String>,
    /// Whether it has opted out of drains.
    pub stays: bool,
    pub node: Option<String>,
    pub created: Millis,
    /// Whether its containers run, Ready or not.
    pub is_running: bool,
    pub ready_since: Option<Millis>,
    pub unschedulable_since: Option<Millis>,
    /// When it should be gone by.
    pub deletion: Option<Millis>,
    pub grace: Millis,
    /// Whether an eviction is on the record as the cause of its deletion.
    pub is_disruption: bool,
}

/// Who makes it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A StatefulSet: under the same name, once it is gone.
    StatefulSet,
    /// A ReplicaSet: under another name, as soon as it terminates.
    ReplicaSet,
}

impl Owner {
    fn kind(self) -> &'static str {
        match self {
            Self::StatefulSet => "StatefulSet",
            Self::ReplicaSet => "ReplicaSet",
        }
    }
}

impl SimPod {
    /// Whether the disruption controller counts it as healthy.
    pub fn is_healthy(&self) -> bool {
        self.ready_since.is_some() && self.deletion.is_none()
    }

    /// Whether the eviction handler asks no budget about it.
    pub fn skips_budgets(&self) -> bool {
        self.deletion.is_some() || !self.is_running
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = labels(self.app);
        labels.extend(self.stays.then(|| (label::DRAIN.to_owned(), "skip".to_owned())));
        labels
    }

    /// As the API server writes it.
    pub fn object(&self) -> Pod {
        let time = |at: Millis| Time(stored(at));
        let condition = |type_: &str, holds: bool, since: Option<Millis>, reason: &str| PodCondition {
            type_: type_.to_owned(),
            status: if holds { "True" } else { "False" }.to_owned(),
            reason: (!reason.is_empty()).then(|| reason.to_owned()),
            last_transition_time: since.map(time),
            ..PodCondition::default()
        };
        let mut conditions = vec![condition("Ready", self.ready_since.is_some(), self.ready_since, "")];
        if let Some(since) = self.unschedulable_since.filter(|_| self.node.is_none()) {
            conditions.push(condition("PodScheduled", false, Some(since), "Unschedulable"));
        }
        if self.is_disruption {
            conditions.push(condition("DisruptionTarget", true, None, "EvictionByEvictionAPI"));
        }
        let started = self.ready_since.map(|since| ContainerStatus {
            name: "main".to_owned(),
            container_id: Some(format!("containerd://{}-{since}", self.uid)),
            ready: true,
            state: Some(ContainerState {
                running: Some(ContainerStateRunning {
                    started_at: Some(time(since)),
                }),
                ..ContainerState::default()
            }),
            ..ContainerStatus::default()
        });
        let owner = format!("a{}", self.app);
        Pod {
            metadata: ObjectMeta {
                namespace: Some(NAMESPACE.to_owned()),
                name: Some(self.name.clone()),
                uid: Some(self.uid.clone()),
                resource_version: Some(self.version.to_string()),
                labels: Some(self.labels()),
                creation_timestamp: Some(time(self.created)),
                deletion_timestamp: self.deletion.map(|at| Time(stored(at))),
                deletion_grace_period_seconds: self.deletion.map(|_| self.grace / SECOND),
                owner_references: Some(vec![OwnerReference {
                    api_version: "apps/v1".to_owned(),
                    kind: self.owner.kind().to_owned(),
                    uid: format!("uid-{owner}-{}", self.owner.kind()),
                    name: owner,
                    controller: Some(true),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                node_name: self.node.clone(),
                containers: vec![Container {
                    name: "main".to_owned(),
                    ..Container::default()
                }],
                termination_grace_period_seconds: Some(self.grace / SECOND),
                volumes: self.home.is_some().then(|| vec![volume(&self.name)]),
                tolerations: self.stays.then(|| vec![tolerates_outages()]),
                ..PodSpec::default()
            }),
            status: Some(PodStatus {
                phase: Some(if self.is_running { "Running" } else { "Pending" }.to_owned()),
                conditions: Some(conditions),
                container_statuses: started.map(|status| vec![status]),
                ..PodStatus::default()
            }),
        }
    }
}

/// The labels of an application's pods.
pub fn labels(app: usize) -> BTreeMap<String, String> {
    BTreeMap::from([(APP.to_owned(), format!("a{app}"))])
}

fn tolerates_outages() -> Toleration {
    Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    }
}

fn volume(pod: &str) -> Volume {
    Volume {
        name: "data".to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: format!("data-{pod}"),
            read_only: None,
        }),
        ..Volume::default()
    }
}
