//! Certificates that change while they are served.

mod directory;
pub(crate) mod pair;

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use prometheus_client::metrics::gauge::Gauge;
use rustls::ServerConfig;
use tokio::sync::watch;

pub use directory::TlsDirectory;
pub use pair::PairError;

use crate::metrics::Metrics;
use pair::Pair;

/// The certificate that new connections get. Clones share it.
#[derive(Clone, Debug)]
pub struct Tls(watch::Receiver<Option<Arc<ServerConfig>>>);

impl Tls {
    /// What a new connection is served with; `None` while there is no certificate.
    pub fn config(&self) -> Option<Arc<ServerConfig>> {
        self.0.borrow().clone()
    }
}

/// Where the certificate of a server is changed.
pub(crate) struct Served {
    name: &'static str,
    config: watch::Sender<Option<Arc<ServerConfig>>>,
    expiry: Gauge<i64, AtomicI64>,
    rejected: Gauge<i64, AtomicI64>,
}

impl Served {
    /// A server without a certificate yet. `name` begins the names of its metrics.
    pub(crate) fn new(name: &'static str, metrics: &Metrics) -> Self {
        Self {
            name,
            config: watch::Sender::new(None),
            expiry: metrics.register(
                format!("{name}_certificate_expiry_timestamp_seconds"),
                "When the certificate that is served expires, as a Unix time; 0 while there is none",
            ),
            rejected: metrics.register(
                format!("{name}_certificate_rejected"),
                "1 while a newer certificate is there that cannot be used",
            ),
        }
    }

    pub(crate) fn tls(&self) -> Tls {
        Tls(self.config.subscribe())
    }

    pub(crate) fn has_certificate(&self) -> bool {
        self.config.borrow().is_some()
    }

    /// New connections get this one.
    pub(crate) fn put(&self, pair: &Pair) {
        tracing::info!(expires = %pair.validity.not_after, "{}: serving a new certificate", self.name);
        self.expiry.set(pair.validity.not_after.as_second());
        self.rejected.set(0);
        self.config.send_replace(Some(Arc::clone(&pair.config)));
    }

    /// The newest one is the one that is served already.
    pub(crate) fn unchanged(&self) {
        self.rejected.set(0);
    }

    /// The newest one cannot be used; what is served stays.
    pub(crate) fn reject(&self, error: &PairError) {
        if self.rejected.set(1) == 0 {
            let kept = if self.has_certificate() {
                "the last good one stays"
            } else {
                "nothing is served"
            };
            tracing::error!("{}: the certificate cannot be used, {kept}: {error}", self.name);
        }
    }
}
