//! `pause` and `resume`: the emergency stop of the operators, and its end.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use nodeward_api::DEFAULT_NAMESPACE;
use nodeward_api::pause::{ALL, CONFIG_MAP, paused};
use serde::Serialize;
use serde_json::{Value, json};

use super::request::ATTEMPTS;
use super::status::components_of;
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::fetch::Reader;
use crate::text::Style;
use crate::text::page::Page;

/// How the named components stand now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pauses {
    pub pauses: Vec<PauseOf>,
}

/// How one component stands in one namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PauseOf {
    /// Its name; `all` in a namespace where none was found.
    pub component: String,
    pub namespace: String,
    /// The reason; absent: it is not paused.
    pub paused: Option<String>,
}

impl Pauses {
    /// Pauses the components, or all, in every namespace where they run.
    pub async fn pause(cluster: &Cluster, components: &[String], reason: &str) -> Result<Self, Failure> {
        let all = components.is_empty().then(|| ALL.to_owned());
        let keys = components.iter().cloned().chain(all);
        let data = keys.map(|key| (key, reason.to_owned())).collect();
        Self::write(cluster, components, &json!(data), Some(data)).await
    }

    /// Ends the pauses of the components, or all pauses.
    pub async fn resume(cluster: &Cluster, components: &[String]) -> Result<Self, Failure> {
        let removed: BTreeMap<&String, Value> = components.iter().map(|key| (key, Value::Null)).collect();
        let data = if removed.is_empty() {
            Value::Null
        } else {
            json!(removed)
        };
        Self::write(cluster, components, &data, None).await
    }

    /// Whether a component that was to be resumed is paused with all.
    pub fn is_still_paused(&self) -> bool {
        self.pauses.iter().any(|pause| pause.paused.is_some())
    }

    pub fn print(&self, page: &mut Page) {
        for PauseOf {
            component,
            namespace,
            paused,
        } in &self.pauses
        {
            let (style, state) = match paused {
                Some(reason) => (
                    Style::Warning,
                    format!("paused ({reason}): it writes nothing until it is resumed"),
                ),
                None => (Style::Plain, "not paused".to_owned()),
            };
            page.text(style, format!("{component} in {namespace}: {state}"));
        }
        if self.is_still_paused() {
            page.command("end all pauses", "kubectl nodeward resume");
        }
    }

    /// Writes what the ConfigMap of each namespace is to say: merged into one that is there, so that the pauses of others
    /// stay. Where there is none, `missing` is what it is created with.
    async fn write(
        cluster: &Cluster,
        components: &[String],
        data: &Value,
        missing: Option<BTreeMap<String, String>>,
    ) -> Result<Self, Failure> {
        let mut pauses = Vec::new();
        for (namespace, found) in namespaces(cluster, components).await? {
            let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), &namespace);
            let written = write_one(cluster, &api, data, missing.as_ref()).await?;
            pauses.extend(found.into_iter().map(|component| PauseOf {
                paused: paused(&written, &component).map(|paused| paused.reason),
                namespace: namespace.clone(),
                component,
            }));
        }
        Ok(Self { pauses })
    }
}

async fn write_one(
    cluster: &Cluster,
    api: &Api<ConfigMap>,
    data: &Value,
    missing: Option<&BTreeMap<String, String>>,
) -> Result<ConfigMap, Failure> {
    let patch = Patch::Merge(json!({ "data": data }));
    for _ in 0..ATTEMPTS {
        match cluster
            .ask(api.patch(CONFIG_MAP, &PatchParams::default(), &patch))
            .await
        {
            Err(Failure::NotFound(_)) => (),
            answer => return answer,
        }
        let Some(missing) = missing else {
            return Ok(ConfigMap::default());
        };
        let new = ConfigMap {
            metadata: ObjectMeta {
                name: Some(CONFIG_MAP.to_owned()),
                ..ObjectMeta::default()
            },
            data: Some(missing.clone()),
            ..ConfigMap::default()
        };
        match cluster.ask(api.create(&PostParams::default(), &new)).await {
            // Somebody else has created it in between.
            Err(Failure::Conflict(_)) => (),
            answer => return answer,
        }
    }
    Err(Failure::Other(format!(
        "the ConfigMap {CONFIG_MAP} changes too fast: try again"
    )))
}

/// Where the components run: in the namespace of `-n`, or wherever they are found, or else where they are installed unless told
/// otherwise.
async fn namespaces(cluster: &Cluster, components: &[String]) -> Result<BTreeMap<String, BTreeSet<String>>, Failure> {
    let named = || -> BTreeSet<String> {
        let all = components.is_empty().then(|| ALL.to_owned());
        components.iter().cloned().chain(all).collect()
    };
    if let Some(namespace) = &cluster.namespace {
        return Ok([(namespace.clone(), named())].into());
    }
    let mut namespaces: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for found in components_of(&mut Reader::new(cluster)).await? {
        if components.is_empty() || components.contains(&found.name) {
            namespaces.entry(found.namespace).or_default().insert(found.name);
        }
    }
    if namespaces.is_empty() {
        namespaces.insert(DEFAULT_NAMESPACE.to_owned(), named());
    }
    Ok(namespaces)
}
