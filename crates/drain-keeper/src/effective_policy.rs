//! The policy in force: the file's, or with managed-upgrade-operator's `nodeDrain` where that is read and good.

use std::sync::Arc;

use nodeward_runtime::{ConfigError, ConfigHandle, ConfigMapText};

use crate::observe::Observer;
use crate::policy::Policy;
use crate::settings::Settings;

/// The policy in force, and what it is made from.
pub struct EffectivePolicy {
    config: ConfigHandle<Settings>,
    policy: Arc<Policy>,
    /// What was looked at last, and what came of it.
    sources: Sources,
    outcome: Result<(), ConfigError>,
}

/// What a policy is made from.
struct Sources {
    settings: Arc<Settings>,
    external: ExternalConfig,
}

/// What managed-upgrade-operator's ConfigMap says.
#[derive(Clone, PartialEq)]
enum ExternalConfig {
    /// It is not to be read.
    NotAsked,
    /// It has not been read yet.
    Unread,
    Text(Arc<str>),
    /// It cannot be read.
    Unreadable(String),
}

impl EffectivePolicy {
    /// The file's, until something else is read.
    pub fn new(config: ConfigHandle<Settings>) -> Self {
        let settings = config.current();
        let policy = Arc::new(settings.policy.clone());
        log_requirements(&policy);
        let sources = Sources {
            settings,
            external: ExternalConfig::NotAsked,
        };
        Self {
            config,
            policy,
            sources,
            outcome: Ok(()),
        }
    }

    /// The policy now; `None` while the ConfigMap that may change it is still being read for the first time. What is
    /// broken or cannot be read is told, and what was last good stays in force.
    pub fn current(&mut self, observer: &mut Observer) -> Option<Arc<Policy>> {
        let settings = self.config.current();
        observer.follow_config_map(settings.policy.managed_upgrade_config_map.as_ref());
        let external = ExternalConfig::from(observer.managed_upgrade_config());
        let is_first_read = matches!(self.sources.external, ExternalConfig::NotAsked | ExternalConfig::Unread);
        if external == ExternalConfig::Unread {
            // A relist: what it said before still stands.
            return (!is_first_read).then(|| Arc::clone(&self.policy));
        }
        if !Arc::ptr_eq(&settings, &self.sources.settings) || external != self.sources.external {
            self.sources = Sources { settings, external };
            self.outcome = self.make();
        }
        self.config.reject_merged(self.outcome.as_ref().err().cloned());
        Some(Arc::clone(&self.policy))
    }

    fn make(&mut self) -> Result<(), ConfigError> {
        let Sources { settings, external } = &self.sources;
        let policy = match external {
            ExternalConfig::NotAsked | ExternalConfig::Unread => settings.policy.clone(),
            ExternalConfig::Text(text) => settings.with_managed_upgrade_config(text)?,
            ExternalConfig::Unreadable(why) => return Err(ConfigError::at("managedUpgradeConfigMap", why.clone())),
        };
        if policy.signal != self.policy.signal {
            log_requirements(&policy);
        }
        self.policy = Arc::new(policy);
        Ok(())
    }
}

impl From<Option<ConfigMapText>> for ExternalConfig {
    fn from(text: Option<ConfigMapText>) -> Self {
        match text {
            None => Self::NotAsked,
            Some(ConfigMapText::Syncing) => Self::Unread,
            Some(ConfigMapText::Text(text)) => Self::Text(text),
            Some(ConfigMapText::Absent) => Self::Unreadable("the ConfigMap does not exist".to_owned()),
            Some(ConfigMapText::KeyMissing) => Self::Unreadable("the ConfigMap has no key config.yaml".to_owned()),
            Some(ConfigMapText::Forbidden(message)) => Self::Unreadable(message.to_string()),
        }
    }
}

/// What has to be switched on elsewhere for the upgrade signal to work.
fn log_requirements(policy: &Policy) {
    for requirement in policy.signal.requirements() {
        tracing::info!(signal = %policy.signal.spec(), "{requirement}");
    }
}
