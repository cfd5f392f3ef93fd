//! Leader election on a Lease, made safe.
//!
//! kube-leader-election 0.44 takes and renews a lease by a merge patch without a resourceVersion. Read from its source:
//! two candidates that both see an expired lease are both told `Acquired`; a leader that was paused renews, and is told
//! `Acquired` for, a lease that another one has taken meanwhile; expiry is judged by comparing the holder's clock with
//! ours; a lease without some field is an error for ever; releasing checks the holder in a request of its own. Hence:
//!
//! - A free lease is *claimed* by a patch with its resourceVersion; the library only creates (which is atomic), renews and
//!   releases.
//! - A lease is free only when it is absent, has no holder, is malformed, or has not moved for its whole duration on *our*
//!   monotonic clock (`leader::observation`): a wrong wall clock neither steals a lease nor leaves it orphaned.
//! - After every `Acquired` the returned lease must name us and show the transitions that we expect, and a term that is new
//!   to us is read once more before we lead.
//! - We lead until a local monotonic deadline, counted from *before* the request, that is shorter than the lease
//!   (`deadline`); a paused process finds it passed when it wakes. [`Leadership::is_leading_now`] asks it.
//! - A leader that finishes its passes says so in an annotation of the lease (`passes`), by a patch on the version that it has
//!   just renewed: one that was deposed meanwhile says nothing.
//! - On shutdown the lease is released, but only after all actions have ended, so that a successor meets no write of ours, and
//!   only while the deadline has not passed, so that another's is never released.
//!
//! None of this makes two leaders impossible (a write may still be on its way when a deadline passes), so no write may
//! rest on it: each carries a precondition or is idempotent.

mod deadline;
mod election;
mod observation;
mod passes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;

pub use election::{Election, ElectionTimes};
pub use observation::Observation;

use deadline::Deadline;
use passes::Passes;

/// Whether this process leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderState {
    /// Another process leads, or nobody.
    Following,
    /// This process leads.
    Leading {
        /// Since when, by the wall clock.
        since: Timestamp,
        /// For how long nobody had renewed the lease before. After an ordinary failover this is little more than the
        /// lease's duration; if it is longer, the API server was away, or all replicas were.
        unrenewed_for: Duration,
        /// For how long nobody had finished a pass before ([`Leadership::planned`]).
        leaderless_for: Duration,
    },
}

/// What an operator knows about its leadership. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership {
    state: watch::Receiver<LeaderState>,
    deadline: Arc<Deadline>,
    passes: Arc<Passes>,
}

impl Leadership {
    /// A leadership that never changes: for operators without election, and for tests.
    pub fn fixed(leading: bool) -> Self {
        let state = if leading {
            LeaderState::Leading {
                since: Timestamp::now(),
                unrenewed_for: Duration::ZERO,
                leaderless_for: Duration::ZERO,
            }
        } else {
            LeaderState::Following
        };
        let deadline = if leading { Deadline::never() } else { Deadline::passed() };
        Self {
            state: watch::channel(state).1,
            deadline: Arc::new(deadline),
            passes: Arc::new(Passes::new(false, Instant::now())),
        }
    }

    /// Leads until what is returned beside it is called.
    #[cfg(test)]
    pub(crate) fn revocable() -> (Self, impl FnOnce()) {
        let leadership = Self::fixed(true);
        let deadline = Arc::clone(&leadership.deadline);
        (leadership, move || deadline.expire())
    }

    /// A pass of this leader is finished: all that it rests on could be read, and all that the next one rests on is written.
    /// The lease says so to the other replicas, within [`ElectionTimes::mark_interval`] and a renewal.
    pub fn planned(&self) {
        if self.is_leading_now() {
            self.passes.finish(Instant::now());
        }
    }

    /// For how long nothing new was heard of a leader that plans, by this process's own clock: a leader that leads and cannot
    /// plan is none. Asked by those who serve without leading, and by the leader that serves; whoever cannot read the lease
    /// hears nothing. Only of an operator that says [`Leadership::planned`].
    pub fn leaderless_for(&self) -> Duration {
        self.passes.silent_for(Instant::now())
    }

    /// Whether we lead at this very moment, by the local deadline. Ask right before each write.
    pub fn is_leading_now(&self) -> bool {
        matches!(self.state(), LeaderState::Leading { .. }) && self.deadline.is_ahead()
    }

    /// The state as last announced. It may lag behind [`Leadership::is_leading_now`] by a moment.
    pub fn state(&self) -> LeaderState {
        *self.state.borrow()
    }

    /// Until when we lead unless the lease is renewed; `None` when we do not, or without end.
    pub fn until(&self) -> Option<Instant> {
        self.deadline.at()
    }

    /// To wait for changes. Renewals are not announced.
    pub fn subscribe(&self) -> watch::Receiver<LeaderState> {
        self.state.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::{LeaderState, Leadership};

    #[test]
    fn without_election_we_always_lead() {
        let leadership = Leadership::fixed(true);
        assert!(leadership.is_leading_now());
        assert!(matches!(leadership.state(), LeaderState::Leading { .. }));
        assert!(!Leadership::fixed(false).is_leading_now());
    }
}
