//! What must be there before decisions can be trusted.

use std::sync::Arc;

use crate::cache::{KindState, WatchHandle};
use parking_lot::RwLock;

type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The gates behind `/readyz`. A standby is ready too: leadership is no gate.
#[derive(Clone, Default)]
pub struct Readiness(Arc<RwLock<Vec<Gate>>>);

struct Gate {
    name: String,
    check: Check,
}

/// A gate that is still closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    pub gate: String,
    /// Why it is closed.
    pub reason: String,
}

impl Readiness {
    /// No gates: ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a gate. The check is run for every probe, so it must be cheap and must not block.
    pub fn require(&self, name: impl Into<String>, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        let gate = Gate {
            name: name.into(),
            check: Box::new(check),
        };
        self.0.write().push(gate);
    }

    /// Adds a gate that opens when the content of a cache, or of another index, has been complete once: what is absent
    /// from a cache that has not synced is not absent from the cluster.
    pub fn require_watch(&self, watch: &WatchHandle) {
        let status = watch.status_view();
        self.require(format!("{} cache", watch.name()), move || {
            if status.is_synced() {
                return Ok(());
            }
            Err(match status.state() {
                KindState::Forbidden(message) => format!("forbidden: {message}"),
                _ => "not synced".to_owned(),
            })
        });
    }

    /// The gates that are closed now.
    pub fn closed_gates(&self) -> Vec<NotReady> {
        let gates = self.0.read();
        gates
            .iter()
            .filter_map(|gate| {
                (gate.check)().err().map(|reason| NotReady {
                    gate: gate.name.clone(),
                    reason,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{NotReady, Readiness};

    #[test]
    fn each_closed_gate_is_named_until_it_opens() {
        let readiness = Readiness::new();
        let synced = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&synced);
        readiness.require("nodes cache", move || {
            if seen.load(Ordering::SeqCst) {
                Ok(())
            } else {
                Err("not synced".to_owned())
            }
        });
        readiness.require("config", || Ok(()));
        let closed = NotReady {
            gate: "nodes cache".to_owned(),
            reason: "not synced".to_owned(),
        };
        assert_eq!(readiness.closed_gates(), [closed]);
        synced.store(true, Ordering::SeqCst);
        assert_eq!(readiness.closed_gates(), []);
    }
}
