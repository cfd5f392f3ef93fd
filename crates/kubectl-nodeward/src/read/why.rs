//! Reads what stands in the way of a node's drain.

use kube::ResourceExt;
use nodeward_api::drain_ledger::DrainLedgerSpec;
use nodeward_api::node_drain::NodeDrain;

use super::Reader;
use crate::failure::Failure;
use crate::view::drain::Drain;
use crate::view::locks::{Sources, of_budgets};
use crate::view::node::NodeGlance;
use crate::view::why::{PodsOnNode, Why};

impl Reader<'_> {
    /// What stands in the way of the drain of `node`.
    ///
    /// # Errors
    /// The API server cannot be asked, or there is neither a node nor a drain of that name.
    pub async fn why(mut self, node: &str) -> Result<Why, Failure> {
        let found = self.node(node).await?;
        let drains = self.drains().await?;
        let drain = drains
            .iter()
            .flatten()
            .find(|drain| drain.name_any() == node)
            .map(Drain::of);
        if found == Some(None) && drain.is_none() {
            return Err(Failure::NotFound {
                message: format!("there is no node {node}"),
            });
        }
        let ledger = if drain.is_some() { self.ledger().await? } else { None };
        let namespace = self.cluster.namespace.clone();
        let pods = self.pods_on(node).await?;
        let budgets = self.budgets(namespace.as_deref()).await?;
        let pods = pods.map(|pods| PodsOnNode::of(&pods, budgets.as_deref()));
        let also = Why::budgets_of(drain.as_ref(), pods.as_ref());
        let holds = if self.cluster.kinds().disruption_holds && !also.is_empty() {
            self.holds(namespace.as_deref()).await?.unwrap_or_default()
        } else {
            Vec::new()
        };
        let sources = Sources {
            ledger: ledger.as_ref(),
            budgets: budgets.as_deref().unwrap_or_default(),
            holds: &holds,
            namespace: namespace.as_deref(),
        };
        let budgets = of_budgets(&sources, &also, self.now)
            .into_iter()
            .filter(|budget| also.contains(&budget.pdb));
        Ok(Why {
            node: found.flatten().as_ref().map(NodeGlance::of),
            ahead: ledger.as_ref().and_then(|ledger| ahead(ledger, node)),
            holders: drain
                .as_ref()
                .map(|drain| holders(drain, drains.as_deref()))
                .unwrap_or_default(),
            drain,
            budgets: budgets.collect(),
            pods,
            unread: self.unread,
        })
    }
}

/// How many claims are before the node's.
fn ahead(ledger: &DrainLedgerSpec, node: &str) -> Option<usize> {
    ledger.claims.iter().position(|claim| claim.node == node)
}

fn holders(drain: &Drain, drains: Option<&[NodeDrain]>) -> Vec<Drain> {
    let find = |node: &str| {
        drains
            .unwrap_or_default()
            .iter()
            .find(|other| other.name_any() == node)
            .map(Drain::of)
    };
    drain.waits_for_nodes().into_iter().filter_map(find).collect()
}
