//! The configuration, compiled: nothing in it can be invalid.

use std::sync::Arc;

use jiff::SignedDuration;
use nodeward_core::signal::UpgradeSignal;

/// The rules that plans follow.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// What stops remediations during an upgrade.
    pub upgrade: Upgrade,
    /// Namespace of the leases of nodes and of the control plane.
    pub lease_namespace: Arc<str>,
    /// For so long after we or the API server were away nothing is started.
    pub settle: SignedDuration,
    /// Everything is decided anew at least this often, from the caches.
    pub safety_pass: SignedDuration,
    /// A remediation that is older than this is flagged.
    pub old_remediation: SignedDuration,
}

/// What stops remediations during an upgrade.
#[derive(Debug, Clone, PartialEq)]
pub enum Upgrade {
    /// On OpenShift, ClusterVersion and the node's MachineConfig; nothing elsewhere.
    OpenShift,
    /// This signal.
    Signal(Box<UpgradeSignal>),
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            upgrade: Upgrade::OpenShift,
            lease_namespace: "medik8s-leases".into(),
            settle: SignedDuration::from_secs(60),
            safety_pass: SignedDuration::from_secs(60),
            old_remediation: SignedDuration::from_hours(48),
        }
    }
}
