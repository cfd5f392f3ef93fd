//! How long each part of a drain may take: what the NodeDrain says, else the configuration.

use jiff::Timestamp;
use nodeward_api::node_drain::NodeDrain;
use nodeward_core::deadline::saturating_add;
use nodeward_core::duration::ConfigDuration;
use nodeward_core::ledger::Claim;

use crate::policy::Deadlines;

/// The limits of one drain, and what of them could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeLimits {
    /// The limits.
    pub limits: Deadlines,
    /// Fields that could not be read, with what is wrong; the configuration counts in their place.
    pub unreadable: Vec<String>,
}

impl TimeLimits {
    /// Of a drain.
    pub fn of(drain: Option<&NodeDrain>, defaults: Deadlines) -> Self {
        let mut unreadable = Vec::new();
        let mut read =
            |field: &str, given: Option<&String>, default| match given.map(|text| ConfigDuration::parse(text)) {
                None => default,
                Some(Ok(duration)) => duration.get(),
                Some(Err(error)) => {
                    unreadable.push(format!("deadlines.{field}: {error}"));
                    default
                }
            };
        let given = drain.map(|drain| &drain.spec.deadlines);
        let limits = Deadlines {
            queue: read("queue", given.and_then(|given| given.queue.as_ref()), defaults.queue),
            drain: read("drain", given.and_then(|given| given.drain.as_ref()), defaults.drain),
            recover: read(
                "recover",
                given.and_then(|given| given.recover.as_ref()),
                defaults.recover,
            ),
        };
        Self { limits, unreadable }
    }

    /// Until when a claim may wait.
    pub fn queue_until(&self, claim: &Claim) -> Timestamp {
        saturating_add(claim.queued_at, self.limits.queue)
    }

    /// Until when a granted claim may take to drain its node.
    pub fn drain_until(&self, claim: &Claim) -> Timestamp {
        saturating_add(claim.since, self.limits.drain)
    }

    /// Until when the node of a granted claim may take to be back with its pods. Both parts count from the grant, so that
    /// nothing but the ledger has to be read for it.
    pub fn recover_until(&self, claim: &Claim) -> Timestamp {
        let parts = if claim.state.has_grant() {
            self.limits.drain.saturating_add(self.limits.recover)
        } else {
            self.limits.recover
        };
        saturating_add(claim.since, parts)
    }
}
