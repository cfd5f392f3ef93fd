//! The policy in force: the file's, or with managed-upgrade-operator's `nodeDrain` in place of the file's.

use std::sync::Arc;

use nodeward_runtime::{ConfigError, ConfigHandle, ConfigMapText};

use crate::observe::Observer;
use crate::policy::{ConfigMapRef, Policy};
use crate::settings::Settings;

/// The policy in force, and what it is made from.
pub struct EffectivePolicy {
    config: ConfigHandle<Settings>,
    policy: Arc<Policy>,
    /// What the policy was made from; none before the first.
    sources: Option<Sources>,
    last_good: Option<LastGood>,
    rejection: Option<ConfigError>,
}

/// What a policy is made from.
struct Sources {
    settings: Arc<Settings>,
    text: Option<ConfigMapText>,
}

/// The last text of a ConfigMap that could be used.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastGood {
    of: ConfigMapRef,
    text: Arc<str>,
}

impl EffectivePolicy {
    /// The file's, until something else is read.
    pub fn new(config: ConfigHandle<Settings>) -> Self {
        let policy = Arc::new(config.current().policy.clone());
        log_requirements(&policy);
        log_warnings(&policy);
        Self {
            config,
            policy,
            sources: None,
            last_good: None,
            rejection: None,
        }
    }

    /// The policy now; `None` while the ConfigMap that may change it is still being read for the first time. What is
    /// broken or cannot be read is told, and its last good text stays in force.
    pub fn current(&mut self, observer: &mut Observer) -> Option<Arc<Policy>> {
        let settings = self.config.current();
        let reference = settings.policy.managed_upgrade_config_map.as_ref();
        observer.follow_config_map(reference);
        let text = observer.managed_upgrade_config();
        self.last_good.take_if(|good| Some(&good.of) != reference);
        if text == Some(ConfigMapText::Syncing) && self.last_good.is_none() {
            return None;
        }
        let is_unchanged = |sources: &Sources| Arc::ptr_eq(&settings, &sources.settings) && text == sources.text;
        if !self.sources.as_ref().is_some_and(is_unchanged) {
            let before = self.last_good.clone();
            let (policy, rejection) = merged(&settings, text.as_ref(), &mut self.last_good);
            self.rejection = rejection;
            if let Some(good) = self.last_good.as_ref().filter(|good| Some(*good) != before.as_ref()) {
                self.config.merged_taken_over(&good.of.to_string());
            }
            if policy.signal != self.policy.signal {
                log_requirements(&policy);
            }
            if policy.warnings() != self.policy.warnings() {
                log_warnings(&policy);
            }
            self.policy = Arc::new(policy);
            self.sources = Some(Sources { settings, text });
        }
        self.config.reject_merged(self.rejection.clone());
        Some(Arc::clone(&self.policy))
    }
}

/// The file's policy with the ConfigMap's block in it, and what is wrong with the ConfigMap. Where that cannot be used its
/// last good text counts, under a file that may have changed since; where there has never been one nothing is forced: it
/// may say that the strategies are disabled.
fn merged(
    settings: &Settings,
    text: Option<&ConfigMapText>,
    last_good: &mut Option<LastGood>,
) -> (Policy, Option<ConfigError>) {
    let Some((reference, text)) = settings.policy.managed_upgrade_config_map.as_ref().zip(text) else {
        return (settings.policy.clone(), None);
    };
    let unreadable = |why: &str| Some(ConfigError::new(why).in_origin(reference.to_string()));
    let rejection = match text {
        ConfigMapText::Text(text) => match settings.with_managed_upgrade_config(text) {
            Ok(policy) => {
                *last_good = Some(LastGood {
                    of: reference.clone(),
                    text: Arc::clone(text),
                });
                return (policy, None);
            }
            Err(error) => Some(error.located_in(text).in_origin(reference.to_string())),
        },
        // A relist: what it said before still stands.
        ConfigMapText::Syncing => None,
        ConfigMapText::Absent => unreadable("does not exist"),
        ConfigMapText::KeyMissing => unreadable("has no key config.yaml"),
        ConfigMapText::Forbidden(message) => unreadable(&format!("may not be read: {message}")),
    };
    let known = last_good
        .as_ref()
        .and_then(|good| settings.with_managed_upgrade_config(&good.text).ok());
    (known.unwrap_or_else(|| settings.policy.clone().disabled()), rejection)
}

/// What has to be switched on elsewhere for the upgrade signal to work.
fn log_requirements(policy: &Policy) {
    for requirement in policy.signal.requirements() {
        tracing::info!(signal = %policy.signal.spec(), "{requirement}");
    }
}

fn log_warnings(policy: &Policy) {
    for warning in policy.warnings() {
        tracing::warn!("{warning}");
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use nodeward_core::node::NodeView;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const ASKED: &str = "nodeDrain: {timeOut: 1}\nmanagedUpgradeConfigMap: {namespace: muo, name: config}\n";

    fn text(text: &str) -> ConfigMapText {
        ConfigMapText::Text(text.into())
    }

    /// `timeOut` in minutes, and whether the strategies are enabled.
    fn drain(policy: &Policy) -> (i64, bool) {
        let node =
            json!({ "metadata": { "name": "n", "labels": { "pool": "slow" } }, "spec": { "unschedulable": true } });
        let node = NodeView::project(&serde_json::from_value(node).unwrap()).unwrap();
        let drain = policy.drain_for(&node);
        assert!(drain.time_out >= SignedDuration::from_mins(1));
        (drain.time_out.as_mins(), !drain.disable_strategies)
    }

    fn read(file: &str, text: &ConfigMapText, last_good: &mut Option<LastGood>) -> ((i64, bool), Option<String>) {
        let settings = Settings::parse(file).unwrap();
        let (policy, rejection) = merged(&settings, Some(text), last_good);
        (drain(&policy), rejection.map(|error| error.to_string()))
    }

    /// It may say that the strategies are disabled.
    #[rstest]
    #[case::absent(ConfigMapText::Absent, "ConfigMap muo/config: does not exist")]
    #[case::without_its_key(ConfigMapText::KeyMissing, "ConfigMap muo/config: has no key config.yaml")]
    #[case::forbidden(ConfigMapText::Forbidden("no".into()), "ConfigMap muo/config: may not be read: no")]
    #[case::broken(
        text("scale: {}\nnodeDrain:\n  timeOut: -5\n"),
        "ConfigMap muo/config:3:12: nodeDrain.timeOut: "
    )]
    #[case::without_its_block(text("scale: {}\n"), "ConfigMap muo/config: nodeDrain: is missing")]
    fn never_read_config_map_disables_all_strategies(#[case] text: ConfigMapText, #[case] says: &str) {
        for pools in [
            "",
            "pools: [{selector: {pool: slow}, nodeDrain: {disableDrainStrategies: false}}]",
        ] {
            let (drain, rejection) = read(&format!("{ASKED}{pools}"), &text, &mut None);
            assert_eq!(drain, (1, false));
            let rejection = rejection.unwrap();
            assert!(rejection.starts_with(says), "{rejection}");
        }
    }

    #[rstest]
    #[case::absent(ConfigMapText::Absent, true)]
    #[case::broken(text("nodeDrain: {timeOut: 0}"), true)]
    #[case::relist(ConfigMapText::Syncing, false)]
    fn last_good_text_stays_over_a_changed_file(#[case] now: ConfigMapText, #[case] is_told: bool) {
        let mut last_good = None;
        let good = text("nodeDrain: {timeOut: 50}");
        assert_eq!(read(ASKED, &good, &mut last_good), ((50, true), None));
        let (drain, rejection) = read(ASKED, &now, &mut last_good);
        assert_eq!((drain, rejection.is_some()), ((50, true), is_told));
        // Their block replaces the file's as a whole; the rest of the file counts.
        let pools = "pools: [{selector: {pool: slow}, nodeDrain: {disableDrainStrategies: true}}]";
        assert_eq!(read(&format!("{ASKED}{pools}"), &now, &mut last_good).0, (50, false));
        assert_eq!(
            read(&ASKED.replace("timeOut: 1", "timeOut: 2"), &now, &mut last_good).0,
            (50, true)
        );
        let mended = text("nodeDrain: {timeOut: 60}");
        assert_eq!(read(ASKED, &mended, &mut last_good), ((60, true), None));
    }

    #[test]
    fn config_map_counts_only_when_asked_for() {
        let settings = Settings::parse("nodeDrain: {timeOut: 1}").unwrap();
        assert_eq!(drain(&merged(&settings, None, &mut None).0), (1, true));
    }
}
