#![allow(clippy::unnecessary_wraps, reason = "a cordon may be absent, also in a table")]

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const FLAP: SignedDuration = SignedDuration::from_mins(2);

/// Every moment is told in seconds after this.
const START: i64 = 1_767_225_600;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}

/// A cordon whose taint was added then.
fn cordoned(second: i64) -> Option<Cordon> {
    Some(Cordon {
        time_added: Some(at(second)),
    })
}

const WITHOUT_TIME: Option<Cordon> = Some(Cordon { time_added: None });

/// One node, its annotation, and the process that watches it; what is to be written is written at once.
#[derive(Clone, Default)]
struct Watched {
    annotation: Option<DrainClock>,
    history: NodeHistory,
    upgrade_since: Option<Timestamp>,
    boot: &'static str,
    /// Writes fail.
    deaf: bool,
}

impl Watched {
    fn new() -> Self {
        Self {
            boot: "boot-1",
            ..Self::default()
        }
    }

    fn upgrading_since(second: i64) -> Self {
        Self {
            upgrade_since: Some(at(second)),
            ..Self::new()
        }
    }

    fn look(&mut self, second: i64, cordon: Option<Cordon>, gates_open: bool) -> ClockState {
        let course = if gates_open && cordon.is_some() {
            Course::GoesOn
        } else {
            Course::Closed
        };
        self.look_in(second, cordon, course)
    }

    /// The same of a drain that waits for its turn.
    fn waits(&mut self, second: i64, cordon: Option<Cordon>) -> ClockState {
        self.look_in(second, cordon, Course::Waits)
    }

    fn look_in(&mut self, second: i64, cordon: Option<Cordon>, course: Course) -> ClockState {
        let now = at(second);
        let input = ClockInput {
            recorded: self.annotation.as_ref(),
            cordon,
            course,
            upgrade_since: self.upgrade_since,
            boot_id: self.boot,
        };
        let before = self.history;
        self.history = before.and(&input, now);
        let reading = evaluate(&input, before, FLAP, now);
        match &reading {
            ClockState::Running(clock) => {
                self.history.parked = false;
                self.history.began = Some(clock.start);
            }
            ClockState::Suspended(clock) => {
                self.history.parked = false;
                self.history.began = Some(clock.resumed(now).start);
            }
            ClockState::Write(_) if self.deaf => {}
            ClockState::Write(ClockWrite::Set(clock)) => self.annotation = Some(clock.clone()),
            ClockState::Write(ClockWrite::Remove) => self.annotation = None,
            ClockState::Stopped | ClockState::Interrupted(_) => {}
        }
        reading
    }

    /// Draining from `second` on, with the clock written and running.
    fn drains(&mut self, second: i64, cordon: Option<Cordon>) -> &mut Self {
        self.look(second, cordon, true);
        let reading = self.look(second, cordon, true);
        assert!(matches!(reading, ClockState::Running(_)), "{reading:?}");
        self
    }

    /// When the clock that runs after this look, and the write it may ask for, began.
    fn start_after(&mut self, second: i64, cordon: Option<Cordon>) -> (Timestamp, ClockSource) {
        self.look(second, cordon, true);
        match self.look(second, cordon, true) {
            ClockState::Running(clock) => (clock.start, clock.from),
            other => panic!("{other:?}"),
        }
    }

    fn restart(&mut self) {
        self.history = NodeHistory::default();
    }
}

#[rstest]
#[case::the_taint(Watched::new(), cordoned(-600), at(-600), ClockSource::Taint)]
#[case::first_seen_where_it_has_no_time(Watched::new(), WITHOUT_TIME, at(0), ClockSource::FirstSeen)]
#[case::a_later_upgrade(Watched::upgrading_since(-60), cordoned(-600), at(-60), ClockSource::Upgrade)]
#[case::an_earlier_upgrade(Watched::upgrading_since(-900), cordoned(-600), at(-600), ClockSource::Taint)]
#[case::an_earlier_upgrade_and_no_time(Watched::upgrading_since(-900), WITHOUT_TIME, at(0), ClockSource::FirstSeen)]
fn clock_starts_at_later_of_taint_and_upgrade(
    #[case] mut watched: Watched,
    #[case] cordon: Option<Cordon>,
    #[case] start: Timestamp,
    #[case] from: ClockSource,
) {
    assert_eq!(watched.start_after(0, cordon), (start, from));
    let clock = watched.annotation.unwrap();
    assert_eq!(
        (clock.boot_id.as_str(), clock.uncordoned_at, clock.ended),
        ("boot-1", None, false)
    );
    assert_eq!(clock.cordoned_at, cordon.unwrap().time_added);
}

#[test]
fn cordon_without_time_counts_from_first_sight() {
    let mut watched = Watched::new();
    watched.look(0, WITHOUT_TIME, true);
    watched.annotation = None;
    assert_eq!(watched.start_after(30, WITHOUT_TIME), (at(0), ClockSource::FirstSeen));
}

#[rstest]
#[case::gate_last(None, at(300), ClockSource::Gate)]
#[case::upgrade_last(Some(at(400)), at(400), ClockSource::Upgrade)]
fn parked_node_starts_when_gates_open(
    #[case] upgrade_since: Option<Timestamp>,
    #[case] start: Timestamp,
    #[case] from: ClockSource,
) {
    let mut watched = Watched {
        upgrade_since,
        ..Watched::new()
    };
    assert_eq!(watched.look(100, cordoned(0), false), ClockState::Stopped);
    assert_eq!(watched.start_after(300, cordoned(0)), (start, from));
}

/// After a restart nothing was seen, and the taint alone tells.
#[test]
fn forgotten_parking_starts_at_the_taint() {
    let mut watched = Watched::new();
    watched.look(100, cordoned(0), false);
    watched.restart();
    assert_eq!(watched.start_after(300, cordoned(0)), (at(0), ClockSource::Taint));
}

#[test]
fn a_restart_changes_nothing() {
    let mut watched = Watched::new();
    watched.drains(0, WITHOUT_TIME).restart();
    assert_eq!(
        watched.look(1000, WITHOUT_TIME, true),
        ClockState::Running(watched.annotation.clone().unwrap())
    );
    assert_eq!(watched.annotation.unwrap().start, at(0));
}

#[rstest]
#[case::shorter(10 + 119, at(0))]
#[case::not_shorter(10 + 120, at(130))]
#[case::longer(10 + 500, at(510))]
fn short_uncordon_keeps_the_clock(
    #[case] again: i64,
    #[case] start: Timestamp,
    #[values(true, false)] has_time: bool,
    #[values(false, true)] deaf: bool,
    #[values(false, true)] looked_at_in_between: bool,
) {
    let cordon = |second| if has_time { cordoned(second) } else { WITHOUT_TIME };
    let mut watched = Watched::new();
    watched.drains(0, cordon(0));
    // Whether or not the API server took the record of the uncordon.
    watched.deaf = deaf;
    watched.look(10, None, false);
    if looked_at_in_between {
        watched.look(60, None, false);
    }
    watched.deaf = false;
    assert_eq!(watched.start_after(again, cordon(again)).0, start);
    assert_eq!(watched.annotation.unwrap().uncordoned_at, None);
}

#[rstest]
#[case(119, at(0))]
#[case(120, at(130))]
fn flap_survives_a_restart_in_it(#[case] length: i64, #[case] start: Timestamp) {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0));
    watched.look(10, None, false);
    watched.restart();
    assert_eq!(watched.start_after(10 + length, cordoned(10 + length)).0, start);
}

#[test]
fn uncordon_record_ends_with_the_tolerance() {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0));
    watched.look(10, None, false);
    assert_eq!(watched.annotation.as_ref().unwrap().uncordoned_at, Some(at(10)));
    assert_eq!(watched.look(20, None, false), ClockState::Interrupted(at(130)));
    assert_eq!(watched.look(129, None, false), ClockState::Interrupted(at(130)));
    assert_eq!(watched.look(130, None, false), ClockState::Write(ClockWrite::Remove));
    assert_eq!(watched.look(131, None, false), ClockState::Stopped);
}

/// Nobody knows how long ago it was.
#[test]
fn an_uncordon_that_nobody_watched_ends_the_drain() {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0)).restart();
    assert_eq!(watched.look(10, None, false), ClockState::Write(ClockWrite::Remove));
}

#[test]
fn clock_stops_with_upgrade_and_restarts_with_gates() {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0));
    watched.look(10, cordoned(0), false);
    assert_eq!(watched.look(20, cordoned(0), false), ClockState::Interrupted(at(130)));
    assert_eq!(
        watched.look(130, cordoned(0), false),
        ClockState::Write(ClockWrite::Remove)
    );
    assert_eq!(watched.start_after(500, cordoned(0)), (at(500), ClockSource::Gate));
}

#[rstest]
#[case::while_cordoned(None)]
#[case::across_a_short_uncordon(Some(20))]
fn another_boot_ends_the_drain(#[case] uncordoned: Option<i64>) {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0));
    watched.boot = "boot-2";
    if uncordoned.is_none() {
        // Pods that block it even so get the full waits anew.
        assert_eq!(watched.start_after(30, cordoned(0)), (at(30), ClockSource::Reboot));
        assert!(watched.annotation.as_ref().unwrap().ended);
    }
    watched.look(40, None, false);
    // However soon the next cordon comes, it is a new drain.
    assert_eq!(watched.start_after(41, cordoned(41)), (at(41), ClockSource::Taint));
    assert!(!watched.annotation.unwrap().ended);
}

#[rstest]
#[case::not_known_then("", "boot-1")]
#[case::not_known_now("boot-1", "")]
fn a_boot_that_is_not_known_ends_nothing(#[case] then: &'static str, #[case] now: &'static str) {
    let mut watched = Watched {
        boot: then,
        ..Watched::new()
    };
    watched.drains(0, cordoned(0));
    watched.boot = now;
    assert!(matches!(watched.look(10, cordoned(0), true), ClockState::Running(_)));
}

#[rstest]
#[case::seen_uncordoned(true)]
#[case::not_seen_uncordoned(false)]
fn a_node_left_without_blockers_ends_the_drain(#[case] seen_uncordoned: bool) {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0));
    watched.history.drained = true;
    if seen_uncordoned {
        assert_eq!(watched.look(10, None, false), ClockState::Write(ClockWrite::Remove));
    }
    assert_eq!(watched.start_after(12, cordoned(11)).0, at(11));
}

#[rstest]
#[case::of_the_taint(Watched::new(), at(-3600))]
#[case::not_before_the_upgrade(Watched::upgrading_since(-600), at(-600))]
fn older_taint_moves_the_start(#[case] mut watched: Watched, #[case] start: Timestamp) {
    watched.drains(0, cordoned(0));
    assert_eq!(watched.start_after(10, cordoned(-3600)).0, start);
    assert!(
        matches!(watched.look(11, cordoned(-3600), true), ClockState::Running(_)),
        "and is written once"
    );
}

/// A start that was not read from the taint does not move with it.
#[test]
fn older_taint_keeps_a_start_at_gates() {
    let mut watched = Watched::new();
    watched.look(0, cordoned(0), false);
    watched.drains(100, cordoned(0));
    assert_eq!(watched.start_after(110, cordoned(-3600)), (at(100), ClockSource::Gate));
}

#[rstest]
// Both changes in one look: the flap was shorter than the time since the re-cordon.
#[case::seen_soon(false, cordoned(0), 110, at(0))]
#[case::seen_late(false, cordoned(0), 100 + 120, at(100))]
#[case::after_a_restart(true, cordoned(0), 110, at(100))]
// A clock that began without a time covers no cordon that is younger than its start.
#[case::no_time_before(true, WITHOUT_TIME, 110, at(100))]
fn unseen_new_cordon_starts_drain_unless_flap(
    #[case] restarted: bool,
    #[case] before: Option<Cordon>,
    #[case] seen: i64,
    #[case] start: Timestamp,
) {
    let mut watched = Watched::new();
    watched.drains(0, before);
    if restarted {
        watched.restart();
    }
    assert_eq!(watched.start_after(seen, cordoned(100)).0, start);
}

#[test]
fn a_newer_upgrade_moves_the_start() {
    let mut watched = Watched::upgrading_since(-600);
    watched.drains(0, cordoned(-900));
    watched.upgrade_since = Some(at(300));
    assert_eq!(
        watched.start_after(310, cordoned(-900)),
        (at(300), ClockSource::Upgrade)
    );
    watched.upgrade_since = Some(at(200));
    assert_eq!(
        watched.start_after(320, cordoned(-900)),
        (at(300), ClockSource::Upgrade),
        "never back"
    );
}

#[rstest]
#[case::began_with_its_cordon(None, at(0), ClockSource::Taint)]
#[case::began_later(Some(300), at(300), ClockSource::Gate)]
fn removed_clock_restarts_where_it_began(
    #[case] gates_opened: Option<i64>,
    #[case] start: Timestamp,
    #[case] from: ClockSource,
) {
    let mut watched = Watched::new();
    watched.look(0, cordoned(0), gates_opened.is_none());
    watched.drains(gates_opened.unwrap_or(0), cordoned(0));
    watched.annotation = None;
    assert_eq!(watched.start_after(500, cordoned(0)), (start, from));
    watched.look(510, None, false);
    assert_eq!(
        watched.start_after(900, cordoned(700)),
        (at(700), ClockSource::Taint),
        "of another cordon it says nothing"
    );
}

/// A wall clock that has stepped back since puts the start no further than now.
#[test]
fn removed_clock_restarts_no_later_than_now() {
    let mut watched = Watched::new();
    watched.look(0, cordoned(0), false);
    watched.drains(300, cordoned(0));
    watched.annotation = None;
    assert_eq!(watched.start_after(200, cordoned(0)).0, at(200));
}

#[test]
fn a_node_out_of_every_drain_needs_no_clock() {
    let mut watched = Watched::new();
    assert_eq!(watched.look(0, None, false), ClockState::Stopped);
    assert_eq!(watched.look(1, cordoned(0), false), ClockState::Stopped);
    assert_eq!(watched.annotation, None);
}

/// Seen live: a drain that was queued again every 30 s never came to its deadline.
#[test]
fn turns_move_the_start_by_the_time_waited_only() {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0));
    for turn in 1..=10 {
        let queued = 60 * turn - 30;
        watched.waits(queued, cordoned(0));
        watched.waits(queued + 10, cordoned(0));
        let (start, from) = watched.start_after(queued + 30, cordoned(0));
        assert_eq!((start, from), (at(30 * turn), ClockSource::Gate));
    }
}

/// The cordon is when it began, and what it waited since does not count.
#[rstest]
#[case::from_its_cordon_on(0)]
#[case::after_a_while(40)]
fn drain_that_has_to_wait_begins_with_its_cordon(#[case] queued: i64) {
    let mut watched = Watched::new();
    let waits = watched.waits(queued, cordoned(0));
    assert!(matches!(waits, ClockState::Write(ClockWrite::Set(_))), "{waits:?}");
    let waits = watched.waits(queued + 1, cordoned(0));
    assert_eq!(waits, ClockState::Suspended(watched.annotation.clone().unwrap()));
    assert_eq!(watched.start_after(300, cordoned(0)).0, at(300 - queued));
}

/// Nothing but the annotation tells since when it waits.
#[test]
fn suspended_clock_survives_a_restart() {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0));
    watched.waits(30, cordoned(0));
    watched.restart();
    watched.waits(60, cordoned(0));
    watched.restart();
    assert_eq!(watched.start_after(90, cordoned(0)).0, at(60));
}

#[test]
fn removed_clock_of_a_drain_that_waits_forgets_no_wait() {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0));
    watched.waits(30, cordoned(0));
    watched.waits(60, cordoned(0));
    watched.annotation = None;
    watched.waits(70, cordoned(0));
    assert_eq!(watched.start_after(90, cordoned(0)).0, at(30 + 20));
}

/// The wait ends with the uncordon, and the time until the next cordon counts as it does for every flap.
#[rstest]
#[case::that_waits_no_longer(false, 30)]
#[case::that_waits_still(true, 50)]
fn short_uncordon_keeps_the_clock_of_a_drain_that_waits(#[case] waits: bool, #[case] start: i64) {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0));
    watched.waits(10, cordoned(0));
    watched.look(40, None, false);
    assert_eq!(watched.annotation.as_ref().unwrap().suspended_at, None);
    if waits {
        watched.waits(50, cordoned(50));
    }
    assert_eq!(watched.start_after(70, cordoned(50)).0, at(start));
}

#[test]
fn reboot_of_a_drain_that_waits_ends_it() {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0));
    watched.waits(10, cordoned(0));
    watched.boot = "boot-2";
    watched.waits(30, cordoned(0));
    let clock = watched.annotation.clone().unwrap();
    assert_eq!((clock.start, clock.suspended_at), (at(30), Some(at(30))));
    assert!(clock.ended);
}

/// The taint tells the start no more once it has moved.
#[test]
fn moved_start_does_not_go_back_to_the_taint() {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0));
    watched.waits(10, cordoned(0));
    assert_eq!(watched.start_after(40, cordoned(0)).0, at(30));
    assert!(matches!(watched.look(50, cordoned(0), true), ClockState::Running(_)));
}

#[test]
fn upgrade_moves_the_start_of_a_drain_that_waits() {
    let mut watched = Watched::new();
    watched.drains(0, cordoned(0));
    watched.waits(10, cordoned(0));
    watched.upgrade_since = Some(at(30));
    watched.waits(40, cordoned(0));
    assert_eq!(
        watched.start_after(50, cordoned(0)).0,
        at(50),
        "all of it would have been waited for"
    );
}

proptest! {
    /// However turns come and go, a deadline comes exactly as much later as the drain has waited.
    #[test]
    fn start_moves_by_no_more_than_was_waited(steps in prop::collection::vec((1_i64..100, any::<bool>(), any::<bool>()), 1..40)) {
        let mut watched = Watched::new();
        watched.drains(0, cordoned(0));
        let (mut now, mut waited, mut waits) = (0, 0, false);
        for (passed, waits_then, restarts) in steps {
            now += passed;
            waited += if waits { passed } else { 0 };
            waits = waits_then;
            if restarts {
                watched.restart();
            }
            if waits {
                watched.waits(now, cordoned(0));
            } else {
                watched.look(now, cordoned(0), true);
            }
            let clock = watched.annotation.clone().unwrap();
            prop_assert_eq!(clock.resumed(at(now)).start, at(waited));
            prop_assert_eq!(clock.suspended_at.is_some(), waits);
        }
    }
}
