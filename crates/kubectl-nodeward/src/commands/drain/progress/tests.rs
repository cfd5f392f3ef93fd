use rstest::rstest;
use serde_json::{Value, json};
use textwrap::core::display_width;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    at("2026-01-01T10:30:00Z")
}

fn drain(node: &str, status: &Value) -> NodeDrain {
    let drain = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain",
        "metadata": { "name": node, "uid": format!("uid-of-{node}"), "creationTimestamp": "2026-01-01T10:20:00Z" },
        "spec": { "nodeName": node },
        "status": status,
    });
    serde_json::from_value(drain).unwrap()
}

/// A drain of the same node that was not requested here.
fn another(node: &str) -> NodeDrain {
    let mut drain = drain(node, &json!({ "phase": "Drained" }));
    drain.metadata.uid = Some("another".to_owned());
    drain
}

fn queued(node: &str, holder: &str) -> NodeDrain {
    drain(
        node,
        &json!({
            "phase": "Queued", "ticket": 4, "pods": { "total": 8, "gone": 5, "waiting": 3 },
            "blockedBy": [{ "reason": "WaitsForDisruptions", "pdb": "shop/web", "node": holder, "message": "" }],
        }),
    )
}

fn watching(nodes: &[&str]) -> DrainProgress {
    let mut progress = DrainProgress::default();
    for node in nodes {
        progress.add(&drain(node, &Value::Null));
    }
    progress
}

#[rstest]
#[case::no_answer(json!(null), DrainOutcome::Waiting)]
#[case::queued(json!({ "phase": "Queued" }), DrainOutcome::Waiting)]
#[case::granted(json!({ "phase": "Granted" }), DrainOutcome::Waiting)]
#[case::draining(json!({ "phase": "Draining" }), DrainOutcome::Waiting)]
#[case::suspect(json!({ "phase": "Suspect" }), DrainOutcome::Waiting)]
#[case::drained(json!({ "phase": "Drained" }), DrainOutcome::Drained)]
#[case::drained_again(json!({ "phase": "Drained", "drainedAt": "2026-01-01T10:25:00Z" }), DrainOutcome::Drained)]
#[case::was_drained_and_has_rebooted(
    json!({ "phase": "Recovering", "ticket": 4, "grantedAt": "2026-01-01T10:24:00Z", "drainedAt": "2026-01-01T10:25:00Z" }),
    DrainOutcome::Cancelled
)]
#[case::was_drained_and_is_over(json!({ "phase": "Released", "drainedAt": "2026-01-01T10:25:00Z" }), DrainOutcome::Cancelled)]
#[case::its_turn_ended_with_pods_down(json!({ "phase": "Recovering", "ticket": 9 }), DrainOutcome::Waiting)]
#[case::its_turn_ended_and_it_was_drained_before(
    json!({ "phase": "Recovering", "ticket": 9, "drainedAt": "2026-01-01T10:20:00Z" }),
    DrainOutcome::Waiting
)]
#[case::drained_before_and_queued_again(json!({ "phase": "Queued", "ticket": 4, "drainedAt": "2026-01-01T10:20:00Z" }), DrainOutcome::Waiting)]
#[case::pods_came_late(json!({ "phase": "Draining", "ticket": 4, "drainedAt": "2026-01-01T10:20:00Z" }), DrainOutcome::Waiting)]
#[case::uncordoned_before(json!({ "phase": "Recovering" }), DrainOutcome::Cancelled)]
#[case::uncordoned_after_its_grant(
    json!({ "phase": "Recovering", "ticket": 4, "grantedAt": "2026-01-01T10:24:00Z" }),
    DrainOutcome::Cancelled
)]
#[case::released_before(json!({ "phase": "Released" }), DrainOutcome::Cancelled)]
#[case::failed(json!({ "phase": "Failed" }), DrainOutcome::Failed)]
fn outcome_follows_the_phase(#[case] status: Value, #[case] outcome: DrainOutcome) {
    let mut progress = watching(&["node-1"]);
    progress.observe(&drain("node-1", &status));
    assert_eq!(progress.drains[0].outcome, outcome);
    assert_eq!(
        (progress.is_over(), progress.is_drained()),
        (outcome != DrainOutcome::Waiting, outcome == DrainOutcome::Drained)
    );
}

#[rstest]
#[case::before(json!({ "phase": "Draining" }), "its drain was cancelled before it was done")]
#[case::after(
    json!({ "phase": "Draining", "drainedAt": "2026-01-01T10:25:00Z" }),
    "was drained, and its drain is over: the node may be in use again"
)]
fn deleted_drain_not_seen_drained_is_cancelled(#[case] status: Value, #[case] text: &str) {
    let mut progress = watching(&["node-1"]);
    progress.observe(&drain("node-1", &status));
    assert_eq!(progress.observe_deleted(&another("node-1")), None);
    let event = progress.observe_deleted(&drain("node-1", &status)).unwrap();
    assert!(event.matters);
    assert_eq!(event.text, text);
    assert_eq!(progress.drains[0].outcome, DrainOutcome::Cancelled);
}

#[test]
fn ending_drain_is_cancelled_though_drained() {
    let mut progress = watching(&["node-1"]);
    let mut ends = drain(
        "node-1",
        &json!({ "phase": "Drained", "drainedAt": "2026-01-01T10:25:00Z" }),
    );
    ends.metadata.deletion_timestamp = ends.metadata.creation_timestamp.clone();
    progress.observe(&ends);
    assert_eq!(progress.drains[0].outcome, DrainOutcome::Cancelled);
    let mut again = DrainProgress::default();
    again.add(&ends);
    assert_eq!(again.drains[0].outcome, DrainOutcome::Cancelled);
}

#[test]
fn drain_that_queues_again_is_waited_for() {
    let mut progress = watching(&["node-1"]);
    for status in [
        json!({ "phase": "Draining", "ticket": 4, "grantedAt": "2026-01-01T10:24:00Z" }),
        json!({ "phase": "Recovering", "ticket": 9 }),
        json!({ "phase": "Queued", "ticket": 9 }),
    ] {
        progress.observe(&drain("node-1", &status));
        assert_eq!(progress.waited_for(), ["node-1"], "{status}");
    }
    progress.observe(&drain("node-1", &json!({ "phase": "Drained", "ticket": 9 })));
    assert!(progress.is_drained());
}

#[test]
fn drain_missing_after_a_broken_watch_is_cancelled() {
    let mut progress = watching(&["node-1", "node-2"]);
    let events = progress.observe_missing(&["uid-of-node-2".to_owned()]);
    let nodes: Vec<&str> = events.iter().map(|event| event.node.as_str()).collect();
    assert_eq!(nodes, ["node-1"]);
    assert_eq!(progress.waited_for(), ["node-2"]);
}

#[test]
fn other_drain_of_the_node_cancels_ours() {
    let mut progress = watching(&["node-1"]);
    progress.observe(&another("node-1"));
    assert_eq!(progress.drains[0].outcome, DrainOutcome::Cancelled);
}

#[test]
fn outcome_is_final() {
    let mut progress = watching(&["node-1"]);
    progress.observe(&drain("node-1", &json!({ "phase": "Drained" })));
    let failed = drain("node-1", &json!({ "phase": "Failed" }));
    assert_eq!(progress.observe(&failed), None);
    assert_eq!(progress.observe_deleted(&failed), None);
    assert!(progress.is_drained());
}

#[test]
fn each_change_is_told_once() {
    let mut progress = watching(&["node-1"]);
    let mut told = Vec::new();
    let pods = |gone, evicting| json!({ "total": 3, "gone": gone, "evicting": evicting, "retained": 0, "waiting": 3 - gone - evicting });
    for drain in [
        queued("node-1", "node-2"),
        queued("node-1", "node-2"),
        queued("node-1", "node-3"),
        drain(
            "node-1",
            &json!({ "phase": "Draining", "ticket": 4, "pods": pods(1, 1) }),
        ),
        drain(
            "node-1",
            &json!({ "phase": "Draining", "ticket": 4, "pods": pods(2, 1) }),
        ),
        drain(
            "node-1",
            &json!({ "phase": "Drained", "ticket": 4, "startedAt": "2026-01-01T10:20:00Z", "drainedAt": "2026-01-01T10:24:10Z", "pods": pods(3, 0) }),
        ),
    ] {
        told.extend(progress.observe(&drain));
    }
    let lines: Vec<(bool, String)> = told
        .iter()
        .map(|event| {
            let mut page = Page::new(usize::MAX);
            event.print(&mut page, now());
            (event.matters, page.print(false).trim_end().to_owned())
        })
        .collect();
    assert_eq!(
        lines,
        [
            (
                true,
                "10:30:00 node-1: Queued, ticket 4, 5 of 8 gone, 3 waiting; waits for node-2 (shop/web)".to_owned()
            ),
            (
                false,
                "10:30:00 node-1: Queued, ticket 4, 5 of 8 gone, 3 waiting; waits for node-3 (shop/web)".to_owned()
            ),
            (
                true,
                "10:30:00 node-1: Draining, ticket 4, 1 of 3 gone, 1 evicting, 1 waiting".to_owned()
            ),
            (
                false,
                "10:30:00 node-1: Draining, ticket 4, 2 of 3 gone, 1 evicting".to_owned()
            ),
            (true, "10:30:00 node-1: is drained after 4m10s: 3 of 3 gone".to_owned()),
        ]
    );
}

#[test]
fn missing_answer_is_told_once() {
    let mut progress = watching(&["node-1"]);
    assert_eq!(progress.unanswered(at("2026-01-01T10:20:09Z")), []);
    assert_eq!(progress.unanswered(at("2026-01-01T10:20:10Z")).len(), 1);
    assert_eq!(progress.unanswered(at("2026-01-01T10:20:11Z")), []);
}

#[rstest]
#[case(80, 20)]
#[case(79, 5)]
#[case(40, 10)]
#[case(20, 3)]
#[case(10, 1)]
fn live_table_fits_the_terminal(#[case] width: usize, #[case] height: usize) {
    let names: Vec<String> = (0..30)
        .map(|number| format!("ip-10-0-171-{number}.eu-central-1.compute.internal"))
        .collect();
    let mut progress = watching(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for name in &names {
        progress.observe(&queued(name, &names[0]));
    }
    let lines = progress.live_table(now(), at("2026-01-01T10:20:00Z"), width, height);
    assert!(lines.len() <= height, "{}", lines.len());
    for line in &lines {
        assert!(display_width(line) <= width, "{line}");
    }
    let text = console::strip_ansi_codes(&lines.join("\n")).into_owned();
    insta::assert_snapshot!(format!("live_table_{width}x{height}"), text);
}
