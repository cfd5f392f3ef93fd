//! Reads that several commands share. A kind that the caller may not read, or that is not installed, is noted, and
//! everything else is read all the same.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, ObjectReference, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta, Selector, TypeMeta};
use kube::{Api, Resource};
use nodeward_api::ceph_state;
use nodeward_api::disruption_hold::DisruptionHold;
use nodeward_api::drain_ledger::{self, DrainLedger};
use nodeward_api::node_drain::BlockedBy;
use nodeward_api::node_drain::NodeDrain;
use nodeward_api::reason::LockReason;
use nodeward_api::{NodeHealthCheck, node_lease};
use nodeward_core::lease::LeaseView;
use nodeward_core::ledger::Ledger;
use nodeward_core::node_health_check::{RemediationKind, TemplateRef};
use nodeward_runtime::cache::Content;
use serde::de::DeserializeOwned;

use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::model::Unread;
use crate::model::ceph::CephCluster;
use crate::model::component::ComponentObjects;
use crate::model::drain::Drain;
use crate::model::events::Act;
use crate::model::outdated::PodNow;

/// Objects in one answer, as in kubectl, so that no single answer is large.
const PAGE: u32 = 500;

/// The ledger, or why it cannot be decoded.
pub type StoredLedger = Result<Arc<Ledger>, String>;

/// What a stored ledger says.
pub fn decode(ledger: &DrainLedger) -> StoredLedger {
    Ledger::try_from(&ledger.spec).map(Arc::new)
}

/// What watches hold already, so that nobody asks for it again. What is absent is asked for.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub components: Option<ComponentObjects>,
    pub drains: Option<Content<Drain>>,
    pub ledger: Option<Arc<StoredLedger>>,
    /// In the namespace of `-n`, or in all, as the next.
    pub budgets: Option<Content<PodDisruptionBudget>>,
    pub holds: Option<Content<DisruptionHold>>,
    pub checks: Option<Vec<NodeHealthCheck>>,
    pub ceph: Option<Vec<CephCluster>>,
}

/// Reads for one command.
pub struct Reader<'a> {
    pub cluster: &'a Cluster,
    pub now: Timestamp,
    pub unread: Vec<Unread>,
    pub known: Known,
}

impl<'a> Reader<'a> {
    pub fn new(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            now: Timestamp::now(),
            unread: Vec::new(),
            known: Known::default(),
        }
    }

    /// Asks, and notes a missing right; any other failure ends the command.
    async fn read<T>(
        &mut self,
        what: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<Option<T>, Failure> {
        match self.cluster.ask(request).await {
            Err(Failure::MissingRight(missing)) => {
                let missing = *missing;
                self.unread.push(Unread::Forbidden { what, missing });
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }

    /// Notes a kind of drain-lock's that is not installed.
    fn is_served<K: Resource<DynamicType = ()>>(&mut self, what: &'static str) -> bool {
        let is_served = self.cluster.serves::<K>();
        if !is_served {
            let component = "drain-lock";
            self.unread.push(Unread::NotInstalled { what, component });
        }
        is_served
    }

    /// Objects, read page by page.
    pub async fn list<K>(
        &mut self,
        what: &'static str,
        api: Api<K>,
        params: ListParams,
    ) -> Result<Option<Vec<K>>, Failure>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        self.list_as(what, api, params, |object| object).await
    }

    /// What `keep` makes of each object, so that no more is kept than that.
    pub async fn list_as<K, T>(
        &mut self,
        what: &'static str,
        api: Api<K>,
        params: ListParams,
        mut keep: impl FnMut(K) -> T,
    ) -> Result<Option<Vec<T>>, Failure>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        if !self.is_served::<K>(what) {
            return Ok(None);
        }
        let mut kept = Vec::new();
        let mut params = params.limit(PAGE);
        loop {
            let Some(page) = self.read(what, api.list(&params)).await? else {
                return Ok(None);
            };
            kept.extend(page.items.into_iter().map(&mut keep));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(Some(kept)),
            }
        }
    }

    /// The metadata of objects: of what may be large, or is a secret.
    pub async fn list_metadata<K>(
        &mut self,
        what: &'static str,
        params: ListParams,
    ) -> Result<Vec<PartialObjectMeta<K>>, Failure>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        if !self.cluster.serves::<K>() {
            return Ok(Vec::new());
        }
        let found = self.read(what, self.cluster.all::<K>().list_metadata(&params)).await?;
        Ok(found.map(|found| found.items).unwrap_or_default())
    }

    pub async fn drains(&mut self) -> Result<Option<Vec<Drain>>, Failure> {
        if let Some(drains) = &self.known.drains {
            return Ok(Some(values(drains)));
        }
        let drain = |drain: NodeDrain| Drain::of(&drain);
        self.list_as("drains", self.cluster.all(), ListParams::default(), drain)
            .await
    }

    /// The drain of a node; `Some(None)` if there is none.
    pub async fn drain(&mut self, node: &str) -> Result<Option<Option<NodeDrain>>, Failure> {
        if !self.is_served::<NodeDrain>("drains") {
            return Ok(None);
        }
        self.read("drains", self.cluster.all().get_opt(node)).await
    }

    /// The ledger; empty where there is none yet. One that cannot be decoded is noted.
    pub async fn ledger(&mut self) -> Result<Option<Arc<Ledger>>, Failure> {
        let stored = match self.known.ledger.clone() {
            Some(known) => known,
            None => match self.stored_ledger().await? {
                Some(read) => Arc::new(read),
                None => return Ok(None),
            },
        };
        match &*stored {
            Ok(ledger) => Ok(Some(Arc::clone(ledger))),
            Err(why) => {
                self.unread.push(Unread::ledger(why));
                Ok(None)
            }
        }
    }

    async fn stored_ledger(&mut self) -> Result<Option<StoredLedger>, Failure> {
        if !self.is_served::<DrainLedger>("claims") {
            return Ok(None);
        }
        let ledgers = self.cluster.all::<DrainLedger>();
        let ledger = self.read("claims", ledgers.get_opt(drain_ledger::NAME)).await?;
        Ok(ledger.map(|ledger| ledger.map_or_else(|| Ok(Arc::default()), |ledger| decode(&ledger))))
    }

    pub async fn holds(&mut self, namespace: Option<&str>) -> Result<Option<Vec<DisruptionHold>>, Failure> {
        if let Some(holds) = &self.known.holds {
            return Ok(Some(values(holds)));
        }
        self.list("holds", self.cluster.within(namespace), ListParams::default())
            .await
    }

    pub async fn budgets(&mut self, namespace: Option<&str>) -> Result<Option<Vec<PodDisruptionBudget>>, Failure> {
        if let Some(budgets) = &self.known.budgets {
            return Ok(Some(values(budgets)));
        }
        self.list("budgets", self.cluster.within(namespace), ListParams::default())
            .await
    }

    /// A node; `Some(None)` if there is none of that name.
    pub async fn node(&mut self, name: &str) -> Result<Option<Option<Node>>, Failure> {
        self.read("node", self.cluster.all().get_opt(name)).await
    }

    pub async fn pods_on(&mut self, node: &str) -> Result<Option<Vec<Pod>>, Failure> {
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        self.list("pods", self.cluster.scoped(), params).await
    }

    pub async fn pod(&mut self, namespace: &str, name: &str) -> Result<Pod, Failure> {
        self.cluster.ask(self.cluster.within(Some(namespace)).get(name)).await
    }

    pub async fn budget(&mut self, namespace: &str, name: &str) -> Result<PodDisruptionBudget, Failure> {
        self.cluster.ask(self.cluster.within(Some(namespace)).get(name)).await
    }

    /// The pods that causes name, as far as so many may be read.
    pub async fn pods_now(&self, causes: &[BlockedBy], most: usize) -> Result<BTreeMap<String, PodNow>, Failure> {
        let named: BTreeSet<&String> = causes.iter().filter_map(|cause| cause.pod.as_ref()).collect();
        let mut pods = BTreeMap::new();
        for pod in named.into_iter().take(most) {
            let Some((namespace, name)) = pod.split_once('/') else {
                continue;
            };
            let found = self.cluster.within::<Pod>(Some(namespace));
            match self.cluster.ask(found.get_opt(name)).await {
                Ok(found) => pods.insert(pod.clone(), PodNow::of(found.as_ref())),
                // That is noted where the node's pods are listed.
                Err(Failure::MissingRight(_)) => break,
                Err(failure) => return Err(failure),
            };
        }
        Ok(pods)
    }

    /// The pods that a budget may select.
    pub async fn pods_of(&mut self, budget: &PodDisruptionBudget) -> Result<Option<Vec<Pod>>, Failure> {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
        // Without one it selects nothing; one that cannot be read selects nothing either.
        let Some(selector) = selector.and_then(|selector| Selector::try_from(selector).ok()) else {
            return Ok(Some(Vec::new()));
        };
        let api = self.cluster.within(budget.metadata.namespace.as_deref());
        let params = ListParams::default().labels_from(&selector);
        self.list("pods of budgets", api, params).await
    }

    /// What drain-keeper and drain-lock did to pods of the node since `began`, the last first.
    pub async fn acts_on(&mut self, node: &str, began: Timestamp) -> Result<Vec<Act>, Failure> {
        let mut acts = Vec::new();
        for component in ["drain-keeper", "drain-lock"] {
            let params = ListParams::default().fields(&format!("reportingComponent=nodeward.dev/{component}"));
            let act = |event: Event| Act::of(&event, node, began);
            let told = self.list_as("events", self.cluster.scoped(), params, act);
            let Some(told) = told.await? else { break };
            acts.extend(told.into_iter().flatten());
        }
        acts.sort_by_key(|act: &Act| Reverse(act.at));
        Ok(acts)
    }

    /// How many pods were deleted around their budgets, as far as Events tell still.
    pub async fn bypasses(&mut self) -> Result<Option<usize>, Failure> {
        let reason = LockReason::BudgetBypassed;
        let fields = format!("involvedObject.kind=PodDisruptionBudget,reason={reason}");
        let events = self.list::<Event>("events", self.cluster.all(), ListParams::default().fields(&fields));
        Ok(events.await?.map(|events| events.len()))
    }

    /// The NodeHealthChecks; none, and no word about it, where the kind is not installed.
    pub async fn health_checks(&mut self) -> Result<Option<Vec<NodeHealthCheck>>, Failure> {
        if self.known.checks.is_some() {
            return Ok(self.known.checks.clone());
        }
        if !self.cluster.serves::<NodeHealthCheck>() {
            return Ok(None);
        }
        self.list("health checks", self.cluster.all(), ListParams::default())
            .await
    }

    /// What ceph-pdb publishes, in the order of the namespaces; none, and no word about it, where Rook is not installed.
    pub async fn ceph_clusters(&mut self) -> Result<Option<Vec<CephCluster>>, Failure> {
        if self.known.ceph.is_some() {
            return Ok(self.known.ceph.clone());
        }
        if !self.cluster.serves_ceph_clusters() {
            return Ok(None);
        }
        let params = ListParams::default().fields(&format!("metadata.name={}", ceph_state::CONFIG_MAP));
        let cluster = |map: ConfigMap| CephCluster::of(&map);
        let clusters = self.list_as("Ceph clusters", self.cluster.scoped(), params, cluster);
        Ok(clusters.await?.map(|clusters| clusters.into_iter().flatten().collect()))
    }

    /// A lease by which those who take a node down keep out of each other's way.
    pub async fn node_lease(&mut self, name: &str) -> Result<Option<LeaseView>, Failure> {
        let leases = self.cluster.within::<Lease>(Some(node_lease::DEFAULT_NAMESPACE));
        let lease = self.read("leases", leases.get_opt(name)).await?.flatten();
        Ok(lease.as_ref().and_then(LeaseView::project))
    }

    /// A remediation; `None` where it does not exist, or its kind is not served.
    pub async fn remediation(&mut self, reference: &ObjectReference) -> Result<Option<DynamicObject>, Failure> {
        let parts = [
            &reference.api_version,
            &reference.kind,
            &reference.namespace,
            &reference.name,
        ];
        let [api_version, kind, namespace, name] = parts.map(|part| part.as_deref().unwrap_or_default());
        let Some(remediations) = self.remediations_of(api_version, kind, namespace) else {
            return Ok(None);
        };
        let found = or_not_served(remediations.get(name));
        Ok(self.read("remediation", found).await?.flatten())
    }

    /// The remediations that a template's kind makes; none where they may not be listed, or their kind is not served.
    pub async fn remediations(&mut self, template: &TemplateRef) -> Result<Vec<DynamicObject>, Failure> {
        let RemediationKind { api_version, kind } = template.remediation_kind();
        let Some(remediations) = self.remediations_of(&api_version, &kind, &template.namespace) else {
            return Ok(Vec::new());
        };
        let params = ListParams::default();
        let found = self
            .read("remediations", or_not_served(remediations.list(&params)))
            .await?;
        Ok(found.flatten().map(|found| found.items).unwrap_or_default())
    }

    fn remediations_of(&self, api_version: &str, kind: &str, namespace: &str) -> Option<Api<DynamicObject>> {
        let (api_version, kind) = (api_version.to_owned(), kind.to_owned());
        let kind = GroupVersionKind::try_from(TypeMeta { api_version, kind }).ok()?;
        let resource = ApiResource::from_gvk(&kind);
        let client = self.cluster.client.clone();
        Some(match namespace {
            "" => Api::all_with(client, &resource),
            namespace => Api::namespaced_with(client, namespace, &resource),
        })
    }
}

/// `None` also of a kind that is not served, which the API server words in another way.
async fn or_not_served<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<Option<T>> {
    match request.await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        found => found.map(Some),
    }
}

fn values<V: Clone>(known: &Content<V>) -> Vec<V> {
    known.values().map(|value| V::clone(value)).collect()
}
