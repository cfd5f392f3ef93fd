//! The directory and the ports of one control plane.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::audit::AUDIT_LOGS;
use crate::pki::{self, Authority};
use crate::{cluster, ports};

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
            self.write_kubeconfig(user, "system:masters", authority)?;
        }
        Ok(())
    }

    pub fn write_kubeconfig(&self, user: &str, group: &str, authority: &Authority) -> Result<PathBuf> {
        let identity = authority.client(user, group)?;
        let server = cluster::server(self.apiserver_url(), authority.cert());
        let credentials = cluster::certificate_credentials(&identity.cert, &identity.key);
        let content = cluster::kubeconfig(&server, user, &credentials).to_string();
        pki::write(&self.dir.join("kubeconfig"), user, &content)
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
        match (std::env::var_os(AUDIT_LOGS), self.dir.file_name()) {
            (Some(kept), Some(name)) => PathBuf::from(kept).join(name),
            _ => self.dir.join("log/audit.log"),
        }
    }
}
