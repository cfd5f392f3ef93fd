//! Events and log lines, on the CephCluster: what its budgets allow and why, and what somebody should look at; each change once.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ObjectReference;
use nodeward_api::ceph_state::PublishedDisruptions;
use nodeward_api::reason::{CephCondition, CephReason};
use nodeward_core::deadline::to_the_second;
use nodeward_runtime::{EventSink, EventSpec, Severity};

use crate::plan::{ClusterVerdict, Owner, Verdicts};
use crate::snapshot::Namespace;

/// What ceph-pdb does, as the Events' `action`.
const ACTION: &str = "Budget";

/// How many states of placement groups an Event names.
const NAMED: usize = 5;

/// Emits Events.
pub(super) struct Announcer {
    sink: EventSink,
    told: BTreeMap<Namespace, Told>,
}

/// What was told of a cluster last.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    state: Option<(PublishedDisruptions, Option<String>, Option<CephReason>)>,
    preview: Option<(bool, Option<String>, Option<CephReason>)>,
    conditions: BTreeSet<(CephCondition, String)>,
}

impl Announcer {
    pub(super) fn new(sink: EventSink) -> Self {
        Self {
            sink,
            told: BTreeMap::new(),
        }
    }

    pub(super) fn announce(&mut self, verdicts: &Verdicts) {
        self.told.retain(|namespace, _| verdicts.contains_key(namespace));
        for (namespace, verdict) in verdicts {
            for event in self.told.entry(namespace.clone()).or_default().changes(verdict) {
                tracing::info!(namespace = &**namespace, reason = event.reason, "{}", event.note);
                self.sink.emit(event);
            }
        }
    }

    /// The next leader tells all that still holds.
    pub(super) fn forget(&mut self) {
        self.told.clear();
    }
}

impl Told {
    /// What is to be told of a verdict.
    fn changes(&mut self, verdict: &ClusterVerdict) -> Vec<EventSpec> {
        let state = &verdict.state;
        let mut events = Vec::new();
        // Why budgets are open in an ordinary way changes as placement groups move: no news.
        let news = |reason| {
            let is_ordinary = matches!(
                reason,
                CephReason::AllClean | CephReason::AllUp | CephReason::NothingDegraded
            );
            Some(reason).filter(|_| !is_ordinary)
        };
        let told = Some((state.disruptions, state.exempt(), news(state.reason)));
        let preview = state.preview.as_ref();
        let preview = preview.map(|would| (would.is_closed, would.exempt.clone(), news(would.reason)));
        // Which budget could not be closed is told by its condition.
        if (&self.state, &self.preview) != (&told, &preview) && state.disruptions != PublishedDisruptions::Closing {
            (self.state, self.preview) = (told, preview);
            let reason = state.reason;
            events.push(event(
                &verdict.owner,
                reason.severity(),
                reason.as_str(),
                explain(verdict),
            ));
        }
        let conditions = state.conditions.iter();
        let conditions: BTreeSet<_> = conditions.map(|found| (found.kind, found.message.clone())).collect();
        for (kind, message) in conditions.difference(&self.conditions) {
            let note = format!("CephCluster {} {}: {message}", state.cluster, kind.explanation());
            events.push(event(&verdict.owner, Severity::Warning, kind.as_str(), note));
        }
        self.conditions = conditions;
        events
    }
}

/// What the budgets allow, why, since when, and what ends it.
fn explain(verdict: &ClusterVerdict) -> String {
    let state = &verdict.state;
    let allows = match state.disruptions {
        PublishedDisruptions::Unmanaged => "ceph-pdb writes no budgets".to_owned(),
        disruptions => format!(
            "{} may be evicted",
            may_go(disruptions.is_closed(), state.exempt().as_deref())
        ),
    };
    let mut parts = vec![format!(
        "CephCluster {} {}: {allows} since {}",
        state.cluster,
        state.reason.explanation(),
        to_the_second(state.since)
    )];
    if let Some(would) = &state.preview {
        let may_go = may_go(would.is_closed, would.exempt.as_deref());
        parts.push(format!(
            "it would let {may_go} go, as the cluster {}",
            would.reason.explanation()
        ));
    }
    let down: Vec<String> = state
        .down_osds
        .values()
        .flatten()
        .map(|id| format!("osd.{id}"))
        .collect();
    if !down.is_empty() {
        parts.push(format!("down: {}", down.join(", ")));
    }
    if state.disruptions.is_closed() {
        let unclean = verdict.unclean.iter().take(NAMED);
        let unclean: Vec<String> = unclean.map(|(state, count)| format!("{count} {state}")).collect();
        if !unclean.is_empty() {
            parts.push(format!("placement groups: {}", unclean.join(", ")));
        }
        parts.push(format!("ends when {}", state.reason.ends_when()));
    }
    parts.join("; ")
}

fn may_go(is_closed: bool, exempt: Option<&str>) -> String {
    match (is_closed, exempt) {
        (false, _) => "one OSD at a time".to_owned(),
        (true, Some(exempt)) => format!("only OSDs of {exempt}"),
        (true, None) => "no OSD".to_owned(),
    }
}

fn event(owner: &Owner, severity: Severity, reason: &'static str, note: String) -> EventSpec {
    EventSpec {
        regarding: ObjectReference {
            api_version: Some("ceph.rook.io/v1".to_owned()),
            kind: Some("CephCluster".to_owned()),
            namespace: Some(owner.namespace.to_string()),
            name: Some(owner.name.to_string()),
            uid: Some(owner.uid.to_string()),
            ..ObjectReference::default()
        },
        related: None,
        severity,
        reason,
        action: ACTION,
        note,
    }
}

#[cfg(test)]
mod tests {
    use nodeward_api::reason::{CephCondition, CephReason};
    use nodeward_runtime::Severity;

    use super::Told;
    use crate::plan::tests::world::World;

    #[test]
    fn each_change_is_told_once() {
        let mut told = Told::default();
        let mut world = World::settled();
        assert_eq!(told.changes(&world.verdict())[0].reason, CephReason::AllClean.as_str());
        assert!(told.changes(&world.verdict()).is_empty());

        world.drain(2);
        world.run();
        let events = told.changes(&world.verdict());
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].reason, events[0].severity), ("DomainDown", Severity::Normal));
        assert_eq!(events[0].regarding.kind.as_deref(), Some("CephCluster"));
        assert_eq!(
            events[0].note,
            "CephCluster rook has OSDs of one failure domain down, and no other domain may lose an OSD: only OSDs of rack b \
             may be evicted since 2026-01-01T00:00:01Z; down: osd.2; placement groups: 16 active+undersized+degraded; ends \
             when the OSDs are back, or all placement groups are clean without them"
        );
        world.may_stop_all(false);
        let refused = told.changes(&world.verdict());
        assert_eq!(refused.len(), 1, "not told while the budgets allow more");
        assert_eq!(refused[0].reason, CephCondition::StopCheckRefused.as_str());
        world.run();
        let events = told.changes(&world.verdict());
        assert_eq!(
            (events[0].reason, events[0].severity),
            ("SecondDomainDown", Severity::Warning)
        );
    }

    #[test]
    fn what_would_be_done_is_told_while_rook_manages() {
        let mut told = Told::default();
        let mut world = World::settled();
        world.cluster.is_managed_by_rook = true;
        let first = told.changes(&world.verdict());
        assert!(
            first[0]
                .note
                .contains("it would let one OSD at a time go, as the cluster has all OSDs up"),
            "{}",
            first[0].note
        );
        world.drain(2);
        let drained = told.changes(&world.verdict());
        assert_eq!(drained[0].reason, CephReason::ManagedByRook.as_str());
        assert!(
            drained[0].note.contains("it would let only OSDs of rack b go"),
            "{}",
            drained[0].note
        );
        assert!(told.changes(&world.verdict()).is_empty());
    }

    #[test]
    fn condition_is_told_again_after_it_was_gone() {
        let mut told = Told::default();
        let mut world = World::settled();
        told.changes(&world.verdict());
        for _ in 0..2 {
            world.silence();
            let events = told.changes(&world.verdict());
            assert_eq!(events[0].reason, CephCondition::CephUnavailable.as_str());
            assert!(told.changes(&world.verdict()).is_empty());
            world.ask();
            assert!(told.changes(&world.verdict()).is_empty());
        }
    }
}
