//! Gauges of objects that come and go.

use std::collections::BTreeSet;
use std::fmt;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Labels that name an object.
type Labels<const N: usize> = [(&'static str, String); N];

/// A gauge for each of several objects. What the latest showing leaves out is exported no more.
#[derive(Clone, Debug, Default)]
pub struct Series<const N: usize> {
    gauges: Family<Labels<N>, Gauge>,
    shown: BTreeSet<Labels<N>>,
}

impl<const N: usize> Series<N> {
    /// Shows these values, and no others.
    pub fn show(&mut self, values: impl IntoIterator<Item = (Labels<N>, i64)>) {
        let before = std::mem::take(&mut self.shown);
        for (labels, value) in values {
            self.gauges.get_or_create(&labels).set(value);
            self.shown.insert(labels);
        }
        for gone in before.difference(&self.shown) {
            self.gauges.remove(gone);
        }
    }
}

impl<const N: usize> EncodeMetric for Series<N> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.gauges.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

#[cfg(test)]
mod tests {
    use crate::component::Component;
    use crate::metrics::Metrics;

    use super::Series;

    #[test]
    fn objects_left_out_are_exported_no_more() {
        let metrics = Metrics::new(Component::new("drain-lock", "1.2.3"));
        let mut series: Series<1> = metrics.register("overdue_drains", "Nodes");
        let label = |node: &str| [("node", node.to_owned())];
        let samples = |metrics: &Metrics| {
            let text = metrics.encode().unwrap();
            let ours = text
                .lines()
                .filter(|line| line.starts_with("nodeward_drain_lock_overdue_drains{"));
            ours.map(|line| line.split_once('{').unwrap().1.to_owned())
                .collect::<Vec<_>>()
        };
        series.show([(label("n1"), 1), (label("n2"), 1)]);
        series.show([(label("n2"), 3)]);
        assert_eq!(samples(&metrics), [r#"node="n2"} 3"#]);
        series.show([]);
        assert!(samples(&metrics).is_empty());
    }
}
