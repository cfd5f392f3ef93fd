use jiff::SignedDuration;

use super::*;
use crate::execute::tests::{cluster, owner, set_noout, stored};

fn second(second: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
}

fn snapshot(budgets: &[serde_json::Value]) -> Snapshot {
    Snapshot {
        clusters: [("rook-ceph".into(), Arc::new(cluster(budgets)))].into(),
        ..Snapshot::default()
    }
}

fn planned(write: Write) -> PlannedWrite {
    PlannedWrite { owner: owner(), write }
}

fn budget_of(tracker: &mut ActionTracker, budgets: &[serde_json::Value], now: Timestamp) -> Option<Arc<str>> {
    let mut snapshot = snapshot(budgets);
    tracker.overlay(&mut snapshot, now);
    let budget = snapshot.clusters["rook-ceph"].budgets.get("rook-ceph-osd");
    budget.map(|budget| Arc::clone(&budget.resource_version))
}

/// A patch that replaced version 2, planned from 1, and made 3.
fn patched(tracker: &mut ActionTracker, facts: Option<BudgetFacts>) {
    let write = Write::ReleaseBudget {
        name: "rook-ceph-osd".into(),
        resource_version: "1".into(),
    };
    let written = Written::Budget {
        name: "rook-ceph-osd".into(),
        bases: vec![Some("1".into()), Some("2".into())],
        facts,
    };
    let writes = vec![(planned(write), ActionResult::Acted(written))];
    tracker.completed(&Executed { writes }, second(0));
}

#[test]
fn written_budget_counts_until_the_watch_shows_it() {
    let mut tracker = ActionTracker::default();
    let facts = cluster(&[stored("3", 0)]).budgets["rook-ceph-osd"].clone();
    patched(&mut tracker, Some(facts));
    for cached in ["1", "2"] {
        let seen = budget_of(&mut tracker, &[stored(cached, 1)], second(1));
        assert_eq!(seen.as_deref(), Some("3"), "{cached}");
    }
    assert_eq!(
        budget_of(&mut tracker, &[stored("4", 1)], second(1)).as_deref(),
        Some("4")
    );
    assert_eq!(
        budget_of(&mut tracker, &[stored("1", 1)], second(1)).as_deref(),
        Some("1"),
        "for good"
    );
}

#[test]
fn deleted_budget_is_gone_at_once() {
    let mut tracker = ActionTracker::default();
    patched(&mut tracker, None);
    assert_eq!(budget_of(&mut tracker, &[stored("2", 1)], second(1)), None);
    assert_eq!(tracker.next_expiry(), Some(second(10)));
    assert_eq!(
        budget_of(&mut tracker, &[stored("2", 1)], second(10)).as_deref(),
        Some("2"),
        "believed again"
    );
}

#[test]
fn flag_is_not_set_again_before_ceph_was_asked() {
    let mut tracker = ActionTracker::default();
    let set = planned(set_noout());
    assert!(!tracker.is_awaited(&set));
    let writes = vec![(set.clone(), ActionResult::Acted(Written::Noout))];
    tracker.completed(&Executed { writes }, second(0));
    tracker.overlay(&mut snapshot(&[]), second(1));
    assert!(tracker.is_awaited(&set));
    let Write::SetNoout {
        mut buckets,
        state_map_version,
        noout,
        ..
    } = set_noout()
    else {
        unreachable!();
    };
    buckets.pop_first();
    let fewer = Write::SetNoout {
        buckets,
        on: true,
        state_map_version,
        noout,
    };
    assert!(!tracker.is_awaited(&planned(fewer)));
    tracker.overlay(&mut Snapshot::default(), second(2));
    assert!(!tracker.is_awaited(&set), "the cluster is gone");
}
