//! What says how to connect to a cluster's Ceph: Secrets and a ConfigMap, each by its name. No other Secret is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use nodeward_runtime::{Cache, KindState, Selection, WatchHandle, Watches};

use crate::credentials::{
    ADMIN_SECRET, CLIENT_SECRET, CONFIG_SECRET, ConfiguredSecret, ConnectionObjects, MON_ENDPOINTS, SecretData,
};
use crate::policy::Policy;
use crate::snapshot::{CephProblem, CephProblemKind};

/// The watches of one namespace.
pub(super) struct ConnectionWatches {
    watches: Watches,
    client: Client,
    namespace: Arc<str>,
    secrets: BTreeMap<Arc<str>, Cache<SecretData>>,
    mon_endpoints: Cache<BTreeMap<String, String>>,
}

impl ConnectionWatches {
    /// Opens those that are always needed.
    pub(super) fn open(watches: &Watches, client: &Client, namespace: &Arc<str>) -> Self {
        let config_maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
        let selection = Selection::all().named(MON_ENDPOINTS);
        let mon_endpoints = watches.cache("monitors", config_maps, selection, |config_map| {
            Some(config_map.data.unwrap_or_default())
        });
        Self {
            watches: watches.clone(),
            client: client.clone(),
            namespace: Arc::clone(namespace),
            secrets: BTreeMap::new(),
            mon_endpoints,
        }
    }

    /// Watches the Secrets that the policy allows, and no others.
    pub(super) fn follow(&mut self, policy: &Policy) {
        let wanted: BTreeSet<Arc<str>> = wanted(policy);
        self.secrets.retain(|name, _| wanted.contains(name));
        for name in wanted {
            if !self.secrets.contains_key(&name) {
                let secrets = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
                let selection = Selection::all().named(&name);
                let cache = self.watches.cache("credentials", secrets, selection, |secret: Secret| {
                    let data = secret.data.unwrap_or_default().into_iter();
                    Some(SecretData(data.map(|(key, value)| (key, value.0)).collect()))
                });
                self.secrets.insert(name, cache);
            }
        }
    }

    /// What is known; `None` while something is still being listed.
    ///
    /// # Errors
    /// Something may not be read.
    pub(super) fn objects(
        &self,
        policy: &Policy,
        is_encrypted: bool,
    ) -> Option<Result<ConnectionObjects, CephProblem>> {
        let named = self.secrets.iter().map(|(name, cache)| (&**name, &**cache));
        for (name, watch) in named.chain([(MON_ENDPOINTS, &*self.mon_endpoints)]) {
            match problem(&self.namespace, name, watch) {
                Ok(()) => {}
                Err(None) => return None,
                Err(Some(problem)) => return Some(Err(problem)),
            }
        }
        let secret = |name: &str| {
            let secret = self.secrets.get(name)?.snapshot();
            secret.values().next().map(|data| SecretData::clone(data))
        };
        let endpoints = self.mon_endpoints.snapshot();
        let configured = policy.credentials_secret.as_ref().map(|name| ConfiguredSecret {
            name: Arc::clone(name),
            data: secret(name),
        });
        Some(Ok(ConnectionObjects {
            configured,
            client: secret(CLIENT_SECRET),
            admin: secret(ADMIN_SECRET),
            allow_admin_key: policy.allow_admin_key,
            config: secret(CONFIG_SECRET),
            mon_endpoints: endpoints.values().next().map(|data| BTreeMap::clone(data)),
            is_encrypted,
        }))
    }
}

fn wanted(policy: &Policy) -> BTreeSet<Arc<str>> {
    let user: Vec<Arc<str>> = match &policy.credentials_secret {
        Some(configured) => vec![Arc::clone(configured)],
        None if policy.allow_admin_key => vec![CLIENT_SECRET.into(), ADMIN_SECRET.into()],
        None => vec![CLIENT_SECRET.into()],
    };
    user.into_iter().chain([CONFIG_SECRET.into()]).collect()
}

/// Why an object cannot be told: it may not be read, or (`None`) is still being listed.
fn problem(namespace: &str, name: &str, watch: &WatchHandle) -> Result<(), Option<CephProblem>> {
    match watch.state() {
        _ if watch.is_synced() => Ok(()),
        KindState::Forbidden(why) => Err(Some(CephProblem {
            kind: CephProblemKind::CredentialsMissing,
            message: format!("{name} in namespace {namespace} may not be read: {why}").into(),
        })),
        _ => Err(None),
    }
}
