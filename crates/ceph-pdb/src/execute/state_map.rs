//! ConfigMap `rook-ceph-pdbstatemap`, and the flags in Ceph that its records speak of: a record is written before the command
//! that it is about, and the command is sent only while the record stands as it was planned from.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use nodeward_runtime::{ActionResult, ApiError, Permits};
use serde_json::{Value, json};

use super::{ExecutorContext, Written, config_map};
use crate::plan::noout::NooutRecord;
use crate::plan::write::{PlannedWrite, Write};
use crate::snapshot::{CephProblem, StateMap};
use crate::state_map::{self, NAME};

type Ended = ActionResult<Written>;

/// Writes all records, and strikes out Rook's own keys.
pub(super) async fn write(
    context: &ExecutorContext,
    permits: &Permits,
    planned: &PlannedWrite,
) -> Result<Written, Ended> {
    let Write::WriteStateMap {
        resource_version,
        noout,
    } = &planned.write
    else {
        return Err(ActionResult::AlreadyDone);
    };
    let config_maps = config_maps(context, planned);
    let _permit = permits.next_write().await?;
    let written = match resource_version {
        None => {
            let created = config_map(&planned.owner, NAME, records(noout));
            config_maps.create(&PostParams::default(), &created).await?
        }
        Some(version) => {
            let cluster = context.cluster(&planned.owner.namespace);
            let struck_out = cluster
                .map(|cluster| struck_out(&cluster.state_map))
                .unwrap_or_default();
            let data: BTreeMap<String, Value> = struck_out
                .into_iter()
                .map(|key| (key, Value::Null))
                .chain(records(noout).into_iter().map(|(key, text)| (key, json!(text))))
                .collect();
            patch(&config_maps, version, &json!(data)).await?
        }
    };
    Ok(Written::StateMap {
        base: resource_version.clone(),
        map: state_map::read(&written),
    })
}

/// Sets or clears flags. The records are written again, unchanged, right before: a conflict stops the commands.
pub(super) async fn set_noout(
    context: &ExecutorContext,
    permits: &Permits,
    planned: &PlannedWrite,
) -> Result<Written, Ended> {
    let Write::SetNoout {
        buckets,
        on,
        state_map_version,
        noout,
    } = &planned.write
    else {
        return Err(ActionResult::AlreadyDone);
    };
    let namespace = &planned.owner.namespace;
    let _permit = permits.next_write().await?;
    patch(
        &config_maps(context, planned),
        state_map_version,
        &json!(records(noout)),
    )
    .await?;
    for bucket in buckets {
        permits.check()?;
        let answer = context.connections.set_noout(namespace, bucket, *on).await;
        let answer = answer.map_err(|problem| failed(bucket, &problem))?;
        tracing::info!(%namespace, %bucket, on, ?answer, "noout");
    }
    Ok(Written::Noout)
}

fn failed(bucket: &str, problem: &CephProblem) -> Ended {
    let message = format!("noout of {bucket}: {}", problem.message);
    ActionResult::Failed(ApiError::Transport { message })
}

async fn patch(config_maps: &Api<ConfigMap>, version: &Arc<str>, data: &Value) -> Result<ConfigMap, ApiError> {
    let patch = json!({ "metadata": { "resourceVersion": version }, "data": data });
    let patched = config_maps
        .patch(NAME, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched.map_err(ApiError::from) {
        // Gone is another state than the planned one, too.
        Err(ApiError::NotFound) => Err(ApiError::Conflict),
        patched => patched,
    }
}

fn records(noout: &BTreeMap<Arc<str>, NooutRecord>) -> BTreeMap<String, String> {
    let texts = noout.iter();
    texts
        .map(|(bucket, record)| (state_map::record_key(bucket), state_map::record_text(*record)))
        .collect()
}

/// The keys that a complete set of records replaces: ours, and those of Rook's own manager.
fn struck_out(map: &StateMap) -> Vec<String> {
    let ours = map.noout.keys().map(|bucket| state_map::record_key(bucket));
    let set_at = map
        .rook
        .noout_set_at
        .keys()
        .map(|domain| state_map::rook_set_at_key(domain));
    let rooks = [state_map::ROOK_DRAINING_DOMAIN, state_map::ROOK_SET_NOOUT].map(str::to_owned);
    ours.chain(set_at).chain(rooks).collect()
}

fn config_maps(context: &ExecutorContext, planned: &PlannedWrite) -> Api<ConfigMap> {
    Api::namespaced(context.clients.requests.clone(), &planned.owner.namespace)
}
