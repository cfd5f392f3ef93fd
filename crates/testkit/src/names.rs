//! Names of one's own in a shared control plane.

use std::sync::atomic::{AtomicU32, Ordering};

/// `PREFIX-` and a part that nothing else in this process has, nor likely any other process on the same cluster.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "{prefix}-{:04x}{:02x}",
        fastrand::u16(..),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}
