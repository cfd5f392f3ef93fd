//! Condition types that Nodeward sets on its own objects and on those of others.

/// On a Node: `True` while pods keep its drain from ending; the message names them and what happens next.
pub const DRAIN_BLOCKED: &str = "nodeward.dev/DrainBlocked";

/// On a NodeDrain: `True` once the plan says what becomes of each pod of the node.
pub const PLANNED: &str = "Planned";

/// On a NodeDrain: `True` while all units that its held pods need are granted, or when none is needed.
pub const GRANTED: &str = "Granted";

/// On a NodeDrain: `True` while it waits for units of budgets; the reason and the message name them and who has them.
pub const BUDGET_BLOCKED: &str = "BudgetBlocked";

/// On a NodeDrain: `True` while a budget can never allow what the drain needs, and a person has to change it.
pub const MISCONFIGURED_PDB: &str = "MisconfiguredPDB";

/// On a NodeDrain: `True` once no pod has to leave the node any more. On a Node: as in KEP-5683.
pub const DRAINED: &str = "Drained";

/// On a NodeDrain: `True` when another program has taken the node's medik8s lease.
pub const LEASE_LOST: &str = "LeaseLost";

/// On a Node, as in KEP-5683: `True` while the node is being drained.
pub const DRAIN_IN_PROGRESS: &str = "DrainInProgress";
