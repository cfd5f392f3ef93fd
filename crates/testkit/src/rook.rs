//! A real Ceph as if Rook ran it: Rook's objects, Nodes for its hosts, and OSDs that start and stop with their pods.
//!
//! Nothing acts on the objects but the controllers of the control plane: who changes a CephCluster changes nothing else.
//! Monitors and manager run whatever becomes of their pods, which have a node of their own.

mod objects;
mod osd_pods;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DynamicObject, EvictParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use self::objects::Objects;
use self::osd_pods::OsdPods;
use crate::ceph::Ceph;
use crate::fleet::{self, NodeSpec};
use crate::foreign::{CephKind, Foreign};
use crate::{bulk, wait, workload};

/// The name of the CephCluster.
pub const CLUSTER: &str = "rook-ceph";

/// The label of an OSD's Deployment and Pod with its number.
pub const OSD_ID: &str = "ceph-osd-id";

/// The user that may see all and do nothing but set and unset `noout` on groups.
const USER: &str = "nodeward";

/// What the monitors let this user do.
pub const MON_CAPS: &str =
    "allow r, allow command \"osd set-group\" with flags=noout, allow command \"osd unset-group\" with flags=noout";

/// How long all pods may take to run.
const RUNNING_WITHIN: Duration = Duration::from_mins(3);

/// A CephCluster and its Ceph. Dropping it leaves the objects; its OSDs no longer follow their pods then.
pub struct Rook {
    client: Client,
    namespace: String,
    ceph: Arc<Ceph>,
    stops: Arc<RwLock<()>>,
    _osd_pods: OsdPods,
}

impl Rook {
    /// Creates Nodes and all objects in a namespace, and waits until the OSDs' pods run.
    ///
    /// # Errors
    /// The server refuses one, or a pod does not run in time.
    pub async fn start(client: &Client, namespace: &str, ceph: Arc<Ceph>) -> Result<Self> {
        for kind in CephKind::ALL {
            Foreign::Ceph(kind).install(client).await?;
        }
        let options = ceph.options();
        let hosts = (0..options.hosts).map(|host| {
            NodeSpec::worker(options.host_name(host)).label("topology.rook.io/rack", &options.rack_of_host(host))
        });
        let others = format!("{}mons", options.prefix);
        fleet::create(client, hosts.chain([NodeSpec::worker(&others)])).await?;
        let spec = objects::cluster_spec(options.mons);
        let cluster = Foreign::Ceph(CephKind::Cluster)
            .put(client, Some(namespace), CLUSTER, spec)
            .await?;
        let objects = Objects {
            namespace,
            owner: &cluster,
            ceph: &ceph,
            other_node: &others,
        };
        let secrets = [objects.mon_secret().await?, objects.config_secret()];
        bulk::create(client, typed::<Secret>(secrets)?).await?;
        bulk::create(client, typed::<ConfigMap>([objects.mon_endpoints()])?).await?;
        let mut deployments = objects.mons();
        deployments.push(objects.mgr());
        deployments.extend((0..options.osds()).map(|osd| objects.osd(osd)));
        // From before the first pod, so that none is missed.
        let stops = Arc::default();
        let osd_pods = OsdPods::follow(client.clone(), namespace, &ceph, &stops);
        bulk::create(client, typed::<Deployment>(deployments)?).await?;
        let rook = Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            stops,
            _osd_pods: osd_pods,
            ceph,
        };
        rook.add_user(USER, &["mon", MON_CAPS, "mgr", "allow r"]).await?;
        workload::ready_pods(
            client,
            namespace,
            "rook-ceph-osd",
            rook.ceph.options().osds(),
            RUNNING_WITHIN,
        )
        .await?;
        Ok(rook)
    }

    /// Makes a user by a CephClient, with its key in the Secret that Rook makes of it. `caps` are daemon types, each with what
    /// is allowed there.
    ///
    /// # Errors
    /// Ceph or the server refuses it.
    pub async fn add_user(&self, name: &str, caps: &[&str]) -> Result<()> {
        let key = self.ceph.add_user(&format!("client.{name}"), caps).await?;
        let by_daemon: serde_json::Map<_, _> = caps
            .chunks_exact(2)
            .map(|pair| (pair[0].to_owned(), json!(pair[1])))
            .collect();
        let body = json!({"spec": {"caps": by_daemon}, "status": {"phase": "Ready"}});
        let owner = self.put(CephKind::Client, name, body).await?;
        let secret = objects::user_secret(&self.namespace, &owner, name, &key);
        bulk::create(&self.client, typed::<Secret>([secret])?).await.map(drop)
    }

    /// Creates an object of Rook's, or replaces what `body` holds of it.
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn put(&self, kind: CephKind, name: &str, body: Value) -> Result<DynamicObject> {
        Foreign::Ceph(kind)
            .put(&self.client, Some(&self.namespace), name, body)
            .await
    }

    /// Changes fields of the CephCluster's spec.
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn patch_cluster(&self, spec: Value) -> Result<()> {
        let clusters = Foreign::Ceph(CephKind::Cluster).api(&self.client, Some(&self.namespace));
        let patch = Patch::Merge(json!({"spec": spec}));
        clusters.patch(CLUSTER, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Its Ceph.
    pub fn ceph(&self) -> &Ceph {
        &self.ceph
    }

    /// What reaches its API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The Node of an OSD.
    pub fn node_of(&self, osd: usize) -> String {
        self.ceph.options().host_of(osd)
    }

    /// The pods in its namespace.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The budgets in its namespace.
    pub fn budgets(&self) -> Api<PodDisruptionBudget> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// All pods of an OSD: two while one takes the other's place.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn osd_pods(&self, osd: usize) -> Result<Vec<Pod>> {
        let selected = ListParams::default().labels(&format!("app=rook-ceph-osd,{OSD_ID}={osd}"));
        Ok(self.pods().list(&selected).await?.items)
    }

    /// While this is held no OSD begins to stop: a kubelet gives each container its grace, and whoever judges an eviction needs
    /// the cluster as it was when the eviction was allowed.
    pub async fn delay_stops(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.stops).read_owned().await
    }

    /// Asks the server to evict an OSD's pod that is not on its way out; gives the answer's status code, and `None` without such
    /// a pod. No budget protects one that is still pending: that is no OSD.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn evict_osd(&self, osd: usize) -> Result<Option<u16>> {
        let pods = self.osd_pods(osd).await?;
        let runs = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none() && workload::phase(pod) != "Pending";
        let Some(pod) = pods.iter().find(runs) else {
            return Ok(None);
        };
        match self.pods().evict(&pod.name_any(), &EvictParams::default()).await {
            Ok(_) => Ok(Some(201)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(kube::Error::Api(status)) => Ok(Some(status.code)),
            Err(error) => Err(error).with_context(|| format!("evict {}", pod.name_any())),
        }
    }

    /// Waits until an OSD's pod is stopped and gone, and its process with it; another one may wait for a node.
    ///
    /// # Errors
    /// It is not in time.
    pub async fn osd_gone(&self, osd: usize, deadline: Duration) -> Result<()> {
        wait::until(format!("OSD {osd} to be stopped"), deadline, || async {
            let pods = self.osd_pods(osd).await?;
            let bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            ensure!(!pods.iter().any(bound), "it has a pod on a node");
            ensure!(!self.ceph.osd(osd).is_running(), "it runs");
            Ok(())
        })
        .await
    }

    /// Makes a replicated pool and its CephBlockPool, and waits until it is clean.
    ///
    /// # Errors
    /// Ceph or the server refuses it, or it is not clean in time.
    pub async fn add_pool(&self, name: &str, size: usize, placement_groups: usize, domain: &str) -> Result<()> {
        self.ceph.add_pool(name, size, placement_groups, domain).await?;
        let body = json!({"spec": {"failureDomain": domain, "replicated": {"size": size}}});
        self.put(CephKind::BlockPool, name, body).await.map(drop)
    }
}

fn typed<K: serde::de::DeserializeOwned>(objects: impl IntoIterator<Item = Value>) -> Result<Vec<K>> {
    let read = objects.into_iter().map(serde_json::from_value);
    Ok(read.collect::<Result<_, _>>()?)
}
