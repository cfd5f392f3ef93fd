//! Reads the templates that a NodeHealthCheck names.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use nodeward_core::id::NamespacedName;
use nodeward_runtime::discovery::KindRegistry;
use tokio::time::timeout;

use super::decide::Templates;
use crate::observe::{self, project};
use crate::snapshot::{TemplateRef, TemplateState};

/// The API server waits five seconds for the answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Reads these templates, at once. One that cannot be read in time is [`TemplateState::Unknown`].
pub async fn read(kinds: &KindRegistry, templates: Vec<TemplateRef>) -> Templates {
    let reads = templates.into_iter().map(async |template| {
        let state = timeout(PATIENCE, look(kinds, &template)).await;
        (template, state.unwrap_or(TemplateState::Unknown))
    });
    join_all(reads).await.into_iter().collect()
}

/// OpenShift's `controlPlaneTopology`, if it is asked for; `None`: there is none, or it cannot be read, and the operator tells.
pub async fn control_plane_topology(kinds: &KindRegistry, is_asked: bool) -> Option<Arc<str>> {
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
