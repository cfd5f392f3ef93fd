//! The view that clients have of the cluster through their watches: live, or standing still.

use std::convert::Infallible;

use futures::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::Answer;

/// What watches may bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// While set, nothing newer than this resource version is told to anyone.
    pub frozen_at: Option<String>,
    /// Watches from a version older than this are told to list again (410).
    pub horizon: u64,
    /// Watches opened under an older number are broken.
    pub generation: u64,
}

/// Why a watch's body ends without an end.
#[derive(Debug)]
pub(super) struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the proxy broke this watch")
    }
}

impl std::error::Error for Broken {}

/// A watch's answer, held back while the view stands still and broken when it is told to be. `first` goes before it.
///
/// What comes from the API server is read at once and kept, or it would end a watch that does not read.
pub(super) fn watched<B>(first: Bytes, body: B, mut view: watch::Receiver<View>, end: Option<Instant>) -> Answer
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let (keep, mut kept) = mpsc::unbounded_channel::<Bytes>();
    tokio::spawn(async move {
        let mut body = std::pin::pin!(body);
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = keep.closed() => return,
            };
            match frame.and_then(Result::ok).and_then(|frame| frame.into_data().ok()) {
                Some(data) if keep.send(data).is_ok() => {}
                _ => return,
            }
        }
    });
    let (deliver, delivered) = mpsc::channel::<Result<Frame<Bytes>, Broken>>(1);
    tokio::spawn(async move {
        let born = view.borrow().generation;
        if !first.is_empty() && deliver.send(Ok(Frame::data(first))).await.is_err() {
            return;
        }
        let cut = async {
            match end {
                Some(end) => tokio::time::sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        let mut cut = std::pin::pin!(cut);
        loop {
            let frozen = {
                let now = view.borrow_and_update();
                if now.generation != born {
                    break;
                }
                now.frozen_at.is_some()
            };
            tokio::select! {
                () = &mut cut => break,
                () = deliver.closed() => return,
                changed = view.changed() => if changed.is_err() { return },
                data = kept.recv(), if !frozen => match data {
                    Some(data) => if deliver.send(Ok(Frame::data(data))).await.is_err() { return },
                    // The API server has ended it in good order.
                    None => return,
                },
            }
        }
        let _ = deliver.send(Err(Broken)).await;
    });
    let stream = futures::stream::unfold(delivered, |mut delivered| async {
        delivered.recv().await.map(|frame| (frame, delivered))
    });
    BodyExt::boxed(StreamBody::new(stream.boxed().map(|frame| frame)).map_err(std::io::Error::other)).into()
}

/// A streamed list (KEP-3157) made of an ordinary one: its objects, then the bookmark that ends it.
pub(super) fn as_initial_events(list: &Value) -> Bytes {
    let api_version = list["apiVersion"].as_str().unwrap_or_default();
    let list_kind = list["kind"].as_str().unwrap_or_default();
    let kind = list_kind.strip_suffix("List").unwrap_or(list_kind);
    let whole = |item: &Value| {
        let mut object = json!({"apiVersion": api_version, "kind": kind});
        if let (Some(object), Some(fields)) = (object.as_object_mut(), item.as_object()) {
            object.extend(fields.clone());
        }
        object
    };
    let mut events: String = list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| format!("{}\n", json!({"type": "ADDED", "object": whole(item)})))
        .collect();
    let bookmark = json!({"type": "BOOKMARK", "object": {"apiVersion": api_version, "kind": kind, "metadata": {
        "resourceVersion": list["metadata"]["resourceVersion"],
        "annotations": {"k8s.io/initial-events-end": "true"},
    }}});
    events.push_str(&format!("{bookmark}\n"));
    events.into()
}

/// For bodies that cannot fail.
pub(super) fn never(never: Infallible) -> std::io::Error {
    match never {}
}
