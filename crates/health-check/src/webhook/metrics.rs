//! Metrics of the webhook.

use nodeward_runtime::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::decide::Decision;

type Label = [(&'static str, &'static str); 1];

/// What the webhook has answered.
pub(super) struct WebhookMetrics {
    reviews: Family<Label, Counter>,
    bad: Family<Label, Counter>,
}

impl WebhookMetrics {
    /// Registers them.
    pub(super) fn register(metrics: &Metrics) -> Self {
        Self {
            reviews: metrics.register(
                "node_health_check_reviews",
                "Changes of NodeHealthChecks reviewed, by decision (admitted, warned, refused)",
            ),
            bad: metrics.register(
                "bad_reviews",
                "Requests to the webhook that were not the review of a NodeHealthCheck",
            ),
        }
    }

    /// Counts an answer.
    pub(super) fn decided(&self, decision: &Decision) {
        let decision = match (decision.refusals.is_empty(), decision.warnings.is_empty()) {
            (false, _) => "refused",
            (true, false) => "warned",
            (true, true) => "admitted",
        };
        self.reviews.get_or_create(&[("decision", decision)]).inc();
    }

    /// Counts what was not a review.
    pub(super) fn bad(&self, problem: &'static str) {
        self.bad.get_or_create(&[("problem", problem)]).inc();
    }
}
