//! Settings: the configuration file, read and checked.

use std::sync::Arc;

use nodeward_runtime::{ConfigError, config};

use crate::config::Config;
use crate::policy::Policy;

/// The variable that names the namespace of leases, to medik8s' operators too.
const LEASE_NAMESPACE: &str = "LEASE_NAMESPACE";

/// A checked configuration file.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What the file means.
    pub policy: Arc<Policy>,
}

impl Settings {
    /// Reads the configuration file; no text is all defaults.
    ///
    /// # Errors
    /// With line, field and what to write instead.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_with(text, std::env::var(LEASE_NAMESPACE).ok())
    }

    /// As [`Self::parse`], with the value of the environment variable `LEASE_NAMESPACE`.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_with(text: &str, lease_namespace: Option<String>) -> Result<Self, ConfigError> {
        let mut file: Config = config::from_yaml(text)?;
        let from_environment = lease_namespace.filter(|namespace| !namespace.is_empty());
        file.lease_namespace = file.lease_namespace.or(from_environment);
        Ok(Self {
            policy: Arc::new(Policy::from_config(file)?),
        })
    }
}

#[cfg(test)]
mod tests;
