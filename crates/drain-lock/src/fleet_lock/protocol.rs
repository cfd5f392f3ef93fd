//! The FleetLock protocol (<https://coreos.github.io/zincati/development/fleetlock/protocol/>): what clients send, and what
//! they are told.
//!
//! A request is a POST with the header `fleet-lock-protocol: true` and a JSON body with `client_params`. The answer is 200,
//! or an error whose body has a `kind` for programs and a `value` for people. `kind` is one of [`Kind`], never free text.

use axum::http::{HeaderMap, StatusCode};
use nodeward_core::drain_request::machine_requester;
use nodeward_core::id::NodeName;
use nodeward_core::text::cut;
use serde::{Deserialize, Serialize};

/// The most bytes that a request may have.
pub const MAX_BYTES: usize = 16 * 1024;

/// Longest group that is taken.
const MAX_GROUP: usize = 128;

/// Longest id that is taken; systemd's have 32 characters, names of nodes up to 253.
const MAX_ID: usize = 253;

/// The most bytes of an answer's `value`.
const MAX_VALUE: usize = 512;

const HEADER: &str = "fleet-lock-protocol";

/// Who asks: a machine of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its group: `^[a-zA-Z0-9.-]+$`.
    pub group: String,
    pub id: String,
}

#[derive(Deserialize)]
struct Body {
    client_params: Params,
}

#[derive(Deserialize)]
struct Params {
    group: String,
    id: String,
}

impl Client {
    /// Reads a request.
    ///
    /// # Errors
    /// When it is not one of the protocol.
    pub fn parse(headers: &HeaderMap, body: &[u8]) -> Result<Self, Problem> {
        if headers.get(HEADER).is_none_or(|value| value.as_bytes() != b"true") {
            return Err(Problem::new(
                Kind::MissingHeader,
                "the header fleet-lock-protocol: true is missing",
            ));
        }
        let Body {
            client_params: Params { group, id },
        } = serde_json::from_slice(body).map_err(|error| {
            let expected = r#"the body must be {"client_params": {"group": "...", "id": "..."}}"#;
            Problem::new(Kind::BadBody, format!("{expected}: {error}"))
        })?;
        if !is_group(&group) {
            let expected = format!("group must match ^[a-zA-Z0-9.-]+$ and have at most {MAX_GROUP} characters");
            return Err(Problem::new(Kind::BadGroup, expected));
        }
        if id.is_empty() || id.len() > MAX_ID || id.chars().any(char::is_control) {
            let expected = format!("id must have 1 to {MAX_ID} printable characters");
            return Err(Problem::new(Kind::BadId, expected));
        }
        Ok(Self { group, id })
    }

    /// Its name as a requester of the drain of its node: the same, whichever form of its id it sends.
    pub fn requester(&self, node: &NodeName) -> String {
        machine_requester(&self.group, node.as_str())
    }
}

fn is_group(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-';
    !text.is_empty() && text.len() <= MAX_GROUP && text.bytes().all(is_allowed)
}

/// An answer other than 200.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// For programs.
    pub kind: Kind,
    /// For people.
    pub value: String,
}

impl Problem {
    /// The value is cut to a bounded length.
    pub fn new(kind: Kind, value: impl Into<String>) -> Self {
        let value = cut(value.into(), MAX_VALUE);
        Self { kind, value }
    }
}

/// What went wrong, or what is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantArray))]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Kind {
    /// The header of the protocol is missing.
    MissingHeader,
    /// The body is not one of the protocol.
    BadBody,
    /// The group is malformed.
    BadGroup,
    /// The id is malformed.
    BadId,
    /// The body is too large.
    TooLarge,
    /// Only POST, or for the plan GET, is answered.
    MethodNotAllowed,
    /// There is no such page.
    NotFound,
    /// No token, or a wrong one.
    Unauthorized,
    /// No node group has the group's name.
    UnknownGroup,
    /// The client's node is not in the group.
    NodeNotInGroup,
    /// No node has this id.
    UnknownNode,
    /// Several nodes have this id.
    AmbiguousId,
    /// The watches are not complete yet.
    NotReady,
    /// The API server did not answer as it should.
    ApiUnavailable,
    /// A person has paused drain-lock.
    Paused,
    /// The drain waits for its turn.
    Queued,
    /// The drain waits for disruptions of a budget.
    Waiting,
    /// The drain has its disruptions, which are being confirmed.
    Granted,
    /// Pods are leaving the node.
    Draining,
    /// An earlier drain of the node has to end first, be it for this machine.
    Ending,
    /// A budget no longer has the disruption that the drain holds for a pod that stays on the node.
    DisruptionLost,
    /// The drain was given up half-way.
    Suspect,
}

impl Kind {
    /// Its one spelling.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The HTTP status that goes with it.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::MissingHeader
            | Self::BadBody
            | Self::BadGroup
            | Self::BadId
            | Self::UnknownGroup
            | Self::NodeNotInGroup => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotFound | Self::UnknownNode => StatusCode::NOT_FOUND,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::AmbiguousId => StatusCode::CONFLICT,
            Self::NotReady | Self::ApiUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Paused
            | Self::Queued
            | Self::Waiting
            | Self::Granted
            | Self::Draining
            | Self::Ending
            | Self::DisruptionLost
            | Self::Suspect => StatusCode::LOCKED,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;
    use strum::VariantArray;

    use super::*;

    fn headers(value: Option<&'static str>) -> HeaderMap {
        value
            .map(|value| (HEADER.parse().unwrap(), value.parse().unwrap()))
            .into_iter()
            .collect()
    }

    fn parse(body: &str) -> Result<Client, Kind> {
        Client::parse(&headers(Some("true")), body.as_bytes()).map_err(|problem| problem.kind)
    }

    #[test]
    fn the_request_of_the_published_example_is_read() {
        let sent = r#"{"client_params": {"id": "c988d2509fdf5cdcbed39037c56406fb", "group": "workers"}}"#;
        let client = parse(sent).unwrap();
        assert_eq!(client.group, "workers");
        assert_eq!(client.requester(&"n1".into()), "fleetlock:workers:n1");
    }

    #[rstest]
    #[case(None)]
    #[case(Some("false"))]
    #[case(Some("True"))]
    #[case(Some(""))]
    fn without_the_header_it_is_not_the_protocol(#[case] value: Option<&'static str>) {
        let problem = Client::parse(&headers(value), b"{}").unwrap_err();
        assert_eq!(
            (problem.kind, problem.kind.status()),
            (Kind::MissingHeader, StatusCode::BAD_REQUEST)
        );
    }

    #[rstest]
    #[case::nothing("", Kind::BadBody)]
    #[case::words("reboot", Kind::BadBody)]
    #[case::null("null", Kind::BadBody)]
    #[case::a_list("[]", Kind::BadBody)]
    #[case::no_params("{}", Kind::BadBody)]
    #[case::no_id(r#"{"client_params": {"group": "a"}}"#, Kind::BadBody)]
    #[case::no_group(r#"{"client_params": {"id": "a"}}"#, Kind::BadBody)]
    #[case::a_number(r#"{"client_params": {"group": "a", "id": 7}}"#, Kind::BadBody)]
    #[case::two(r#"{"client_params": {"group": "a", "id": "b"}} {}"#, Kind::BadBody)]
    #[case::empty_group(r#"{"client_params": {"group": "", "id": "b"}}"#, Kind::BadGroup)]
    #[case::space_in_the_group(r#"{"client_params": {"group": "a b", "id": "b"}}"#, Kind::BadGroup)]
    #[case::colon_in_the_group(r#"{"client_params": {"group": "a:b", "id": "b"}}"#, Kind::BadGroup)]
    #[case::newline_after_the_group(r#"{"client_params": {"group": "a\n", "id": "b"}}"#, Kind::BadGroup)]
    #[case::letter_of_another_script(r#"{"client_params": {"group": "ä", "id": "b"}}"#, Kind::BadGroup)]
    #[case::empty_id(r#"{"client_params": {"group": "a", "id": ""}}"#, Kind::BadId)]
    #[case::control_in_the_id(r#"{"client_params": {"group": "a", "id": "b\u0000"}}"#, Kind::BadId)]
    fn a_bad_body_is_told_by_its_kind(#[case] body: &str, #[case] kind: Kind) {
        assert_eq!(parse(body), Err(kind));
        assert_eq!(kind.status(), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn endless_words_are_refused_and_not_repeated_whole() {
        for (group, id) in [("g".repeat(200), "i".to_owned()), ("g".to_owned(), "i".repeat(300))] {
            let body = json!({ "client_params": { "group": group, "id": id } }).to_string();
            assert!(parse(&body).is_err());
        }
        assert_eq!(Problem::new(Kind::Waiting, "é".repeat(4000)).value.len(), MAX_VALUE);
    }

    #[test]
    fn every_kind_has_one_spelling_and_no_success() {
        for kind in Kind::VARIANTS {
            assert_eq!(json!(kind), json!(kind.as_str()));
            assert!(!kind.status().is_success());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(body: Vec<u8>) {
            let _ = Client::parse(&headers(Some("true")), &body);
        }

        #[test]
        fn what_is_read_keeps_to_its_bounds(group: String, id: String) {
            let body = json!({ "client_params": { "group": group, "id": id } }).to_string();
            if let Ok(client) = parse(&body) {
                let node = NodeName::from("n".repeat(253));
                prop_assert!(client.requester(&node).len() <= nodeward_api::node_drain::REQUESTER_AT_MOST);
            }
        }
    }
}
