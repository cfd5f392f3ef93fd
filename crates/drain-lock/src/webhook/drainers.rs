//! Whose evictions are a drain: of users who may change nodes, as whoever drains one has to. A tenant, the descheduler and the
//! vertical pod autoscaler may evict, and no more.
//!
//! The API server says so (`SubjectAccessReview`), once for a while, and only where a drain would be asked for. No answer to
//! an eviction depends on that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use nodeward_runtime::{ApiError, ConfigHandle};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::policy::Auto;
use crate::settings::Settings;

use super::decide::Drainer;
use super::identity::OwnUser;
use super::metrics::WebhookMetrics;
use super::review::User;

/// How long the API server's word on a user counts.
const KEPT: Duration = Duration::from_mins(10);

/// How long it counts that it gives drain-lock no word: the right may be granted meanwhile.
const REFUSAL_KEPT: Duration = Duration::from_mins(1);

/// How long a user's evictions wait for it.
const AWAITED: Duration = Duration::from_secs(30);

/// How long one review may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Users who are reviewed at once: a server that says nothing must not take all of the operator's requests.
const AT_ONCE: usize = 4;

/// Users that are remembered; beyond that all are forgotten, which costs a review each.
const REMEMBERED: usize = 4096;

/// Either of them makes a drainer: the Machine Config Operator, kured and EKS may only patch nodes, the cluster autoscaler may
/// only update them.
const VERBS: [&str; 2] = ["patch", "update"];

/// The components, whose ServiceAccounts the chart names after them.
const COMPONENTS: [&str; 4] = ["drain-lock", "drain-keeper", "health-check", "ceph-pdb"];

/// Tells drainers from others.
pub struct Drainers {
    config: ConfigHandle<Settings>,
    own_user: OwnUser,
    reviewed: ReviewedUsers,
    metrics: WebhookMetrics,
}

impl Drainers {
    pub fn new(config: ConfigHandle<Settings>, own_user: OwnUser, metrics: WebhookMetrics) -> Self {
        Self {
            config,
            own_user,
            reviewed: ReviewedUsers::default(),
            metrics,
        }
    }

    /// What is known of the user now.
    pub fn look_up(&self, user: &User, now: Instant) -> Drainer {
        let policy = Arc::clone(&self.config.current().policy);
        let by_name = by_name(&user.name, &policy.auto, self.own_user.get());
        by_name.unwrap_or_else(|| self.reviewed.look_up(user, now))
    }

    /// Notes that an eviction of the user waits for the API server's word from now on, if it does not wait already.
    pub fn await_review(&self, user: &User, now: Instant) {
        if self.look_up(user, now) == Drainer::Unanswered {
            self.reviewed.begin(user, now);
        }
    }

    /// The same as [`Self::look_up`], once the API server has been asked, unless the answer is known.
    pub async fn review(&self, client: &Client, user: &User) -> Drainer {
        let policy = Arc::clone(&self.config.current().policy);
        if let Some(known) = by_name(&user.name, &policy.auto, self.own_user.get()) {
            return known;
        }
        let asked = self.reviewed.review(client, user).await;
        if let Some(outcome) = asked {
            self.metrics.drainer_reviewed(outcome);
        }
        self.reviewed.look_up(user, Instant::now())
    }
}

/// What the user's name says: one of our own operators is never a drainer, whatever it may do.
fn by_name(name: &str, auto: &Auto, own_user: Option<&str>) -> Option<Drainer> {
    if own_user.is_some_and(|own| is_ours(name, own)) || auto.never_drainers.contains(name) {
        return Some(Drainer::No);
    }
    auto.also_drainers.contains(name).then_some(Drainer::Yes)
}

/// Whether this is drain-lock's own user, or that of another component of the same release.
fn is_ours(name: &str, own: &str) -> bool {
    let siblings = own.strip_suffix(COMPONENTS[0]);
    let component = siblings.and_then(|prefix| name.strip_prefix(prefix));
    name == own || component.is_some_and(|component| COMPONENTS.contains(&component))
}

/// What the API server has said of users.
#[derive(Debug)]
struct ReviewedUsers {
    known: Mutex<HashMap<User, Reviewed>>,
    /// So many are reviewed at once.
    slots: Semaphore,
}

impl Default for ReviewedUsers {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            slots: Semaphore::new(AT_ONCE),
        }
    }
}

#[derive(Debug, Clone)]
struct Reviewed {
    /// `None`: nothing yet.
    answer: Option<Answer>,
    /// When it was said, or first asked for.
    since: Instant,
    /// Held by who asks.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    MayChangeNodes,
    MayNot,
    /// drain-lock may not ask.
    Refused,
}

impl Reviewed {
    fn counts(&self, now: Instant) -> bool {
        let kept = match self.answer {
            Some(Answer::Refused) => REFUSAL_KEPT,
            Some(Answer::MayChangeNodes | Answer::MayNot) | None => KEPT,
        };
        now.saturating_duration_since(self.since) < kept
    }
}

impl ReviewedUsers {
    fn look_up(&self, user: &User, now: Instant) -> Drainer {
        let users = self.known.lock();
        let Some(known) = users.get(user).filter(|known| known.counts(now)) else {
            return Drainer::Unanswered;
        };
        match known.answer {
            Some(Answer::MayChangeNodes) => Drainer::Yes,
            Some(Answer::MayNot) => Drainer::No,
            None if now.saturating_duration_since(known.since) < AWAITED => Drainer::Unanswered,
            Some(Answer::Refused) | None => Drainer::Unknown,
        }
    }

    /// What is remembered of the user, from now on if nothing that counts is.
    fn begin(&self, user: &User, now: Instant) -> Reviewed {
        let mut users = self.known.lock();
        if let Some(known) = users.get(user).filter(|known| known.counts(now)) {
            return known.clone();
        }
        if users.len() >= REMEMBERED {
            users.retain(|_, known| known.counts(now));
            if users.len() >= REMEMBERED {
                users.clear();
            }
        }
        let asked = Reviewed {
            answer: None,
            since: now,
            turn: Arc::default(),
        };
        users.insert(user.clone(), asked.clone());
        asked
    }

    /// Asks the API server, unless its word is known, or somebody else asks: then the end of that is waited for. Answers with
    /// what came of it, as a label; `None` where nothing was asked.
    async fn review(&self, client: &Client, user: &User) -> Option<&'static str> {
        let known = self.begin(user, Instant::now());
        if known.answer.is_some() {
            return None;
        }
        let Ok(_turn) = Arc::clone(&known.turn).try_lock_owned() else {
            drop(known.turn.lock().await);
            return None;
        };
        let _slot = self.slots.acquire().await;
        let said = tokio::time::timeout(TIMEOUT, may_change_nodes(client, user)).await;
        let (answer, label) = match said.unwrap_or(Err(ApiError::Timeout)) {
            Ok(true) => (Answer::MayChangeNodes, "drainer"),
            Ok(false) => (Answer::MayNot, "no-drainer"),
            Err(ApiError::Forbidden { message }) => {
                tracing::warn!(
                    user = user.name,
                    message,
                    "nobody can tell whether a user who evicts from a cordoned node drains it: drain-lock lacks the right to \
                     create subjectaccessreviews; only auto.alsoDrainers are taken for drainers"
                );
                (Answer::Refused, "forbidden")
            }
            Err(problem) => {
                tracing::warn!(user = user.name, %problem, "the API server does not say whether a user who evicts may change nodes");
                return Some("failed");
            }
        };
        let answered = Reviewed {
            answer: Some(answer),
            since: Instant::now(),
            ..self.begin(user, Instant::now())
        };
        self.known.lock().insert(user.clone(), answered);
        Some(label)
    }
}

/// Whether the user may patch or update nodes, whichever.
async fn may_change_nodes(client: &Client, user: &User) -> Result<bool, ApiError> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    for verb in VERBS {
        let answer = reviews.create(&PostParams::default(), &question(user, verb)).await?;
        let status = answer.status.ok_or_else(|| ApiError::Invalid {
            message: "the answer to a SubjectAccessReview has no status".to_owned(),
        })?;
        if status.allowed && status.denied != Some(true) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn question(user: &User, verb: &str) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: (!user.uid.is_empty()).then(|| user.uid.clone()),
            groups: Some(user.groups.clone()),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                resource: Some("nodes".to_owned()),
                verb: Some(verb.to_owned()),
                ..ResourceAttributes::default()
            }),
            non_resource_attributes: None,
        },
        ..SubjectAccessReview::default()
    }
}

#[cfg(test)]
mod tests;
