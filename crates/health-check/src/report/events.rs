//! Events, on the NodeHealthCheck and on the Node, with the reasons of medik8s. They are sent behind the writes that they tell
//! of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use nodeward_api::NodeHealthCheck;
use nodeward_api::reason::{HealthEvent, HealthReason};
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_runtime::{EventSink, EventSpec, events};

use crate::definition::Fields;
use crate::plan::{CheckRef, RemediationWrite, StartRemediation, StatusWrite, Verdicts};
use crate::snapshot::{CheckName, Snapshot};

/// What health-check does, as the Events' `action`. That of [`HealthEvent::RemediationSkipped`] is a [`HealthReason`].
const ACTION: &str = "Remediation";

/// An Event lives for an hour: what still holds is told again before.
const TELL_AGAIN_AFTER: SignedDuration = SignedDuration::from_mins(30);

/// What is told of a node: the reason, and of a backoff, which an edit changes, its end.
type News = (HealthReason, Option<Timestamp>);

/// Emits Events.
pub(super) struct Announcer {
    sink: EventSink,
    warned: BTreeSet<String>,
    /// What was told of a node last, where something stops its remediation or none is left.
    told: BTreeMap<(CheckName, NodeName), (News, Timestamp)>,
    dropped: Fields,
    /// NodeHealthChecks, by UID, that were told of `dropped`.
    told_of_dropped: BTreeSet<Arc<str>>,
}

impl Announcer {
    pub(super) fn new(sink: EventSink) -> Self {
        Self {
            sink,
            warned: BTreeSet::new(),
            told: BTreeMap::new(),
            dropped: Fields::new(),
            told_of_dropped: BTreeSet::new(),
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
    pub(super) fn removed(&self, write: &RemediationWrite) {
        let RemediationWrite {
            remediation, evidence, ..
        } = write;
        let note = format!("deleted {remediation} of node {}", remediation.node);
        let uid = evidence.as_ref().and_then(|evidence| evidence.rests_on.node_uid());
        let node = uid.map(|uid| (&remediation.node, Some(uid)));
        self.emit(&write.check, node, HealthEvent::RemediationRemoved, &note);
    }

    /// What somebody should mend, each once.
    pub(super) fn warnings(&mut self, verdicts: &Verdicts) {
        let warnings = &verdicts.warnings;
        self.warned
            .retain(|key| warnings.iter().any(|warning| warning.key == *key));
        for warning in warnings {
            if !self.warned.insert(warning.key.clone()) {
                continue;
            }
            let node = warning.node.as_ref().map(|(name, uid)| (name, Some(uid)));
            self.emit(&warning.check, node, warning.event, &warning.text);
        }
    }

    /// What stops a remediation that is due, or that none is left to be tried.
    pub(super) fn nodes(&mut self, verdicts: &Verdicts, now: Timestamp) {
        for event in self.news_of_nodes(verdicts, now) {
            self.sink.emit(event);
        }
    }

    /// Each once, until it changes or its Event ends.
    fn news_of_nodes(&mut self, verdicts: &Verdicts, now: Timestamp) -> Vec<EventSpec> {
        let mut told = BTreeMap::new();
        let mut news = Vec::new();
        for verdict in &verdicts.nodes {
            let Some(event) = event_of(verdict.reason) else {
                continue;
            };
            let key = (verdict.check.name.clone(), verdict.node.clone());
            let end = verdict.until.filter(|_| verdict.reason == HealthReason::BackingOff);
            let told_now = (verdict.reason, end);
            let before = self.told.get(&key).copied();
            let still =
                before.filter(|(before, at)| *before == told_now && now.duration_since(*at).abs() < TELL_AGAIN_AFTER);
            if still.is_none() {
                let mut note = format!("node {} {}", verdict.node, verdict.reason.explanation());
                if !verdict.detail.is_empty() {
                    note = format!("{note}: {}", verdict.detail);
                }
                let action = match event {
                    HealthEvent::RemediationSkipped => verdict.reason.as_str(),
                    _ => ACTION,
                };
                let node = (&verdict.node, verdict.node_uid.as_ref());
                news.extend(specs(&verdict.check, Some(node), (event, action), &note));
            }
            told.insert(key, still.unwrap_or((told_now, now)));
        }
        self.told = told;
        news
    }

    /// The API server drops fields of NodeHealthChecks. Each NodeHealthCheck tells it once.
    pub(super) fn dropped_fields(&mut self, snapshot: &Snapshot, fields: &Fields) {
        if self.dropped != *fields {
            if fields.is_empty() {
                tracing::info!("the definition of NodeHealthChecks drops no field any more");
            } else {
                tracing::warn!("{}", note_on(fields));
            }
            self.dropped.clone_from(fields);
            self.told_of_dropped.clear();
        }
        if fields.is_empty() {
            return;
        }
        let exists = |uid: &Arc<str>| snapshot.checks.values().any(|check| check.uid == *uid);
        self.told_of_dropped.retain(exists);
        for check in snapshot.checks.values() {
            if self.told_of_dropped.insert(Arc::clone(&check.uid)) {
                self.emit(&check.reference(), None, HealthEvent::FieldsDropped, &note_on(fields));
            }
        }
    }

    /// Whoever leads next tells it again.
    pub(super) fn forget(&mut self) {
        self.told.clear();
        self.dropped.clear();
        self.told_of_dropped.clear();
    }

    fn emit(&self, check: &CheckRef, node: Option<(&NodeName, Option<&NodeUid>)>, event: HealthEvent, note: &str) {
        for event in specs(check, node, (event, ACTION), note) {
            self.sink.emit(event);
        }
    }
}

/// The Event on the NodeHealthCheck, and on the Node where there is one.
fn specs(
    check: &CheckRef,
    node: Option<(&NodeName, Option<&NodeUid>)>,
    (event, action): (HealthEvent, &'static str),
    note: &str,
) -> impl Iterator<Item = EventSpec> {
    let check = check_reference(check);
    let node = node.map(|(name, uid)| events::node_reference(name.as_str(), uid.map_or("", NodeUid::as_str)));
    let about = |regarding: ObjectReference, related: Option<ObjectReference>| EventSpec {
        regarding,
        related,
        severity: event.severity(),
        reason: event.as_str(),
        action,
        note: note.to_owned(),
    };
    let on_node = node.clone().map(|node| about(node, Some(check.clone())));
    std::iter::once(about(check, node)).chain(on_node)
}

/// The Event about a node that stands like this, if there is one. Of a remediation that begins or ends, its own write tells; of a
/// disabled NodeHealthCheck, the NodeHealthCheck.
const fn event_of(reason: HealthReason) -> Option<HealthEvent> {
    match reason {
        HealthReason::CheckDisabled | HealthReason::PeerActive | HealthReason::NodeChanged => None,
        HealthReason::ChainExhausted => Some(HealthEvent::NoTemplateLeft),
        reason if reason.stops() || matches!(reason, HealthReason::WouldRemediate) => {
            Some(HealthEvent::RemediationSkipped)
        }
        _ => None,
    }
}

/// What the API server drops, and what to do about it. What is in the spec matters most.
fn note_on(fields: &Fields) -> String {
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    format!(
        "the installed CRD nodehealthchecks.remediation.medik8s.io lacks these fields, and the API server drops them: {}. A \
         NodeHealthCheck with dryRun is no dry run then. Apply the CRD of health-check",
        fields.join(", ")
    )
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

#[cfg(test)]
mod tests;
