//! A cluster in virtual time around the real decisions of drain-lock and drain-keeper: their plans, the ledger with its
//! compare-and-swap, and the webhook. Everything else is simulated: the API server with its eviction handler, the controllers
//! around pods, the kubelets, and those who drain. There is no API server, no async runtime and no sleep: events happen in the
//! order of their times, and a seed makes everything.
//!
//! [`world::World`] is the cluster, [`run::Setup`] one run of it, [`suite`] many. What must hold is in [`judge`].
//!
//! Budgets whose `minAvailable` is a number, owners' holds, node groups, leases and pods that stay on their node through a
//! reboot are not simulated.

pub mod api;
pub mod clock;
mod controllers;
pub mod drainer;
mod event;
pub mod judge;
pub mod keeper;
pub mod lock;
pub mod objects;
pub mod pod;
pub mod run;
pub mod suite;
pub mod topology;
pub mod webhook;
pub mod world;
