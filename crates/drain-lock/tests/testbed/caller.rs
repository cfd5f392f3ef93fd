//! Requests to drain-lock's own servers on loopback.

use std::path::{Path, PathBuf};

use anyhow::Result;
use axum::http::{Method, Request};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

/// A client of one server.
pub struct Caller {
    client: Client,
}

/// A status, and what came with it.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&self.text)?)
    }
}

/// How a client shows who it is, and whom it trusts.
#[derive(Default)]
pub struct Trust<'a> {
    /// PEM of the authority that has signed the server's certificate.
    pub authority: Option<&'a str>,
    /// PEM of a client certificate and its key.
    pub identity: Option<(&'a str, &'a str)>,
}

impl Caller {
    /// A client of the server at `url`; certificates are kept in `dir`.
    pub async fn new(url: &str, dir: &Path, trust: Trust<'_>) -> Result<Self> {
        let mut cluster = json!({ "server": url });
        if let Some(authority) = trust.authority {
            cluster["certificate-authority"] = json!(write(dir, "authority.crt", authority)?);
        }
        let mut user = json!({});
        if let Some((certificate, key)) = trust.identity {
            user["client-certificate"] = json!(write(dir, "client.crt", certificate)?);
            user["client-key"] = json!(write(dir, "client.key", key)?);
        }
        let kubeconfig: Kubeconfig = serde_json::from_value(json!({
            "current-context": "it",
            "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it" } }],
            "clusters": [{ "name": "it", "cluster": cluster }],
            "users": [{ "name": "it", "user": user }],
        }))?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        Ok(Self {
            client: Client::try_from(config)?,
        })
    }

    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Result<Answer> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.client.send(request.body(Body::from(body))?).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect_bytes().await?;
        Ok(Answer {
            status,
            text: String::from_utf8_lossy(&body).into_owned(),
        })
    }

    pub async fn post(&self, path: &str, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Result<Answer> {
        self.send(Method::POST, path, headers, body.into()).await
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Result<Answer> {
        self.send(Method::GET, path, headers, Vec::new()).await
    }
}

fn write(dir: &Path, name: &str, content: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    std::fs::write(&path, content)?;
    Ok(path)
}
