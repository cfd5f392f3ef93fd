//! The testbed tested on itself: one binary, so that its tests share one control plane.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod audit;
mod proxy;
