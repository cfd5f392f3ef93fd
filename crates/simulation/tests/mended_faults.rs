//! Faults of earlier rules that the judge has found, each on few nodes.

use rstest::rstest;
use simulation::clock::{MINUTE, SECOND};
use simulation::judge::Violation;
use simulation::run::Setup;
use simulation::suite::{Kind, judge};
use simulation::topology::{App, Drain, Drainer, MaxUnavailable, Member, Order, Topology};

const PARALLEL: Drainer = Drainer::Foreign(Order::Parallel);

/// An application of which so many pods may be unavailable.
fn app(most: i32, members: &[Member]) -> App {
    App {
        budget: Some(MaxUnavailable::Pods(most)),
        members: members.to_vec(),
        replica_set: true,
        starts_within: 10 * SECOND,
    }
}

fn drained(node: usize, drainer: Drainer) -> Drain {
    Drain {
        node,
        drainer,
        starts: 0,
        rounds: 1,
        gives_up: None,
    }
}

/// The drainers start one a second.
fn setup(slots: &[usize], apps: Vec<App>, mut drains: Vec<Drain>) -> Setup {
    for (drain, starts) in drains.iter_mut().zip((SECOND / 2..).step_by(1000)) {
        drain.starts = starts;
    }
    let topology = Topology {
        slots: slots.to_vec(),
        apps,
        drains,
    };
    Setup {
        tells: true,
        ..Setup::new(topology, 1)
    }
}

/// Two nodes, two budgets, each over a pod that only its node can run and one that fits elsewhere. Each node's claim waited for
/// the other's pod, which waited for its node's claim. Mended by the need with one disruption for what is movable, asked for once
/// no movable pod can go.
fn wedge() -> Setup {
    let apps = vec![
        app(1, &[Member::pinned(0), Member::movable(1)]),
        app(1, &[Member::pinned(1), Member::movable(0)]),
    ];
    setup(&[9, 9, 9], apps, vec![drained(0, PARALLEL), drained(1, PARALLEL)])
}

/// A budget that never allows a disruption, beside a drain that is granted and queued again every five minutes. drain-keeper's
/// clock began anew at each turn, so that it never reached nine. Mended by a clock that is suspended and moved on.
fn turns(lasts: &'static str) -> Setup {
    let apps = vec![
        app(0, &[Member::movable(0), Member::movable(0)]),
        app(1, &[Member::pinned(0), Member::movable(1)]),
    ];
    Setup {
        lock: Some(lasts),
        keeper: Some(
            "upgradeSignal: always\noverrideBudgets: all\ncountsAsDrain: nodeDrain\nnodeDrain: { timeOut: 1, expectedNodeDrainTime: 1 }\n\
             pdbForceDrainTimeout: 8\noverrideSpacing: 1m\n",
        ),
        ..setup(&[9, 9], apps, vec![drained(0, PARALLEL)])
    }
}

/// A node that is merely cordoned, and a tenant who evicts a pod of his from it: that filed a drain of the node. Mended by asking
/// whether whoever evicts may change nodes.
fn tenant() -> Setup {
    setup(
        &[9, 9],
        vec![app(1, &[Member::movable(0), Member::movable(0)])],
        vec![drained(0, Drainer::Nobody)],
    )
}

/// Two nodes that drain-lock drains, and no free place but on these two. A pod of the first moves to the second, which is cordoned next
/// and has it leave again: it finds no node, and each of the two drains waits for a budget, of pods that only the other's node
/// would take. Mended by a cordon of our own that waits until all that must move finds room.
fn room() -> Setup {
    let of_stateful_sets = |app| App {
        replica_set: false,
        ..app
    };
    let apps = [
        app(1, &[Member::pinned(0)]),
        app(1, &[Member::movable(1), Member::pinned(0)]),
        app(1, &[Member::movable(1), Member::movable(2)]),
    ];
    setup(
        &[2, 6, 1],
        apps.map(of_stateful_sets).to_vec(),
        vec![drained(2, Drainer::Own), drained(1, Drainer::Own)],
    )
}

/// A movable pod that is the last beside one that stays, both of a budget that spares one: the webhook kept the last pod for the
/// claim, which waited for that pod to leave. Mended by taking that for more than the budget can spare.
fn last_beside_staying() -> Setup {
    let apps = vec![app(1, &[Member::staying(0), Member::movable(0), Member::movable(1)])];
    setup(&[9, 9], apps, vec![drained(0, PARALLEL)])
}

/// What the judge objects to in runs of so many seeds, with the story of the first such run.
fn violations(setup: &Setup, seeds: u64) -> anyhow::Result<(Vec<Violation>, String)> {
    let mut all = (Vec::new(), String::new());
    for seed in 0..seeds {
        let judged = judge(seed, Kind::Mixed, &Setup { seed, ..setup.clone() })?;
        if all.0.is_empty() {
            all.1 = judged.outcome.story.join("\n");
        }
        all.0.extend(judged.violations().into_iter().cloned());
    }
    Ok(all)
}

#[rstest]
#[case::budgets_over_held_and_movable_pods(wedge(), 20)]
#[case::tenants_eviction_from_a_cordoned_node(tenant(), 20)]
#[case::circle_through_room(room(), 20)]
#[case::last_beside_staying(last_beside_staying(), 20)]
fn mended_fault_does_not_come_back(#[case] setup: Setup, #[case] seeds: u64) {
    let (violations, story) = violations(&setup, seeds).unwrap();
    assert!(violations.is_empty(), "{violations:?}\n{story}");
}

/// Whether its drain is granted and queued again in turns or not, its pods are forced when they are due.
#[rstest]
#[case::in_turns(r#"{ "deadlines": { "drain": "5m" } }"#)]
#[case::at_once("{}")]
fn clock_of_drain_keeper_does_not_begin_anew(#[case] lock: &'static str) {
    let outcome = turns(lock).run().unwrap();
    let ends = outcome.makespan.is_some_and(|makespan| makespan < 25 * MINUTE);
    assert!(ends, "{}", outcome.story.join("\n"));
}
