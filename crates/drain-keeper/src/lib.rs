//! drain-keeper unblocks nodes that cannot drain during an upgrade, with timed strategies, and says why a node is stuck.
//!
//! The four steps of every operator: [`observe`] (caches to [`snapshot::Snapshot`]), [`plan`] (pure), [`execute`] (each
//! action with its own preconditions), [`report`] (conditions, Events, metrics). [`operate`] runs them.

pub mod clock;
pub mod config;
pub mod gate;
pub mod plan;
pub mod policy;
pub mod settings;
pub mod snapshot;
