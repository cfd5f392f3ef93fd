//! Reads who holds and who waits for what.

use std::collections::BTreeSet;

use super::Reader;
use crate::failure::Failure;
use crate::view::locks::{Locks, Sources, of_budgets, unplanned};

impl Reader<'_> {
    /// Who holds and who waits for what, in the namespace that was asked for or in all.
    ///
    /// # Errors
    /// The API server cannot be asked.
    pub async fn locks(mut self) -> Result<Locks, Failure> {
        let namespace = self.cluster.namespace.clone();
        let ledger = self.ledger().await?;
        let budgets = self.budgets(namespace.as_deref()).await?.unwrap_or_default();
        let holds = self.holds(namespace.as_deref()).await?.unwrap_or_default();
        let sources = Sources {
            ledger: ledger.as_ref(),
            budgets: &budgets,
            holds: &holds,
            namespace: namespace.as_deref(),
        };
        Ok(Locks {
            budgets: of_budgets(&sources, &BTreeSet::new(), self.now),
            unplanned: unplanned(&sources),
            unread: self.unread,
        })
    }
}
