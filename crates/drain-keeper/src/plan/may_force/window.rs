//! Maintenance windows: what is begun waits for one, and what was begun goes on.

use jiff::Timestamp;
use nodeward_api::last_override::LastOverride;
use nodeward_core::pod::PodView;

use super::Evidence;

/// From this moment on, when the next step at the pod may be taken.
pub(in super::super) fn may_begin_at(moment: Timestamp, pod: &PodView, evidence: &Evidence<'_>) -> Timestamp {
    if has_begun(pod, evidence) {
        moment
    } else {
        evidence.policy.windows.first_open(moment)
    }
}

/// Whether the pod's going was begun: by drain-lock's own drain of the node, or by an act of ours. The budget's record tells of an
/// override also after a change of leader, the memory of an eviction only until then.
pub(in super::super) fn has_begun(pod: &PodView, evidence: &Evidence<'_>) -> bool {
    let is_overridden_for = |last: &LastOverride| last.uid == pod.uid.as_str();
    let mut overridden = evidence
        .budgets
        .iter()
        .filter_map(|budget| budget.last_override.as_ref());
    evidence.planned.is_some_and(|planned| planned.ignores_windows)
        || evidence.memory.asked_at(pod).is_some()
        || overridden.any(is_overridden_for)
}
