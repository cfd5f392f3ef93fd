//! A cache of a kind that may be absent.

use std::sync::Arc;
use std::time::Duration;

use backon::ExponentialBackoff;
use kube::core::{ApiResource, DynamicObject};
use nodeward_core::signal::WatchedResource;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::sleep;

use super::kind_registry::{GroupState, KindRegistry, ServedKind};
use crate::backoff::endless_backoff;
use crate::cache::{Cache, Content, KindState, NamespacedName, Selection, WatchHealth, Watches};
use crate::supervise::SharedTask;

/// What decisions may rest on.
#[derive(Clone, Debug)]
pub enum Known<V> {
    /// The server does not serve the kind: there are no objects.
    Absent,
    /// These objects, and no others.
    Objects(Content<V>),
    /// Nothing, for this reason.
    Unknown(String),
}

/// A projected watch that opens when its kind appears and closes when the kind goes, without a restart.
/// Clones share it; dropping the last one closes the watch.
pub struct DynamicCache<V> {
    shared: Arc<Shared<V>>,
    task: SharedTask,
}

struct Shared<V> {
    name: &'static str,
    slot: RwLock<Slot<V>>,
}

enum Slot<V> {
    Unknown,
    Absent,
    Open(Cache<V>, ApiResource),
}

/// A kind that is built in need not wait for a list of definitions that does not come.
const DEFINITIONS_TIMEOUT: Duration = Duration::from_secs(5);

/// A kind is asked for again when a definition of its group changes. This is for what no definition tells: an aggregated
/// API, or definitions that may not be watched.
const LONGEST_RETRY: Duration = Duration::from_mins(5);

/// Discovery lags behind a definition by moments.
fn retries() -> ExponentialBackoff {
    endless_backoff(Duration::from_millis(100), LONGEST_RETRY)
}

impl Watches {
    /// Opens a cache of a kind that may be absent. `project` works as in [`Watches::cache`].
    pub fn dynamic<V>(
        &self,
        name: &'static str,
        kinds: &KindRegistry,
        resource: WatchedResource,
        project: impl Fn(DynamicObject) -> Option<V> + Send + Sync + 'static,
    ) -> DynamicCache<V>
    where
        V: PartialEq + Send + Sync + 'static,
    {
        self.dynamic_selecting(name, kinds, resource, |selection| selection, project)
    }

    /// The same with a selection of the caller's own.
    pub(super) fn dynamic_selecting<V>(
        &self,
        name: &'static str,
        kinds: &KindRegistry,
        resource: WatchedResource,
        select: impl FnOnce(Selection) -> Selection,
        project: impl Fn(DynamicObject) -> Option<V> + Send + Sync + 'static,
    ) -> DynamicCache<V>
    where
        V: PartialEq + Send + Sync + 'static,
    {
        let shared = Arc::new(Shared {
            name,
            slot: RwLock::new(Slot::Unknown),
        });
        let follower = Follower {
            selection: select(selection(&resource)),
            shared: Arc::clone(&shared),
            watches: self.clone(),
            kinds: kinds.clone(),
            resource,
            project: Arc::new(project),
        };
        let task = self.supervisor().spawn_guarded(name, follower.run());
        DynamicCache {
            shared,
            task: Arc::new(task),
        }
    }
}

impl<V> DynamicCache<V> {
    /// The name that logs and metrics use.
    pub fn name(&self) -> &'static str {
        self.shared.name
    }

    /// How far the content can be trusted.
    pub fn state(&self) -> KindState {
        match &*self.shared.read() {
            Slot::Unknown => KindState::Syncing,
            Slot::Absent => KindState::Absent,
            Slot::Open(cache, _) => match cache.state() {
                KindState::Synced(()) if !cache.is_fresh() => KindState::Stale,
                state => state,
            },
        }
    }

    /// What decisions may rest on. A server that restarts forbids everything for a moment, which changes nothing; a watch
    /// that is cut off for long does.
    pub fn known(&self) -> Known<V> {
        let kind = self.shared.name;
        if let Slot::Open(cache, _) = &*self.shared.read()
            && cache.is_fresh()
        {
            return Known::Objects(cache.snapshot());
        }
        match self.state() {
            KindState::Absent => Known::Absent,
            KindState::Syncing => Known::Unknown(format!("{kind} are still being listed")),
            KindState::Forbidden(message) => Known::Unknown(format!("{kind} may not be read: {message}")),
            // Fresh when it was looked at last, or it would not be synced.
            KindState::Stale | KindState::Synced(()) => {
                Known::Unknown(format!("{kind} have not been heard of for minutes"))
            }
        }
    }

    /// Whether all is known that there is to know: the kind is absent, or the content has been complete once.
    pub fn is_settled(&self) -> bool {
        match &*self.shared.read() {
            Slot::Unknown => false,
            Slot::Absent => true,
            Slot::Open(cache, _) => cache.is_synced(),
        }
    }

    /// How the watch fares; `None` while there is none, because the kind is absent or has yet to be looked for.
    pub fn health(&self) -> Option<WatchHealth> {
        self.if_open(|cache, _| cache.health())
    }

    /// Whether the content is only read from time to time, because it may not be watched.
    pub fn is_polled(&self) -> bool {
        self.if_open(|cache, _| cache.is_polled()).unwrap_or_default()
    }

    /// How the API server serves the kind, for requests; `None` while it is absent or has yet to be looked for.
    pub fn resource(&self) -> Option<ApiResource> {
        self.if_open(|_, resource| resource.clone())
    }

    /// One object.
    pub fn get(&self, key: &NamespacedName) -> Option<Arc<V>> {
        self.if_open(|cache, _| cache.get(key)).flatten()
    }

    /// All objects at one moment; none while the kind is absent.
    pub fn snapshot(&self) -> Content<V> {
        self.if_open(|cache, _| cache.snapshot()).unwrap_or_default()
    }

    fn if_open<T>(&self, read: impl FnOnce(&Cache<V>, &ApiResource) -> T) -> Option<T> {
        match &*self.shared.read() {
            Slot::Open(cache, resource) => Some(read(cache, resource)),
            Slot::Unknown | Slot::Absent => None,
        }
    }
}

impl<V> Clone for DynamicCache<V> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            task: Arc::clone(&self.task),
        }
    }
}

impl<V> Shared<V> {
    fn read(&self) -> parking_lot::RwLockReadGuard<'_, Slot<V>> {
        self.slot.read()
    }

    /// The old slot is dropped, and with it its watch, outside of the lock.
    fn put(&self, slot: Slot<V>) {
        let _old = std::mem::replace(&mut *self.slot.write(), slot);
    }
}

/// A watch that is open.
struct Open {
    served: ServedKind,
    /// A definition that was deleted and created again is another one, even if the kind is served as before: the old watch
    /// has ended, and its versions mean nothing.
    definition_uid: Option<String>,
    /// Moves when the server answers 404: discovery, which lags behind the definitions, had named a kind that was gone.
    not_served: watch::Receiver<u64>,
}

/// Opens and closes the watch as the kind comes and goes.
struct Follower<V, P> {
    shared: Arc<Shared<V>>,
    watches: Watches,
    kinds: KindRegistry,
    resource: WatchedResource,
    selection: Selection,
    project: Arc<P>,
}

impl<V, P> Follower<V, P>
where
    V: PartialEq + Send + Sync + 'static,
    P: Fn(DynamicObject) -> Option<V> + Send + Sync + 'static,
{
    /// Asks discovery whether the kind is served, and again whenever that may have changed.
    async fn run(self) {
        let mut changes = self.kinds.changes();
        let mut open: Option<Open> = None;
        let mut retries = retries();
        // Knowing the definitions first saves a second look, and a second watch, a moment later.
        let known = changes.wait_for(|_| self.kinds.state() != KindState::Syncing);
        let _ = tokio::time::timeout(DEFINITIONS_TIMEOUT, known).await;
        loop {
            changes.mark_unchanged();
            let group = self.kinds.group(self.resource.group());
            let retry = match self.kinds.resolve(&self.resource).await {
                Ok(Some(served)) => {
                    self.open(served, &group, &mut open);
                    None
                }
                Ok(None) => {
                    self.close(&mut open);
                    let is_undefined = group.is_empty() && self.kinds.is_synced();
                    Some(if is_undefined {
                        LONGEST_RETRY
                    } else {
                        next(&mut retries)
                    })
                }
                Err(error) => {
                    tracing::debug!(cache = self.shared.name, "discovery failed, tried again: {error}");
                    Some(next(&mut retries))
                }
            };
            let not_served = async {
                match &mut open {
                    Some(open) => drop(open.not_served.changed().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.group_changed(&group, &mut changes) => retries = self::retries(),
                () = not_served => {}
                () = sleep(retry.unwrap_or_default()), if retry.is_some() => {}
            }
        }
    }

    /// Changes of other groups are passed over.
    async fn group_changed(&self, group: &GroupState, changes: &mut watch::Receiver<u64>) {
        // Looked at before the first wait: a change may have come, and been taken note of, while discovery was asked.
        while self.kinds.group(self.resource.group()) == *group {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn open(&self, served: ServedKind, group: &GroupState, open: &mut Option<Open>) {
        let plural = format!("{}.{}", served.resource.plural, served.resource.group);
        let definition_uid = group.get(&plural).map(|definition| definition.uid.clone());
        let is_open = |open: &Open| open.served == served && open.definition_uid == definition_uid;
        if open.as_ref().is_some_and(is_open) {
            return;
        }
        let api = served.api(&self.kinds, &self.resource);
        let project = Arc::clone(&self.project);
        let cache = self
            .watches
            .cache(self.shared.name, api.clone(), self.selection.clone(), move |object| {
                project(object)
            });
        tracing::info!(cache = self.shared.name, kind = %self.resource, "the kind is served: watching it");
        let not_served = cache.status_view().not_served();
        self.shared.put(Slot::Open(cache, served.resource.clone()));
        self.watches.trigger().notify();
        *open = Some(Open {
            served,
            definition_uid,
            not_served,
        });
    }

    fn close(&self, open: &mut Option<Open>) {
        if open.take().is_some() {
            tracing::info!(
                cache = self.shared.name,
                "the kind is no longer served: its watch is closed"
            );
            self.shared.put(Slot::Absent);
            self.watches.trigger().notify();
        } else {
            self.log_absent();
        }
    }

    /// Logs once that the kind is absent, when it becomes known.
    fn log_absent(&self) {
        if matches!(*self.shared.read(), Slot::Unknown) {
            tracing::info!(cache = self.shared.name, kind = %self.resource, "the kind is absent; it is picked up when it appears");
            self.shared.put(Slot::Absent);
            self.watches.trigger().notify();
        }
    }
}

fn next(retries: &mut ExponentialBackoff) -> Duration {
    retries.next().unwrap_or(LONGEST_RETRY)
}

fn selection(resource: &WatchedResource) -> Selection {
    let mut selection = Selection::all();
    if let Some(name) = &resource.name {
        selection = selection.named(name);
    }
    if let Some(labels) = &resource.selector {
        selection = selection.labels(labels);
    }
    selection
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use axum::body::{Body, Bytes};
    use futures::{StreamExt, stream};
    use http::{Request, Response};
    use kube::Client;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::{DynamicCache, KindState, WatchedResource, selection};
    use crate::cache::{Selection, Watches};
    use crate::discovery::KindRegistry;

    fn answer(code: u16, body: &Value) -> Response<Body> {
        Response::builder()
            .status(code)
            .body(Body::from(body.to_string().into_bytes()))
            .unwrap()
    }

    /// What the API server says of a path that nobody serves.
    fn no_such_path() -> Response<Body> {
        Response::builder()
            .status(404)
            .body(Body::from("404 page not found\n"))
            .unwrap()
    }

    /// What it says of a resource that a group it knows does not have.
    fn no_such_resource() -> Response<Body> {
        answer(
            404,
            &json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "no"}),
        )
    }

    /// An empty list, and then silence.
    fn nothing() -> Response<Body> {
        let end = json!({"type": "BOOKMARK", "object": {
            "apiVersion": "v1", "kind": "Signal",
            "metadata": {"resourceVersion": "10", "annotations": {"k8s.io/initial-events-end": "true"}},
        }});
        let line = stream::iter([Ok::<_, std::io::Error>(Bytes::from(format!("{end}\n")))]);
        Response::new(Body::from_stream(line.chain(stream::pending())))
    }

    fn resources() -> Response<Body> {
        let resource = json!({
            "name": "signals", "singularName": "signal", "namespaced": false, "kind": "Signal", "verbs": ["list", "watch"],
        });
        answer(
            200,
            &json!({
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "g.example.com/v1", "resources": [resource],
            }),
        )
    }

    /// A server without definitions whose discovery goes on naming a kind that it no longer serves.
    fn lagging(looks: u32, absent: fn() -> Response<Body>) -> (Client, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let response = match request.uri().path() {
                "/apis/g.example.com/v1" if counter.fetch_add(1, Ordering::SeqCst) < looks => resources(),
                path if path.starts_with("/apis/apiextensions.k8s.io") => nothing(),
                _ => absent(),
            };
            async move { Ok::<_, std::convert::Infallible>(response) }
        });
        (Client::new(service, "default"), asked)
    }

    async fn reaches(cache: &DynamicCache<()>, expected: &KindState) {
        let looking = async {
            while cache.state() != *expected {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let outcome = tokio::time::timeout(Duration::from_mins(2), looking).await;
        assert!(outcome.is_ok(), "never {expected:?}: {:?}", cache.state());
    }

    #[rstest]
    #[case::right_at_once(0)]
    #[case::late(1)]
    #[case::later(4)]
    #[tokio::test(start_paused = true)]
    async fn kind_that_lagging_discovery_names_becomes_absent(
        #[case] looks: u32,
        #[values(no_such_path, no_such_resource)] absent: fn() -> Response<Body>,
    ) {
        let (client, asked) = lagging(looks, absent);
        let watches = Watches::detached();
        let kinds = KindRegistry::spawn(&watches, client);
        let signals = WatchedResource::all("g.example.com/v1", "Signal");
        let cache = watches.dynamic("signals", &kinds, signals, |_| Some(()));
        reaches(&cache, &KindState::Absent).await;
        let settled = asked.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_hours(1)).await;
        let again = asked.load(Ordering::SeqCst) - settled;
        assert!((11..=12).contains(&again), "asked {again} times in an hour");
        assert_eq!((cache.state(), cache.resource().is_none()), (KindState::Absent, true));
    }

    /// As of an aggregated API whose server is gone.
    #[tokio::test(start_paused = true)]
    async fn discovery_without_answer_is_asked_again() {
        let asked = AtomicU32::new(0);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let response = match request.uri().path() {
                "/apis/g.example.com/v1" if asked.fetch_add(1, Ordering::SeqCst) == 0 => None,
                "/apis/g.example.com/v1" => Some(resources()),
                _ => Some(nothing()),
            };
            async move {
                match response {
                    Some(response) => Ok::<_, std::convert::Infallible>(response),
                    None => std::future::pending().await,
                }
            }
        });
        let watches = Watches::detached();
        let kinds = KindRegistry::spawn(&watches, Client::new(service, "default"));
        let signals = WatchedResource::all("g.example.com/v1", "Signal");
        let cache = watches.dynamic("signals", &kinds, signals, |_| Some(()));
        reaches(&cache, &KindState::Synced(())).await;
    }

    #[test]
    fn name_and_labels_are_left_to_the_server() {
        let mut resource = WatchedResource::all("v1", "ConfigMap").named("a");
        resource.selector = Some("b=c".to_owned());
        assert_eq!(selection(&resource), Selection::all().named("a").labels("b=c"));
    }
}
