//! The view that clients have of the cluster through their watches: live, or standing still.

use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body as ApiBody;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::answer::Body;

/// What watches may bring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    /// While set, nothing newer than this resource version is told to anyone.
    pub frozen_at: Option<String>,
    /// Watches from a version older than this are told to list again (410).
    pub horizon: u64,
    /// Watches opened under an older number are broken.
    pub generation: u64,
}

/// The answer of a watch that was asked for under the generation `born`: held back while the view stands still or it is muted,
/// and broken when it is told to be. `first` goes before it.
///
/// What comes from the API server is read at once and kept, or it would end a watch that does not read.
pub(super) fn watched(
    first: Bytes,
    mut body: ApiBody,
    born: u64,
    mut view: watch::Receiver<View>,
    mut muted: watch::Receiver<bool>,
    end: Option<Instant>,
) -> Body {
    let (keep, mut kept) = mpsc::unbounded_channel::<Bytes>();
    tokio::spawn(async move {
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = keep.closed() => return,
            };
            let Some(data) = frame.and_then(Result::ok).and_then(|frame| frame.into_data().ok()) else {
                return;
            };
            if keep.send(data).is_err() {
                return;
            }
        }
    });
    let (deliver, delivered) = mpsc::channel::<std::io::Result<Frame<Bytes>>>(1);
    tokio::spawn(async move {
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
                now.frozen_at.is_some() || *muted.borrow_and_update()
            };
            tokio::select! {
                // What the API server tells after the view has come to stand still is not told.
                biased;
                () = &mut cut => break,
                () = deliver.closed() => return,
                changed = view.changed() => if changed.is_err() { return },
                Ok(()) = muted.changed() => {}
                data = kept.recv(), if !frozen => match data {
                    Some(data) => if deliver.send(Ok(Frame::data(data))).await.is_err() { return },
                    // The API server has ended it in good order.
                    None => return,
                },
            }
        }
        let _ = deliver
            .send(Err(std::io::Error::other("the proxy broke this watch")))
            .await;
    });
    let stream = futures::stream::unfold(delivered, |mut delivered| async {
        delivered.recv().await.map(|frame| (frame, delivered))
    });
    StreamBody::new(stream).boxed_unsync()
}

/// The events with which a watch from the start begins, made of a list: its objects, and for a streamed list
/// (KEP-3157) the bookmark that ends it.
pub(super) fn as_initial_events(list: &Value, streamed: bool) -> Bytes {
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
    let line = |kind: &str, object: Value| format!("{}\n", json!({"type": kind, "object": object}));
    let items = list["items"].as_array().into_iter().flatten();
    let mut lines: Vec<String> = items.map(|item| line("ADDED", whole(item))).collect();
    if streamed {
        lines.push(line(
            "BOOKMARK",
            json!({"apiVersion": api_version, "kind": kind, "metadata": {
                "resourceVersion": list["metadata"]["resourceVersion"],
                "annotations": {"k8s.io/initial-events-end": "true"},
            }}),
        ));
    }
    lines.concat().into()
}
