//! drain-lock lets many nodes drain at once without any of them wedging another: drains queue for the budget disruptions of the
//! pods that stay down with their node, and get all of them in one write or none.
//!
//! The four steps of every operator: [`observe`] (watches to a [`snapshot`]), [`mod@plan`] (pure), [`execute`] (each action
//! with its own preconditions), [`report`] (status, conditions, Events, metrics). [`mod@operate`] runs them. Beside them
//! stand the eviction [`webhook`], the [`fleet_lock`] endpoint and the [`explain`] page, which answer from the same watches.

#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "a table's rows are written where they are used"
    )
)]

pub mod action_tracker;
pub mod config;
pub mod drain_request;
pub mod execute;
pub mod explain;
pub mod fleet_lock;
pub mod node_group;
pub mod observe;
pub mod operate;
pub mod plan;
pub mod policy;
pub mod report;
pub mod settings;
pub mod snapshot;
#[cfg(test)]
mod tests;
pub mod webhook;
