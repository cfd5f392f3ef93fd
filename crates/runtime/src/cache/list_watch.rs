//! The loop that keeps one list-and-watch alive and reports each step of it.
//!
//! kube's own `watcher` is not used, for four reasons found in its source (kube-runtime 4.2): with streaming lists it
//! announces no beginning, so a list that breaks off and starts again leaves deleted objects behind; a watch that is
//! refused with HTTP 410 instead of a 410 event is repeated with the same version for ever; a connection that closes at
//! once without a word is reopened without any pause; and bookmarks, the only sign of life of a quiet watch, stay hidden.

use std::pin::pin;
use std::time::Duration;

use backon::ExponentialBackoff;
use futures::StreamExt;
use kube::api::{ListParams, ObjectList, WatchEvent, WatchParams};
use kube::core::Request;
use kube::{Api, Resource};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::selection::WATCH_SECONDS;
use super::watches::WatchEventHandler;
use super::{Index, Selection, Watchable};
use crate::api_error::{has_code, no_answer};
use crate::backoff::endless_backoff;

/// One step of the watch, with whole objects.
#[derive(Debug)]
pub(super) enum Step<K> {
    ListBegan,
    Listed(K),
    ListEnded,
    Applied(K),
    Deleted(K),
}

/// An answer that has not begun by then will not come.
const OPEN_TIMEOUT: Duration = Duration::from_secs(35);

/// A streamed list that says nothing for so long comes from a server that does not know streaming lists.
const LIST_SILENCE: Duration = Duration::from_secs(30);

/// A refusal comes at once: a watch that is still open after so long, without a word, is being served. Its first bookmark
/// may be a minute away, too long to go on taking the right to read for lost.
const SERVED_AFTER: Duration = Duration::from_secs(1);

/// Bookmarks come about once a minute from a server that sends them at all.
const SILENCE_AFTER_BOOKMARKS: Duration = Duration::from_secs(150);

/// A watch that lasted for so long was a healthy one; its successor is opened at once.
const HEALTHY_LIFE: Duration = Duration::from_secs(5);

/// Short enough that an operator is not blind for long after the API server has come back.
const LONGEST_DELAY: Duration = Duration::from_secs(15);

/// From 100 ms up to [`LONGEST_DELAY`]. Jitter, up to as much again as the delay, keeps the watches of one process, and the
/// processes of one cluster, from coming back in the same instant.
fn backoff() -> ExponentialBackoff {
    endless_backoff(Duration::from_millis(50), LONGEST_DELAY)
}

/// Marks the bookmark that ends a streamed list (KEP-3157).
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// How the content is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// The watch itself brings the list, object by object (KEP-3157, on by default from Kubernetes 1.34): one request,
    /// and never more than one object in memory.
    Streamed,
    /// Page by page, where the server refuses to stream.
    Paged,
}

/// Where the watch stands.
#[derive(Clone, Debug)]
enum Position {
    /// Nothing is known, or what was known is too old.
    Start,
    /// Everything up to this resource version has been told.
    At(String),
}

/// How one connection ended.
enum Ending {
    /// It simply ended: the server's time limit, a restart, a network that forgot it.
    Closed,
    /// The version is too old (410): list again.
    Expired,
    /// The server cannot stream lists.
    NoStreaming,
    Failed(kube::Error),
}

/// Runs until dropped.
pub(super) async fn run<K: Watchable>(
    api: Api<K>,
    selection: Selection,
    handler: &mut WatchEventHandler<impl Index<K>>,
) {
    let mut listing = Listing::Streamed;
    let mut position = Position::Start;
    let mut was_polled = false;
    let mut backoff = backoff();
    loop {
        let began = Instant::now();
        let ending = match (&position, listing) {
            (Position::Start, Listing::Paged) => list(&api, &selection, &mut position, handler).await,
            _ => watch(&api, &selection, &mut position, handler).await,
        };
        match ending {
            Ok(()) => continue,
            Err(Ending::Expired) => position = Position::Start,
            Err(Ending::NoStreaming) => {
                listing = Listing::Paged;
                continue;
            }
            Err(Ending::Closed) => {}
            Err(Ending::Failed(error)) => match selection.poll_interval() {
                Some(interval) if has_code(&error, 403) && poll(&api, &selection, handler).await.is_ok() => {
                    // An API server that restarts forbids everything for a moment: one refusal is not believed for long.
                    let wait = if was_polled { interval } else { SERVED_AFTER };
                    was_polled = true;
                    position = Position::Start;
                    tokio::time::sleep(wait).await;
                    continue;
                }
                _ => handler.failed(&error),
            },
        }
        was_polled = false;
        if began.elapsed() >= HEALTHY_LIFE {
            backoff = self::backoff();
        } else {
            tokio::time::sleep(backoff.next().unwrap_or(LONGEST_DELAY)).await;
        }
    }
}

/// One watch, from the position on; from the start it brings the list too.
async fn watch<K: Watchable>(
    api: &Api<K>,
    selection: &Selection,
    position: &mut Position,
    handler: &mut WatchEventHandler<impl Index<K>>,
) -> Result<(), Ending> {
    let (params, version): (WatchParams, _) = match position {
        // An empty version asks for the most recent state; "0" would take whatever this API server remembers.
        Position::Start => (selection.watch_params(true), String::new()),
        Position::At(version) => (selection.watch_params(false), version.clone()),
    };
    let mut listing = params.send_initial_events;
    if listing {
        handler.step(Step::ListBegan);
    }
    let opened = in_time(api.watch(&params, &version)).await;
    let mut events = pin!(opened.map_err(Ending::Failed)?);
    let deadline = Instant::now() + Duration::from_secs(u64::from(WATCH_SECONDS) + 5);
    let mut bookmarks_seen = false;
    let mut has_told = false;
    let mut is_garbled = false;
    let mut is_served = listing;
    handler.polled(false);
    loop {
        let silence = if listing {
            LIST_SILENCE
        } else if bookmarks_seen {
            SILENCE_AFTER_BOOKMARKS
        } else {
            deadline.saturating_duration_since(Instant::now())
        };
        let patience = if is_served { silence } else { SERVED_AFTER.min(silence) };
        let event = match timeout(patience, events.next()).await {
            Ok(Some(event)) => event,
            Err(_) if !is_served => {
                is_served = true;
                handler.on_response();
                continue;
            }
            Err(_) if listing => return Err(Ending::NoStreaming),
            // It may have said that the version is too old.
            Ok(None) if is_garbled && !has_told => return Err(Ending::Expired),
            Ok(None) | Err(_) => return Err(Ending::Closed),
        };
        is_served = true;
        has_told |= event.is_ok();
        match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                handler.on_response();
                if listing {
                    handler.step(Step::Listed(object));
                } else {
                    advance(position, &object);
                    handler.step(Step::Applied(object));
                }
            }
            Ok(WatchEvent::Deleted(object)) => {
                handler.on_response();
                advance(position, &object);
                handler.step(Step::Deleted(object));
            }
            Ok(WatchEvent::Bookmark(bookmark)) => {
                handler.on_response();
                bookmarks_seen = true;
                if listing && bookmark.metadata.annotations.contains_key(INITIAL_EVENTS_END) {
                    listing = false;
                    handler.step(Step::ListEnded);
                }
                if !listing {
                    *position = Position::At(bookmark.metadata.resource_version);
                }
            }
            // Lines that are no events are a refusal: in plain text, or, where metadata alone is asked for, a Status in many lines.
            // kube reads a refused list as a whole, and so learns what it says.
            Err(kube::Error::SerdeError(_)) if listing && !has_told => {
                return list(api, selection, position, handler).await;
            }
            Err(error @ kube::Error::SerdeError(_)) => {
                is_garbled = true;
                handler.failed(&error);
            }
            Ok(WatchEvent::Error(status)) => return Err(ending_of(kube::Error::Api(status), listing)),
            // One object that cannot be read must not hide the others; it keeps its last known value.
            Err(error) if is_unreadable_object(&error) => handler.failed(&error),
            Err(error) => return Err(ending_of(error, listing)),
        }
    }
}

/// One complete list, page by page.
async fn list<K: Watchable>(
    api: &Api<K>,
    selection: &Selection,
    position: &mut Position,
    handler: &mut WatchEventHandler<impl Index<K>>,
) -> Result<(), Ending> {
    handler.step(Step::ListBegan);
    let mut continue_token = None;
    loop {
        let params = selection.page(continue_token);
        let page = match in_time(api.list(&params)).await {
            Err(error) if is_unreadable_object(&error) => in_time(readable(api, &params, handler)).await,
            page => page,
        };
        let page = page.map_err(|error| ending_of(error, false))?;
        handler.on_response();
        for object in page.items {
            handler.step(Step::Listed(object));
        }
        continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if continue_token.is_none() {
            let version = page.metadata.resource_version.filter(|version| !version.is_empty());
            *position = Position::At(version.ok_or_else(|| Ending::Failed(no_version()))?);
            handler.step(Step::ListEnded);
            return Ok(());
        }
    }
}

/// The content without a watch: a list, or, where only that is granted, the one object that is asked for.
async fn poll<K: Watchable>(
    api: &Api<K>,
    selection: &Selection,
    handler: &mut WatchEventHandler<impl Index<K>>,
) -> Result<(), Ending> {
    let listed = list(api, selection, &mut Position::Start, handler).await;
    match (listed, selection.name()) {
        (Err(Ending::Failed(error)), Some(name)) if has_code(&error, 403) => {
            let object = match in_time(api.get(name)).await {
                Err(kube::Error::Api(status)) if status.code == 404 => None,
                object => Some(object.map_err(Ending::Failed)?),
            };
            handler.on_response();
            handler.step(Step::ListBegan);
            if let Some(object) = object {
                handler.step(Step::Listed(object));
            }
            handler.step(Step::ListEnded);
        }
        (listed, _) => listed?,
    }
    handler.polled(true);
    Ok(())
}

/// A page again, without those of its objects that cannot be read: one of them must not hide the others.
async fn readable<K: Watchable>(
    api: &Api<K>,
    params: &ListParams,
    handler: &mut WatchEventHandler<impl Index<K>>,
) -> Result<ObjectList<K>, kube::Error> {
    let request = Request::new(api.resource_url()).list(params);
    let request = request.map_err(|error| kube::Error::Service(Box::new(error)))?;
    let page: ObjectList<Value> = api.clone().into_client().request(request).await?;
    let mut items = Vec::with_capacity(page.items.len());
    for object in page.items {
        match serde_json::from_value(object) {
            Ok(object) => items.push(object),
            Err(error) => handler.failed(&kube::Error::SerdeError(error)),
        }
    }
    Ok(ObjectList {
        types: page.types,
        metadata: page.metadata,
        items,
    })
}

async fn in_time<T>(answer: impl Future<Output = Result<T, kube::Error>>) -> Result<T, kube::Error> {
    timeout(OPEN_TIMEOUT, answer).await.unwrap_or_else(|_| Err(no_answer()))
}

fn ending_of(error: kube::Error, streaming: bool) -> Ending {
    match &error {
        kube::Error::Api(status) if status.code == 410 => Ending::Expired,
        kube::Error::Api(status) if streaming && matches!(status.code, 400 | 422) => Ending::NoStreaming,
        _ => Ending::Failed(error),
    }
}

/// kube takes a line that is no event for a failure of the server if it reads as a `Status`; as every field of that is
/// optional, an unreadable object arrives as a `Status` with nothing in it.
fn is_unreadable_object(error: &kube::Error) -> bool {
    match error {
        kube::Error::SerdeError(_) => true,
        kube::Error::Api(status) => status.code == 0,
        _ => false,
    }
}

fn advance<K: Resource>(position: &mut Position, object: &K) {
    if let Some(version) = &object.meta().resource_version {
        *position = Position::At(version.clone());
    }
}

fn no_version() -> kube::Error {
    kube::Error::Service("a list without a resourceVersion cannot be watched from".into())
}
