//! The policy in force: the file's, or with managed-upgrade-operator's `nodeDrain` where that is read and good.

use std::sync::Arc;

use nodeward_runtime::{ConfigError, ConfigHandle, ConfigMapText};

use crate::observe::Observer;
use crate::policy::Policy;
use crate::settings::Settings;

/// The policy in force, and what it is made from.
pub struct PolicyInForce {
    config: ConfigHandle<Settings>,
    policy: Arc<Policy>,
    /// What was looked at last, and what came of it.
    made_from: Sources,
    outcome: Result<(), ConfigError>,
}

/// What a policy is made from.
struct Sources {
    settings: Arc<Settings>,
    theirs: Theirs,
}

/// What managed-upgrade-operator's ConfigMap says.
#[derive(Clone, PartialEq)]
enum Theirs {
    /// It is not to be read.
    NotAsked,
    /// It has not been read yet.
    Unread,
    /// Its text.
    Text(Arc<str>),
    /// It cannot be read.
    Unreadable(String),
}

impl PolicyInForce {
    /// The file's, until something else is read.
    pub fn new(config: ConfigHandle<Settings>) -> Self {
        let settings = config.current();
        let policy = Arc::new(settings.policy.clone());
        say_requirements(&policy);
        let made_from = Sources {
            settings,
            theirs: Theirs::NotAsked,
        };
        Self {
            config,
            policy,
            made_from,
            outcome: Ok(()),
        }
    }

    /// The policy now; `None` while the ConfigMap that may change it is still being read for the first time. What is
    /// broken or cannot be read is told, and what was last good stays in force.
    pub fn current(&mut self, observer: &mut Observer) -> Option<Arc<Policy>> {
        let settings = self.config.current();
        observer.follow_config_map(settings.policy.managed_upgrade_config_map.as_ref());
        let theirs = Theirs::from(observer.managed_upgrade_config());
        let is_first_read = matches!(self.made_from.theirs, Theirs::NotAsked | Theirs::Unread);
        if theirs == Theirs::Unread {
            // A relist: what it said before still stands.
            return (!is_first_read).then(|| Arc::clone(&self.policy));
        }
        if !Arc::ptr_eq(&settings, &self.made_from.settings) || theirs != self.made_from.theirs {
            self.made_from = Sources { settings, theirs };
            self.outcome = self.make();
        }
        self.config.reject_merged(self.outcome.as_ref().err().cloned());
        Some(Arc::clone(&self.policy))
    }

    fn make(&mut self) -> Result<(), ConfigError> {
        let Sources { settings, theirs } = &self.made_from;
        let policy = match theirs {
            Theirs::NotAsked | Theirs::Unread => settings.policy.clone(),
            Theirs::Text(text) => settings.with_managed_upgrade_config(text)?,
            Theirs::Unreadable(why) => return Err(ConfigError::at("managedUpgradeConfigMap", why.clone())),
        };
        if policy.signal != self.policy.signal {
            say_requirements(&policy);
        }
        self.policy = Arc::new(policy);
        Ok(())
    }
}

impl From<Option<ConfigMapText>> for Theirs {
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
fn say_requirements(policy: &Policy) {
    for requirement in policy.signal.requirements() {
        tracing::info!(signal = %policy.signal.spec(), "{requirement}");
    }
}
