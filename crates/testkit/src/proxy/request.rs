//! What a request asks of the API, read from its method and path.

use http::{Method, Uri};
use jiff::Timestamp;

/// What is done, in the API's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads a collection.
    List,
    /// Follows a collection.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    Patch,
    /// DELETE, of one object or of a collection.
    Delete,
    /// Not of an object: `/readyz`, `/version`, discovery.
    Other,
}

/// One request, as the proxy saw it arrive.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    /// When it arrived.
    pub at: Timestamp,
    /// What is done.
    pub verb: Verb,
    /// The API group; empty for the core group.
    pub group: String,
    /// With the subresource, as in RBAC: `pods`, `pods/eviction`, `nodes/status`.
    pub resource: String,
    /// Empty for cluster-scoped objects and for all namespaces.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
    /// Path and query.
    pub uri: String,
    /// The client's name for itself.
    pub user_agent: String,
}

impl ApiRequest {
    pub(super) fn read(method: &Method, uri: &Uri, user_agent: &str) -> Self {
        let target = Target::of(uri.path());
        let query = uri.query().unwrap_or_default();
        let verb = match *method {
            _ if target.resource.is_empty() => Verb::Other,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ if matches!(parameter(query, "watch"), Some("true" | "1")) => Verb::Watch,
            _ if target.name.is_empty() => Verb::List,
            _ => Verb::Get,
        };
        Self {
            at: Timestamp::now(),
            verb,
            group: target.group,
            resource: target.resource,
            namespace: target.namespace,
            name: target.name,
            uri: uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            user_agent: user_agent.to_owned(),
        }
    }

    /// Changes an object.
    pub fn is_write(&self) -> bool {
        matches!(self.verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete)
    }

    /// Concerns a Lease or an Event: how an operator keeps and reports its own state, not what it does to others.
    pub fn is_housekeeping(&self) -> bool {
        matches!(self.resource.as_str(), "leases" | "events")
    }

    /// A query parameter's value, not decoded.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.uri.split_once('?').and_then(|(_, query)| parameter(query, name))
    }
}

/// A parameter's value, not decoded.
fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| {
        pair.split_once('=')
            .filter(|(key, _)| *key == name)
            .map(|(_, value)| value)
    })
}

/// The query with some parameters replaced or, with `None`, removed.
pub(super) fn with_parameters(uri: &str, changes: &[(&str, Option<&str>)]) -> String {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let changed = |pair: &str| changes.iter().any(|(name, _)| pair.split('=').next() == Some(name));
    let kept = query
        .split('&')
        .filter(|pair| !pair.is_empty() && !changed(pair))
        .map(str::to_owned);
    let added = changes
        .iter()
        .filter_map(|(name, value)| value.map(|value| format!("{name}={value}")));
    format!("{path}?{}", kept.chain(added).collect::<Vec<_>>().join("&"))
}

#[derive(Default, Debug, PartialEq)]
struct Target {
    group: String,
    resource: String,
    namespace: String,
    name: String,
}

impl Target {
    fn of(path: &str) -> Self {
        let mut parts = path.trim_matches('/').split('/');
        let group = match parts.next() {
            Some("api") => String::new(),
            Some("apis") => parts.next().unwrap_or_default().to_owned(),
            _ => return Self::default(),
        };
        // The version.
        parts.next();
        let rest: Vec<&str> = parts.collect();
        let (namespace, rest) = match rest.as_slice() {
            // A namespace's own subresources are not collections in it.
            ["namespaces", _, "status" | "finalize"] => ("", &rest[..]),
            ["namespaces", namespace, _, ..] => (*namespace, &rest[2..]),
            _ => ("", &rest[..]),
        };
        let resource = match rest {
            [resource, _, sub, ..] => format!("{resource}/{sub}"),
            [resource, ..] => (*resource).to_owned(),
            [] => String::new(),
        };
        let name = rest.get(1).copied().unwrap_or_default().to_owned();
        Self {
            group,
            resource,
            namespace: namespace.to_owned(),
            name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: &Method, uri: &str) -> (Verb, String, String, String, String) {
        let ApiRequest {
            verb,
            group,
            resource,
            namespace,
            name,
            ..
        } = ApiRequest::read(method, &uri.parse().unwrap(), "");
        (verb, group, resource, namespace, name)
    }

    #[test]
    fn request_paths_parse_as_the_api_server_does() {
        let cases = [
            (Method::GET, "/api/v1/nodes", Verb::List, "", "nodes", "", ""),
            (
                Method::GET,
                "/api/v1/nodes?limit=5&watch=true",
                Verb::Watch,
                "",
                "nodes",
                "",
                "",
            ),
            (Method::GET, "/api/v1/nodes/n1", Verb::Get, "", "nodes", "", "n1"),
            (
                Method::PATCH,
                "/api/v1/nodes/n1/status",
                Verb::Patch,
                "",
                "nodes/status",
                "",
                "n1",
            ),
            (
                Method::GET,
                "/api/v1/namespaces/a",
                Verb::Get,
                "",
                "namespaces",
                "",
                "a",
            ),
            (
                Method::PUT,
                "/api/v1/namespaces/a/finalize",
                Verb::Update,
                "",
                "namespaces/finalize",
                "",
                "a",
            ),
            (
                Method::GET,
                "/api/v1/namespaces/a/pods",
                Verb::List,
                "",
                "pods",
                "a",
                "",
            ),
            (
                Method::POST,
                "/api/v1/namespaces/a/pods/p/eviction",
                Verb::Create,
                "",
                "pods/eviction",
                "a",
                "p",
            ),
            (
                Method::DELETE,
                "/apis/coordination.k8s.io/v1/namespaces/a/leases/l",
                Verb::Delete,
                "coordination.k8s.io",
                "leases",
                "a",
                "l",
            ),
            (Method::GET, "/readyz", Verb::Other, "", "", "", ""),
            (Method::GET, "/apis/apps/v1", Verb::Other, "apps", "", "", ""),
        ];
        for (method, uri, verb, group, resource, namespace, name) in cases {
            let expected = (verb, group.into(), resource.into(), namespace.into(), name.into());
            assert_eq!(read(&method, uri), expected, "{uri}");
        }
    }

    #[test]
    fn parameters_are_replaced_added_and_removed() {
        let changed = with_parameters(
            "/a?x=1&watch=true&y=2",
            &[("watch", None), ("x", Some("3")), ("z", Some("4"))],
        );
        assert_eq!(changed, "/a?y=2&x=3&z=4");
        assert_eq!(with_parameters("/a", &[("z", Some("4"))]), "/a?z=4");
    }
}
