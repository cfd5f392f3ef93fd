//! A configuration text in a ConfigMap that belongs to somebody else, read through the API.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};

use crate::cache::{Cache, KindState, NamespacedName, Selection, Watches};

/// One key of one ConfigMap, watched. Clones share the watch; dropping the last one closes it.
#[derive(Clone)]
pub struct ConfigMapSource {
    cache: Cache<Option<Arc<str>>>,
    key: NamespacedName,
}

/// What the ConfigMap holds under the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigMapText {
    /// Not known yet.
    Syncing,
    /// There is no such ConfigMap.
    Absent,
    /// The ConfigMap lacks the key.
    KeyMissing,
    Text(Arc<str>),
    /// It may not be read; the server's own words.
    Forbidden(Arc<str>),
}

impl ConfigMapSource {
    /// Watches `key` of the ConfigMap `namespace/name`; nothing else of the namespace is read.
    pub fn spawn(watches: &Watches, client: Client, namespace: &str, name: &str, key: &str) -> Self {
        let api: Api<ConfigMap> = Api::namespaced(client, namespace);
        let selection = Selection::all().named(name);
        let data_key = key.to_owned();
        let cache = watches.cache("configmap", api, selection, move |config_map| {
            let text = config_map.data.and_then(|mut data| data.remove(&data_key));
            Some(text.map(Arc::from))
        });
        Self {
            cache,
            key: NamespacedName::new(namespace, name),
        }
    }

    /// What it holds now.
    pub fn text(&self) -> ConfigMapText {
        if let KindState::Forbidden(message) = self.cache.state() {
            return ConfigMapText::Forbidden(message);
        }
        if !self.cache.is_synced() {
            return ConfigMapText::Syncing;
        }
        match self.cache.get(&self.key).as_deref() {
            None => ConfigMapText::Absent,
            Some(None) => ConfigMapText::KeyMissing,
            Some(Some(text)) => ConfigMapText::Text(Arc::clone(text)),
        }
    }
}
