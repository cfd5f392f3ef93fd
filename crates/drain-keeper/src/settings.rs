//! Settings: the file, and the block that managed-upgrade-operator's ConfigMap may put in place of one of the file's.

use nodeward_core::duration::ConfigDuration;
use nodeward_runtime::{ConfigError, config};
use serde::Deserialize;

use crate::config::{Config, NodeDrain};
use crate::policy::Policy;

/// A checked configuration file.
#[derive(Debug, Clone)]
pub struct Settings {
    file: Config,
    /// What the file alone means.
    pub policy: Policy,
}

/// The part of managed-upgrade-operator's `config.yaml` that is read; its other blocks are ignored.
#[derive(Debug, Deserialize)]
struct ManagedUpgradeConfig {
    #[serde(rename = "nodeDrain")]
    node_drain: Option<TheirBlock>,
}

/// Their `nodeDrain`, which may have fields that this version does not know, and fields without a value.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", remote = "NodeDrain")]
struct TheirNodeDrain {
    #[serde(rename = "timeOut")]
    time_out: Option<ConfigDuration>,
    expected_node_drain_time: Option<ConfigDuration>,
    disable_drain_strategies: Option<bool>,
    ignored_namespace_patterns: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct TheirBlock(#[serde(with = "TheirNodeDrain")] NodeDrain);

impl Settings {
    /// Reads the configuration file; no text is all defaults.
    ///
    /// # Errors
    /// With line, field and what to write instead.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let file: Config = config::from_yaml(text)?;
        let policy = Policy::from_config(file.clone())?;
        Ok(Self { file, policy })
    }

    /// The policy with the `nodeDrain` of managed-upgrade-operator's `config.yaml` in place of the file's.
    ///
    /// # Errors
    /// As [`Settings::parse`], and when there is no `nodeDrain`.
    pub fn with_managed_upgrade_config(&self, text: &str) -> Result<Policy, ConfigError> {
        let theirs: ManagedUpgradeConfig = config::from_foreign_yaml(text)?;
        let missing = || ConfigError::at("nodeDrain", "is missing: add the block, or do not read this ConfigMap");
        let TheirBlock(node_drain) = theirs.node_drain.ok_or_else(missing)?;
        Policy::from_config(Config {
            node_drain,
            ..self.file.clone()
        })
    }
}

#[cfg(test)]
mod tests;
