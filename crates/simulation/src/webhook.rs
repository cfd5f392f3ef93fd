//! A process of drain-lock, as far as every one of them answers reviews: its watches, and the real decision.

use std::sync::Arc;

use drain_lock::config::Config;
use drain_lock::observe::{ClusterCache, Objects};
use drain_lock::policy::Policy;
use drain_lock::webhook::context_lookup::{CORDON_SHOWS_WITHIN, ContextLookup};
use drain_lock::webhook::decide::{Caller, Decision, Drainer, EvictionRequest};
use drain_lock::webhook::recent_admissions::RecentAdmissions;
use drain_lock::webhook::refusals::Refusals;
use drain_lock::webhook::review::{EvictionReview, User};
use drain_lock::webhook::{eviction_sign, judge};
use nodeward_api::reason::LockReason;
use nodeward_core::drain_request::EvictionSign;
use nodeward_core::id::PodKey;
use parking_lot::Mutex;

use crate::api::Eviction;
use crate::clock::{Millis, instant, timestamp};
use crate::pod::NAMESPACE;

/// What the names of users begin with who drain nodes.
pub const DRAINER: &str = "drainer-";

/// Who drain-lock is to the API server.
pub const OWN_USER: &str = "system:serviceaccount:nodeward-system:drain-lock";

/// A process of drain-lock.
pub struct Replica {
    pub cache: Arc<ClusterCache>,
    pub policy: Policy,
    lookup: ContextLookup,
    recent_admissions: Mutex<RecentAdmissions>,
    refusals: Mutex<Refusals>,
}

/// What the webhook says.
pub enum Answer {
    /// It waits for its watches first.
    Later(Millis),
    Decided {
        refused: Option<LockReason>,
        requests_drain: bool,
        eviction: EvictionSign,
    },
}

impl Replica {
    /// Whose watches show this.
    pub fn new(objects: &Objects, policy: &Policy) -> Self {
        let cache = ClusterCache::fixed(objects);
        Self {
            lookup: ContextLookup::new(Arc::clone(&cache)),
            cache,
            policy: policy.clone(),
            recent_admissions: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// Another process in its place: only what the watches show is known to it.
    pub fn restart(&mut self) {
        self.lookup = ContextLookup::new(Arc::clone(&self.cache));
        self.recent_admissions = Mutex::default();
        self.refusals = Mutex::default();
    }

    /// Judges an eviction.
    pub fn review(&self, user: &str, eviction: &Eviction, now: Millis) -> Answer {
        let pod = PodKey::new(NAMESPACE, eviction.pod.as_str());
        let review = EvictionReview {
            uid: String::new(),
            user: named(user),
            pod: pod.clone(),
            pod_uid: eviction.uid.as_deref().map(Into::into),
            dry_run: false,
            ticket: eviction.ticket.clone(),
            unknown_fields: 0,
        };
        let (policy, at, moment) = (&self.policy, timestamp(now), instant(now));
        if review.ticket.is_none() {
            let is_anothers = user != OWN_USER && !eviction.has_waited;
            if is_anothers && self.lookup.depends_on_cordon(&review, policy, at, moment) {
                return Answer::Later(Millis::try_from(CORDON_SHOWS_WITHIN.as_millis()).unwrap_or_default());
            }
            self.lookup.classify_pods_now(&review, policy, at, moment);
        }
        let request = EvictionRequest {
            caller: if user == OWN_USER {
                Caller::Ourselves
            } else {
                Caller::Another(drainer(user))
            },
            dry_run: false,
            leaderless: false,
            paused: false,
            ticket: review.ticket.as_deref(),
            pod: &pod,
        };
        let found = self.lookup.look_up(&review, policy, at, moment);
        let view = self.lookup.ledger_view(at, moment);
        let (found, verdict) = judge(&request, found, &view, &self.recent_admissions, moment);
        let context = found.context().filter(|_| verdict.requests_drain);
        let eviction = context.map_or(EvictionSign::Seen, |context| {
            eviction_sign(&self.refusals, context, &verdict)
        });
        Answer::Decided {
            refused: match verdict.decision {
                Decision::Admit(_) => None,
                Decision::Refuse(refused) => Some(refused.reason),
            },
            requests_drain: verdict.requests_drain && drainer(user) == Drainer::Yes,
            eviction,
        }
    }
}

/// The user of this name.
pub fn named(user: &str) -> User {
    User {
        name: user.to_owned(),
        ..User::default()
    }
}

/// Whether the user may change nodes: whoever drains them may, a tenant may not.
fn drainer(user: &str) -> Drainer {
    if user.starts_with(DRAINER) {
        Drainer::Yes
    } else {
        Drainer::No
    }
}

/// As drain-lock is configured by this file.
///
/// # Errors
/// When the file is not one.
pub fn policy(config: &str) -> anyhow::Result<Policy> {
    let config: Config = serde_json::from_str(config)?;
    let mut policy = Policy::from_config(config)?;
    // Its leases are none of what is simulated.
    policy.medik8s_leases = None;
    Ok(policy)
}
