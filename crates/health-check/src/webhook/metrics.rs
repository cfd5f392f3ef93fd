//! Metrics of the webhook.

use nodeward_runtime::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::decide::Decision;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabel {
    decision: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProblemLabel {
    problem: &'static str,
}

/// What the webhook has answered.
pub(super) struct WebhookMetrics {
    reviews: Family<DecisionLabel, Counter>,
    bad: Family<ProblemLabel, Counter>,
}

impl WebhookMetrics {
    /// Registers them.
    pub(super) fn register(metrics: &Metrics) -> Self {
        let this = Self {
            reviews: Family::default(),
            bad: Family::default(),
        };
        metrics.own(|registry| {
            registry.register(
                "node_health_check_reviews",
                "Changes of NodeHealthChecks reviewed, by decision (admitted, warned, refused)",
                this.reviews.clone(),
            );
            registry.register(
                "bad_reviews",
                "Requests to the webhook that were not the review of a NodeHealthCheck",
                this.bad.clone(),
            );
        });
        this
    }

    /// Counts an answer.
    pub(super) fn decided(&self, decision: &Decision) {
        let decision = match (decision.refusals.is_empty(), decision.warnings.is_empty()) {
            (false, _) => "refused",
            (true, false) => "warned",
            (true, true) => "admitted",
        };
        self.reviews.get_or_create(&DecisionLabel { decision }).inc();
    }

    /// Counts what was not a review.
    pub(super) fn bad(&self, problem: &'static str) {
        self.bad.get_or_create(&ProblemLabel { problem }).inc();
    }
}
