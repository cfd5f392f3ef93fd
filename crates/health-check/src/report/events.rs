//! Events, on the NodeHealthCheck and on the Node, with the reasons of medik8s. They are sent behind the writes that they tell
//! of.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use nodeward_api::NodeHealthCheck;
use nodeward_api::reason::{HealthEvent, HealthReason};
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_runtime::{ApiError, EventSink, EventSpec, Severity, events};

use crate::plan::{
    CheckRef, NodeEvidence, RemediationChange, RemediationRef, RestsOn, StartRemediation, StatusWrite, Verdicts,
};
use crate::snapshot::{CheckName, Snapshot};

/// What health-check does, as the Events' `action`.
const ACTION: &str = "Remediation";

/// Emits Events.
pub(super) struct Announcer {
    sink: EventSink,
    warned: BTreeSet<String>,
    /// What was told of a node last, where something stops its remediation or none is left.
    told: BTreeMap<(CheckName, NodeName), HealthReason>,
}

impl Announcer {
    pub(super) fn new(sink: EventSink) -> Self {
        Self {
            sink,
            warned: BTreeSet::new(),
            told: BTreeMap::new(),
        }
    }

    /// What a status says for the first time.
    pub(super) fn announce(&self, write: &StatusWrite) {
        for announcement in &write.announcements {
            let node = announcement.node.as_ref().map(|(name, uid)| (name, Some(uid)));
            self.emit(&write.check, node, announcement.event, &announcement.note);
        }
    }

    /// A remediation was created.
    pub(super) fn started(&self, start: &StartRemediation) {
        let note = format!("created {} {} for node {}", start.kind.kind, start.key, start.node);
        let node = (&start.node, Some(&start.node_uid));
        self.emit(&start.check, Some(node), HealthEvent::RemediationCreated, &note);
    }

    /// A remediation was deleted.
    pub(super) fn removed(&self, check: &CheckRef, remediation: &RemediationRef, evidence: &NodeEvidence) {
        let note = format!("deleted {remediation} of node {}", remediation.node);
        let uid = match &evidence.rests_on {
            RestsOn::Unhealthy { uid, .. } | RestsOn::Healthy { uid, .. } | RestsOn::Replaced { by: uid } => Some(uid),
            RestsOn::Gone => None,
        };
        let node = uid.map(|uid| (&remediation.node, Some(uid)));
        self.emit(check, node, HealthEvent::RemediationRemoved, &note);
    }

    /// The remediator's role does not let us annotate its remediations: it will not learn what we would have told it.
    pub(super) fn not_annotated(
        &self,
        check: &CheckRef,
        remediation: &RemediationRef,
        change: RemediationChange,
        error: &ApiError,
    ) {
        let note = format!(
            "{remediation} does not get the annotation {}: {error}. Add the verbs update and patch to the role that its \
             remediator aggregates to ext-remediation",
            change.annotation()
        );
        self.emit(check, None, HealthEvent::RemediationSkipped, &note);
    }

    /// What somebody should mend, each once.
    pub(super) fn warnings(&mut self, snapshot: &Snapshot, verdicts: &Verdicts) {
        let warnings = &verdicts.warnings;
        self.warned
            .retain(|key| warnings.iter().any(|warning| warning.key == *key));
        for warning in warnings {
            if !self.warned.insert(warning.key.clone()) {
                continue;
            }
            tracing::warn!(check = &*warning.check, "{}", warning.text);
            let Some(check) = snapshot.checks.get(&warning.check) else {
                continue;
            };
            let check = CheckRef {
                name: check.name.clone(),
                uid: check.uid.clone(),
            };
            let event = if warning.is_invalid_label {
                HealthEvent::InvalidNodeLabel
            } else {
                HealthEvent::RemediationSkipped
            };
            let node = warning.node.as_ref().map(|(name, uid)| (name, Some(uid)));
            self.emit(&check, node, event, &warning.text);
        }
    }

    /// What stops a remediation that is due, or that none is left to be tried: each once, until it changes.
    pub(super) fn nodes(&mut self, verdicts: &Verdicts) {
        let mut told = BTreeMap::new();
        for verdict in &verdicts.nodes {
            let Some(event) = event_of(verdict.reason) else {
                continue;
            };
            let key = (verdict.check.clone(), verdict.node.clone());
            let check = verdicts.checks.iter().find(|check| check.check.name == verdict.check);
            if self.told.get(&key) != Some(&verdict.reason)
                && let Some(check) = check
            {
                let mut note = format!("node {} {}", verdict.node, verdict.reason.explanation());
                if !verdict.detail.is_empty() {
                    note = format!("{note}: {}", verdict.detail);
                }
                let node = (&verdict.node, verdict.node_uid.as_ref());
                self.emit(&check.check, Some(node), event, &note);
            }
            told.insert(key, verdict.reason);
        }
        self.told = told;
    }

    /// Whoever leads next tells it again.
    pub(super) fn forget(&mut self) {
        self.told.clear();
    }

    fn emit(&self, check: &CheckRef, node: Option<(&NodeName, Option<&NodeUid>)>, event: HealthEvent, note: &str) {
        let check = check_reference(check);
        let node = node.map(|(name, uid)| events::node_reference(name.as_str(), uid.map_or("", NodeUid::as_str)));
        let about = |regarding: ObjectReference, related: Option<ObjectReference>| EventSpec {
            regarding,
            related,
            severity: severity(event),
            reason: event.as_str(),
            action: ACTION,
            note: note.to_owned(),
        };
        self.sink.emit(about(check.clone(), node.clone()));
        if let Some(node) = node {
            self.sink.emit(about(node, Some(check)));
        }
    }
}

/// The Event about a node that stands like this, if there is one. Of a remediation that begins or ends, its own write tells; of a
/// disabled NodeHealthCheck, the NodeHealthCheck.
const fn event_of(reason: HealthReason) -> Option<HealthEvent> {
    match reason {
        HealthReason::CheckPaused
        | HealthReason::ClusterUpgrading
        | HealthReason::UpgradeSignalUnknown
        | HealthReason::ExcludedByLabel
        | HealthReason::UnderMaintenance
        | HealthReason::TooFewHealthy
        | HealthReason::StormCooldown
        | HealthReason::ConcurrencyLimitReached
        | HealthReason::BackingOff
        | HealthReason::ControlPlaneNodeAway
        | HealthReason::EtcdQuorumAtRisk
        | HealthReason::RemediatedByAnotherCheck
        | HealthReason::ForeignRemediation
        | HealthReason::LeaseTaken
        | HealthReason::Settling
        | HealthReason::PermissionMissing
        | HealthReason::RemediationRejected => Some(HealthEvent::RemediationSkipped),
        HealthReason::ChainExhausted => Some(HealthEvent::NoTemplateLeft),
        HealthReason::Healthy
        | HealthReason::ReadyUnknown
        | HealthReason::NotExpired
        | HealthReason::LeftToTerminationHandler
        | HealthReason::CheckDisabled
        | HealthReason::PeerActive
        | HealthReason::NodeChanged
        | HealthReason::WouldRemediate
        | HealthReason::StartingRemediation
        | HealthReason::RemediationRunning
        | HealthReason::Escalating
        | HealthReason::HealthyDelayed
        | HealthReason::RemovingRemediations
        | HealthReason::RemediatedNodeGone
        | HealthReason::ReplacementExpected => None,
    }
}

fn check_reference(check: &CheckRef) -> ObjectReference {
    ObjectReference {
        api_version: Some(NodeHealthCheck::api_version(&()).into_owned()),
        kind: Some(NodeHealthCheck::kind(&()).into_owned()),
        name: Some(check.name.to_string()),
        uid: Some(check.uid.to_string()),
        ..ObjectReference::default()
    }
}

fn severity(event: HealthEvent) -> Severity {
    match event {
        HealthEvent::DetectedUnhealthy
        | HealthEvent::RemediationCreated
        | HealthEvent::RemediationRemoved
        | HealthEvent::Enabled
        | HealthEvent::StormRecoveryCooldownStarted
        | HealthEvent::StormRecoveryEnded => Severity::Normal,
        HealthEvent::RemediationSkipped
        | HealthEvent::Disabled
        | HealthEvent::NoTemplateLeft
        | HealthEvent::InvalidNodeLabel
        | HealthEvent::StormRecoveryStarted => Severity::Warning,
    }
}
