//! drain-keeper unblocks nodes that cannot drain during an upgrade, with timed strategies, and says why a node is stuck.
//!
//! The four steps of every operator: [`observe`] (caches to a [`snapshot::Snapshot`]), [`mod@plan`] (pure), [`execute`]
//! (each action with its own preconditions), [`report`] (conditions, Events, metrics). [`mod@operate`] runs them.

#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "a table's rows are written where they are used"
    )
)]

pub mod action_tracker;
pub mod clock;
pub mod config;
pub mod effective_policy;
pub mod execute;
pub mod gate;
pub mod observe;
pub mod operate;
pub mod plan;
pub mod planned_pods;
pub mod policy;
pub mod report;
pub mod settings;
pub mod snapshot;
