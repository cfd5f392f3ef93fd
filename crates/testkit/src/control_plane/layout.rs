//! The directory and the ports of one control plane.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use serde_json::json;

use crate::pki::{self, Authority, Identity};
use crate::ports;

pub(super) struct Layout {
    pub dir: PathBuf,
    pub apiserver_port: u16,
    pub etcd_port: u16,
    pub etcd_peer_port: u16,
}

impl Layout {
    /// Chooses the ports and writes the certificates and kubeconfigs.
    pub fn create(dir: &Path, authority: &Authority) -> Result<Self> {
        for sub in ["pki", "log", "kubeconfig"] {
            std::fs::create_dir_all(dir.join(sub)).with_context(|| format!("create {}", dir.display()))?;
        }
        let layout = Self {
            dir: dir.to_owned(),
            apiserver_port: ports::free()?,
            etcd_port: ports::free()?,
            etcd_peer_port: ports::free()?,
        };
        layout.write_certificates(authority)?;
        Ok(layout)
    }

    fn write_certificates(&self, authority: &Authority) -> Result<()> {
        let dir = self.dir.join("pki");
        pki::write(&dir, "ca.crt", authority.cert())?;
        let serving = authority.serving("kube-apiserver")?;
        pki::write(&dir, "apiserver.crt", &serving.cert)?;
        pki::write(&dir, "apiserver.key", &serving.key)?;
        let (private, public) = pki::key_pair()?;
        pki::write(&dir, "service-account.key", &private)?;
        pki::write(&dir, "service-account.pub", &public)?;
        for user in ["admin", "kube-controller-manager", "kube-scheduler", "kwok"] {
            // One group for all: whose rights are under test are the operators', and they come from the chart.
            self.write_kubeconfig(user, authority, &authority.client(user, "system:masters")?)?;
        }
        Ok(())
    }

    fn write_kubeconfig(&self, user: &str, authority: &Authority, identity: &Identity) -> Result<()> {
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "testbed",
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
            "clusters": [{"name": "testbed", "cluster": {
                "server": self.apiserver_url(),
                "certificate-authority-data": ByteString(authority.cert().as_bytes().to_vec()),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate-data": ByteString(identity.cert.clone().into_bytes()),
                "client-key-data": ByteString(identity.key.clone().into_bytes()),
            }}],
        });
        pki::write(&self.dir.join("kubeconfig"), user, &serde_yaml::to_string(&content)?)?;
        Ok(())
    }

    pub fn apiserver_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.apiserver_port)
    }

    pub fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.etcd_port)
    }

    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.dir.join("kubeconfig").join(user)
    }

    pub fn log(&self, part: &str) -> PathBuf {
        self.dir.join("log").join(format!("{part}.log"))
    }

    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("log/audit.log")
    }
}
