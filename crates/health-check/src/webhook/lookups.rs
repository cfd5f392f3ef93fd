//! What a review rests on, read from the API server: the templates that a NodeHealthCheck names, and which of the remediations
//! that its status names run.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use futures::stream;
use jiff::Timestamp;
use kube::core::DynamicObject;
use nodeward_core::id::NamespacedName;
use nodeward_core::remediation::is_over;
use nodeward_core::signal::WatchedResource;
use nodeward_runtime::discovery::KindRegistry;
use tokio::time::timeout;

use super::decide::{OpenRecord, Templates};
use crate::observe::{self, project};
use crate::snapshot::{TemplateRef, TemplateState};

/// The API server waits five seconds for the answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// How many are asked for at once.
const AT_ONCE: usize = 32;

/// Reads these templates, at once. One that cannot be read in time is [`TemplateState::Unknown`].
pub(super) async fn templates(kinds: &KindRegistry, templates: Vec<TemplateRef>) -> Templates {
    let reads = templates.into_iter().map(async |template| {
        let state = timeout(PATIENCE, look(kinds, &template)).await;
        (template, state.unwrap_or(TemplateState::Unknown))
    });
    join_all(reads).await.into_iter().collect()
}

/// OpenShift's `controlPlaneTopology`, if it is asked for; `None`: there is none, or it cannot be read, and the operator tells.
pub(super) async fn control_plane_topology(kinds: &KindRegistry, is_asked: bool) -> Option<Arc<str>> {
    let read = async {
        let api = kinds.api(&observe::infrastructure()).await.ok()??;
        let found = api.get_opt("cluster").await.ok()??;
        project::control_plane_topology(&found)
    };
    if is_asked {
        timeout(PATIENCE, read).await.ok()?
    } else {
        None
    }
}

async fn look(kinds: &KindRegistry, template: &TemplateRef) -> TemplateState {
    let api = match kinds.api(&observe::watched_template(template)).await {
        Ok(Some(api)) => api,
        Ok(None) => return TemplateState::KindAbsent,
        Err(_) => return TemplateState::Unknown,
    };
    match api.get_opt(&template.name).await {
        Ok(Some(object)) if NamespacedName::of(&object.metadata) == Some(template.key()) => {
            TemplateState::Found(project::template(&object).into())
        }
        Ok(_) => TemplateState::NotFound,
        Err(kube::Error::Api(status)) if status.code == 403 => TemplateState::Forbidden(status.message.clone()),
        Err(_) => TemplateState::Unknown,
    }
}

/// The nodes with a remediation that runs. One that cannot be asked for in time does.
pub(super) async fn running(kinds: &KindRegistry, records: Vec<OpenRecord>) -> BTreeSet<String> {
    let mut running: BTreeSet<String> = records.iter().map(|record| record.node.clone()).collect();
    let ask = async |record: OpenRecord| (runs(kinds, &record).await, record.node);
    let asked = stream::iter(records).map(ask).buffer_unordered(AT_ONCE);
    if let Ok(asked) = timeout(PATIENCE, asked.collect::<Vec<_>>()).await {
        running = asked
            .into_iter()
            .filter(|(runs, _)| *runs)
            .map(|(_, node)| node)
            .collect();
    }
    running
}

async fn runs(kinds: &KindRegistry, record: &OpenRecord) -> bool {
    let resource = &record.resource;
    let (Some(api_version), Some(kind), Some(name)) = (&resource.api_version, &resource.kind, &resource.name) else {
        return true;
    };
    // It may be being created at this moment.
    let Some(uid) = resource.uid.as_deref().filter(|uid| !uid.is_empty()) else {
        return true;
    };
    let watched = WatchedResource {
        namespace: resource.namespace.clone().filter(|namespace| !namespace.is_empty()),
        ..WatchedResource::all(api_version, kind)
    };
    let found = match kinds.api(&watched).await {
        Ok(Some(api)) => api.get_opt(name).await,
        Ok(None) => return false,
        Err(_) => return true,
    };
    match found {
        Ok(found) => found.is_some_and(|found| still_runs(&found, uid, record.ends, Timestamp::now())),
        Err(_) => true,
    }
}

/// A remediation that something keeps after its time is over runs no more.
fn still_runs(found: &DynamicObject, uid: &str, ends: Timestamp, now: Timestamp) -> bool {
    let metadata = &found.metadata;
    let annotations = metadata.annotations.clone().unwrap_or_default();
    let is_stuck = metadata.deletion_timestamp.is_some() && ends <= now;
    metadata.uid.as_deref() == Some(uid) && !is_stuck && !is_over(&annotations, &found.data)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const ENDS: i64 = 600;

    #[rstest]
    #[case::running(json!({}), 300, true)]
    #[case::running_for_longer_than_its_step(json!({}), 900, true)]
    #[case::another_of_the_name(json!({ "uid": "other" }), 300, false)]
    #[case::told_to_stop(json!({ "annotations": { "remediation.medik8s.io/nhc-timed-out": "" } }), 300, false)]
    #[case::in_deletion(json!({ "deletionTimestamp": "1970-01-01T00:00:00Z" }), 599, true)]
    #[case::stuck_in_deletion(json!({ "deletionTimestamp": "1970-01-01T00:00:00Z" }), 600, false)]
    fn what_is_over_runs_no_more(#[case] change: Value, #[case] now: i64, #[case] expected: bool) {
        let mut metadata = json!({ "name": "n1", "uid": "u1" });
        for (key, value) in change.as_object().unwrap() {
            metadata[key] = value.clone();
        }
        let found = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(still_runs(&found, "u1", at(ENDS), at(now)), expected);
    }
}
