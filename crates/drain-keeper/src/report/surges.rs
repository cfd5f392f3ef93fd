//! What becomes of surges that were seen under way.

use std::collections::BTreeMap;

use nodeward_api::reason::SurgeOutcome;
use nodeward_core::id::PodUid;
use nodeward_core::surge::{Course, End};

use crate::plan::{Plan, SurgeStanding};
use crate::snapshot::{NodePods, Snapshot};

/// Surges that are under way.
#[derive(Debug, Default)]
pub struct Surges {
    under_way: BTreeMap<PodUid, SurgeStanding>,
}

impl Surges {
    /// Those that have ended, each once.
    pub fn ended(&mut self, snapshot: &Snapshot, plan: &Plan) -> Vec<(PodUid, SurgeStanding, SurgeOutcome)> {
        let mut ended = Vec::new();
        self.under_way.retain(|uid, before| {
            let outcome = match plan.surges.get(uid) {
                Some(SurgeStanding {
                    course: Course::Ended(End { outcome, .. }),
                    ..
                }) => *outcome,
                Some(_) => return true,
                // Its rollout has taken it down, or its drain is no longer followed.
                None => match snapshot.pods.get(&before.node) {
                    None => return false,
                    Some(NodePods::Syncing) => return true,
                    Some(NodePods::Synced(pods)) => {
                        if pods.iter().any(|pod| pod.uid == *uid && pod.deletion.is_none()) {
                            return true;
                        }
                        SurgeOutcome::SurgeComplete
                    }
                },
            };
            ended.push((uid.clone(), before.clone(), outcome));
            false
        });
        let under_way = plan
            .surges
            .iter()
            .filter(|(_, standing)| standing.course.is_under_way());
        self.under_way
            .extend(under_way.map(|(uid, standing)| (uid.clone(), standing.clone())));
        ended
    }
}
