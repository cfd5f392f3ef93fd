//! `ui`: the fleet in a browser, live. Watches feed one [`fleet::Fleet`] at a time; the page gets it whole first, then what
//! changed.

pub mod assets;
mod changes;
pub mod export;
pub mod fleet;
mod gate;
mod live;
mod log;
mod node_view;
pub mod server;
mod sources;

pub use self::live::Live;
