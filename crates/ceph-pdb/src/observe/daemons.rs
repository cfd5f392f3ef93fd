//! How many of each other daemon Rook's objects ask for. None of their kinds has to be installed.

use kube::core::DynamicObject;
use nodeward_core::signal::WatchedResource;
use nodeward_runtime::discovery::Known;
use nodeward_runtime::{DynamicCache, KindRegistry, Watches};

use super::ceph_cluster::SpecReader;
use super::{ROOK_API, in_namespace};
use crate::plan::daemon_budgets::Daemons;

/// The watches of one namespace.
pub(super) struct DaemonWatches {
    filesystems: DynamicCache<(i32, bool)>,
    object_stores: DynamicCache<i32>,
    block_mirrors: DynamicCache<i32>,
    nfs_servers: DynamicCache<i32>,
}

impl DaemonWatches {
    /// Opens them.
    pub(super) fn open(watches: &Watches, kinds: &KindRegistry, namespace: &str) -> Self {
        let resource = |kind| in_namespace(namespace, WatchedResource::all(ROOK_API, kind));
        Self {
            filesystems: watches.dynamic("cephfilesystems", kinds, resource("CephFilesystem"), |object| {
                let mut spec = SpecReader::new(&object);
                let standby = spec.read("/metadataServer/activeStandby").unwrap_or_default();
                Some((spec.read("/metadataServer/activeCount").unwrap_or_default(), standby))
            }),
            object_stores: watches.dynamic("cephobjectstores", kinds, resource("CephObjectStore"), |object| {
                gateways(&object)
            }),
            block_mirrors: watches.dynamic("cephrbdmirrors", kinds, resource("CephRBDMirror"), |object| {
                Some(SpecReader::new(&object).read("/count").unwrap_or_default())
            }),
            nfs_servers: watches.dynamic("cephnfses", kinds, resource("CephNFS"), |object| {
                Some(SpecReader::new(&object).read("/server/active").unwrap_or_default())
            }),
        }
    }

    /// What is known of them.
    pub(super) fn snapshot(&self) -> Daemons {
        let mut daemons = Daemons::default();
        let unknown = &mut daemons.unknown;
        daemons.gateways = of(&self.object_stores, unknown);
        daemons.block_mirrors = of(&self.block_mirrors, unknown);
        daemons.nfs_servers = of(&self.nfs_servers, unknown);
        let filesystems = of(&self.filesystems, unknown).into_iter();
        daemons.metadata_servers = filesystems
            .map(|(name, (active, standby))| (name, active, standby))
            .collect();
        daemons
    }
}

/// Gateways that run elsewhere have no budget here.
fn gateways(object: &DynamicObject) -> Option<i32> {
    let mut spec = SpecReader::new(object);
    let elsewhere: Option<Vec<serde_json::Value>> = spec.read("/gateway/externalRgwEndpoints");
    let are_elsewhere = elsewhere.is_some_and(|endpoints| !endpoints.is_empty());
    (!are_elsewhere).then(|| spec.read("/gateway/instances").unwrap_or_default())
}

fn of<V: Clone>(cache: &DynamicCache<V>, unknown: &mut Vec<String>) -> Vec<(String, V)> {
    match cache.known() {
        Known::Absent => Vec::new(),
        Known::Objects(objects) => {
            let objects = objects.iter();
            objects
                .map(|(key, value)| (key.name.to_string(), V::clone(value)))
                .collect()
        }
        Known::Unknown(why) => {
            unknown.push(why);
            Vec::new()
        }
    }
}
