//! The least time in which a topology can be drained, whoever does it.

use super::topology::Topology;

/// What the steps of a drain take at the least, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// How long a unit of a budget is taken by a pod that stays down until its node is back.
    pub held: f64,
    /// The same for a pod that starts elsewhere at once.
    pub moved: f64,
    /// One node alone, from the drain's command to the last pod's return.
    pub one_drain: f64,
}

/// The larger of one drain and, for the budget that takes longest, its pods one after another, as many at once as it allows.
pub fn lower_bound(topology: &Topology, times: Times) -> f64 {
    let of_budget = topology.apps.iter().map(|app| {
        let each = if topology.is_held(app) { times.held } else { times.moved };
        count(app.nodes.len()) * each / count(app.max_unavailable)
    });
    of_budget.fold(times.one_drain, f64::max)
}

fn count(number: usize) -> f64 {
    // Far below 2^53.
    #[allow(clippy::cast_precision_loss)]
    let number = number as f64;
    number
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
    };

    fn app(nodes: usize, is_pinned: bool, max_unavailable: usize) -> App {
        App {
            name: "app".to_owned(),
            nodes: (0..nodes).map(|node| format!("n{node}")).collect(),
            is_pinned,
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
    #[case::the_slowest_budget_counts(vec![app(2, true, 1), app(3, true, 1), app(4, false, 1)], true, 9.0)]
    #[case::no_pods(vec![], true, 4.0)]
    fn the_bound_is_the_slowest_budget_or_one_drain(#[case] apps: Vec<App>, #[case] spare: bool, #[case] seconds: f64) {
        assert!((lower_bound(&topology(apps, spare), TIMES) - seconds).abs() < 1e-9);
    }
}
