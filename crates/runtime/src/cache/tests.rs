//! A cache against a scripted API server: every way in which a watch can go wrong.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::{StreamExt, stream};
use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Cache, Index, KindState, NamespacedName, Previous, STALE_AFTER, Selection, WatchHandle, Watches};

/// What the server answers to one request.
#[derive(Clone, Debug)]
enum Answer {
    /// These events, and then the connection stays open.
    Open(Vec<Value>),
    /// These events, and then the connection closes.
    Closed(Vec<Value>),
    /// A page of a list.
    Page(Value),
    /// A failure.
    Refused(u16),
    /// A failure in many lines, as Kubernetes answers who asks for metadata alone.
    RefusedInLines(u16),
}

/// Answers in turn, and remembers what it was asked; further requests hang.
#[derive(Clone, Default)]
struct Server {
    script: Arc<Mutex<VecDeque<Answer>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn new(script: impl IntoIterator<Item = Answer>) -> Self {
        Self {
            script: Arc::new(Mutex::new(script.into_iter().collect())),
            asked: Arc::default(),
        }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let answer = server.answer(&request);
            async move { Ok::<_, std::convert::Infallible>(answer) }
        });
        Client::new(service, "default")
    }

    fn answer(&self, request: &Request<kube::client::Body>) -> Response<Body> {
        self.asked
            .lock()
            .unwrap()
            .push(request.uri().query().unwrap_or_default().to_owned());
        let answer = self.script.lock().unwrap().pop_front().unwrap_or(Answer::Open(vec![]));
        let (status, body) = match answer {
            Answer::Open(events) => (200, streamed(events, true)),
            Answer::Closed(events) => (200, streamed(events, false)),
            Answer::Page(page) => (200, Body::from(page.to_string().into_bytes())),
            Answer::Refused(code) => (code, Body::from(refusal(code).to_string().into_bytes())),
            Answer::RefusedInLines(code) => (code, Body::from(format!("{:#}", refusal(code)).into_bytes())),
        };
        Response::builder().status(status).body(body).unwrap()
    }

    /// The queries so far, reduced to what tells them apart.
    fn asked(&self) -> Vec<String> {
        let brief = |query: &String| {
            let part = |name: &str| {
                query
                    .split('&')
                    .find_map(|part| part.strip_prefix(name))
                    .unwrap_or_default()
            };
            match (part("watch="), part("sendInitialEvents=")) {
                ("true", "true") => "stream".to_owned(),
                ("true", _) => format!("watch from {}", part("resourceVersion=")),
                _ => format!("page {}", part("continue=")).trim().to_owned(),
            }
        };
        self.asked.lock().unwrap().iter().map(brief).collect()
    }

    fn cache(&self) -> Cache<String> {
        self.selecting(Selection::all())
    }

    fn selecting(&self, selection: Selection) -> Cache<String> {
        let api: Api<ConfigMap> = Api::namespaced(self.client(), "ns");
        Watches::detached().cache("things", api, selection, |object| object.data?.remove("value"))
    }
}

fn refusal(code: u16) -> Value {
    json!({"kind": "Status", "code": code, "message": "no"})
}

fn streamed(events: Vec<Value>, stays_open: bool) -> Body {
    let lines = stream::iter(events).map(|event| Ok::<_, std::io::Error>(Bytes::from(format!("{event}\n"))));
    if stays_open {
        Body::from_stream(lines.chain(stream::pending()))
    } else {
        Body::from_stream(lines)
    }
}

fn object(name: &str, value: &str, version: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "ns", "name": name, "resourceVersion": version},
        "data": {"value": value},
    })
}

fn event(kind: &str, name: &str, value: &str, version: &str) -> Value {
    json!({"type": kind, "object": object(name, value, version)})
}

fn added(name: &str, value: &str) -> Value {
    event("ADDED", name, value, "10")
}

fn modified(name: &str, value: &str, version: &str) -> Value {
    event("MODIFIED", name, value, version)
}

fn deleted(name: &str, version: &str) -> Value {
    event("DELETED", name, "", version)
}

fn bookmark(version: &str, ends_list: bool) -> Value {
    let annotations = if ends_list {
        json!({"k8s.io/initial-events-end": "true"})
    } else {
        json!({})
    };
    json!({"type": "BOOKMARK", "object": {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"resourceVersion": version, "annotations": annotations},
    }})
}

fn end_of_list() -> Value {
    bookmark("10", true)
}

fn error(code: u16) -> Value {
    json!({"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "no"}})
}

fn page(objects: &[Value], next: &str) -> Answer {
    Answer::Page(json!({
        "apiVersion": "v1", "kind": "ConfigMapList",
        "metadata": {"resourceVersion": "10", "continue": next}, "items": objects,
    }))
}

async fn until(cache: &Cache<String>, reached: impl Fn(&Cache<String>) -> bool) {
    let mut changes = cache.changes();
    let waiting = async {
        while !reached(cache) {
            changes.changed().await.unwrap();
        }
    };
    let outcome = timeout(Duration::from_mins(10), waiting).await;
    outcome.unwrap_or_else(|_| {
        panic!(
            "never reached: {:?} {:?} {:?}",
            cache.state(),
            visible(cache),
            cache.health()
        )
    });
}

fn visible(cache: &Cache<String>) -> String {
    cache
        .snapshot()
        .iter()
        .map(|(key, value)| format!("{}={value}", key.name))
        .collect::<Vec<_>>()
        .join(" ")
}

#[rstest]
#[case::quiet_start(
    vec![Answer::Open(vec![added("a", "1"), end_of_list()])],
    "a=1",
    &["stream"]
)]
#[case::changes_after_the_list(
    vec![Answer::Open(vec![added("a", "1"), added("b", "1"), end_of_list(), modified("a", "2", "11"), deleted("b", "12"), event("ADDED", "c", "3", "13")])],
    "a=2 c=3",
    &["stream"]
)]
#[case::resumed_after_a_drop_from_the_last_event(
    vec![
        Answer::Closed(vec![added("a", "1"), end_of_list(), modified("a", "2", "11")]),
        Answer::Open(vec![modified("a", "3", "12")]),
    ],
    "a=3",
    &["stream", "watch from 11"]
)]
#[case::resumed_from_a_bookmark(
    vec![
        Answer::Closed(vec![added("a", "1"), end_of_list(), bookmark("40", false)]),
        Answer::Open(vec![modified("a", "3", "41")]),
    ],
    "a=3",
    &["stream", "watch from 40"]
)]
#[case::too_old_as_an_event(
    vec![
        Answer::Open(vec![added("a", "1"), added("b", "1"), end_of_list(), error(410)]),
        Answer::Open(vec![added("b", "2"), end_of_list()]),
    ],
    "b=2",
    &["stream", "stream"]
)]
#[case::too_old_as_an_http_status(
    vec![
        Answer::Closed(vec![added("a", "1"), added("b", "1"), end_of_list()]),
        Answer::Refused(410),
        Answer::Open(vec![added("b", "2"), end_of_list()]),
    ],
    "b=2",
    &["stream", "watch from 10", "stream"]
)]
#[case::list_that_breaks_off_leaves_no_ghosts(
    vec![
        Answer::Closed(vec![added("ghost", "1")]),
        Answer::Open(vec![added("a", "1"), end_of_list()]),
    ],
    "a=1",
    &["stream", "stream"]
)]
#[case::server_that_cannot_stream_lists(
    vec![
        Answer::Refused(422),
        page(&[object("a", "1", "8")], "more"),
        page(&[object("b", "1", "9")], ""),
        Answer::Open(vec![modified("a", "2", "11")]),
    ],
    "a=2 b=1",
    &["stream", "page", "page more", "watch from 10"]
)]
#[case::page_token_that_expires(
    vec![
        Answer::Refused(422),
        page(&[object("ghost", "1", "8")], "more"),
        Answer::Refused(410),
        page(&[object("a", "1", "8")], ""),
    ],
    "a=1",
    &["stream", "page", "page more", "page"]
)]
#[case::throttled(
    vec![Answer::Refused(429), Answer::Open(vec![added("a", "1"), end_of_list()])],
    "a=1",
    &["stream", "stream"]
)]
#[case::server_error(
    vec![Answer::Refused(500), Answer::Refused(503), Answer::Open(vec![added("a", "1"), end_of_list()])],
    "a=1",
    &["stream", "stream", "stream"]
)]
#[case::failed_watch_is_resumed(
    vec![
        Answer::Closed(vec![added("a", "1"), end_of_list()]),
        Answer::Refused(500),
        Answer::Open(vec![modified("a", "2", "11")]),
    ],
    "a=2",
    &["stream", "watch from 10", "watch from 10"]
)]
#[case::too_old_in_many_lines(
    vec![
        Answer::Closed(vec![added("a", "1"), added("b", "1"), end_of_list()]),
        Answer::RefusedInLines(410),
        Answer::Open(vec![added("b", "2"), end_of_list()]),
    ],
    "b=2",
    &["stream", "watch from 10", "stream"]
)]
#[case::no_streaming_in_many_lines(
    vec![Answer::RefusedInLines(422), page(&[object("a", "1", "8")], ""), Answer::Open(vec![modified("a", "2", "11")])],
    "a=2",
    &["stream", "page", "watch from 10"]
)]
#[case::unreadable_object_hides_no_other(
    vec![Answer::Open(vec![json!({"type": "ADDED", "object": {"metadata": "nonsense"}}), added("a", "1"), end_of_list()])],
    "a=1",
    &["stream"]
)]
#[case::unreadable_object_hides_no_other_of_its_page(
    vec![
        Answer::Refused(422),
        page(&[json!({"metadata": "nonsense"}), object("a", "1", "8")], "more"),
        page(&[json!({"metadata": "nonsense"}), object("a", "1", "8")], "more"),
        page(&[object("b", "1", "9")], ""),
    ],
    "a=1 b=1",
    &["stream", "page", "page", "page more"]
)]
#[tokio::test(start_paused = true)]
async fn the_content_survives(#[case] script: Vec<Answer>, #[case] expected: &str, #[case] asked: &[&str]) {
    let server = Server::new(script);
    let cache = server.cache();
    until(&cache, |cache| cache.is_synced() && visible(cache) == expected).await;
    // Requests that follow the last of the script hang, and are not of interest.
    assert_eq!(server.asked()[..asked.len()], *asked);
}

#[tokio::test(start_paused = true)]
async fn old_content_stays_until_relist_completes() {
    let server = Server::new([
        Answer::Open(vec![added("a", "1"), end_of_list(), error(410)]),
        Answer::Open(vec![added("b", "1")]),
    ]);
    let cache = server.cache();
    cache.wait_synced().await;
    let asked_again = async {
        while server.asked().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_mins(1), asked_again).await.unwrap();
    assert_eq!(visible(&cache), "a=1");
    assert!(cache.is_synced());
    assert_eq!(cache.get(&NamespacedName::new("ns", "b")), None);
}

#[rstest]
#[case::in_one_line(vec![Answer::Refused(403)])]
#[case::in_many_lines(vec![Answer::RefusedInLines(403), Answer::Refused(403)])]
#[tokio::test(start_paused = true)]
async fn granted_right_ends_forbidden_state(#[case] mut script: Vec<Answer>) {
    script.push(Answer::Open(vec![added("a", "1"), end_of_list()]));
    let server = Server::new(script);
    let cache = server.cache();
    until(&cache, |cache| matches!(cache.state(), KindState::Forbidden(_))).await;
    assert!(!cache.is_synced());
    until(&cache, |cache| cache.state() == KindState::Synced(())).await;
    assert_eq!(visible(&cache), "a=1");
}

#[tokio::test(start_paused = true)]
async fn revoked_right_is_shown_and_content_kept() {
    let server = Server::new([
        Answer::Closed(vec![added("a", "1"), end_of_list()]),
        Answer::Refused(403),
        Answer::Open(vec![bookmark("11", false)]),
    ]);
    let cache = server.cache();
    until(&cache, |cache| matches!(cache.state(), KindState::Forbidden(_))).await;
    assert_eq!((cache.is_synced(), visible(&cache).as_str()), (true, "a=1"));
    until(&cache, |cache| cache.state() == KindState::Synced(())).await;
}

#[tokio::test(start_paused = true)]
async fn silently_closed_watch_reopens_with_delay() {
    let closed = || Answer::Closed(vec![]);
    let server = Server::new(std::iter::repeat_with(closed).take(10_000));
    let _cache = server.cache();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(
        server.asked().len() < 20,
        "{} requests in a minute",
        server.asked().len()
    );
}

#[tokio::test(start_paused = true)]
async fn server_without_streaming_lists_is_listed() {
    let server = Server::new([Answer::Open(vec![]), page(&[object("a", "1", "8")], "")]);
    let cache = server.cache();
    until(&cache, |cache| cache.is_synced()).await;
    assert_eq!(visible(&cache), "a=1");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_died_silently_is_replaced() {
    let server = Server::new([
        Answer::Open(vec![added("a", "1"), end_of_list()]),
        Answer::Open(vec![modified("a", "2", "11")]),
    ]);
    let cache = server.cache();
    until(&cache, |cache| visible(cache) == "a=2").await;
    assert_eq!(server.asked()[..2], ["stream", "watch from 10"]);
}

/// For as long as it takes an API server to come back that nobody notices: nothing else changes.
#[tokio::test(start_paused = true)]
async fn silence_and_its_end_notify_the_loop() {
    let answers = std::iter::once(Answer::Closed(vec![added("a", "1"), end_of_list()]));
    let server = Server::new(answers.chain(std::iter::repeat_n(Answer::Refused(500), 60)));
    let api: Api<ConfigMap> = Api::namespaced(server.client(), "ns");
    let watches = Watches::detached();
    let cache = watches.cache("things", api, Selection::all(), |object| object.data?.remove("value"));
    cache.wait_synced().await;
    let notified = async || {
        let notified = timeout(Duration::from_hours(1), watches.trigger().notified()).await;
        notified.expect("nothing wakes the loop");
    };
    notified().await;
    let heard = tokio::time::Instant::now();
    assert!(cache.is_fresh());
    notified().await;
    assert_eq!(
        (heard.elapsed() + Duration::from_millis(500)).as_secs(),
        STALE_AFTER.as_secs()
    );
    assert!(!cache.is_fresh());
    notified().await;
    assert!(cache.is_fresh());
    assert_eq!(visible(&cache), "a=1");
    // It goes on like any other.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(cache.is_fresh());
}

#[tokio::test(start_paused = true)]
async fn a_repeated_object_rings_no_bell() {
    let server = Server::new([
        Answer::Closed(vec![added("a", "1"), end_of_list()]),
        Answer::Open(vec![modified("a", "1", "11"), modified("a", "2", "12")]),
    ]);
    let cache = server.cache();
    cache.wait_synced().await;
    let changes = cache.changes();
    let before = *changes.borrow();
    until(&cache, |cache| visible(cache) == "a=2").await;
    assert_eq!(*changes.borrow(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_ends_the_watch() {
    let server = Server::new([Answer::Open(vec![added("a", "1"), end_of_list()])]);
    let cache = server.cache();
    cache.wait_synced().await;
    let clone = cache.clone();
    drop(cache);
    assert_eq!(visible(&clone), "a=1");
    drop(clone);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(server.asked(), ["stream"]);
}

/// Writes down what it is told.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn note(&self, what: &str, object: &ConfigMap) -> bool {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        self.0.lock().unwrap().push(format!("{what} {name}"));
        true
    }

    fn pages(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Index<ConfigMap> for Diary {
    fn list_began(&mut self) {
        self.0.lock().unwrap().push("began".to_owned());
    }

    fn listed(&mut self, object: ConfigMap) -> bool {
        self.note("listed", &object)
    }

    fn list_ended(&mut self) -> bool {
        self.0.lock().unwrap().push("ended".to_owned());
        false
    }

    fn applied(&mut self, object: ConfigMap) -> bool {
        self.note("applied", &object)
    }

    fn deleted(&mut self, object: ConfigMap) -> bool {
        self.note("deleted", &object)
    }

    fn objects(&self) -> usize {
        0
    }
}

impl Server {
    fn feed(&self, diary: &Diary) -> WatchHandle {
        let api: Api<ConfigMap> = Api::namespaced(self.client(), "ns");
        Watches::detached().follow("things", api, Selection::all(), diary.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn index_hears_every_watch_step_in_order() {
    let server = Server::new([
        Answer::Closed(vec![added("a", "1")]),
        Answer::Open(vec![
            added("a", "1"),
            end_of_list(),
            modified("a", "2", "11"),
            event("DELETED", "a", "2", "12"),
        ]),
    ]);
    let diary = Diary::default();
    let feed = server.feed(&diary);
    feed.wait_synced().await;
    let expected = [
        "began",
        "listed a",
        "began",
        "listed a",
        "ended",
        "applied a",
        "deleted a",
    ];
    timeout(Duration::from_mins(1), async {
        while diary.pages().len() < expected.len() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(diary.pages(), expected);
}

#[tokio::test(start_paused = true)]
async fn index_completes_on_an_unchanged_first_list() {
    let server = Server::new([Answer::Open(vec![end_of_list()])]);
    let feed = server.feed(&Diary::default());
    let mut changes = feed.changes();
    feed.wait_synced().await;
    timeout(Duration::from_mins(1), changes.wait_for(|changes| *changes > 0))
        .await
        .unwrap()
        .unwrap();
}

/// The server refuses to watch, and a list, or a read of the one object, takes its place.
#[rstest]
#[case::listed(
    Selection::all(),
    vec![
        Answer::Refused(403), page(&[object("a", "1", "8")], ""),
        Answer::Refused(403), page(&[object("a", "2", "9")], ""),
    ],
    "a=2",
    &["stream", "page", "stream", "page"]
)]
#[case::read_where_it_may_not_be_listed_either(
    Selection::all().named("a"),
    vec![Answer::Refused(403), Answer::Refused(403), Answer::Page(object("a", "1", "8"))],
    "a=1",
    &["stream", "page", "page"]
)]
#[case::named_object_is_gone(
    Selection::all().named("a"),
    vec![
        Answer::Refused(403), page(&[object("a", "1", "8")], ""),
        Answer::Refused(403), Answer::Refused(403), Answer::Refused(404),
    ],
    "",
    &["stream", "page", "stream", "page", "page"]
)]
#[tokio::test(start_paused = true)]
async fn content_that_may_not_be_watched_is_polled(
    #[case] selection: Selection,
    #[case] script: Vec<Answer>,
    #[case] expected: &str,
    #[case] asked: &[&str],
) {
    let server = Server::new(script);
    let cache = server.selecting(selection.or_polled(Duration::from_mins(1)));
    until(&cache, |cache| {
        server.asked().len() >= asked.len() && cache.state() == KindState::Synced(()) && visible(cache) == expected
    })
    .await;
    assert_eq!(server.asked()[..asked.len()], *asked);
    assert!(cache.is_polled());
}

#[tokio::test(start_paused = true)]
async fn polling_ends_when_the_right_to_watch_is_given() {
    let mut script = Vec::new();
    for _ in 0..3 {
        script.extend([Answer::Refused(403), page(&[object("a", "1", "8")], "")]);
    }
    script.push(Answer::Open(vec![added("b", "1"), end_of_list()]));
    let server = Server::new(script);
    let began = tokio::time::Instant::now();
    let cache = server.selecting(Selection::all().or_polled(Duration::from_mins(1)));
    until(&cache, |cache| visible(cache) == "b=1").await;
    assert!(!cache.is_polled());
    // One refusal may be a moment's: the first poll is followed by another soon.
    let took = began.elapsed();
    assert!(
        Duration::from_mins(2) < took && took < Duration::from_secs(125),
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_listed_either_is_forbidden() {
    let server = Server::new([Answer::Refused(403), Answer::Refused(403)]);
    let cache = server.selecting(Selection::all().or_polled(Duration::from_mins(1)));
    until(&cache, |cache| matches!(cache.state(), KindState::Forbidden(_))).await;
    assert!(!cache.is_synced() && !cache.is_polled());
}

/// The projection keeps count of what it was told of one object.
#[tokio::test(start_paused = true)]
async fn projection_knows_the_value_before() {
    let server = Server::new([
        Answer::Open(vec![
            added("a", "1"),
            end_of_list(),
            modified("a", "2", "11"),
            error(410),
        ]),
        Answer::Open(vec![added("a", "3"), added("b", "1"), end_of_list()]),
    ]);
    let api: Api<ConfigMap> = Api::namespaced(server.client(), "ns");
    let watches = Watches::detached();
    let cache = watches.cache_comparing("things", api, Selection::all(), |object, known: Previous<String>| {
        let before = known.value.map(|before| (*before).clone()).unwrap_or_default();
        let sight = if known.is_first_list { "first:" } else { "" };
        Some(format!("{before}{sight}{}", object.data?.remove("value")?))
    });
    until(&cache, |cache| visible(cache) == "a=first:123 b=1").await;
}
