//! Errors of the Kubernetes API, classified by the machine-readable part of the answer.

use jiff::SignedDuration;
use kube::core::Status;
use nodeward_api::reason::LockReason;

/// Why a request to the API server failed.
///
/// Classified by status code and `details.causes[].reason`. Message text changes between releases and is not read, but for the
/// beginning of a webhook's denial: the API server passes code and reason of that on, and says in the message alone whose they are.
/// The eviction of a pod that two budgets select answers 500 without a cause or a reason: [`ApiError::Server`] here. Only the
/// caller, who knows how many budgets match, can tell it from a broken server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// 429 with cause `DisruptionBudget`: no room, or the budget's status lags behind its spec. Or with the cause by which
    /// drain-lock's webhook, which answers before any budget is asked, says the same. And the eviction handler's 403 about a
    /// budget: its status allows less than nothing, or too many evictions are unconfirmed.
    #[error("refused by a PodDisruptionBudget")]
    RefusedByBudget {
        /// `Retry-After`, where the server sent one.
        retry_after: Option<SignedDuration>,
    },
    /// 429 from API priority and fairness, an admission webhook or a proxy; the message tells which.
    #[error("throttled: {message}")]
    Throttled {
        /// The server's own words.
        message: String,
        /// `Retry-After`, where the server sent one.
        retry_after: Option<SignedDuration>,
    },
    /// An admission webhook denied the request, whatever its code says of objects or budgets.
    #[error("{message}")]
    Denied {
        /// The server's own words: which webhook, and why.
        message: String,
    },
    /// 403 with cause `NamespaceTerminating`: not a failure, the namespace takes the object with it.
    #[error("the namespace is being deleted")]
    NamespaceTerminating,
    /// 404: the object is gone, which is what a delete wants.
    #[error("the object is gone")]
    NotFound,
    /// 409: another UID or resourceVersion than the one that we decided upon, or the object exists already.
    #[error("the object has changed")]
    Conflict,
    /// 401: the server does not know who asks.
    #[error("unauthorized: {message}")]
    Unauthorized {
        /// The server's own words.
        message: String,
    },
    /// 403: a right is missing; the message names it.
    #[error("forbidden: {message}")]
    Forbidden {
        /// The server's own words: user, verb and resource.
        message: String,
    },
    /// 400, 413, 415, 422 and the like: repeating the same request cannot help.
    #[error("invalid: {message}")]
    Invalid {
        /// The server's own words.
        message: String,
    },
    /// 5xx.
    #[error("the API server failed with {code}: {message}")]
    Server {
        /// The HTTP status.
        code: u16,
        /// Its reason for programs. The eviction handler's 500 has none.
        reason: String,
        /// The server's own words.
        message: String,
        /// `Retry-After`, where the server sent one.
        retry_after: Option<SignedDuration>,
    },
    /// No answer in time. The write may have happened.
    #[error("no answer in time")]
    Timeout,
    /// The connection failed. The write may have happened.
    #[error("the connection failed: {message}")]
    Transport {
        /// What failed.
        message: String,
    },
}

/// The cause that the eviction handler gives (`policy/v1.DisruptionBudgetCause`).
const DISRUPTION_BUDGET: &str = "DisruptionBudget";

/// How the API server begins what a webhook's denial says.
const DENIED_BY_WEBHOOK: &str = "admission webhook \"";

/// What the eviction handler's 403 is about; one for a missing right is about `poddisruptionbudgets`, in the plural.
const BUDGET: &str = "poddisruptionbudget";

/// The cause that the namespace lifecycle admission gives (`v1.NamespaceTerminatingCause`).
const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";

impl ApiError {
    /// Not before this long, where the server said so.
    pub fn retry_after(&self) -> Option<SignedDuration> {
        match self {
            Self::RefusedByBudget { retry_after }
            | Self::Throttled { retry_after, .. }
            | Self::Server { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the write may have happened although no answer says so: read the object before a retry.
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Timeout | Self::Transport { .. } | Self::Server { .. })
    }

    fn from_status(status: &Status) -> Self {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let has_cause = |reason: &str| causes.clone().any(|cause| cause.reason == reason);
        let is_refused_by_drain_lock = || {
            let mut reasons = causes.clone().map(|cause| LockReason::parse(&cause.reason));
            reasons.any(LockReason::refuses_for_a_budget)
        };
        let retry_after = status
            .details
            .as_ref()
            .map(|details| i64::from(details.retry_after_seconds))
            .filter(|seconds| *seconds > 0)
            .map(SignedDuration::from_secs);
        let is_about = |kind: &str| status.details.as_ref().is_some_and(|details| details.kind == kind);
        let message = || status.message.clone();
        let is_denied = status.message.starts_with(DENIED_BY_WEBHOOK);
        match status.code {
            429 if is_refused_by_drain_lock() => Self::RefusedByBudget { retry_after },
            429 if has_cause(DISRUPTION_BUDGET) && !is_denied => Self::RefusedByBudget { retry_after },
            429 => Self::Throttled {
                message: message(),
                retry_after,
            },
            _ if is_denied => Self::Denied { message: message() },
            403 if is_about(BUDGET) => Self::RefusedByBudget { retry_after },
            403 if has_cause(NAMESPACE_TERMINATING) => Self::NamespaceTerminating,
            401 => Self::Unauthorized { message: message() },
            403 => Self::Forbidden { message: message() },
            404 | 410 => Self::NotFound,
            409 => Self::Conflict,
            code @ 400..=499 if code != 408 => Self::Invalid { message: message() },
            408 | 504 => Self::Timeout,
            code => Self::Server {
                code,
                reason: status.reason.clone(),
                message: message(),
                retry_after,
            },
        }
    }
}

impl From<&kube::Error> for ApiError {
    fn from(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from_status(status),
            kube::Error::BuildRequest(problem) => Self::Invalid {
                message: problem.to_string(),
            },
            other if is_timeout(other) => Self::Timeout,
            other => Self::Transport {
                message: with_sources(other),
            },
        }
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        Self::from(&error)
    }
}

/// Whether the API server answered with this HTTP status.
pub(crate) fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// An answer that was not waited for any longer.
pub(crate) fn no_answer() -> kube::Error {
    kube::Error::Service(Box::new(std::io::Error::new(
        std::io::ErrorKind::TimedOut,
        "no answer from the API server",
    )))
}

fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == std::io::ErrorKind::TimedOut)
    })
}

/// kube's own text for a transport error says only which layer failed; the cause stands in the sources.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rstest::rstest;
    use serde_json::json;

    use super::ApiError;

    fn api_error(code: u16, details: &serde_json::Value) -> kube::Error {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "words", "code": code, "details": details});
        kube::Error::Api(serde_json::from_value(status).unwrap())
    }

    #[rstest]
    #[case::budget(
        429,
        json!({"causes": [{"reason": "DisruptionBudget", "message": "The disruption budget web needs 3 healthy pods"}]}),
        ApiError::RefusedByBudget { retry_after: None }
    )]
    #[case::budget_status_lags(
        429,
        json!({"retryAfterSeconds": 10, "causes": [{"reason": "DisruptionBudget", "message": "still being processed"}]}),
        ApiError::RefusedByBudget { retry_after: Some(SignedDuration::from_secs(10)) }
    )]
    #[case::fairness(429, json!({"retryAfterSeconds": 2}), ApiError::Throttled { message: "words".into(), retry_after: Some(SignedDuration::from_secs(2)) })]
    #[case::budget_by_drain_lock(
        429,
        json!({"causes": [{"reason": "WaitsForDisruptions", "message": "node n2 holds the rest"}]}),
        ApiError::RefusedByBudget { retry_after: None }
    )]
    #[case::turn_by_drain_lock(
        429,
        json!({"causes": [{"reason": "NotPlanned", "message": "the drain of node n1 is being planned"}]}),
        ApiError::Throttled { message: "words".into(), retry_after: None }
    )]
    #[case::later_version_of_drain_lock(
        429,
        json!({"causes": [{"reason": "TheMoonIsFull", "message": "words"}]}),
        ApiError::Throttled { message: "words".into(), retry_after: None }
    )]
    #[case::words_are_not_read(
        429,
        json!({"causes": [{"reason": "", "message": "DisruptionBudget"}]}),
        ApiError::Throttled { message: "words".into(), retry_after: None }
    )]
    #[case::budget_below_zero(
        403,
        json!({"group": "policy", "kind": "poddisruptionbudget", "name": "web"}),
        ApiError::RefusedByBudget { retry_after: None }
    )]
    #[case::no_right_to_read_budgets(
        403,
        json!({"group": "policy", "kind": "poddisruptionbudgets", "name": "web"}),
        ApiError::Forbidden { message: "words".into() }
    )]
    #[case::namespace_terminating(403, json!({"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}), ApiError::NamespaceTerminating)]
    #[case::forbidden(403, json!(null), ApiError::Forbidden { message: "words".into() })]
    #[case::unauthorized(401, json!(null), ApiError::Unauthorized { message: "words".into() })]
    #[case::not_found(404, json!(null), ApiError::NotFound)]
    #[case::conflict(409, json!(null), ApiError::Conflict)]
    #[case::invalid(422, json!(null), ApiError::Invalid { message: "words".into() })]
    #[case::two_budgets(500, json!(null), ApiError::Server { code: 500, reason: String::new(), message: "words".into(), retry_after: None })]
    #[case::away(503, json!({"retryAfterSeconds": 1}), ApiError::Server { code: 503, reason: String::new(), message: "words".into(), retry_after: Some(SignedDuration::from_secs(1)) })]
    #[case::gateway_timeout(504, json!(null), ApiError::Timeout)]
    fn code_and_cause_classify_an_answer(
        #[case] code: u16,
        #[case] details: serde_json::Value,
        #[case] expected: ApiError,
    ) {
        assert_eq!(ApiError::from(api_error(code, &details)), expected);
    }

    /// As the API server passes on what webhooks answer: Strimzi's drain cleaner denies with 500 and no reason.
    #[rstest]
    #[case::server_error(500, json!(null))]
    #[case::forbidden(403, json!({"kind": "poddisruptionbudget"}))]
    #[case::not_found(404, json!(null))]
    #[case::conflict(409, json!(null))]
    fn denial_by_a_webhook_is_nothing_else(#[case] code: u16, #[case] details: serde_json::Value) {
        let message = "admission webhook \"strimzi-drain-cleaner.strimzi.io\" denied the request: The pod will be rolled by the Strimzi Cluster Operator";
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code, "details": details});
        let denied = ApiError::Denied {
            message: message.to_owned(),
        };
        let error = |status: &serde_json::Value| kube::Error::Api(serde_json::from_value(status.clone()).unwrap());
        assert_eq!(ApiError::from(error(&status)), denied);
        status["code"] = 429.into();
        status["details"] = json!({"causes": [{"reason": "DisruptionBudget"}]});
        assert!(matches!(ApiError::from(error(&status)), ApiError::Throttled { .. }));
    }

    #[test]
    fn wrapped_timeout_is_a_timeout() {
        let io = std::io::Error::from(std::io::ErrorKind::TimedOut);
        assert_eq!(
            ApiError::from(kube::Error::Service(Box::new(kube::Error::ReadEvents(io)))),
            ApiError::Timeout
        );
    }

    #[test]
    fn lost_connection_is_ambiguous() {
        let io = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let error = ApiError::from(kube::Error::ReadEvents(io));
        assert!(matches!(error, ApiError::Transport { .. }), "{error:?}");
        assert!(error.is_ambiguous());
        assert!(!ApiError::Conflict.is_ambiguous());
    }
}
