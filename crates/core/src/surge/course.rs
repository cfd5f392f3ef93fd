//! How far the surge of a pod has come, by its record and its Deployment.

use jiff::Timestamp;
use nodeward_api::reason::SurgeOutcome;
use nodeward_api::surge_record::SurgeRecord;

use crate::deadline::to_the_second;

use super::DeploymentView;

/// How far the surge of a pod has come, while the pod is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// It is recorded, and its Deployment is still to be told to roll, before then.
    Recorded(Timestamp),
    /// The Deployment rolls, and is given up then.
    Rolls(Timestamp),
    /// It is over.
    Ended(End),
}

/// The end of a surge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub outcome: SurgeOutcome,
    /// The Deployment is as the restart has left it: the former [`RESTARTED_AT`](nodeward_api::annotation::RESTARTED_AT) is to be
    /// put back, so that the old pod stays.
    pub is_ours_to_undo: bool,
}

impl Course {
    /// The course of a surge, by the Deployment that the pod has.
    pub fn of(record: &SurgeRecord, deployment: Option<&DeploymentView>, now: Timestamp) -> Self {
        let over = |outcome| {
            Self::Ended(End {
                outcome,
                is_ours_to_undo: false,
            })
        };
        let Some(deployment) = deployment.filter(|deployment| *deployment.uid == *record.deployment) else {
            return over(SurgeOutcome::SurgeOvertaken);
        };
        let is_late = record.is_given_up(now);
        if deployment.generation <= record.generation {
            // A cache may be behind what the record was made from.
            return if is_late {
                over(SurgeOutcome::SurgeStuck)
            } else {
                Self::Recorded(record.until)
            };
        }
        let is_restarted = deployment.restarted_at.as_deref() == Some(&*to_the_second(record.at));
        let is_one_change = deployment.generation == record.generation.saturating_add(1);
        match (is_restarted, is_one_change) {
            (true, true) if deployment.is_complete => over(SurgeOutcome::SurgeComplete),
            (true, true) if is_late || deployment.has_replica_failure => Self::Ended(End {
                outcome: SurgeOutcome::SurgeStuck,
                is_ours_to_undo: true,
            }),
            (true, true) => Self::Rolls(record.until),
            // It was never told to roll, or is told something else by now.
            (true, false) | (false, true) => over(SurgeOutcome::SurgeOvertaken),
            // The restart is undone in time, by whoever finds it stuck.
            (false, false) if is_late => over(SurgeOutcome::SurgeStuck),
            (false, false) => over(SurgeOutcome::SurgeReverted),
        }
    }

    /// Whether the pod is not to be forced, for it may still move.
    pub const fn is_under_way(self) -> bool {
        matches!(self, Self::Recorded(_) | Self::Rolls(_))
    }
}
