//! The figures of drains: by size and regime, with the bounds, and by the way of draining.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use super::bound::Times;
use super::run::Mode;
use crate::bench::figures::{Distribution, Figures};

/// The size whose figures stand first.
const FIRST: usize = 6;

/// All figures of drains.
#[derive(Clone, Debug, Default)]
pub struct Regimes {
    pub sizes: BTreeMap<usize, BTreeMap<String, Regime>>,
    /// One held pod, one moved pod and one node alone, measured first.
    pub times: Option<Times>,
    /// The case of three nodes.
    pub three_nodes: BTreeMap<Mode, Run>,
}

/// A regime at one size.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Regime {
    /// The lower bound, of the times that were measured.
    pub bound_s: f64,
    /// The same when pods leave with their nodes.
    pub bound_of_nodes_s: f64,
    /// The first of the reboot's and the pods' own times alone.
    pub bound_of_own_times_s: f64,
    #[serde(flatten)]
    pub modes: BTreeMap<Mode, Run>,
}

/// One way of draining, once; or several times, and then the middle run, but `finished_share`, `refused`, `wasted` and
/// `violations` are the worst of all.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
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
    /// From a drain's first sight to its grant; of none without drain-lock.
    pub queue_wait_s: Distribution,
    /// Budgets that fell short.
    pub violations: usize,
    #[serde(flatten)]
    pub cpu: CpuShares,
    pub runs: usize,
    /// How many of them ended.
    pub ended: usize,
    /// Of those that ended.
    pub makespans_s: Distribution,
}

/// Shares of the CPU time of all cores.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CpuShares {
    /// What etcd, kube-apiserver, the controllers, the scheduler and kwok took.
    pub control_plane_pct: f64,
    /// What everything took, kubectl and the benchmark included.
    pub machine_pct: f64,
}

impl Run {
    /// `None` without any.
    pub fn of_runs(mut runs: Vec<Self>) -> Option<Self> {
        // A run without an end took longer than any that has one.
        let makespan = |run: &Self| run.makespan_s.unwrap_or(f64::MAX);
        runs.sort_by(|a, b| makespan(a).total_cmp(&makespan(b)));
        let ended: Vec<f64> = runs.iter().filter_map(|run| run.makespan_s).collect();
        let most = |of: fn(&Self) -> usize| runs.iter().map(of).max().unwrap_or_default();
        Some(Self {
            finished_share: runs.iter().map(|run| run.finished_share).fold(1.0, f64::min),
            refused: most(|run| run.refused),
            wasted: most(|run| run.wasted),
            violations: runs.iter().map(|run| run.violations).sum(),
            runs: runs.len(),
            ended: ended.len(),
            makespans_s: Distribution::of(&ended),
            ..runs.get(runs.len() / 2)?.clone()
        })
    }

    /// When it ended.
    pub fn end(&self) -> String {
        self.makespan_s
            .map_or_else(|| "no end".to_owned(), |s| format!("{s:.1} s"))
    }
}

impl Regimes {
    fn violations(&self) -> usize {
        let regimes = self.sizes.values().flat_map(BTreeMap::values);
        let runs = regimes
            .flat_map(|regime| regime.modes.values())
            .chain(self.three_nodes.values());
        runs.map(|run| run.violations).sum()
    }

    /// The regimes at six nodes (or at the smallest size measured), the other sizes under `sizes`.
    pub fn report(mut self, figures: &mut Figures) {
        self.report_table(figures);
        let violations = self.violations();
        let first = self.sizes.get(&FIRST).map(|_| FIRST);
        let first = first.or_else(|| self.sizes.keys().next().copied());
        figures.add(json!({
            "times": self.times,
            "three_nodes": self.three_nodes,
            "violations": violations,
            "nodes_at_once": first,
            "regimes": first.and_then(|first| self.sizes.remove(&first)),
            "sizes": self.sizes,
        }));
    }

    fn report_table(&self, figures: &mut Figures) {
        for (size, regimes) in &self.sizes {
            figures.line(format!("\n{size} nodes at once"));
            figures.line("            makespan   done  refused  requests  wasted   unready s  queued s");
            for (name, regime) in regimes {
                figures.line(format!(
                    "  {name}: at least {:.1} s, with their nodes {:.1} s, reboots and starts alone {:.1} s",
                    regime.bound_s, regime.bound_of_nodes_s, regime.bound_of_own_times_s
                ));
                for (mode, run) in &regime.modes {
                    let queued = run
                        .queue_wait_s
                        .mean
                        .map_or_else(String::new, |mean| format!("{mean:.1}"));
                    figures.line(format!(
                        "    {:8} {:>7} {:>5.0}% {:>8} {:>9} {:>7} {:>11.1} {queued:>9}",
                        mode.name(),
                        run.end(),
                        100.0 * run.finished_share,
                        run.refused,
                        run.requests,
                        run.wasted,
                        run.unready_pod_s,
                    ));
                    figures.line(format!(
                        "             CPU of all cores: the control plane {:.0} %, all together {:.0} %",
                        run.cpu.control_plane_pct, run.cpu.machine_pct
                    ));
                }
            }
        }
        for (mode, run) in &self.three_nodes {
            let (mode, makespans) = (mode.name(), run.makespans_s);
            let spread = makespans
                .min
                .zip(makespans.max)
                .map(|(min, max)| format!(", {min:.1} to {max:.1} s"));
            let spread = spread.unwrap_or_default();
            figures.line(format!(
                "\n  three nodes at once, {mode}: {} of {} runs ended{spread}",
                run.ended, run.runs
            ));
        }
        figures.line(format!("\n  budget violations: {}", self.violations()));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn run(makespan: Option<f64>, violations: usize) -> Run {
        Run {
            makespan_s: makespan,
            finished_share: if makespan.is_some() { 1.0 } else { 0.5 },
            refused: 3,
            requests: 40,
            unready_pod_s: 12.345_67,
            violations,
            ..Run::default()
        }
    }

    fn reported(sizes: &[usize]) -> Figures {
        let regime = Regime {
            bound_s: 9.0,
            modes: [(Mode::Naive, run(None, 0)), (Mode::Auto, run(Some(11.0), 1))].into(),
            ..Regime::default()
        };
        let of_size = BTreeMap::from([("C".to_owned(), regime)]);
        let regimes = Regimes {
            sizes: sizes.iter().map(|size| (*size, of_size.clone())).collect(),
            ..Regimes::default()
        };
        let mut figures = Figures::default();
        regimes.report(&mut figures);
        figures
    }

    #[test]
    fn six_nodes_come_first() {
        let json = reported(&[2, 6, 12]).into_json();
        assert_eq!(json["nodes_at_once"], 6);
        assert_eq!(json["regimes"]["C"]["bound_s"], 9.0);
        assert_eq!(json["regimes"]["C"]["naive"]["makespan_s"], Value::Null);
        assert_eq!(json["regimes"]["C"]["auto"]["unready_pod_s"], 12.346);
        let sizes: Vec<&String> = json["sizes"].as_object().unwrap().keys().collect();
        assert_eq!(sizes, ["12", "2"]);
        assert_eq!(json["violations"], 3);
        assert_eq!(reported(&[2]).into_json()["nodes_at_once"], 2);
    }

    #[test]
    fn runs_without_end_have_no_makespan() {
        let figures = reported(&[6]);
        let table = figures.table();
        assert!(table.contains("naive     no end    50%"), "{table}");
        assert!(table.lines().all(|line| line.len() <= 80), "{table}");
    }

    #[test]
    fn middle_run_counts_with_all_violations() {
        let of = |runs: &[(Option<f64>, usize)]| {
            Run::of_runs(
                runs.iter()
                    .map(|(makespan, violations)| run(*makespan, *violations))
                    .collect(),
            )
        };
        assert!(of(&[]).is_none());
        let three = of(&[(None, 0), (Some(7.0), 2), (Some(8.0), 0)]).unwrap();
        assert_eq!(three.makespan_s, Some(8.0));
        assert_eq!((three.runs, three.ended), (3, 2));
        assert_eq!((three.makespans_s.min, three.makespans_s.max), (Some(7.0), Some(8.0)));
        assert!((three.finished_share - 0.5).abs() < 1e-9);
        assert_eq!(three.violations, 2);
    }
}
