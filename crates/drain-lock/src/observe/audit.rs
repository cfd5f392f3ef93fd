//! Audit: what would have been written, kept in memory where the written would be. Whoever reads the index decides as if it had
//! been stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodeward_api::{NodeDrain, finalizer};
use nodeward_core::drain_request::{DrainRequest, JoinOutcome, JoinStep, join};
use nodeward_core::id::NodeName;
use nodeward_core::ledger::Ledger;

use crate::snapshot::{LedgerFacts, ReadableDrain};

/// What a process that only audits would have written. It begins with the ledger that is stored, if there is one.
#[derive(Debug, Default)]
pub(super) struct Audit {
    pub(super) ledger: Option<Arc<LedgerFacts>>,
    /// Drains that evictions ask for.
    pub(super) drains: BTreeMap<NodeName, Arc<ReadableDrain>>,
    /// Writes so far.
    version: u64,
}

impl Audit {
    pub(super) fn put_ledger(&mut self, ledger: Ledger) {
        self.ledger = Some(Arc::new(LedgerFacts {
            uid: "audit".into(),
            resource_version: self.next_version().as_str().into(),
            bytes: ledger.stored_bytes(),
            ledger,
            unreadable: None,
        }));
    }

    /// Takes a request in as the webhook would have it written, and the drain into care.
    pub(super) fn request_drain(&mut self, request: &DrainRequest, now: Timestamp) -> JoinOutcome {
        let present = self.drain(&request.node).cloned();
        let (outcome, drain) = match (join(present.as_deref(), request, now), present) {
            (JoinStep::Create(mut drain), _) => {
                let version = self.next_version();
                drain.metadata.uid = Some(version.clone());
                drain.metadata.resource_version = Some(version);
                drain.metadata.creation_timestamp = Some(Time(now));
                drain.metadata.finalizers = Some(vec![finalizer::DRAIN_LOCK.to_owned()]);
                (JoinOutcome::Created, *drain)
            }
            // Evictions add requesters, and sign; nothing else.
            (JoinStep::Patch(outcome, patch), Some(present)) => {
                let mut drain = NodeDrain::clone(&present);
                if let Ok(requesters) = serde_json::from_value(patch["spec"]["requesters"].clone()) {
                    drain.spec.requesters = requesters;
                }
                if let Ok(signs) = serde_json::from_value(patch["metadata"]["annotations"].clone()) {
                    let signs: BTreeMap<String, String> = signs;
                    drain.metadata.annotations.get_or_insert_default().extend(signs);
                }
                (outcome, drain)
            }
            (JoinStep::Patch(outcome, _) | JoinStep::Done(outcome), _) => return outcome,
        };
        self.drains.insert(request.node.clone(), Arc::new(Ok(Arc::new(drain))));
        outcome
    }

    /// Forgets a drain that is over; whether it was kept here.
    pub(super) fn remove_drain(&mut self, drain: &NodeDrain) -> bool {
        let node = NodeName::from(drain.spec.node_name.as_str());
        let is_kept = self
            .drain(&node)
            .is_some_and(|kept| kept.metadata.uid == drain.metadata.uid);
        is_kept && self.drains.remove(&node).is_some()
    }

    fn drain(&self, node: &NodeName) -> Option<&Arc<NodeDrain>> {
        self.drains.get(node)?.as_ref().as_ref().ok()
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        format!("audit-{}", self.version)
    }
}

#[cfg(test)]
mod tests {
    use nodeward_api::node_drain::Evictor;
    use nodeward_core::drain_request::{EvictionSign, evicting_requester};

    use super::*;
    use crate::tests::fixture::{at, now};

    fn by(user: &str) -> DrainRequest {
        DrainRequest {
            evict: Evictor::Requester,
            eviction: Some(EvictionSign::Seen),
            ..DrainRequest::new("n1".into(), Some("uid-n1".into()), evicting_requester(user))
        }
    }

    #[test]
    fn evictions_join_one_drain_and_sign_it() {
        let mut audit = Audit::default();
        let later = at("2026-01-01T12:01:00Z");
        assert_eq!(audit.request_drain(&by("alice"), now()), JoinOutcome::Created);
        assert_eq!(audit.request_drain(&by("alice"), now()), JoinOutcome::Known);
        assert_eq!(audit.request_drain(&by("bob"), now()), JoinOutcome::Added);
        assert_eq!(audit.request_drain(&by("bob"), later), JoinOutcome::Noted);
        let drain = audit.drain(&"n1".into()).unwrap();
        let names: Vec<&str> = drain.spec.requesters.iter().map(|known| known.name.as_str()).collect();
        assert_eq!(names, ["eviction:alice", "eviction:bob"]);
        assert_eq!(crate::plan::intent::last_sign_of_life(drain), Some(later));
    }

    #[test]
    fn only_its_own_drains_are_removed() {
        let mut audit = Audit::default();
        audit.request_drain(&by("alice"), now());
        let drain = audit.drain(&"n1".into()).cloned().unwrap();
        let mut stored = NodeDrain::clone(&drain);
        stored.metadata.uid = Some("stored".to_owned());
        assert!(!audit.remove_drain(&stored));
        assert!(audit.remove_drain(&drain));
        assert_eq!(audit.request_drain(&by("alice"), now()), JoinOutcome::Created);
    }
}
