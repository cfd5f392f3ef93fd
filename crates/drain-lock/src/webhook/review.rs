//! The AdmissionReview of an eviction. Whatever is not one gets a clear 4xx and changes nothing; fields that
//! `admission.k8s.io/v1` does not have are ignored and counted, so that a later Kubernetes does not switch the webhook off.

use std::collections::BTreeMap;
use std::fmt;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::policy::v1::Eviction;
use kube::core::admission::{AdmissionRequest, Operation};
use nodeward_api::annotation;
use nodeward_core::id::{PodKey, PodUid};
use nodeward_core::text::cut;
use nodeward_runtime::webhook::review;
use serde_json::{Value, json};

use super::decide::{Decision, Refused};

/// The most bytes that a review may have. One of an eviction has 2 to 5 KiB.
pub const MAX_BYTES: usize = 1024 * 1024;

/// The most bytes of the caller's words that an error message repeats.
const MAX_QUOTED: usize = 200;

/// Longest UID or user that is taken: Kubernetes' own are far shorter.
const MAX_TEXT: usize = 1024;

/// Longest name of a pod or namespace (RFC 1123 subdomain).
const MAX_NAME: usize = 253;

/// Who asks, as the API server has authenticated him.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    /// Empty, if the authenticator tells none.
    pub uid: String,
    pub groups: Vec<String>,
    /// What else the authenticator tells, such as scopes.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// An eviction that somebody asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictionReview {
    /// Identifies the review; the answer repeats it.
    pub uid: String,
    pub user: User,
    /// The pod that is to go.
    pub pod: PodKey,
    /// The pod's UID, where the caller insists on one.
    pub pod_uid: Option<PodUid>,
    /// Whether nothing is to happen: `dryRun` of the request, or of the Eviction's `deleteOptions`, which is where
    /// `kubectl drain --dry-run=server` puts it.
    pub dry_run: bool,
    /// The grant that the eviction says it rests on (annotation `nodeward.dev/ticket`).
    pub ticket: Option<String>,
    /// Fields that no AdmissionReview of `admission.k8s.io/v1` has. They are ignored.
    pub unknown_fields: usize,
}

/// Why a request is not the review of an eviction.
#[derive(Debug, thiserror::Error)]
pub enum BadReview {
    #[error(transparent)]
    NotAReview(#[from] review::BadReview),
    /// A field that has to have a value has none, or one that cannot be.
    #[error("the AdmissionReview's {0} is missing, empty or too long")]
    BadField(&'static str),
    /// A review of something else.
    #[error("only CREATE of pods/eviction is reviewed here, not {0}")]
    NotAnEviction(String),
}

impl BadReview {
    /// Its label in metrics.
    pub fn as_label(&self) -> &'static str {
        match self {
            Self::NotAReview(bad) => bad.as_label(),
            Self::BadField(_) => "bad-field",
            Self::NotAnEviction(_) => "not-an-eviction",
        }
    }
}

impl IntoResponse for BadReview {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NotAReview(bad) => return bad.into_response(),
            Self::BadField(_) => StatusCode::BAD_REQUEST,
            Self::NotAnEviction(_) => StatusCode::UNPROCESSABLE_ENTITY,
        };
        (status, format!("{self}\n")).into_response()
    }
}

impl EvictionReview {
    /// Reads a request.
    ///
    /// # Errors
    /// When it is anything but the review of a pod's eviction.
    pub fn read(headers: &HeaderMap, body: Result<Bytes, BytesRejection>) -> Result<Self, BadReview> {
        Self::parse(&review::json_body(headers, body)?)
    }

    fn parse(body: &[u8]) -> Result<Self, BadReview> {
        let (request, unknown_fields) = review::parse(body)?;
        let review = check(request)?;
        Ok(Self {
            unknown_fields,
            ..review
        })
    }
}

fn check(request: AdmissionRequest<Eviction>) -> Result<EvictionReview, BadReview> {
    let uid = text("request.uid", Some(request.uid), MAX_TEXT)?;
    let (resource, sub_resource) = (request.resource, request.sub_resource.unwrap_or_default());
    let is_eviction = request.operation == Operation::Create
        && resource.group.is_empty()
        && (resource.resource.as_str(), sub_resource.as_str()) == ("pods", "eviction")
        && (request.kind.group.as_str(), request.kind.kind.as_str()) == ("policy", "Eviction");
    if !is_eviction {
        let found = format!(
            "{:?} of {}/{sub_resource} ({})",
            request.operation, resource.resource, request.kind.kind
        );
        return Err(BadReview::NotAnEviction(cut(found, MAX_QUOTED)));
    }
    let Eviction {
        metadata,
        delete_options,
    } = request.object.ok_or(BadReview::BadField("request.object"))?;
    let options = delete_options.unwrap_or_default();
    let user = User {
        name: text("request.userInfo.username", request.user_info.username, MAX_TEXT)?,
        uid: request.user_info.uid.unwrap_or_default(),
        groups: request.user_info.groups.unwrap_or_default(),
        extra: request.user_info.extra.unwrap_or_default(),
    };
    let given = |value: Option<String>| value.filter(|value| !value.is_empty());
    let namespace = given(request.namespace).or(metadata.namespace);
    let name = given(Some(request.name)).or(metadata.name);
    let pod_uid = options
        .preconditions
        .and_then(|preconditions| preconditions.uid)
        .map(|uid| text("request.object.deleteOptions.preconditions.uid", Some(uid), MAX_TEXT))
        .transpose()?
        .map(PodUid::from);
    Ok(EvictionReview {
        uid,
        user,
        pod: PodKey::new(
            text("request.namespace", namespace, MAX_NAME)?,
            text("request.name", name, MAX_NAME)?,
        ),
        pod_uid,
        dry_run: request.dry_run || options.dry_run.is_some_and(|stages| !stages.is_empty()),
        ticket: metadata
            .annotations
            .and_then(|mut annotations| annotations.remove(annotation::TICKET)),
        unknown_fields: 0,
    })
}

fn text(field: &'static str, given: Option<String>, most: usize) -> Result<String, BadReview> {
    given
        .filter(|given| !given.is_empty() && given.len() <= most)
        .ok_or(BadReview::BadField(field))
}

/// The answer to a review, as `admission.k8s.io/v1` writes it.
///
/// A refusal has the code and the reason by which clients tell "try again" from "cannot be": with any other than 429 and
/// `TooManyRequests`, `kubectl drain` gives the pod up. It says no `retryAfterSeconds`: client-go would repeat such a
/// request by itself, unseen.
pub fn answer(review: &EvictionReview, decision: &Decision, warning: Option<&str>) -> Value {
    let mut response = json!({ "uid": review.uid, "allowed": matches!(decision, Decision::Admit(_)) });
    match decision {
        Decision::Admit(admission) => {
            response["auditAnnotations"] = json!({ "reason": admission.as_label() });
        }
        Decision::Refuse(refused) => {
            response["auditAnnotations"] = json!({ "reason": refused.reason.as_str() });
            response["status"] = status(review, refused);
        }
    }
    if let Some(warning) = warning {
        response["warnings"] = json!([warning]);
    }
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
}

fn status(review: &EvictionReview, refused: &Refused) -> Value {
    json!({
        "status": "Failure",
        "message": refused.message,
        "reason": refused.kind.reason(),
        "code": refused.kind.code(),
        "details": {
            "name": review.pod.name,
            "kind": "pods",
            "causes": [{ "reason": refused.reason.as_str(), "message": refused.message }],
        },
    })
}

#[cfg(test)]
mod tests {
    use nodeward_api::reason::LockReason;
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;
    use crate::webhook::decide::{Admission, RefusalKind};

    /// As API server 1.35 sends it for `kubectl drain`.
    fn sent() -> Value {
        json!({
            "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816",
                "kind": { "group": "policy", "version": "v1", "kind": "Eviction" },
                "resource": { "group": "", "version": "v1", "resource": "pods" },
                "subResource": "eviction",
                "requestKind": { "group": "policy", "version": "v1", "kind": "Eviction" },
                "requestResource": { "group": "", "version": "v1", "resource": "pods" },
                "requestSubResource": "eviction",
                "name": "web-0", "namespace": "shop", "operation": "CREATE",
                "userInfo": { "username": "alice", "groups": ["system:authenticated"], "extra": { "a": ["b"] } },
                "object": {
                    "kind": "Eviction", "apiVersion": "policy/v1",
                    "metadata": { "name": "web-0", "namespace": "shop", "creationTimestamp": null },
                    "deleteOptions": {},
                },
                "oldObject": null, "dryRun": false,
                "options": { "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1" },
            },
        })
    }

    fn with(path: &str, value: Value) -> Value {
        let mut review = sent();
        let (parent, field) = path.rsplit_once('/').unwrap();
        review.pointer_mut(parent).unwrap()[field] = value;
        review
    }

    fn parse(review: &Value) -> Result<EvictionReview, BadReview> {
        EvictionReview::parse(review.to_string().as_bytes())
    }

    #[test]
    fn review_of_the_api_server_is_read() {
        assert_eq!(
            parse(&sent()).unwrap(),
            EvictionReview {
                uid: "0df28fbd-5f5f-11e8-bc74-36e6bb280816".to_owned(),
                user: User {
                    name: "alice".to_owned(),
                    uid: String::new(),
                    groups: vec!["system:authenticated".to_owned()],
                    extra: [("a".to_owned(), vec!["b".to_owned()])].into(),
                },
                pod: PodKey::new("shop", "web-0"),
                pod_uid: None,
                dry_run: false,
                ticket: None,
                unknown_fields: 0,
            }
        );
    }

    #[test]
    fn unknown_fields_are_ignored_and_counted() {
        let mut review = with("/surprise", json!(1));
        review["request"]["surprise"] = json!({ "a": 1 });
        review["request"]["another"] = json!(null);
        let expected = EvictionReview {
            unknown_fields: 3,
            ..parse(&sent()).unwrap()
        };
        assert_eq!(parse(&review).unwrap(), expected);
    }

    #[rstest]
    #[case::nothing(json!({}), false)]
    #[case::of_the_request(json!({ "dryRun": true }), true)]
    #[case::of_the_delete(json!({ "object": { "deleteOptions": { "dryRun": ["All"] } } }), true)]
    #[case::of_neither(json!({ "dryRun": false, "object": { "deleteOptions": { "dryRun": [] } } }), false)]
    fn a_dry_run_is_seen_wherever_it_is_said(#[case] fields: Value, #[case] dry_run: bool) {
        let mut review = sent();
        for (field, value) in fields.as_object().unwrap() {
            review["request"][field] = value.clone();
        }
        assert_eq!(parse(&review).unwrap().dry_run, dry_run);
    }

    #[test]
    fn a_precondition_and_a_ticket_are_read() {
        let mut review = with(
            "/request/object/deleteOptions",
            json!({ "preconditions": { "uid": "u1", "resourceVersion": "7" }, "gracePeriodSeconds": 5 }),
        );
        review["request"]["object"]["metadata"]["annotations"] = json!({ "nodeward.dev/ticket": "3/9", "a": "b" });
        let review = parse(&review).unwrap();
        assert_eq!(review.pod_uid, Some("u1".into()));
        assert_eq!(review.ticket.as_deref(), Some("3/9"));
    }

    #[test]
    fn missing_request_name_is_the_evictions() {
        assert_eq!(
            parse(&with("/request/name", json!(""))).unwrap().pod,
            PodKey::new("shop", "web-0")
        );
    }

    #[rstest]
    #[case::another_version(with("/apiVersion", json!("admission.k8s.io/v1beta1")), "not-a-review")]
    #[case::another_kind(with("/kind", json!("Pod")), "not-a-review")]
    #[case::a_list(json!([1, 2]), "not-a-review")]
    #[case::null(Value::Null, "not-a-review")]
    #[case::no_kind(json!({ "apiVersion": "admission.k8s.io/v1" }), "not-a-review")]
    #[case::no_request(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview" }), "no-request")]
    #[case::null_request(with("/request", Value::Null), "no-request")]
    #[case::empty_request(with("/request", json!({})), "not-a-review")]
    #[case::text_for_an_object(with("/request/object", json!("web-0")), "not-a-review")]
    #[case::number_for_a_name(with("/request/name", json!(7)), "not-a-review")]
    #[case::no_uid(with("/request/uid", json!("")), "bad-field")]
    #[case::endless_uid(with("/request/uid", json!("u".repeat(4096))), "bad-field")]
    #[case::no_user(with("/request/userInfo", json!({})), "bad-field")]
    #[case::no_namespace(
        {
            let mut review = with("/request/namespace", json!(""));
            review["request"]["object"]["metadata"] = json!({ "name": "web-0" });
            review
        },
        "bad-field"
    )]
    #[case::endless_name(with("/request/name", json!("p".repeat(254))), "bad-field")]
    #[case::no_object(with("/request/object", Value::Null), "bad-field")]
    #[case::a_delete(with("/request/operation", json!("DELETE")), "not-an-eviction")]
    #[case::pods_themselves(with("/request/subResource", json!("")), "not-an-eviction")]
    #[case::another_resource(with("/request/resource/resource", json!("nodes")), "not-an-eviction")]
    #[case::another_group(with("/request/resource/group", json!("apps")), "not-an-eviction")]
    #[case::another_object(with("/request/kind/kind", json!("Binding")), "not-an-eviction")]
    fn reviews_of_other_requests_are_refused(#[case] review: Value, #[case] label: &str) {
        let bad = parse(&review).unwrap_err();
        assert_eq!(bad.as_label(), label, "{bad}");
        assert!(bad.into_response().status().is_client_error());
    }

    #[rstest]
    #[case::nothing(b"".to_vec())]
    #[case::words(b"hello".to_vec())]
    #[case::half(sent().to_string().into_bytes()[..200].to_vec())]
    #[case::two(format!("{}{}", sent(), sent()).into_bytes())]
    #[case::not_utf8(b"{\"kind\": \"\xff\xfe\"}".to_vec())]
    #[case::deep("[".repeat(200_000).into_bytes())]
    #[case::deep_where_nobody_looks(
        sent().to_string().replace("\"deleteOptions\":{}", &format!("\"x\":{}{}", "[".repeat(5000), "]".repeat(5000))).into_bytes()
    )]
    #[case::a_number_beyond_all(sent().to_string().replace("false", "1e99999").into_bytes())]
    fn what_is_not_json_is_refused(#[case] body: Vec<u8>) {
        assert_eq!(EvictionReview::parse(&body).unwrap_err().as_label(), "not-json");
    }

    #[test]
    fn error_quotes_little_of_the_input() {
        let bad = parse(&with("/request/operation", json!("é".repeat(10_000)))).unwrap_err();
        assert!(bad.to_string().len() < 400);
    }

    proptest! {
        #[test]
        fn no_bytes_at_all_make_the_reader_panic(body: Vec<u8>) {
            let _ = EvictionReview::parse(&body);
        }

        /// One byte changed, or cut off anywhere: it is read, or refused in words.
        #[test]
        fn a_damaged_review_is_read_or_refused(at in any::<prop::sample::Index>(), byte: u8, cut: bool) {
            let mut body = sent().to_string().into_bytes();
            let at = at.index(body.len());
            if cut { body.truncate(at) } else { body[at] = byte }
            if let Err(bad) = EvictionReview::parse(&body) {
                prop_assert!(!bad.to_string().is_empty());
            }
        }

        /// Any JSON in the node of any field.
        #[test]
        fn mutated_review_is_read_or_refused(
            field in prop::sample::select(vec![
                "/kind", "/apiVersion", "/request", "/request/uid", "/request/kind", "/request/resource", "/request/name",
                "/request/userInfo", "/request/object", "/request/object/metadata", "/request/object/deleteOptions",
                "/request/dryRun", "/request/options",
            ]),
            value in json_value(),
        ) {
            let _ = parse(&with(field, value));
        }
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("(metadata|dryRun|uid|name|[a-z]{1,8})", inner, 0..4)
                    .prop_map(|fields| fields.into_iter().collect::<Value>()),
            ]
        })
    }

    fn refused(kind: RefusalKind) -> Decision {
        Decision::Refuse(Refused {
            kind,
            reason: LockReason::WaitsForDisruptions,
            message: "pod shop/web-0 waits for node n2".to_owned(),
        })
    }

    #[test]
    fn refusal_is_retriable_and_names_its_cause() {
        let review = parse(&sent()).unwrap();
        let response = answer(&review, &refused(RefusalKind::Wait), None);
        assert_eq!(response["response"]["uid"], review.uid.as_str());
        assert_eq!(response["response"]["allowed"], false);
        assert_eq!(
            response["response"]["status"],
            json!({
                "status": "Failure", "code": 429, "reason": "TooManyRequests",
                "message": "pod shop/web-0 waits for node n2",
                "details": {
                    "name": "web-0", "kind": "pods",
                    "causes": [{ "reason": "WaitsForDisruptions", "message": "pod shop/web-0 waits for node n2" }],
                },
            })
        );
    }

    #[test]
    fn a_forged_ticket_is_forbidden_for_good() {
        let response = answer(&parse(&sent()).unwrap(), &refused(RefusalKind::Forbidden), None);
        assert_eq!(response["response"]["status"]["code"], 403);
        assert_eq!(response["response"]["status"]["reason"], "Forbidden");
    }

    #[test]
    fn an_admission_carries_its_warning() {
        let admitted = Decision::Admit(Admission::UnderClaim);
        let response = answer(&parse(&sent()).unwrap(), &admitted, Some("it asked to stay"));
        assert_eq!(
            response["response"],
            json!({
                "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816", "allowed": true,
                "auditAnnotations": { "reason": "under-claim" }, "warnings": ["it asked to stay"],
            })
        );
    }
}
