//! health-check creates a remediation for each node that stays unhealthy, as its NodeHealthCheck says, and deletes it once
//! the node is healthy again. Creating a remediation reboots a machine: when in doubt, it does not.
//!
//! The four steps of every operator: observe (caches to a [`snapshot::Snapshot`]), [`mod@plan`] (pure), execute (each action
//! with its own preconditions), report (Events, metrics).

#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "a table's rows are written where they are used"
    )
)]

pub mod action_tracker;
pub mod config;
pub mod default;
pub mod definition;
pub mod execute;
pub mod observations;
pub mod observe;
pub mod operate;
pub mod plan;
pub mod policy;
pub mod report;
pub mod settings;
pub mod snapshot;
pub mod template_problem;
pub mod webhook;

/// No clock is so far from another that is right.
const CLOCKS_APART: jiff::SignedDuration = jiff::SignedDuration::from_hours(1);
