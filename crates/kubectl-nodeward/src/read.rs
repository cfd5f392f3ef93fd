//! Reads from the cluster what a command shows. What may not be read is noted, and the rest is read all the same.

mod components;
mod locks;
mod pages;
mod status;
mod why;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::ListParams;
use nodeward_api::disruption_hold::DisruptionHold;
use nodeward_api::drain_ledger::{self, DrainLedger, DrainLedgerSpec};
use nodeward_api::node_drain::NodeDrain;

use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::view::unread::Unread;

/// The component that brings Nodeward's kinds.
pub const DRAIN_LOCK: &str = "drain-lock";

/// Reads for one command.
pub struct Reader<'a> {
    cluster: &'a Cluster,
    now: Timestamp,
    unread: Vec<Unread>,
}

impl<'a> Reader<'a> {
    /// Nothing read yet.
    pub fn new(cluster: &'a Cluster, now: Timestamp) -> Self {
        Self {
            cluster,
            now,
            unread: Vec::new(),
        }
    }

    /// Notes what may not be read; any other failure ends the command.
    fn seen<T>(&mut self, what: &'static str, answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match answer {
            Ok(value) => Ok(Some(value)),
            Err(Failure::MissingRight(missing)) => {
                self.unread.push(Unread::Forbidden {
                    what,
                    missing: *missing,
                });
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Notes that drain-lock's kinds are not there.
    fn not_installed(&mut self, what: &'static str) {
        self.unread.push(Unread::NotInstalled {
            what,
            component: DRAIN_LOCK,
        });
    }

    /// All drains.
    async fn drains(&mut self) -> Result<Option<Vec<NodeDrain>>, Failure> {
        if !self.cluster.kinds().node_drains {
            self.not_installed("drains");
            return Ok(None);
        }
        let drains: Api<NodeDrain> = Api::all(self.cluster.client.clone());
        let list = pages::list(self.cluster, &drains, ListParams::default(), |drain| drain).await;
        self.seen("drains", list)
    }

    /// The ledger; empty where there is none yet.
    async fn ledger(&mut self) -> Result<Option<DrainLedgerSpec>, Failure> {
        if !self.cluster.kinds().drain_ledgers {
            self.not_installed("claims");
            return Ok(None);
        }
        let ledgers: Api<DrainLedger> = Api::all(self.cluster.client.clone());
        let ledger = self.cluster.ask(ledgers.get_opt(drain_ledger::NAME)).await;
        let ledger = self.seen("claims", ledger)?;
        Ok(ledger.map(|ledger| ledger.map(|ledger| ledger.spec).unwrap_or_default()))
    }

    /// Holds of owners, in one namespace or all.
    async fn holds(&mut self, namespace: Option<&str>) -> Result<Option<Vec<DisruptionHold>>, Failure> {
        if !self.cluster.kinds().disruption_holds {
            self.not_installed("holds");
            return Ok(None);
        }
        let holds: Api<DisruptionHold> = self.api(namespace);
        let list = pages::list(self.cluster, &holds, ListParams::default(), |hold| hold).await;
        self.seen("holds", list)
    }

    /// Budgets, in one namespace or all.
    async fn budgets(&mut self, namespace: Option<&str>) -> Result<Option<Vec<PodDisruptionBudget>>, Failure> {
        let budgets: Api<PodDisruptionBudget> = self.api(namespace);
        let list = pages::list(self.cluster, &budgets, ListParams::default(), |budget| budget).await;
        self.seen("budgets", list)
    }

    /// A node; `Some(None)` if there is none of that name.
    async fn node(&mut self, name: &str) -> Result<Option<Option<Node>>, Failure> {
        let nodes: Api<Node> = Api::all(self.cluster.client.clone());
        let node = self.cluster.ask(nodes.get_opt(name)).await;
        self.seen("node", node)
    }

    /// The pods of a node.
    async fn pods_on(&mut self, node: &str) -> Result<Option<Vec<Pod>>, Failure> {
        let pods: Api<Pod> = self.api(self.cluster.namespace.as_deref());
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let list = pages::list(self.cluster, &pods, params, |pod| pod).await;
        self.seen("pods", list)
    }

    fn api<K>(&self, namespace: Option<&str>) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        match namespace {
            Some(namespace) => Api::namespaced(self.cluster.client.clone(), namespace),
            None => Api::all(self.cluster.client.clone()),
        }
    }
}
