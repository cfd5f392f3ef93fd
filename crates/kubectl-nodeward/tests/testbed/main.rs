//! The plugin as kubectl runs it, on a real control plane with the chart's roles, drain-lock and drain-keeper.

#![allow(clippy::expect_used, reason = "a test may fail")]

mod drains;
mod environment;
mod flags;
mod pages;
mod pause;
mod person;
mod plugin;
mod rights;
mod situations;
mod ui;
mod uninstall;
