//! The webhook for NodeHealthChecks: it refuses what the schema cannot see, and says what to do instead.
//!
//! A review is read, the templates that it names are looked up (`lookups.rs`), and so are the remediations that its status names
//! where it matters whether they run. All is judged ([`mod@decide`], pure) by the same compilation that the operator goes by.
//! Every replica answers. Nothing rests on it: what was admitted while it was away is checked again in each pass.

pub mod decide;
mod lookups;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use kube::core::admission::{AdmissionRequest, AdmissionResponse};
use nodeward_api::NodeHealthCheck;
use nodeward_runtime::Metrics;
use nodeward_runtime::discovery::KindRegistry;
use nodeward_runtime::webhook::review;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use self::decide::{Change, Decision, Templates};
use crate::plan::topology_problem;

/// Where reviews are posted to: `clientConfig.service.path` of the ValidatingWebhookConfiguration.
pub const PATH: &str = "/node-health-checks";

/// The most bytes that a review may have: that of an update carries the object twice, with statuses of up to 1 MB.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Reviews NodeHealthChecks.
pub struct Webhook {
    kinds: KindRegistry,
    metrics: WebhookMetrics,
}

impl Webhook {
    /// Makes the webhook. `kinds` says which kinds of templates are served.
    pub fn new(metrics: &Metrics, kinds: KindRegistry) -> Arc<Self> {
        Arc::new(Self {
            kinds,
            metrics: WebhookMetrics::register(metrics),
        })
    }

    /// Answers reviews on [`PATH`].
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route(PATH, post(answer))
            .layer(DefaultBodyLimit::max(MAX_BYTES))
            .with_state(Arc::clone(self))
    }

    async fn judge(&self, request: &AdmissionRequest<NodeHealthCheck>) -> Decision {
        // The API server gives the old object of an update or a delete, and the new one of a create or an update.
        let (old, new) = (request.old_object.as_ref(), request.object.as_ref());
        let (change, is_new) = (Change { old, new }, old.is_none());
        let topology = lookups::control_plane_topology(&self.kinds, is_new);
        let templates = lookups::templates(&self.kinds, decide::named_templates(change));
        let running = lookups::running(&self.kinds, decide::open_records(change));
        let (topology, templates, running): (_, Templates, _) = tokio::join!(topology, templates, running);
        let mut decision = decide::decide(change, &templates, &running);
        decision.refusals.extend(topology_problem(topology.as_deref()));
        decision
    }
}

async fn answer(
    State(webhook): State<Arc<Webhook>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let request: AdmissionRequest<NodeHealthCheck> = match review::read(&headers, body) {
        Ok(request) => request,
        Err(bad) => {
            tracing::debug!(%bad, "not the review of a NodeHealthCheck");
            let label = [("problem", bad.as_label())];
            webhook.metrics.bad.get_or_create(&label).inc();
            return bad.into_response();
        }
    };
    let decision = webhook.judge(&request).await;
    webhook.metrics.decided(&decision);
    let mut response = AdmissionResponse::from(&request);
    if !decision.refusals.is_empty() {
        tracing::info!(
            name = request.name,
            user = request.user_info.username,
            "refused: {}",
            decision.refusals.join("; ")
        );
        response = response.deny(decision.refusals.join("; "));
    }
    response.warnings = (!decision.warnings.is_empty()).then_some(decision.warnings);
    axum::Json(response.into_review()).into_response()
}

type Label = [(&'static str, &'static str); 1];

/// What the webhook has answered.
struct WebhookMetrics {
    reviews: Family<Label, Counter>,
    bad: Family<Label, Counter>,
}

impl WebhookMetrics {
    /// Registers them.
    fn register(metrics: &Metrics) -> Self {
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
    fn decided(&self, decision: &Decision) {
        let decision = match (decision.refusals.is_empty(), decision.warnings.is_empty()) {
            (false, _) => "refused",
            (true, false) => "warned",
            (true, true) => "admitted",
        };
        self.reviews.get_or_create(&[("decision", decision)]).inc();
    }
}
