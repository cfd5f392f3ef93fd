use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::text::line::Ink;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    at("2026-01-01T10:30:00Z")
}

fn drain(node: &str, status: &Value) -> Drain {
    let drain = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain",
        "metadata": { "name": node, "creationTimestamp": "2026-01-01T10:20:00Z" },
        "spec": { "nodeName": node },
        "status": status,
    });
    Drain::of(&serde_json::from_value(drain).unwrap())
}

fn queued(node: &str, holder: &str) -> Drain {
    drain(
        node,
        &json!({
            "phase": "Queued", "ticket": 4, "pods": { "total": 8, "gone": 5, "waiting": 3 },
            "blockedBy": [{ "reason": "WaitsForUnits", "pdb": "shop/web", "node": holder, "message": "" }],
        }),
    )
}

fn board(nodes: &[&str]) -> Board {
    let mut board = Board::default();
    for node in nodes {
        board.add(format!("uid-of-{node}"), drain(node, &Value::Null));
    }
    board
}

#[rstest]
#[case::no_answer(json!(null), Outcome::Waiting)]
#[case::queued(json!({ "phase": "Queued" }), Outcome::Waiting)]
#[case::granted(json!({ "phase": "Granted" }), Outcome::Waiting)]
#[case::draining(json!({ "phase": "Draining" }), Outcome::Waiting)]
#[case::suspect(json!({ "phase": "Suspect" }), Outcome::Waiting)]
#[case::drained(json!({ "phase": "Drained" }), Outcome::Drained)]
#[case::drained_again(json!({ "phase": "Drained", "drainedAt": "2026-01-01T10:25:00Z" }), Outcome::Drained)]
#[case::was_drained_and_has_rebooted(
    json!({ "phase": "Recovering", "ticket": 4, "grantedAt": "2026-01-01T10:24:00Z", "drainedAt": "2026-01-01T10:25:00Z" }),
    Outcome::Cancelled
)]
#[case::was_drained_and_is_over(json!({ "phase": "Released", "drainedAt": "2026-01-01T10:25:00Z" }), Outcome::Cancelled)]
#[case::its_turn_ended_with_pods_down(json!({ "phase": "Recovering", "ticket": 9 }), Outcome::Waiting)]
#[case::its_turn_ended_and_it_was_drained_before(
    json!({ "phase": "Recovering", "ticket": 9, "drainedAt": "2026-01-01T10:20:00Z" }),
    Outcome::Waiting
)]
#[case::drained_before_and_queued_again(json!({ "phase": "Queued", "ticket": 4, "drainedAt": "2026-01-01T10:20:00Z" }), Outcome::Waiting)]
#[case::pods_came_late(json!({ "phase": "Draining", "ticket": 4, "drainedAt": "2026-01-01T10:20:00Z" }), Outcome::Waiting)]
#[case::uncordoned_before(json!({ "phase": "Recovering" }), Outcome::Cancelled)]
#[case::uncordoned_after_its_grant(
    json!({ "phase": "Recovering", "ticket": 4, "grantedAt": "2026-01-01T10:24:00Z" }),
    Outcome::Cancelled
)]
#[case::released_before(json!({ "phase": "Released" }), Outcome::Cancelled)]
#[case::failed(json!({ "phase": "Failed" }), Outcome::Failed)]
fn a_drain_is_over_when_it_is_done_or_cannot_be(#[case] status: Value, #[case] outcome: Outcome) {
    let mut board = board(&["node-1"]);
    board.see("uid-of-node-1", drain("node-1", &status));
    assert_eq!(board.drains[0].outcome, outcome);
    assert_eq!(
        (board.is_over(), board.is_drained()),
        (outcome != Outcome::Waiting, outcome == Outcome::Drained)
    );
}

#[rstest]
#[case::before(json!({ "phase": "Draining" }), "its drain was cancelled before it was done")]
#[case::after(
    json!({ "phase": "Draining", "drainedAt": "2026-01-01T10:25:00Z" }),
    "was drained, and its drain is over: the node may be in use again"
)]
fn a_drain_that_is_gone_and_was_not_seen_drained_did_not_succeed(#[case] status: Value, #[case] text: &str) {
    let mut board = board(&["node-1"]);
    board.see("uid-of-node-1", drain("node-1", &status));
    assert_eq!(board.gone("node-1", "another"), None);
    let news = board.gone("node-1", "uid-of-node-1").unwrap();
    assert!(news.matters);
    assert_eq!(news.text, text);
    assert_eq!(board.drains[0].outcome, Outcome::Cancelled);
}

#[test]
fn a_node_whose_drain_ends_may_not_go_down_though_it_is_drained() {
    let mut board = board(&["node-1"]);
    let drained = drain(
        "node-1",
        &json!({ "phase": "Drained", "drainedAt": "2026-01-01T10:25:00Z" }),
    );
    let ends = Drain {
        ending: true,
        ..drained
    };
    board.see("uid-of-node-1", ends.clone());
    assert_eq!(board.drains[0].outcome, Outcome::Cancelled);
    let mut asked_again = Board::default();
    asked_again.add("uid-of-node-1".to_owned(), ends);
    assert_eq!(asked_again.drains[0].outcome, Outcome::Cancelled);
}

#[test]
fn a_drain_whose_turn_ended_with_pods_down_is_waited_for_until_its_next_one() {
    let mut board = board(&["node-1"]);
    for status in [
        json!({ "phase": "Draining", "ticket": 4, "grantedAt": "2026-01-01T10:24:00Z" }),
        json!({ "phase": "Recovering", "ticket": 9 }),
        json!({ "phase": "Queued", "ticket": 9 }),
    ] {
        board.see("uid-of-node-1", drain("node-1", &status));
        assert_eq!(board.waited_for(), ["node-1"], "{status}");
    }
    board.see(
        "uid-of-node-1",
        drain("node-1", &json!({ "phase": "Drained", "ticket": 9 })),
    );
    assert!(board.is_drained());
}

#[test]
fn a_drain_that_ends_while_the_watch_was_broken_is_noticed() {
    let mut board = board(&["node-1", "node-2"]);
    let news = board.present(&["uid-of-node-2".to_owned()]);
    assert_eq!(
        news.iter().map(|news| news.node.as_str()).collect::<Vec<_>>(),
        ["node-1"]
    );
    assert_eq!(board.waited_for(), ["node-2"]);
}

#[test]
fn another_drain_of_the_same_node_is_not_the_one_that_was_asked_for() {
    let mut board = board(&["node-1"]);
    board.see("another", drain("node-1", &json!({ "phase": "Drained" })));
    assert_eq!(board.drains[0].outcome, Outcome::Cancelled);
}

#[test]
fn what_comes_after_the_end_changes_nothing() {
    let mut board = board(&["node-1"]);
    board.see("uid-of-node-1", drain("node-1", &json!({ "phase": "Drained" })));
    assert_eq!(
        board.see("uid-of-node-1", drain("node-1", &json!({ "phase": "Failed" }))),
        None
    );
    assert_eq!(board.gone("node-1", "uid-of-node-1"), None);
    assert!(board.is_drained());
}

#[test]
fn each_change_is_told_once_and_says_who_waits_for_whom() {
    let mut board = board(&["node-1"]);
    let mut told = Vec::new();
    let pods = |gone, evicting| json!({ "total": 3, "gone": gone, "evicting": evicting, "retained": 0, "waiting": 3 - gone - evicting });
    for view in [
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
        told.extend(board.see("uid-of-node-1", view));
    }
    let lines: Vec<(bool, String)> = told
        .iter()
        .map(|news| (news.matters, news.line(now()).paint(Ink::Plain)))
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
fn silence_of_drain_lock_is_told_once() {
    let mut board = board(&["node-1"]);
    assert_eq!(board.silence(at("2026-01-01T10:20:09Z")), []);
    assert_eq!(board.silence(at("2026-01-01T10:20:10Z")).len(), 1);
    assert_eq!(board.silence(at("2026-01-01T10:20:11Z")), []);
}

#[rstest]
#[case(80, 20)]
#[case(79, 5)]
#[case(40, 10)]
#[case(20, 3)]
#[case(10, 1)]
fn the_picture_fits_the_terminal(#[case] width: usize, #[case] height: usize) {
    let names: Vec<String> = (0..30)
        .map(|number| format!("ip-10-0-171-{number}.eu-central-1.compute.internal"))
        .collect();
    let mut board = board(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for name in &names {
        board.see(&format!("uid-of-{name}"), queued(name, &names[0]));
    }
    let picture = board.picture(now(), at("2026-01-01T10:20:00Z"), width, height);
    assert!(picture.len() <= height, "{}", picture.len());
    for line in &picture {
        assert!(line.width() <= width, "{}", line.paint(Ink::Plain));
    }
    let text: Vec<String> = picture.iter().map(|line| line.paint(Ink::Plain)).collect();
    insta::assert_snapshot!(format!("picture_{width}x{height}"), text.join("\n"));
}
