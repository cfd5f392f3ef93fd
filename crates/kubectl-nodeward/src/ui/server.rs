//! What the page asks for: its files, and a stream of events.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, middleware};
use futures::{Stream, StreamExt as _, stream};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::changes::Changes;
use super::fleet::Fleet;
use super::gate::{self, Gate};
use super::live::Live;
use super::{assets, node_view};
use crate::failure::Failure;

/// How often the page hears that nothing has changed.
const BEAT: Duration = Duration::from_secs(5);

/// What is shown.
#[derive(Clone)]
pub enum Shown {
    Cluster(Box<Live>),
    /// A moment that was kept.
    Snapshot(Arc<Value>),
}

/// A server that listens on loopback, and its first address.
pub struct Server {
    listener: TcpListener,
    gate: Gate,
}

impl Server {
    /// On this port, or on a free one.
    pub async fn bind(port: Option<u16>) -> std::io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap_or(0)));
        let listener = TcpListener::bind(address).await?;
        let gate = Gate::new(listener.local_addr()?.port());
        Ok(Self { listener, gate })
    }

    pub fn first_address(&self) -> String {
        self.gate.first_address()
    }

    /// Serves until the future is dropped.
    pub async fn serve(self, shown: Shown) -> std::io::Result<()> {
        axum::serve(self.listener, router(self.gate, shown)).await
    }
}

fn router(gate: Gate, shown: Shown) -> Router {
    Router::new()
        .route("/", get(async || file("index.html")))
        .route("/events", get(events))
        .route("/{name}", get(async |Path(name): Path<String>| file(&name)))
        .with_state(shown)
        .layer(middleware::from_fn_with_state(gate, gate::check))
}

fn file(name: &str) -> Response {
    match assets::find(name) {
        Some(asset) => ([(CONTENT_TYPE, asset.content_type())], asset.content).into_response(),
        None => (StatusCode::NOT_FOUND, "There is no such page.\n").into_response(),
    }
}

#[derive(Debug, Deserialize)]
struct Subject {
    node: Option<String>,
}

async fn events(State(shown): State<Shown>, Query(subject): Query<Subject>) -> Response {
    match (shown, subject.node) {
        (Shown::Cluster(live), None) => stream_of(of_fleet(live.fleets())),
        (Shown::Cluster(live), Some(node)) => {
            let views = node_view::views(*live, node).map(|view| match view {
                Ok(view) => event("node", &view),
                Err(Failure::NotFound(message)) => event("gone", &json!({ "message": message })),
                Err(failure) => event("unread", &json!({ "message": failure.to_string() })),
            });
            stream_of(beating(views))
        }
        (Shown::Snapshot(kept), None) => stream_of(beating(once(event("state", &kept["state"])))),
        (Shown::Snapshot(kept), Some(node)) => {
            let view = kept["nodeViews"].get(&node);
            let told = match view {
                Some(view) => event("node", view),
                None => event(
                    "gone",
                    &json!({ "message": format!("the snapshot does not tell more of {node}") }),
                ),
            };
            stream_of(beating(once(told)))
        }
    }
}

fn stream_of(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    Sse::new(events.map(Ok::<_, Infallible>)).into_response()
}

/// An event of the stream. What cannot be written as JSON cannot be shown either.
fn event(name: &str, data: &impl Serialize) -> Event {
    let told = Event::default().event(name).json_data(data);
    told.unwrap_or_else(|error| Event::default().event("problem").data(error.to_string()))
}

/// One event, after which the stream stays open.
fn once(event: Event) -> impl Stream<Item = Event> {
    stream::once(std::future::ready(event)).chain(stream::pending())
}

/// With a beat when nothing comes.
fn beating(events: impl Stream<Item = Event>) -> impl Stream<Item = Event> {
    stream::unfold(Box::pin(events), async |mut events| {
        match timeout(BEAT, events.next()).await {
            Ok(next) => next.map(|event| (event, events)),
            Err(_) => Some((beat(), events)),
        }
    })
}

fn beat() -> Event {
    event("beat", &json!({ "at": Timestamp::now() }))
}

/// The whole fleet first, then what has changed since the event before. A page that is slow gets fewer and larger ones.
fn of_fleet(fleets: watch::Receiver<Option<Arc<Fleet>>>) -> impl Stream<Item = Event> {
    let begin: (_, Option<Arc<Fleet>>) = (fleets, None);
    stream::unfold(begin, async |(mut fleets, sent)| {
        // A fleet that is made anew and shows nothing new does not put it off.
        let beats_at = Instant::now() + BEAT;
        loop {
            let now = fleets.borrow_and_update().clone();
            match (&sent, now) {
                (None, Some(now)) => {
                    let whole = event("state", &*now);
                    return Some((whole, (fleets, Some(now))));
                }
                (Some(before), Some(now)) if !Arc::ptr_eq(before, &now) => {
                    let changes = Changes::between(before, &now);
                    match changes {
                        Ok(Some(changes)) => {
                            let told = event("change", &changes);
                            return Some((told, (fleets, Some(now))));
                        }
                        Ok(None) => {}
                        Err(error) => return Some((event("problem", &error.to_string()), (fleets, Some(now)))),
                    }
                }
                (_, _) => {}
            }
            match timeout_at(beats_at, fleets.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => return Some((beat(), (fleets, sent))),
            }
        }
    })
}
