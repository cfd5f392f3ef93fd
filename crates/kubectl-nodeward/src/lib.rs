//! `kubectl nodeward`: what stands between nodes and the end of their drains, and drains that wait their turn.

pub mod act;
pub mod args;
pub mod cluster;
pub mod complete;
pub mod failure;
pub mod progress;
pub mod read;
pub mod render;
pub mod run;
pub mod screen;
pub mod text;
pub mod view;
