//! What other programs may depend on: kinds, labels, annotations, conditions, reasons.
//!
//! Everything here is part of Nodeward's contract with its users: a change is a change of API.

// The documentation of kinds is the description of their schema.
#![warn(missing_docs)]

pub mod annotation;
pub mod budget_ref;
pub mod ceph_state;
pub mod condition;
pub mod cordon_record;
pub mod crd;
pub mod disruption_hold;
pub mod drain_clock;
pub mod drain_ledger;
pub mod finalizer;
pub mod label;
pub mod last_override;
mod later_version;
mod lenient;
pub mod node_drain;
pub mod node_health_check;
pub mod node_lease;
pub mod pause;
pub mod planned_at;
pub mod reason;
mod remedy;
mod schema;
pub mod surge_record;
pub mod taint;

pub use budget_ref::BudgetRef;
pub use ceph_state::CephClusterState;
pub use disruption_hold::DisruptionHold;
pub use drain_ledger::DrainLedger;
pub use node_drain::NodeDrain;
pub use node_health_check::NodeHealthCheck;

/// The operators. Each has a lease of its name.
pub const COMPONENTS: [&str; 4] = ["drain-keeper", "drain-lock", "health-check", "ceph-pdb"];

/// Namespace that the components run in unless told otherwise.
pub const DEFAULT_NAMESPACE: &str = "nodeward-system";
