//! What the process itself uses, under the names that every Prometheus client library uses.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// `process_resident_memory_bytes`, read anew for each scrape.
#[derive(Debug)]
pub(super) struct ResidentMemory;

impl Collector for ResidentMemory {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(kibibytes) = std::fs::read_to_string("/proc/self/status")
            .ok()
            .as_deref()
            .and_then(resident)
        else {
            return Ok(());
        };
        let gauge = ConstGauge::new(kibibytes.saturating_mul(1024));
        let help = "Resident memory size";
        let metric =
            encoder.encode_descriptor("process_resident_memory", help, Some(&Unit::Bytes), gauge.metric_type())?;
        gauge.encode(metric)
    }
}

/// The resident set in KiB, from the text of `/proc/self/status` (see proc(5)).
fn resident(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::resident;
    use crate::component::Component;
    use crate::metrics::Metrics;

    #[test]
    fn the_resident_set_is_read_in_kibibytes() {
        assert_eq!(resident("Name:\tx\nVmHWM:\t  999 kB\nVmRSS:\t   1234 kB\n"), Some(1234));
        assert_eq!(resident("Name:\tx\n"), None);
    }

    #[test]
    fn it_is_exported_in_bytes_under_the_usual_name() {
        let text = Metrics::new(Component::new("drain-keeper", "1.2.3")).encode().unwrap();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
        let bytes: u64 = value.unwrap_or_default().parse().unwrap();
        assert!(bytes > 1_000_000, "{bytes}");
    }
}
