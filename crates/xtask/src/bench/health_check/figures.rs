//! What was measured, as figures.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::bare::Bare;
use crate::bench::figures::{Distribution, Figures, count};
use crate::bench::fleet::size::thousands;
use crate::bench::measure::{Rest, Start};

/// Requests for a node that the product promises: GET Node, lease, remediation.
const PROMISED: f64 = 3.0;

/// Everything that was measured.
pub struct Measured {
    pub nodes: usize,
    pub starts: Vec<Start>,
    pub rest: Rest,
    pub singles: Remediated,
    pub at_once: Vec<AtOnce>,
    pub bare: Bare,
    pub rss_mib: f64,
    pub heartbeats: String,
}

/// Of some nodes, in milliseconds.
#[derive(Default)]
pub struct Remediated {
    pub expiry_to_cr: Vec<f64>,
    pub healthy_to_deleted: Vec<f64>,
}

impl Remediated {
    pub fn text(&self) -> String {
        let (expiry, healthy) = (
            Distribution::of(&self.expiry_to_cr),
            Distribution::of(&self.healthy_to_deleted),
        );
        format!(
            "expiry to CR: {}; recovery to CR deleted: {}",
            expiry.text("ms", 0),
            healthy.text("ms", 0)
        )
    }
}

/// Nodes that expired at once.
pub struct AtOnce {
    pub count: usize,
    pub remediated: Remediated,
    /// Until the last remediation was created.
    pub requests: BTreeMap<String, usize>,
    pub events: usize,
    pub cpu_pct: f64,
}

impl AtOnce {
    fn status_writes(&self) -> usize {
        let is_status = |kind: &str| kind.ends_with("nodehealthchecks/status");
        let counts = self.requests.iter().filter(|(kind, _)| is_status(kind));
        counts.map(|(_, count)| count).sum()
    }

    /// Requests for a node, without the writes of the status and the Events.
    fn requests_per_node(&self) -> f64 {
        let all: usize = self.requests.values().sum();
        let events = self.requests.get("create events").copied().unwrap_or_default()
            + self.requests.get("patch events").copied().unwrap_or_default();
        count(all - self.status_writes() - events) / count(self.count)
    }
}

impl Measured {
    pub fn figures(&self) -> Figures {
        let Self {
            nodes,
            starts,
            rest,
            singles,
            at_once,
            bare,
            rss_mib,
            heartbeats,
        } = self;
        let ready_s = starts.iter().map(|start| start.seconds).fold(0.0, f64::max);
        let ready_requests = starts.iter().map(|start| start.requests).max().unwrap_or_default();
        let expiry: Vec<Distribution> = std::iter::once(singles)
            .chain(at_once.iter().map(|run| &run.remediated))
            .map(|run| Distribution::of(&run.expiry_to_cr))
            .collect();
        let healthy: Vec<Distribution> = std::iter::once(singles)
            .chain(at_once.iter().map(|run| &run.remediated))
            .map(|run| Distribution::of(&run.healthy_to_deleted))
            .collect();
        let of_bare: Vec<Distribution> = std::iter::once(&bare.singles)
            .chain(&bare.at_once)
            .map(|times| Distribution::of(times))
            .collect();
        let requests_per_node = at_once.last().map_or(0.0, AtOnce::requests_per_node);
        let status_writes: Vec<usize> = at_once.iter().map(AtOnce::status_writes).collect();

        let mut figures = Figures::default();
        figures.add(json!({
            "nodes": nodes,
            "rest_requests_per_min": rest.requests_per_min,
            "rest_lease_requests_per_min": rest.lease_requests_per_min,
            "expiry_to_cr_ms": by_count(&expiry),
            "bare_client_ms": by_count(&of_bare),
            "requests_per_unhealthy_node": requests_per_node,
            "status_writes": status_writes,
            "events": at_once.iter().map(|run| run.events).collect::<Vec<_>>(),
            "requests_by_kind": at_once.last().map(|run| &run.requests),
            "healthy_to_deleted_ms": healthy.first(),
            "healthy_to_deleted_at_once_ms": by_count(&healthy),
            "rss_mib": rss_mib,
            "rss_mib_at_rest": rest.rss_mib,
            "cpu_rest_pct": rest.cpu_pct,
            "cpu_pct_at_once": at_once.iter().map(|run| run.cpu_pct).collect::<Vec<_>>(),
            "ready_s": ready_s,
            "ready_requests": ready_requests,
            "heartbeats": heartbeats,
        }));

        let [n1, .., n500] = expiry.as_slice() else {
            return figures;
        };
        let [bare_n1, .., bare_n500] = of_bare.as_slice() else {
            return figures;
        };
        let within = |figure: Option<f64>, limit: f64| figure.is_some_and(|figure| figure <= limit);
        let limit_n1 = 250_f64.max(bare_n1.p99.unwrap_or_default() + 100.0);
        let limit_n500 = 1.5 * bare_n500.max.unwrap_or_default();
        figures.line(format!("{} nodes with heartbeats", thousands(*nodes)));
        figures.row_with_target(
            "requests at rest",
            format!(
                "{:.0} a minute; leases: {:.0}",
                rest.requests_per_min, rest.lease_requests_per_min
            ),
            "0",
            rest.requests_per_min == 0.0,
        );
        let single = format!("{}; bare client {}", n1.text("ms", 0), bare_n1.text("ms", 0));
        figures.row_with_target("expiry to CR, 1", single, "p99 <= 250 ms", within(n1.p99, limit_n1));
        for (of, (run, bare)) in expiry.iter().skip(1).zip(at_once.iter().zip(of_bare.iter().skip(1))) {
            let text = format!("{}; bare client {}", of.text("ms", 0), bare.text("ms", 0));
            figures.row(&format!("expiry to CR, {}", run.count), text);
        }
        let last = n500.max.unwrap_or_default();
        figures.row_with_target(
            "last CR",
            format!("{last:.0} ms after the last expiry"),
            &format!("<= {limit_n500:.0} ms"),
            last <= limit_n500,
        );
        figures.row_with_target(
            "requests a node",
            format!("{requests_per_node:.2}, and {status_writes:?} writes of the status"),
            "<= 3",
            requests_per_node <= PROMISED,
        );
        for (count, of) in [1].into_iter().chain(at_once.iter().map(|run| run.count)).zip(&healthy) {
            let is_promised = within(of.p99, 1000.0);
            figures.row_with_target(
                &format!("CR deleted, {count}"),
                of.text("ms", 0),
                "p99 <= 1 s",
                is_promised,
            );
        }
        let ready = format!("{ready_s:.2} s, {ready_requests} requests");
        figures.row_with_target(
            "ready",
            ready,
            "<= 3 s, 50 requests",
            ready_s <= 3.0 && ready_requests <= 50,
        );
        let memory = format!("{rss_mib:.1} MiB at most; {:.1} at rest", rest.rss_mib);
        let limit = if *nodes > 5_000 { 80.0 } else { 40.0 };
        figures.row_with_target("memory", memory, &format!("<= {limit} MiB"), *rss_mib <= limit);
        let cpu = format!("{:.1} % of a core", rest.cpu_pct);
        figures.row_with_target("CPU at rest", cpu, "<= 2 %", rest.cpu_pct <= 2.0);
        figures.row("heartbeats", heartbeats);
        figures
    }
}

/// Named after how many nodes were asked for; a small cluster has fewer.
fn by_count(of: &[Distribution]) -> Value {
    let names = ["n1", "n50", "n500"];
    names
        .into_iter()
        .zip(of)
        .map(|(name, of)| (name.to_owned(), json!(of)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
