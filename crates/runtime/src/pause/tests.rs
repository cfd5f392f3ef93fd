//! The pause against a scripted API server: a watch that is cut off, and reads that fail.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use futures::future::join_all;
use futures::{StreamExt, stream};
use http::{Method, Request, Response};
use kube::Client;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::control::{Permits, Stop};
use crate::events::EventSink;
use crate::leader::Leadership;
use crate::metrics::Metrics;

const COMPONENT: Component = Component::new("drain-lock", "0");

/// An answer to one request.
#[derive(Clone, Debug)]
enum Answer {
    /// The ConfigMap with this data, or none; a watch stays open after it.
    Found(Option<Value>),
    /// The same, and the watch is closed.
    Once(Option<Value>),
    Refused(u16),
    Never,
}

/// An API server that knows one ConfigMap, and the Pod of the operator.
#[derive(Clone)]
struct Server {
    /// Watches get these in turn, and the last of them for ever.
    watches: Arc<Mutex<VecDeque<Answer>>>,
    get: Arc<Mutex<Answer>>,
    gets: Arc<AtomicUsize>,
    /// The condition as it was written.
    conditions: Arc<Mutex<Vec<String>>>,
}

fn paused(component: &str) -> Answer {
    Answer::Found(Some(json!({ component: "INC-1" })))
}

fn object(data: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": { "namespace": "ns", "name": CONFIG_MAP, "resourceVersion": "5" } })
}

fn refusal(code: u16) -> (u16, Body) {
    let reason = if code == 404 { "NotFound" } else { "" };
    let status = json!({ "kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": reason });
    (code, Body::from(status.to_string().into_bytes()))
}

impl Server {
    fn new(watches: impl IntoIterator<Item = Answer>, get: Answer) -> Self {
        Self {
            watches: Arc::new(Mutex::new(watches.into_iter().collect())),
            get: Arc::new(Mutex::new(get)),
            gets: Arc::default(),
            conditions: Arc::default(),
        }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let server = server.clone();
            async move {
                let (code, body) = server.answer(request).await;
                Ok::<_, std::convert::Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "ns")
    }

    fn pause(&self) -> Pause {
        let clients = Clients::single(self.client());
        Pause::watch(COMPONENT, &Watches::detached(), &clients, "ns", &Readiness::new())
    }

    async fn answer(&self, request: Request<kube::client::Body>) -> (u16, Body) {
        if request.method() == Method::PATCH {
            let body = request.into_body().collect_bytes().await.unwrap();
            let patch: Value = serde_json::from_slice(&body).unwrap();
            let status = patch.pointer("/status/conditions/0/status").and_then(Value::as_str);
            self.conditions.lock().push(status.unwrap().to_owned());
            return refusal(404);
        }
        if request.uri().path().ends_with(CONFIG_MAP) {
            self.gets.fetch_add(1, Ordering::SeqCst);
            let answer = self.get.lock().clone();
            return match answer {
                Answer::Found(Some(data)) | Answer::Once(Some(data)) => {
                    (200, Body::from(object(&data).to_string().into_bytes()))
                }
                Answer::Found(None) | Answer::Once(None) => refusal(404),
                Answer::Refused(code) => refusal(code),
                Answer::Never => std::future::pending().await,
            };
        }
        let answer = {
            let mut watches = self.watches.lock();
            let last = watches.front().cloned();
            if watches.len() > 1 {
                watches.pop_front();
            }
            last.unwrap_or(Answer::Never)
        };
        let end = json!({ "type": "BOOKMARK", "object": { "apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "resourceVersion": "9", "annotations": { "k8s.io/initial-events-end": "true" } } } });
        let (data, is_open) = match answer {
            Answer::Found(data) => (data, true),
            Answer::Once(data) => (data, false),
            Answer::Refused(code) => return refusal(code),
            Answer::Never => std::future::pending().await,
        };
        let object = data.map(|data| json!({ "type": "ADDED", "object": object(&data) }));
        let lines = object.into_iter().chain([end]);
        let lines = stream::iter(lines).map(|event| Ok::<_, std::io::Error>(Bytes::from(format!("{event}\n"))));
        if is_open {
            (200, Body::from_stream(lines.chain(stream::pending())))
        } else {
            (200, Body::from_stream(lines))
        }
    }

    /// The pause once its watch has brought the ConfigMap, or that there is none.
    async fn seen(&self) -> Pause {
        let pause = self.pause();
        watched(&pause).cache.wait_synced().await;
        pause
    }

    fn gets(&self) -> usize {
        self.gets.load(Ordering::SeqCst)
    }
}

fn watched(pause: &Pause) -> &Arc<Watched> {
    match &pause.0 {
        Source::Watched(watched) => watched,
        Source::Fixed(_) => panic!("it is watched"),
    }
}

fn kind(state: &PauseState) -> &'static str {
    match state {
        PauseState::Running => "running",
        PauseState::Paused(_) => "paused",
        PauseState::Unknown(_) => "unknown",
    }
}

#[rstest]
#[case::refused(Answer::Refused(503))]
#[case::throttled(Answer::Refused(429))]
#[case::silent(Answer::Never)]
#[tokio::test(start_paused = true)]
async fn watch_that_is_cut_off_makes_the_pause_unknown(#[case] cut_off: Answer) {
    let server = Server::new([Answer::Once(None), cut_off], Answer::Found(None));
    let pause = server.seen().await;
    sleep(STALE_AFTER / 2).await;
    assert_eq!(pause.state(), PauseState::Running, "it is as fresh as any other cache");
    sleep(STALE_AFTER).await;
    assert_eq!(kind(&pause.state()), "unknown");
    assert_eq!(
        kind(&pause.confirm().await),
        "unknown",
        "a read does not make up for the watch"
    );
    *server.watches.lock() = [paused("drain-lock")].into();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(kind(&pause.state()), "paused");
}

#[tokio::test(start_paused = true)]
async fn pause_that_was_never_read_is_unknown() {
    let pause = Server::new([Answer::Refused(503)], Answer::Found(None)).pause();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(kind(&pause.confirm().await), "unknown");
}

#[rstest]
#[case::absent(Answer::Found(None), "running", "running")]
#[case::of_another(paused("drain-keeper"), "running", "running")]
#[case::of_all(paused("all"), "paused", "paused")]
#[case::its_own(paused("drain-lock"), "paused", "paused")]
#[case::refused(Answer::Refused(503), "unknown", "running")]
#[case::throttled(Answer::Refused(429), "unknown", "running")]
#[case::forbidden(Answer::Refused(403), "unknown", "running")]
#[case::silent(Answer::Never, "unknown", "running")]
#[tokio::test(start_paused = true)]
async fn act_needs_a_read_that_finds_no_pause(#[case] get: Answer, #[case] read: &str, #[case] state: &str) {
    let server = Server::new([Answer::Found(None)], get);
    let pause = server.seen().await;
    let permits = Permits::under(pause.clone());
    assert!(permits.next_write().await.is_ok());
    assert_eq!(server.gets(), 0, "what is no act is not worth a request");
    let stop = match read {
        "paused" => Some(Stop::Paused),
        "unknown" => Some(Stop::PauseUnknown),
        _ => None,
    };
    assert_eq!(permits.next_act().await.err(), stop);
    assert_eq!(kind(&pause.confirm().await), read);
    assert_eq!(kind(&pause.state()), state, "a read that failed stops acts alone");
    assert_eq!(kind(&watched(&pause).told()), read);
}

#[tokio::test(start_paused = true)]
async fn acts_of_a_second_share_one_read() {
    let server = Server::new([Answer::Found(None)], Answer::Found(None));
    let pause = server.seen().await;
    let acts = || join_all((0..20).map(|_| pause.confirm()));
    acts().await;
    assert_eq!(server.gets(), 1);
    sleep(Duration::from_secs(1)).await;
    *server.get.lock() = paused("drain-lock");
    assert!(acts().await.iter().all(|state| kind(state) == "paused"));
    assert_eq!(server.gets(), 2);
}

#[tokio::test(start_paused = true)]
async fn late_answer_does_not_hide_what_a_later_read_found() {
    let server = Server::new([Answer::Found(None)], Answer::Never);
    let pause = server.seen().await;
    let slow = tokio::spawn({
        let pause = pause.clone();
        async move { pause.confirm().await }
    });
    sleep(Duration::from_millis(1500)).await;
    *server.get.lock() = paused("drain-lock");
    assert_eq!(kind(&pause.confirm().await), "paused");
    assert_eq!(kind(&slow.await.unwrap()), "unknown");
    assert_eq!(kind(&pause.state()), "paused");
}

/// Runs the reporter, and returns what it tells by metrics: "paused" and "pause_unknown".
fn reported(server: &Server, pause: &Pause) -> impl Fn() -> (bool, bool) + use<> {
    let metrics = Metrics::new(COMPONENT);
    let reporter = PauseReporter {
        component: COMPONENT,
        pause: pause.clone(),
        namespace: "ns".to_owned(),
        own_pod: "pod".to_owned(),
        client: server.client(),
        events: EventSink::silent(&metrics),
        leadership: Leadership::fixed(true),
        dry_run: false,
        gauges: PauseGauges::register(&metrics),
    };
    tokio::spawn(reporter.run(CancellationToken::new()));
    move || {
        let text = metrics.encode().unwrap();
        let is_set = |name: &str| text.contains(&format!("nodeward_drain_lock_{name} 1\n"));
        (is_set("paused"), is_set("pause_unknown"))
    }
}

/// The watch is open and brings nothing any more, as over a half-open connection.
#[tokio::test(start_paused = true)]
async fn pause_found_by_a_read_lasts_until_a_read_finds_its_end() {
    let server = Server::new([Answer::Found(None)], paused("drain-lock"));
    let pause = server.seen().await;
    let told = reported(&server, &pause);
    pause.confirm().await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!((kind(&pause.state()), told()), ("paused", (true, false)));
    *server.get.lock() = Answer::Refused(503);
    sleep(Duration::from_secs(20)).await;
    assert_eq!((kind(&pause.state()), told()), ("paused", (true, false)));
    *server.get.lock() = Answer::Found(None);
    sleep(Duration::from_secs(6)).await;
    assert_eq!((kind(&pause.state()), told()), ("running", (false, false)));
    assert!(pause.last().is_some());
    let gets = server.gets();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(server.gets(), gets, "nothing is read while nobody acts");
    assert_eq!(*server.conditions.lock(), ["True", "False"]);
}

#[tokio::test(start_paused = true)]
async fn failed_read_is_repeated_and_told_once_it_lasts() {
    let server = Server::new([Answer::Found(None)], Answer::Refused(503));
    let pause = server.seen().await;
    let told = reported(&server, &pause);
    pause.confirm().await;
    sleep(Duration::from_secs(4)).await;
    assert_eq!(told(), (false, true));
    assert!(server.conditions.lock().is_empty(), "it may pass");
    sleep(Duration::from_secs(20)).await;
    assert_eq!(*server.conditions.lock(), ["Unknown"]);
    *server.get.lock() = Answer::Found(None);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(told(), (false, false));
    assert_eq!(*server.conditions.lock(), ["Unknown", "False"]);
}

#[tokio::test(start_paused = true)]
async fn watch_that_tells_of_a_pause_tells_of_its_end() {
    let server = Server::new([Answer::Once(None), Answer::Refused(503), paused("all")], paused("all"));
    let pause = server.seen().await;
    let told = reported(&server, &pause);
    pause.confirm().await;
    sleep(Duration::from_mins(1)).await;
    let gets = server.gets();
    sleep(Duration::from_mins(1)).await;
    assert_eq!((server.gets(), told()), (gets, (true, false)));
    assert_eq!(watched(&pause).last_read.borrow().state, PauseState::Running);
}
