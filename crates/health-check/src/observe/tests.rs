use rstest::rstest;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[rstest]
#[case::ordinary_failover(Some(17), None)]
#[case::slowest_ordinary_failover(Some(30), None)]
#[case::everybody_was_away(Some(31), Some(at(160)))]
#[case::standby(None, None)]
fn nodes_get_a_moment_to_report_after_an_outage(#[case] unrenewed: Option<u64>, #[case] expected: Option<Timestamp>) {
    let state = unrenewed.map_or(LeaderState::Following, |seconds| LeaderState::Leading {
        since: at(100),
        unrenewed_for: Duration::from_secs(seconds),
        leaderless_for: Duration::ZERO,
    });
    let settle = SignedDuration::from_secs(60);
    assert_eq!(settle_until(state, None, settle, at(100)), expected);
    let stepped = |ago| settle_until(state, Some(SignedDuration::from_secs(ago)), settle, at(150));
    assert_eq!(stepped(10), Some(at(200)).max(expected), "a step of the clock");
    assert_eq!(stepped(60), expected, "that has settled");
}

#[rstest]
#[case::in_a_namespace("ns", "a.example.com/v1/RebootTemplate ns/t")]
#[case::of_a_kind_without("", "a.example.com/v1/RebootTemplate t")]
fn template_is_watched_by_its_name_alone(#[case] namespace: &str, #[case] expected: &str) {
    let template = TemplateRef {
        api_version: "a.example.com/v1".into(),
        kind: "RebootTemplate".into(),
        namespace: namespace.into(),
        name: "t".into(),
    };
    let watched = watched_template(&template);
    assert_eq!(watched.to_string(), expected);
}
