//! The metrics registry.

mod moment;
mod process;
mod series;

use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

pub use moment::Moment;
pub use series::Series;

use crate::component::Component;

/// Where metrics are registered. Counters get the suffix `_total` when they are written out; gauges keep their name.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    prefix: String,
}

/// The media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Metrics {
    /// A registry that holds `nodeward_<component>_build_info`.
    pub fn new(component: Component) -> Self {
        let metrics = Self {
            registry: Arc::default(),
            prefix: component.metric_prefix(),
        };
        let build = Info::new([("version", component.version())]);
        metrics.own(|registry| registry.register("build", "The version that runs", build));
        let resident_memory = Box::new(process::ResidentMemory);
        metrics.registry.lock().register_collector(resident_memory);
        metrics
    }

    /// Registers a metric of the component as `nodeward_<component>_<name>`, and returns it.
    pub fn register<M: Metric + Clone + Default>(&self, name: impl Into<String>, help: &str) -> M {
        self.register_as(name, help, M::default())
    }

    /// As [`register`](Self::register), for a metric that needs more than its default: buckets, for example.
    pub fn register_as<M: Metric + Clone>(&self, name: impl Into<String>, help: &str, metric: M) -> M {
        self.own(|registry| registry.register(name, help, metric.clone()));
        metric
    }

    /// Registers a gauge of the seconds from a moment until the scrape; it is absent while no moment is set.
    pub fn seconds_since(&self, name: &'static str, help: &'static str) -> Moment {
        self.register_moment(name, help, |moment| Timestamp::now().duration_since(moment))
    }

    /// Registers a gauge of the seconds from the scrape until a moment; it is absent while no moment is set.
    pub fn seconds_until(&self, name: &'static str, help: &'static str) -> Moment {
        self.register_moment(name, help, |moment| moment.duration_since(Timestamp::now()))
    }

    fn register_moment(
        &self,
        name: &'static str,
        help: &'static str,
        distance: fn(Timestamp) -> SignedDuration,
    ) -> Moment {
        let moment = Moment::default();
        let shown = moment.clone();
        self.register_seconds(name, help, move || shown.get().map(distance));
        moment
    }

    /// Registers a gauge of seconds that is measured when metrics are scraped; it is absent where that gives `None`.
    pub fn register_seconds(
        &self,
        name: &'static str,
        help: &'static str,
        measure: impl Fn() -> Option<SignedDuration> + Send + Sync + 'static,
    ) {
        let seconds = Box::new(moment::Seconds { name, help, measure });
        self.own(|registry| registry.register_collector(seconds));
    }

    /// Registers the component's own metrics: each name is prefixed with `nodeward_<component>_`.
    pub fn own<R>(&self, register: impl FnOnce(&mut Registry) -> R) -> R {
        let mut registry = self.registry.lock();
        register(registry.sub_registry_with_prefix(&self.prefix))
    }

    /// Registers a metric under the name of a system that the component stands in for: no prefix is added. A counter of
    /// theirs whose name does not end in `_total` is registered as a gauge that only rises.
    pub fn register_foreign<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.registry.lock().register(name, help, metric.clone());
        metric
    }

    /// All metrics in the OpenMetrics text format.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let registry = self.registry.lock();
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    use super::Metrics;
    use crate::component::Component;

    fn encoded(register: impl FnOnce(&Metrics)) -> String {
        let metrics = Metrics::new(Component::new("drain-keeper", "1.2.3"));
        register(&metrics);
        metrics.encode().unwrap()
    }

    #[test]
    fn our_own_names_carry_the_component() {
        let text = encoded(|metrics| {
            metrics.own(|registry| registry.register("nodes_draining", "Nodes", Gauge::<i64>::default()));
            metrics.own(|registry| registry.register("actions", "Actions", Counter::<u64>::default()));
        });
        assert!(text.contains("\nnodeward_drain_keeper_nodes_draining 0\n"), "{text}");
        assert!(text.contains("\nnodeward_drain_keeper_actions_total 0\n"), "{text}");
        assert!(
            text.contains("nodeward_drain_keeper_build_info{version=\"1.2.3\"} 1\n"),
            "{text}"
        );
    }

    #[test]
    fn names_of_other_systems_are_kept_as_they_are() {
        let text = encoded(|metrics| {
            metrics.register_foreign("upgradeoperator_node_drain_timeout", "Drain", Gauge::<i64>::default());
        });
        assert!(text.contains("\nupgradeoperator_node_drain_timeout 0\n"), "{text}");
    }
}
