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

    pub(super) fn collector(
        &self,
        name: &'static str,
        help: &'static str,
        distance: fn(Timestamp) -> SignedDuration,
    ) -> impl Collector + use<> {
        Distance {
            moment: self.clone(),
            name,
            help,
            measure: distance,
        }
    }
}

#[derive(Debug)]
struct Distance {
    moment: Moment,
    name: &'static str,
    help: &'static str,
    measure: fn(Timestamp) -> SignedDuration,
}

impl Collector for Distance {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(moment) = *self.moment.0.lock() else {
            return Ok(());
        };
        let gauge = ConstGauge::new((self.measure)(moment).as_secs_f64().max(0.0));
        gauge.encode(encoder.encode_descriptor(self.name, self.help, None, gauge.metric_type())?)
    }
}
