//! Kinds that may be absent: foreign CustomResourceDefinitions that appear and go while the operator runs.

mod dynamic_cache;
mod kind_registry;

pub use dynamic_cache::{DynamicCache, KindState};
pub use kind_registry::KindRegistry;
