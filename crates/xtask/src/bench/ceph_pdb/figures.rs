//! What was measured, as figures.

use std::time::Duration;

use serde_json::json;

use super::evictor::Attempts;
use crate::bench::figures::{Distribution, Figures, count};
use crate::bench::measure::Rest;

/// What the product promises, in milliseconds.
const CLOSED: f64 = 250.0;
const SPELLED_OUT: f64 = 1_000.0;
const RESTORED: f64 = 2_000.0;

/// And in MiB, before librados is loaded.
const MEMORY: f64 = 40.0;

/// Everything that was measured.
pub struct Measured {
    pub osds: usize,
    pub rounds: Vec<Round>,
    pub attempts: Attempts,
    /// Absent where it was left out.
    pub rest: Option<(Rest, CommandRate)>,
    pub rss_mib: f64,
    pub rss_connected_mib: f64,
    pub peak_rss_mib: f64,
}

/// The drain of a host, and its return.
pub struct Round {
    /// From the first sign of a pod that ends.
    pub closed: Duration,
    pub spelled_out: Duration,
    pub noout: Duration,
    /// From the first answer of fresh statistics by which all is clean.
    pub clean_to_restored: Duration,
    pub up_to_restored: Duration,
    pub commands: CommandRate,
    pub requests_per_min: f64,
}

/// Commands for Ceph.
#[derive(Clone, Copy, Default)]
pub struct CommandRate {
    pub commands: f64,
    pub minutes: f64,
}

impl CommandRate {
    /// 0 without any.
    pub fn per_minute(self) -> f64 {
        if self.minutes > 0.0 {
            self.commands / self.minutes
        } else {
            0.0
        }
    }
}

impl Round {
    pub fn text(&self) -> String {
        format!(
            "closed {:.0?}, spelled out {:.0?}, noout {:.0?}, clean to restored {:.0?}, up to restored {:.1?}",
            self.closed, self.spelled_out, self.noout, self.clean_to_restored, self.up_to_restored
        )
    }
}

impl Measured {
    pub fn figures(&self) -> Figures {
        let of = |time: fn(&Round) -> Duration| {
            let millis: Vec<f64> = self
                .rounds
                .iter()
                .map(|round| 1_000.0 * time(round).as_secs_f64())
                .collect();
            Distribution::of(&millis)
        };
        let (closed, spelled_out) = (of(|round| round.closed), of(|round| round.spelled_out));
        let (clean_to_restored, up_to_restored) =
            (of(|round| round.clean_to_restored), of(|round| round.up_to_restored));
        let noout = of(|round| round.noout);
        let drain = self
            .rounds
            .iter()
            .fold(CommandRate::default(), |sum, round| CommandRate {
                commands: sum.commands + round.commands.commands,
                minutes: sum.minutes + round.commands.minutes,
            });
        let requests = self.rounds.iter().map(|round| round.requests_per_min).sum::<f64>() / count(self.rounds.len());
        let (unsafe_evictions, http_500) = (self.attempts.unsafe_evictions.len(), self.attempts.http_500);
        let rest = self.rest.as_ref();

        let mut figures = Figures::default();
        figures.add(json!({
            "sign_to_closed_ms": {"p50": closed.p50, "p99": closed.p99},
            "sign_to_spelled_out_ms": {"p50": spelled_out.p50, "p99": spelled_out.p99},
            "clean_to_restored_ms": clean_to_restored.max,
            "up_to_restored_ms": up_to_restored.max,
            "noout_ms": noout.max,
            "unsafe_evictions": unsafe_evictions,
            "http_500": http_500,
            "rest_requests_per_min": rest.map(|(rest, _)| rest.requests_per_min),
            "rest_ceph_commands_per_min": rest.map(|(_, commands)| commands.per_minute()),
            "drain_ceph_commands_per_min": drain.per_minute(),
            "rss_mib": self.rss_mib,
            "rss_connected_mib": self.rss_connected_mib,
        }));

        let rounds = self.rounds.len();
        figures.line(format_args!("{} OSDs on as many hosts, {rounds} drains", self.osds));
        figures.row_with_target("closed", closed.text("ms", 0), "p99 250 ms", closed.is_within(CLOSED));
        let is_met = spelled_out.is_within(SPELLED_OUT);
        figures.row_with_target("spelled out", spelled_out.text("ms", 0), "p99 1 s", is_met);
        figures.row("noout set", noout.text("ms", 0));
        let is_met = clean_to_restored.max.is_some_and(|max| max <= RESTORED);
        figures.row_with_target("clean to restored", clean_to_restored.text("ms", 0), "2 s", is_met);
        figures.row("up to restored", up_to_restored.text("ms", 0));
        let text = format!(
            "{unsafe_evictions} of {} attempts; {http_500} answered 500",
            self.attempts.count
        );
        figures.row_with_target("unsafe evictions", text, "none", unsafe_evictions == 0);
        for example in self.attempts.unsafe_evictions.iter().take(3) {
            figures.row("", example);
        }
        if let Some((rest, commands)) = rest {
            let (asked, leases) = (rest.requests_per_min, rest.lease_requests_per_min);
            let text = format!(
                "{asked:.1} a minute (and {leases:.0} for the lease), {:.1} % CPU",
                rest.cpu_pct
            );
            figures.row_with_target("requests at rest", text, "0", asked == 0.0);
            let asked = commands.per_minute();
            figures.row_with_target("commands at rest", format!("{asked:.2} a minute"), "1", asked < 1.05);
        }
        figures.row(
            "in a drain",
            format_args!(
                "{:.0} Ceph commands and {requests:.0} API requests a minute",
                drain.per_minute()
            ),
        );
        let (before, connected, peak) = (self.rss_mib, self.rss_connected_mib, self.peak_rss_mib);
        let text = format!("{before:.1} MiB; connected {connected:.1} MiB, at most {peak:.1} MiB");
        figures.row_with_target("memory", text, "40 MiB before the first connect", before <= MEMORY);
        figures
    }
}
