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
#[case::was_drained(json!({ "phase": "Recovering", "drainedAt": "2026-01-01T10:25:00Z" }), Outcome::Drained)]
#[case::uncordoned_before(json!({ "phase": "Recovering" }), Outcome::Cancelled)]
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
#[case(json!({ "phase": "Draining" }), Outcome::Cancelled)]
#[case(json!({ "phase": "Draining", "drainedAt": "2026-01-01T10:25:00Z" }), Outcome::Drained)]
fn a_drain_that_is_gone_was_cancelled_unless_it_was_done(#[case] status: Value, #[case] outcome: Outcome) {
    let mut board = board(&["node-1"]);
    board.see("uid-of-node-1", drain("node-1", &status));
    assert_eq!(board.gone("node-1", "another"), None);
    assert!(board.gone("node-1", "uid-of-node-1").unwrap().matters);
    assert_eq!(board.drains[0].outcome, outcome);
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
