//! A hook before and after each write.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::request::ApiRequest;

/// Where a write stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has arrived, and the API server does not know of it.
    Before,
    /// It is carried out, or refused, with this HTTP status; the client does not know of it.
    After(u16),
}

#[derive(Clone, Debug)]
pub struct Write {
    /// Counted from 1 since the gate was set. Both stages of one write have one number.
    pub number: u64,
    /// Before or after it.
    pub stage: Stage,
    /// What is asked.
    pub request: ApiRequest,
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Pass,
    /// The connection breaks: before it, the write never happens; after it, the client never learns of it.
    Cut,
}

/// Called for every write that the gate counts; the write waits for it.
pub type Hook = Arc<dyn Fn(Write) -> BoxFuture<'static, Verdict> + Send + Sync>;

/// A hook and the writes that it counts.
#[derive(Clone)]
pub struct Gate {
    pub(super) hook: Hook,
    pub(super) counts: Arc<dyn Fn(&ApiRequest) -> bool + Send + Sync>,
}

impl Gate {
    /// A gate for all writes but those of Leases and Events.
    pub fn new(hook: impl Fn(Write) -> BoxFuture<'static, Verdict> + Send + Sync + 'static) -> Self {
        Self {
            hook: Arc::new(hook),
            counts: Arc::new(|request| !request.is_housekeeping()),
        }
    }

    /// Counts, and stops at, the writes of which this is true.
    #[must_use]
    pub fn counting(mut self, counts: impl Fn(&ApiRequest) -> bool + Send + Sync + 'static) -> Self {
        self.counts = Arc::new(counts);
        self
    }
}
