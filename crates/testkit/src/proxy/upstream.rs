//! The proxy's own connections to the API server.

use anyhow::Result;
use http::{Request, Response};
use kube::client::Body;
use kube::config::AuthInfo;
use kube::{Client, Config};

/// How to be let in by the API server.
pub(super) struct Upstream {
    /// For requests that bring a token.
    plain: Client,
    /// For requests without: the administrator's certificate.
    admin: Client,
}

impl Upstream {
    pub fn new(admin: &Config) -> Result<Self> {
        let mut plain = admin.clone();
        plain.auth_info = AuthInfo::default();
        Ok(Self {
            plain: Client::try_from(plain)?,
            admin: Client::try_from(admin.clone())?,
        })
    }

    /// Sends a request and gives the head of its answer. Not repeated: what fails here, fails for the client.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Body>> {
        let is_admin = !request.headers().contains_key(http::header::AUTHORIZATION);
        let client = if is_admin { &self.admin } else { &self.plain };
        Ok(client.send(request).await?)
    }
}
