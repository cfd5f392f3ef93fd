//! Which kinds the cluster serves, noticed without polling.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client, ResourceExt};
use nodeward_core::signal::WatchedResource;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::cache::{Cache, KindState, Selection, Watches};

/// The client of watches has no time limit, and an aggregated API may never answer.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(35);

/// One metadata-only watch on CustomResourceDefinitions. It tells *that* something about an API group changed; whether a
/// kind is then served is asked once, by discovery, which every authenticated user may read.
#[derive(Clone)]
pub struct KindRegistry {
    definitions: Cache<Definition>,
    client: Client,
}

/// What identifies one state of a definition. The resource version moves when the server establishes it or changes the
/// served versions; the UID moves when it was deleted and created again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Definition {
    pub(super) uid: String,
    resource_version: String,
}

/// All definitions of one group, by name.
pub(super) type GroupState = BTreeMap<String, Definition>;

/// A kind that the cluster serves.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ServedKind {
    pub(super) resource: ApiResource,
    pub(super) namespaced: bool,
}

impl ServedKind {
    /// A cluster-scoped kind has no namespaces to choose from, whatever was asked for.
    pub(super) fn api(&self, kinds: &KindRegistry, wanted: &WatchedResource) -> Api<DynamicObject> {
        match &wanted.namespace {
            Some(namespace) if self.namespaced => Api::namespaced_with(kinds.client.clone(), namespace, &self.resource),
            _ => Api::all_with(kinds.client.clone(), &self.resource),
        }
    }
}

impl KindRegistry {
    /// Opens the watch. `client` also asks discovery.
    pub fn spawn(watches: &Watches, client: Client) -> Self {
        let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client.clone());
        let definitions = watches.cache("customresourcedefinitions", api, Selection::all(), |definition| {
            Some(Definition {
                uid: definition.uid().unwrap_or_default(),
                resource_version: definition.resource_version().unwrap_or_default(),
            })
        });
        Self { definitions, client }
    }

    /// The cache of definitions, for a readiness gate.
    pub fn state(&self) -> KindState {
        self.definitions.state()
    }

    /// Returns when it is known which definitions exist.
    pub async fn wait_synced(&self) {
        self.definitions.wait_synced().await;
    }

    pub(super) fn is_synced(&self) -> bool {
        self.definitions.is_synced()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.definitions.changes()
    }

    /// A definition is named `<plural>.<group>`.
    pub(super) fn group(&self, group: &str) -> GroupState {
        let definitions = self.definitions.snapshot();
        definitions
            .iter()
            .filter(|(key, _)| key.name.split_once('.').is_some_and(|(_, of)| of == group))
            .map(|(key, definition)| (key.name.to_string(), (**definition).clone()))
            .collect()
    }

    /// To read or write objects of a kind that is not watched. Asks discovery; `None`: the kind is absent.
    pub async fn api(&self, resource: &WatchedResource) -> kube::Result<Option<Api<DynamicObject>>> {
        let served = self.resolve(resource).await?;
        Ok(served.map(|served| served.api(self, resource)))
    }

    /// Asks the server once. `Ok(None)`: it answered, and does not serve the kind.
    pub(super) async fn resolve(&self, resource: &WatchedResource) -> kube::Result<Option<ServedKind>> {
        let kind = GroupVersionKind::gvk(resource.group(), resource.version(), &resource.kind);
        let asked = timeout(DISCOVERY_TIMEOUT, pinned_kind(&self.client, &kind)).await;
        let timed_out = |elapsed| Err(kube::Error::Service(Box::new(elapsed)));
        match asked.unwrap_or_else(timed_out) {
            Ok((resource, capabilities)) => Ok(Some(ServedKind {
                resource,
                namespaced: capabilities.scope == Scope::Namespaced,
            })),
            Err(kube::Error::Discovery(_)) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }
}
