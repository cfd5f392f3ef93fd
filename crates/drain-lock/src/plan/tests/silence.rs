//! What others who evict may take their time for before their silence counts.

use std::time::Duration;

use nodeward_runtime::LeaderState;

use super::*;
use crate::action_tracker::ActionTracker;
use crate::tests::fixture::owner;

/// The last plan of a leader that has seen these pods leave the node, moment after moment, while the others stay.
fn plan_after(moments: &[&str], claim: &Value, others: &[Value]) -> Plan {
    let mut tracker = ActionTracker::nothing();
    let (mut led_since, mut last) = (None, Plan::default());
    for moment in moments {
        let (time, pods) = moment.split_once(' ').unwrap_or((moment, ""));
        let now = at(&format!("2026-01-01T{time}:00Z"));
        let pods: Vec<Value> = pods
            .split_whitespace()
            .map(leaving_pod)
            .chain(others.iter().cloned())
            .collect();
        let drain = Some(silent_drain_of(&["eviction:alice"]));
        let snapshot = cluster(foreign(json!({})), drain, std::slice::from_ref(claim), &pods).snapshot();
        let leader = LeaderState::Leading {
            since: *led_since.get_or_insert(now),
            unrenewed_for: Duration::ZERO,
            leaderless_for: Duration::ZERO,
        };
        tracker.settled(now);
        tracker.leads(leader, None, now);
        last = plan(&snapshot, tracker.at(now), &policy(), now);
        tracker.planned(&mut last, now);
    }
    last
}

/// `stuck` should have been gone yesterday, `log` belongs to a DaemonSet, and each other pod has its grace until 12:30.
fn leaving_pod(name: &str) -> Value {
    let deadline = if name == "stuck" {
        YESTERDAY
    } else {
        "2026-01-01T12:30:00Z"
    };
    let kind = if name == "log" { "DaemonSet" } else { "ReplicaSet" };
    let metadata = json!({
        "deletionTimestamp": deadline, "labels": { "app": "other" }, "ownerReferences": [owner("apps/v1", kind, "other")],
    });
    pod(name, json!({ "metadata": metadata }))
}

/// Whoever waits for a pod is silent meanwhile, and has the quiet period from its end to ask for the next.
#[rstest]
#[case::it_has_just_ended(&["11:30 a", "12:00"], Some("2026-01-01T12:10:00Z"))]
#[case::it_ended_a_moment_ago(&["11:30 a", "11:51", "12:00"], Some("2026-01-01T12:01:00Z"))]
#[case::it_ended_long_ago(&["11:30 a", "11:50", "12:00"], None)]
#[case::another_is_stuck(&["11:30 a stuck", "11:55 stuck", "12:00 stuck"], Some("2026-01-01T12:05:00Z"))]
#[case::it_was_stuck(&["11:30 stuck", "12:00"], Some("2026-01-01T12:10:00Z"))]
#[case::it_is_stuck(&["11:30 stuck", "12:00 stuck"], None)]
#[case::nobody_waits_for_a_daemon(&["11:30 log", "12:00"], None)]
#[case::it_may_have_ended_before_a_new_leader(&["11:51", "12:00"], Some("2026-01-01T12:01:00Z"))]
#[case::none_has_ended(&["11:50", "12:00"], None)]
fn foreign_drain_outlives_end_of_a_pod(#[case] moments: &[&str], #[case] until: Option<&str>) {
    let plan = plan_after(moments, &claim(json!({ "foreignCordon": true })), &[]);
    let lines = shown(&plan);
    let is_abandoned = lines.contains(&"delete NodeDrain: Abandoned".to_owned());
    assert_eq!(is_abandoned, until.is_none(), "{lines:?}");
    if let Some(until) = until {
        assert_eq!(plan.requeue_at, Some(at(until)));
    }
}

/// What is granted for a pod that its drainer has yet to ask for, while another is down.
#[rstest]
#[case::it_has_just_ended(&["11:30 a", "12:00"], false)]
#[case::it_ended_long_ago(&["11:30 a", "11:50", "12:00"], true)]
fn unused_grant_outlives_end_of_a_pod(#[case] moments: &[&str], #[case] goes_back: bool) {
    let granted = granted("Confirmed", &["down", "d"]);
    let granted = merged(
        granted,
        json!({ "foreignCordon": true, "since": "2026-01-01T11:30:00Z", "needs": [] }),
    );
    let down = held(
        "down",
        leaving(json!({ "metadata": { "deletionTimestamp": YESTERDAY } })),
    );
    let lines = shown(&plan_after(moments, &granted, &[down, held("d", json!({}))]));
    let given_back = "ledger: n1#1 Waiting needs [] holds [down]".to_owned();
    assert_eq!(lines.contains(&given_back), goes_back, "{lines:?}");
}
