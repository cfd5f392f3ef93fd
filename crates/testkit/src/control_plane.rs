//! etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok as processes of this one.

mod command_lines;
mod layout;
mod options;
mod pool;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio_rustls::TlsAcceptor;

use self::command_lines::Parts;
use self::layout::Layout;
pub use self::options::{AuditScope, Options};
pub use self::pool::{Pool, PooledControlPlane};
use crate::audit::AuditLog;
use crate::pki::Authority;
use crate::process::{self, Process, ProcessId};
use crate::toolchain::{self, Toolchain};
use crate::wait;

/// Seconds are usual; a loaded machine needs more.
const STARTED_WITHIN: Duration = Duration::from_mins(3);

/// A port can be taken by somebody else between choosing and binding it.
const ATTEMPTS: usize = 3;

/// A running control plane. Dropping it kills its parts, and removes its directory unless one was given. Whatever else
/// ends this process does the same.
pub struct ControlPlane {
    parts: Parts,
    layout: Layout,
    tools: Toolchain,
    authority: Authority,
    options: Options,
    // Last, so that it goes when the parts are gone.
    _temporary: Option<TempDir>,
}

impl ControlPlane {
    /// Builds what is missing of the toolchain (minutes, once on a machine), starts all parts and waits until they
    /// serve (seconds).
    ///
    /// # Errors
    /// When a program cannot be built, or a part does not start in time: with the last lines of its log.
    pub async fn start(options: Options) -> Result<Self> {
        let kubernetes = options.kubernetes()?;
        let tools = tokio::task::spawn_blocking(move || toolchain::ensure_built(kubernetes)).await??;
        let mut attempt = 1;
        loop {
            match Self::try_start(&tools, &options).await {
                Err(error) if attempt < ATTEMPTS && format!("{error:#}").contains("address already in use") => {
                    attempt += 1;
                }
                outcome => return outcome.context("start a control plane"),
            }
        }
    }

    async fn try_start(tools: &Toolchain, options: &Options) -> Result<Self> {
        let (dir, temporary) = directory(options)?;
        let authority = Authority::new()?;
        let layout = Layout::create(&dir, &authority)?;
        let parts = command_lines::parts(tools, &layout, options)?;
        let plane = Self {
            parts,
            layout,
            tools: tools.clone(),
            authority,
            options: options.clone(),
            _temporary: temporary,
        };
        plane.parts.etcd.start()?;
        plane.parts.apiserver.start()?;
        plane.ready().await?;
        plane.parts.controller_manager.start()?;
        if plane.options.scheduler {
            plane.parts.scheduler.start()?;
        }
        plane.parts.kwok.start()?;
        plane.default_service_account("default").await?;
        plane.still_running()?;
        Ok(plane)
    }

    /// The control plane that all tests of one binary share. It ends with the process. Tests keep apart by
    /// namespaces and node names of their own ([`crate::names::unique`]).
    ///
    /// # Panics
    /// When it cannot be started: no test can run without it.
    pub async fn shared() -> &'static Self {
        Self::shared_with(Options::default()).await
    }

    /// The same for a binary whose tests all ask for these options.
    ///
    /// # Panics
    /// As [`ControlPlane::shared`].
    #[allow(clippy::panic)]
    pub async fn shared_with(options: Options) -> &'static Self {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        match SHARED.get_or_try_init(|| Self::start(options)).await {
            Ok(plane) => plane,
            Err(error) => panic!("the shared control plane did not start: {error:#}"),
        }
    }

    /// Waits until the API server says that it is ready.
    ///
    /// # Errors
    /// When it is not in time, or etcd or it have ended.
    pub async fn ready(&self) -> Result<()> {
        let client = self.client().await?;
        let ready = wait::until("kube-apiserver to be ready", STARTED_WITHIN, || async {
            if !self.parts.apiserver.is_running() || !self.parts.etcd.is_running() {
                return Ok(false);
            }
            let request = http::Request::get("/readyz").body(Vec::new())?;
            let answer = client.request_text(request).await?;
            ensure!(answer == "ok", "{answer}");
            Ok(true)
        })
        .await;
        match ready {
            Ok(true) => Ok(()),
            Ok(false) => self.still_running(),
            Err(error) => {
                let log = self.parts.apiserver.log_tail(15);
                Err(error.context(format!("kube-apiserver's log ends with:\n{log}")))
            }
        }
    }

    fn still_running(&self) -> Result<()> {
        for part in self.parts() {
            if let Some(status) = part.exit_status() {
                let (name, log) = (part.name(), part.log_tail(15));
                bail!("{name} has ended ({status}); its log ends with:\n{log}");
            }
        }
        Ok(())
    }

    async fn default_service_account(&self, namespace: &str) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let what = format!("the default ServiceAccount of {namespace}");
        let made = wait::until(what, STARTED_WITHIN, || async { Ok(accounts.get("default").await?) }).await;
        let log = || self.parts.controller_manager.log_tail(10);
        made.map(drop)
            .with_context(|| format!("kube-controller-manager's log ends with:\n{}", log()))
    }

    /// A client of the administrator's. It belongs to the calling test's runtime, so make one in each test. It does
    /// not retry.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client(&self) -> Result<Client> {
        client_from(self.kubeconfig()).await
    }

    /// The configuration of [`ControlPlane::client`].
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn config(&self) -> Result<Config> {
        config_from(self.kubeconfig()).await
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig("admin")
    }

    /// A client certificate for `user` in `group`, signed by this cluster's authority: (certificate, key), both PEM.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn client_certificate(&self, user: &str, group: &str) -> Result<(String, String)> {
        self.authority
            .client(user, group)
            .map(|identity| (identity.cert, identity.key))
    }

    /// Writes the kubeconfig of a user with a client certificate, and gives its path.
    ///
    /// # Errors
    /// When the certificate cannot be made or the file not be written.
    pub fn kubeconfig_of(&self, user: &str, group: &str) -> Result<PathBuf> {
        self.layout.write_kubeconfig(user, group, &self.authority)
    }

    /// A serving certificate for loopback, signed by this cluster's authority: (certificate, key), both PEM.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn serving_certificate(&self, name: &str) -> Result<(String, String)> {
        self.authority
            .serving(name)
            .map(|identity| (identity.cert, identity.key))
    }

    /// What serves TLS on loopback with such a certificate.
    pub(crate) fn tls_acceptor(&self, name: &str) -> Result<TlsAcceptor> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (cert, key) = self.serving_certificate(name)?;
        let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
        let tls = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        Ok(Arc::new(tls).into())
    }

    /// The authority's certificate, PEM.
    pub fn ca(&self) -> &str {
        self.authority.cert()
    }

    /// `https://127.0.0.1:PORT` of the API server.
    pub fn url(&self) -> String {
        self.layout.apiserver_url()
    }

    /// `http://127.0.0.1:PORT` of etcd.
    pub fn etcd_url(&self) -> String {
        self.layout.etcd_url()
    }

    /// The directory with certificates, data and logs.
    pub fn dir(&self) -> &Path {
        &self.layout.dir
    }

    /// What the API server has been asked, by whom.
    pub fn audit(&self) -> AuditLog {
        AuditLog::new(self.layout.audit_log())
    }

    /// How it was set up.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The programs that it runs, and helm and kubectl.
    pub fn tools(&self) -> &Toolchain {
        &self.tools
    }

    pub fn etcd(&self) -> &Process {
        &self.parts.etcd
    }

    /// The API server. After a restart, [`ControlPlane::ready`] waits for it.
    pub fn apiserver(&self) -> &Process {
        &self.parts.apiserver
    }

    pub fn controller_manager(&self) -> &Process {
        &self.parts.controller_manager
    }

    /// kwok. After killing it, start it with [`ControlPlane::restart_kwok`].
    pub fn kwok(&self) -> &Process {
        &self.parts.kwok
    }

    /// All parts, in the order in which they are started.
    pub fn parts(&self) -> [&Process; 5] {
        let Parts {
            etcd,
            apiserver,
            controller_manager,
            scheduler,
            kwok,
        } = &self.parts;
        [etcd, apiserver, controller_manager, scheduler, kwok]
    }

    /// The CPU time that its parts have spent so far; one that does not run has spent nothing.
    pub fn cpu(&self) -> Duration {
        let usages = self.parts().into_iter().filter_map(|part| part.usage().ok());
        usages.map(|usage| usage.cpu).sum()
    }

    /// The parts that run now.
    pub fn process_ids(&self) -> Vec<ProcessId> {
        self.parts().into_iter().filter_map(Process::id).collect()
    }

    /// Kills kwok and starts it again. A new kwok would wait for the node leases of the old one to expire, so they
    /// are taken from it.
    ///
    /// # Errors
    /// When the leases cannot be patched or kwok does not start.
    pub async fn restart_kwok(&self) -> Result<()> {
        self.parts.kwok.kill();
        let leases: Api<Lease> = Api::namespaced(self.client().await?, "kube-node-lease");
        for lease in leases.list(&ListParams::default()).await? {
            let name = lease.metadata.name.unwrap_or_default();
            let free = Patch::Merge(json!({"spec": {"holderIdentity": null}}));
            leases.patch(&name, &PatchParams::default(), &free).await?;
        }
        self.parts.kwok.start()
    }

    /// Creates a namespace and waits until pods can be created in it.
    ///
    /// # Errors
    /// When the API server refuses it, or its default ServiceAccount does not appear.
    pub async fn namespace(&self, name: &str) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client().await?);
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        let created = namespaces.create(&PostParams::default(), &namespace).await;
        created.with_context(|| format!("create namespace {name}"))?;
        self.default_service_account(name).await
    }

    /// `kubectl` as the administrator.
    pub fn kubectl(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.tools.kubectl);
        command.env("KUBECONFIG", self.kubeconfig()).env("HOME", self.dir());
        command
    }
}

/// The directory asked for, else a temporary one.
fn directory(options: &Options) -> Result<(PathBuf, Option<TempDir>)> {
    if let Some(dir) = &options.dir {
        return Ok((std::path::absolute(dir)?, None));
    }
    let temporary = tempfile::Builder::new().prefix("nodeward-testbed-").tempdir()?;
    process::remove_at_exit(temporary.path())?;
    Ok((temporary.path().to_owned(), Some(temporary)))
}

/// A client that does not retry, from a kubeconfig file.
///
/// # Errors
/// When the file cannot be read or names no usable credentials.
pub async fn client_from(kubeconfig: impl AsRef<Path>) -> Result<Client> {
    Ok(Client::try_from(config_from(kubeconfig).await?)?)
}

async fn config_from(kubeconfig: impl AsRef<Path>) -> Result<Config> {
    // Several tests of one binary may be the first to use TLS.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(config)
}
