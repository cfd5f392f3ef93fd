//! A gauge that passes with time.

use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

/// A moment whose distance is computed when metrics are scraped, so that it is right between passes, too.
#[derive(Clone, Debug, Default)]
pub struct Moment(Arc<Mutex<Option<Timestamp>>>);

impl Moment {
    /// Shows the distance of another moment, or none.
    pub fn set(&self, moment: Option<Timestamp>) {
        *self.0.lock() = moment;
    }

    pub(super) fn get(&self) -> Option<Timestamp> {
        *self.0.lock()
    }
}

/// A gauge of seconds that is measured when metrics are scraped; absent where there is nothing to measure.
pub(super) struct Seconds<F> {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) measure: F,
}

impl<F> fmt::Debug for Seconds<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl<F: Fn() -> Option<SignedDuration> + Send + Sync + 'static> Collector for Seconds<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(seconds) = (self.measure)() else {
            return Ok(());
        };
        let gauge = ConstGauge::new(seconds.as_secs_f64().max(0.0));
        gauge.encode(encoder.encode_descriptor(self.name, self.help, None, gauge.metric_type())?)
    }
}
