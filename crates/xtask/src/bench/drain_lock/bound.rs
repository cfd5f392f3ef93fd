//! The least time in which a topology can be drained, whoever does it.

use serde::Serialize;

use super::topology::{App, Topology};
use crate::bench::figures::count;

/// What the steps of a drain take at the least, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// How long a disruption of a budget is taken by a pod that stays down until its node is back.
    #[serde(rename = "held_s")]
    pub held: f64,
    /// The same for a pod that starts elsewhere at once.
    #[serde(rename = "moved_s")]
    pub moved: f64,
    /// One node alone, from the drain's command to the last pod's return.
    #[serde(rename = "one_drain_s")]
    pub one_drain: f64,
    /// The same of a node whose pod starts elsewhere: to its uncordon.
    #[serde(rename = "moved_drain_s")]
    pub moved_drain: f64,
}

impl Times {
    pub const MAX: Self = Self {
        held: f64::MAX,
        moved: f64::MAX,
        one_drain: f64::MAX,
        moved_drain: f64::MAX,
    };

    /// As if nothing took time but reboots and the starts of pods.
    pub fn of(topology: &Topology) -> Self {
        let away = topology.away.as_secs_f64();
        let starts = topology.apps.iter().map(|app| app.time_to_ready.as_secs_f64());
        let ready = starts.reduce(f64::min).unwrap_or_default();
        Self {
            held: away + ready,
            moved: ready,
            one_drain: away,
            moved_drain: away,
        }
    }
}

/// The larger of one drain and, for the budget that takes longest, its pods one after another, as many at once as it allows.
pub fn lower_bound(topology: &Topology, times: Times) -> f64 {
    let of_budget = topology.apps.iter().map(|app| {
        let held = topology.held(app);
        let moved = app.nodes.len() - held;
        (count(held) * times.held + count(moved) * times.moved) / count(app.max_unavailable)
    });
    of_budget.fold(times.one_drain, f64::max)
}

/// The same, and what follows from pods leaving with their nodes: the last of a budget's movable pods has left before its
/// node reboots, and pods that are pinned to a node are down together, so that no two nodes whose pinned pods have a budget
/// without room for both can be away at once.
pub fn lower_bound_of_nodes(topology: &Topology, times: Times) -> f64 {
    let movable = topology
        .apps
        .iter()
        .map(|app| (app, app.nodes.len() - topology.held(app)));
    let last_leaves = movable.filter(|(_, pods)| *pods > 0).map(|(app, pods)| {
        let turns = pods.div_ceil(app.max_unavailable.max(1));
        count(turns.saturating_sub(1)) * times.moved + times.moved_drain
    });
    let waves = count(least_waves(topology)) * times.held;
    last_leaves.fold(lower_bound(topology, times).max(waves), f64::max)
}

/// How often a search tries to put a node into a wave before it takes what is not refuted yet for possible.
const TRIES: usize = 200_000;

/// In how many waves at the least the nodes with pinned pods can be away, so that no wave takes more of a budget than it
/// allows.
fn least_waves(topology: &Topology) -> usize {
    let apps: Vec<&App> = topology.apps.iter().filter(|app| app.pinned > 0).collect();
    let of_node = |node: &str| -> Vec<usize> {
        let pinned = apps.iter().enumerate();
        let here = pinned.filter(|(_, app)| app.nodes.iter().take(app.pinned).any(|name| name == node));
        here.map(|(index, _)| index).collect()
    };
    let mut nodes: Vec<Vec<usize>> = topology.drained().iter().map(|node| of_node(node)).collect();
    nodes.retain(|apps| !apps.is_empty());
    // The search fails soonest where most is needed.
    nodes.sort_by_key(|apps| std::cmp::Reverse(apps.len()));
    let room: Vec<usize> = apps.iter().map(|app| app.max_unavailable.max(1)).collect();
    (0..=nodes.len())
        .find(|waves| {
            let mut search = Search {
                nodes: &nodes,
                room: &room,
                taken: vec![vec![0; room.len()]; *waves],
                tries: 0,
            };
            search.fits(0, 0)
        })
        .unwrap_or(nodes.len())
}

/// Puts nodes into waves, one after another.
struct Search<'a> {
    /// Each node's apps.
    nodes: &'a [Vec<usize>],
    /// How many pods of each app may be down at once.
    room: &'a [usize],
    /// How many are, in each wave.
    taken: Vec<Vec<usize>>,
    tries: usize,
}

impl Search<'_> {
    /// Whether the nodes from this one on find waves, with so many begun; true when that is not known after all tries.
    fn fits(&mut self, node: usize, begun: usize) -> bool {
        let Some(apps) = self.nodes.get(node) else {
            return true;
        };
        // Waves that are still empty are alike.
        for wave in 0..self.taken.len().min(begun + 1) {
            self.tries += 1;
            if self.tries > TRIES {
                return true;
            }
            if apps.iter().any(|app| self.taken[wave][*app] >= self.room[*app]) {
                continue;
            }
            for app in apps {
                self.taken[wave][*app] += 1;
            }
            if self.fits(node + 1, begun.max(wave + 1)) {
                return true;
            }
            for app in apps {
                self.taken[wave][*app] -= 1;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::topology::{App, Node};
    use super::*;

    const TIMES: Times = Times {
        held: 3.0,
        moved: 1.0,
        one_drain: 4.0,
        moved_drain: 3.5,
    };

    fn app(nodes: usize, is_pinned: bool, max_unavailable: usize) -> App {
        App {
            name: "app".to_owned(),
            nodes: (0..nodes).map(|node| format!("n{node}")).collect(),
            pinned: if is_pinned { nodes } else { 0 },
            max_unavailable,
            time_to_ready: Duration::from_secs(1),
        }
    }

    fn topology(apps: Vec<App>, spare: bool) -> Topology {
        let node = |name: &str, is_drained| Node {
            name: name.to_owned(),
            is_drained,
            room: 9,
        };
        let mut nodes = vec![node("n0", true)];
        nodes.extend(spare.then(|| node("spare", false)));
        Topology {
            regime: "X".to_owned(),
            nodes,
            apps,
            away: Duration::from_secs(2),
        }
    }

    #[rstest::rstest]
    #[case::one_drain_alone(vec![app(1, true, 1)], true, 4.0)]
    #[case::pinned_one_after_another(vec![app(3, true, 1)], true, 9.0)]
    #[case::two_at_once(vec![app(4, true, 2)], true, 6.0)]
    #[case::movable_with_room(vec![app(6, false, 1)], true, 6.0)]
    #[case::movable_without_room_is_held(vec![app(6, false, 1)], false, 18.0)]
    #[case::one_budget_over_both_kinds(vec![App { pinned: 2, ..app(5, false, 1) }], true, 9.0)]
    #[case::the_slowest_budget_counts(vec![app(2, true, 1), app(3, true, 1), app(4, false, 1)], true, 9.0)]
    #[case::no_pods(vec![], true, 4.0)]
    fn slowest_budget_bounds_the_drains(#[case] apps: Vec<App>, #[case] spare: bool, #[case] seconds: f64) {
        assert!((lower_bound(&topology(apps, spare), TIMES) - seconds).abs() < 1e-9);
    }

    /// An app on these nodes, which allows one pod to be missing.
    fn on(nodes: &[usize], is_pinned: bool) -> App {
        App {
            nodes: nodes.iter().map(|node| format!("n{node}")).collect(),
            ..app(if is_pinned { nodes.len() } else { 0 }, is_pinned, 1)
        }
    }

    #[rstest::rstest]
    #[case::no_pods(vec![], 4.0)]
    #[case::last_movable_pods_node_reboots(vec![app(4, false, 1)], 6.5)]
    #[case::two_of_them_at_once(vec![app(4, false, 2)], 4.5)]
    #[case::pinned_pods_of_one_budget(vec![app(3, true, 1)], 9.0)]
    // Each of the three budgets has two pods, but no two of the three nodes can be away at once.
    #[case::pinned_pods_in_a_ring(vec![on(&[0, 1], true), on(&[1, 2], true), on(&[2, 0], true)], 9.0)]
    #[case::two_pairs(vec![on(&[0, 1], true), on(&[2, 3], true)], 6.0)]
    #[case::movable_pods_tie_no_nodes(vec![on(&[0, 1], false), on(&[1, 2], false), on(&[2, 0], false)], 4.5)]
    fn nodes_are_away_with_their_pods(#[case] apps: Vec<App>, #[case] seconds: f64) {
        let drained = |node| Node {
            name: format!("n{node}"),
            is_drained: true,
            room: 9,
        };
        let spare = Node {
            name: "spare".to_owned(),
            is_drained: false,
            room: 9,
        };
        let topology = Topology {
            nodes: (0..4).map(drained).chain([spare]).collect(),
            ..topology(apps, true)
        };
        let bound = lower_bound_of_nodes(&topology, TIMES);
        assert!((bound - seconds).abs() < 1e-9, "{bound}");
    }
}
