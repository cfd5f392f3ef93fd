//! Reads that several commands share. A kind that the caller may not read, or that is not installed, is noted, and
//! everything else is read all the same.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource};
use nodeward_api::disruption_hold::DisruptionHold;
use nodeward_api::drain_ledger::{self, DrainLedger};
use nodeward_api::node_drain::NodeDrain;
use nodeward_core::ledger::Ledger;
use serde::de::DeserializeOwned;

use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::model::Unread;

/// Objects in one answer, as in kubectl, so that no single answer is large.
const PAGE: u32 = 500;

/// Reads for one command.
pub struct Reader<'a> {
    pub cluster: &'a Cluster,
    pub now: Timestamp,
    pub unread: Vec<Unread>,
}

impl<'a> Reader<'a> {
    pub fn new(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            now: Timestamp::now(),
            unread: Vec::new(),
        }
    }

    /// Notes a missing right; any other failure ends the command.
    fn readable<T>(&mut self, what: &'static str, answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match answer {
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

    /// What `keep` makes of each object, read page by page.
    pub async fn list<K, T>(
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
            let page = self.cluster.ask(api.list(&params)).await;
            let Some(page) = self.readable(what, page)? else {
                return Ok(None);
            };
            kept.extend(page.items.into_iter().map(&mut keep));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(Some(kept)),
            }
        }
    }

    pub async fn drains(&mut self) -> Result<Option<Vec<NodeDrain>>, Failure> {
        let api = Api::all(self.cluster.client.clone());
        self.list("drains", api, ListParams::default(), |drain| drain).await
    }

    /// The ledger; empty where there is none yet.
    pub async fn ledger(&mut self) -> Result<Option<Ledger>, Failure> {
        if !self.is_served::<DrainLedger>("claims") {
            return Ok(None);
        }
        let ledgers: Api<DrainLedger> = Api::all(self.cluster.client.clone());
        let ledger = self.cluster.ask(ledgers.get_opt(drain_ledger::NAME)).await;
        let ledger = self.readable("claims", ledger)?;
        let read =
            |ledger: Option<DrainLedger>| ledger.map_or_else(Ledger::default, |ledger| Ledger::from(&ledger.spec));
        Ok(ledger.map(read))
    }

    pub async fn holds(&mut self, namespace: Option<&str>) -> Result<Option<Vec<DisruptionHold>>, Failure> {
        let api = self.api(namespace);
        self.list("holds", api, ListParams::default(), |hold| hold).await
    }

    pub async fn budgets(&mut self, namespace: Option<&str>) -> Result<Option<Vec<PodDisruptionBudget>>, Failure> {
        let api = self.api(namespace);
        self.list("budgets", api, ListParams::default(), |budget| budget).await
    }

    /// A node; `Some(None)` if there is none of that name.
    pub async fn node(&mut self, name: &str) -> Result<Option<Option<Node>>, Failure> {
        let nodes: Api<Node> = Api::all(self.cluster.client.clone());
        let node = self.cluster.ask(nodes.get_opt(name)).await;
        self.readable("node", node)
    }

    pub async fn pods_on(&mut self, node: &str) -> Result<Option<Vec<Pod>>, Failure> {
        let api = self.api(self.cluster.namespace.as_deref());
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        self.list("pods", api, params, |pod| pod).await
    }

    /// In one namespace or in all.
    fn api<K>(&self, namespace: Option<&str>) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        match namespace {
            Some(namespace) => Api::namespaced(self.cluster.client.clone(), namespace),
            None => Api::all(self.cluster.client.clone()),
        }
    }
}
