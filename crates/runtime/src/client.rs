//! Kubernetes clients whose retries are ours.

use std::time::Duration;

use http::header::USER_AGENT;
use http::{HeaderName, HeaderValue};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::limit::ConcurrencyLimitLayer;
use tower::{BoxError, ServiceBuilder};

use crate::component::Component;
use crate::control::permit::STATUS_REQUESTS_AT_ONCE;

/// An API server that does not accept a connection in this time is treated as away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longer than the longest admission webhook may take (30 s), so that a slow answer is not mistaken for a lost one.
const REQUEST_READ_TIMEOUT: Duration = Duration::from_secs(35);

/// Writes to the cluster under way at once. Each has a connection of its own, which costs memory here and a handshake there; more of them
/// would not make anything faster. They are served in the order in which they were asked for: of many actions that are due
/// at once each gets its first request before any gets its second.
pub(crate) const REQUESTS_AT_ONCE: usize = 24;

/// Requests besides the permitted writes: reads, Events. A write that is permitted must not wait behind them, for who leads
/// has been asked already.
const OTHER_REQUESTS_AT_ONCE: usize = 8;

/// What a connection may read ahead: as much as a record of TLS holds. Watches have one each; hyper's own bound of some 400 KiB
/// is for bulk transfers.
const READ_AHEAD: usize = 16 * 1024;

/// The clients of an operator. Neither retries by itself: kube's default repeats a 429 up to 15 times, which turns an
/// eviction that a budget refuses into minutes of blocking and sixteen requests. Whoever calls decides when to call again.
#[derive(Clone)]
pub struct Clients {
    /// For watches: no read timeout, for a quiet watch is a healthy one. The caches detect dead connections themselves.
    pub watches: Client,
    /// For everything else: an answer that does not come within 35 s is an error.
    pub requests: Client,
    /// For the lease alone, which waits for no other request.
    pub lease: Client,
}

/// No client could be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Neither a kubeconfig nor a service account is there.
    #[error("no access to a cluster: {0}; set KUBECONFIG, or run in a pod with a service account")]
    Access(#[from] kube::config::InferConfigError),
    /// The configuration was found but does not work.
    #[error("the cluster configuration cannot be used: {0}")]
    Setup(#[from] kube::Error),
}

impl Clients {
    /// Clients from `KUBECONFIG`, else from the pod's service account.
    pub async fn infer(component: Component) -> Result<Self, ClientError> {
        use_ring();
        Self::from_config(Config::infer().await?, component)
    }

    /// Clients for a configuration that is already known.
    pub fn from_config(config: Config, component: Component) -> Result<Self, ClientError> {
        use_ring();
        let watches = without_retries(config, component);
        let mut requests = watches.clone();
        requests.read_timeout = Some(REQUEST_READ_TIMEOUT);
        Ok(Self {
            watches: connect(watches, None)?,
            lease: connect(requests.clone(), None)?,
            requests: connect(
                requests,
                Some(REQUESTS_AT_ONCE + STATUS_REQUESTS_AT_ONCE + OTHER_REQUESTS_AT_ONCE),
            )?,
        })
    }

    /// The same client for all uses, for tests that bring their own.
    pub fn single(client: Client) -> Self {
        Self {
            watches: client.clone(),
            lease: client.clone(),
            requests: client,
        }
    }
}

/// A client as kube makes it, but for what its connections may read ahead, and how many requests are under way at once.
fn connect(config: Config, at_once: Option<usize>) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let connections = legacy::Client::builder(TokioExecutor::new())
        .http1_max_buf_size(READ_AHEAD)
        .build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .option_layer(at_once.map(ConcurrencyLimitLayer::new))
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(Client::new(service, config.default_namespace))
}

fn without_retries(mut config: Config, component: Component) -> Config {
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = None;
    if let Ok(agent) = HeaderValue::from_str(&component.user_agent()) {
        config
            .headers
            .retain(|(name, _): &(HeaderName, HeaderValue)| name != USER_AGENT);
        config.headers.push((USER_AGENT, agent));
    }
    config
}

/// rustls wants one provider named for the process; an error means that somebody did so already.
fn use_ring() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use http::header::USER_AGENT;
    use kube::Config;

    use super::{CONNECT_TIMEOUT, without_retries};
    use crate::component::Component;

    #[test]
    fn client_retries_nothing_and_allows_quiet_watches() {
        let given = Config::new("https://127.0.0.1:1".parse().unwrap());
        assert!(
            given.default_retry,
            "kube retries by default; if it no longer does, this module can shrink"
        );
        let ours = without_retries(given, Component::new("drain-keeper", "0"));
        assert!(!ours.default_retry);
        assert_eq!(ours.read_timeout, None);
        assert_eq!(ours.connect_timeout, Some(CONNECT_TIMEOUT));
        assert_eq!(ours.headers, [(USER_AGENT, "nodeward/drain-keeper".parse().unwrap())]);
    }
}
