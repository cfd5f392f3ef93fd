use rstest::rstest;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn known(status: &str, stamp: Option<i64>, since: i64) -> ConditionFacts {
    ConditionFacts {
        type_: "Ready".into(),
        status: status.into(),
        last_transition: stamp.map(at),
        counts_since: at(since),
    }
}

/// At second 1000, for `Ready=False`.
#[rstest]
#[case::after_a_restart_a_past_stamp_is_trusted(None, Some(400), true, 400)]
#[case::after_a_restart_a_future_stamp_counts_from_now(None, Some(1300), true, 1000)]
#[case::after_a_restart_no_stamp_counts_from_now(None, None, true, 1000)]
#[case::seen_live_with_a_clock_behind(Some(known("True", Some(1), 1)), Some(700), false, 1000)]
#[case::seen_live_with_a_clock_ahead(Some(known("True", Some(1), 1)), Some(1300), false, 1000)]
#[case::seen_live_on_a_new_node(None, Some(700), false, 1000)]
#[case::unchanged(Some(known("False", Some(700), 720)), Some(700), false, 720)]
#[case::unchanged_in_a_relist(Some(known("False", Some(1300), 990)), Some(1300), false, 990)]
#[case::changed_and_back(Some(known("False", Some(700), 720)), Some(950), false, 1000)]
fn duration_counts_from_what_can_be_trusted(
    #[case] before: Option<ConditionFacts>,
    #[case] stamp: Option<i64>,
    #[case] is_first_list: bool,
    #[case] since: i64,
) {
    let since_then = counts_since(before.as_ref(), "False", stamp.map(at), is_first_list, at(1000).into());
    assert_eq!(since_then, at(since));
}

/// At second 1000 by a clock that was an hour behind when the process began.
#[rstest]
#[case::seen_live(Some(known("True", Some(1), 1)), Some(999), false, -2600)]
#[case::in_a_first_list(None, Some(400), true, -3200)]
#[case::unchanged(Some(known("False", Some(700), -2900)), Some(700), false, -2900)]
fn steps_of_the_clock_are_taken_off(
    #[case] before: Option<ConditionFacts>,
    #[case] stamp: Option<i64>,
    #[case] is_first_list: bool,
    #[case] since: i64,
) {
    let moment = Moment {
        now: at(1000),
        stepped_by: SignedDuration::from_hours(1),
    };
    let since_then = counts_since(before.as_ref(), "False", stamp.map(at), is_first_list, moment);
    assert_eq!(since_then, at(since));
}

#[test]
fn refused_start_waits_longer_each_time() {
    let (check, node) = (CheckName::from("workers"), NodeName::from("n1"));
    let mut seen = Observations::default();
    let mut waits = Vec::new();
    for _ in 0..9 {
        let refusal = Standing::new(HealthReason::NodeChanged, "");
        seen.start_refused((&check, &node, 0), refusal, at(0));
        waits.push(seen.refusals.values().next().unwrap().retry_at.as_second());
    }
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    seen.forget_old(at(899));
    assert_eq!(seen.refusals.len(), 1, "it still counts as one in a row");
    let of_next = Standing::new(HealthReason::NodeChanged, "");
    seen.start_refused((&check, &node, 1), of_next, at(900));
    assert_eq!(seen.refusal(&check, &node).unwrap().in_a_row, 1, "another step");
}
