//! The testbed tried on itself. One binary, so that all of it shares one control plane.

mod audit;
mod cleanup;
mod fault_injection;
mod foreign_kinds;
mod kubectl;
mod nodes;
mod operators;
mod parts;
mod pods;
mod pool;
mod proxy;
mod real_nodes;
mod reboot;
mod remediator;
mod rook;
mod store;
