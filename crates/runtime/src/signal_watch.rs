//! What an upgrade signal reads, watched: its kinds, as they come and go, and the objects of each.

use jiff::Timestamp;
use kube::core::DynamicObject;
use nodeward_core::signal::{SignalInputs, UpgradeSignal};
use serde_json::Value;

use crate::cache::Watches;
use crate::discovery::{DynamicWatches, KindRegistry};
use crate::readiness::Readiness;

/// The watches of an upgrade signal.
pub struct SignalWatches(DynamicWatches<Value>);

impl SignalWatches {
    /// Nothing watched yet. `/readyz` is 503 from [`SignalWatches::follow`] until every kind of the signal has been listed,
    /// or is known to be absent.
    pub fn new(watches: &Watches, kinds: &KindRegistry, readiness: &Readiness) -> Self {
        let watches = DynamicWatches::new("upgrade signal", watches, kinds, |_, object| whole_object(object));
        Self(watches.required_by(readiness))
    }

    /// Watches what the signal reads, and nothing that an earlier one read. Cheap where nothing has changed: call it in
    /// every pass, which also keeps the probe true.
    pub fn follow(&mut self, signal: &UpgradeSignal) {
        self.0.follow(signal.kinds());
    }

    /// Until when to wait for the first list of a kind, if one is still to come and worth waiting for.
    pub fn waits_until(&self) -> Option<Timestamp> {
        self.0.waits_until()
    }

    /// What the signal reads, at this moment.
    pub fn inputs(&self) -> SignalInputs {
        let mut inputs = SignalInputs::at(Timestamp::now());
        for (kind, cache) in self.0.iter() {
            let objects = |()| cache.snapshot().values().cloned().collect();
            inputs.insert(kind.clone(), cache.state().map(objects));
        }
        inputs
    }
}

/// The object in the API's own shape, without what only the API server's bookkeeping needs.
fn whole_object(mut object: DynamicObject) -> Option<Value> {
    object.metadata.managed_fields = None;
    serde_json::to_value(object).ok()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use http::{Request, Response};
    use kube::Client;
    use nodeward_core::signal::{KindState, SignalSpec, UpgradeSignal};

    use super::SignalWatches;
    use crate::cache::Watches;
    use crate::discovery::{KindRegistry, LIST_PATIENCE};
    use crate::readiness::Readiness;

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
        let kind = kinds.first().unwrap();
        assert_eq!(signal_watches.inputs().get(kind), &KindState::Syncing);

        signal_watches.follow(&UpgradeSignal::compile(SignalSpec::Always).unwrap());
        assert!(
            readiness.closed_gates().is_empty(),
            "what nothing reads is not waited for"
        );
        assert_eq!(signal_watches.0.iter().count(), 0);
    }
}
