//! Configuration: read strictly, reloaded when it changes, and never lost when it breaks.

mod announce;
mod config_map;
mod document;
mod error;
mod file;
mod handle;

pub(crate) use announce::announce;
pub use config_map::{ConfigMapSource, ConfigMapText};
pub use document::{from_foreign_yaml, from_yaml};
pub use error::{ConfigError, namespace};
pub use file::{ConfigFile, read};
pub use handle::{ConfigHandle, Loaded, Parse, Rejections};
