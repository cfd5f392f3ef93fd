//! Random sequences of events, with the writes of each plan applied one by one.

use proptest::prelude::*;

use super::super::PlannedWrite;
use super::super::budget_steps::Layout;
use super::world::World;
use crate::ceph::OsdId;

#[derive(Debug, Clone)]
enum Event {
    /// An OSD's pod goes.
    Stop(OsdId, bool),
    /// Ceph has seen who is down, and was asked now: with fresh statistics or not, clean or in this state.
    Ask {
        is_fresh: bool,
        state: &'static str,
        is_safe: bool,
    },
    /// An OSD is back.
    Start(OsdId),
    Silence,
    /// One write of the plan; the others are lost, as if the process had been killed.
    WriteOne(usize),
    /// All writes until nothing is left.
    Run,
    Pass(i64),
}

fn any_event() -> impl Strategy<Value = Event> {
    let states = vec![
        "active+clean",
        "active+clean+remapped",
        "active+undersized+degraded",
        "undersized+peered",
    ];
    let ask = (any::<bool>(), proptest::sample::select(states), any::<bool>());
    prop_oneof![
        2 => (0_i64..6, any::<bool>()).prop_map(|(osd, draining)| Event::Stop(osd, draining)),
        4 => ask.prop_map(|(is_fresh, state, is_safe)| Event::Ask { is_fresh, state, is_safe }),
        2 => (0_i64..6).prop_map(Event::Start),
        1 => Just(Event::Silence),
        6 => (0_usize..4).prop_map(Event::WriteOne),
        2 => Just(Event::Run),
        1 => (1_i64..40).prop_map(Event::Pass),
    ]
}

/// Whether a fresh judgement lets an OSD of each domain go, or those of this domain.
fn is_allowed(world: &World, exempt: Option<OsdId>) -> bool {
    if world.ceph.is_some() || world.view.asked_at < world.osds_changed_at || world.view.fresh_since.is_none() {
        return false;
    }
    let down = world.down();
    let ceph_knows = |osd: &OsdId| !world.view.map.dump.osds[usize::try_from(*osd).unwrap()].up;
    let state = &world.view.status.pgmap.pgs_by_state[0].state_name;
    let is_clean = state == "active+clean" && down.iter().all(ceph_knows);
    let is_safe = |rack: OsdId| {
        let together = [rack * 2, rack * 2 + 1].into_iter().chain(down.clone()).collect();
        let answer = world.view.stop_answers.get(&together);
        answer.is_some_and(|answer| answer.may_stop(&[].into()) == Some(true))
    };
    match exempt {
        Some(osd) => is_clean || is_safe(osd / 2),
        None => is_clean || (down.is_empty() && state == "active+clean+remapped" && (0..3).all(is_safe)),
    }
}

/// What a write changes for the OSDs.
fn check(before: &World, after: &World, write: &PlannedWrite) -> Result<(), TestCaseError> {
    for osd in 0..6 {
        let (was, is) = (before.selected(osd), after.selected(osd));
        let (open, count) = (is.contains_key(&true), is.values().sum::<usize>());
        prop_assert!(
            count <= 2 && !(open && count == 2),
            "{write:?}: osd.{osd} is selected by {is:?}"
        );
        // Selected twice for an instant: while domains are added, covered again, or exempt ones change.
        prop_assert!(
            count < 2 || before.policy.layout == Layout::PerDomain,
            "{write:?}: osd.{osd} twice"
        );
        if open && !was.contains_key(&true) && !was.is_empty() {
            prop_assert!(
                is_allowed(before, None),
                "{write:?} opens osd.{osd}: {:?}",
                before.plan().verdicts
            );
        }
        if count == 0 && !was.is_empty() {
            prop_assert!(
                is_allowed(before, Some(osd)),
                "{write:?} exempts osd.{osd}: {:?}",
                before.plan().verdicts
            );
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_write_opens_what_a_fresh_judgement_refuses(
        events in proptest::collection::vec(any_event(), 1..40),
        is_single in any::<bool>(),
    ) {
        let mut world = World::settled();
        if is_single {
            world.policy.layout = Layout::Single;
        }
        for event in events {
            match event {
                Event::Stop(osd, draining) => world.stop(osd, draining),
                Event::Ask { is_fresh, state, is_safe } => {
                    let running: Vec<bool> = world.osds.values().map(|osd| osd.pod == crate::snapshot::OsdPod::Running).collect();
                    for (osd, is_up) in world.dump().osds.iter_mut().zip(running) {
                        osd.up = is_up;
                    }
                    world.view.fresh_since = is_fresh.then_some(world.now);
                    world.unclean(state);
                    world.may_stop_all(is_safe);
                }
                Event::Start(osd) => {
                    let view = world.view.clone();
                    world.start(osd);
                    // Ceph does not know it yet.
                    world.view = view;
                }
                Event::Silence => world.silence(),
                Event::Pass(minutes) => world.now += jiff::SignedDuration::from_mins(minutes),
                Event::WriteOne(index) => {
                    let actions = world.plan().actions;
                    if let Some(planned) = actions.get(index) {
                        let before = world.clone();
                        world.apply(&planned.write);
                        check(&before, &world, planned)?;
                    }
                }
                Event::Run => {
                    for _ in 0..60 {
                        let Some(planned) = world.plan().actions.into_iter().next() else { break };
                        let before = world.clone();
                        world.apply(&planned.write);
                        check(&before, &world, &planned)?;
                    }
                }
            }
        }
    }
}
