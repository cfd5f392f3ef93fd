//! A storm: too many nodes were unhealthy at once. Enough are healthy again before it ends, and a cooldown passes.

use jiff::{SignedDuration, Timestamp};
use nodeward_api::condition::{STORM_ACTIVE, STORM_COOLDOWN_ACTIVE};
use nodeward_api::node_health_check::NodeHealthCheckStatus;
use nodeward_core::deadline::{is_due, saturating_add};

use super::Planner;
use super::case::Check;
use nodeward_core::node_health_check::CheckSpec;
use nodeward_core::node_health_check::ThresholdState;

/// Where a storm stands; the status keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storm {
    /// There is none.
    Calm,
    /// Too few nodes are healthy.
    Active,
    /// Enough nodes are healthy again.
    CoolingDown {
        /// Since when.
        since: Timestamp,
    },
}

impl Storm {
    /// As the status has it; without a cooldown there are no storms. A time that is still to come was written by a clock that is
    /// wrong: it is now.
    pub fn read(spec: &CheckSpec, status: &NodeHealthCheckStatus, now: Timestamp) -> Self {
        let since = |type_| {
            let mut conditions = status.conditions.iter();
            let found = conditions.find(|condition| condition.type_ == type_)?;
            (found.status == "True").then_some(found.last_transition_time.0.min(now))
        };
        if spec.storm_cooldown.is_none() {
            return Self::Calm;
        }
        match (since(STORM_ACTIVE), since(STORM_COOLDOWN_ACTIVE)) {
            (None, _) => Self::Calm,
            (Some(_), None) => Self::Active,
            (Some(_), Some(since)) => Self::CoolingDown { since },
        }
    }

    /// Where it stands now.
    fn advance(self, holds: bool, refuses: bool, cooldown: SignedDuration, now: Timestamp) -> Self {
        match (self, holds) {
            (Self::Calm, false) if refuses => Self::Active,
            (Self::Calm, _) => Self::Calm,
            (Self::Active | Self::CoolingDown { .. }, false) => Self::Active,
            (Self::Active, true) => Self::CoolingDown { since: now },
            (Self::CoolingDown { since }, true) if is_due(saturating_add(since, cooldown), now) => Self::Calm,
            (Self::CoolingDown { since }, true) => Self::CoolingDown { since },
        }
    }
}

impl Planner<'_> {
    /// Moves a NodeHealthCheck's storm on; `has_candidates`: an expired node waits for its first step.
    pub(super) fn advance_storm(&mut self, check: &mut Check<'_>, has_candidates: bool) {
        let Some(cooldown) = check.spec.storm_cooldown else {
            return;
        };
        let holds = !matches!(check.threshold, ThresholdState::TooFewHealthy(_));
        check.storm = check.storm.advance(holds, has_candidates, cooldown, self.now);
        if let Storm::CoolingDown { since } = check.storm {
            self.requeue_at.note(saturating_add(since, cooldown));
        }
    }
}
