//! One request on its way through the proxy.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, HOST};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use kube::client::Body as ApiBody;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer::{self, Body};
use super::fault::{Fault, Rule};
use super::gate::{Gate, Stage, Verdict, Write};
use super::record::{Journal, Outcome};
use super::request::{ApiRequest, Verb, with_parameters};
use super::upstream::Upstream;
use super::view::{self, View};

/// What all connections share.
pub(super) struct Shared {
    pub rules: Mutex<Vec<(u64, Rule)>>,
    pub gate: Mutex<Option<(Gate, u64)>>,
    pub view: watch::Sender<View>,
    /// Those that are open, and whether they are muted.
    pub watches: Mutex<Vec<(ApiRequest, watch::Sender<bool>)>>,
    pub journal: Journal,
    pub upstream: Upstream,
    /// Resource and label selector.
    pub confined: Mutex<Vec<(&'static str, String)>>,
}

/// The answer, or the reason why the connection breaks without one.
async fn handle(shared: &Shared, request: Request<Incoming>) -> Result<Response<Body>> {
    let agent = request.headers().get(http::header::USER_AGENT);
    let agent = agent.and_then(|agent| agent.to_str().ok());
    let mut asked = ApiRequest::read(request.method(), request.uri(), agent.unwrap_or_default());
    shared.confine(&mut asked);
    let index = shared.journal.begin(asked.clone());
    let answered = carry(shared, request, &asked, index).await;
    if answered.is_err() {
        shared.journal.end(index, Outcome::Broken);
    }
    answered
}

async fn carry(
    shared: &Shared,
    request: Request<Incoming>,
    asked: &ApiRequest,
    index: usize,
) -> Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.context("the client went away")?.to_bytes();
    let faults = shared.faults_of(asked);
    let mut cut_after = None;
    let mut reply_lost = false;
    for fault in &faults {
        if let Some(answer) = answer::of_fault(fault) {
            shared.journal.end(index, Outcome::Injected(answer.status().as_u16()));
            return Ok(answer);
        }
        match fault {
            Fault::Delay(time) => tokio::time::sleep(*time).await,
            Fault::CutWatch(time) => cut_after = Some(*time),
            Fault::LostReply => reply_lost = true,
            Fault::BrokenConnection => anyhow::bail!("broken connection (injected)"),
            Fault::Silence => std::future::pending().await,
            _ => {}
        }
    }

    let write = shared.write_at_gate(asked);
    let at_gate = async |stage| match &write {
        None => Verdict::Pass,
        Some((gate, number)) => {
            let (number, request) = (*number, asked.clone());
            (gate.hook)(Write { number, stage, request }).await
        }
    };
    ensure!(at_gate(Stage::Before).await == Verdict::Pass, "cut before the write");

    let mut forwarded = Request::new(ApiBody::from(body));
    *forwarded.method_mut() = head.method;
    *forwarded.headers_mut() = head.headers;
    forwarded.headers_mut().remove(HOST);
    let (answer, status) = match asked.verb {
        Verb::Watch => open_watch(shared, forwarded, asked, cut_after).await?,
        Verb::List => list(shared, forwarded, asked).await?,
        _ => plain(shared, forwarded, &asked.uri).await?,
    };

    reply_lost |= at_gate(Stage::After(status)).await == Verdict::Cut;
    if reply_lost {
        shared.journal.end(index, Outcome::Lost(status));
        anyhow::bail!("lost reply");
    }
    shared.journal.end(index, Outcome::Answered(status));
    Ok(answer)
}

/// The whole answer is read first: a lost reply must be of a request that has ended.
async fn plain(shared: &Shared, mut request: Request<ApiBody>, uri: &str) -> Result<(Response<Body>, u16)> {
    *request.uri_mut() = uri.parse()?;
    let answer = shared.upstream.send(request).await?;
    whole(answer).await
}

async fn whole(answer: Response<ApiBody>) -> Result<(Response<Body>, u16)> {
    let (mut head, body) = answer.into_parts();
    // It is one piece now, whatever it was.
    head.headers.remove(http::header::TRANSFER_ENCODING);
    let status = head.status.as_u16();
    let body = body.collect().await?.to_bytes();
    Ok((Response::from_parts(head, answer::full(body)), status))
}

/// A list that fills a cache (it comes in pages, or from the API server's memory) is as old as the view. Any other is
/// a fresh read, which a frozen view does not touch.
async fn list(shared: &Shared, request: Request<ApiBody>, asked: &ApiRequest) -> Result<(Response<Body>, u16)> {
    let fills_a_cache = asked.parameter("limit").is_some() || asked.parameter("resourceVersion") == Some("0");
    let continued = asked.parameter("continue").is_some();
    match shared.frozen_at() {
        Some(version) if fills_a_cache && !continued => plain(shared, request, &exactly(&asked.uri, &version)).await,
        _ => plain(shared, request, &asked.uri).await,
    }
}

fn exactly(uri: &str, version: &str) -> String {
    let exact = [
        ("resourceVersion", Some(version)),
        ("resourceVersionMatch", Some("Exact")),
    ];
    with_parameters(uri, &exact)
}

async fn open_watch(
    shared: &Shared,
    mut request: Request<ApiBody>,
    asked: &ApiRequest,
    cut_after: Option<Duration>,
) -> Result<(Response<Body>, u16)> {
    let view = shared.view.subscribe();
    let View {
        frozen_at,
        horizon,
        generation,
    } = view.borrow().clone();
    let from = asked.parameter("resourceVersion").unwrap_or_default();
    let from_start = from.is_empty() || from == "0" || asked.parameter("sendInitialEvents") == Some("true");
    let too_old = from.parse().is_ok_and(|from: u64| from < horizon);
    if !from_start && too_old {
        return Ok((answer::expired_event(), 200));
    }
    let (uri, first) = match frozen_at {
        Some(version) if from_start => {
            let events = initial_events(shared, request.headers().clone(), asked, &version).await?;
            (from_version(&asked.uri, &version), events)
        }
        _ => (asked.uri.clone(), Bytes::new()),
    };
    *request.uri_mut() = uri.parse()?;
    // Chunks are passed on as they come.
    request.headers_mut().remove(ACCEPT_ENCODING);
    let answer = shared.upstream.send(request).await?;
    if !answer.status().is_success() {
        return whole(answer).await;
    }
    let (head, body) = answer.into_parts();
    let status = head.status.as_u16();
    let end = cut_after.map(|time| Instant::now() + time);
    let body = view::watched(first, body, generation, view, shared.mutable(asked), end);
    Ok((Response::from_parts(head, body), status))
}

/// What a watch from the start tells first, as it was at that version.
async fn initial_events(shared: &Shared, mut headers: HeaderMap, asked: &ApiRequest, version: &str) -> Result<Bytes> {
    let ended = ["watch", "sendInitialEvents", "allowWatchBookmarks", "timeoutSeconds"].map(|name| (name, None));
    let uri = exactly(&with_parameters(&asked.uri, &ended), version);
    headers.remove(ACCEPT_ENCODING);
    headers.remove(CONTENT_LENGTH);
    // A watch may ask for a stream, and for metadata alone in words that a list has others for.
    if let Some(accept) = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()) {
        let accept = accept
            .replace(";stream=watch", "")
            .replace("as=PartialObjectMetadata;", "as=PartialObjectMetadataList;");
        headers.insert(ACCEPT, HeaderValue::from_str(&accept)?);
    }
    let mut request = Request::new(ApiBody::empty());
    *request.headers_mut() = headers;
    *request.uri_mut() = uri.parse()?;
    let answer = shared.upstream.send(request).await?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    let text = String::from_utf8_lossy(&body);
    ensure!(status.is_success(), "list {uri} at {version}: {status}: {text}");
    let list: Value = serde_json::from_slice(&body)?;
    let with_bookmark = asked.parameter("sendInitialEvents") == Some("true");
    Ok(view::as_initial_events(&list, with_bookmark))
}

fn from_version(uri: &str, version: &str) -> String {
    let changes = [
        ("resourceVersion", Some(version)),
        ("resourceVersionMatch", None),
        ("sendInitialEvents", None),
    ];
    with_parameters(uri, &changes)
}

impl Shared {
    fn frozen_at(&self) -> Option<String> {
        self.view.borrow().frozen_at.clone()
    }

    /// Lets a list or a watch bring only what it is confined to.
    fn confine(&self, request: &mut ApiRequest) {
        if !matches!(request.verb, Verb::List | Verb::Watch) {
            return;
        }
        let confined = crate::lock(&self.confined);
        for (_, selector) in confined.iter().filter(|(resource, _)| request.resource == *resource) {
            let asked = request.parameter("labelSelector").filter(|asked| !asked.is_empty());
            let both = asked.map_or_else(|| selector.clone(), |asked| format!("{asked}%2C{selector}"));
            request.uri = with_parameters(&request.uri, &[("labelSelector", Some(&both))]);
        }
    }

    /// Remembers a watch that is open from now on. Returns whether it is muted.
    fn mutable(&self, asked: &ApiRequest) -> watch::Receiver<bool> {
        let mut watches = crate::lock(&self.watches);
        watches.retain(|(_, muted)| !muted.is_closed());
        let (mute, muted) = watch::channel(false);
        watches.push((asked.clone(), mute));
        muted
    }

    /// The faults that strike this request now; each counts it.
    fn faults_of(&self, request: &ApiRequest) -> Vec<Fault> {
        let mut rules = crate::lock(&self.rules);
        let mut faults = Vec::new();
        for (_, rule) in rules.iter_mut().filter(|(_, rule)| rule.meets(request)) {
            rule.times = rule.times.map(|left| left - 1);
            faults.push(rule.fault.clone());
        }
        faults
    }

    /// The gate and the write's number, if it counts this request.
    fn write_at_gate(&self, request: &ApiRequest) -> Option<(Gate, u64)> {
        let mut slot = crate::lock(&self.gate);
        let (gate, count) = slot.as_mut()?;
        if !request.is_write() || !(gate.counts)(request) {
            return None;
        }
        *count += 1;
        Some((gate.clone(), *count))
    }
}

/// Carries a request to its end even if its client goes away meanwhile, as the API server does.
pub(super) async fn detached(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>> {
    tokio::spawn(async move { handle(&shared, request).await }).await?
}
