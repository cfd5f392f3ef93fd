//! The CustomResourceDefinitions of Nodeward's own kinds.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;

use crate::{DisruptionHold, DrainLedger, NodeDrain};

/// Group of Nodeward's own kinds.
pub const GROUP: &str = "nodeward.dev";

/// The kinds that drain-lock serves.
pub fn drain_lock() -> Vec<CustomResourceDefinition> {
    vec![DisruptionHold::crd(), DrainLedger::crd(), NodeDrain::crd()]
}
