use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const STAMP: &str = "2026-01-01T00:00:00Z";

fn node(uid: &str, conditions: Value) -> Node {
    let object = json!({ "metadata": { "name": "n1", "uid": uid }, "status": { "conditions": conditions } });
    serde_json::from_value(object).unwrap()
}

fn not_ready(uid: &str) -> Node {
    node(
        uid,
        json!([{ "type": "Ready", "status": "False", "lastTransitionTime": STAMP }]),
    )
}

fn unhealthy(status: Option<&str>, stamp: Option<&str>) -> RestsOn {
    RestsOn::Unhealthy {
        uid: "u1".into(),
        type_: "Ready".into(),
        status: status.map(Into::into),
        last_transition: stamp.map(|stamp| stamp.parse().unwrap()),
    }
}

fn healthy(status: Option<&str>) -> RestsOn {
    let condition = UnhealthyCondition {
        type_: "Ready".into(),
        status: status.map(Into::into),
        duration: jiff::SignedDuration::ZERO,
    };
    RestsOn::Healthy {
        uid: "u1".into(),
        conditions: [condition].into(),
    }
}

fn replaced(by: &str) -> RestsOn {
    RestsOn::Gone {
        replaced_by: Some(by.into()),
    }
}

#[rstest]
#[case::still_unhealthy(unhealthy(Some("False"), Some(STAMP)), Some(not_ready("u1")), true)]
#[case::another_status(unhealthy(Some("Unknown"), Some(STAMP)), Some(not_ready("u1")), false)]
#[case::another_transition(unhealthy(Some("False"), Some("2026-01-01T00:00:01Z")), Some(not_ready("u1")), false)]
#[case::another_node(unhealthy(Some("False"), Some(STAMP)), Some(not_ready("u2")), false)]
#[case::unhealthy_and_gone(unhealthy(Some("False"), Some(STAMP)), None, false)]
#[case::still_missing(unhealthy(None, None), Some(node("u1", json!([]))), true)]
#[case::no_longer_missing(unhealthy(None, None), Some(not_ready("u1")), false)]
#[case::healthy(healthy(Some("Unknown")), Some(not_ready("u1")), true)]
#[case::unhealthy_again(healthy(Some("False")), Some(not_ready("u1")), false)]
#[case::missing_again(healthy(None), Some(node("u1", json!([]))), false)]
#[case::healthy_and_gone(healthy(Some("False")), None, false)]
#[case::healthy_but_another(healthy(Some("Unknown")), Some(not_ready("u2")), false)]
#[case::gone(RestsOn::Gone { replaced_by: None }, None, true)]
#[case::gone_and_back(RestsOn::Gone { replaced_by: None }, Some(not_ready("u1")), false)]
#[case::replaced(replaced("u2"), Some(not_ready("u2")), true)]
#[case::replaced_and_gone(replaced("u2"), None, true)]
#[case::replaced_twice(replaced("u2"), Some(not_ready("u3")), false)]
fn evidence_holds_only_while_nothing_has_changed(
    #[case] rests_on: RestsOn,
    #[case] node: Option<Node>,
    #[case] holds: bool,
) {
    let name = "n1".into();
    let checked = NodeEvidence { name, rests_on }.check(node.as_ref());
    assert_eq!(checked.is_ok(), holds, "{checked:?}");
}
