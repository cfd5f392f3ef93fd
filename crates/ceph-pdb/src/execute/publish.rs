//! ConfigMap `nodeward-ceph-pdb`: what others read of a cluster.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use nodeward_api::ceph_state::{CONFIG_MAP, STATE_KEY};
use nodeward_runtime::{ActionResult, ApiError, Permits};
use serde_json::json;

use super::{ExecutorContext, Written, config_map};
use crate::plan::write::{PlannedWrite, Write};
use crate::snapshot::Published;

/// Writes it.
pub(super) async fn write(
    context: &ExecutorContext,
    permits: &Permits,
    planned: &PlannedWrite,
) -> Result<Written, ActionResult<Written>> {
    let Write::Publish {
        resource_version,
        state,
        ..
    } = &planned.write
    else {
        return Err(ActionResult::AlreadyDone);
    };
    let text = serde_json::to_string(state).map_err(|error| ApiError::Invalid {
        message: error.to_string(),
    })?;
    let config_maps = Api::<ConfigMap>::namespaced(context.clients.requests.clone(), &planned.owner.namespace);
    let _permit = permits.next_write().await?;
    let written = match resource_version {
        None => {
            let created = config_map(&planned.owner, CONFIG_MAP, [(STATE_KEY.to_owned(), text)].into());
            config_maps.create(&PostParams::default(), &created).await?
        }
        Some(version) => {
            let patch = json!({ "metadata": { "resourceVersion": version }, "data": { STATE_KEY: text } });
            let patch = Patch::Merge(patch);
            config_maps.patch(CONFIG_MAP, &PatchParams::default(), &patch).await?
        }
    };
    let published = Published::read(&written).ok_or_else(|| ActionResult::Outdated("no version".to_owned()))?;
    Ok(Written::Published {
        base: resource_version.as_ref().map(Arc::clone),
        published,
    })
}
