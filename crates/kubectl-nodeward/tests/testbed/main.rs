//! The plugin as kubectl runs it, on a real control plane with the chart's roles, drain-lock and drain-keeper.

#![allow(
    missing_docs,
    clippy::expect_used,
    reason = "tests say what they check in their names"
)]

mod drains;
mod pages;
mod person;
mod place;
mod plugin;
mod rights;
