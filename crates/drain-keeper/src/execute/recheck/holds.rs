//! What holds budgets, and which NodeDrain a node has, read anew. What the API server does not serve is not asked for.

use std::sync::Arc;

use kube::Api;
use kube::api::ListParams;
use nodeward_api::drain_ledger;
use nodeward_api::{DisruptionHold, DrainLedger, NodeDrain};
use nodeward_core::budget::BudgetView;
use nodeward_core::drain::{NodeDrainView, NodeDrains};
use nodeward_core::hold::{self, Hold, Holds};
use nodeward_core::id::NodeName;
use nodeward_runtime::Refusal;

use crate::observe::holds::claims_holds;

use super::super::Pass;
use super::{Doubt, Recheck, read_once};

impl Recheck {
    /// What holds these budgets, which are all of one namespace.
    pub(super) async fn holds_on(&self, budgets: &[Arc<BudgetView>], pass: &Pass) -> Result<Holds, Doubt> {
        let Some(first) = budgets.first() else {
            return Ok(Holds::default());
        };
        let mut holds: Holds = budgets
            .iter()
            .filter_map(|budget| hold::of_annotation(budget))
            .collect();
        holds.extend(self.claims(pass).await?);
        holds.extend(self.owners(&first.key.namespace, pass).await?);
        Ok(holds)
    }

    /// The holds of the ledger's claims.
    async fn claims(&self, pass: &Pass) -> Result<Vec<Hold>, Doubt> {
        if !pass.snapshot.lock_kinds.ledger {
            return Ok(Vec::new());
        }
        let ledger = read_once(&self.ledger, self.window(drain_ledger::NAME), async {
            let ledgers: Api<DrainLedger> = Api::all(self.client.clone());
            let ledger = ledgers.get_opt(drain_ledger::NAME).await?;
            Ok(ledger.map(|ledger| Arc::new(ledger.spec)))
        })
        .await
        .map_err(Doubt::Unread)?;
        Ok(ledger.map_or_else(Vec::new, |ledger| claims_holds(&ledger, &pass.snapshot.drains)))
    }

    /// The holds of owners in a namespace.
    async fn owners(&self, namespace: &str, pass: &Pass) -> Result<Vec<Hold>, Doubt> {
        if !pass.snapshot.lock_kinds.holds {
            return Ok(Vec::new());
        }
        let read = read_once(&self.owners, self.window(namespace), async {
            let holds: Api<DisruptionHold> = Api::namespaced(self.client.clone(), namespace);
            let list = holds.list(&ListParams::default()).await?;
            Ok(list.items.iter().filter_map(hold::of_owner).collect())
        })
        .await;
        match read {
            // The kind was taken away a moment ago, and every hold with it.
            Err(Refusal::Gone) => Ok(Vec::new()),
            read => read.map_err(Doubt::Unread),
        }
    }

    /// The NodeDrains as far as the node's gate needs them: read anew where a NodeDrain counts as a drain.
    pub(super) async fn drains_for(&self, node: &NodeName, pass: &Pass) -> Result<NodeDrains, Doubt> {
        if !pass.policy.drain_marks.read_node_drains() || !pass.snapshot.lock_kinds.drains {
            return Ok(NodeDrains::default());
        }
        let drain = read_once(&self.drains, self.window(node.as_str()), async {
            let drains: Api<NodeDrain> = Api::all(self.client.clone());
            let drain = drains.get_opt(node.as_str()).await?;
            Ok(drain.and_then(|drain| NodeDrainView::project(&drain)).map(Arc::new))
        })
        .await
        .map_err(Doubt::Unread)?;
        Ok(NodeDrains::Known(
            drain.map(|drain| (node.clone(), Ok(drain))).into_iter().collect(),
        ))
    }
}
