//! Consent to what the evictions of a drain destroy, as `kubectl drain` asks for it: pods that nothing makes again, and data in
//! emptyDir volumes.

use nodeward_api::node_drain::{Consent, Evictor, NodeDrainSpec};
use nodeward_api::reason::LockReason;

/// What somebody has consented to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Consents {
    /// Pods that no controller makes again.
    pub unmanaged_pods: Consent,
    /// Pods with emptyDir volumes.
    pub empty_dir_data: Consent,
}

impl Consents {
    /// To everything.
    pub const ALL: Self = Self {
        unmanaged_pods: Consent::Evict,
        empty_dir_data: Consent::Evict,
    };

    /// Those of a drain's requesters. Who evicts by himself consents by that.
    pub fn of(spec: &NodeDrainSpec) -> Self {
        match spec.evict {
            Evictor::Requester => Self::ALL,
            Evictor::Nodeward => Self {
                unmanaged_pods: spec.unmanaged_pods,
                empty_dir_data: spec.empty_dir_data,
            },
        }
    }

    /// Why a pod is kept; nothing: it may be evicted.
    pub fn lacking(self, is_unmanaged: bool, has_empty_dir: bool) -> impl Iterator<Item = LockReason> {
        let unmanaged = is_unmanaged && self.unmanaged_pods == Consent::Keep;
        let empty_dir = has_empty_dir && self.empty_dir_data == Consent::Keep;
        let unmanaged = unmanaged.then_some(LockReason::UnmanagedPodKept);
        unmanaged
            .into_iter()
            .chain(empty_dir.then_some(LockReason::EmptyDirDataKept))
    }
}
