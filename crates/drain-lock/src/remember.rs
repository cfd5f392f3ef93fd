//! What this process remembers between two plans, kept up from what actions came to. No I/O. Losing it costs time, never
//! safety: what safety rests on is read from the API.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nodeward_core::deadline::later;
use nodeward_core::id::{NodeUid, PodUid};
use nodeward_core::ledger::Obstacle;
use nodeward_runtime::{BackoffPolicy, Backoffs, Refusal};

use crate::execute::{Done, Eviction, Key, Outcome};

/// How long a watch is waited for to show what was done, before it is done again.
const UNTIL_SEEN: SignedDuration = SignedDuration::from_secs(10);

/// How long an eviction may be under way: one request with its own time limit.
const UNDER_WAY: SignedDuration = SignedDuration::from_mins(2);

/// How long a dry run keeps quiet about what it has said.
const DRY_RUN_SILENCE: SignedDuration = SignedDuration::from_mins(10);

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

/// The part of the memory that plans read.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    evictions: BTreeMap<PodUid, Attempt>,
    refused_grants: BTreeMap<NodeUid, RefusedGrant>,
    /// The namespace of the node leases is not there: nobody uses them.
    pub leases_absent_until: Option<Timestamp>,
}

/// The last attempt at a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Attempt {
    /// Whether the server has accepted it, or may have.
    may_have_gone: bool,
    /// Not again before then.
    not_before: Timestamp,
}

/// A grant that fresh reads refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedGrant {
    /// Why.
    pub obstacles: Vec<Obstacle>,
    /// Not again before then.
    pub not_before: Timestamp,
}

impl Memory {
    /// Pods whose eviction was asked for, and perhaps accepted.
    pub fn asked_to_go(&self, now: Timestamp) -> impl Iterator<Item = &PodUid> {
        self.evictions
            .iter()
            .filter(move |(_, attempt)| attempt.may_have_gone && now < attempt.not_before)
            .map(|(uid, _)| uid)
    }

    /// Whether this pod's eviction was asked for, and perhaps accepted.
    pub fn is_asked_to_go(&self, pod: &str, now: Timestamp) -> bool {
        self.evictions
            .get(pod)
            .is_some_and(|attempt| attempt.may_have_gone && now < attempt.not_before)
    }

    /// Until when the pod is left alone after its last attempt.
    pub fn not_before(&self, pod: &PodUid, now: Timestamp) -> Option<Timestamp> {
        self.evictions
            .get(pod)
            .map(|attempt| attempt.not_before)
            .filter(|until| now < *until)
    }

    /// When the next pod is no longer left alone: no watch tells of that.
    pub fn next_attempt(&self, now: Timestamp) -> Option<Timestamp> {
        let attempts = self.evictions.values().map(|attempt| attempt.not_before);
        attempts.filter(|until| now < *until).min()
    }

    /// The grant that fresh reads refused, while it is not tried again.
    pub fn refused_grant(&self, node: &str, now: Timestamp) -> Option<&RefusedGrant> {
        self.refused_grants.get(node).filter(|refused| now < refused.not_before)
    }

    /// Notes an eviction: the next plan leaves the pod alone, and its budget's unit.
    pub fn note_eviction(&mut self, pod: PodUid, may_have_gone: bool, not_before: Timestamp) {
        self.evictions.insert(
            pod,
            Attempt {
                may_have_gone,
                not_before,
            },
        );
    }

    /// Notes a refused grant.
    pub fn note_refused_grant(&mut self, node: NodeUid, obstacles: Vec<Obstacle>, not_before: Timestamp) {
        self.refused_grants.insert(node, RefusedGrant { obstacles, not_before });
    }
}

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
        self.memory.evictions.retain(|_, attempt| now < attempt.not_before);
        self.memory.refused_grants.retain(|_, refused| now < refused.not_before);
        if self.memory.leases_absent_until.is_some_and(|until| until <= now) {
            self.memory.leases_absent_until = None;
        }
        &self.memory
    }

    /// Until when nothing is done about this; `None`: now.
    pub fn not_before(&self, key: &Key, now: Timestamp) -> Option<Timestamp> {
        let backoff = self.actions.not_before(key);
        let quiet = self.quiet.get(key).copied();
        backoff.into_iter().chain(quiet).filter(|until| now < *until).max()
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
            self.memory.refused_grants.remove(node);
        }
        if outcome.leases_absent {
            self.memory.leases_absent_until = Some(later(now, DRY_RUN_SILENCE));
        }
        match &outcome.done {
            Done::Acted | Done::Nothing => self.actions.succeeded(key),
            Done::NotLeading | Done::DryRun => {}
            Done::Outdated(_) => {
                self.actions.failed(key.clone(), now, None);
            }
            Done::Failed(refusal) => {
                let until = self.actions.failed(key.clone(), now, refusal.retry_after());
                if *refusal != Refusal::Conflict || self.actions.attempts(key) > 3 {
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
                (refusal.leaves_outcome_unknown(), until)
            }
        };
        self.memory.note_eviction(pod.clone(), may_have_gone, not_before);
    }
}
