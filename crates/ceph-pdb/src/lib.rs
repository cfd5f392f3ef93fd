//! ceph-pdb keeps the disruption budgets of a Rook-Ceph cluster true while nodes drain.

#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "a table's rows are written where they are used"
    )
)]

pub mod action_tracker;
pub mod budgets;
pub mod ceph;
pub mod config;
pub mod connection;
pub mod credentials;
pub mod execute;
pub mod observe;
pub mod operate;
pub mod plan;
pub mod policy;
pub mod report;
pub mod settings;
pub mod snapshot;
pub mod state_map;
