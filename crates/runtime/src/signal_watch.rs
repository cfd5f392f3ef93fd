//! What an upgrade signal reads, watched: its kinds, as they come and go, and the objects of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::DynamicObject;
use nodeward_core::signal::{Evaluations, Fields, SignalInputs, UpgradeSignal, WatchedResource};
use parking_lot::Mutex;
use serde_json::Value;

use crate::cache::Watches;
use crate::discovery::{DynamicWatches, KindRegistry};
use crate::readiness::Readiness;

/// The watches of an upgrade signal.
pub struct SignalWatches {
    watches: DynamicWatches<Value>,
    /// What is kept of the objects of each kind.
    fields: Arc<Mutex<BTreeMap<WatchedResource, Fields>>>,
    /// What expressions came to at the last moment.
    evaluations: Mutex<Arc<Evaluations>>,
}

impl SignalWatches {
    /// Nothing watched yet. `/readyz` is 503 from [`SignalWatches::follow`] until every kind of the signal has been listed,
    /// or is known to be absent.
    pub fn new(watches: &Watches, kinds: &KindRegistry, readiness: &Readiness) -> Self {
        let fields: Arc<Mutex<BTreeMap<WatchedResource, Fields>>> = Arc::default();
        let known = Arc::clone(&fields);
        let project = move |kind: &WatchedResource, object| {
            let fields = known.lock().get(kind).cloned()?;
            Some(fields.keep(as_value(object)?))
        };
        Self {
            watches: DynamicWatches::new("upgrade signal", watches, kinds, project).required_by(readiness),
            fields,
            evaluations: Mutex::default(),
        }
    }

    /// Watches what the signal reads, and nothing that an earlier one read. Cheap where nothing has changed: call it in
    /// every pass, which also keeps the probe true.
    pub fn follow(&mut self, signal: &UpgradeSignal) {
        self.follow_kinds(signal.kinds());
    }

    /// The same of these kinds.
    pub fn follow_kinds(&mut self, wanted: BTreeMap<WatchedResource, Fields>) {
        let of_others = |(kind, fields): (&WatchedResource, &Fields)| {
            let is_read_as_before = wanted.get(kind).is_none_or(|wanted| wanted == fields);
            is_read_as_before.then(|| kind.clone())
        };
        let unchanged = self.fields.lock().iter().filter_map(of_others).collect();
        // What is to be read of a kind has changed: its objects are listed anew.
        self.watches.follow(unchanged);
        let kinds = wanted.keys().cloned().collect();
        *self.fields.lock() = wanted;
        self.watches.follow(kinds);
    }

    /// Until when to wait for the first list of a kind, if one is still to come and worth waiting for.
    pub fn waits_until(&self) -> Option<Timestamp> {
        self.watches.waits_until()
    }

    /// What the signal reads, at this moment.
    pub fn inputs(&self) -> SignalInputs {
        let mut last = self.evaluations.lock();
        let mut inputs = SignalInputs::at(Timestamp::now()).after(&last);
        *last = Arc::clone(inputs.evaluations());
        for (kind, cache) in self.watches.iter() {
            let objects = |()| cache.snapshot().values().cloned().collect();
            inputs.insert(kind.clone(), cache.state().map(objects));
        }
        inputs
    }
}

/// The object in the API's own shape, without what only the API server's bookkeeping needs.
fn as_value(mut object: DynamicObject) -> Option<Value> {
    object.metadata.managed_fields = None;
    serde_json::to_value(object).ok()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use axum::body::Body;
    use futures::{StreamExt, stream};
    use http::{Request, Response};
    use kube::Client;
    use nodeward_core::signal::{KindState, SignalSpec};
    use serde_json::json;

    use super::*;
    use crate::discovery::LIST_PATIENCE;

    /// A server that never answers.
    fn silent() -> Client {
        let service = tower::service_fn(|_: Request<kube::client::Body>| {
            std::future::pending::<Result<Response<Body>, Infallible>>()
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn unlistable_kind_turns_unknown_after_patience() {
        let (watches, readiness) = (Watches::detached(), Readiness::new());
        let kinds = KindRegistry::spawn(&watches, silent());
        let mut signal_watches = SignalWatches::new(&watches, &kinds, &readiness);
        assert!(readiness.closed_gates().is_empty());

        let signal = UpgradeSignal::compile(SignalSpec::OpenShiftClusterVersion).unwrap();
        signal_watches.follow(&signal);
        assert!(signal_watches.waits_until().is_some());
        let reasons: Vec<String> = readiness.closed_gates().into_iter().map(|gate| gate.reason).collect();
        assert_eq!(
            reasons,
            ["not listed yet: config.openshift.io/v1/ClusterVersion version"]
        );

        tokio::time::advance(LIST_PATIENCE).await;
        signal_watches.follow(&signal);
        assert_eq!(signal_watches.waits_until(), None);
        let kinds = signal.kinds();
        let (kind, _) = kinds.first_key_value().unwrap();
        assert_eq!(signal_watches.inputs().get(kind), &KindState::Syncing);

        signal_watches.follow(&UpgradeSignal::compile(SignalSpec::Always).unwrap());
        assert!(
            readiness.closed_gates().is_empty(),
            "what nothing reads is not waited for"
        );
        assert_eq!(signal_watches.watches.iter().count(), 0);
    }

    /// A server with one object, of a kind that no definition tells of.
    fn with_one_object() -> Client {
        let service = tower::service_fn(|request: Request<kube::client::Body>| {
            let line = |kind: &str, object: Value| format!("{}\n", json!({ "type": kind, "object": object }));
            let end = json!({
                "apiVersion": "v1", "kind": "Plan",
                "metadata": { "resourceVersion": "10", "annotations": { "k8s.io/initial-events-end": "true" } },
            });
            let object = json!({
                "apiVersion": "a.io/v1", "kind": "Plan", "spec": { "a": 1, "b": 2 },
                "metadata": { "namespace": "n", "name": "p", "resourceVersion": "9" },
            });
            let plans = json!({ "name": "plans", "singularName": "plan", "namespaced": true, "kind": "Plan", "verbs": ["watch"] });
            let body = match request.uri().path() {
                "/apis/a.io/v1" => {
                    let list = json!({ "kind": "APIResourceList", "groupVersion": "a.io/v1", "resources": [plans] });
                    Body::from(list.to_string())
                }
                path => {
                    let objects = if path.ends_with("/plans") {
                        line("ADDED", object)
                    } else {
                        String::new()
                    };
                    let lines = stream::iter([Ok::<_, Infallible>(objects + &line("BOOKMARK", end))]);
                    Body::from_stream(lines.chain(stream::pending()))
                }
            };
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn objects_keep_only_what_the_signal_reads() {
        let (watches, readiness) = (Watches::detached(), Readiness::new());
        let kinds = KindRegistry::spawn(&watches, with_one_object());
        let mut signal_watches = SignalWatches::new(&watches, &kinds, &readiness);
        let kind = WatchedResource::all("a.io/v1", "Plan");
        for (when, spec) in [
            ("object.spec.a == 1", json!({ "a": 1 })),
            ("object.spec.b == 2", json!({ "b": 2 })),
        ] {
            let signal = json!({ "apiVersion": "a.io/v1", "kind": "Plan", "when": when });
            let signal = UpgradeSignal::compile(SignalSpec::Resource(serde_json::from_value(signal).unwrap())).unwrap();
            let kept = json!({ "metadata": { "namespace": "n", "name": "p" }, "spec": spec });
            // Another expression over the same kind reads another part of its objects.
            let listed = KindState::Synced(vec![Arc::new(kept)]);
            let looking = async {
                signal_watches.follow(&signal);
                while *signal_watches.inputs().get(&kind) != listed {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let found = tokio::time::timeout(Duration::from_mins(1), looking).await;
            assert!(found.is_ok(), "{:?}", signal_watches.inputs().get(&kind));
        }
    }
}
