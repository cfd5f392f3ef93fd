//! What says how to connect to a cluster's Ceph: Secrets and a ConfigMap, each by its name. No other Secret is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use nodeward_runtime::{Cache, KindState, Selection, WatchHandle, Watches};
use rados::Options;

use super::first;
use crate::credentials::{CONFIG_SECRET, ConnectionObjects, MON_ENDPOINTS, SecretData, user_secrets};
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
        let mut wanted = user_secrets(policy);
        wanted.push(CONFIG_SECRET.into());
        self.secrets.retain(|name, _| wanted.contains(name));
        for name in wanted {
            self.secrets.entry(name).or_insert_with_key(|name| {
                let secrets = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
                let selection = Selection::all().named(name);
                self.watches.cache("credentials", secrets, selection, |secret: Secret| {
                    let data = secret.data.unwrap_or_default().into_iter();
                    Some(SecretData(data.map(|(key, value)| (key, value.0)).collect()))
                })
            });
        }
    }

    /// How to connect; `None` while something is still being listed. What is not known, or may not be read, is a problem.
    pub(super) fn target(&self, policy: &Policy, is_encrypted: bool) -> Option<Result<Options, CephProblem>> {
        let named = self.secrets.iter().map(|(name, cache)| (&**name, &**cache));
        for (name, watch) in named.chain([(MON_ENDPOINTS, &*self.mon_endpoints)]) {
            match problem(&self.namespace, name, watch) {
                Ok(()) => {}
                Err(None) => return None,
                Err(Some(problem)) => return Some(Err(problem)),
            }
        }
        let secret = |name: &str| first(self.secrets.get(name)?);
        let users = user_secrets(policy).into_iter();
        let objects = ConnectionObjects {
            users: users.map(|name| (Arc::clone(&name), secret(&name))).collect(),
            config: secret(CONFIG_SECRET),
            mon_endpoints: first(&self.mon_endpoints),
            is_encrypted,
        };
        Some(objects.options())
    }
}

/// Why an object cannot be told: it may not be read, or (`None`) is still being listed.
fn problem(namespace: &str, name: &str, watch: &WatchHandle) -> Result<(), Option<CephProblem>> {
    match watch.state() {
        _ if watch.is_synced() => Ok(()),
        KindState::Forbidden(why) => Err(Some(CephProblem::new(
            CephProblemKind::CredentialsMissing,
            format!("{name} in namespace {namespace} may not be read: {why}"),
        ))),
        _ => Err(None),
    }
}
