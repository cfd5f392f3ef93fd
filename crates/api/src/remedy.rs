//! What a person does about a reason: one sentence each, the gist of its section in the docs. It names nothing, so that
//! whoever shows it adds the names and commands that it has.

use crate::reason::{BlockerReason, GateReason, LockReason};

impl BlockerReason {
    /// What a person does about a pod that blocks its node's drain.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::AwaitingEviction => "wait for whoever drains the node, or evict the pod",
            Self::BudgetExhausted => {
                "bring the budget's other pods back to Ready, or give the workload one more replica than its budget demands"
            }
            Self::SeveralPDBs => "narrow the selectors of the budgets until one of them selects the pod",
            Self::BudgetNeverForced => {
                "change the workload so that its budget allows a disruption, or move the pod by hand"
            }
            Self::CephBudget => {
                "see what Ceph waits for (ceph status): its operator opens the budget when the data is safe"
            }
            Self::CephDaemon => "let the drainer evict it; if it is stuck, ask Ceph before you delete it by hand",
            Self::BudgetHeld => "wait for the holder, or talk to it: kubectl nodeward locks names it",
            Self::AwaitsClaim => "see what the node's drain waits for: kubectl nodeward why node names it",
            Self::HoldsUnknown => {
                "let drain-keeper read NodeDrains, DrainLedgers and DisruptionHolds, as the chart does"
            }
            Self::BudgetInUse => "find out why the replacement of the pod that was forced is not Ready",
            Self::WaitsForWindow => "wait for the window, or move the pod by hand",
            Self::Surging => "wait for the new pod; if it does not become Ready, repair it or undo the rollout",
            Self::Terminating => "wait for the end of its grace period",
            Self::FinalizerStuck => "repair the controller that owns the finalizer",
            Self::ProtectedFinalizer => {
                "repair the finalizer's controller (the Job controller, the garbage collector): drain-keeper removes none of these"
            }
            Self::StuckTerminating => "check the kubelet and the container runtime of the node",
            Self::NodeUnreachable => {
                "make sure that the machine is off, then taint the node node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
            }
            Self::StillRunning => {
                "check the kubelet and the container runtime; if they cannot be repaired, power the machine off and taint the \
                 node node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
            }
            Self::Unmanaged => "delete the pod by hand if it is not needed, or set unmanagedPods: delete",
            Self::WaitCompleted => "wait until it has finished, or ask its owner",
            Self::UnknownOptOut => "correct or remove its opt-out",
            Self::ToleratesCordon => {
                "remove the toleration of node.kubernetes.io/unschedulable from its template, or make it a DaemonSet"
            }
            Self::NamespaceIgnored => "move the pod by hand, or change ignoredNamespacePatterns",
            Self::NamespaceTerminating => "see in the namespace's conditions why it is still there",
            Self::LimitReached => "wait: the drain goes on when fewer pods are being forced",
            Self::Denied => "read the error: grant drain-keeper's role what it names, or ask the owner of the webhook",
            Self::Throttled => "read who asks to wait: the API server's flow control, or a webhook",
            Self::Retrying => "read the error: often a webhook or an API server that fails",
        }
    }
}

impl GateReason {
    /// What a person does about a node that drain-keeper does not act on, or acts on.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::ControlPlane => "drain it by hand: drain-keeper never acts on control-plane nodes",
            Self::NotSelected => "change nodeSelector in drain-keeper's configuration if it is to act on this node",
            Self::NotCordoned => "cordon the node if it is to be drained",
            Self::CordonTaintMissing => "check kube-controller-manager, which adds the taint within seconds",
            Self::NotUpgrading => {
                "check upgradeSignal in drain-keeper's configuration if an upgrade concerns this node"
            }
            Self::UpgradeUnknown => "make the upgrade signal readable: nothing is forced until then",
            Self::NotDraining => {
                "set countsAsDrain in drain-keeper's configuration if something still drains the node, and leaves another mark"
            }
            Self::DrainUnknown => "make readable what marks the node as being drained: usually a right is missing",
            Self::WaitsForTurn => "wait for the node's turn in drain-lock: its waits stand still until then",
            Self::TurnUnknown => "make its NodeDrain readable: a newer version wrote it, or a right is missing",
            Self::UnderRemediation => "wait for the end of the remediation",
            Self::RemediationUnknown => "let drain-keeper read NodeHealthChecks, as the chart does",
            Self::ClockStarting => "wait a moment",
            Self::PodsSyncing => {
                "wait a moment; if it lasts, check that drain-keeper reaches the API server and may list pods"
            }
            Self::Open => "wait: drain-keeper times the drain",
        }
    }
}

impl LockReason {
    /// What a person does about a drain, or a pod of it, that has this reason.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::OptedOut => "leave the pod where it is, or evict it if it must go",
            Self::ToleratesCordon => "nothing, or remove the toleration from the pod's template",
            Self::LocalVolume | Self::Pinned => "nothing: the pod is down until its node is back",
            Self::NoRoom => "add nodes, or make room, if there should be room elsewhere",
            Self::Unschedulable => "see what the replacement lacks: kubectl describe pod",
            Self::WaitsForWindow => "wait for the window; in an emergency set ignoreWindows on its NodeDrain",
            Self::Queued | Self::NotPlanned | Self::AwaitsConfirmation => "wait: it goes on by itself",
            Self::WaitsForDisruptions | Self::Reserved => {
                "wait for the drain that has them, or find out why it does not end"
            }
            Self::AwaitsUncordon => "wait until the work on that node is done and it is uncordoned",
            Self::CircularWait => "uncordon the node that is named, so that its pods come back",
            Self::BudgetUnhealthy => "bring the budget's pods back to Ready",
            Self::CephClosed => "wait, or see to what is down: ceph status",
            Self::OwnerHold => "wait for the end of the hold, or talk to the budget's owner",
            Self::StatusBehind => "wait; if it lasts, check kube-controller-manager",
            Self::ReadFailed => "wait; if it lasts, check the API server and drain-lock's rights",
            Self::WriteRefused => "see which admission webhook, policy or missing right refuses drain-lock's write",
            Self::LedgerUnreadable => {
                "undo the last edit of the DrainLedger, or run the version of drain-lock that wrote it"
            }
            Self::LedgerFull => "wait until other drains have ended, and drain fewer nodes at once",
            Self::StaleTicket => "nothing: the eviction was refused",
            Self::ForgedTicket => "find out who sends evictions with drain-lock's ticket",
            Self::AwaitsDrainer => "find out why its drainer has stopped, or uncordon the node",
            Self::Surging => "wait for the new pod; if it does not become Ready, repair it or undo the rollout",
            Self::WaitCompleted => "wait until the pod has finished, or ask its owner",
            Self::AwaitingPods => "wait for the pods that are leaving",
            Self::StuckTerminating => "check the kubelet and the container runtime of the node",
            Self::FinalizerStuck => "repair the controller that owns the finalizer",
            Self::AwaitingReady => "wait; if it lasts, find out why its pods do not become Ready",
            Self::LeaseHeldByOther | Self::LeaseLost => "look at the program that has the node's lease",
            Self::UnderRemediation => "wait for the end of the remediation",
            Self::ControlPlaneBusy => "wait for the other control-plane node, or end its drain",
            Self::WaitsForNodeGroup => {
                "wait for the drains of the group's other nodes, or find out why they do not end"
            }
            Self::GroupUnhealthy => "repair or delete the nodes of the group that are not Ready",
            Self::BudgetNeverAllows => "add a replica to the workload, or let its budget allow a disruption",
            Self::SyncFailed => {
                "read the budget's condition DisruptionAllowed: usually its pods' owner has no scale subresource"
            }
            Self::SeveralPDBs => "narrow the selectors of the budgets until one of them selects the pod",
            Self::NeedExceedsBudget => {
                "spread the workload over more nodes, make room on other nodes, or let the budget allow more"
            }
            Self::TolerationTooShort => {
                "give its template tolerations of node.kubernetes.io/not-ready and unreachable without tolerationSeconds"
            }
            Self::UnmanagedPodKept => "delete the pod, or consent to its eviction (--force)",
            Self::EmptyDirDataKept => "delete the pod, or consent to the loss of its data (--delete-emptydir-data)",
            Self::UnknownOptOut => "correct or remove its opt-out",
            Self::OptOutIgnored => "have the other drainer leave the pod out, or set auto.refuseOptOut: true",
            Self::NodeGone => "delete the NodeDrain if it was a mistake",
            Self::NodeReplaced => "delete the NodeDrain, and request the drain of the new node",
            Self::CordonTaken => "uncordon the node if whoever cordoned it does not need that any more",
            Self::CordonShared => "wait, or uncordon the node if nobody drains it any more",
            Self::InvalidDrain => "correct the field of the NodeDrain that the message names",
            Self::Granted | Self::Rebooted | Self::Released | Self::Drained | Self::PodEvicted => "nothing",
            Self::ConsentGiven => "change fleetLock.emptyDirData or fleetLock.unmanagedPods if that is not meant",
            Self::DrainRequested => "uncordon the node if nobody means to drain it",
            Self::GrantLost | Self::Requeued | Self::DeadlinePassed => {
                "find out what it waits for if this happens often"
            }
            Self::QuorumLost => {
                "end the drain now if the API server must stay reachable, or add control-plane nodes before the next one"
            }
            Self::Suspect => {
                "bring the node back and uncordon it; release the drain by force only if its pods will not come back"
            }
            Self::AdminRelease | Self::Uncordoned | Self::Cancelled | Self::Abandoned => {
                "request the drain again if the node is still to go down"
            }
            Self::HoldOverridden => "talk to the administrator; a new hold on the budget counts again",
            Self::BudgetBypassed => "drain without --disable-eviction, and bring the budget's pods back to Ready",
            Self::HoldExpired => "remove the annotation, or write it again if the budget is still to be held",
            Self::EvictionFailed => "read the error: often a missing right, or a webhook that refuses evictions",
            Self::Other => "read the message, and update the program that does not know the reason",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It stands behind "to do:" and before other clauses.
    #[test]
    fn remedies_are_single_clauses_without_names() {
        let remedies = BlockerReason::ALL.iter().map(|reason| reason.remedy());
        let remedies = remedies.chain(GateReason::ALL.iter().map(|reason| reason.remedy()));
        for remedy in remedies.chain(LockReason::ALL.iter().map(|reason| reason.remedy())) {
            assert!(remedy.starts_with(|c: char| c.is_ascii_lowercase()), "{remedy}");
            assert!(!remedy.ends_with('.') && !remedy.contains("  "), "{remedy}");
            for placeholder in ["NODE", "NAME", "TEXT"] {
                assert!(!remedy.contains(placeholder), "{remedy}");
            }
        }
    }
}
