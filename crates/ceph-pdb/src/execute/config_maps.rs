//! ConfigMaps: the published state, and `rook-ceph-pdbstatemap` with the flags in Ceph that its records speak of. A record is
//! written before the command that it is about, and the command is sent only while the record stands as it was planned from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::{CONFIG_MAP, STATE_KEY};
use nodeward_runtime::{ActionResult, ApiError};
use serde_json::{Value, json};

use super::{Ended, Scope, Written};
use crate::budgets;
use crate::plan::noout::NooutRecord;
use crate::snapshot::{CephProblem, CephProblemKind, Published, StateMap};
use crate::state_map::{self, NAME};

/// What Ceph's user may do to change flags, beside reading.
const NOOUT_CAPS: &str =
    r#"allow r, allow command "osd set-group" with flags=noout, allow command "osd unset-group" with flags=noout"#;

type Records = BTreeMap<Arc<str>, NooutRecord>;

/// Writes the state that others read.
pub(super) async fn publish(
    scope: &Scope<'_>,
    version: Option<&Arc<str>>,
    state: &CephClusterState,
) -> Result<Written, Ended> {
    let text = serde_json::to_string(state).map_err(|error| ApiError::Invalid {
        message: error.to_string(),
    })?;
    let _permit = scope.permits.next_write().await?;
    let written = write(scope, CONFIG_MAP, version, [(STATE_KEY.to_owned(), json!(text))].into()).await?;
    let published = Published::read(&written).ok_or_else(|| ActionResult::Outdated("no version".to_owned()))?;
    Ok(Written::Published {
        base: version.cloned(),
        published: Box::new(published),
    })
}

/// Writes all records; where they take over, Rook's own keys are as Rook has them while nothing is drained.
pub(super) async fn write_records(
    scope: &Scope<'_>,
    version: Option<&Arc<str>>,
    takes_over: bool,
    noout: &Records,
) -> Result<Written, Ended> {
    let mut data: BTreeMap<String, Value> = BTreeMap::new();
    if let Some(cluster) = version.and(scope.cluster()) {
        let replaced = replaced_keys(&cluster.state_map, takes_over);
        data.extend(replaced.map(|key| (key, Value::Null)));
    }
    if takes_over {
        // Versions of Rook crash on a map without data.
        let idle = [state_map::ROOK_DRAINING_DOMAIN, state_map::ROOK_SET_NOOUT];
        data.extend(idle.map(|key| (key.to_owned(), json!(""))));
    }
    data.extend(records(noout));
    let _permit = scope.permits.next_write().await?;
    let written = write(scope, NAME, version, data).await?;
    Ok(Written::StateMap {
        base: version.cloned(),
        map: state_map::read(&written),
    })
}

/// Sets or clears flags. The records are written again, unchanged, right before: a conflict stops the commands.
pub(super) async fn set_noout(
    scope: &Scope<'_>,
    buckets: &BTreeSet<Arc<str>>,
    on: bool,
    version: &Arc<str>,
    noout: &Records,
) -> Result<Written, Ended> {
    let namespace = &scope.owner.namespace;
    let _permit = scope.permit(!on).await?;
    write(scope, NAME, Some(version), records(noout).collect()).await?;
    for bucket in buckets {
        if on {
            scope.permits.check()?;
        } else {
            scope.permits.check_act().await?;
        }
        let answer = scope.context.connections.set_noout(namespace, bucket, on).await;
        let answer = answer.map_err(|problem| not_changed(bucket, &problem))?;
        tracing::info!(%namespace, %bucket, on, ?answer, "noout");
    }
    Ok(Written::Noout)
}

fn not_changed(bucket: &str, problem: &CephProblem) -> ApiError {
    let message = format!("noout of {bucket}: {}", problem.message);
    match problem.kind {
        CephProblemKind::CommandFailed => ApiError::Forbidden {
            message: format!("{message}; Ceph's user needs the caps mon '{NOOUT_CAPS}'"),
        },
        _ => ApiError::Transport { message },
    }
}

/// Creates a ConfigMap that goes with its CephCluster, or changes keys of the one of this version; null removes a key.
async fn write(
    scope: &Scope<'_>,
    name: &str,
    version: Option<&Arc<str>>,
    data: BTreeMap<String, Value>,
) -> Result<ConfigMap, ApiError> {
    let config_maps: Api<ConfigMap> = scope.api();
    let Some(version) = version else {
        let data = data.into_iter();
        let created = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                owner_references: Some(vec![budgets::owner_reference(scope.owner)]),
                ..ObjectMeta::default()
            },
            data: Some(
                data.filter_map(|(key, text)| Some((key, text.as_str()?.to_owned())))
                    .collect(),
            ),
            ..ConfigMap::default()
        };
        return Ok(config_maps.create(&PostParams::default(), &created).await?);
    };
    let patch = Patch::Merge(json!({ "metadata": { "resourceVersion": version }, "data": data }));
    let patched = config_maps.patch(name, &PatchParams::default(), &patch).await;
    match patched.map_err(ApiError::from) {
        // Gone is another state than the planned one, too.
        Err(ApiError::NotFound) => Err(ApiError::Conflict),
        patched => patched,
    }
}

fn records(noout: &Records) -> impl Iterator<Item = (String, Value)> {
    let records = noout.iter();
    records.map(|(bucket, record)| (state_map::record_key(bucket), json!(state_map::record_text(*record))))
}

/// The keys that a complete set of records replaces: ours, and the times of Rook's own manager where they take over.
fn replaced_keys(map: &StateMap, takes_over: bool) -> impl Iterator<Item = String> {
    let ours = map.noout.keys().map(|bucket| state_map::record_key(bucket));
    let set_at = map.rook.noout_set_at.keys().filter(move |_| takes_over);
    ours.chain(set_at.map(|domain| state_map::rook_set_at_key(domain)))
}
