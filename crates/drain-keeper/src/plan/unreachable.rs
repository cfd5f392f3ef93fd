//! Pods on a node that is not Ready: nobody can say whether their processes have ended, and a second copy could do harm.

use nodeward_core::node::NodeView;
use nodeward_core::pod::PodView;
use nodeward_core::predicate::must_not_run_twice;
use nodeward_core::strategy::Remedy;

use crate::policy::Policy;

/// Whether the remedy would make the API server forget the pod while it may still run, and two copies could do harm.
pub fn could_run_twice(node: &NodeView, pod: &PodView, remedy: Remedy, policy: &Policy) -> bool {
    let is_surely_off = node.is_out_of_service() || policy.force_on_unreachable;
    !node.ready
        && !is_surely_off
        && must_not_run_twice(pod)
        && !pod.is_finished()
        && forgets_at_once(pod, remedy, policy)
}

/// Whether the API server forgets the pod with this remedy without waiting for the kubelet: a grace of 0 does that, even
/// one that the pod asked for itself, and so does the end of the last finalizer after such a delete.
fn forgets_at_once(pod: &PodView, remedy: Remedy, policy: &Policy) -> bool {
    match remedy {
        Remedy::DeleteNow => true,
        Remedy::Evict | Remedy::EvictOrDelete => pod.own_grace.is_zero(),
        Remedy::RemoveFinalizers => {
            let stays = pod
                .finalizers
                .iter()
                .any(|finalizer| policy.protected_finalizers.contains(finalizer));
            !stays && pod.deletion.as_ref().is_some_and(|deletion| deletion.grace.is_zero())
        }
    }
}
