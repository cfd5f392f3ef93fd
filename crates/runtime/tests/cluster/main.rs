//! What touches the API, against a real control plane: caches, kinds that may be absent, leader election, refusals.

mod access;
mod api_error;
mod cache;
mod config_map;
mod kinds;
mod leader;
mod outage;
