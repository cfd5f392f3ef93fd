//! Writes a NodeHealthCheck: its status, and once its selector. Each replaces the version that it was planned with.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use nodeward_api::NodeHealthCheck;
use nodeward_api::node_health_check::{NodeHealthCheckSpec, NodeHealthCheckStatus};
use nodeward_core::id::ResourceVersion;
use nodeward_runtime::{ActionResult, ApiError, Permits};
use serde_json::json;

use super::{Effect, PassContext, Written};
use crate::plan::{SelectorWrite, StatusWrite};

/// Writes the status as a whole. The spec is not part of it, whatever is sent.
pub(super) async fn write_status(pass: &PassContext, permits: &Permits, write: &StatusWrite) -> Effect {
    let _permit = match permits.next_write().await {
        Ok(permit) => permit,
        Err(stop) => return stop.into(),
    };
    let object = NodeHealthCheck {
        metadata: ObjectMeta {
            name: Some(write.check.name.to_string()),
            uid: Some(write.check.uid.to_string()),
            resource_version: Some(write.base.as_str().to_owned()),
            ..ObjectMeta::default()
        },
        spec: NodeHealthCheckSpec::default(),
        status: Some(NodeHealthCheckStatus::clone(&write.status)),
    };
    let replaced = checks(pass)
        .replace_status(&write.check.name, &PostParams::default(), &object)
        .await;
    match replaced {
        Ok(replaced) => {
            let version: ResourceVersion = replaced.metadata.resource_version.unwrap_or_default().into();
            let name = &write.check.name;
            pass.own_versions
                .with(|own| own.insert(Arc::clone(name), version.clone()));
            Effect::acted(Written::Status {
                check: Arc::clone(name),
                base: write.base.clone(),
                version,
                status: Arc::new(replaced.status.unwrap_or_default()),
            })
        }
        Err(error) => not_written(error).into(),
    }
}

/// Writes the selector that an absent one stands for.
pub(super) async fn write_selector(pass: &PassContext, permits: &Permits, write: &SelectorWrite) -> ActionResult {
    let _permit = match permits.next_write().await {
        Ok(permit) => permit,
        Err(stop) => return stop.into(),
    };
    let patch = json!({
        "metadata": { "uid": &*write.check.uid, "resourceVersion": write.base.as_str() },
        "spec": { "selector": write.selector },
    });
    let patched = checks(pass)
        .patch_metadata(&write.check.name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched {
        Ok(_) => ActionResult::Acted(()),
        Err(error) => not_written(error),
    }
}

/// One that is gone is written to again only after a while: the watch may be behind.
fn not_written(error: kube::Error) -> ActionResult {
    match ApiError::from(error) {
        ApiError::NotFound => ActionResult::Outdated("the NodeHealthCheck is gone".to_owned()),
        error => error.into(),
    }
}

fn checks(pass: &PassContext) -> Api<NodeHealthCheck> {
    Api::all(pass.clients.requests.clone())
}
