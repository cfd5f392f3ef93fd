//! The CustomResourceDefinitions of the kinds that Nodeward serves.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;

use crate::{DisruptionHold, DrainLedger, NodeDrain, NodeHealthCheck};

/// Group of Nodeward's own kinds.
pub const GROUP: &str = "nodeward.dev";

/// The kinds that drain-lock serves.
pub fn drain_lock() -> Vec<CustomResourceDefinition> {
    vec![DisruptionHold::crd(), DrainLedger::crd(), NodeDrain::crd()]
}

/// The kinds that health-check serves.
pub fn health_check() -> Vec<CustomResourceDefinition> {
    vec![NodeHealthCheck::crd()]
}
