//! What a failed request means for the person who asked.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use nodeward_api::crd::GROUP;
use serde::Serialize;

use crate::text::line::printable;
use crate::text::time::span;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// 403 of the authorizer.
    #[error("{0}")]
    MissingRight(Box<MissingRight>),
    /// 401.
    #[error("the API server does not know who you are: {message}")]
    Unauthenticated {
        /// The server's own words.
        message: String,
    },
    /// 404.
    #[error("{message}")]
    NotFound {
        /// The server's own words.
        message: String,
    },
    /// 409: the object exists already, or is another one by now.
    #[error("{message}")]
    Conflict {
        /// The server's own words.
        message: String,
    },
    /// Any other refusal: an admission webhook, a rule of the kind.
    #[error("refused: {message}")]
    Refused {
        /// The server's own words.
        message: String,
    },
    /// No answer in time.
    #[error("no answer from the API server within {}; see --request-timeout", span_of(*limit))]
    Timeout {
        /// How long it was waited for.
        limit: Duration,
    },
    /// The connection, or the server, failed.
    #[error("the API server cannot be reached: {message}")]
    Unreachable {
        /// What happened.
        message: String,
    },
}

fn span_of(limit: Duration) -> String {
    span(SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX))
}

/// A right that the caller does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingRight {
    /// Who asked.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `patch`, `delete`, …
    pub verb: String,
    /// The resource's plural, with the subresource if there is one: `nodes`, `pods/eviction`.
    pub resource: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The namespace; absent: in the whole cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Whether more is meant to be done than to look.
    #[serde(skip)]
    pub to_act: bool,
}

impl MissingRight {
    /// Reads the API server's message
    /// (`User "u" cannot list resource "pods" in API group "" in the namespace "shop"`, or `… at the cluster scope`:
    /// `forbiddenMessage` in k8s.io/apiserver); `None` for a 403 that says something else, as admission does.
    pub fn parse(message: &str) -> Option<Self> {
        let (_, rest) = message.split_once("User \"")?;
        let (user, rest) = rest.split_once("\" cannot ")?;
        let (verb, rest) = rest.split_once(" resource \"")?;
        let (resource, rest) = rest.split_once("\" in API group \"")?;
        let (group, rest) = rest.split_once('"')?;
        let namespace = match rest.strip_prefix(" in the namespace \"") {
            Some(rest) => Some(rest.split_once('"')?.0.to_owned()),
            None => rest.strip_prefix(" at the cluster scope").map(|_| None)?,
        };
        Some(Self {
            user: user.to_owned(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            group: group.to_owned(),
            namespace,
            to_act: false,
        })
    }
}

impl MissingRight {
    /// The ClusterRole of the chart that gives this right, as a release named `nodeward` calls it; what gives least.
    fn role(&self) -> Option<&'static str> {
        let reads = !self.to_act && matches!(self.verb.as_str(), "get" | "list" | "watch");
        match (self.group.as_str(), self.resource.as_str()) {
            (GROUP, "nodedrains" | "drainledgers" | "disruptionholds") if reads => Some("nodeward-view"),
            (GROUP, "disruptionholds") => Some("nodeward-hold"),
            (GROUP, "nodedrains") => Some("nodeward-admin"),
            ("", "nodes" | "pods")
            | ("policy", "poddisruptionbudgets")
            | ("apps", "deployments")
            | ("coordination.k8s.io", "leases")
                if matches!(self.verb.as_str(), "get" | "list" | "watch") =>
            {
                Some("nodeward-admin")
            }
            _ => None,
        }
    }
}

impl fmt::Display for MissingRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} may not {} {}", printable(&self.user), self.verb, self.resource)?;
        if !self.group.is_empty() {
            let dot = if self.resource.contains('/') { " of " } else { "." };
            write!(f, "{dot}{}", self.group)?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => f.write_str(" in the whole cluster"),
        }?;
        match self.role() {
            Some(role) => write!(f, " (the chart's ClusterRole {role} allows it)"),
            None => Ok(()),
        }
    }
}

impl From<&kube::Error> for Failure {
    fn from(error: &kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Self::Unreachable { message: chain(error) };
        };
        let message = printable(&status.message);
        match status.code {
            401 => Self::Unauthenticated { message },
            403 => match MissingRight::parse(&status.message) {
                Some(missing) => Self::MissingRight(Box::new(missing)),
                None => Self::Refused { message },
            },
            404 => Self::NotFound { message },
            409 => Self::Conflict { message },
            400..=499 => Self::Refused { message },
            code => Self::Unreachable {
                message: format!("{code}: {message}"),
            },
        }
    }
}

impl Failure {
    /// The same, of somebody who wants to change something: what they lack is not only the right to look.
    #[must_use]
    pub fn to_act(self) -> Self {
        match self {
            Self::MissingRight(missing) => Self::MissingRight(Box::new(MissingRight {
                to_act: true,
                ..*missing
            })),
            other => other,
        }
    }

    /// The same, with the address where the API server was not reached.
    #[must_use]
    pub fn at(self, address: &http::Uri) -> Self {
        match self {
            Self::Unreachable { message } => Self::Unreachable {
                message: format!("{address}: {message}"),
            },
            other => other,
        }
    }
}

/// The error and its causes, each said once; of those that only pass a cause on nothing is said.
fn chain(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let (true, Some(cause)) = (only_passes_on(error), error.source()) {
        error = cause;
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    printable(&text)
}

/// Of the client's layers, which say that something below has failed.
fn only_passes_on(error: &dyn std::error::Error) -> bool {
    let said = error.to_string();
    said.starts_with("ServiceError") || said.starts_with("client error (")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NODES: &str =
        r#"nodes is forbidden: User "alice" cannot list resource "nodes" in API group "" at the cluster scope"#;
    const HOLD: &str = r#"disruptionholds.nodeward.dev is forbidden: User "system:serviceaccount:ops:ci" cannot create resource "disruptionholds" in API group "nodeward.dev" in the namespace "shop": no policy"#;
    const EVICTION: &str = r#"pods "a" is forbidden: User "bob" cannot create resource "pods/eviction" in API group "policy" in the namespace "shop""#;

    #[rstest]
    #[case(
        NODES,
        "alice may not list nodes in the whole cluster (the chart's ClusterRole nodeward-admin allows it)"
    )]
    #[case(
        HOLD,
        "system:serviceaccount:ops:ci may not create disruptionholds.nodeward.dev in namespace shop \
         (the chart's ClusterRole nodeward-hold allows it)"
    )]
    #[case(EVICTION, "bob may not create pods/eviction of policy in namespace shop")]
    fn a_missing_right_is_named(#[case] message: &str, #[case] told: &str) {
        assert_eq!(MissingRight::parse(message).unwrap().to_string(), told);
    }

    #[rstest]
    #[case("admission webhook \"x\" denied the request: no")]
    #[case("exceeded quota")]
    #[case(r#"User "alice" cannot get path "/metrics""#)]
    #[case("")]
    fn another_refusal_is_not_taken_for_a_missing_right(#[case] message: &str) {
        assert_eq!(MissingRight::parse(message), None);
        let failure = Failure::from(&error(403, message));
        assert_eq!(
            failure,
            Failure::Refused {
                message: message.to_owned()
            }
        );
    }

    fn error(code: u16, message: &str) -> kube::Error {
        kube::Error::Api(kube::core::Status::failure(message, "").with_code(code).boxed())
    }

    #[rstest]
    #[case(401, "the API server does not know who you are: m")]
    #[case(404, "m")]
    #[case(409, "m")]
    #[case(422, "refused: m")]
    #[case(429, "refused: m")]
    #[case(503, "the API server cannot be reached: 503: m")]
    fn each_answer_has_its_meaning(#[case] code: u16, #[case] told: &str) {
        assert_eq!(Failure::from(&error(code, "m")).to_string(), told);
    }

    #[test]
    fn a_limit_that_has_passed_is_told() {
        let failure = Failure::Timeout {
            limit: Duration::from_secs(90),
        };
        assert_eq!(
            failure.to_string(),
            "no answer from the API server within 1m30s; see --request-timeout"
        );
    }
}
