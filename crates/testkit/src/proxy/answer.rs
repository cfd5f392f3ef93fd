//! Answers that the proxy makes itself.

use http::Response;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::fault::Fault;

/// A body whose failure breaks the connection.
pub(super) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

pub(super) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub(super) fn with_body(code: u16, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    answer
}

/// A Status object, as the API server words it.
fn status(code: u16, reason: &str, message: &str, details: &Value) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message, "details": details,
    })
}

fn refusal(code: u16, reason: &str, message: &str, mut details: Value, retry_after: Option<u32>) -> Response<Body> {
    if let Some(seconds) = retry_after {
        details["retryAfterSeconds"] = json!(seconds);
    }
    let mut answer = with_body(code, full(status(code, reason, message, &details).to_string()));
    if let Some(seconds) = retry_after {
        answer
            .headers_mut()
            .insert(http::header::RETRY_AFTER, http::HeaderValue::from(seconds));
    }
    answer
}

/// The single event of a watch whose version is too old.
pub(super) fn expired_event() -> Response<Body> {
    let object = status(410, "Expired", "too old resource version (injected)", &json!({}));
    with_body(200, full(format!("{}\n", json!({"type": "ERROR", "object": object}))))
}

/// The answer in place of the API server's, for faults that are one.
pub(super) fn of_fault(fault: &Fault) -> Option<Response<Body>> {
    let too_many = |message, details, retry_after| refusal(429, "TooManyRequests", message, details, retry_after);
    Some(match fault {
        Fault::TooManyRequests { retry_after } => too_many("too many requests (injected)", json!({}), *retry_after),
        Fault::BudgetRefusal { retry_after } => {
            let message = "Cannot evict pod as it would violate the pod's disruption budget.";
            let cause =
                json!({"reason": "DisruptionBudget", "message": "The disruption budget has no room (injected)"});
            too_many(message, json!({"causes": [cause]}), *retry_after)
        }
        Fault::Status(code, reason) => refusal(*code, reason, "injected", json!({}), None),
        Fault::Gone => refusal(410, "Expired", "too old resource version (injected)", json!({}), None),
        Fault::GoneEvent => expired_event(),
        Fault::Delay(_) | Fault::LostReply | Fault::BrokenConnection | Fault::Silence | Fault::CutWatch(_) => {
            return None;
        }
    })
}
