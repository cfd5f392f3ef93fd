//! Nodes and inputs for tests.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::{KindObjects, KindState, SignalInputs, SignalSpec, UpgradeSignal, WatchedResource};
use crate::node::NodeView;

pub(in crate::signal) fn cordoned(metadata: Value) -> NodeView {
    cordoned_with_taints(metadata, json!([]))
}

pub(in crate::signal) fn cordoned_with_taints(mut metadata: Value, taints: Value) -> NodeView {
    metadata["name"] = "n1".into();
    let node = json!({ "metadata": metadata, "spec": { "unschedulable": true, "taints": taints } });
    NodeView::project(&serde_json::from_value(node).unwrap()).unwrap()
}

pub(in crate::signal) fn inputs<const N: usize>(states: [(WatchedResource, KindObjects); N]) -> SignalInputs {
    let mut inputs = SignalInputs::default();
    for (kind, state) in states {
        inputs.insert(kind, state);
    }
    inputs
}

pub(in crate::signal) fn objects<const N: usize>(objects: [Value; N]) -> KindObjects {
    KindState::Synced(objects.into_iter().map(Arc::new).collect())
}

pub(in crate::signal) fn signal(yaml: &str) -> UpgradeSignal {
    UpgradeSignal::compile(serde_yaml::from_str::<SignalSpec>(yaml).unwrap()).unwrap()
}
