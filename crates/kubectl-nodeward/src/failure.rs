//! The meaning of a failed request for the user.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use nodeward_api::crd::GROUP;
use serde::Serialize;

use crate::text::printable;
use crate::text::time::span;

/// The group of NodeHealthChecks.
const HEALTH_GROUP: &str = "remediation.medik8s.io";

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// 403 of the authorizer.
    #[error("{0}")]
    MissingRight(Box<MissingRight>),
    /// 401.
    #[error("the API server does not know who you are: {0}")]
    Unauthenticated(String),
    /// 404.
    #[error("{0}")]
    NotFound(String),
    /// 409: the object exists already, or has changed.
    #[error("{0}")]
    Conflict(String),
    /// Any other 4xx: an admission webhook, a validation rule of the kind.
    #[error("refused: {0}")]
    Refused(String),
    /// 500.
    #[error("the API server failed: {0}")]
    ServerError(String),
    #[error("the API server did not answer within {}; see --request-timeout", span_of(*.0))]
    Timeout(Duration),
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// The kind is not served.
    #[error("drain-lock is not installed: the API server does not serve {0}")]
    NotInstalled(String),
    /// Any other reason, in words for the user.
    #[error("{0}")]
    Other(String),
}

fn span_of(limit: Duration) -> String {
    span(SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX))
}

/// A right that the caller lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingRight {
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `patch`, `delete`, …
    pub verb: String,
    /// The resource's plural, with the subresource if there is one: `nodes`, `pods/eviction`.
    pub resource: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The namespace; absent: in the whole cluster.
    pub namespace: Option<String>,
    /// Whether the command changes something.
    #[serde(skip)]
    pub changes: bool,
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
            changes: false,
        })
    }

    /// The ClusterRole of the chart that gives this right, as a release named `nodeward` calls it; the least powerful one.
    fn role(&self) -> Option<&'static str> {
        let reads = !self.changes && matches!(self.verb.as_str(), "get" | "list" | "watch");
        match (self.group.as_str(), self.resource.as_str()) {
            (GROUP, "nodedrains" | "drainledgers" | "disruptionholds") | (HEALTH_GROUP, "nodehealthchecks")
                if reads =>
            {
                Some("nodeward-view")
            }
            // By their names: what ceph-pdb publishes, and drain-lock's configuration.
            ("", "configmaps") if reads => Some("nodeward-view"),
            (GROUP, "disruptionholds") => Some("nodeward-hold"),
            (GROUP, "nodedrains") => Some("nodeward-admin"),
            ("", "nodes" | "pods" | "events")
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
        let status = match error {
            kube::Error::Api(status) => status,
            kube::Error::SerdeError(_) => {
                return Self::Other(format!("the API server's answer cannot be decoded: {}", chain(error)));
            }
            _ => return Self::Unreachable(chain(error)),
        };
        let message = printable(&status.message);
        match status.code {
            401 => Self::Unauthenticated(message),
            403 => match MissingRight::parse(&status.message) {
                Some(missing) => Self::MissingRight(Box::new(missing)),
                None => Self::Refused(message),
            },
            404 => Self::NotFound(message),
            409 => Self::Conflict(message),
            400..=499 => Self::Refused(message),
            500 => Self::ServerError(message),
            code => Self::Unreachable(format!("{code}: {message}")),
        }
    }
}

/// The error and its causes, each once, without the client's layers that only pass a cause on.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut cause = Some(error);
    while let Some(error) = cause {
        let text = error.to_string();
        cause = error.source();
        let passes_on = text.starts_with("ServiceError") || text.starts_with("client error (");
        let adds_nothing = passes_on && cause.is_some() || texts.iter().any(|said| said.contains(&text));
        if !adds_nothing {
            texts.push(text);
        }
    }
    printable(&texts.join(": "))
}

/// The line on standard error that tells of an error: for a person, or for a program that reads JSON.
pub fn error_line(error: &dyn std::error::Error, wants_json: bool) -> String {
    let said = chain(error);
    if wants_json {
        serde_json::json!({ "error": said }).to_string()
    } else {
        format!("error: {said}")
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NODES: &str =
        r#"nodes is forbidden: User "alice" cannot list resource "nodes" in API group "" at the cluster scope"#;
    const HOLD: &str = r#"disruptionholds.nodeward.dev is forbidden: User "system:serviceaccount:ops:ci" cannot create resource "disruptionholds" in API group "nodeward.dev" in the namespace "shop": no policy"#;
    const EVICTION: &str = r#"pods "a" is forbidden: User "bob" cannot create resource "pods/eviction" in API group "policy" in the namespace "shop""#;

    const STATES: &str = r#"configmaps is forbidden: User "alice" cannot list resource "configmaps" in API group "" at the cluster scope"#;

    #[rstest]
    #[case(
        STATES,
        "alice may not list configmaps in the whole cluster (the chart's ClusterRole nodeward-view allows it)"
    )]
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
    fn missing_right_is_named(#[case] message: &str, #[case] told: &str) {
        assert_eq!(MissingRight::parse(message).unwrap().to_string(), told);
    }

    #[rstest]
    #[case("admission webhook \"x\" denied the request: no")]
    #[case("exceeded quota")]
    #[case(r#"User "alice" cannot get path "/metrics""#)]
    #[case("")]
    fn other_refusal_is_no_missing_right(#[case] message: &str) {
        assert_eq!(MissingRight::parse(message), None);
        let failure = Failure::from(&error(403, message));
        assert_eq!(failure, Failure::Refused(message.to_owned()));
    }

    fn error(code: u16, message: &str) -> kube::Error {
        kube::Error::Api(kube::core::Status::failure(message, "").with_code(code).boxed())
    }

    #[test]
    fn answer_that_cannot_be_decoded_was_an_answer() {
        let undecodable = serde_json::from_str::<u8>("true").unwrap_err();
        let told = Failure::from(&kube::Error::SerdeError(undecodable)).to_string();
        assert!(
            told.starts_with("the API server's answer cannot be decoded: "),
            "{told}"
        );
    }

    #[rstest]
    #[case(401, "the API server does not know who you are: m")]
    #[case(404, "m")]
    #[case(409, "m")]
    #[case(422, "refused: m")]
    #[case(429, "refused: m")]
    #[case(500, "the API server failed: m")]
    #[case(503, "the API server cannot be reached: 503: m")]
    fn each_status_code_has_its_meaning(#[case] code: u16, #[case] told: &str) {
        assert_eq!(Failure::from(&error(code, "m")).to_string(), told);
    }

    #[test]
    fn passed_limit_is_named() {
        let failure = Failure::Timeout(Duration::from_secs(90));
        assert_eq!(
            failure.to_string(),
            "the API server did not answer within 1m30s; see --request-timeout"
        );
    }
}
