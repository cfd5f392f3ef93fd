//! A node that is healthy for a moment and fails again: each of its chains begins later than the last, whoever has seen the
//! health between.

use nodeward_api::reason::HealthReason;
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{World, at, chain, two_steps, with};
use crate::plan::RemediationHistory;

const REBOOT_TAKES: i64 = 30;

/// Who sees that the node is healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Yes,
    /// Its remediations are gone by then.
    RemediationsAreGone,
    /// The process is cut off until the node has failed again.
    CutOff,
    /// No process looks, and the one that comes remembers nothing.
    Away,
}

/// What an hour of flaps comes to: how long after its last moment of health each chain began.
fn waits(world: &mut World, healthy_for: i64, seen: Seen) -> Vec<i64> {
    let (mut waits, mut known) = (Vec::new(), Vec::new());
    let (mut now, mut ended) = (0, 0);
    world.fail("w1", now);
    while now < 3600 {
        now += 1;
        world.settle(now);
        let live = world.snapshot.remediations.iter();
        let Some(new) = live.map(|live| live.uid.clone()).find(|uid| !known.contains(uid)) else {
            continue;
        };
        known.push(new);
        waits.push(now - ended);
        now += REBOOT_TAKES;
        world.settle(now);
        ended = now;
        if seen == Seen::RemediationsAreGone {
            world.snapshot.remediations.clear();
        }
        world.heal("w1", now);
        if matches!(seen, Seen::Yes | Seen::RemediationsAreGone) {
            world.live(now, now + healthy_for - 1);
        } else {
            // What it tells later of the moment in which the node failed again.
            ended += healthy_for;
        }
        now += healthy_for;
        world.fail("w1", now);
        if seen == Seen::Away {
            world.restart_leader();
        }
    }
    waits
}

fn unhealthy_after(duration: &str, patch: Value) -> Value {
    let conditions = [json!({ "type": "Ready", "status": "Unknown", "duration": duration })];
    with(patch, json!({ "unhealthyConditions": conditions }))
}

#[rstest]
#[case::for_a_moment("10s", json!({}), 1, &[10, 11, 60, 120, 240, 480, 600, 600, 600, 600])]
#[case::for_a_minute("10s", json!({}), 60, &[10, 70, 70, 120, 240, 480, 600, 600, 600])]
#[case::for_a_moment_by_the_default("5m", json!({}), 1, &[300, 301, 301, 301, 301, 480, 600, 600])]
#[case::for_less_than_the_limit("10s", json!({}), 590, &[10, 600, 600, 600, 600, 600])]
#[case::under_a_backoff("10s", json!({ "backoff": { "type": "exponential", "initial": "5m", "limit": "20m" } }), 1, &[10, 300, 600, 1200, 1200])]
#[case::under_a_short_backoff("10s", json!({ "backoff": { "type": "exponential", "initial": "1s", "limit": "2s" } }), 5, &[10, 15, 60, 120, 240, 480, 600, 600, 600, 600])]
fn each_chain_begins_later(
    #[case] duration: &str,
    #[case] patch: Value,
    #[case] healthy_for: i64,
    #[case] expected: &[i64],
    #[values(Seen::Yes, Seen::RemediationsAreGone)] seen: Seen,
    #[values(false, true)] is_single: bool,
) {
    let world = World::workers(5).check("workers", unhealthy_after(duration, patch));
    let mut world = if is_single { world.single() } else { world };
    let waits = waits(&mut world, healthy_for, seen);
    // It takes no less, and a second more where that is when it is seen.
    let is_late = |(wait, expected): (&i64, &i64)| !(0..=1).contains(&(wait - expected));
    assert_eq!(waits.len(), expected.len(), "{waits:?}");
    assert!(!waits.iter().zip(expected).any(is_late), "{waits:?}");
}

/// Its last remediation is told and deleted first, which takes a moment more.
#[rstest]
fn health_that_nobody_saw_counts_too(
    #[values(Seen::CutOff, Seen::Away)] seen: Seen,
    #[values(false, true)] is_single: bool,
    #[values(json!({}), two_steps())] steps: Value,
) {
    let world = World::workers(5).check("workers", unhealthy_after("10s", steps));
    let mut world = if is_single { world.single() } else { world };
    let waits = waits(&mut world, 5, seen);
    let at_least = [10, 10, 60, 120, 240, 480, 600, 600, 600, 600];
    assert!(
        waits
            .iter()
            .zip(at_least)
            .all(|(wait, least)| least <= *wait && *wait <= least + 75),
        "{waits:?}"
    );
    assert!((7..=10).contains(&waits.len()), "{waits:?}");
}

/// The health that ends the row is that of every NodeHealthCheck, and as long as the longest wait.
#[test]
fn row_is_forgotten_after_the_longest_wait() {
    let backoff = json!({ "backoff": { "type": "exponential", "initial": "5m", "limit": "20m" } });
    let mut world = World::workers(5)
        .check("workers", json!({}))
        .check("others", with(chain(&[("Fence", "5m")]), backoff));
    let note = RemediationHistory {
        count: 3,
        last_end: at(100),
    };
    world.annotate_node(
        "w1",
        "nodeward.dev/remediations",
        Some(&serde_json::to_string(&note).unwrap()),
    );
    world.heal("w1", 100);
    world.live(200, 1299);
    assert!(world.node_annotation("w1", "nodeward.dev/remediations").is_some());
    world.live(1299, 1300);
    assert_eq!(world.node_annotation("w1", "nodeward.dev/remediations"), None);
}

/// A repeat that comes in the second in which the last one ended is counted as well.
#[test]
fn remediation_that_is_deleted_at_once_is_counted_each_time() {
    let mut world = World::remediating(json!({}));
    let mut created = Vec::new();
    for second in 310..=1000 {
        world.snapshot.remediations.clear();
        let plan = world.settle(second);
        if world.snapshot.remediations.is_empty() {
            assert_eq!(plan.reason("w1"), HealthReason::BackingOff);
        } else {
            created.push(second);
        }
    }
    assert_eq!(created, [310, 371, 492, 733]);
}
