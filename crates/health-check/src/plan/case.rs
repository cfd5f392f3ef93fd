//! A NodeHealthCheck and those of its nodes that are not plainly healthy, while a plan is made.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::node_health_check::{StoppedBy, UnhealthyNode};
use nodeward_api::reason::HealthReason;
use nodeward_core::id::NodeName;

use super::chain::Chain;
use super::enablement::Enablement;
use super::expiry::{Health, Unhealthy};
use super::storm::Storm;
use super::unhealthy_period::UnhealthyPeriod;
use crate::snapshot::{CheckFacts, NodeFacts};
use nodeward_core::node_health_check::CheckSpec;
use nodeward_core::node_health_check::ThresholdState;

/// A NodeHealthCheck.
pub struct Check<'a> {
    /// As it was observed.
    pub facts: &'a CheckFacts,
    /// Its specification.
    pub spec: &'a CheckSpec,
    /// Whether it can be followed.
    pub enablement: Enablement,
    /// How many nodes it selects.
    pub observed: usize,
    /// How many of these are healthy.
    pub healthy: usize,
    /// Whether enough are.
    pub threshold: ThresholdState,
    /// Whether too many were unhealthy at once.
    pub storm: Storm,
    /// Nodes that are not plainly healthy, or have something of it.
    pub cases: BTreeMap<NodeName, Case<'a>>,
}

/// A node in the eyes of a NodeHealthCheck.
pub struct Case<'a> {
    /// Its name.
    pub name: NodeName,
    /// The node; `None`: it is gone.
    pub node: Option<&'a Arc<NodeFacts>>,
    /// Whether the NodeHealthCheck selects it.
    pub is_selected: bool,
    /// How its conditions stand.
    pub health: Health,
    /// What the status says of it.
    pub entry: Option<&'a UnhealthyNode>,
    /// Its outage; `None`: there is none.
    pub unhealthy_period: Option<UnhealthyPeriod>,
    /// Its remediations.
    pub chain: Chain<'a>,
    /// A remediation is being created.
    pub is_starting: bool,
    /// Since when its conditions are healthy, while its remediations are still there.
    pub healthy_since: Option<Timestamp>,
    /// How it stands.
    pub standing: Standing,
}

/// How a node stands: what is done for it, or what stops that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The reason.
    pub reason: HealthReason,
    /// More on it, for a person.
    pub detail: String,
    /// When it ends by itself, where it does: everything is decided anew then.
    pub until: Option<Timestamp>,
}

impl Standing {
    /// Without an end that is known.
    pub fn new(reason: HealthReason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
            until: None,
        }
    }

    /// With an end, if there is one.
    #[must_use]
    pub fn until(mut self, until: impl Into<Option<Timestamp>>) -> Self {
        self.until = until.into();
        self
    }
}

impl Check<'_> {
    /// Whether its default selector is being written down.
    pub fn writes_selector(&self) -> bool {
        self.spec.selector.is_none() && !self.only_reports() && !self.facts.deleting
    }

    /// Whether only its status may be written.
    pub fn only_reports(&self) -> bool {
        self.spec.dry_run
    }
}

impl Case<'_> {
    /// Whether its remediations are kept for `healthyDelay`.
    pub fn is_delayed(&self) -> bool {
        self.standing.reason == HealthReason::HealthyDelayed
    }

    /// Whether a remediation is there, may be, or may come to be at any moment: such a node is not counted healthy.
    pub fn has_remediation(&self) -> bool {
        self.is_starting || self.chain.is_there()
    }

    /// Whether the node is being remediated, see [`Chain::runs`].
    pub fn runs(&self, check: &Check<'_>, now: Timestamp) -> bool {
        self.is_starting || (self.chain.runs(&self.health, check.spec, now) && !self.is_out_of_time(check, now))
    }

    /// The same of what is more than intended.
    pub fn has_begun(&self, check: &Check<'_>, now: Timestamp) -> bool {
        self.is_starting || (self.chain.has_begun(&self.health, check.spec, now) && !self.is_out_of_time(check, now))
    }

    /// Nobody ends what a NodeHealthCheck has begun that only reports now: it has the time of its step.
    fn is_out_of_time(&self, check: &Check<'_>, now: Timestamp) -> bool {
        check.only_reports() && self.chain.records.iter().all(|record| record.ends() <= now)
    }

    /// Whether a remediator is at work on it, or is about to be.
    pub fn is_at_work(&self, now: Timestamp) -> bool {
        self.is_starting || self.chain.intent().is_some() || self.chain.is_at_work(&self.health, now)
    }

    /// What stops the step that is due. When somebody's lease ends is left out: it moves with each renewal.
    pub fn stopped_by(&self) -> Option<StoppedBy> {
        let Standing { reason, detail, until } = &self.standing;
        let is_leased = matches!(reason, HealthReason::LeaseTaken | HealthReason::ControlPlaneNodeAway);
        (self.expired().is_some() && reason.stops()).then(|| StoppedBy {
            reason: *reason,
            message: detail.clone(),
            until: until.filter(|_| !is_leased),
        })
    }

    /// The unhealthy condition that has lasted for long enough.
    pub fn expired(&self) -> Option<&Unhealthy> {
        match &self.health {
            Health::Expired(unhealthy) => Some(unhealthy),
            _ => None,
        }
    }
}
