//! Metrics of the webhook.

use std::time::Duration;

use nodeward_runtime::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::decide::{Decision, RefusalKind, Verdict};

/// Seconds of one answer: the target is 10 ms for 99 of 100.
const SECONDS: [f64; 10] = [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0];

type Label = (&'static str, &'static str);

/// What the webhook has said and done.
#[derive(Clone)]
pub struct WebhookMetrics {
    reviews: Family<[Label; 2], Counter>,
    bad: Family<[Label; 1], Counter>,
    unknown_fields: Counter,
    seconds: Histogram,
    drain_requests: Family<[Label; 1], Counter>,
    drainer_reviews: Family<[Label; 1], Counter>,
    opt_outs: Counter,
    failed_open: Counter,
}

impl WebhookMetrics {
    pub fn register(metrics: &Metrics) -> Self {
        Self {
            reviews: metrics.register(
                "eviction_reviews",
                "Evictions reviewed, by decision (admitted, refused, forbidden; would-refuse and would-forbid in an audit) and reason",
            ),
            bad: metrics.register(
                "bad_reviews",
                "Requests to the webhook that were not the review of an eviction",
            ),
            unknown_fields: metrics.register(
                "review_unknown_fields",
                "Fields of reviews that this version does not know and ignored",
            ),
            seconds: metrics.register_as(
                "eviction_review_seconds",
                "Time from a review's last byte to its answer",
                Histogram::new(SECONDS),
            ),
            drain_requests: metrics.register(
                "drain_requests",
                "Drains asked for by evictions from cordoned nodes, by outcome",
            ),
            drainer_reviews: metrics.register(
                "drainer_reviews",
                "Users of whom the API server was asked whether they may change nodes, by outcome (drainer, no-drainer, forbidden, failed)",
            ),
            opt_outs: metrics.register(
                "opt_outs_ignored",
                "Pods that asked to stay through drains, and whose eviction by another drainer was admitted",
            ),
            failed_open: metrics.register(
                "reviews_failed_open",
                "Evictions admitted for want of knowledge: nobody plans, watches incomplete, pod or user unknown, drain never planned",
            ),
        }
    }

    /// Counts an answer.
    pub fn decided(&self, verdict: &Verdict, took: Duration) {
        let decision = &verdict.decision;
        let (label, reason) = match (decision, &verdict.audited) {
            (_, Some(would_be)) => match would_be.kind {
                RefusalKind::Wait => ("would-refuse", would_be.reason.as_str()),
                RefusalKind::Forbidden => ("would-forbid", would_be.reason.as_str()),
            },
            (Decision::Admit(admission), None) => ("admitted", admission.as_label()),
            (Decision::Refuse(refused), None) => match refused.kind {
                RefusalKind::Wait => ("refused", refused.reason.as_str()),
                RefusalKind::Forbidden => ("forbidden", refused.reason.as_str()),
            },
        };
        if matches!(decision, Decision::Admit(admission) if admission.fails_open()) {
            self.failed_open.inc();
        }
        self.reviews
            .get_or_create(&[("decision", label), ("reason", reason)])
            .inc();
        self.seconds.observe(took.as_secs_f64());
    }

    /// Counts an opt-out that another drainer does not honour.
    pub fn opt_out_ignored(&self) {
        self.opt_outs.inc();
    }

    /// Counts what was not a review.
    pub fn bad(&self, problem: &'static str) {
        self.bad.get_or_create(&[("problem", problem)]).inc();
    }

    /// Counts fields that were ignored.
    pub fn ignored_fields(&self, count: usize) {
        self.unknown_fields.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// Counts a review of a user.
    pub fn drainer_reviewed(&self, outcome: &'static str) {
        self.drainer_reviews.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts a request for a drain.
    pub fn drain_requested(&self, outcome: &'static str) {
        self.drain_requests.get_or_create(&[("outcome", outcome)]).inc();
    }
}
