//! What was measured: as one JSON object, and as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nodeward_testkit::audit::Requests;
use serde::Serialize;
use serde_json::{Value, json};

use crate::bench::rounded::rounded;

use super::lateness::Latenesses;
use crate::bench::large::size::Size;

/// The figures of one size.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub nodes: usize,
    pub pods: usize,
    /// With five cordoned nodes whose blockers wait; neither the lease nor watches.
    pub rest_requests_per_min: f64,
    pub rest_requests_per_min_nothing_cordoned: f64,
    pub lease_requests_per_min: f64,
    /// From the cordon until nothing is left to do after the uncordon; all but the lease and the renewal of watches.
    pub requests_per_node: f64,
    pub requests_per_node_by_kind: RequestsPerNode,
    /// From a deadline to the first request on its pod.
    pub lateness_ms: Lateness,
    pub lateness_ms_by_strategy: BTreeMap<&'static str, Lateness>,
    /// Acts that had to wait for their budget's turn, counted apart.
    pub held_back: Lateness,
    pub nodes_draining_at_once: usize,
    /// The slowest of several starts, from the start of the process to `/readyz` 200.
    pub ready_s: f64,
    pub ready_s_of_each_start: Vec<f64>,
    /// The highest since its start, the drain included.
    pub rss_mib: f64,
    pub rss_mib_after_start: f64,
    pub rss_mib_at_rest: f64,
    pub rss_mib_draining: f64,
    /// Of one core, with five cordoned nodes and the heartbeats of all.
    pub cpu_pct: f64,
    pub cpu_pct_nothing_cordoned: f64,
    pub cpu_pct_draining: f64,
    pub heartbeats: String,
    pub set_up_s: f64,
    pub measured_s: f64,
}

/// Quantiles of latenesses, in milliseconds; `null` without any.
#[derive(Clone, Debug, Serialize)]
pub struct Lateness {
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
    pub count: usize,
}

impl Lateness {
    pub fn of(latenesses: &Latenesses) -> Self {
        Self {
            p50: latenesses.quantile(0.5),
            p99: latenesses.quantile(0.99),
            max: latenesses.max(),
            count: latenesses.count(),
        }
    }
}

/// Requests for each drained node, by verb and resource.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct RequestsPerNode(BTreeMap<String, f64>);

impl RequestsPerNode {
    /// Of watches, those on a node's pods, which are opened for the node.
    // Counts of requests are far below 2^53.
    #[allow(clippy::cast_precision_loss)]
    pub fn of(requests: &Requests, nodes: usize) -> Self {
        let counted = requests
            .clone()
            .only(|request| !request.is_watch() || request.resource == "pods");
        let counts = counted.by_verb_and_resource().into_iter();
        Self(
            counts
                .map(|(kind, count)| (kind, count as f64 / nodes as f64))
                .collect(),
        )
    }

    pub fn all(&self) -> f64 {
        self.0.values().sum()
    }
}

/// A target, where the product promises one.
struct Target {
    text: &'static str,
    is_met: bool,
}

impl Figures {
    /// For a terminal.
    pub fn table(&self) -> String {
        let size = Size {
            nodes: self.nodes,
            pods: self.pods,
        };
        let mut table = format!(
            "{} nodes/pods, set up in {:.0} s, measured in {:.0} s\n",
            size.title(),
            self.set_up_s,
            self.measured_s
        );
        let ms = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), |value| format!("{value:.0} ms"));
        let late = |of: &Lateness| {
            format!(
                "p50 {}, p99 {}, max {} ({} acts)",
                ms(of.p50),
                ms(of.p99),
                ms(of.max),
                of.count
            )
        };
        let target = |text, is_met| Some(Target { text, is_met });
        let no_requests = self.rest_requests_per_min == 0.0 && self.rest_requests_per_min_nothing_cordoned == 0.0;
        let is_prompt = self.lateness_ms.p99.is_some_and(|late| late <= 1000.0);
        let rows = [
            (
                "requests at rest",
                format!(
                    "{:.0} a minute with 5 cordoned nodes, {:.0} with none; lease: {:.0}",
                    self.rest_requests_per_min,
                    self.rest_requests_per_min_nothing_cordoned,
                    self.lease_requests_per_min
                ),
                target("0", no_requests),
            ),
            (
                "requests per node",
                format!("{:.1} from cordon to end", self.requests_per_node),
                None,
            ),
            ("lateness", late(&self.lateness_ms), target("p99 <= 1 s", is_prompt)),
            ("held back", late(&self.held_back), None),
            (
                "ready",
                format!(
                    "{:.2} s, the slowest of {}",
                    self.ready_s,
                    self.ready_s_of_each_start.len()
                ),
                target("<= 3 s", self.ready_s <= 3.0),
            ),
            (
                "memory",
                format!(
                    "{:.1} MiB at most; {:.1} after the start, {:.1} at rest, {:.1} draining",
                    self.rss_mib, self.rss_mib_after_start, self.rss_mib_at_rest, self.rss_mib_draining
                ),
                target("<= 40 MB", self.rss_mib * 1.048_576 <= 40.0),
            ),
            (
                "CPU, of a core",
                format!(
                    "{:.1} % at rest with 5 cordoned, {:.1} % with none, {:.1} % draining",
                    self.cpu_pct, self.cpu_pct_nothing_cordoned, self.cpu_pct_draining
                ),
                None,
            ),
            ("heartbeats", self.heartbeats.clone(), None),
        ];
        for (name, value, target) in rows {
            let verdict = target.map_or_else(String::new, |Target { text, is_met }| {
                format!("  [{text}: {}]", if is_met { "met" } else { "MISSED" })
            });
            let _ = writeln!(table, "  {name:18} {value}{verdict}");
        }
        for (strategy, of) in &self.lateness_ms_by_strategy {
            let _ = writeln!(table, "    {strategy:20} {}", late(of));
        }
        for (kind, count) in &self.requests_per_node_by_kind.0 {
            let _ = writeln!(table, "    {kind:32} {count:.2} a node");
        }
        table
    }
}

/// The figures of the largest size, with the others under `sizes`.
pub fn as_json(mut all: Vec<Figures>) -> Value {
    all.sort_by_key(|figures| (figures.nodes, figures.pods));
    let Some(largest) = all.pop() else {
        return Value::Null;
    };
    let mut object = json!(rounded(&largest));
    let others = all
        .iter()
        .map(|figures| (format!("{}/{}", figures.nodes, figures.pods), rounded(figures)));
    object["sizes"] = Value::Object(others.collect());
    object
}
