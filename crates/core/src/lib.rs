//! The pure decisions of Nodeward. No I/O, no clock, no async runtime, no Kubernetes client: `now` is a parameter, and
//! what was observed comes in as plain values.

#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "a table's rows are written where they are used"
    )
)]

pub mod budget;
pub mod consent;
pub mod deadline;
pub mod drain;
pub mod drain_request;
pub mod duration;
pub mod hold;
pub mod id;
pub mod intern;
pub mod labels;
pub mod lease;
pub mod ledger;
pub mod node;
pub mod node_health_check;
pub mod opt_out;
pub mod pattern;
pub mod pod;
pub mod predicate;
pub mod remediation;
pub mod selector;
pub mod signal;
pub mod strategy;
pub mod surge;
pub mod text;
pub mod verdict;
pub mod window;
