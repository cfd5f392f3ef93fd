//! What this process remembers between two plans, kept up from what actions came to. No I/O. Losing it costs time, never
//! safety: what safety rests on is read from the API.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::later;
use nodeward_core::id::{BudgetKey, NodeUid, PodUid};
use nodeward_runtime::{ApiError, BackoffPolicy, Backoffs};

use crate::execute::{Done, Eviction, Key, Outcome};
use crate::snapshot::{Memory, PodFacts, Reserved};

/// How long a watch is waited for to show what was done, before it is done again.
const UNTIL_SEEN: SignedDuration = SignedDuration::from_secs(10);

/// How long an eviction may be under way: one request with its own time limit.
const UNDER_WAY: SignedDuration = SignedDuration::from_mins(2);

/// How long a dry run keeps quiet about what it has said.
const DRY_RUN_SILENCE: SignedDuration = SignedDuration::from_mins(10);

/// How long a namespace of node leases that is not there is not looked for again.
const NO_LEASES_FOR: SignedDuration = SignedDuration::from_mins(10);

/// A failure that was not repeated for so long is forgotten: what it was about is gone, or fine.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// Delay after a first failure, and at most.
const BACKOFF: BackoffPolicy = BackoffPolicy {
    first: SignedDuration::from_millis(500),
    limit: SignedDuration::from_secs(30),
};

/// Delay after a grant that fresh reads refused, and at most: a watch tells of most changes before.
const GRANT_BACKOFF: BackoffPolicy = BackoffPolicy {
    first: SignedDuration::from_millis(200),
    limit: SignedDuration::from_secs(5),
};

/// How long after a movable pod was last seen its replacement is awaited.
const REPLACED_WITHIN: SignedDuration = SignedDuration::from_secs(3);

/// The memory, and what it is kept up with.
pub struct Remember {
    memory: Memory,
    pods: Backoffs<PodUid>,
    grants: Backoffs<NodeUid>,
    actions: Backoffs<Key>,
    quiet: BTreeMap<Key, Timestamp>,
    dry_run: bool,
}

impl Remember {
    /// Nothing remembered.
    pub fn nothing(dry_run: bool) -> Self {
        Self {
            memory: Memory::default(),
            pods: Backoffs::new(BACKOFF),
            grants: Backoffs::new(GRANT_BACKOFF),
            actions: Backoffs::new(BACKOFF),
            quiet: BTreeMap::new(),
            dry_run,
        }
    }

    /// The memory as the next plan needs it; what has passed is forgotten.
    pub fn at(&mut self, now: Timestamp) -> &Memory {
        self.quiet.retain(|_, until| now < *until);
        let idle = later(now, -FORGOTTEN_AFTER);
        self.pods.forget_idle_since(idle);
        self.grants.forget_idle_since(idle);
        self.actions.forget_idle_since(idle);
        self.memory.forget_past(now);
        &self.memory
    }

    /// Until when nothing is done about this; `None`: now.
    pub fn not_before(&self, key: &Key, now: Timestamp) -> Option<Timestamp> {
        let backoff = self.actions.not_before(key);
        let quiet = self.quiet.get(key).copied();
        backoff.into_iter().chain(quiet).filter(|until| now < *until).max()
    }

    /// Movable pods are on their way out.
    pub fn departing(&mut self, pods: Vec<Arc<PodFacts>>, now: Timestamp) {
        self.memory.note_departing(pods, later(now, REPLACED_WITHIN));
    }

    /// The reservations that stand in budgets' statuses.
    pub fn reserved(&mut self, reserved: Reserved) {
        self.memory.reserved = reserved;
    }

    /// Budgets in whose statuses pods are reserved: the next snapshot has to contain them.
    pub fn reserved_budgets(&self) -> impl Iterator<Item = &BudgetKey> {
        self.memory.reserved.keys()
    }

    /// Something is on its way.
    pub fn started(&mut self, key: &Key, evictions: &[PodUid], now: Timestamp) {
        for pod in evictions {
            self.memory.note_eviction(pod.clone(), true, later(now, UNDER_WAY));
        }
        if self.dry_run {
            self.quiet.insert(key.clone(), later(now, DRY_RUN_SILENCE));
        }
    }

    /// Something has come to its end.
    pub fn completed(&mut self, key: &Key, outcome: &Outcome, now: Timestamp) {
        for Eviction { pod, done, .. } in &outcome.evictions {
            self.evicted(&pod.uid, done, now);
        }
        for (node, obstacles) in &outcome.refused_grants {
            let not_before = self.grants.failed(node.clone(), now, None);
            self.memory
                .note_refused_grant(node.clone(), obstacles.clone(), not_before);
        }
        for node in &outcome.granted {
            self.grants.succeeded(node);
            self.memory.note_grant(node);
        }
        if outcome.leases_absent {
            self.memory.leases_absent_until = Some(later(now, NO_LEASES_FOR));
        }
        match &outcome.done {
            Done::Acted | Done::Nothing => self.actions.succeeded(key),
            Done::NotLeading | Done::DryRun => {}
            Done::Outdated(_) => {
                self.actions.failed(key.clone(), now, None);
            }
            Done::Failed(refusal) => {
                let until = self.actions.failed(key.clone(), now, refusal.retry_after());
                if *refusal != ApiError::Conflict || self.actions.attempts(key) > 3 {
                    tracing::warn!(action = %key, %refusal, retry_at = %until, "not done");
                }
            }
        }
    }

    fn evicted(&mut self, pod: &PodUid, done: &Done, now: Timestamp) {
        let (may_have_gone, not_before) = match done {
            Done::Acted | Done::Nothing => {
                self.pods.succeeded(pod);
                (true, later(now, UNTIL_SEEN))
            }
            Done::DryRun => (false, later(now, DRY_RUN_SILENCE)),
            Done::NotLeading => (false, now),
            Done::Outdated(_) => (false, self.pods.failed(pod.clone(), now, None)),
            Done::Failed(refusal) => {
                let until = self.pods.failed(pod.clone(), now, refusal.retry_after());
                (refusal.is_ambiguous(), until)
            }
        };
        self.memory.note_eviction(pod.clone(), may_have_gone, not_before);
    }
}
