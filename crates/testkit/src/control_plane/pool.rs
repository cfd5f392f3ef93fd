//! Control planes that tests hand on: to start one takes more processor time than most tests do.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::discovery::{ApiGroup, Discovery, verbs};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{ControlPlane, Options};
use crate::{bulk, lock, unless_gone, unless_refused, wait};

/// How long it may take until what a test has left is gone.
const RESTORED_WITHIN: Duration = Duration::from_mins(1);

/// The control planes of a test binary.
pub struct Pool {
    turns: Semaphore,
    at_once: usize,
    idle: Mutex<Vec<Arc<Prepared>>>,
}

/// A control plane, and all that was in it before the first test.
struct Prepared {
    plane: ControlPlane,
    baseline: BTreeMap<Key, Found>,
}

/// A control plane that belongs to one test until this is dropped.
pub struct PooledControlPlane {
    prepared: Arc<Prepared>,
    pool: &'static Pool,
    _turn: SemaphorePermit<'static>,
}

/// Plural and group, namespace, name.
type Key = (String, Option<String>, String);

struct Found {
    resource: ApiResource,
    object: DynamicObject,
}

impl Pool {
    /// No more than so many control planes are in use at once.
    pub const fn new(at_once: usize) -> Self {
        Self {
            turns: Semaphore::const_new(at_once),
            at_once,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// A control plane that is set up so, with what `prepare` installs and nothing else: one that another test has used, or a new
    /// one.
    ///
    /// # Errors
    /// When a new one cannot be started or prepared.
    pub async fn get(
        &'static self,
        options: Options,
        prepare: impl AsyncFnOnce(&ControlPlane) -> Result<()>,
    ) -> Result<PooledControlPlane> {
        let turn = self.turns.acquire().await?;
        let lend = |prepared| PooledControlPlane {
            prepared,
            pool: self,
            _turn: turn,
        };
        if let Some(used) = self.take(&options) {
            match used.restore().await {
                Ok(()) => return Ok(lend(used)),
                Err(error) => println!("a control plane is not used again: {error:#}"),
            }
        }
        let plane = ControlPlane::start(options).await?;
        prepare(&plane).await?;
        let client = plane.client().await?;
        let baseline = objects(&client, &resources(&client).await?).await?;
        Ok(lend(Arc::new(Prepared { plane, baseline })))
    }

    /// An idle one of these options. Where there is none, and no room for one more, another one ends.
    fn take(&self, options: &Options) -> Option<Arc<Prepared>> {
        let mut idle = lock(&self.idle);
        if let Some(at) = idle.iter().position(|prepared| prepared.plane.options() == options) {
            return Some(idle.remove(at));
        }
        if idle.len() >= self.at_once {
            idle.remove(0);
        }
        None
    }
}

impl Deref for PooledControlPlane {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.prepared.plane
    }
}

impl Drop for PooledControlPlane {
    fn drop(&mut self) {
        lock(&self.pool.idle).push(Arc::clone(&self.prepared));
    }
}

impl Prepared {
    /// Deletes what was not there before the first test, and writes anew what has changed.
    ///
    /// # Errors
    /// Where a test has added kinds: the garbage collector takes half a minute to learn of each that comes or goes.
    async fn restore(&self) -> Result<()> {
        let client = self.plane.client().await?;
        let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let kinds = kinds.list_metadata(&ListParams::default()).await?.items;
        let known = self
            .baseline
            .values()
            .filter(|found| found.resource.kind == "CustomResourceDefinition");
        ensure!(kinds.len() == known.count(), "a test has added kinds");
        let all = resources(&client).await?;
        // What had something left is looked at until it has nothing, and then everything once more.
        let looked_at = Mutex::new(all.clone());
        wait::until("what a test has left to be gone", RESTORED_WITHIN, || async {
            let resources = lock(&looked_at).clone();
            let left = self.clear(&client, &resources).await?;
            let is_done = left.is_empty() && resources.len() == all.len();
            let plurals: Vec<String> = left.iter().map(|resource| resource.plural.clone()).collect();
            *lock(&looked_at) = if left.is_empty() { all.clone() } else { left };
            ensure!(is_done, "{plurals:?}");
            Ok(())
        })
        .await
    }

    /// Deletes and writes what has to be; answers with the resources of which there was something.
    async fn clear(&self, client: &Client, resources: &[ApiResource]) -> Result<Vec<ApiResource>> {
        let mut now = objects(client, resources).await?;
        let mut touched = Vec::new();
        for (key, before) in self
            .baseline
            .iter()
            .filter(|(_, before)| resources.contains(&before.resource))
        {
            let found = now.remove(key);
            if found.as_ref().map(|found| content(&found.object)) != Some(content(&before.object)) {
                touched.push(before.resource.clone());
                before.write(client, found.as_ref()).await?;
            }
        }
        touched.extend(now.values().map(|left| left.resource.clone()));
        touched.sort_by(|a, b| (&a.group, &a.plural).cmp(&(&b.group, &b.plural)));
        touched.dedup();
        // A webhook that nobody serves any more would refuse the rest.
        let (webhooks, others): (Vec<_>, Vec<_>) = now
            .into_values()
            .partition(|left| left.resource.group == "admissionregistration.k8s.io");
        bulk::each(webhooks, |left| left.delete(client)).await?;
        bulk::each(others, |left| left.delete(client)).await?;
        Ok(touched)
    }
}

impl Found {
    fn api(&self, client: &Client) -> Api<DynamicObject> {
        match &self.object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource),
            None => Api::all_with(client.clone(), &self.resource),
        }
    }

    fn name(&self) -> String {
        format!("{} {}", self.resource.kind, self.object.name_any())
    }

    /// At once, whatever a finalizer waits for.
    async fn delete(self, client: &Client) -> Result<()> {
        let (api, name) = (self.api(client), self.object.name_any());
        if self.object.metadata.deletion_timestamp.is_some() && !self.object.finalizers().is_empty() {
            let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            return unless_gone(api.patch(&name, &PatchParams::default(), &free).await.map(drop));
        }
        let deleted = api.delete(&name, &DeleteParams::background().grace_period(0)).await;
        // A namespace that is on its way answers 409.
        unless_refused(deleted.map(drop), &[404, 409]).with_context(|| format!("delete {}", self.name()))
    }

    /// As it was, over what is there now.
    async fn write(&self, client: &Client, now: Option<&Self>) -> Result<()> {
        let (api, mut object) = (self.api(client), self.object.clone());
        object.metadata.managed_fields = None;
        object.metadata.uid = now.and_then(|now| now.object.metadata.uid.clone());
        object.metadata.resource_version = now.and_then(|now| now.object.metadata.resource_version.clone());
        let written = match now {
            Some(_) => {
                api.replace(&self.object.name_any(), &PostParams::default(), &object)
                    .await
            }
            None => api.create(&PostParams::default(), &object).await,
        };
        written.map(drop).with_context(|| format!("write {}", self.name()))
    }
}

/// All that can be listed and deleted.
async fn resources(client: &Client) -> Result<Vec<ApiResource>> {
    let discovery = Discovery::new(client.clone()).run_aggregated().await?;
    let resources = discovery.groups().flat_map(ApiGroup::recommended_resources);
    let resources = resources.filter(|(resource, capabilities)| {
        let is_listed = capabilities.supports_operation(verbs::LIST) && capabilities.supports_operation(verbs::DELETE);
        // Stored once, and served by two groups.
        is_listed && resource.group != "events.k8s.io"
    });
    Ok(resources.map(|(resource, _)| resource).collect())
}

/// All objects of these resources, but for what the cluster's own parts write all the time.
async fn objects(client: &Client, resources: &[ApiResource]) -> Result<BTreeMap<Key, Found>> {
    let lists = bulk::each(resources.to_vec(), |resource| async move {
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        // A kind may go between the two questions.
        let list = match all.list(&ListParams::default()).await {
            Ok(list) => list.items,
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => return Err(error).context(format!("list {}", resource.plural)),
        };
        Ok((resource, list))
    })
    .await?;
    let mut found = BTreeMap::new();
    for (resource, list) in lists {
        for object in list {
            if !is_of_the_cluster(&resource, &object) {
                let kind = format!("{}.{}", resource.plural, resource.group);
                let key = (kind, object.metadata.namespace.clone(), object.name_any());
                let resource = resource.clone();
                found.insert(key, Found { resource, object });
            }
        }
    }
    Ok(found)
}

/// Whether the cluster's own parts make it and write it.
fn is_of_the_cluster(resource: &ApiResource, object: &DynamicObject) -> bool {
    let namespace = object.metadata.namespace.as_deref();
    match &*resource.kind {
        "APIService" | "FlowSchema" | "PriorityLevelConfiguration" => true,
        "Lease" => namespace == Some("kube-system"),
        "ConfigMap" => object.name_any() == "kube-root-ca.crt",
        "ServiceAccount" => object.name_any() == "default",
        _ => false,
    }
}

/// What of an object people and programs write on purpose.
fn content(object: &DynamicObject) -> Value {
    let mut content = object.data.clone();
    if let Some(fields) = content.as_object_mut() {
        fields.remove("status");
    }
    json!([
        object.metadata.labels,
        object.metadata.annotations,
        object.metadata.finalizers,
        content
    ])
}
