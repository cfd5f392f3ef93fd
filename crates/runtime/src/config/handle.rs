//! The configuration in force, and what is wrong with the one that is not.

use std::sync::Arc;

use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;

use super::ConfigError;
use crate::metrics::Metrics;
use crate::reconcile_trigger::ReconcileTrigger;

/// Turns a text into a configuration, or says what is wrong with it. `""` is the text of no file at all.
pub type Parse<T> = fn(&str) -> Result<T, ConfigError>;

/// The configuration in force. Clones share it; a change starts a pass of the operator's loop.
pub struct ConfigHandle<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    parse: Parse<T>,
    in_force: RwLock<InForce<T>>,
    rejections: watch::Sender<Rejections>,
    trigger: ReconcileTrigger,
    rejected: Gauge,
    reloads: Counter,
}

struct InForce<T> {
    config: Arc<T>,
    text: String,
}

/// What is broken at the moment, and therefore not in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejections {
    /// The operator's own file.
    pub file: Option<Arc<ConfigError>>,
    /// Another source that the operator merges into it.
    pub merged: Option<Arc<ConfigError>>,
}

impl Rejections {
    /// The first of them.
    pub fn any(&self) -> Option<&Arc<ConfigError>> {
        self.file.as_ref().or(self.merged.as_ref())
    }
}

/// What came of a text that was offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// It is the text in force already.
    Unchanged,
    /// It is in force now.
    Applied,
    /// It is broken; what was in force stays in force.
    Rejected(Arc<ConfigError>),
}

impl<T> ConfigHandle<T> {
    /// The first configuration: without one there is nothing to fall back to, so an error here ends the process.
    pub fn first(
        parse: Parse<T>,
        text: String,
        origin: &str,
        trigger: ReconcileTrigger,
        metrics: &Metrics,
    ) -> Result<Self, ConfigError> {
        let config = Arc::new(parsed(parse, &text, origin)?);
        let broken = "1 while the configuration is broken and the last good one is in force";
        let shared = Shared {
            parse,
            in_force: RwLock::new(InForce { config, text }),
            rejections: watch::Sender::default(),
            trigger,
            rejected: metrics.register("config_rejected", broken),
            reloads: metrics.register("config_reloads", "Configurations taken over since the start"),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// The configuration in force.
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.in_force().config)
    }

    /// What is wrong with the latest text, while it is not in force.
    pub fn rejection(&self) -> Option<Arc<ConfigError>> {
        self.shared.rejections.borrow().any().cloned()
    }

    /// To wait for what gets broken or mended.
    pub fn rejections(&self) -> watch::Receiver<Rejections> {
        self.shared.rejections.subscribe()
    }

    /// Offers a new text of the file.
    pub fn offer(&self, text: &str, origin: &str) -> Loaded {
        if self.in_force().text == text {
            self.note(|rejections| rejections.file = None);
            return Loaded::Unchanged;
        }
        match parsed(self.shared.parse, text, origin) {
            Ok(config) => {
                self.take_over(config, text);
                self.note(|rejections| rejections.file = None);
                Loaded::Applied
            }
            Err(error) => self.reject(error),
        }
    }

    /// Notes that the file holds no text that could be offered.
    pub fn reject(&self, error: ConfigError) -> Loaded {
        let error = Arc::new(error);
        self.note(|rejections| rejections.file = Some(Arc::clone(&error)));
        Loaded::Rejected(error)
    }

    /// Notes that another source, which the operator merges into its configuration, is broken; `None`: it is in order.
    /// The operator keeps what was last good of it; metric and Event are the same as for the file.
    pub fn reject_merged(&self, error: Option<ConfigError>) {
        let error = error.map(Arc::new);
        self.note(|rejections| rejections.merged = error);
    }

    /// Notes that a change of such a source is in force now: it is counted and logged as one of the file is.
    pub fn merged_taken_over(&self, origin: &str) {
        self.shared.reloads.inc();
        tracing::info!(origin, "a new configuration is in force");
    }

    fn take_over(&self, config: T, text: &str) {
        let mut in_force = self.shared.in_force.write();
        in_force.config = Arc::new(config);
        text.clone_into(&mut in_force.text);
        drop(in_force);
        self.shared.reloads.inc();
        tracing::info!("a new configuration is in force");
        self.shared.trigger.notify();
    }

    /// The same fault again is no news.
    fn note(&self, change: impl FnOnce(&mut Rejections)) {
        let news = self.shared.rejections.send_if_modified(|rejections| {
            let before = rejections.clone();
            change(rejections);
            *rejections != before
        });
        if news {
            let rejection = self.rejection();
            self.shared.rejected.set(i64::from(rejection.is_some()));
            if let Some(error) = rejection {
                tracing::error!("the configuration is broken, the last good one stays in force: {error}");
            } else {
                tracing::info!("the configuration is in order again");
            }
            self.shared.trigger.notify();
        }
    }

    fn in_force(&self) -> parking_lot::RwLockReadGuard<'_, InForce<T>> {
        self.shared.in_force.read()
    }
}

impl<T> Clone for ConfigHandle<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

fn parsed<T>(parse: Parse<T>, text: &str, origin: &str) -> Result<T, ConfigError> {
    parse(text).map_err(|error| error.located_in(text).in_origin(origin))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt;

    use super::{ConfigHandle, Loaded};
    use crate::component::Component;
    use crate::config::{ConfigError, from_yaml};
    use crate::metrics::Metrics;
    use crate::reconcile_trigger::ReconcileTrigger;

    fn parse(text: &str) -> Result<u32, ConfigError> {
        match from_yaml(text)? {
            0 => Err(ConfigError::new("must be positive")),
            number => Ok(number),
        }
    }

    struct Fixture {
        handle: ConfigHandle<u32>,
        trigger: ReconcileTrigger,
        metrics: Metrics,
    }

    fn fixture() -> Fixture {
        let (trigger, metrics) = (
            ReconcileTrigger::new(),
            Metrics::new(Component::new("drain-keeper", "1.2.3")),
        );
        let handle = ConfigHandle::first(parse, "1".to_owned(), "f.yaml", trigger.clone(), &metrics).unwrap();
        Fixture {
            handle,
            trigger,
            metrics,
        }
    }

    impl Fixture {
        fn rang(&self) -> bool {
            self.trigger.notified().now_or_never().is_some()
        }

        fn shows_rejected(&self, value: u32) -> bool {
            let text = self.metrics.encode().unwrap();
            text.contains(&format!("\nnodeward_drain_keeper_config_rejected {value}\n"))
        }
    }

    #[test]
    fn broken_first_configuration_names_its_origin() {
        let metrics = Metrics::new(Component::new("drain-keeper", "1.2.3"));
        let error = ConfigHandle::first(parse, "0".to_owned(), "f.yaml", ReconcileTrigger::new(), &metrics)
            .err()
            .unwrap();
        assert_eq!(error.to_string(), "f.yaml: must be positive");
    }

    #[test]
    fn a_change_comes_into_force_and_rings() {
        let fixture = fixture();
        assert_eq!(fixture.handle.offer("2", "f.yaml"), Loaded::Applied);
        assert_eq!(*fixture.handle.current(), 2);
        assert!(fixture.rang());
    }

    #[test]
    fn the_same_text_again_changes_nothing() {
        let fixture = fixture();
        assert_eq!(fixture.handle.offer("1", "f.yaml"), Loaded::Unchanged);
        assert!(!fixture.rang());
    }

    #[test]
    fn broken_change_keeps_last_good_config() {
        let fixture = fixture();
        assert!(matches!(fixture.handle.offer("0", "f.yaml"), Loaded::Rejected(_)));
        assert_eq!(*fixture.handle.current(), 1);
        assert!(fixture.rang() && fixture.shows_rejected(1));
        assert_eq!(
            fixture.handle.rejection().unwrap().to_string(),
            "f.yaml: must be positive"
        );
        assert!(matches!(fixture.handle.offer("0", "f.yaml"), Loaded::Rejected(_)));
        assert!(!fixture.rang(), "the same fault again is no news");

        assert_eq!(fixture.handle.offer("3", "f.yaml"), Loaded::Applied);
        assert_eq!(fixture.handle.rejection(), None);
        assert!(fixture.rang() && fixture.shows_rejected(0));
    }

    #[test]
    fn going_back_to_the_good_text_mends_too() {
        let fixture = fixture();
        fixture.handle.offer("0", "f.yaml");
        assert!(fixture.rang());
        assert_eq!(fixture.handle.offer("1", "f.yaml"), Loaded::Unchanged);
        assert_eq!(fixture.handle.rejection(), None);
        assert!(fixture.rang() && fixture.shows_rejected(0));
    }

    #[test]
    fn unreadable_file_keeps_the_last_good_one() {
        let fixture = fixture();
        fixture.handle.reject(ConfigError::new("cannot be read"));
        assert_eq!(fixture.handle.current(), Arc::new(1));
        assert!(fixture.shows_rejected(1));
    }

    #[test]
    fn broken_merged_source_is_reported_and_mends_itself() {
        let fixture = fixture();
        fixture.handle.reject_merged(Some(ConfigError::new("theirs is broken")));
        assert!(fixture.rang() && fixture.shows_rejected(1));
        assert_eq!(fixture.handle.offer("2", "f.yaml"), Loaded::Applied);
        assert!(fixture.shows_rejected(1), "a good file does not mend the other source");
        assert!(fixture.rang());
        fixture.handle.reject_merged(Some(ConfigError::new("theirs is broken")));
        assert!(!fixture.rang(), "the same fault again is no news");
        fixture.handle.reject_merged(None);
        assert!(fixture.rang() && fixture.shows_rejected(0));
    }
}
