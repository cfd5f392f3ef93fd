//! Kinds that may be absent: foreign CustomResourceDefinitions that appear and go while the operator runs.

mod dynamic_cache;
mod dynamic_watches;
mod kind_registry;

pub use dynamic_cache::{DynamicCache, Known};
pub use dynamic_watches::{DynamicWatches, LIST_PATIENCE, end_of_patience};
pub use kind_registry::KindRegistry;
