//! What was measured, as figures.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::bench::figures::{Distribution, Figures, count};
use crate::bench::fleet::size::thousands;
use crate::bench::measure::{Rest, Starts};

/// Requests for a node that the product promises: GET Node, lease, remediation.
const PROMISED: f64 = 3.0;

/// The most nodes that recover at once for which a time is promised.
const PROMISED_AT_ONCE: usize = 50;

/// Everything that was measured.
pub struct Measured {
    pub nodes: usize,
    pub starts: Starts,
    pub rest: Rest,
    /// Of nodes each alone, then of so many at once.
    pub remediated: Vec<Remediated>,
    pub at_once: Vec<AtOnce>,
    /// The same with a bare client, from the first request to the remediation.
    pub bare: Vec<Distribution>,
    pub rss_mib: f64,
    pub heartbeats: String,
}

/// Of some nodes, in milliseconds.
pub struct Remediated {
    /// How many were remediated at once.
    pub count: usize,
    pub expiry_to_cr: Distribution,
    pub healthy_to_deleted: Distribution,
}

impl Remediated {
    pub fn text(&self) -> String {
        let (expiry, healthy) = (self.expiry_to_cr.text("ms", 0), self.healthy_to_deleted.text("ms", 0));
        format!("expiry to CR: {expiry}; recovery to CR deleted: {healthy}")
    }
}

/// What nodes that were remediated at once took.
pub struct AtOnce {
    pub count: usize,
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

    /// Requests for a node, without those for the NodeHealthCheck as a whole, the Events, and what is asked once a second while
    /// something is written: whether there is a pause.
    fn requests_per_node(&self) -> f64 {
        let others = ["nodehealthchecks", "events", "configmaps"];
        let is_of_node = |kind: &str| !others.iter().any(|other| kind.contains(other));
        let of_nodes = self.requests.iter().filter(|(kind, _)| is_of_node(kind));
        count(of_nodes.map(|(_, count)| count).sum()) / count(self.count)
    }
}

impl Measured {
    pub fn figures(&self) -> Figures {
        let (nodes, rss_mib) = (self.nodes, self.rss_mib);
        let (rest, at_once, heartbeats) = (&self.rest, &self.at_once, &self.heartbeats);
        let (ready_s, ready_requests) = (self.starts.slowest_s(), self.starts.most_requests);
        let requests_per_node = at_once.last().map_or(0.0, AtOnce::requests_per_node);
        let status_writes: Vec<usize> = at_once.iter().map(AtOnce::status_writes).collect();
        let expiry = || self.remediated.iter().map(|run| &run.expiry_to_cr);
        let healthy = || self.remediated.iter().map(|run| &run.healthy_to_deleted);
        let last = expiry().next_back().and_then(|of| of.max).unwrap_or_default();
        let bare_last = self.bare.last().and_then(|of| of.max).unwrap_or_default();

        let mut figures = Figures::default();
        figures.add(json!({
            "nodes": nodes,
            "rest_requests_per_min": rest.requests_per_min,
            "rest_lease_requests_per_min": rest.lease_requests_per_min,
            "expiry_to_cr_ms": by_count(expiry()),
            "bare_client_ms": by_count(&self.bare),
            "last_cr_times_bare_client": last / bare_last,
            "requests_per_unhealthy_node": requests_per_node,
            "status_writes": status_writes,
            "events": at_once.iter().map(|run| run.events).collect::<Vec<_>>(),
            "requests_by_kind": at_once.last().map(|run| &run.requests),
            "healthy_to_deleted_ms": healthy().next(),
            "healthy_to_deleted_at_once_ms": by_count(healthy()),
            "rss_mib": rss_mib,
            "rss_mib_at_rest": rest.rss_mib,
            "cpu_rest_pct": rest.cpu_pct,
            "cpu_pct_at_once": at_once.iter().map(|run| run.cpu_pct).collect::<Vec<_>>(),
            "ready_s": ready_s,
            "ready_requests": ready_requests,
            "heartbeats": heartbeats,
        }));

        figures.line(format!("{} nodes with heartbeats", thousands(nodes)));
        let (asked, leases) = (rest.requests_per_min, rest.lease_requests_per_min);
        let requests = format!("{asked:.0} a minute; leases: {leases:.0}");
        figures.row_with_target("requests at rest", requests, "0", asked == 0.0);
        for (run, bare) in self.remediated.iter().zip(&self.bare) {
            let name = format!("expiry to CR, {}", run.count);
            let text = format!("{}; bare client {}", run.expiry_to_cr.text("ms", 0), bare.text("ms", 0));
            if run.count > 1 {
                figures.row(&name, text);
                continue;
            }
            let limit = 250_f64.max(bare.p99.unwrap_or_default() + 100.0);
            figures.row_with_target(&name, text, "p99 <= 250 ms", run.expiry_to_cr.is_within(limit));
        }
        let limit = 1.5 * bare_last;
        let late = format!(
            "{last:.0} ms after the lifting, {:.2} times the bare client",
            last / bare_last
        );
        figures.row_with_target("last CR", late, &format!("<= {limit:.0} ms"), last <= limit);
        let requests = format!("{requests_per_node:.2}, and {status_writes:?} writes of the status");
        figures.row_with_target("requests a node", requests, "<= 3", requests_per_node <= PROMISED);
        for run in &self.remediated {
            let (name, of) = (format!("CR deleted, {}", run.count), run.healthy_to_deleted);
            if run.count > PROMISED_AT_ONCE {
                figures.row(&name, of.text("ms", 0));
            } else {
                figures.row_with_target(&name, of.text("ms", 0), "p99 <= 1 s", of.is_within(1000.0));
            }
        }
        let ready = format!("{ready_s:.2} s, {ready_requests} requests");
        let is_ready = ready_s <= 3.0 && ready_requests <= 50;
        figures.row_with_target("ready", ready, "<= 3 s, 50 requests", is_ready);
        let memory = format!("{rss_mib:.1} MiB at most; {:.1} at rest", rest.rss_mib);
        let limit = if nodes > 5_000 { 80.0 } else { 40.0 };
        figures.row_with_target("memory", memory, &format!("<= {limit} MiB"), rss_mib <= limit);
        let cpu = format!("{:.1} % of a core", rest.cpu_pct);
        figures.row_with_target("CPU at rest", cpu, "<= 2 %", rest.cpu_pct <= 2.0);
        figures.row("heartbeats", heartbeats);
        figures
    }
}

/// Named after how many nodes were asked for; a small cluster has fewer.
fn by_count<'a>(of: impl IntoIterator<Item = &'a Distribution>) -> Value {
    let named = ["n1", "n50", "n500"].map(str::to_owned).into_iter().zip(of);
    named.map(|(name, of)| (name, json!(of))).collect()
}
