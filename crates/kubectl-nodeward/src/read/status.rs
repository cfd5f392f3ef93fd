//! Reads the fleet at a glance.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;

use super::{Reader, pages};
use crate::failure::Failure;
use crate::view::drain::Drain;
use crate::view::locks::{BudgetLocks, Sources, of_budgets};
use crate::view::node::NodeGlance;
use crate::view::status::{LockCounts, NodeCounts, Status};

impl Reader<'_> {
    /// The fleet at a glance.
    ///
    /// # Errors
    /// The API server cannot be asked.
    pub async fn status(mut self) -> Result<Status, Failure> {
        let components = self.components().await?;
        let nodes: Api<Node> = Api::all(self.cluster.client.clone());
        let glances = pages::list(self.cluster, &nodes, ListParams::default(), |node| {
            NodeGlance::of(&node)
        })
        .await;
        let glances = self.seen("nodes", glances)?;
        let mut drains: Vec<Drain> = self.drains().await?.iter().flatten().map(Drain::of).collect();
        drains.sort_by_key(|drain| (drain.ticket.is_none(), drain.ticket, drain.node.clone()));
        let locks = self.lock_counts().await?;
        let counts = glances.as_ref().map(|glances| NodeCounts {
            total: glances.len(),
            cordoned: glances.iter().filter(|node| node.cordoned).count(),
            not_ready: glances.iter().filter(|node| !node.ready).count(),
        });
        let mut timed: Vec<NodeGlance> = glances
            .into_iter()
            .flatten()
            .filter(|node| node.drain_keeper.is_some())
            .collect();
        timed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Status {
            components,
            nodes: counts,
            drains,
            timed,
            locks,
            unread: self.unread,
        })
    }

    async fn lock_counts(&mut self) -> Result<Option<LockCounts>, Failure> {
        if !self.cluster.kinds().node_drains {
            // Said of the drains already.
            return Ok(None);
        }
        let ledger = self.ledger().await?;
        let holds = self.holds(None).await?;
        if ledger.is_none() && holds.is_none() {
            return Ok(None);
        }
        let holds = holds.unwrap_or_default();
        let sources = Sources {
            ledger: ledger.as_ref(),
            holds: &holds,
            ..Sources::default()
        };
        let budgets = of_budgets(&sources, &BTreeSet::new(), self.now);
        let count = |is_so: fn(&BudgetLocks) -> bool| budgets.iter().filter(|budget| is_so(budget)).count();
        Ok(Some(LockCounts {
            held: count(|budget| !budget.held.is_empty()),
            waited_for: count(|budget| !budget.waiting.is_empty()),
            owner_held: count(|budget| !budget.owner_holds.is_empty()),
        }))
    }
}
