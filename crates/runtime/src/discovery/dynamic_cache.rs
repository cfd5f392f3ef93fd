//! A cache of a kind that may be absent.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kube::core::DynamicObject;
use tokio::sync::watch;

use super::kind_registry::{GroupState, KindRegistry, ServedKind};
use super::target::DynamicTarget;
use crate::cache::{Cache, CacheState, Content, ObjectKey, WatchHealth, Watches};
use crate::supervise::SharedTask;

/// How far a [`DynamicCache`] can be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindState {
    /// The server answered that it does not serve the kind.
    Absent,
    /// It is not known yet whether the kind exists, or which objects there are.
    Syncing,
    /// The content is complete.
    Synced,
    /// The server refuses to list or watch, in its own words.
    Forbidden(Arc<str>),
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

/// What stands in the place of the kind at the moment.
enum Slot<V> {
    Unknown,
    Absent,
    Open(Cache<V>),
}

/// Discovery lags behind a definition by moments; this many looks (some 30 s in all) and then the next change decides.
const LOOKS_AFTER_A_CHANGE: u32 = 8;
const FIRST_LOOK: Duration = Duration::from_millis(125);
const LONGEST_LOOK: Duration = Duration::from_secs(15);

/// A kind that is built in need not wait for a list of definitions that does not come.
const DEFINITIONS_PATIENCE: Duration = Duration::from_secs(5);

/// Where definitions cannot be watched, there is no other way than to look again now and then.
const LOOK_WITHOUT_A_WATCH: Duration = Duration::from_mins(5);

impl Watches {
    /// Opens a cache of a kind that may be absent. `project` works as in [`Watches::cache`].
    pub fn dynamic<V>(
        &self,
        name: &'static str,
        kinds: &KindRegistry,
        target: DynamicTarget,
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
            shared: Arc::clone(&shared),
            watches: self.clone(),
            kinds: kinds.clone(),
            target,
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
            Slot::Open(cache) => match cache.state() {
                CacheState::Syncing => KindState::Syncing,
                CacheState::Synced => KindState::Synced,
                CacheState::Forbidden(message) => KindState::Forbidden(message),
            },
        }
    }

    /// Whether all is known that there is to know: the kind is absent, or the content has been complete once.
    pub fn is_settled(&self) -> bool {
        match &*self.shared.read() {
            Slot::Unknown => false,
            Slot::Absent => true,
            Slot::Open(cache) => cache.is_synced(),
        }
    }

    /// How the watch fares; `None` while there is none, because the kind is absent or has yet to be looked for.
    pub fn health(&self) -> Option<WatchHealth> {
        match &*self.shared.read() {
            Slot::Open(cache) => Some(cache.health()),
            Slot::Unknown | Slot::Absent => None,
        }
    }

    /// One object.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<V>> {
        match &*self.shared.read() {
            Slot::Open(cache) => cache.get(key),
            Slot::Unknown | Slot::Absent => None,
        }
    }

    /// All objects at one moment; none while the kind is absent.
    pub fn snapshot(&self) -> Content<V> {
        match &*self.shared.read() {
            Slot::Open(cache) => cache.snapshot(),
            Slot::Unknown | Slot::Absent => Arc::new(BTreeMap::new()),
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

impl<V> fmt::Debug for DynamicCache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamicCache")
            .field("name", &self.name())
            .field("state", &self.state())
            .finish()
    }
}

impl<V> Shared<V> {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Slot<V>> {
        self.slot.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The old slot is dropped, and with it its watch, outside of the lock.
    fn put(&self, slot: Slot<V>) {
        let _old = std::mem::replace(&mut *self.slot.write().unwrap_or_else(PoisonError::into_inner), slot);
    }
}

/// What an open watch was opened on. A definition that was deleted and created again is another one, even if the kind is
/// served as before: the old watch has ended, and its versions mean nothing.
#[derive(PartialEq)]
struct Opened {
    served: ServedKind,
    definition: Option<String>,
}

impl Opened {
    fn new(served: ServedKind, group: &GroupState) -> Self {
        let plural = format!("{}.{}", served.resource.plural, served.resource.group);
        let definition = group.get(&plural).map(|definition| definition.uid.clone());
        Self { served, definition }
    }
}

/// A watch that is open.
struct Open {
    what: Opened,
    /// Moves when the server answers as if it did not serve the resource: discovery, which lags behind the definitions, had
    /// named a kind that was gone already.
    not_served: watch::Receiver<u64>,
}

/// Opens and closes the watch as the kind comes and goes.
struct Follower<V, P> {
    shared: Arc<Shared<V>>,
    watches: Watches,
    kinds: KindRegistry,
    target: DynamicTarget,
    project: Arc<P>,
}

impl<V, P> Follower<V, P>
where
    V: PartialEq + Send + Sync + 'static,
    P: Fn(DynamicObject) -> Option<V> + Send + Sync + 'static,
{
    async fn run(self) {
        let mut changes = self.kinds.changes();
        let mut open = None;
        // Knowing the definitions first saves a second look, and a second watch, a moment later.
        let known = changes.wait_for(|_| self.kinds.state() != CacheState::Syncing);
        let _ = tokio::time::timeout(DEFINITIONS_PATIENCE, known).await;
        loop {
            changes.mark_unchanged();
            let group = self.group();
            self.settle(&group, &mut changes, &mut open).await;
            self.wait_for_change(&group, &mut changes, open.as_mut()).await;
        }
    }

    fn group(&self) -> GroupState {
        self.kinds.group(&self.target.group_version_kind().group)
    }

    /// Asks until the answer is definite. A kind that is not served right after its group changed may just not be served
    /// *yet*, so that answer is checked a few times; it counts from the first.
    async fn settle(&self, group: &GroupState, changes: &mut watch::Receiver<u64>, open: &mut Option<Open>) {
        let mut pause = FIRST_LOOK;
        let mut absences = 0;
        loop {
            match self.kinds.resolve(self.target.group_version_kind()).await {
                Ok(Some(served)) => return self.open(Opened::new(served, group), open),
                Ok(None) => {
                    self.close(open);
                    absences += 1;
                    if group.is_empty() || absences > LOOKS_AFTER_A_CHANGE {
                        return;
                    }
                }
                Err(error) => tracing::debug!(cache = self.shared.name, "discovery failed, tried again: {error}"),
            }
            tokio::select! {
                () = tokio::time::sleep(pause.mul_f64(0.75 + 0.5 * fastrand::f64())) => {}
                _ = changes.changed() => if self.group() != *group { return },
            }
            pause = (pause * 2).min(LONGEST_LOOK);
        }
    }

    /// Until something about the group changes, or what is watched turns out not to exist; changes of other groups are
    /// looked at and passed over.
    async fn wait_for_change(
        &self,
        group: &GroupState,
        changes: &mut watch::Receiver<u64>,
        mut open: Option<&mut Open>,
    ) {
        let found = open.is_some();
        // Looked at before the first wait: a change may have come, and been taken note of, while discovery was asked.
        while self.group() == *group {
            let not_served = async {
                match &mut open {
                    Some(open) => drop(open.not_served.changed().await),
                    None => std::future::pending().await,
                }
            };
            let blind = !self.kinds.is_synced();
            tokio::select! {
                outcome = changes.changed() => {
                    if outcome.is_err() {
                        return std::future::pending().await;
                    }
                }
                () = not_served => return,
                () = tokio::time::sleep(LOOK_WITHOUT_A_WATCH), if blind && !found => return,
            }
        }
    }

    fn open(&self, wanted: Opened, open: &mut Option<Open>) {
        if open.as_ref().is_some_and(|open| open.what == wanted) {
            return;
        }
        let resource = &wanted.served.resource;
        let api = self.target.api(self.kinds.client(), resource, wanted.served.namespaced);
        let project = Arc::clone(&self.project);
        let cache = self
            .watches
            .cache(self.shared.name, api, self.target.selection(), move |object| {
                project(object)
            });
        tracing::info!(cache = self.shared.name, kind = %resource.kind, api_version = %resource.api_version, "the kind is served: watching it");
        let not_served = cache.status_view().not_served();
        self.shared.put(Slot::Open(cache));
        self.watches.wake().wake();
        *open = Some(Open {
            what: wanted,
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
            self.watches.wake().wake();
        } else {
            self.say_absent();
        }
    }

    /// Said once, when it becomes known.
    fn say_absent(&self) {
        if matches!(*self.shared.read(), Slot::Unknown) {
            let kind = self.target.group_version_kind();
            tracing::info!(cache = self.shared.name, kind = %kind.kind, api_version = %kind.api_version(), "the kind is absent; it is picked up when it appears");
            self.shared.put(Slot::Absent);
            self.watches.wake().wake();
        }
    }
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

    use super::{DynamicCache, DynamicTarget, KindState};
    use crate::cache::Watches;
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
        assert!(outcome.is_ok(), "never {expected:?}: {cache:?}");
    }

    #[rstest]
    #[case::right_at_once(0)]
    #[case::late(1)]
    #[case::later(4)]
    #[tokio::test(start_paused = true)]
    async fn a_kind_that_discovery_names_although_it_is_gone_is_absent_in_the_end(
        #[case] looks: u32,
        #[values(no_such_path, no_such_resource)] absent: fn() -> Response<Body>,
    ) {
        let (client, asked) = lagging(looks, absent);
        let watches = Watches::detached();
        let kinds = KindRegistry::spawn(&watches, client);
        let target = DynamicTarget::kind("g.example.com/v1", "Signal").unwrap();
        let cache = watches.dynamic("signals", &kinds, target, |_| Some(()));
        reaches(&cache, &KindState::Absent).await;
        let settled = asked.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert_eq!(
            asked.load(Ordering::SeqCst),
            settled,
            "once it is known it is not asked again"
        );
        assert_eq!(cache.state(), KindState::Absent);
    }
}
