//! What holds budgets, and which NodeDrain a node has, read anew. What the API server does not serve is not asked for.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Api;
use kube::api::ListParams;
use nodeward_api::drain_ledger::{self, Claim};
use nodeward_api::{DisruptionHold, DrainLedger, NodeDrain};
use nodeward_core::budget::BudgetView;
use nodeward_core::drain::{NodeDrainView, NodeDrains};
use nodeward_core::hold::{self, Hold, Holds};
use nodeward_core::id::{NodeName, NodeUid};
use nodeward_runtime::ApiError;

use crate::observe::holds::claims_holds;

use super::super::Pass;
use super::{Doubt, Recheck, read_once};

impl Recheck {
    /// What holds these budgets, which are all of one namespace, and select a pod of `node`.
    pub(super) async fn holds_on(
        &self,
        budgets: &[Arc<BudgetView>],
        node: &NodeUid,
        pass: &Pass,
    ) -> Result<Holds, Doubt> {
        let Some(first) = budgets.first() else {
            return Ok(Holds::default());
        };
        let mut holds: Holds = budgets
            .iter()
            .filter_map(|budget| hold::of_annotation(budget))
            .collect();
        holds.extend(self.claims_on(budgets, node, pass).await?);
        holds.extend(self.owners(&first.key.namespace, pass).await?);
        Ok(holds)
    }

    /// The holds that claims have on these budgets. Another node's claim got here only if it is new, or beyond its limit as
    /// far as the watches tell: so its NodeDrain, which sets the limit, is read anew too.
    async fn claims_on(&self, budgets: &[Arc<BudgetView>], node: &NodeUid, pass: &Pass) -> Result<Vec<Hold>, Doubt> {
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
        let Some(ledger) = ledger else {
            return Ok(Vec::new());
        };
        let claims: Vec<&Claim> = ledger
            .claims
            .iter()
            .filter(|claim| budgets.iter().any(|budget| has_units_of(claim, budget)))
            .collect();
        let mut drains = BTreeMap::new();
        for claim in claims.iter().filter(|claim| claim.node_uid != node.as_str()) {
            let name = NodeName::from(claim.node.as_str());
            if let Some(drain) = self.node_drain(&name, pass).await.map_err(Doubt::Unread)? {
                drains.insert(name, Ok(drain));
            }
        }
        Ok(claims_holds(claims, &NodeDrains::Known(drains)))
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
            Err(ApiError::NotFound) => Ok(Vec::new()),
            read => read.map_err(Doubt::Unread),
        }
    }

    /// The NodeDrains as far as the node's gate needs them: read anew where a NodeDrain counts as a drain. What cannot be
    /// read is not known, which is the gate's to judge: another mark may be enough.
    pub(super) async fn drains_for(&self, node: &NodeName, pass: &Pass) -> (NodeDrains, Option<ApiError>) {
        if !pass.policy.drain_marks.read_node_drains() {
            return (NodeDrains::default(), None);
        }
        match self.node_drain(node, pass).await {
            Ok(drain) => {
                let known = drain.map(|drain| (node.clone(), Ok(drain)));
                (NodeDrains::Known(known.into_iter().collect()), None)
            }
            Err(refusal) => (NodeDrains::Unknown(refusal.to_string()), Some(refusal)),
        }
    }

    /// The node's NodeDrain.
    async fn node_drain(&self, node: &NodeName, pass: &Pass) -> Result<Option<Arc<NodeDrainView>>, ApiError> {
        if !pass.snapshot.lock_kinds.drains {
            return Ok(None);
        }
        read_once(&self.drains, self.window(node.as_str()), async {
            let drains: Api<NodeDrain> = Api::all(self.client.clone());
            let drain = drains.get_opt(node.as_str()).await?;
            Ok(drain.and_then(|drain| NodeDrainView::project(&drain)).map(Arc::new))
        })
        .await
    }
}

fn has_units_of(claim: &Claim, budget: &BudgetView) -> bool {
    claim
        .holds
        .iter()
        .any(|units| *units.pdb.namespace == *budget.key.namespace && *units.pdb.name == *budget.key.name)
}
