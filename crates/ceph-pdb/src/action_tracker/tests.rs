use jiff::SignedDuration;
use nodeward_runtime::ApiError;

use super::*;
use crate::execute::tests::{cluster, owner, set_noout, snapshot, stored};
use crate::plan::tests::world::World;

fn second(second: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
}

fn planned(write: Write) -> PlannedWrite {
    PlannedWrite { owner: owner(), write }
}

fn budget_of(tracker: &mut ActionTracker, budgets: &[serde_json::Value], now: Timestamp) -> Option<Arc<str>> {
    let mut snapshot = snapshot(cluster(budgets));
    tracker.overlay(&mut snapshot, now);
    let budget = snapshot.clusters["ns"].budgets.get("rook-ceph-osd");
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
fn refused_budget_is_told_until_a_write_of_it_succeeds() {
    let mut tracker = ActionTracker::default();
    let refused = |tracker: &mut ActionTracker| {
        let mut snapshot = snapshot(cluster(&[stored("1", 1)]));
        tracker.overlay(&mut snapshot, second(1));
        snapshot.clusters["ns"].refused_writes.clone()
    };
    let release = planned(Write::ReleaseBudget {
        name: "rook-ceph-osd".into(),
        resource_version: "1".into(),
    });
    let writes = vec![(release, ActionResult::Failed(ApiError::Timeout))];
    tracker.completed(&Executed { writes }, second(0));
    let said = refused(&mut tracker);
    assert_eq!(
        *said[&WriteKey::Budget("ns".into(), "rook-ceph-osd".into())],
        *ApiError::Timeout.to_string()
    );
    patched(&mut tracker, None);
    assert!(refused(&mut tracker).is_empty());
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
    assert!(!tracker.is_futile(&set));
    let writes = vec![(set.clone(), ActionResult::Acted(Written::Noout))];
    tracker.completed(&Executed { writes }, second(0));
    tracker.overlay(&mut snapshot(cluster(&[])), second(1));
    assert!(tracker.is_futile(&set));
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
    assert!(!tracker.is_futile(&planned(fewer)));
    tracker.overlay(&mut Snapshot::default(), second(2));
    assert!(!tracker.is_futile(&set), "the cluster is gone");
}

/// A leader of several: it sees Ceph at moments of its own, and shares the published state with the others.
struct Leader {
    world: World,
    tracker: ActionTracker,
}

impl Leader {
    /// Plans, and publishes. Whether it had to.
    fn publishes(&mut self, published: &mut Option<Published>) -> bool {
        self.world.published.clone_from(published);
        let plan = self.world.plan();
        self.tracker.planned(&plan.verdicts);
        let mut writes = plan.actions.into_iter();
        let write = writes.find(|planned| !self.tracker.is_futile(planned));
        let Some(planned) = write else { return false };
        self.world.apply(&planned.write);
        published.clone_from(&self.world.published);
        let base = None;
        let published = Box::new(published.clone().unwrap());
        let writes = vec![(planned, ActionResult::Acted(Written::Published { base, published }))];
        self.tracker.completed(&Executed { writes }, second(0));
        true
    }
}

/// How often two leaders write until both have nothing to say, however they disagree.
fn writes(leaders: &mut [Leader; 2], published: &mut Option<Published>) -> usize {
    let (mut writes, mut silent) = (0, 0);
    for turn in (0..2).cycle().take(40) {
        let writes_now = leaders[turn].publishes(published);
        writes += usize::from(writes_now);
        silent = if writes_now { 0 } else { silent + 1 };
        if silent == 2 {
            return writes;
        }
    }
    panic!("they write in turns");
}

#[test]
fn two_leaders_write_what_each_sees_only_once() {
    let world = World::settled();
    let mut published = world.published.clone();
    let leader = || Leader {
        world: world.clone(),
        tracker: ActionTracker::default(),
    };
    let mut leaders = [leader(), leader()];
    assert_eq!(writes(&mut leaders, &mut published), 0);
    // One of them sees it first.
    leaders[0].world.unclean("active+clean+remapped");
    assert_eq!(writes(&mut leaders, &mut published), 1);
    leaders[1].world.unclean("active+clean+remapped");
    assert_eq!(writes(&mut leaders, &mut published), 0);
    // A manager has stopped, which the other one does not learn of.
    leaders[1].world.view.fresh_since = None;
    assert_eq!(writes(&mut leaders, &mut published), 1);
    assert!(leaders[0].world.verdict().state.statistics_fresh_since.is_some());
    // What programs act on is written whoever has written last.
    for leader in &mut leaders {
        leader.world.stop(2, false);
    }
    assert!(0 < writes(&mut leaders, &mut published));
}
