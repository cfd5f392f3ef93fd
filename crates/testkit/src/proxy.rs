//! A proxy in front of the API server that does to an operator what networks, loaded servers and crashes do.
//!
//! It speaks HTTPS with a certificate of the control plane's authority, and hands tokens on as they are: RBAC applies
//! to a client as without it. A request without a token is the administrator's.

mod answer;
mod fault;
mod gate;
mod record;
mod request;
mod serve;
mod upstream;
mod view;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

pub use self::fault::{Fault, Rule};
pub use self::gate::{Gate, Hook, Stage, Verdict, Write};
pub use self::record::{Outcome, Record};
pub use self::request::{ApiRequest, Verb};

use self::record::Journal;
use self::serve::Shared;
use self::upstream::Upstream;
use crate::control_plane::ControlPlane;

/// A running proxy. It ends when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    ca: String,
    shared: Arc<Shared>,
    admin: Config,
    next_rule: AtomicU64,
    // Of its own, so that a test that blocks does not stop the operator's requests.
    runtime: Option<tokio::runtime::Runtime>,
}

/// A rule in force; see [`Proxy::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

/// A point in the proxy's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(usize);

impl Proxy {
    /// Starts a proxy in front of a control plane, on a free loopback port.
    ///
    /// # Errors
    /// When its certificate cannot be made or its port not be bound.
    pub async fn start(plane: &ControlPlane) -> Result<Self> {
        let tls = plane.tls_acceptor("testbed-proxy")?;
        let admin = plane.config().await?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let listener = runtime.spawn(TcpListener::bind("127.0.0.1:0")).await??;
        let address = listener.local_addr()?;
        let upstream = {
            let _in_its_runtime = runtime.enter();
            Upstream::new(&admin)?
        };
        let shared = Arc::new(Shared {
            rules: Mutex::default(),
            gate: Mutex::default(),
            view: watch::Sender::default(),
            watches: Mutex::default(),
            journal: Journal::default(),
            upstream,
            confined: Mutex::default(),
        });
        runtime.spawn(accept(listener, tls, Arc::clone(&shared)));
        let ca = plane.ca().to_owned();
        Ok(Self {
            address,
            ca,
            shared,
            admin,
            next_rule: AtomicU64::new(0),
            runtime: Some(runtime),
        })
    }

    /// `https://127.0.0.1:PORT`: what a kubeconfig names in place of the API server.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The certificate of the authority that signed the proxy's, PEM.
    pub fn ca(&self) -> &str {
        &self.ca
    }

    /// A client of the administrator's that goes through the proxy. It belongs to the calling test's runtime.
    ///
    /// # Errors
    /// When it cannot be set up.
    pub fn client(&self) -> Result<Client> {
        let mut config = self.admin.clone();
        config.cluster_url = self.url().parse()?;
        Ok(Client::try_from(config)?)
    }

    /// Puts a rule into force. Rules are applied in the order in which they came.
    pub fn inject(&self, rule: Rule) -> RuleId {
        let id = self.next_rule.fetch_add(1, Ordering::Relaxed);
        crate::lock(&self.shared.rules).push((id, rule));
        RuleId(id)
    }

    /// Takes a rule out of force.
    pub fn remove(&self, rule: RuleId) {
        crate::lock(&self.shared.rules).retain(|(id, _)| *id != rule.0);
    }

    /// Takes all rules out of force.
    pub fn heal(&self) {
        crate::lock(&self.shared.rules).clear();
    }

    /// Sets the gate that writes pass, counting from 1 again; `None` opens it.
    pub fn set_gate(&self, gate: Option<Gate>) {
        *crate::lock(&self.shared.gate) = gate.map(|gate| (gate, 0));
    }

    /// From now on lists and watches of a resource bring only objects with this label: so operators that look after the
    /// whole cluster can be tried side by side. Before the first of them is opened.
    pub fn confine(&self, resource: &'static str, label: &str, value: &str) {
        let selector = format!("{}%3D{value}", label.replace('/', "%2F"));
        let mut confined = crate::lock(&self.shared.confined);
        confined.push((resource, selector));
    }

    /// Breaks all watches that are open now.
    pub fn drop_watches(&self) {
        self.shared.view.send_modify(|view| view.generation += 1);
    }

    /// Makes watches that are open now, and of which this is true, bring nothing any more: the other end is gone, and nobody
    /// says so. Those that are opened in their place are sound.
    pub fn mute_watches(&self, is_meant: impl Fn(&ApiRequest) -> bool) {
        for (request, muted) in crate::lock(&self.shared.watches).iter() {
            if is_meant(request) {
                muted.send_replace(true);
            }
        }
    }

    /// From now on clients see the cluster as it is at this moment: open watches bring nothing, new watches and lists
    /// that fill a cache (in pages, or with `resourceVersion=0`) bring the old state. A restarted client sees the
    /// same. Gets, other lists and writes reach the API server as ever: they are quorum reads.
    ///
    /// # Errors
    /// When the API server does not say where it stands.
    pub async fn freeze(&self) -> Result<()> {
        let version = self.version().await?;
        self.shared.view.send_modify(|view| view.frozen_at = Some(version));
        Ok(())
    }

    /// The view goes on from where it stood: everything that happened meanwhile is told, in order.
    pub fn thaw(&self) {
        self.shared.view.send_modify(|view| view.frozen_at = None);
    }

    /// The view jumps to the present: what happened meanwhile is never told, for all watches break and can only be
    /// resumed by a new list (410).
    ///
    /// # Errors
    /// When the API server does not say where it stands.
    pub async fn thaw_to_present(&self) -> Result<()> {
        let horizon = self.version().await?.parse().context("a resource version")?;
        self.shared.view.send_modify(|view| {
            view.frozen_at = None;
            view.horizon = horizon;
            view.generation += 1;
        });
        Ok(())
    }

    /// The resource version of the whole store.
    async fn version(&self) -> Result<String> {
        let namespaces: Api<Namespace> = Api::all(Client::try_from(self.admin.clone())?);
        let list = namespaces.list_metadata(&ListParams::default()).await?;
        list.metadata
            .resource_version
            .context("a list without a resource version")
    }

    /// Now: what follows is given by [`Proxy::since`].
    pub fn mark(&self) -> Mark {
        Mark(self.shared.journal.len())
    }

    /// All requests so far.
    pub fn journal(&self) -> Vec<Record> {
        self.shared.journal.since(0)
    }

    /// The requests that arrived after `mark`.
    pub fn since(&self, mark: Mark) -> Vec<Record> {
        self.shared.journal.since(mark.0)
    }

    /// How many requests of which this is true have arrived.
    pub fn count(&self, is_counted: impl Fn(&Record) -> bool) -> usize {
        self.journal().iter().filter(|record| is_counted(record)).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Dropping a runtime inside another one is not allowed to block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, shared: Arc<Shared>) {
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            // Out of file descriptors, say: what is open goes on.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let _ = socket.set_nodelay(true);
        let (tls, shared) = (tls.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(socket).await else { return };
            let service = service_fn(move |request| serve::detached(Arc::clone(&shared), request));
            let server = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .to_owned();
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
