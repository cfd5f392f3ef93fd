//! Names that other programs may depend on: labels, annotations, conditions, reasons.
//!
//! Everything here is part of Nodeward's contract with its users: a change is a change of API.

pub mod annotation;
pub mod condition;
pub mod drain_clock;
pub mod label;
pub mod last_override;
pub mod opt_out;
pub mod reason;

/// Namespace that the components run in unless told otherwise.
pub const DEFAULT_NAMESPACE: &str = "nodeward-system";
