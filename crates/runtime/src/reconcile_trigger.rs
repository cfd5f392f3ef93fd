//! What starts the next pass of an operator's loop.

use std::sync::Arc;

use tokio::sync::Notify;

/// Notified by caches, the configuration and leadership when something relevant changed; one loop waits on it.
///
/// Notifications while the loop is busy collapse into one that is kept, so none is lost and none is repeated.
#[derive(Clone, Debug, Default)]
pub struct ReconcileTrigger(Arc<Notify>);

impl ReconcileTrigger {
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests a pass. Never blocks.
    pub fn notify(&self) {
        self.0.notify_one();
    }

    /// Returns at the next notification, or at once if there was one since the last return. Safe to drop and call again.
    pub async fn notified(&self) {
        self.0.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::ReconcileTrigger;

    #[tokio::test]
    async fn notifications_while_nobody_waits_collapse_into_one() {
        let trigger = ReconcileTrigger::new();
        trigger.notify();
        trigger.clone().notify();
        assert!(trigger.notified().now_or_never().is_some());
        assert!(trigger.notified().now_or_never().is_none());
    }
}
