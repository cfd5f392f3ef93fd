//! drain-lock on a real control plane.

#![allow(
    missing_docs,
    clippy::expect_used,
    reason = "tests say what they check in their names"
)]

mod bypass;
mod caller;
mod ceph;
mod certificate;
mod circles;
mod cluster_changes;
mod deadlines;
mod drain_keeper;
mod drainers;
mod drains;
mod dry_run;
mod endings;
mod environment;
mod fault_injection;
mod faults;
mod fleet_lock;
mod holds;
mod kinds;
mod lagging;
mod leaders;
mod leases;
mod node_groups;
mod one_life;
mod owners;
mod pause;
mod planless;
mod queue;
mod real;
mod refusals;
mod requesters;
mod requests;
mod retained;
mod returns;
mod reviewed;
mod webhook;
mod who_drains;
mod windows;
