//! What was measured: as one JSON object, and as tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::kills::Kills;
use super::run::Mode;
use super::three_nodes::Rounds;
use super::webhook::Webhook;
use crate::bench::rounded::rounded;

/// The size whose figures stand first.
const FIRST: usize = 6;

/// All figures.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub sizes: BTreeMap<usize, BTreeMap<String, RegimeFigures>>,
    /// One held pod, one moved pod and one node alone, measured first.
    pub times: Option<Times>,
    pub webhook: Option<Webhook>,
    /// With drain-lock killed again and again.
    pub kills: Option<Kills>,
    /// The case of three nodes, without drain-lock and with it.
    pub three_nodes: Vec<Rounds>,
}

/// What a drain's steps take here at the least, in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    #[serde(rename = "held_s")]
    pub held: f64,
    #[serde(rename = "moved_s")]
    pub moved: f64,
    #[serde(rename = "one_drain_s")]
    pub one_drain: f64,
    /// Of a node whose pod starts elsewhere.
    #[serde(rename = "moved_drain_s")]
    pub moved_drain: f64,
}

/// A regime at one size.
#[derive(Clone, Debug, Default)]
pub struct RegimeFigures {
    /// The lower bound, of the times that were measured.
    pub bound_s: f64,
    /// The same when pods leave with their nodes.
    pub bound_of_nodes_s: f64,
    /// The first of the reboot's and the pods' own times alone.
    pub bound_of_own_times_s: f64,
    pub modes: BTreeMap<Mode, Cell>,
}

/// One way of draining it.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// From the first command until all pods are back; `null` for a run that was capped.
    pub makespan_s: Option<f64>,
    /// Of the nodes, how many were drained, rebooted and uncordoned: 0 to 1.
    pub finished_share: f64,
    /// Evictions that were refused: 429.
    pub refused: usize,
    /// Requests of kubectl and of drain-lock, without leases and watches.
    pub requests: usize,
    /// Evictions beyond one for each pod that had to leave.
    pub wasted: usize,
    pub unready_pod_s: f64,
    /// From a drain's first sight to its grant, with drain-lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_wait_s: Option<QueueWait>,
    /// Budgets that fell short.
    pub violations: usize,
    /// Of all runs, where there were several; the rest is of the one in the middle, but `finished_share`, `refused`,
    /// `wasted` and `violations` are the worst of all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub makespans_s: Vec<Option<f64>>,
}

impl Cell {
    /// Of several runs; `None` without any.
    pub fn of_runs(mut cells: Vec<Self>) -> Option<Self> {
        // A run without an end took longer than any that has one.
        let makespan = |cell: &Self| cell.makespan_s.unwrap_or(f64::MAX);
        cells.sort_by(|a, b| makespan(a).total_cmp(&makespan(b)));
        let most = |of: fn(&Self) -> usize| cells.iter().map(of).max().unwrap_or_default();
        let middle = cells.get(cells.len() / 2)?;
        Some(Self {
            finished_share: cells.iter().map(|cell| cell.finished_share).fold(1.0, f64::min),
            refused: most(|cell| cell.refused),
            wasted: most(|cell| cell.wasted),
            violations: cells.iter().map(|cell| cell.violations).sum(),
            makespans_s: match cells.len() {
                1 => Vec::new(),
                _ => cells.iter().map(|cell| cell.makespan_s).collect(),
            },
            ..middle.clone()
        })
    }
}

/// How long drains waited for their turn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct QueueWait {
    pub mean: f64,
    pub max: f64,
}

impl QueueWait {
    /// Of waits in seconds; `None` without any.
    pub fn of(waits: &[f64]) -> Option<Self> {
        // Counts of nodes are far below 2^53.
        #[allow(clippy::cast_precision_loss)]
        let count = waits.len() as f64;
        (!waits.is_empty()).then(|| Self {
            mean: waits.iter().sum::<f64>() / count,
            max: waits.iter().copied().fold(0.0, f64::max),
        })
    }
}

impl RegimeFigures {
    fn json(&self) -> Value {
        let mut object = json!({
            "bound_s": self.bound_s,
            "bound_of_nodes_s": self.bound_of_nodes_s,
            "bound_of_own_times_s": self.bound_of_own_times_s,
        });
        for (mode, cell) in &self.modes {
            object[mode.name()] = json!(cell);
        }
        object
    }
}

impl Figures {
    /// One object: the regimes at six nodes (or at the smallest size measured), the other sizes under `sizes`.
    pub fn json(&self) -> Value {
        let first = if self.sizes.contains_key(&FIRST) {
            Some(FIRST)
        } else {
            self.sizes.keys().next().copied()
        };
        let of_size = |regimes: &BTreeMap<String, RegimeFigures>| -> Value {
            let regimes = regimes.iter().map(|(name, figures)| (name.clone(), figures.json()));
            Value::Object(regimes.collect())
        };
        let others = self.sizes.iter().filter(|(size, _)| Some(**size) != first);
        let others = others.map(|(size, regimes)| (size.to_string(), of_size(regimes)));
        let webhook = self.webhook.as_ref();
        let three_nodes = self.three_nodes.iter();
        let three_nodes = three_nodes.map(|rounds| (rounds.mode.name().to_owned(), json!(rounds)));
        rounded(&json!({
            "regimes": first.and_then(|first| self.sizes.get(&first)).map(of_size),
            "nodes_at_once": first,
            "sizes": Value::Object(others.collect()),
            "times": self.times,
            "kills": self.kills,
            "three_nodes": Value::Object(three_nodes.collect()),
            "violations": self.violations(),
            "webhook_ms": webhook.map(|webhook| json!({ "p50": webhook.p50_ms, "p99": webhook.p99_ms, "max": webhook.max_ms })),
            "webhook": webhook,
            "rss_mib": webhook.map(|webhook| webhook.rss_mib),
            "ready_s": webhook.map(|webhook| webhook.ready_s),
        }))
    }

    fn violations(&self) -> usize {
        let cells = self
            .sizes
            .values()
            .flat_map(BTreeMap::values)
            .flat_map(|regime| regime.modes.values());
        let kills = self.kills.iter().map(|kills| kills.drains.violations);
        let rounds = self.three_nodes.iter().map(|rounds| rounds.violations);
        cells.map(|cell| cell.violations).chain(kills).chain(rounds).sum()
    }

    /// For a terminal.
    pub fn table(&self) -> String {
        let mut table = String::new();
        for (size, regimes) in &self.sizes {
            let _ = writeln!(table, "\n{size} nodes at once");
            let _ = writeln!(
                table,
                "  {:9} {:>8} {:>6} {:>8} {:>9} {:>7} {:>11} {:>9}",
                "", "makespan", "done", "refused", "requests", "wasted", "unready s", "queued s"
            );
            for (name, figures) in regimes {
                let _ = writeln!(
                    table,
                    "  {name}: at least {:.1} s, with their nodes {:.1} s, reboots and starts alone {:.1} s",
                    figures.bound_s, figures.bound_of_nodes_s, figures.bound_of_own_times_s
                );
                for (mode, cell) in &figures.modes {
                    let makespan = cell
                        .makespan_s
                        .map_or_else(|| "no end".to_owned(), |s| format!("{s:.1} s"));
                    let queued = cell
                        .queue_wait_s
                        .map_or_else(String::new, |wait| format!("{:.1}", wait.mean));
                    let _ = writeln!(
                        table,
                        "    {:8} {makespan:>7} {:>5.0}% {:>8} {:>9} {:>7} {:>11.1} {queued:>9}",
                        mode.name(),
                        100.0 * cell.finished_share,
                        cell.refused,
                        cell.requests,
                        cell.wasted,
                        cell.unready_pod_s,
                    );
                }
            }
        }
        for rounds in &self.three_nodes {
            let makespan = rounds.makespan_s.map_or_else(String::new, |spread| {
                format!(", {:.1} to {:.1} s", spread.min, spread.max)
            });
            let _ = writeln!(
                table,
                "\n  three nodes at once, {}: {} of {} runs ended{makespan}",
                rounds.mode.name(),
                rounds.ended,
                rounds.runs
            );
        }
        if let Some(kills) = &self.kills {
            let _ = writeln!(table, "\n  {}", kills.text());
        }
        let _ = writeln!(table, "\n  budget violations: {}", self.violations());
        if let Some(webhook) = &self.webhook {
            let _ = writeln!(table, "{}", webhook.text());
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(makespan: Option<f64>, violations: usize) -> Cell {
        Cell {
            makespan_s: makespan,
            finished_share: if makespan.is_some() { 1.0 } else { 0.5 },
            refused: 3,
            requests: 40,
            wasted: 0,
            unready_pod_s: 12.345_67,
            queue_wait_s: None,
            violations,
            makespans_s: Vec::new(),
        }
    }

    fn figures(sizes: &[usize]) -> Figures {
        let regime = RegimeFigures {
            bound_s: 9.0,
            bound_of_nodes_s: 12.0,
            bound_of_own_times_s: 6.0,
            modes: [(Mode::Naive, cell(None, 0)), (Mode::Auto, cell(Some(11.0), 1))].into(),
        };
        Figures {
            sizes: sizes
                .iter()
                .map(|size| (*size, BTreeMap::from([("C".to_owned(), regime.clone())])))
                .collect(),
            ..Figures::default()
        }
    }

    #[test]
    fn six_nodes_stand_first_and_the_other_sizes_under_their_number() {
        let json = figures(&[2, 6, 12]).json();
        assert_eq!(json["nodes_at_once"], 6);
        assert_eq!(json["regimes"]["C"]["bound_s"], 9.0);
        assert_eq!(json["regimes"]["C"]["naive"]["makespan_s"], Value::Null);
        assert_eq!(json["regimes"]["C"]["auto"]["unready_pod_s"], 12.346);
        let sizes: Vec<&String> = json["sizes"].as_object().unwrap().keys().collect();
        assert_eq!(sizes, ["12", "2"]);
        assert_eq!(json["violations"], 3);
        assert_eq!(figures(&[2]).json()["nodes_at_once"], 2);
    }

    #[test]
    fn a_run_without_an_end_has_no_makespan_in_the_table() {
        let table = figures(&[6]).table();
        assert!(table.contains("naive     no end    50%"), "{table}");
        assert!(table.lines().all(|line| line.len() <= 80), "{table}");
    }

    #[test]
    fn of_several_runs_the_middle_one_counts_and_no_violation_is_lost() {
        let of = |runs: &[(Option<f64>, usize)]| {
            let cells = runs.iter().map(|(makespan, violations)| cell(*makespan, *violations));
            Cell::of_runs(cells.collect())
        };
        assert!(of(&[]).is_none());
        let one = of(&[(Some(9.0), 0)]).unwrap();
        assert_eq!((one.makespan_s, one.makespans_s), (Some(9.0), vec![]));
        let three = of(&[(None, 0), (Some(7.0), 2), (Some(8.0), 0)]).unwrap();
        assert_eq!(three.makespan_s, Some(8.0));
        assert_eq!(three.makespans_s, [Some(7.0), Some(8.0), None]);
        assert!((three.finished_share - 0.5).abs() < 1e-9);
        assert_eq!(three.violations, 2);
    }

    #[test]
    fn a_queue_wait_is_the_mean_and_the_longest() {
        assert_eq!(QueueWait::of(&[]), None);
        assert_eq!(QueueWait::of(&[1.0, 3.0]), Some(QueueWait { mean: 2.0, max: 3.0 }));
    }
}
