//! What the webhook costs: how long an answer takes, and what drain-lock needs for a large cluster.

use serde::Serialize;

/// The webhook's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Webhook {
    pub nodes: usize,
    pub pods: usize,
    pub asked_per_s: f64,
    pub answers: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    pub rss_mib: f64,
    pub ready_s: f64,
}

impl Webhook {
    /// For a terminal.
    pub fn text(&self) -> String {
        format!(
            "  webhook with {} nodes and {} pods: p50 {:.2} ms, p99 {:.2} ms, at most {:.1} ms\n    ({} answers at {:.0} a second); ready after {:.1} s, {:.0} MiB",
            self.nodes,
            self.pods,
            self.p50_ms,
            self.p99_ms,
            self.max_ms,
            self.answers,
            self.asked_per_s,
            self.ready_s,
            self.rss_mib
        )
    }
}
