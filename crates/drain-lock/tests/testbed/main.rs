//! drain-lock on a real control plane.

#![allow(
    missing_docs,
    clippy::expect_used,
    reason = "tests say what they check in their names"
)]

mod caller;
mod drains;
mod place;
mod webhook;
