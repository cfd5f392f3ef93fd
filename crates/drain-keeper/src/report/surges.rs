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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use rstest::rstest;
    use serde_json::Value;

    use super::*;
    use crate::plan::tests::world::{minute, pod, terminating, with};

    fn plan(course: Option<Course>) -> Plan {
        let standing = course.map(|course| SurgeStanding {
            node: "n1".into(),
            pod: nodeward_core::id::PodKey::new("shop", "p"),
            course,
        });
        Plan {
            surges: standing.into_iter().map(|standing| ("p".into(), standing)).collect(),
            ..Plan::default()
        }
    }

    fn snapshot(pods: Option<NodePods>) -> Snapshot {
        Snapshot {
            pods: pods.into_iter().map(|pods| ("n1".into(), pods)).collect(),
            ..Snapshot::default()
        }
    }

    fn pods(object: Value) -> NodePods {
        let view = nodeward_core::pod::PodView::project(&serde_json::from_value(object).unwrap()).unwrap();
        NodePods::Synced(vec![Arc::new(view)])
    }

    fn ended(outcome: SurgeOutcome) -> Course {
        Course::Ended(End {
            outcome,
            is_ours_to_undo: false,
        })
    }

    fn rolls() -> Course {
        let until: Timestamp = minute(12);
        Course::Rolls(until)
    }

    #[rstest]
    #[case::reverted(
        Some(ended(SurgeOutcome::SurgeReverted)),
        Some(pods(pod("p"))),
        Some(SurgeOutcome::SurgeReverted)
    )]
    #[case::gone(None, Some(NodePods::Synced(Vec::new())), Some(SurgeOutcome::SurgeComplete))]
    #[case::going(
        None,
        Some(pods(with(pod("p"), terminating(3, 1)))),
        Some(SurgeOutcome::SurgeComplete)
    )]
    #[case::unknown(None, Some(pods(pod("p"))), None)]
    #[case::syncing(None, Some(NodePods::Syncing), None)]
    #[case::uncordoned(None, None, None)]
    #[case::goes_on(Some(rolls()), Some(pods(pod("p"))), None)]
    fn end_is_told_once(
        #[case] course: Option<Course>,
        #[case] pods: Option<NodePods>,
        #[case] told: Option<SurgeOutcome>,
    ) {
        let mut surges = Surges::default();
        let before = snapshot(Some(NodePods::Synced(Vec::new())));
        assert!(surges.ended(&before, &plan(Some(rolls()))).is_empty());
        let (after, now) = (snapshot(pods), plan(course));
        let outcomes: Vec<SurgeOutcome> = surges
            .ended(&after, &now)
            .into_iter()
            .map(|(_, _, outcome)| outcome)
            .collect();
        assert_eq!(outcomes, told.into_iter().collect::<Vec<_>>());
        let again = surges.ended(&after, &now);
        assert!(again.is_empty(), "{again:?}");
    }

    #[test]
    fn end_that_was_not_seen_coming_is_not_told() {
        let mut surges = Surges::default();
        let all_gone = snapshot(Some(NodePods::Synced(Vec::new())));
        assert!(
            surges
                .ended(&all_gone, &plan(Some(ended(SurgeOutcome::SurgeStuck))))
                .is_empty()
        );
    }
}
