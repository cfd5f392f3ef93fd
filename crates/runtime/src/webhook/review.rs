//! Reads the AdmissionReviews that the API server posts. Whatever is not one gets a clear 4xx and changes nothing.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use kube::Resource;
use kube::core::admission::{AdmissionRequest, AdmissionReview, META_API_VERSION_V1, META_KIND};
use nodeward_core::text::cut;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The most bytes of the caller's words that an error message repeats.
const MAX_QUOTED: usize = 200;

/// Why a request is not a review.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum BadReview {
    /// The body did not arrive.
    #[error("{}", .0.body_text())]
    Body(BytesRejection),
    /// It does not say that it is JSON.
    #[error("Content-Type must be application/json")]
    ContentType,
    /// Not JSON, or nested too deeply.
    #[error("the body is not JSON: {0}")]
    NotJson(String),
    /// JSON of another shape.
    #[error("the body is not an AdmissionReview of admission.k8s.io/v1: {0}")]
    NotAReview(String),
    /// A review without a request.
    #[error("the AdmissionReview has no request")]
    NoRequest,
}

impl BadReview {
    /// Its label in metrics.
    pub fn as_label(&self) -> &'static str {
        self.into()
    }
}

impl IntoResponse for BadReview {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Body(rejection) => rejection.status(),
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NotJson(_) | Self::NotAReview(_) | Self::NoRequest => StatusCode::BAD_REQUEST,
        };
        (status, format!("{self}\n")).into_response()
    }
}

/// The fields of `admission.k8s.io/v1` AdmissionReview and AdmissionRequest.
const REVIEW_FIELDS: [&str; 4] = ["apiVersion", "kind", "request", "response"];
const REQUEST_FIELDS: [&str; 15] = [
    "uid",
    "kind",
    "resource",
    "subResource",
    "requestKind",
    "requestResource",
    "requestSubResource",
    "name",
    "namespace",
    "operation",
    "userInfo",
    "object",
    "oldObject",
    "dryRun",
    "options",
];

/// Reads the review of an object.
///
/// # Errors
/// When it is anything but an AdmissionReview of `admission.k8s.io/v1` with a request about such an object.
pub fn read<K: Resource + DeserializeOwned>(
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<AdmissionRequest<K>, BadReview> {
    parse(&json_body(headers, body)?).map(|(request, _)| request)
}

/// The body of a request that says that it is JSON.
///
/// # Errors
/// When the body did not arrive, or is said to be something else.
pub fn json_body(headers: &HeaderMap, body: Result<Bytes, BytesRejection>) -> Result<Bytes, BadReview> {
    let body = body.map_err(BadReview::Body)?;
    if is_json(headers) {
        Ok(body)
    } else {
        Err(BadReview::ContentType)
    }
}

/// Reads a review, and counts the fields that `admission.k8s.io/v1` does not have. They are ignored, so that a later
/// Kubernetes does not switch the webhook off.
///
/// # Errors
/// As for [`read`].
pub fn parse<K: Resource + DeserializeOwned>(body: &[u8]) -> Result<(AdmissionRequest<K>, usize), BadReview> {
    // Through a value: its reader has a limit for nesting wherever it occurs, also in what is not looked at.
    let value: Value =
        serde_json::from_slice(body).map_err(|error| BadReview::NotJson(cut(error.to_string(), MAX_QUOTED)))?;
    let unknown_fields = unknown_fields(&value, &REVIEW_FIELDS) + unknown_fields(&value["request"], &REQUEST_FIELDS);
    let no_review = |problem: String| BadReview::NotAReview(cut(problem, MAX_QUOTED));
    let review: AdmissionReview<K> = serde_json::from_value(value).map_err(|error| no_review(error.to_string()))?;
    let types = review.types;
    if (types.api_version.as_str(), types.kind.as_str()) != (META_API_VERSION_V1, META_KIND) {
        return Err(no_review(format!("it is {} {}", types.api_version, types.kind)));
    }
    let mut request = review.request.ok_or(BadReview::NoRequest)?;
    request.types = types;
    Ok((request, unknown_fields))
}

fn unknown_fields(value: &Value, known: &[&str]) -> usize {
    let is_unknown = |field: &&String| !known.contains(&field.as_str());
    let fields = value.as_object();
    fields.map_or(0, |fields| fields.keys().filter(is_unknown).count())
}

/// Whether the body says that it is JSON, with whatever parameters.
fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use k8s_openapi::api::core::v1::Node;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn sent() -> Value {
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u1",
                "kind": { "group": "", "version": "v1", "kind": "Node" },
                "resource": { "group": "", "version": "v1", "resource": "nodes" },
                "name": "n1", "operation": "DELETE", "userInfo": { "username": "alice" },
                "object": null, "oldObject": { "metadata": { "name": "n1" } }, "aFieldOfALaterVersion": 1,
            },
        })
    }

    fn read_as(content_type: &str, body: &str) -> Result<AdmissionRequest<Node>, BadReview> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_str(content_type).unwrap());
        read(&headers, Ok(Bytes::from(body.to_owned())))
    }

    #[rstest]
    #[case("application/json")]
    #[case("Application/JSON; charset=utf-8")]
    fn review_of_the_api_server_is_read(#[case] content_type: &str) {
        let request = read_as(content_type, &sent().to_string()).unwrap();
        assert_eq!((request.uid.as_str(), request.name.as_str()), ("u1", "n1"));
        assert!(request.object.is_none() && request.old_object.is_some());
        let answer = kube::core::admission::AdmissionResponse::from(&request).into_review();
        assert_eq!(answer.types.api_version, "admission.k8s.io/v1");
    }

    #[test]
    fn unknown_fields_are_ignored_and_counted() {
        let (_, unknown_fields) = parse::<Node>(sent().to_string().as_bytes()).unwrap();
        assert_eq!(unknown_fields, 1);
    }

    fn with(field: &str, value: Value) -> String {
        let mut review = sent();
        review[field] = value;
        review.to_string()
    }

    #[rstest]
    #[case::text("text/plain", sent().to_string(), "content-type", 415)]
    #[case::no_json("application/json", "{".to_owned(), "not-json", 400)]
    #[case::too_deep("application/json", format!("{}{}", "[".repeat(500), "]".repeat(500)), "not-json", 400)]
    #[case::a_list("application/json", "[]".to_owned(), "not-a-review", 400)]
    #[case::another_version("application/json", with("apiVersion", json!("admission.k8s.io/v1beta1")), "not-a-review", 400)]
    #[case::another_kind("application/json", with("kind", json!("TokenReview")), "not-a-review", 400)]
    #[case::no_request("application/json", with("request", Value::Null), "no-request", 400)]
    #[case::another_object("application/json", with("request", json!({ "uid": 5 })), "not-a-review", 400)]
    fn anything_else_is_refused_with_its_problem(
        #[case] content_type: &str,
        #[case] body: String,
        #[case] label: &str,
        #[case] status: u16,
    ) {
        let bad = read_as(content_type, &body).unwrap_err();
        assert_eq!(bad.as_label(), label);
        assert_eq!(bad.into_response().status().as_u16(), status);
    }
}
