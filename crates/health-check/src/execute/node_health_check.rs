//! Writes a NodeHealthCheck: its status, and once its selector. Each replaces the version that it was planned with.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Api, Resource};
use nodeward_api::NodeHealthCheck;
use nodeward_api::node_health_check::{NodeHealthCheckSpec, NodeHealthCheckStatus};
use nodeward_core::id::ResourceVersion;
use nodeward_runtime::{ActionResult, ApiError, Permits};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Effect, Ended, PassContext, Written};
use crate::plan::{SelectorWrite, StatusWrite};

/// Writes the status as a whole. The spec is not part of it, whatever is sent.
pub(super) async fn write_status(pass: &PassContext, permits: &Permits, write: &StatusWrite) -> Ended {
    let _permit = permits.next_write().await?;
    let stored = replace_status(pass, write).await.map_err(not_written)?;
    let version: ResourceVersion = stored.metadata.resource_version.into();
    let name = &write.check.name;
    pass.own_versions
        .with(|own| own.insert(Arc::clone(name), version.clone()));
    let is_as_written = stored.status == *write.status;
    Ok(Effect::acted(Written::Status {
        check: Arc::clone(name),
        base: write.base.clone(),
        version,
        status: if is_as_written {
            Arc::clone(&write.status)
        } else {
            Arc::new(stored.status)
        },
    }))
}

/// The whole object, but for a copy of its status.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeHealthCheckToWrite<'a> {
    api_version: Cow<'a, str>,
    kind: Cow<'a, str>,
    metadata: ObjectMeta,
    spec: NodeHealthCheckSpec,
    status: &'a NodeHealthCheckStatus,
}

/// What of a written NodeHealthCheck matters: its `managedFields`, which name each unhealthy node, too, are not kept.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Stored {
    metadata: StoredMetadata,
    status: NodeHealthCheckStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StoredMetadata {
    resource_version: String,
}

async fn replace_status(pass: &PassContext, write: &StatusWrite) -> Result<Stored, kube::Error> {
    let name = &*write.check.name;
    let object = NodeHealthCheckToWrite {
        api_version: NodeHealthCheck::api_version(&()),
        kind: NodeHealthCheck::kind(&()),
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(write.check.uid.to_string()),
            resource_version: Some(write.base.as_str().to_owned()),
            ..ObjectMeta::default()
        },
        spec: NodeHealthCheckSpec::default(),
        status: &write.status,
    };
    let object = serde_json::to_vec(&object).map_err(kube::Error::SerdeError)?;
    let url = NodeHealthCheck::url_path(&(), None);
    let request = Request::new(url).replace_subresource("status", name, &PostParams::default(), object);
    pass.clients
        .requests
        .request(request.map_err(kube::Error::BuildRequest)?)
        .await
}

/// Writes the selector that an absent one stands for.
pub(super) async fn write_selector(pass: &PassContext, permits: &Permits, write: &SelectorWrite) -> Ended {
    let _permit = permits.next_write().await?;
    let patch = json!({
        "metadata": { "uid": &*write.check.uid, "resourceVersion": write.base.as_str() },
        "spec": { "selector": write.selector },
    });
    let patched = checks(pass)
        .patch_metadata(&write.check.name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    patched.map_err(not_written)?;
    Ok(ActionResult::Acted(()).into())
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
