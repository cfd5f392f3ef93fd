//! The default NodeHealthCheck, created once: first the record that it is about to be, then the object, then the record that it
//! was.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{ListParams, PostParams};
use nodeward_api::NodeHealthCheck;
use nodeward_runtime::{ActionResult, ApiError, Permits};

use super::{Ended, PassContext};
use crate::default::{self, DefaultStep, RECORD_NAME, Record};
use crate::snapshot::TemplateRef;

/// Takes the step.
pub(super) async fn run(pass: &PassContext, permits: &Permits, step: DefaultStep, template: &TemplateRef) -> Ended {
    let _permit = permits.next_write().await?;
    let done = match step {
        DefaultStep::Announce => records(pass)
            .create(&PostParams::default(), &record(step))
            .await
            .map(drop),
        DefaultStep::Create => create(pass, template).await,
        DefaultStep::Complete => complete_record(pass).await,
    };
    match done.map_err(ApiError::from) {
        Ok(()) => Ok(ActionResult::Acted(()).into()),
        // Another replica, or an earlier attempt whose answer was lost, has taken the step.
        Err(ApiError::Conflict) => Ok(ActionResult::AlreadyDone.into()),
        Err(error) => Err(ActionResult::Failed(error).into()),
    }
}

/// Creates it, if it is still to be: another replica may have done so, and a user have deleted it since.
async fn create(pass: &PassContext, template: &TemplateRef) -> kube::Result<()> {
    let checks: Api<NodeHealthCheck> = Api::all(pass.clients.requests.clone());
    let found = records(pass).get_opt(RECORD_NAME).await?;
    let record = Record::read(found.map(|found| found.data.unwrap_or_default()).as_ref());
    if record != Record::Creating || !checks.list(&ListParams::default().limit(1)).await?.items.is_empty() {
        return Ok(());
    }
    let check = default::node_health_check(template);
    checks.create(&PostParams::default(), &check).await.map(drop)
}

/// Replaces the version that says that it is about to be created.
async fn complete_record(pass: &PassContext) -> kube::Result<()> {
    let records = records(pass);
    let Some(found) = records.get_opt(RECORD_NAME).await? else {
        return Ok(());
    };
    let mut done = record(DefaultStep::Complete);
    done.metadata.resource_version = found.metadata.resource_version;
    records
        .replace(RECORD_NAME, &PostParams::default(), &done)
        .await
        .map(drop)
}

fn record(step: DefaultStep) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(RECORD_NAME.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(step.record()),
        ..ConfigMap::default()
    }
}

fn records(pass: &PassContext) -> Api<ConfigMap> {
    Api::namespaced(pass.clients.requests.clone(), &pass.own_namespace)
}
