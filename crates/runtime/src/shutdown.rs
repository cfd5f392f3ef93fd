//! When to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The signals that ask a process to stop: the kubelet sends SIGTERM, a terminal SIGINT.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Registers the handlers; from here on neither signal kills the process by itself.
    pub fn register() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Cancels `shutdown` at the first signal; at the second the process ends at once, work in flight or not.
    pub async fn cancel(mut self, shutdown: CancellationToken) {
        let name = self.next().await;
        tracing::info!("{name}: finishing what is in flight; a second signal ends at once");
        shutdown.cancel();
        let name = self.next().await;
        tracing::warn!("{name} again: ending at once");
        exit_at_once(1);
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Ends the process as it stands: no destructor and no exit handler runs.
pub(crate) fn exit_at_once(code: i32) -> ! {
    signal_hook::low_level::exit(code)
}
