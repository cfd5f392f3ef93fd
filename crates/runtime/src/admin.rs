//! The HTTP server for metrics and probes.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::liveness::Liveness;
use crate::metrics::{self, Metrics};
use crate::readiness::Readiness;
use crate::serve::HttpServer;
use crate::supervise::Supervisor;

/// What the probes look at.
#[derive(Clone)]
pub struct Probes {
    /// The gates behind `/readyz`.
    pub readiness: Readiness,
    /// The loops behind `/livez`.
    pub liveness: Liveness,
    /// A dead task fails `/livez`.
    pub supervisor: Supervisor,
    /// What `/metrics` shows.
    pub metrics: Metrics,
}

/// Takes the address.
pub async fn bind(address: SocketAddr) -> anyhow::Result<HttpServer> {
    let server = HttpServer::bind("metrics and probes", address).await;
    server.map_err(|error| anyhow::anyhow!("{error}; choose another address with --admin-bind"))
}

/// What is served.
pub fn router(probes: Probes) -> Router {
    Router::new()
        .route("/metrics", get(show_metrics))
        .route("/livez", get(show_liveness))
        .route("/readyz", get(show_readiness))
        .with_state(probes)
}

async fn show_metrics(State(probes): State<Probes>) -> Response {
    match probes.metrics.encode() {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("metrics cannot be written: {error}\n"),
        )
            .into_response(),
    }
}

async fn show_liveness(State(probes): State<Probes>) -> (StatusCode, String) {
    let mut problems = String::new();
    if let Some(failure) = probes.supervisor.failure_now() {
        let _ = writeln!(problems, "{failure}");
    }
    for stalled in probes.liveness.stalled(Instant::now()) {
        let _ = writeln!(
            problems,
            "{}: no progress for {} s",
            stalled.name,
            stalled.since.as_secs()
        );
    }
    verdict(problems)
}

async fn show_readiness(State(probes): State<Probes>) -> (StatusCode, String) {
    let mut problems = String::new();
    for closed in probes.readiness.closed_gates() {
        let _ = writeln!(problems, "{}: {}", closed.gate, closed.reason);
    }
    verdict(problems)
}

fn verdict(problems: String) -> (StatusCode, String) {
    if problems.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, problems)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::{Request, StatusCode};
    use http_body_util::BodyExt;
    use tokio_util::sync::CancellationToken;
    use tower::ServiceExt;

    use super::{Probes, bind, router};
    use crate::component::Component;
    use crate::liveness::Liveness;
    use crate::metrics::Metrics;
    use crate::readiness::Readiness;
    use crate::supervise::Supervisor;

    fn probes() -> Probes {
        Probes {
            readiness: Readiness::new(),
            liveness: Liveness::new(),
            supervisor: Supervisor::new(CancellationToken::new()),
            metrics: Metrics::new(Component::new("drain-keeper", "1.2.3")),
        }
    }

    async fn get(probes: &Probes, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router(probes.clone()).oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_names_what_is_missing() {
        let probes = probes();
        assert_eq!(get(&probes, "/readyz").await, (StatusCode::OK, "ok\n".to_owned()));
        probes.readiness.require("nodes cache", || Err("not synced".to_owned()));
        let expected = (StatusCode::SERVICE_UNAVAILABLE, "nodes cache: not synced\n".to_owned());
        assert_eq!(get(&probes, "/readyz").await, expected);
        assert_eq!(get(&probes, "/livez").await.0, StatusCode::OK, "not ready is not dead");
    }

    #[tokio::test]
    async fn a_dead_task_fails_liveness() {
        let probes = probes();
        probes.supervisor.spawn("watch", async { panic!("boom") });
        probes.supervisor.failure().await;
        let expected = (
            StatusCode::SERVICE_UNAVAILABLE,
            "task \"watch\" panicked: boom\n".to_owned(),
        );
        assert_eq!(get(&probes, "/livez").await, expected);
    }

    #[tokio::test]
    async fn metrics_end_as_openmetrics_demands() {
        let (status, body) = get(&probes(), "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.ends_with("# EOF\n"), "{body}");
    }

    #[tokio::test]
    async fn taken_address_is_named_with_its_flag() {
        let first = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let refusal = bind(first.address()).await.unwrap_err().to_string();
        assert!(
            refusal.contains(&first.address().to_string()) && refusal.contains("--admin-bind"),
            "{refusal}"
        );
    }
}
