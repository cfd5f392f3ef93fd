//! `kubectl nodeward`: shows the obstacles of node drains, and drains nodes that wait their turn.

mod args;
mod cluster;
mod commands;
mod describe;
mod failure;
mod fetch;
#[cfg(test)]
mod fixture;
mod listed;
mod model;
mod screen;
mod text;
mod ui;

pub use args::CommandLine;
pub use commands::completion::{complete, words_to_complete};
pub use commands::{Exit, run};
pub use failure::error_line;
