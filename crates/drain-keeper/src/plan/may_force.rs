//! Whether a pod may be forced off its node. [`may_force`] is the one decision, in one list of conditions.

mod opt_out;
mod window;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_api::drain_clock::DrainClock;
use nodeward_api::reason::BlockerReason;
use nodeward_core::budget::{BudgetView, ForceDrain};
use nodeward_core::deadline::{is_due, saturating_add, to_the_second};
use nodeward_core::hold::{Holder, Holds};
use nodeward_core::node::NodeView;
use nodeward_core::opt_out::OptOut;
use nodeward_core::pod::PodView;
use nodeward_core::predicate::{belongs_to_node, is_ceph_daemon, must_not_run_twice};
use nodeward_core::signal::DrainRules;
use nodeward_core::strategy::{Remedy, Strategy, StrategyName, Wait, Waits, removable_finalizers};
use nodeward_core::surge::Workloads;
use nodeward_core::verdict::Next;

use crate::gate::cordon_taint;
use crate::planned_pods::{PlannedPods, UnderClaim};
use crate::policy::{OverrideBudgets, Policy, UnmanagedPods};
use crate::snapshot::Memory;

use self::opt_out::in_force;
pub use self::opt_out::{end_of_opt_outs, hold_against, ignored_opt_outs};
pub(super) use self::window::{has_begun, may_begin_at};

/// What the decision rests on besides the pod: from the caches, or as it was just read.
#[derive(Clone, Copy)]
pub struct Evidence<'a> {
    /// The pod's node.
    pub node: &'a NodeView,
    pub clock: &'a DrainClock,
    /// The budgets that select the pod.
    pub budgets: &'a [Arc<BudgetView>],
    pub holds: &'a Holds,
    /// What drain-lock has planned for the pods of the node, while it drains that.
    pub planned: Option<&'a PlannedPods>,
    /// Which pods its drainer leaves alone.
    pub drain_rules: &'a DrainRules,
    /// Namespaces in which the configuration honours no opt-out.
    pub without_opt_outs: &'a BTreeSet<Arc<str>>,
    /// Namespaces in which Deployments may be told to roll; `None`: all.
    pub surge_namespaces: Option<&'a BTreeSet<Arc<str>>>,
    /// Of the pod's namespace, where they are known.
    pub workloads: Option<&'a Workloads>,
    /// Of the pod's node.
    pub waits: Waits,
    /// What this process remembers.
    pub memory: &'a Memory,
    /// The rules.
    pub policy: &'a Policy,
}

/// Whether a pod may be forced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// No drain waits for it.
    NoBlocker,
    /// The drain waits for it, and it may not be forced now.
    Blocked {
        /// Why it is still there.
        reason: BlockerReason,
        /// What happens to it next.
        next: Next,
        /// More on it.
        detail: String,
        /// When the strategy that fits it falls or fell due, whether or not it may be carried out.
        last_due: Option<Timestamp>,
    },
    /// It may be forced now.
    Due {
        /// Why it is still there.
        reason: BlockerReason,
        /// The strategy that has fallen due.
        strategy: Strategy,
        /// When.
        due: Timestamp,
    },
}

impl Decision {
    /// The same, with more on it.
    #[must_use]
    pub(super) fn with_detail(mut self, more: &str) -> Self {
        if let Self::Blocked { detail, .. } = &mut self {
            let between = if detail.is_empty() { "" } else { "; " };
            *detail = format!("{detail}{between}{more}");
        }
        self
    }
}

/// Whether the pod may be forced now, by these conditions in this order:
///
/// a. a drain waits for it: it neither belongs to the node, nor has ended;
/// b. it has not opted out, with `skip`, `wait-completed` or a word that nobody knows, as far as the configuration honours it;
/// c. its namespace is not ignored;
/// d. it was not created after the drain's start with a toleration of the cordon;
/// e. no budget that selects it forbids force, and it is no daemon of Ceph, whose data only Ceph can judge;
/// f. a controller will replace it, or it terminates already, or pods without a controller are deleted too;
/// g. drain strategies are enabled for its node;
/// h. a strategy fits it as it stands;
/// i. no second copy of it could run meanwhile, be it that its node cannot be asked, or that the kubelet has not confirmed its end;
/// j. drain-lock has granted its node what it needs, if it is to go down under the claim of the node;
/// k. nobody holds a budget that selects it, its owner as far as the configuration honours it;
/// l. its budgets let it go, or the configuration lets them be overridden;
/// m. the strategy's wait has passed, and the pod's own grace;
/// n. a maintenance window is open, unless the pod's going was begun in one.
///
/// Called twice: by the plan (`plan.rs`), with what the caches show, and right before a write that the server does not judge
/// by itself (`execute/preconditions.rs`), with what was read by quorum.
pub fn may_force(pod: &PodView, evidence: &Evidence<'_>, now: Timestamp) -> Decision {
    // a: its going would bring the drain no further. DaemonSet and mirror pods come back at once, the others let it end.
    if is_no_blocker(pod, evidence.node) {
        return Decision::NoBlocker;
    }
    // b: its owner said so, and only the administrator's limits outweigh that. A word that nobody knows may have meant the same.
    let Some(mark) = in_force(pod, evidence, now) else {
        return judge(pod, evidence, now);
    };
    let reason = match mark.opt_out {
        OptOut::Skip => return Decision::NoBlocker,
        OptOut::WaitCompleted => BlockerReason::WaitCompleted,
        OptOut::Unknown => BlockerReason::UnknownOptOut,
    };
    // Where it ends by itself, what comes then is said from the start.
    let (next, last_due) = match mark.until.map(|until| (until, judge(pod, evidence, until))) {
        Some((until, Decision::Due { strategy, .. })) => {
            let strategy = strategy.name;
            (Next::At { strategy, due: until }, Some(until))
        }
        Some((_, Decision::Blocked { next, last_due, .. })) => (next, last_due),
        Some((_, Decision::NoBlocker)) | None => (Next::Nothing, None),
    };
    Decision::Blocked {
        reason,
        next,
        detail: mark.detail,
        last_due,
    }
}

/// Conditions c to n.
fn judge(pod: &PodView, evidence: &Evidence<'_>, now: Timestamp) -> Decision {
    let Evidence { node, policy, .. } = *evidence;
    let drain = policy.drain_for(node);
    let nothing = |reason, detail: &str| Decision::Blocked {
        reason,
        next: Next::Nothing,
        detail: detail.to_owned(),
        last_due: None,
    };
    // c: the administrator keeps force away from all that is in it.
    if let Some(pattern) = drain.ignored_namespaces.first_match(&pod.key.namespace) {
        return nothing(BlockerReason::NamespaceIgnored, &format!("pattern {pattern}"));
    }
    // d: it was put on a node that was cordoned by then, and would only come again.
    if evidence.clock.start < pod.created && cordon_taint(node, policy).is_some_and(|taint| pod.tolerates(taint)) {
        return nothing(BlockerReason::ToleratesCordon, "");
    }
    // e: such a budget guards data, and a delete goes around it.
    let forbidding = evidence.budgets.iter();
    let forbidding = forbidding.filter_map(|budget| Some((budget.forbids_force()?, budget)));
    if let Some((reason, budget)) = forbidding.min_by_key(|(reason, _)| *reason) {
        let detail = match &budget.force_drain {
            ForceDrain::Unknown(value) => {
                format!("its label nodeward.dev/force-drain: {value} is not known, and counts as never")
            }
            ForceDrain::Unlabelled | ForceDrain::Allowed | ForceDrain::Never => String::new(),
        };
        return nothing(reason, &detail);
    }
    if is_ceph_daemon(pod) {
        return nothing(
            BlockerReason::CephDaemon,
            "delete it by hand once ceph osd ok-to-stop agrees",
        );
    }
    // f: nobody creates it again, so to force it is to lose it. One that terminates is lost already.
    if pod.owner.is_none() && pod.deletion.is_none() && policy.unmanaged_pods == UnmanagedPods::Keep {
        let detail = "delete it by hand, or set unmanagedPods: delete";
        return nothing(BlockerReason::Unmanaged, detail);
    }
    let is_covered = is_covered(pod, evidence);
    let reason = natural_reason(pod, is_covered, evidence, now);
    // g: nothing is done, and what blocks the drain is still said.
    if drain.disable_strategies {
        return nothing(reason, "drain strategies are disabled");
    }
    // h: only protected finalizers are left, and those are not ours to remove.
    let Some(strategy) = Strategy::for_pod(pod, is_covered, &policy.protected_finalizers) else {
        return Decision::Blocked {
            reason,
            next: Next::Nothing,
            detail: String::new(),
            last_due: Some(eviction_due(pod, is_covered, evidence)),
        };
    };
    // Where no budget of it may be overridden, it is evicted once they let it go, and only then.
    let is_left_to_budgets = strategy.remedy == Remedy::EvictOrDelete && !policy.may_override(evidence.budgets);
    let strategy = if is_left_to_budgets {
        Strategy {
            name: StrategyName::Delete,
            remedy: Remedy::Evict,
            ..strategy
        }
    } else {
        strategy
    };
    let due = due(pod, strategy, evidence);
    let blocked = |reason, next, detail: String| Decision::Blocked {
        reason,
        next,
        detail,
        last_due: Some(due),
    };
    // i: only a remedy that makes the API server forget the pod is withheld; a gentler one goes on. This comes before the
    // deadline, which would promise what is not done.
    if could_run_twice(node, pod, strategy.remedy, policy) {
        let detail = "the node is not Ready; taint it node.kubernetes.io/out-of-service once it is surely off";
        return blocked(BlockerReason::NodeUnreachable, Next::Nothing, detail.to_owned());
    }
    if is_unconfirmed(node, pod, strategy.remedy, policy) {
        // Until its grace is over the kubelet is not late.
        let is_in_its_grace = pod
            .deletion
            .as_ref()
            .is_some_and(|deletion| !deletion.is_beyond_grace(now));
        let (reason, detail) = if is_in_its_grace {
            (reason, "its node's kubelet has to confirm its end")
        } else {
            let detail = "restart the kubelet or the container runtime, or power the node off and taint it node.kubernetes.io/out-of-service";
            (BlockerReason::StillRunning, detail)
        };
        return blocked(reason, Next::Nothing, detail.to_owned());
    }
    // j: it stays down until its node is back, and drain-lock sees to it that others of its budget do not go down meanwhile.
    if let Some(why) = awaited_claim(pod, evidence) {
        let detail = match why {
            UnderClaim::Planned => "",
            UnderClaim::Unknown => "its NodeDrain does not list all pods that go down under the claim",
        };
        let next = Next::HeldBack {
            strategy: strategy.name,
            due,
            until: None,
        };
        return blocked(BlockerReason::AwaitsClaim, next, detail.to_owned());
    }
    // k: a pod of the budget is down, or its owner expects one to be: one more may be one too many. This comes before the
    // deadline, so that the owner learns of it in time.
    if let Some((hold, until)) = hold_against(pod, evidence, now) {
        let reason = match hold.holder {
            Holder::Node { .. } | Holder::Reserved { .. } | Holder::Owner(_) => BlockerReason::BudgetHeld,
            Holder::Unknown(_) => BlockerReason::HoldsUnknown,
        };
        let next = Next::HeldBack {
            strategy: strategy.name,
            due,
            until: until.map(|until| may_begin_at(until.max(due), pod, evidence)),
        };
        return blocked(reason, next, hold.to_string());
    }
    // l: what is left is to override a budget, which the administrator does not want.
    if is_left_to_budgets && reason != BlockerReason::AwaitingEviction {
        let detail = match policy.override_budgets {
            OverrideBudgets::Labelled => {
                "overrideBudgets is labelled, and not all of its budgets have the label nodeward.dev/force-drain: allowed"
            }
            OverrideBudgets::All | OverrideBudgets::Never => "overrideBudgets is never",
        };
        let next = Next::HeldBack {
            strategy: strategy.name,
            due,
            until: None,
        };
        return blocked(reason, next, detail.to_owned());
    }
    // m: the pod may still go by itself.
    let opens = may_begin_at(due.max(now), pod, evidence);
    if !is_due(due, now) {
        let detail = if due < opens {
            format!("no maintenance window is open at {}", to_the_second(due))
        } else {
            String::new()
        };
        let next = Next::At {
            strategy: strategy.name,
            due: opens,
        };
        return blocked(reason, next, detail);
    }
    // n: its drain goes on by itself, and what is begun now was not to be.
    if now < opens {
        let next = Next::HeldBack {
            strategy: strategy.name,
            due,
            until: Some(opens),
        };
        return blocked(BlockerReason::WaitsForWindow, next, String::new());
    }
    Decision::Due { reason, strategy, due }
}

/// Why the pod waits for the claim of its node, if it does: it is to go down under that, and a budget that counts it has not
/// been granted to the node for this pod. Not one that terminates, nor one that the drain has left out of its need.
pub(super) fn awaited_claim(pod: &PodView, evidence: &Evidence<'_>) -> Option<UnderClaim> {
    let Evidence {
        node, budgets, holds, ..
    } = *evidence;
    let planned = evidence.planned?;
    if pod.deletion.is_some() || !is_covered(pod, evidence) {
        return None;
    }
    let is_granted = |budget: &Arc<BudgetView>| {
        let is_counted = pod.ready || !budget.always_lets_unready_go();
        !is_counted || holds.is_granted(&budget.key, &node.uid, &pod.uid)
    };
    let is_granted = !budgets.is_empty() && budgets.iter().all(is_granted);
    planned.under_claim(pod).filter(|_| !is_granted)
}

/// Whether no drain waits for the pod, whatever its owner asked.
fn is_no_blocker(pod: &PodView, node: &NodeView) -> bool {
    let has_ended = pod.is_finished() && pod.deletion.is_none();
    belongs_to_node(pod) || is_upgraders_own(pod, node) || has_ended
}

/// Whether a budget selects the pod. A refusal tells of one that the cache does not show yet.
fn is_covered(pod: &PodView, evidence: &Evidence<'_>) -> bool {
    !evidence.budgets.is_empty() || evidence.memory.was_refused_by_budget(pod)
}

/// Why the pod is still there, whatever is done about it.
fn natural_reason(pod: &PodView, is_covered: bool, evidence: &Evidence<'_>, now: Timestamp) -> BlockerReason {
    match &pod.deletion {
        Some(deletion) if !deletion.is_beyond_grace(now) => BlockerReason::Terminating,
        Some(_) if pod.finalizers.is_empty() => BlockerReason::StuckTerminating,
        Some(_) if removable_finalizers(pod, &evidence.policy.protected_finalizers).is_empty() => {
            BlockerReason::ProtectedFinalizer
        }
        Some(_) => BlockerReason::FinalizerStuck,
        None if pod.skips_budgets() => BlockerReason::AwaitingEviction,
        None => match evidence.budgets {
            [] if is_covered => BlockerReason::BudgetExhausted,
            [] => BlockerReason::AwaitingEviction,
            [budget] if budget.allowance(pod).is_available() => BlockerReason::AwaitingEviction,
            [_] => BlockerReason::BudgetExhausted,
            _ => BlockerReason::SeveralPDBs,
        },
    }
}

/// When the pod was to be evicted: the wait that applied to it before it terminated.
fn eviction_due(pod: &PodView, is_covered: bool, evidence: &Evidence<'_>) -> Timestamp {
    Wait::of(is_covered).ends(pod, evidence.clock.start, &evidence.waits)
}

/// When the strategy falls due. The grace of a pod that we asked to go is not over before it has passed by our clock, too.
fn due(pod: &PodView, strategy: Strategy, evidence: &Evidence<'_>) -> Timestamp {
    let due = strategy.due(pod, evidence.clock.start, &evidence.waits);
    match (evidence.memory.asked_at(pod), &pod.deletion) {
        (Some(asked), Some(deletion)) => {
            let beyond_grace = saturating_add(asked, deletion.grace);
            due.max(saturating_add(beyond_grace, evidence.waits.force_after))
        }
        _ => due,
    }
}

/// Whether it is a pod by which an upgrader works on the node: it ends with the work, and forced it would break it off.
/// system-upgrade-controller labels its Jobs' pods; HyperShift's in-place upgrader names its daemon's pod after the node, and
/// the namespace after the NodePool.
fn is_upgraders_own(pod: &PodView, node: &NodeView) -> bool {
    let is_daemon = pod.owner.is_none()
        && pod.key.namespace.ends_with("-upgrade")
        && pod.key.name.strip_prefix("machine-config-daemon-") == Some(node.name.as_str());
    pod.labels.get("upgrade.cattle.io/controller").is_some() || is_daemon
}

/// Whether the remedy would make the API server forget the pod while it may still run on a node that nobody can ask, and two
/// copies could do harm.
fn could_run_twice(node: &NodeView, pod: &PodView, remedy: Remedy, policy: &Policy) -> bool {
    let is_surely_off = node.is_out_of_service() || policy.force_on_unreachable;
    !node.ready
        && !is_surely_off
        && must_not_run_twice(pod)
        && !pod.is_finished()
        && forgets_at_once(pod, remedy, policy)
}

/// Whether the API server would forget the pod, which was asked to go, although the kubelet of its Ready node has not confirmed
/// that its containers have ended, and two copies could do harm.
fn is_unconfirmed(node: &NodeView, pod: &PodView, remedy: Remedy, policy: &Policy) -> bool {
    let is_kept = node.ready && !node.is_out_of_service() && !pod.is_finished();
    let was_asked = matches!(remedy, Remedy::DeleteNow | Remedy::RemoveFinalizers);
    is_kept && was_asked && must_not_run_twice(pod) && forgets_at_once(pod, remedy, policy)
}

/// Whether the API server forgets the pod with this remedy without waiting for the kubelet: a grace of 0 does that, even
/// one that the pod asked for itself, and so does the end of the last finalizer after such a delete.
fn forgets_at_once(pod: &PodView, remedy: Remedy, policy: &Policy) -> bool {
    match remedy {
        Remedy::Restart | Remedy::UndoRestart => false,
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
