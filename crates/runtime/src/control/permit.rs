//! The gate that every write passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::REQUESTS_AT_ONCE;
use crate::leader::Leadership;
use crate::pause::{Pause, PauseState};

use super::Lane;

/// Requests of [`Lane::Status`] at once.
pub(crate) const STATUS_REQUESTS_AT_ONCE: usize = 4;

/// What all actions of a process are permitted by.
pub(super) struct Gate {
    leadership: Leadership,
    pause: Pause,
    dry_run: bool,
    /// Whether the policy in force has this process write as little as a dry run.
    audits: AtomicBool,
    /// Counts the policies that were in force; an action is stopped by one that came after its plan.
    policy: AtomicU64,
    api: Arc<Semaphore>,
    status: Arc<Semaphore>,
}

/// Why a write is not permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// Only leaders write.
    #[error("another replica leads")]
    NotLeading,
    /// The plan followed a policy that is no longer in force.
    #[error("another configuration is in force now")]
    PolicyChanged,
    /// The newest plan has no action of this key ([`Action::stops_when_unplanned`](super::Action::stops_when_unplanned)).
    #[error("the newest plan leaves it out")]
    Unplanned,
    /// A person has stopped all writes.
    #[error("paused")]
    Paused,
    /// A person may have: nothing is written until that can be read.
    #[error("it cannot be read whether it is paused (ConfigMap nodeward-pause)")]
    PauseUnknown,
    /// A dry run writes nothing, and neither does an operator that only audits.
    #[error("dry run")]
    DryRun,
}

/// Permits the writes of one action, one at a time.
pub struct Permits {
    gate: Arc<Gate>,
    lane: Lane,
    policy: u64,
    is_unplanned: Arc<AtomicBool>,
    /// The slot that the action was begun with: its first write needs no other.
    first: Mutex<Option<OwnedSemaphorePermit>>,
}

/// Permits one write, and is held until its answer is there. An action drops it before it asks for the next one; or it
/// keeps it for the reads that a write rests on, so that none of them is as old as the wait for a slot, and then asks
/// [`Permits::check`] right before each write.
#[must_use = "the permit is held while the request is under way"]
#[derive(Debug)]
pub struct Permit {
    /// `None` where the process ends, and with it the semaphore.
    _slot: Option<OwnedSemaphorePermit>,
}

impl Gate {
    pub(super) fn new(leadership: Leadership, pause: Pause, dry_run: bool) -> Arc<Self> {
        Arc::new(Self {
            leadership,
            pause,
            dry_run,
            audits: AtomicBool::new(false),
            policy: AtomicU64::new(0),
            api: Arc::new(Semaphore::new(REQUESTS_AT_ONCE)),
            status: Arc::new(Semaphore::new(STATUS_REQUESTS_AT_ONCE)),
        })
    }

    pub(super) fn policy_changed(&self, audits: bool) {
        self.audits.store(audits, Ordering::Release);
        self.policy.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn policy(&self) -> u64 {
        self.policy.load(Ordering::Acquire)
    }

    /// In the order in which they were asked for: of many actions each gets its first write before any gets its second.
    pub(super) async fn slot(&self, lane: Lane) -> Option<OwnedSemaphorePermit> {
        let slots = match lane {
            Lane::Api => &self.api,
            Lane::Status => &self.status,
        };
        Arc::clone(slots).acquire_owned().await.ok()
    }
}

impl Permits {
    pub(super) fn new(
        gate: Arc<Gate>,
        lane: Lane,
        policy: u64,
        is_unplanned: Arc<AtomicBool>,
        first: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self {
            gate,
            lane,
            policy,
            is_unplanned,
            first: Mutex::new(first),
        }
    }

    /// Permits everything, for tests of one action.
    pub fn unrestricted() -> Self {
        Self::under(Pause::fixed(PauseState::Running))
    }

    /// Permits what this pause does, for tests of one action.
    pub fn under(pause: Pause) -> Self {
        let gate = Gate::new(Leadership::fixed(true), pause, false);
        let policy = gate.policy();
        Self::new(gate, Lane::Api, policy, Arc::default(), None)
    }

    /// Waits for a slot, and then asks whether this process still leads, is not paused, goes by the policy of the plan, and still plans it.
    ///
    /// # Errors
    /// When the write is not to be sent.
    pub async fn next_write(&self) -> Result<Permit, Stop> {
        let first = self.first.lock().take();
        let slot = match first {
            Some(slot) => Some(slot),
            None => self.gate.slot(self.lane).await,
        };
        // After the wait, which may have been long.
        self.check()?;
        Ok(Permit { _slot: slot })
    }

    /// The same for an act: a write that forces, evicts, remediates, lets a node reboot, or opens what protects others. Under
    /// its permit the API server is asked whether a person has paused the operator, for the watch of that may be cut off.
    ///
    /// # Errors
    /// When the act is not to be sent.
    pub async fn next_act(&self) -> Result<Permit, Stop> {
        let permit = self.next_write().await?;
        self.check_act().await?;
        Ok(permit)
    }

    /// Reads ahead of a write in a slot of its own, which it gives back: of many actions that are due at once each sends its
    /// first request before any writes, and one that has nothing left to do ends without waiting for its permit. The wait
    /// for that may be long, so whatever a forcing write rests on is read again under it.
    ///
    /// # Errors
    /// When a write would not be permitted.
    pub async fn read_ahead<T>(&self, read: impl Future<Output = T>) -> Result<T, Stop> {
        let _permit = self.next_write().await?;
        Ok(read.await)
    }

    /// Whether a write would be permitted now: asked before reads that only serve a write, and before each further write
    /// under one [`Permit`].
    ///
    /// # Errors
    /// When it would not.
    pub fn check(&self) -> Result<(), Stop> {
        if self.gate.dry_run || self.gate.audits.load(Ordering::Acquire) {
            return Err(Stop::DryRun);
        }
        if !self.gate.leadership.is_leading_now() {
            return Err(Stop::NotLeading);
        }
        stopped_by(&self.gate.pause.state())?;
        if self.gate.policy() != self.policy {
            return Err(Stop::PolicyChanged);
        }
        if self.is_unplanned.load(Ordering::Acquire) {
            return Err(Stop::Unplanned);
        }
        Ok(())
    }

    /// Whether an act would be permitted now, also by the API server's word on the pause: asked right before each act under a
    /// permit of [`Permits::next_write`]. Acts of one second share one request.
    ///
    /// # Errors
    /// When it would not.
    pub async fn check_act(&self) -> Result<(), Stop> {
        self.check()?;
        stopped_by(&self.gate.pause.confirm().await)?;
        // After the read, which may have been long.
        self.check()
    }
}

fn stopped_by(pause: &PauseState) -> Result<(), Stop> {
    match pause {
        PauseState::Running => Ok(()),
        PauseState::Paused(_) => Err(Stop::Paused),
        PauseState::Unknown(_) => Err(Stop::PauseUnknown),
    }
}

#[cfg(test)]
mod tests;
