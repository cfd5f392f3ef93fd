//! Kubernetes clients whose retries are ours.

use std::time::Duration;

use http::header::USER_AGENT;
use http::{HeaderName, HeaderValue};
use kube::{Client, Config};

use crate::component::Component;

/// An API server that does not accept a connection in this time is treated as away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longer than the longest admission webhook may take (30 s), so that a slow answer is not mistaken for a lost one.
const REQUEST_READ_TIMEOUT: Duration = Duration::from_secs(35);

/// The clients of an operator. Neither retries by itself: kube's default repeats a 429 up to 15 times, which turns an
/// eviction that a budget refuses into minutes of blocking and sixteen requests. Whoever calls decides when to call again.
#[derive(Clone)]
pub struct Clients {
    /// For watches: no read timeout, for a quiet watch is a healthy one. The caches detect dead connections themselves.
    pub watches: Client,
    /// For everything else: an answer that does not come within 35 s is an error.
    pub requests: Client,
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
            watches: Client::try_from(watches)?,
            requests: Client::try_from(requests)?,
        })
    }

    /// The same client for both uses, for tests that bring their own.
    pub fn single(client: Client) -> Self {
        Self {
            watches: client.clone(),
            requests: client,
        }
    }
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
    fn nothing_is_retried_behind_our_back_and_watches_may_be_quiet() {
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
