//! A real Kubernetes control plane on this machine, with fleets, workloads and faults.
//!
//! Nothing is pulled from an image registry: etcd, the API server, the controller manager, the scheduler, kwok (which
//! plays the kubelets), helm and kubectl are built once from pinned Go modules ([`toolchain`]) and run as plain
//! processes on loopback ([`control_plane`]). Whatever ends the process that started them, a SIGKILL included, ends
//! them too ([`process`]).

/// Builders that add one entry to a map of `self.metadata`, the object's metadata as JSON.
macro_rules! metadata_builders {
    ($($(#[$doc:meta])* $name:ident => $field:literal),+ $(,)?) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, key: &str, value: &str) -> Self {
            self.metadata[$field][key] = serde_json::json!(value);
            self
        }
    )+};
}

pub mod audit;
pub mod binaries;
pub mod browser;
pub mod bulk;
pub mod ceph;
pub mod cluster;
pub mod control_plane;
pub mod debian;
pub mod documented;
pub mod drainers;
pub mod fault_injection;
pub mod fleet;
pub mod foreign;
pub mod helm;
mod http;
pub mod kubectl;
pub mod kubernetes;
pub mod kwok;
pub mod names;
pub mod operator;
pub mod pause;
mod pki;
pub mod ports;
pub mod process;
pub mod progress;
pub mod prometheus;
pub mod proxy;
pub mod real_nodes;
pub mod reboot;
pub mod remediator;
pub mod rook;
pub mod store;
pub mod toolchain;
pub mod wait;
pub mod webhook;
pub mod workload;

pub use cluster::Cluster;
pub use control_plane::{AuditScope, ControlPlane, Options, Pool, PooledControlPlane};

/// Locks, also after another holder has panicked.
pub fn lock<T>(shared: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Fine, too, when the object is gone: what is deleted just now cannot change, and somebody else may be faster.
///
/// # Errors
/// Any other.
pub fn unless_gone<T, E: Into<anyhow::Error>>(outcome: Result<T, E>) -> anyhow::Result<()> {
    unless_refused(outcome, &[404])
}

/// Fine, too, when the API server refuses with one of these status codes: 404 where the object may be gone, 409 where
/// another may have been faster.
///
/// # Errors
/// Any other.
pub fn unless_refused<T, E: Into<anyhow::Error>>(outcome: Result<T, E>, codes: &[u16]) -> anyhow::Result<()> {
    let Err(error) = outcome.map_err(Into::into) else {
        return Ok(());
    };
    let is_expected = |error: &kube::Error| matches!(error, kube::Error::Api(status) if codes.contains(&status.code));
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    if causes.any(is_expected) { Ok(()) } else { Err(error) }
}
