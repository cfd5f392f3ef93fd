//! A cluster that things are put onto: one of ours, or any that a kubeconfig reaches.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use kube::Client;
use kube::config::{Cluster as Server, Kubeconfig};
use serde_json::{Value, json};

use crate::control_plane::client_from;
use crate::toolchain::Toolchain;
use crate::{ControlPlane, PooledControlPlane};

/// How a cluster is reached, and what is at hand for it.
#[derive(Clone, Debug)]
pub struct Cluster {
    kubeconfig: PathBuf,
    server: Server,
    tools: Toolchain,
    dir: PathBuf,
}

impl Cluster {
    /// The cluster of the kubeconfig's current context. Files about it (logs, configurations) go into `dir`.
    ///
    /// # Errors
    /// When the file cannot be read, or its current context names no cluster.
    pub fn from_kubeconfig(kubeconfig: &Path, tools: Toolchain, dir: &Path) -> Result<Self> {
        let kubeconfig = std::path::absolute(kubeconfig)?;
        // Paths in it are relative to the file; they are absolute once it is read.
        let read = Kubeconfig::read_from(&kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
        let context = read.current_context.as_deref().context("it has no current context")?;
        let current = read.contexts.iter().find(|named| named.name == context);
        let name = current.and_then(|named| Some(named.context.as_ref()?.cluster.clone()));
        let name = name.with_context(|| format!("its current context, {context}, is not in it"))?;
        let server = read.clusters.iter().find(|named| named.name == name);
        let server = server.and_then(|named| named.cluster.clone());
        Ok(Self {
            server: server.with_context(|| format!("its cluster {name} is not in it"))?,
            kubeconfig,
            tools,
            dir: dir.to_owned(),
        })
    }

    /// The kubeconfig that reaches it.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The API server's URL.
    pub fn url(&self) -> &str {
        self.server.server.as_deref().unwrap_or_default()
    }

    /// helm, kubectl and kwok.
    pub fn tools(&self) -> &Toolchain {
        &self.tools
    }

    /// Where files about it go.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A client that does not retry, of the calling test's runtime.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client(&self) -> Result<Client> {
        client_from(&self.kubeconfig).await
    }

    /// A kubeconfig for the bearer of `token`, through the URL `via` if given (that of a proxy with a certificate of the
    /// cluster's authority).
    pub fn kubeconfig_of(&self, token: &str, via: Option<&str>) -> String {
        let mut server = self.server.clone();
        if let Some(via) = via {
            server.server = Some(via.to_owned());
        }
        kubeconfig(&server, "operator", &json!({"token": token})).to_string()
    }
}

/// A kubeconfig with one cluster, and one user with these credentials. JSON is YAML.
pub fn kubeconfig(server: &Server, user: &str, credentials: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
        "clusters": [{"name": "testbed", "cluster": server}],
        "users": [{"name": user, "user": credentials}],
    })
}

/// The API server at `url`, trusted by the authority with this certificate (PEM).
pub fn server(url: String, authority: &str) -> Server {
    Server {
        server: Some(url),
        certificate_authority_data: Some(base64(authority)),
        ..Server::default()
    }
}

/// The credentials of a client certificate and its key (PEM).
pub fn certificate_credentials(certificate: &str, key: &str) -> Value {
    json!({"client-certificate-data": base64(certificate), "client-key-data": base64(key)})
}

fn base64(text: &str) -> String {
    let encoded = serde_json::to_value(ByteString(text.as_bytes().to_vec()));
    let text = encoded.ok().and_then(|text| text.as_str().map(str::to_owned));
    text.unwrap_or_default()
}

impl From<&PooledControlPlane> for Cluster {
    fn from(plane: &PooledControlPlane) -> Self {
        Self::from(&**plane)
    }
}

impl From<&ControlPlane> for Cluster {
    fn from(plane: &ControlPlane) -> Self {
        Self {
            kubeconfig: plane.kubeconfig(),
            server: server(plane.url(), plane.ca()),
            tools: plane.tools().clone(),
            dir: plane.dir().to_owned(),
        }
    }
}

impl From<&Self> for Cluster {
    fn from(cluster: &Self) -> Self {
        cluster.clone()
    }
}
