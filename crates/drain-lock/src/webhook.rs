//! The eviction webhook: an eviction waits until the claim of its pod's node has a disruption for it.
//!
//! A review is read ([`review`]), looked up in the watches ([`look`]), judged ([`mod@decide`], pure) and answered: no request
//! to the API server lies in its path. What follows from it (a drain to be asked for, [`filing`]; an Event) is handed to
//! tasks of its own. Every replica answers, leader or not.

pub mod classes;
pub mod decide;
pub mod filing;
pub mod identity;
pub mod look;
pub mod metrics;
pub mod patience;
pub mod review;
pub mod tally;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use jiff::Timestamp;
use nodeward_api::reason::LockReason;
use nodeward_runtime::events::{node_reference, pod_reference};
use nodeward_runtime::{ConfigHandle, EventSink, EventSpec, OperatorContext, Severity};

use crate::observe::ClusterCache;
use crate::settings::Settings;

use self::decide::{Admission, Asked, Caller, Covering, Decision, Scene, Sight, Verdict, decide};
use self::filing::{Filing, FilingSender};
use self::identity::OwnUser;
use self::look::Lookout;
use self::metrics::WebhookMetrics;
use self::review::{BadReview, EvictionReview};
use self::tally::Tally;

/// Where reviews are posted to: `clientConfig.service.path` of the ValidatingWebhookConfiguration.
pub const PATH: &str = "/evictions";

/// What is told to a client that evicts a pod which asked to stay. `kubectl` prints it.
const OPT_OUT_WARNING: &str = "the pod asked to stay on its node through drains (nodeward.dev/drain), which only drain-lock's own drainer honours";

/// That evictions are admitted for want of knowledge is logged this often, in seconds.
const TOLD_EVERY: u64 = 10;

/// Reviews evictions.
pub struct Webhook {
    lookout: Lookout,
    config: ConfigHandle<Settings>,
    own_user: OwnUser,
    tally: Mutex<Tally>,
    filing: FilingSender,
    events: EventSink,
    metrics: WebhookMetrics,
    dry_run: bool,
    began: Instant,
    told: AtomicU64,
}

impl Webhook {
    /// Makes the webhook, with the tasks that it hands work to. The process is ready once it is known who it is.
    pub fn open(context: &OperatorContext<Settings>, cache: &Arc<ClusterCache>) -> Arc<Self> {
        let metrics = WebhookMetrics::register(&context.metrics);
        let (filing, filer) = filing::channel(&metrics);
        let own_user = OwnUser::default();
        let (client, stop) = (context.clients.requests.clone(), context.shutdown.clone());
        context
            .supervisor
            .spawn("own user", own_user.clone().learn(client.clone(), stop.clone()));
        context.supervisor.spawn("filing", filer.run(client, stop));
        let known = own_user.clone();
        context.readiness.require("own user", move || {
            known
                .get()
                .map(drop)
                .ok_or_else(|| "the API server has not said who this process is (create selfsubjectreviews)".to_owned())
        });
        Arc::new(Self {
            lookout: Lookout::new(Arc::clone(cache)),
            config: context.config.clone(),
            own_user,
            tally: Mutex::default(),
            filing,
            events: context.events.clone(),
            metrics,
            dry_run: context.args.dry_run,
            began: Instant::now(),
            told: AtomicU64::new(0),
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
            return self.finish(review, None, unsynced(), began);
        };
        let asked = Asked {
            caller: if review.user == own_user {
                Caller::Ourselves
            } else {
                Caller::Another
            },
            dry_run: review.dry_run,
            ticket: review.ticket.as_deref(),
            pod: &review.pod,
        };
        let seen = self.lookout.look(review, &policy, now, began);
        let known = self.lookout.ledger(now, began);
        let verdict = match seen {
            look::Seen::Unsynced => decide(&asked, Sight::Unsynced, &known.ledger, &known.facts),
            look::Seen::UnknownPod => decide(&asked, Sight::UnknownPod, &known.ledger, &known.facts),
            look::Seen::Pod(mut scene) => {
                let verdict = self.tallied(&asked, &mut scene, &known, began);
                return self.finish(review, Some(&scene), verdict, began);
            }
        };
        self.finish(review, None, verdict, began)
    }

    /// Lets the watches catch up with a drainer that has cordoned a moment ago. Our own evictions rest on more than a cordon.
    async fn await_cordon(&self, review: &EvictionReview) {
        let is_anothers = self.own_user.get().is_some_and(|own_user| review.user != own_user);
        if is_anothers && !review.dry_run && review.ticket.is_none() {
            let policy = Arc::clone(&self.config.current().policy);
            self.lookout.await_cordon(review, &policy, Timestamp::now()).await;
        }
    }

    /// Judges by the free disruptions less what this process has just given away.
    fn tallied(&self, asked: &Asked<'_>, scene: &mut Scene, known: &look::Known, now: Instant) -> Verdict {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        if let Covering::One(budget) = &mut scene.covering {
            tally.apply(budget, &scene.uid, now);
        }
        let verdict = decide(asked, Sight::Seen(scene), &known.ledger, &known.facts);
        if verdict.takes_free_disruption()
            && let Covering::One(budget) = &scene.covering
        {
            tally.admitted(&budget.key, &scene.uid, now);
        }
        verdict
    }

    /// Counts, tells and files.
    fn finish(&self, review: &EvictionReview, scene: Option<&Scene>, mut verdict: Verdict, began: Instant) -> Verdict {
        self.metrics.decided(&verdict.decision, began.elapsed());
        match &verdict.decision {
            Decision::Admit(admission) if admission.fails_open() => self.tell_failing_open(review, *admission),
            Decision::Admit(admission) => {
                tracing::debug!(pod = %review.pod, user = review.user, reason = admission.as_label(), "eviction admitted");
            }
            Decision::Refuse(refused) => {
                tracing::debug!(pod = %review.pod, user = review.user, reason = %refused.reason, "eviction refused: {}", refused.message);
            }
        }
        if self.dry_run {
            if matches!(verdict.decision, Decision::Refuse(_)) {
                verdict.decision = Decision::Admit(Admission::DryRun);
            }
            return verdict;
        }
        if let Some(scene) = scene {
            self.follow_up(review, scene, &verdict, began);
        }
        verdict
    }

    fn follow_up(&self, review: &EvictionReview, scene: &Scene, verdict: &Verdict, now: Instant) {
        let Some(place) = &scene.place else { return };
        if verdict.files {
            let filing = Filing {
                node: place.name.clone(),
                node_uid: place.uid.clone(),
                user: review.user.clone(),
                fallback: self.config.current().policy.fallback,
            };
            self.filing.file(filing, now);
        }
        if verdict.ignores_opt_out {
            self.metrics.opt_out_ignored();
            self.events.emit(EventSpec {
                regarding: pod_reference(&review.pod.namespace, &review.pod.name, Some(scene.uid.as_str())),
                related: Some(node_reference(place.name.as_str(), place.uid.as_str())),
                severity: Severity::Warning,
                reason: LockReason::OptOutIgnored.as_str(),
                action: "Evict",
                note: format!(
                    "The pod {}; its eviction from node {} by {} was admitted.",
                    LockReason::OptOutIgnored.explanation(),
                    place.name,
                    review.user
                ),
            });
        }
    }

    fn tell_failing_open(&self, review: &EvictionReview, admission: Admission) {
        let second = self.began.elapsed().as_secs() + TOLD_EVERY;
        let told = self.told.load(Ordering::Relaxed);
        let is_mine = || {
            self.told
                .compare_exchange(told, second, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        if second >= told + TOLD_EVERY && is_mine() {
            tracing::warn!(
                pod = %review.pod, user = review.user, reason = admission.as_label(),
                "an eviction was admitted for want of knowledge; its budget decides alone"
            );
        }
    }
}

fn unsynced() -> Verdict {
    Verdict {
        decision: Decision::Admit(Admission::Unsynced),
        files: false,
        ignores_opt_out: false,
    }
}

async fn answer(
    State(webhook): State<Arc<Webhook>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => {
            webhook.metrics.bad("body");
            return refuse(rejection.status(), &rejection.body_text());
        }
    };
    if !is_json(&headers) {
        webhook.metrics.bad("content-type");
        return refuse(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Content-Type must be application/json",
        );
    }
    let review = match EvictionReview::parse(&body) {
        Ok(review) => review,
        Err(bad) => return webhook.refuse_bad(&bad),
    };
    webhook.metrics.ignored_fields(review.unknown_fields);
    webhook.await_cordon(&review).await;
    let verdict = webhook.judge(&review);
    let warning = verdict.ignores_opt_out.then_some(OPT_OUT_WARNING);
    axum::Json(review::answer(&review, &verdict.decision, warning)).into_response()
}

impl Webhook {
    fn refuse_bad(&self, bad: &BadReview) -> Response {
        self.metrics.bad(bad.as_label());
        tracing::debug!(%bad, "not the review of an eviction");
        refuse(bad.status(), &bad.to_string())
    }
}

fn refuse(status: StatusCode, problem: &str) -> Response {
    (status, format!("{problem}\n")).into_response()
}

/// Whether the body says that it is JSON, with whatever parameters.
fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}
