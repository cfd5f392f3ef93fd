//! The one bell that wakes an operator's loop.

use std::sync::Arc;

use tokio::sync::Notify;

/// Rung by caches, config and leadership when something really changed; waited on by one loop.
///
/// Rings while the loop is busy collapse into one that is kept, so none is lost and none is repeated.
#[derive(Clone, Debug, Default)]
pub struct ReconcileTrigger(Arc<Notify>);

impl ReconcileTrigger {
    /// A bell of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rings. Never blocks.
    pub fn notify(&self) {
        self.0.notify_one();
    }

    /// Returns at the next ring, or at once if it rang since the last return. Safe to drop and call again.
    pub async fn notified(&self) {
        self.0.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::ReconcileTrigger;

    #[tokio::test]
    async fn a_ring_while_nobody_waits_is_kept_and_many_collapse_into_one() {
        let trigger = ReconcileTrigger::new();
        trigger.notify();
        trigger.clone().notify();
        assert!(trigger.notified().now_or_never().is_some());
        assert!(trigger.notified().now_or_never().is_none());
    }
}
