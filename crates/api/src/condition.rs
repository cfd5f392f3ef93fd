//! Condition types that Nodeward sets on its own objects and on those of others.

/// On a Node: `True` while pods keep its drain from ending; the message names them and what happens next. `False` on a cordoned
/// node that drain-keeper does not act on; the reason is the gate.
pub const DRAIN_BLOCKED: &str = "nodeward.dev/DrainBlocked";

/// On a NodeDrain: `True` once the plan says what becomes of each pod of the node.
pub const PLANNED: &str = "Planned";

/// On a NodeDrain: `True` while all disruptions that its held pods need are granted, or when none is needed.
pub const GRANTED: &str = "Granted";

/// On a NodeDrain: `True` while it waits for disruptions of budgets; the reason and the message name them and who has them.
pub const BUDGET_BLOCKED: &str = "BudgetBlocked";

/// On a NodeDrain: `True` while a budget can never allow what the drain needs, and a person has to change it.
pub const MISCONFIGURED_PDB: &str = "MisconfiguredPDB";

/// On a NodeDrain: `True` once no pod has to leave the node any more. On a Node: as in KEP-5683.
pub const DRAINED: &str = "Drained";

/// On a NodeDrain: `True` when another program has taken the node's medik8s lease.
pub const LEASE_LOST: &str = "LeaseLost";

/// On a Node, as in KEP-5683: `True` while the node is being drained.
pub const DRAIN_IN_PROGRESS: &str = "DrainInProgress";

/// The reason of [`DRAIN_IN_PROGRESS`] and [`DRAINED`] while drain-lock drains.
pub const DRAIN_LOCK_DRAINING: &str = "DrainLockDraining";

/// The same once no pod has to leave any more.
pub const DRAIN_LOCK_DRAINED: &str = "DrainLockDrained";

/// On a Node, as in KEP-5683: `True` while somebody works on it.
pub const MAINTENANCE_IN_PROGRESS: &str = "MaintenanceInProgress";

/// On a NodeHealthCheck: `True` while it starts nothing, see [`crate::reason::DisabledReason`].
pub const DISABLED: &str = "Disabled";

/// On a NodeHealthCheck with `stormCooldownDuration`: `True` since too many nodes were unhealthy at once, until the cooldown ends.
pub const STORM_ACTIVE: &str = "StormActive";

/// On a NodeHealthCheck with `stormCooldownDuration`: `True` while enough nodes are healthy again, and remediation still waits.
pub const STORM_COOLDOWN_ACTIVE: &str = "StormCooldownActive";

/// The reason of [`STORM_ACTIVE`] and [`STORM_COOLDOWN_ACTIVE`].
pub const HEALTHY_NODE_THRESHOLD_CHANGE: &str = "HealthyNodeThresholdChange";

/// On a NodeHealthCheck: `True` while the API server refuses a request for its nodes for want of a right; the message has the
/// server's words, which name verb and resource.
pub const PERMISSION_MISSING: &str = "PermissionMissing";

/// On a remediation, by its remediator: `True` when it remediated the node, `False` when it cannot.
pub const SUCCEEDED: &str = "Succeeded";

/// On a remediation, by its remediator: `True` where the node is deleted for good and another one takes its place.
pub const PERMANENT_NODE_DELETION_EXPECTED: &str = "PermanentNodeDeletionExpected";

/// On the Pod of an operator: `True` while the ConfigMap [`nodeward-pause`](crate::pause) keeps it from writing; the message is the reason.
/// `Unknown` while that cannot be read.
pub const PAUSED: &str = "nodeward.dev/Paused";
