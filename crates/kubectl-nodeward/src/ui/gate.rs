//! Who may see the page: whoever was handed its first address. Other programs of this machine may connect to a loopback
//! port, and any web page may make a browser do so.

use axum::extract::{Query, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rand::distr::{Alphanumeric, SampleString as _};
use serde::Deserialize;
use subtle::ConstantTimeEq as _;

/// What the page may load: its own files, and nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Not in the `http` crate.
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Who may see the page.
#[derive(Debug, Clone)]
pub struct Gate {
    port: u16,
    token: String,
}

#[derive(Debug, Deserialize)]
pub struct FirstAddress {
    token: Option<String>,
}

impl Gate {
    /// With a new random token.
    pub fn new(port: u16) -> Self {
        // 256 bits.
        let token = Alphanumeric.sample_string(&mut rand::rng(), 43);
        Self { port, token }
    }

    /// The address to open.
    pub fn first_address(&self) -> String {
        format!("http://127.0.0.1:{}/?token={}", self.port, self.token)
    }

    /// Cookies are shared by all ports of a host, so the name tells the port.
    fn cookie_name(&self) -> String {
        format!("nodeward-ui-{}", self.port)
    }

    fn is_token(&self, given: &str) -> bool {
        given.as_bytes().ct_eq(self.token.as_bytes()).into()
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let name = self.cookie_name();
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(key, value)| key == name && self.is_token(value))
    }

    /// A name that an attacker's DNS makes point to this machine shows in `Host`; another site's page in `Origin`.
    fn is_own(&self, headers: &HeaderMap) -> bool {
        let names = ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("{host}:{}", self.port));
        let text = |value: &HeaderValue| value.to_str().map(str::to_owned).unwrap_or_default();
        let host = headers.get(HOST).map(text);
        let origin = headers.get(ORIGIN).map(text);
        host.is_some_and(|host| names.contains(&host))
            && origin.is_none_or(|origin| {
                origin
                    .strip_prefix("http://")
                    .is_some_and(|name| names.iter().any(|own| own == name))
            })
    }
}

/// Lets a request in, or says why not.
pub async fn check(
    State(gate): State<Gate>,
    Query(first): Query<FirstAddress>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let mut response = if !gate.is_own(headers) {
        (StatusCode::FORBIDDEN, "This page answers on its own address only.\n").into_response()
    } else if first.token.is_some_and(|token| gate.is_token(&token)) {
        let cookie = format!(
            "{}={}; HttpOnly; SameSite=Strict; Path=/",
            gate.cookie_name(),
            gate.token
        );
        // The token leaves the address, lest it stays in a history or a screenshot.
        (
            StatusCode::SEE_OTHER,
            [(SET_COOKIE, cookie), (LOCATION, "/".to_owned())],
        )
            .into_response()
    } else if gate.has_cookie(headers) {
        next.run(request).await
    } else {
        let text = "Open the address that kubectl nodeward ui printed: it has a token in it.\n";
        (StatusCode::UNAUTHORIZED, text).into_response()
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CROSS_ORIGIN_RESOURCE_POLICY, "same-origin"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::http::header::LOCATION;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use rstest::rstest;
    use tower::ServiceExt as _;

    use super::*;

    const PORT: u16 = 8484;

    async fn ask(gate: &Gate, address: &str, headers: &[(HeaderName, &str)]) -> Response {
        let router = Router::new()
            .route("/", get(async || "the page"))
            .layer(from_fn_with_state(gate.clone(), check));
        let mut request = Request::builder().uri(address);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn first_address_lets_in_with_a_cookie() {
        let gate = Gate::new(PORT);
        let host = (HOST, "127.0.0.1:8484");
        let first = gate.first_address();
        let address = first.strip_prefix("http://127.0.0.1:8484").unwrap();
        let answer = ask(&gate, address, std::slice::from_ref(&host)).await;
        assert_eq!(
            (answer.status(), &answer.headers()[LOCATION]),
            (StatusCode::SEE_OTHER, &HeaderValue::from_static("/"))
        );
        let cookie = answer.headers()[SET_COOKIE].to_str().unwrap();
        assert!(cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/"), "{cookie}");
        let pair = cookie.split(';').next().unwrap();
        let other = format!("a=b; {pair}; c");
        for cookies in [pair, &other] {
            let answer = ask(&gate, "/", &[host.clone(), (COOKIE, cookies)]).await;
            assert_eq!(answer.status(), StatusCode::OK);
            assert_eq!(answer.headers()[CONTENT_SECURITY_POLICY], POLICY);
        }
        // Another run has another token.
        let answer = ask(&Gate::new(PORT), "/", &[host, (COOKIE, pair)]).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    }

    #[rstest]
    #[case::no_token("/", "127.0.0.1:8484", None, None, StatusCode::UNAUTHORIZED)]
    #[case::wrong_token("/?token=0", "127.0.0.1:8484", None, None, StatusCode::UNAUTHORIZED)]
    #[case::no_such_page_either("/other", "127.0.0.1:8484", None, None, StatusCode::UNAUTHORIZED)]
    #[case::empty_cookie("/", "127.0.0.1:8484", None, Some("nodeward-ui-8484="), StatusCode::UNAUTHORIZED)]
    #[case::foreign_host("/", "attacker.example:8484", None, None, StatusCode::FORBIDDEN)]
    #[case::other_port("/", "127.0.0.1:80", None, None, StatusCode::FORBIDDEN)]
    #[case::foreign_origin("/", "127.0.0.1:8484", Some("https://attacker.example"), None, StatusCode::FORBIDDEN)]
    #[case::origin_of_a_file("/", "127.0.0.1:8484", Some("null"), None, StatusCode::FORBIDDEN)]
    #[case::localhost("/", "localhost:8484", Some("http://localhost:8484"), None, StatusCode::UNAUTHORIZED)]
    #[tokio::test]
    async fn nobody_else_is_let_in(
        #[case] address: &str,
        #[case] host: &str,
        #[case] origin: Option<&str>,
        #[case] cookie: Option<&str>,
        #[case] status: StatusCode,
    ) {
        let gate = Gate::new(PORT);
        let mut headers = vec![(HOST, host)];
        headers.extend(origin.map(|origin| (ORIGIN, origin)));
        headers.extend(cookie.map(|cookie| (COOKIE, cookie)));
        let answer = ask(&gate, address, &headers).await;
        assert_eq!(answer.status(), status);
        assert!(!answer.headers().contains_key(SET_COOKIE));
        // A foreign host is refused even with the right token.
        if status == StatusCode::FORBIDDEN {
            let cookie = format!("nodeward-ui-{PORT}={}", gate.token);
            headers.push((COOKIE, &cookie));
            assert_eq!(ask(&gate, address, &headers).await.status(), status);
        }
    }
}
