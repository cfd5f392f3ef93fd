//! What a failed write means, read from the machine-readable part of the answer.

use jiff::SignedDuration;
use kube::core::Status;

/// Why an eviction, delete or patch did not happen.
///
/// Told apart by status code and `details.causes[].reason`, never by message text, which changes between releases.
/// An eviction of a pod that two budgets select answers 500 with no cause at all: that is [`Refusal::Server`] here, and
/// only the caller, who knows how many budgets match, can tell it from a broken server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// 429 with cause `DisruptionBudget`: no room, or the budget's status lags behind its spec.
    #[error("refused by a PodDisruptionBudget")]
    RefusedByBudget {
        /// `Retry-After`, where the server sent one.
        retry_after: Option<SignedDuration>,
    },
    /// 429 from API priority and fairness or a proxy.
    #[error("throttled by the API server")]
    Throttled {
        /// `Retry-After`, where the server sent one.
        retry_after: Option<SignedDuration>,
    },
    /// 403 with cause `NamespaceTerminating`: not a failure, the namespace takes the object with it.
    #[error("the namespace is being deleted")]
    NamespaceTerminating,
    /// 404: the object is gone, which is what a delete wants.
    #[error("the object is gone")]
    Gone,
    /// 409: another UID or resourceVersion than the one that we decided upon, or the object exists already.
    #[error("the object has changed")]
    Conflict,
    /// 401 or 403: a right is missing; the message names it.
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

/// The cause that the namespace lifecycle admission gives (`v1.NamespaceTerminatingCause`).
const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";

impl Refusal {
    /// Not before this long, where the server said so.
    pub fn retry_after(&self) -> Option<SignedDuration> {
        match self {
            Self::RefusedByBudget { retry_after }
            | Self::Throttled { retry_after }
            | Self::Server { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the write may have happened although no answer says so: look before doing it again.
    pub fn leaves_outcome_unknown(&self) -> bool {
        matches!(self, Self::Timeout | Self::Transport { .. } | Self::Server { .. })
    }

    fn from_status(status: &Status) -> Self {
        let has_cause = |reason: &str| {
            status
                .details
                .iter()
                .flat_map(|details| &details.causes)
                .any(|cause| cause.reason == reason)
        };
        let retry_after = status
            .details
            .as_ref()
            .map(|details| i64::from(details.retry_after_seconds))
            .filter(|seconds| *seconds > 0)
            .map(SignedDuration::from_secs);
        let message = || status.message.clone();
        match status.code {
            429 if has_cause(DISRUPTION_BUDGET) => Self::RefusedByBudget { retry_after },
            429 => Self::Throttled { retry_after },
            403 if has_cause(NAMESPACE_TERMINATING) => Self::NamespaceTerminating,
            401 | 403 => Self::Forbidden { message: message() },
            404 | 410 => Self::Gone,
            409 => Self::Conflict,
            code @ 400..=499 if code != 408 => Self::Invalid { message: message() },
            408 | 504 => Self::Timeout,
            code => Self::Server {
                code,
                message: message(),
                retry_after,
            },
        }
    }
}

impl From<&kube::Error> for Refusal {
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

impl From<kube::Error> for Refusal {
    fn from(error: kube::Error) -> Self {
        Self::from(&error)
    }
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

    use super::Refusal;

    fn api_error(code: u16, details: &serde_json::Value) -> kube::Error {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "words", "code": code, "details": details});
        kube::Error::Api(serde_json::from_value(status).unwrap())
    }

    #[rstest]
    #[case::budget(
        429,
        json!({"causes": [{"reason": "DisruptionBudget", "message": "The disruption budget web needs 3 healthy pods"}]}),
        Refusal::RefusedByBudget { retry_after: None }
    )]
    #[case::budget_status_lags(
        429,
        json!({"retryAfterSeconds": 10, "causes": [{"reason": "DisruptionBudget", "message": "still being processed"}]}),
        Refusal::RefusedByBudget { retry_after: Some(SignedDuration::from_secs(10)) }
    )]
    #[case::fairness(429, json!({"retryAfterSeconds": 2}), Refusal::Throttled { retry_after: Some(SignedDuration::from_secs(2)) })]
    #[case::words_are_not_read(
        429,
        json!({"causes": [{"reason": "", "message": "DisruptionBudget"}]}),
        Refusal::Throttled { retry_after: None }
    )]
    #[case::namespace_terminating(403, json!({"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}), Refusal::NamespaceTerminating)]
    #[case::forbidden(403, json!(null), Refusal::Forbidden { message: "words".into() })]
    #[case::unauthorized(401, json!(null), Refusal::Forbidden { message: "words".into() })]
    #[case::not_found(404, json!(null), Refusal::Gone)]
    #[case::conflict(409, json!(null), Refusal::Conflict)]
    #[case::invalid(422, json!(null), Refusal::Invalid { message: "words".into() })]
    #[case::two_budgets(500, json!(null), Refusal::Server { code: 500, message: "words".into(), retry_after: None })]
    #[case::away(503, json!({"retryAfterSeconds": 1}), Refusal::Server { code: 503, message: "words".into(), retry_after: Some(SignedDuration::from_secs(1)) })]
    #[case::gateway_timeout(504, json!(null), Refusal::Timeout)]
    fn an_answer_is_told_by_code_and_cause(
        #[case] code: u16,
        #[case] details: serde_json::Value,
        #[case] expected: Refusal,
    ) {
        assert_eq!(Refusal::from(api_error(code, &details)), expected);
    }

    #[test]
    fn a_timeout_is_found_below_any_number_of_wrappers() {
        let io = std::io::Error::from(std::io::ErrorKind::TimedOut);
        assert_eq!(
            Refusal::from(kube::Error::Service(Box::new(kube::Error::ReadEvents(io)))),
            Refusal::Timeout
        );
    }

    #[test]
    fn a_lost_connection_leaves_the_outcome_unknown() {
        let io = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let refusal = Refusal::from(kube::Error::ReadEvents(io));
        assert!(matches!(refusal, Refusal::Transport { .. }), "{refusal:?}");
        assert!(refusal.leaves_outcome_unknown());
        assert!(!Refusal::Conflict.leaves_outcome_unknown());
    }
}
