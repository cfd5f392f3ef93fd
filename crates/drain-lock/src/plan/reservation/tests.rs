use k8s_openapi::api::core::v1::Pod;
use nodeward_api::{DrainLedger, NodeDrain};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::observe::{ClusterCache, Objects};
use crate::snapshot::SnapshotScope;

const OUTAGE: SignedDuration = SignedDuration::from_mins(15);

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn noon() -> Timestamp {
    at("2026-01-01T12:00:00Z")
}

/// `shop/web-0` on node `n1`, under budget `shop/web` with one disruption.
fn pod(ready: bool) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "namespace": "shop", "name": "web-0", "uid": "p0", "labels": { "app": "web" }, "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "nodeName": "n1", "containers": [] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
    }))
    .unwrap()
}

fn snapshot(state: &str, retained: bool, disrupted: Value, ready: bool) -> Snapshot {
    let ledger: DrainLedger = serde_json::from_value(json!({
        "metadata": { "name": "cluster", "uid": "l", "resourceVersion": "1" },
        "spec": {
            "nextTicket": 2, "budgets": [{ "namespace": "shop", "name": "web", "uid": "b" }],
            "claims": [{
                "ticket": 1, "node": "n1", "nodeUID": "u1", "state": state, "since": "2026-01-01T00:00:00Z",
                "queuedAt": "2026-01-01T00:00:00Z", "grant": 1,
                "holds": [format!("0/web-0/p0{}", if retained { "/retained" } else { "" })],
            }],
        },
    }))
    .unwrap();
    let budget = serde_json::from_value(json!({
        "metadata": { "namespace": "shop", "name": "web", "uid": "b", "resourceVersion": "7", "generation": 1 },
        "spec": { "minAvailable": 0, "selector": { "matchLabels": { "app": "web" } } },
        "status": {
            "observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 0, "expectedPods": 1,
            "disruptedPods": disrupted,
        },
    }))
    .unwrap();
    let cache = ClusterCache::fixed(&Objects {
        pods: vec![pod(ready)],
        budgets: vec![budget],
        ledger: Some(ledger),
        ..Objects::default()
    });
    let scope = SnapshotScope {
        nodes: ["n1".into()].into(),
        budgets: [BudgetKey::new("shop", "web")].into(),
    };
    cache.snapshot(&scope, noon()).unwrap()
}

fn due(reserved: &mut Reserved, snapshot: &Snapshot) -> (Option<Reservation>, Option<Timestamp>) {
    let Some(ledger) = &snapshot.ledger else {
        panic!("no ledger");
    };
    let (ledger, mut requeue_at) = (ledger.ledger.clone(), RequeueAt::after(noon()));
    let mut due = reservations(snapshot, &ledger, reserved, OUTAGE, noon(), &mut requeue_at);
    assert!(due.len() <= 1);
    (due.pop(), requeue_at.at())
}

#[rstest]
#[case::counted(true, 0)]
// A pod that is not healthy takes nothing from what is allowed.
#[case::not_counted(false, 1)]
fn retained_pod_is_reserved_until_expected_return(#[case] ready: bool, #[case] allowed: i32) {
    let (write, _) = due(&mut Reserved::new(), &snapshot("Confirmed", true, json!({}), ready));
    let write = write.unwrap();
    assert_eq!(
        write.reserved,
        [("web-0".to_owned(), at("2026-01-01T12:13:00Z"))].into()
    );
    assert_eq!(
        (write.disruptions_allowed, write.resource_version.as_str()),
        (allowed, "7")
    );
    assert!(write.released.is_empty());
}

#[rstest]
#[case::it_is_evicted("Confirmed", false)]
#[case::not_confirmed("Granted", true)]
#[case::it_waits("Recovering", true)]
fn nothing_is_reserved_for(#[case] state: &str, #[case] retained: bool) {
    let snapshot = snapshot(state, retained, json!({}), true);
    assert_eq!(due(&mut Reserved::new(), &snapshot), (None, None));
}

/// `kubectl drain` evicts a pod that asked to stay, and would be refused by the reservation.
#[test]
fn nothing_is_reserved_for_a_drain_that_evicts_by_itself() {
    let mut snapshot = snapshot("Confirmed", true, json!({}), true);
    let drain = json!({ "metadata": { "name": "n1", "uid": "d" }, "spec": { "nodeName": "n1", "evict": "Requester" } });
    let drain: NodeDrain = serde_json::from_value(drain).unwrap();
    snapshot.drains.insert("n1".into(), drain.into());
    assert_eq!(due(&mut Reserved::new(), &snapshot), (None, None));
}

#[rstest]
// It ends at 12:15, and the half of 15 minutes is left at 12:07:30.
#[case::fresh("2026-01-01T12:13:00Z", Some("2026-01-01T12:07:30Z"), false)]
#[case::half_gone("2026-01-01T12:05:30Z", None, true)]
#[case::an_evictions("2026-01-01T12:00:00Z", None, true)]
fn reservation_is_renewed_at_half_time(#[case] present: &str, #[case] next: Option<&str>, #[case] writes: bool) {
    let snapshot = snapshot("Confirmed", true, json!({ "web-0": present }), true);
    let (write, looks_again) = due(&mut Reserved::new(), &snapshot);
    assert_eq!((write.is_some(), looks_again), (writes, next.map(at)));
    // It counts as gone by what is there already, so nothing more is taken.
    assert!(write.is_none_or(|write| write.disruptions_allowed == 1));
}

#[test]
fn what_was_reserved_is_taken_back_at_the_release() {
    let mut reserved = Reserved::new();
    let present = json!({ "web-0": "2026-01-01T12:13:00Z" });
    assert_eq!(
        due(&mut reserved, &snapshot("Confirmed", true, present.clone(), true)).0,
        None
    );
    let (write, _) = due(&mut reserved, &snapshot("Recovering", true, present, true));
    let write = write.unwrap();
    assert_eq!(write.released, ["web-0".to_owned()].into());
    // What is allowed now is the disruption controller's to say.
    assert_eq!(write.disruptions_allowed, 1);
    assert_eq!(reserved.len(), 1);
    assert_eq!(
        due(&mut reserved, &snapshot("Recovering", true, json!({}), true)).0,
        None
    );
    assert_eq!(reserved.len(), 0);
}

#[test]
fn an_eviction_since_is_left_alone() {
    let mut reserved = Reserved::new();
    let ours = json!({ "web-0": "2026-01-01T12:13:00Z" });
    assert_eq!(due(&mut reserved, &snapshot("Confirmed", true, ours, true)).0, None);
    let evicted = json!({ "web-0": "2026-01-01T11:59:59Z" });
    assert_eq!(due(&mut reserved, &snapshot("Recovering", true, evicted, true)).0, None);
}

/// `web-0` was created at midnight.
#[rstest]
#[case::of_the_pod_before(json!({ "web-0": "2025-12-31T23:59:30Z" }), &["web-0"])]
#[case::of_this_pod(json!({ "web-0": "2026-01-01T11:59:30Z" }), &[])]
#[case::of_a_pod_that_is_gone(json!({ "web-1": "2025-12-31T23:59:30Z" }), &[])]
fn entry_of_an_earlier_namesake_is_removed(#[case] disrupted: Value, #[case] removed: &[&str]) {
    let snapshot = snapshot("Asking", false, disrupted, true);
    let (write, _) = due(&mut Reserved::new(), &snapshot);
    let released: Vec<String> = write.iter().flat_map(|write| write.released.iter().cloned()).collect();
    assert_eq!(released, removed);
    if let Some(write) = write {
        assert_eq!((write.resource_version, write.disruptions_allowed), ("7".into(), 1));
    }
}
