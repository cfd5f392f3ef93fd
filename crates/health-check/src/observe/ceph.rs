//! What ceph-pdb tells of the CephClusters that the configuration names, for as long as it lives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::CONFIG_MAP;
use nodeward_core::id::NamespacedName;
use nodeward_runtime::discovery::LIST_PATIENCE;
use nodeward_runtime::{Cache, KindState, Selection, Watches};

use super::leader_leases::{LeaderLeases, Live};
use crate::snapshot::Reading;

/// The watches of what is published, one a namespace.
pub(super) struct CephWatches {
    watches: Watches,
    client: Client,
    published: BTreeMap<Arc<str>, Cache<Published>>,
    opened: Instant,
}

/// What is told, by namespace.
type Told = BTreeMap<Arc<str>, Reading<Arc<CephClusterState>>>;

/// What is published, or what is wrong with it.
type Published = Result<Arc<CephClusterState>, String>;

impl CephWatches {
    /// Nothing is watched yet.
    pub(super) fn new(watches: &Watches, client: &Client) -> Self {
        Self {
            watches: watches.clone(),
            client: client.clone(),
            published: BTreeMap::new(),
            opened: Instant::now(),
        }
    }

    /// Watches these namespaces, and no others.
    pub(super) fn follow(&mut self, namespaces: &BTreeSet<Arc<str>>) {
        self.published.retain(|namespace, _| namespaces.contains(namespace));
        for namespace in namespaces {
            self.published.entry(Arc::clone(namespace)).or_insert_with(|| {
                let maps = Api::<ConfigMap>::namespaced(self.client.clone(), namespace);
                let selection = Selection::all().named(CONFIG_MAP);
                self.watches
                    .cache("states of CephClusters", maps, selection, |map: ConfigMap| {
                        Some(CephClusterState::read(&map).map(Arc::new))
                    })
            });
        }
    }

    /// Whether a first list is still to come, and worth waiting for.
    pub(super) fn is_starting(&self) -> bool {
        let mut states = self.published.values().map(|cache| cache.state());
        self.opened.elapsed() < LIST_PATIENCE && states.any(|state| state == KindState::Syncing)
    }

    /// The leases by which whoever published is seen to live.
    pub(super) fn leases(&self) -> impl Iterator<Item = NamespacedName> {
        let states = self.published.values().filter_map(|cache| read(cache).ok());
        states.filter_map(|state| lease_of(&state))
    }

    /// What is told of each namespace, as far as it can be believed.
    ///
    /// # Errors
    /// Since this process leads it has not looked at a lease yet.
    pub(super) fn observe(&self, leases: &LeaderLeases) -> Result<Told, String> {
        let published = self.published.iter();
        published
            .map(|(namespace, cache)| Ok((Arc::clone(namespace), believed(read(cache), leases)?)))
            .collect()
    }
}

/// What is published, if whoever published it lives.
fn believed(published: Published, leases: &LeaderLeases) -> Result<Reading<Arc<CephClusterState>>, String> {
    let state = match published {
        Ok(state) => state,
        Err(why) => return Ok(Reading::Unknown(why)),
    };
    let Some(lease) = lease_of(&state) else {
        let why = "what ceph-pdb has published names no lease: it is of an earlier version, or elects no leader";
        return Ok(Reading::Unknown(why.to_owned()));
    };
    let holder = leases.holder(&lease)?;
    Ok(match is_alive(&lease, holder, leases.is_standby()) {
        Ok(()) => Reading::Known(state),
        Err(why) => Reading::Unknown(why),
    })
}

fn read(cache: &Cache<Published>) -> Published {
    if let KindState::Forbidden(why) = cache.state() {
        return Err(format!("ConfigMap {CONFIG_MAP} may not be read: {why}"));
    }
    if !cache.is_fresh() {
        return Err(format!("ConfigMap {CONFIG_MAP} has not been read, or not for minutes"));
    }
    match cache.snapshot().values().next() {
        Some(published) => Published::clone(published),
        None => Err(format!(
            "there is no ConfigMap {CONFIG_MAP}: ceph-pdb has published nothing"
        )),
    }
}

fn lease_of(state: &CephClusterState) -> Option<NamespacedName> {
    let lease = state.leader_lease.as_ref()?;
    Some(NamespacedName::new(lease.namespace.as_str(), lease.name.as_str()))
}

/// A standby does not look at leases again: what it would call dead may well live.
fn is_alive(lease: &NamespacedName, holder: Reading<Option<Live>>, is_standby: bool) -> Result<(), String> {
    match holder {
        Reading::Known(Some(live)) if live.is_renewed || is_standby => Ok(()),
        Reading::Known(None) if is_standby => Ok(()),
        Reading::Known(_) => Err(format!("ceph-pdb does not run: nobody renews lease {lease}")),
        Reading::Unknown(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn live(is_renewed: bool) -> Reading<Option<Live>> {
        let holder = "ceph-pdb-0".to_owned();
        Reading::Known(Some(Live { holder, is_renewed }))
    }

    #[rstest]
    #[case::renewed(live(true), false, Ok(()))]
    #[case::not_renewed(
        live(false),
        false,
        Err("ceph-pdb does not run: nobody renews lease system/ceph-pdb")
    )]
    #[case::free(
        Reading::Known(None),
        false,
        Err("ceph-pdb does not run: nobody renews lease system/ceph-pdb")
    )]
    #[case::unreadable(Reading::Unknown("403".to_owned()), false, Err("403"))]
    #[case::not_looked_at_by_a_standby(Reading::Known(None), true, Ok(()))]
    #[case::not_looked_at_again_by_a_standby(live(false), true, Ok(()))]
    #[case::unreadable_by_a_standby(Reading::Unknown("403".to_owned()), true, Err("403"))]
    fn dead_ceph_pdb_is_not_believed(
        #[case] holder: Reading<Option<Live>>,
        #[case] is_standby: bool,
        #[case] expected: Result<(), &str>,
    ) {
        let lease = NamespacedName::new("system", "ceph-pdb");
        let told = is_alive(&lease, holder, is_standby);
        assert_eq!(told, expected.map_err(str::to_owned));
    }
}
