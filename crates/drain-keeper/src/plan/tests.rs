//! The decision as tables: a world is written as the API's own objects, projected as in production, and planned for.

mod budgets;
mod claims;
mod failed_drain;
mod gates;
mod limits;
mod opt_out;
mod properties;
mod surge;
mod turns;
mod unreachable;
mod waits;
mod windows;
pub(crate) mod world;
