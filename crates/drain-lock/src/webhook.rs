//! The eviction webhook: an eviction waits until the claim of its pod's node has a disruption for it.
//!
//! A review is read ([`review`]), looked up in the watches ([`context_lookup`]), judged ([`mod@decide`], pure) and answered: no request
//! to the API server lies in its path. What follows from it (a drain to be asked for, [`drain_request_queue`]; an Event) is handed to
//! tasks of its own. Every replica answers, leader or not.

pub mod context_lookup;
pub mod decide;
pub mod drain_request_queue;
pub mod drainers;
pub mod identity;
pub mod metrics;
pub mod movable_pods;
pub mod planning_timeout;
pub mod recent_admissions;
pub mod refusals;
pub mod review;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use jiff::{SignedDuration, Timestamp};
use nodeward_api::planned_at::STALE_AFTER;
use nodeward_api::reason::LockReason;
use nodeward_core::drain_request::{EvictionSign, JoinOutcome, sign_precision};
use nodeward_core::duration::ConfigDuration;
use nodeward_runtime::events::{node_reference, pod_reference};
use nodeward_runtime::{ConfigHandle, EventSink, EventSpec, Leadership, OperatorContext, Pause, ReconcileTrigger};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::observe::ClusterCache;
use crate::settings::Settings;

use self::context_lookup::{ContextLookup, LedgerView};
use self::decide::{
    Admission, Caller, Decision, Drainer, EvictionContext, EvictionRequest, LookupResult, PodState, Refused, Verdict,
    decide, decide_unreadable,
};
use self::drain_request_queue::{DrainRequestQueue, QueuedRequest};
use self::drainers::Drainers;
use self::identity::OwnUser;
use self::metrics::WebhookMetrics;
use self::recent_admissions::RecentAdmissions;
use self::refusals::Refusals;
use self::review::EvictionReview;

/// Where reviews are posted to: `clientConfig.service.path` of the ValidatingWebhookConfiguration.
pub const PATH: &str = "/evictions";

/// What is told to a client that evicts a pod which asked to stay. `kubectl` prints it.
const OPT_OUT_WARNING: &str = "the pod has an opt-out from drains, which only drain-lock's own drainer honours";

/// What is told to a client that is admitted because nobody leads, or plans: nobody would ever give it its turn. `kubectl`
/// prints it.
const LEADERLESS_WARNING: &str = "drain-lock has no leader that plans: this eviction was admitted by its budget alone, and nothing keeps drains from wedging each other";

/// What is told to a client that would have been refused, with the reason. `kubectl` prints it.
const AUDIT_WARNING: &str = "drain-lock only audits, and would have refused this eviction";

/// How long an eviction waits for the plan of its drain at most: a few passes of the loop.
const PLANNED_WITHIN: Duration = Duration::from_secs(1);

/// How many evictions wait for a plan at once; beyond that they are answered as things stand, and drainers ask again.
const PLANS_AWAITED_AT_ONCE: usize = 64;

/// How often the plan is looked at meanwhile.
const PLAN_LOOKUP_INTERVAL: Duration = Duration::from_millis(25);

/// What is told to a client that is admitted while drain-lock is paused.
const PAUSED_WARNING: &str = "drain-lock is paused: this eviction was admitted by its budget alone, and nothing keeps drains from wedging each other";

/// That evictions are admitted for want of knowledge is logged this often.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Reviews evictions.
pub struct Webhook {
    lookup: ContextLookup,
    config: ConfigHandle<Settings>,
    own_user: OwnUser,
    recent_admissions: Mutex<RecentAdmissions>,
    drainers: Arc<Drainers>,
    refusals: Mutex<Refusals>,
    drain_requests: DrainRequestQueue,
    events: EventSink,
    metrics: WebhookMetrics,
    dry_run: bool,
    /// Has the drain planned that an eviction asks for in an audit: no watch tells of it.
    trigger: ReconcileTrigger,
    leadership: Leadership,
    pause: Pause,
    awaiting_plans: Semaphore,
    warned: Mutex<Option<Instant>>,
}

impl Webhook {
    /// Makes the webhook, with the tasks that it hands work to. The process is ready once it is known who it is.
    pub fn open(context: &OperatorContext<Settings>, cache: &Arc<ClusterCache>) -> Arc<Self> {
        let metrics = WebhookMetrics::register(&context.metrics);
        let leadership = context.leadership.clone();
        context.metrics.register_seconds(
            "leaderless_seconds",
            "Time since this replica last heard that the leader has finished a pass",
            move || SignedDuration::try_from(leadership.leaderless_for()).ok(),
        );
        let own_user = OwnUser::default();
        let drainers = Arc::new(Drainers::new(context.config.clone(), own_user.clone(), metrics.clone()));
        let (drain_requests, writer) = drain_request_queue::channel(&drainers, &metrics);
        let (client, stop) = (context.clients.requests.clone(), context.shutdown.clone());
        let learn = own_user.clone().learn(client.clone(), stop.clone());
        context.supervisor.spawn("own user", learn);
        let write = writer.run(client, context.pause.clone(), context.events.clone(), stop);
        context.supervisor.spawn("drain requests", write);
        let known = own_user.clone();
        context.readiness.require("own user", move || {
            let unknown = "the API server has not said who this process is (create selfsubjectreviews)";
            known.get().map(drop).ok_or_else(|| unknown.to_owned())
        });
        Arc::new(Self {
            lookup: ContextLookup::new(Arc::clone(cache)),
            config: context.config.clone(),
            own_user,
            recent_admissions: Mutex::default(),
            drainers,
            refusals: Mutex::default(),
            drain_requests,
            events: context.events.clone(),
            metrics,
            dry_run: context.args.dry_run,
            trigger: context.trigger.clone(),
            leadership: context.leadership.clone(),
            pause: context.pause.clone(),
            awaiting_plans: Semaphore::new(PLANS_AWAITED_AT_ONCE),
            warned: Mutex::default(),
        })
    }

    /// Answers reviews on [`PATH`].
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route(PATH, post(answer))
            .layer(DefaultBodyLimit::max(review::MAX_BYTES))
            .with_state(Arc::clone(self))
    }

    /// Judges one eviction, and sees to what follows from it.
    pub fn judge(&self, review: &EvictionReview) -> Verdict {
        let (now, began) = (Timestamp::now(), Instant::now());
        let policy = Arc::clone(&self.config.current().policy);
        let Some(own_user) = self.own_user.get() else {
            let verdict = Verdict::from(Decision::Admit(Admission::Unsynced));
            return self.finish(review, &LookupResult::Unsynced, verdict, began);
        };
        // What an audit would have written only the leader has.
        if self.audits() && !self.leadership.is_leading_now() {
            let verdict = Verdict::from(Decision::Admit(Admission::Audit));
            return self.finish(review, &LookupResult::Unsynced, verdict, began);
        }
        let request = self.request(review, own_user);
        let found = self.lookup.look_up(review, &policy, now, began);
        let view = self.lookup.ledger_view(now, began);
        let (found, verdict) = judge(&request, found, &view, &self.recent_admissions, began);
        self.finish(review, &found, verdict, began)
    }

    fn request<'a>(&self, review: &'a EvictionReview, own_user: &str) -> EvictionRequest<'a> {
        EvictionRequest {
            caller: self.caller(review, own_user),
            dry_run: review.dry_run,
            leaderless: self.leadership.leaderless_for() >= STALE_AFTER,
            paused: self.pause.paused().is_some(),
            ticket: review.ticket.as_deref(),
            pod: &review.pod,
        }
    }

    fn caller(&self, review: &EvictionReview, own_user: &str) -> Caller {
        if review.user.name == own_user {
            Caller::Ourselves
        } else {
            Caller::Another(self.drainers.look_up(&review.user, Instant::now()))
        }
    }

    /// Whether every eviction is admitted.
    fn audits(&self) -> bool {
        self.dry_run || self.config.current().policy.audits
    }

    /// Asks for the drain that the eviction belongs to, and lets it be planned: a drainer that is refused for want of a plan asks
    /// again in seconds alone. In an audit it is admitted, and what it would have met by then is to be told.
    async fn await_plan(&self, review: &EvictionReview, own_user: &str, within: Duration) {
        let Ok(_waiting) = self.awaiting_plans.try_acquire() else {
            return;
        };
        let audits = self.audits();
        let until = Instant::now() + within;
        while Instant::now() < until && (!audits || self.leadership.is_leading_now()) {
            let (now, instant) = (Timestamp::now(), Instant::now());
            let policy = Arc::clone(&self.config.current().policy);
            let found = self.lookup.look_up(review, &policy, now, instant);
            let view = self.lookup.ledger_view(now, instant);
            let verdict = decide(
                &self.request(review, own_user),
                &found,
                &view.ledger,
                &view.facts,
                &view.reservations,
            );
            match (&verdict.decision, &found) {
                (Decision::Refuse(refused), LookupResult::Found(context))
                    if verdict.requests_drain && is_about_to_change(refused, audits) =>
                {
                    self.request_drain(review, context, &verdict, instant);
                }
                _ => return,
            }
            tokio::time::sleep(PLAN_LOOKUP_INTERVAL).await;
        }
    }

    /// Lets the watches catch up with a drainer that has cordoned a moment ago, and has pods classified where that decides.
    /// Our own evictions rest on more than a cordon, and those of others who drain nothing on none.
    async fn prepare(&self, review: &EvictionReview, planned_within: Duration) {
        if review.dry_run || review.ticket.is_some() {
            return;
        }
        let policy = Arc::clone(&self.config.current().policy);
        let is_drainer = |own_user: &&str| {
            let caller = self.caller(review, own_user);
            !matches!(caller, Caller::Ourselves | Caller::Another(Drainer::No))
        };
        if let Some(own_user) = self.own_user.get().filter(is_drainer) {
            self.lookup.await_cordon(review, &policy, Timestamp::now()).await;
            self.await_plan(review, own_user, planned_within).await;
        }
        self.lookup.classify_pods(review, &policy, Timestamp::now()).await;
    }

    /// Counts the answer, logs it, and sees to what follows from it.
    fn finish(&self, review: &EvictionReview, found: &LookupResult, mut verdict: Verdict, began: Instant) -> Verdict {
        let audits = self.audits();
        if audits {
            verdict = verdict.audited();
        }
        self.metrics.decided(&verdict, began.elapsed());
        if let Some(would_be) = &verdict.audited {
            tracing::info!(pod = %review.pod, user = review.user.name, reason = %would_be.reason, "audit: the eviction would be refused: {}", would_be.message);
        }
        match &verdict.decision {
            Decision::Admit(admission) if admission.fails_open() => self.warn_failing_open(review, *admission, began),
            Decision::Admit(admission) => {
                tracing::debug!(pod = %review.pod, user = review.user.name, reason = admission.as_label(), "eviction admitted");
            }
            Decision::Refuse(refused) => {
                tracing::debug!(pod = %review.pod, user = review.user.name, reason = %refused.reason, "eviction refused: {}", refused.message);
            }
        }
        if let LookupResult::Found(context) = found {
            self.follow_up(review, context, &verdict, began);
        }
        verdict
    }

    /// Has the drain of the pod's node requested, if who evicts is a drainer.
    fn request_drain(&self, review: &EvictionReview, context: &EvictionContext, verdict: &Verdict, now: Instant) {
        let Some(node) = &context.node else { return };
        let settings = self.config.current();
        let policy = &settings.policy;
        let request = QueuedRequest {
            node: node.name.clone(),
            node_uid: node.uid.clone(),
            user: review.user.clone(),
            fallback: policy.fallback,
            eviction: eviction_sign(&self.refusals, context, verdict),
            sign_precision: sign_precision(policy.auto.quiet_period),
            only_reviews: self.audits(),
        };
        let drainer = self.drainers.look_up(&review.user, now);
        if node.has_drain || drainer == Drainer::Yes {
            self.lookup.await_plan(&node.uid, now);
        }
        if !self.audits() || drainer != Drainer::Yes {
            let has_drain = self.lookup.has_drain(node.name.as_str());
            self.drain_requests.push(request, has_drain, now);
        } else if let Some(outcome) = self.lookup.keep_drain(&request.request(), Timestamp::now())
            && outcome != JoinOutcome::Known
        {
            tracing::info!(node = %node.name, user = review.user.name, outcome = outcome.as_label(), "audit: a drain would be asked for");
            self.trigger.notify();
        }
    }

    fn follow_up(&self, review: &EvictionReview, context: &EvictionContext, verdict: &Verdict, now: Instant) {
        if verdict.requests_drain {
            self.request_drain(review, context, verdict, now);
        }
        let Some(node) = &context.node else { return };
        if verdict.ignores_opt_out && !self.audits() {
            self.metrics.opt_out_ignored();
            self.events.emit(EventSpec {
                regarding: pod_reference(&review.pod.namespace, &review.pod.name, Some(context.uid.as_str())),
                related: Some(node_reference(node.name.as_str(), node.uid.as_str())),
                severity: LockReason::OptOutIgnored.severity(),
                reason: LockReason::OptOutIgnored.as_str(),
                action: "Evict",
                note: format!(
                    "The pod {}; its eviction from node {} by {} was admitted.",
                    LockReason::OptOutIgnored.explanation(),
                    node.name,
                    review.user
                ),
            });
        }
    }

    fn warn_failing_open(&self, review: &EvictionReview, admission: Admission, now: Instant) {
        let mut warned = self.warned.lock();
        if warned.is_some_and(|before| now.saturating_duration_since(before) < WARN_INTERVAL) {
            return;
        }
        *warned = Some(now);
        tracing::warn!(
            pod = %review.pod, user = review.user.name, reason = admission.as_label(),
            "an eviction was admitted for want of knowledge; its budget decides alone"
        );
    }
}

/// Judges one eviction by what was looked up, less what this process has given away, and remembers what it gives away.
pub fn judge(
    request: &EvictionRequest<'_>,
    mut found: LookupResult,
    view: &LedgerView,
    recent_admissions: &Mutex<RecentAdmissions>,
    now: Instant,
) -> (LookupResult, Verdict) {
    loop {
        // What this process has just given away is no longer free.
        let one_budget = found.one_budget();
        let seen = one_budget.and_then(|(budget, pod)| recent_admissions.lock().take_out(budget, pod, now));
        let verdict = if view.is_unreadable {
            decide_unreadable(request, &found)
        } else {
            decide(request, &found, &view.ledger, &view.facts, &view.reservations)
        };
        // Two who ask at once must not get the same: the later one is judged again.
        let is_last = match found.one_budget().filter(|_| verdict.takes_free_disruption()) {
            Some((budget, pod)) => recent_admissions.lock().add(&budget.key, pod, seen, now),
            None => true,
        };
        if is_last {
            return (found, verdict);
        }
    }
}

/// Notes what became of an eviction from a node that is drained. Answers what it tells of its drainer: also whether its pod
/// was refused before, while none of the node's pods went, and no movable one was asked for, for others that should leave first.
pub fn eviction_sign(refusals: &Mutex<Refusals>, context: &EvictionContext, verdict: &Verdict) -> EvictionSign {
    let Some(node) = &context.node else {
        return EvictionSign::Seen;
    };
    let mut refusals = refusals.lock();
    match &verdict.decision {
        Decision::Refuse(refused) if waits_for_other_pods(refused.reason) => {
            if refusals.note(&node.uid, &context.uid) {
                return EvictionSign::RefusedAgain;
            }
        }
        Decision::Refuse(_) if !context.is_movable => {}
        Decision::Admit(_) if context.state != PodState::SkipsBudgets => refusals.admit(&node.uid, &context.uid),
        Decision::Refuse(_) | Decision::Admit(_) => refusals.forget(&node.uid),
    }
    EvictionSign::Seen
}

/// Whether the pod waits for others of its node to leave first: before the claim is asked for, a place in a node group is not either.
fn waits_for_other_pods(reason: LockReason) -> bool {
    matches!(reason, LockReason::AwaitingPods | LockReason::WaitsForNodeGroup)
}

/// Whether it says no more than that the drain is on its way through a plan. Pods leave in an audit whatever it says.
fn is_about_to_change(refused: &Refused, audits: bool) -> bool {
    match refused.reason {
        LockReason::NotPlanned | LockReason::AwaitsConfirmation | LockReason::Queued => true,
        LockReason::AwaitingPods => audits,
        _ => false,
    }
}

/// How long this review may wait for a plan: half of the time that the API server waits for its answer, which it names as it calls
/// (`?timeout=2s`). An eviction that is answered too late is admitted.
fn planned_within(uri: &Uri) -> Duration {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    let timeout = parameters.find_map(|parameter| parameter.strip_prefix("timeout="));
    let timeout = timeout.and_then(|text| ConfigDuration::parse(text).ok());
    timeout.map_or(PLANNED_WITHIN, |timeout| {
        PLANNED_WITHIN.min(timeout.get().unsigned_abs() / 2)
    })
}

async fn answer(
    State(webhook): State<Arc<Webhook>>,
    uri: Uri,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let review = match EvictionReview::read(&headers, body) {
        Ok(review) => review,
        Err(bad) => {
            webhook.metrics.bad(bad.as_label());
            tracing::debug!(%bad, "not the review of an eviction");
            return bad.into_response();
        }
    };
    webhook.metrics.ignored_fields(review.unknown_fields);
    webhook.prepare(&review, planned_within(&uri)).await;
    let verdict = webhook.judge(&review);
    let audited = verdict
        .audited
        .as_ref()
        .map(|would_be| format!("{AUDIT_WARNING} ({}): {}", would_be.reason, would_be.message));
    let warning = match &verdict.decision {
        Decision::Admit(Admission::NoLeader) => Some(LEADERLESS_WARNING),
        Decision::Admit(Admission::Paused) => Some(PAUSED_WARNING),
        _ => verdict.ignores_opt_out.then_some(OPT_OUT_WARNING),
    };
    axum::Json(review::answer(
        &review,
        &verdict.decision,
        audited.as_deref().or(warning),
    ))
    .into_response()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::as_the_chart_has_it("/evictions?timeout=2s", 1000)]
    #[case::short("/evictions?timeout=1s", 500)]
    #[case::long("/evictions?timeout=1m0s", 1000)]
    #[case::among_others("/evictions?dryRun=All&timeout=1s", 500)]
    #[case::not_named("/evictions", 1000)]
    #[case::garbage("/evictions?timeout=soon", 1000)]
    fn plan_is_awaited_for_half_of_the_time_that_there_is(#[case] uri: &str, #[case] milliseconds: u64) {
        assert_eq!(
            planned_within(&uri.parse().unwrap()),
            Duration::from_millis(milliseconds)
        );
    }
}
