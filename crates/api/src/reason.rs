//! Reasons. One enum variant is the Event reason, the condition reason, the metric label and the command line's text, so
//! that a person who reads one finds the others by searching for the same word.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident => $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[doc = $doc])+ $variant,)+ }

        impl $name {
            /// Every reason, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The reason's one spelling.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }

            /// What it means, for a person: completes "pod x …" or "the node …".
            pub const fn explanation(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

/// The type of an Event: whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// As it should be.
    Normal,
    /// Somebody should look.
    Warning,
}

reasons! {
    /// Why a pod still keeps its node's drain from ending.
    BlockerReason {
        /// Nothing stands in the way but the drainer's own pace.
        AwaitingEviction => "waits for its eviction",
        /// Its budget allows no disruption now.
        BudgetExhausted => "is covered by a budget that allows no disruption",
        /// Several budgets select it: the eviction API answers 500 every time.
        SeveralPDBs => "is selected by several budgets, which the eviction API refuses",
        /// Its budget is labelled `nodeward.dev/force-drain: never`.
        BudgetNeverForced => "is covered by a budget that must never be overridden",
        /// Its budget guards Ceph's data.
        CephBudget => "is covered by a Ceph budget, which is never overridden",
        /// It is a daemon of Ceph, under a budget or not.
        CephDaemon => "is a daemon of Ceph, which is never forced",
        /// Another node's claim or an owner's hold has its budget.
        BudgetHeld => "is covered by a budget that is held",
        /// It stays down until its node is back, and drain-lock has not granted its node the disruptions for it yet.
        AwaitsClaim => "goes down with its node, under a claim that drain-lock has not granted yet",
        /// It cannot be told whether anybody has its budget.
        HoldsUnknown => "is covered by a budget that may be held",
        /// Another pod of its budget was forced and is not replaced yet.
        BudgetInUse => "waits for the replacement of another pod of its budget that was forced",
        /// It is to go, and no maintenance window is open.
        WaitsForWindow => "waits for a maintenance window",
        /// Its Deployment rolls so that it moves.
        Surging => "is being replaced by a rollout of its Deployment",
        /// It terminates and its grace has not passed.
        Terminating => "terminates within its grace period",
        /// It terminates beyond its grace, and finalizers keep it.
        FinalizerStuck => "is kept by finalizers beyond its grace period",
        /// It terminates beyond its grace, and only protected finalizers keep it.
        ProtectedFinalizer => "is kept by finalizers that are never removed",
        /// It terminates beyond its grace without finalizers.
        StuckTerminating => "is stuck terminating beyond its grace period",
        /// Its node is not Ready: two copies could run if it were forced.
        NodeUnreachable => "may still run on the unreachable node",
        /// It must not run twice, and the kubelet of its Ready node has not confirmed that it ended.
        StillRunning => "may still run: the kubelet has not confirmed its end",
        /// No controller would make it again.
        Unmanaged => "has no controller that would replace it",
        /// It asked to be waited for.
        WaitCompleted => "asked to finish before the drain (wait-completed)",
        /// Its opt-out has a value that Nodeward does not know.
        UnknownOptOut => "has an opt-out that cannot be read, and is waited for",
        /// It came after the drain began, tolerating the cordon.
        ToleratesCordon => "was created on the cordoned node, whose taint it tolerates",
        /// Its namespace is ignored by the configuration.
        NamespaceIgnored => "is in an ignored namespace",
        /// Its namespace is being deleted; the namespace controller removes it.
        NamespaceTerminating => "is in a namespace that is being deleted",
        /// The configured limits of forced pods are reached.
        LimitReached => "waits because the limits of forced pods are reached",
        /// The API server denied the last attempt: a right is missing, or a webhook refuses.
        Denied => "may not be forced: a right is missing, or a webhook refuses",
        /// The API server, or a webhook, asked to come back later.
        Throttled => "is tried again at the time that the API server or a webhook named",
        /// The last attempt failed; it is tried again after a delay.
        Retrying => "is tried again after an error",
    }
}

reasons! {
    /// Why a node is, or is not, drain-keeper's to act on.
    GateReason {
        /// A control-plane node.
        ControlPlane => "is a control-plane node",
        /// The configured selector leaves it out.
        NotSelected => "is left out by nodeSelector",
        /// It is not cordoned.
        NotCordoned => "is not cordoned",
        /// `spec.unschedulable` is set, and the cordon's taint is not there yet.
        CordonTaintMissing => "is unschedulable but does not carry the cordon's taint yet",
        /// No upgrade is on.
        NotUpgrading => "is not part of a running upgrade",
        /// Whether an upgrade is on cannot be told.
        UpgradeUnknown => "may be part of an upgrade, but the signal cannot be read",
        /// It is cordoned, and nothing says that it is being drained.
        NotDraining => "is cordoned, but nothing marks it as being drained",
        /// Whether it is being drained cannot be told.
        DrainUnknown => "is cordoned, and what would mark it as being drained cannot be read",
        /// Its NodeDrain has not begun to drain.
        WaitsForTurn => "waits for its turn in drain-lock",
        /// Whether it has to wait for its turn cannot be told.
        TurnUnknown => "may have to wait for its turn, but its NodeDrain cannot be read",
        /// A remediation of it is open.
        UnderRemediation => "is being remediated",
        /// Whether it is being remediated cannot be told.
        RemediationUnknown => "may be under remediation, but that cannot be read",
        /// Its drain clock is being written.
        ClockStarting => "has just begun to drain",
        /// Its pods have not been listed yet.
        PodsSyncing => "has pods that are still being listed",
        /// All gates hold.
        Open => "is being drained",
    }
}

impl GateReason {
    /// Whether the gate is closed only because something is not known or not written yet: it should open or close within
    /// seconds.
    pub const fn is_undecided(self) -> bool {
        matches!(
            self,
            Self::CordonTaintMissing
                | Self::UpgradeUnknown
                | Self::DrainUnknown
                | Self::TurnUnknown
                | Self::RemediationUnknown
                | Self::ClockStarting
                | Self::PodsSyncing
        )
    }
}

reasons! {
    /// What was done to a pod.
    ActReason {
        /// The eviction API accepted its eviction.
        Evicted => "was evicted",
        /// Its budget refused, and it was deleted with its own grace.
        BudgetOverridden => "was deleted over its budget's refusal",
        /// Its finalizers were removed.
        FinalizersRemoved => "had its finalizers removed",
        /// It was deleted without grace.
        DeletedWithoutGrace => "was deleted without grace",
        /// Its Deployment was told to roll.
        SurgeBegun => "is moved by a rollout of its Deployment",
    }
}

impl ActReason {
    /// The type of its Event.
    pub const fn severity(self) -> Severity {
        match self {
            Self::Evicted | Self::SurgeBegun => Severity::Normal,
            Self::BudgetOverridden | Self::FinalizersRemoved | Self::DeletedWithoutGrace => Severity::Warning,
        }
    }
}

reasons! {
    /// Why a pod may not move by a rollout of its Deployment.
    SurgeObstacle {
        /// No ReplicaSet of a Deployment controls it.
        NoDeployment => "is not a pod of a Deployment",
        /// It, its Deployment or its namespace was left out.
        SurgeOptedOut => "is left out by nodeward.dev/surge or surge.namespaces",
        /// Not exactly one budget selects it.
        NotOneBudget => "is selected by several budgets",
        /// Its budget guards Ceph's data.
        CephBudget => "is covered by a Ceph budget",
        /// Its budget selects pods of others, which could be evicted meanwhile.
        SharedBudget => "is covered by a budget that selects other pods, too",
        /// Its Deployment does not have one replica.
        NotOneReplica => "is of a Deployment that does not have one replica",
        /// The rollout would not start the new pod first.
        NotNewFirst => "is of a Deployment whose rollout does not start a new pod before it stops the old one",
        /// Another controller manages its Deployment, and would undo the restart.
        ManagedDeployment => "is of a Deployment that another controller manages",
        /// Its Deployment is paused.
        RolloutPaused => "is of a Deployment that is paused",
        /// Its Deployment is being deleted.
        DeploymentDeleting => "is of a Deployment that is being deleted",
        /// The last rollout of its Deployment is not complete.
        RolloutIncomplete => "is of a Deployment whose rollout is not complete",
        /// Nothing tells that a new pod serves.
        NoReadiness => "is of a Deployment with neither readiness probe nor minReadySeconds",
        /// The new pod would come to the same node.
        ToleratesCordon => "is of a Deployment that tolerates the cordon",
        /// The new pod could run on no other node.
        NamesNode => "is of a Deployment that names its node",
        /// The new pod could not mount what the old one mounts.
        UnsharedVolume => "has a volume that two pods on two nodes may not mount",
        /// Its Deployment was restarted less than `overrideSpacing` ago.
        RestartedLately => "is of a Deployment that was restarted not long ago",
    }
}

reasons! {
    /// What became of a pod's surge.
    SurgeOutcome {
        /// The new pod was available, and it went with the rollout.
        SurgeComplete => "has moved by a rollout of its Deployment",
        /// No new pod was available in time, or none could be created.
        SurgeStuck => "has not moved: the rollout of its Deployment got stuck",
        /// The restart was undone before.
        SurgeReverted => "has not moved: the restart of its Deployment was undone",
        /// Its Deployment was changed before.
        SurgeOvertaken => "has not moved: its Deployment was changed during the rollout",
    }
}

impl SurgeOutcome {
    /// The type of its Event.
    pub const fn severity(self) -> Severity {
        match self {
            Self::SurgeComplete => Severity::Normal,
            Self::SurgeStuck | Self::SurgeReverted | Self::SurgeOvertaken => Severity::Warning,
        }
    }
}

reasons! {
    /// What became of a drain.
    DrainReason {
        /// Everything that may be done has been, and pods still block it.
        DrainFailed => "has failed to drain",
        /// Something that the drain depends on could not be read as it is meant.
        Unreadable => "depends on something that cannot be read",
        /// Another drain-keeper has written its clock.
        SecondWriter => "is handled by two drain-keepers",
        /// A pod, or the owner of its budget, opted out of it, and the configuration does not honour that.
        OptOutIgnored => "forces a pod although its owner opted out",
    }
}

reasons! {
    /// Why a drain waits, why a pod is treated as it is, and what became of both, in drain-lock.
    LockReason {
        // Why a pod needs disruptions of its budgets.
        /// Its owner asked for it to stay on the node.
        OptedOut => "asked to stay on the node through its reboot",
        /// It was put on the node in the drain, by its toleration of the cordon: evicted, its successor would be there again.
        ToleratesCordon => "was created in the drain of the node, whose cordon it tolerates",
        /// It has a volume that no other node can give it.
        LocalVolume => "has a volume that exists on this node only",
        /// Its selectors, affinity or tolerations fit this node alone.
        Pinned => "fits no other node",
        /// Other nodes would fit it, and have no room for it.
        NoRoom => "finds no room on another node",
        /// A replacement of it has found no node.
        Unschedulable => "has a replacement that finds no node",

        // Why a drain waits, or an eviction is refused.
        /// It has not begun, and no maintenance window is open.
        WaitsForWindow => "waits for a maintenance window",
        /// Older drains come first, or its turn has just begun.
        Queued => "waits for its turn",
        /// What becomes of its pods has not been worked out yet.
        NotPlanned => "is not planned yet",
        /// Another drain holds the disruptions.
        WaitsForDisruptions => "waits for disruptions of a budget that another drain holds",
        /// An older drain waits for the disruptions.
        Reserved => "waits for disruptions of a budget that are kept for an older drain",
        /// The pods that it waits for come back only once somebody uncordons a node: that of a drain which waits in turn for this
        /// one, or one that is drained and stays cordoned.
        CircularWait => "waits for pods that come back only once a node is uncordoned",
        /// The same, where that node has not been drained, or cordoned without a drain, for longer than an outage may take.
        AwaitsUncordon => "waits for pods that come back with a node which is out of service",
        /// Pods of the budget are not healthy.
        BudgetUnhealthy => "waits for a budget whose pods are not healthy",
        /// Ceph's operator has closed the budget, and opens it again by itself.
        CephClosed => "waits for a budget that Ceph's operator has closed, until its placement groups are clean again",
        /// An owner holds the budget.
        OwnerHold => "waits for a budget that its owner holds",
        /// The disruption controller has yet to see the newest change.
        StatusBehind => "waits for a budget whose status is behind",
        /// What its next step rests on could not be read, or was not so; it is read again after a delay.
        ReadFailed => "waits for a read of what its next step rests on",
        /// An admission webhook or policy, or a missing right, refuses a write of its next step.
        WriteRefused => "waits for a write that the API server refuses",
        /// The ledger is there, and this version cannot read it.
        LedgerUnreadable => "may be held by a drain",
        /// The ledger is as large as it may become by further claims.
        LedgerFull => "waits for room in the ledger, which has as many claims as it can take",
        /// The grant that an eviction of ours names is over.
        StaleTicket => "relies on a grant that is no longer in force",
        /// Somebody else's eviction names a grant of ours.
        ForgedTicket => "carries a ticket that only drain-lock may use",
        /// The claim was granted, and its budgets are being read once more.
        AwaitsConfirmation => "waits for a second read of its budgets",
        /// Others evict, and none of them has for a while: it is granted nothing until they go on.
        AwaitsDrainer => "waits for its drainer, which has evicted nothing for a while",
        /// drain-keeper has told its Deployment to roll so that it moves; until the new pod is proven, neither is evicted.
        Surging => "is being replaced by a rollout of its Deployment",
        /// It asked to be waited for.
        WaitCompleted => "asked to finish before the drain (wait-completed)",
        /// Its pods are on their way out.
        AwaitingPods => "waits for pods that are leaving",
        /// Its grace is over and it is still there.
        StuckTerminating => "is stuck terminating beyond its grace period",
        /// Its grace is over, and finalizers keep it.
        FinalizerStuck => "is kept by finalizers beyond its grace period",
        /// Its disruptions return when its pods are ready again.
        AwaitingReady => "waits for pods to be ready again",
        /// Another program has the node's medik8s lease.
        LeaseHeldByOther => "waits for the node's lease, which another program holds",
        /// A remediation of the node is open.
        UnderRemediation => "waits until the node is no longer being remediated",
        /// Another node of the control plane is away, or about to be.
        ControlPlaneBusy => "waits while another node of the control plane is taken out of service",

        /// As many nodes of a node group as it allows are being drained.
        WaitsForNodeGroup => "waits for its turn in a node group",
        /// Nodes of a node group are away without a drain of theirs, and it allows no further one to be.
        GroupUnhealthy => "waits for nodes of its node group that are not Ready",

        // What a person has to see to.
        /// The budget allows no disruption, whatever its pods do.
        BudgetNeverAllows => "is covered by a budget that can never allow a disruption",
        /// The disruption controller cannot count the budget's pods.
        SyncFailed => "waits for a budget whose pods Kubernetes cannot count",
        /// Several budgets select it.
        SeveralPDBs => "is selected by several budgets, which the eviction API refuses",
        /// The node's pods need more of a budget than it can ever give.
        NeedExceedsBudget => "needs more disruptions of a budget than it can ever allow",
        /// It stays, and its tolerations end before the node is back.
        TolerationTooShort => "stays, but its tolerations end before its node is back",
        /// No controller makes it again, and nobody has consented to its eviction.
        UnmanagedPodKept => "has no controller that makes it again, and nobody has consented to its eviction",
        /// It has emptyDir volumes, and nobody has consented to the loss of their data.
        EmptyDirDataKept => "has emptyDir volumes, and nobody has consented to the loss of their data",
        /// Its opt-out has a value that Nodeward does not know.
        UnknownOptOut => "has an opt-out that cannot be read, and is waited for",
        /// Another drainer evicts it although it asked to stay, or to finish first.
        OptOutIgnored => "opted out of the drain, but another drainer evicts it",
        /// The node does not exist, or not any more.
        NodeGone => "does not exist",
        /// The node of that name has another UID.
        NodeReplaced => "is not the node that the drain was requested for",
        /// drain-lock had cordoned the node, and somebody has uncordoned and cordoned it since.
        CordonTaken => "stays cordoned, because somebody has uncordoned and cordoned it since drain-lock did",
        /// Another drainer has evicted pods from a node that drain-lock has cordoned.
        CordonShared => "stays cordoned, because another drainer has evicted pods from it not long ago",
        /// The NodeDrain cannot be followed as it is written.
        InvalidDrain => "has an invalid NodeDrain",

        // What became of a drain.
        /// All of its disruptions were granted.
        Granted => "was granted all disruptions that it needs",
        /// Its requester has consented, by configuration, to what is lost with its pods.
        ConsentGiven => "is drained with its requester's consent to what is lost with its pods",
        /// Of the control plane's nodes no majority is left while it is away.
        QuorumLost => "takes the control plane's quorum away while it is down",
        /// A disruption was gone when its budgets were read once more.
        GrantLost => "lost its grant before using it",
        /// Somebody evicts from a cordoned node who may change nodes: that is taken for its drain.
        DrainRequested => "is taken to be drained, for pods are evicted from it while it is cordoned",
        /// A deadline passed: it gave back what it could, and queues again.
        Requeued => "released its disruptions and queues again",
        /// A deadline passed.
        DeadlinePassed => "has passed a deadline",
        /// Its drainer vanished while pods are down.
        Suspect => "has pods down and no active drainer",
        /// An administrator freed what it held.
        AdminRelease => "was released by an administrator",
        /// An administrator ended an owner's hold.
        HoldOverridden => "was overridden by an administrator",
        /// A hold by annotation has lasted as long as it may.
        HoldExpired => "has lasted as long as the configuration allows, and holds nothing any more",
        /// Another program took the node's medik8s lease.
        LeaseLost => "lost the node's lease to another program",
        /// No pod has to leave the node any more.
        Drained => "is drained",
        /// The node was uncordoned.
        Uncordoned => "was uncordoned",
        /// The node is back after the reboot that others drained it for.
        Rebooted => "has booted anew, and is Ready",
        /// It holds nothing any more.
        Released => "holds nothing any more",
        /// It was taken back before it was done.
        Cancelled => "was cancelled",
        /// It was given up.
        Abandoned => "was abandoned",

        // What became of a pod.
        /// It was evicted.
        PodEvicted => "was evicted for the drain",
        /// Somebody deleted it where an eviction would have asked its budget.
        BudgetBypassed => "was deleted, not evicted, and its budget is below its minimum",
        /// The last attempt to evict it failed; it is tried again after a delay.
        EvictionFailed => "could not be evicted and is tried again",

        /// A reason of a later version.
        Other => "has a reason that this version does not know",
    }
}

impl LockReason {
    /// The type of its Event, where it gets one: a drain on its way is no reason to look.
    pub const fn severity(self) -> Severity {
        match self {
            Self::Granted
            | Self::ConsentGiven
            | Self::DrainRequested
            | Self::WaitsForWindow
            | Self::Uncordoned
            | Self::Rebooted
            | Self::Released
            | Self::Cancelled
            | Self::Abandoned
            | Self::NodeGone
            | Self::PodEvicted => Severity::Normal,
            Self::OptedOut
            | Self::ToleratesCordon
            | Self::LocalVolume
            | Self::Pinned
            | Self::NoRoom
            | Self::Unschedulable
            | Self::Queued
            | Self::NotPlanned
            | Self::WaitsForDisruptions
            | Self::Reserved
            | Self::CircularWait
            | Self::AwaitsUncordon
            | Self::BudgetUnhealthy
            | Self::CephClosed
            | Self::OwnerHold
            | Self::StatusBehind
            | Self::ReadFailed
            | Self::WriteRefused
            | Self::LedgerUnreadable
            | Self::LedgerFull
            | Self::StaleTicket
            | Self::ForgedTicket
            | Self::AwaitsConfirmation
            | Self::AwaitsDrainer
            | Self::Surging
            | Self::WaitCompleted
            | Self::AwaitingPods
            | Self::StuckTerminating
            | Self::FinalizerStuck
            | Self::AwaitingReady
            | Self::LeaseHeldByOther
            | Self::UnderRemediation
            | Self::ControlPlaneBusy
            | Self::WaitsForNodeGroup
            | Self::GroupUnhealthy
            | Self::BudgetNeverAllows
            | Self::SyncFailed
            | Self::SeveralPDBs
            | Self::NeedExceedsBudget
            | Self::TolerationTooShort
            | Self::UnmanagedPodKept
            | Self::EmptyDirDataKept
            | Self::UnknownOptOut
            | Self::OptOutIgnored
            | Self::NodeReplaced
            | Self::CordonTaken
            | Self::CordonShared
            | Self::InvalidDrain
            | Self::QuorumLost
            | Self::GrantLost
            | Self::Requeued
            | Self::DeadlinePassed
            | Self::Suspect
            | Self::AdminRelease
            | Self::HoldOverridden
            | Self::HoldExpired
            | Self::LeaseLost
            | Self::Drained
            | Self::BudgetBypassed
            | Self::EvictionFailed
            | Self::Other => Severity::Warning,
        }
    }

    /// Whether it gets an Event once while it lasts: a person has to see to it, or to what follows from it, or may be surprised.
    pub const fn is_announced_while_it_lasts(self) -> bool {
        matches!(
            self,
            Self::BudgetNeverAllows
                | Self::SyncFailed
                | Self::SeveralPDBs
                | Self::NeedExceedsBudget
                | Self::TolerationTooShort
                | Self::UnmanagedPodKept
                | Self::EmptyDirDataKept
                | Self::UnknownOptOut
                | Self::InvalidDrain
                | Self::NodeReplaced
                | Self::LeaseLost
                | Self::WriteRefused
                | Self::CircularWait
                | Self::WaitsForWindow
                | Self::DeadlinePassed
        )
    }

    /// Whether a drain with it waits for disruptions, or for its turn at them: it makes the condition `BudgetBlocked` true.
    pub const fn waits_for_a_budget(self) -> bool {
        matches!(
            self,
            Self::WaitsForDisruptions
                | Self::Reserved
                | Self::CircularWait
                | Self::AwaitsUncordon
                | Self::BudgetUnhealthy
                | Self::CephClosed
                | Self::OwnerHold
                | Self::StatusBehind
                | Self::NeedExceedsBudget
                | Self::Queued
        )
    }

    /// Whether a person has to change a budget: it makes the condition `MisconfiguredPDB` true.
    pub const fn is_misconfiguration(self) -> bool {
        matches!(
            self,
            Self::BudgetNeverAllows | Self::SyncFailed | Self::SeveralPDBs | Self::NeedExceedsBudget
        )
    }

    /// Whether the end of another drain lifts it: that one has disruptions, a place in a group or room, or is to have them first.
    pub const fn waits_for_a_drain(self) -> bool {
        matches!(
            self,
            Self::WaitsForDisruptions
                | Self::Reserved
                | Self::CircularWait
                | Self::AwaitsUncordon
                | Self::WaitsForNodeGroup
                | Self::NoRoom
        )
    }

    /// Whether an eviction that is refused with it lacks a disruption of a budget, as one does that the eviction API refuses
    /// by itself. Every other refusal is for the drain's turn, or for something that is no budget's.
    pub const fn refuses_for_a_budget(self) -> bool {
        let is_for_the_turn = matches!(
            self,
            Self::Queued | Self::Reserved | Self::CircularWait | Self::AwaitsUncordon
        );
        self.is_misconfiguration() || (self.waits_for_a_budget() && !is_for_the_turn)
    }

    /// Whether a pod is kept for want of consent to its eviction.
    pub const fn lacks_consent(self) -> bool {
        matches!(self, Self::UnmanagedPodKept | Self::EmptyDirDataKept)
    }

    /// Whether it is a step of the drain rather than something in its way.
    pub const fn is_a_step(self) -> bool {
        matches!(self, Self::NotPlanned | Self::AwaitsConfirmation | Self::AwaitingPods)
    }
}

reasons! {
    /// Why a NodeHealthCheck is disabled, or not: the reason of its condition Disabled, as medik8s spells it.
    DisabledReason {
        /// A MachineHealthCheck would remediate the same nodes.
        ConflictingMachineHealthCheckDetected => "is disabled by a MachineHealthCheck, which would act on the same nodes",
        /// Something else fences the nodes of a cluster with such a control plane.
        UnsupportedControlPlaneTopology => "is disabled because something else fences the nodes of such a control plane",
        /// A remediation template does not exist.
        RemediationTemplateNotFound => "is disabled because a remediation template does not exist",
        /// A remediation template cannot be used.
        RemediationTemplateInvalid => "is disabled because a remediation template cannot be used",
        /// Its spec cannot be followed as it is written.
        InvalidConfiguration => "is disabled because its spec is invalid",
        /// It is not disabled.
        NodeHealthCheckEnabled => "is enabled",
    }
}

reasons! {
    /// What an Event of health-check reports, as medik8s spells it.
    HealthEvent {
        /// A node is unhealthy for long enough.
        DetectedUnhealthy => "is unhealthy",
        /// A remediation was created.
        RemediationCreated => "has a new remediation",
        /// A remediation was deleted.
        RemediationRemoved => "had a remediation removed",
        /// A remediation is due and does not start.
        RemediationSkipped => "is unhealthy and is not remediated",
        /// The NodeHealthCheck became disabled.
        Disabled => "was disabled",
        /// The NodeHealthCheck is no longer disabled.
        Enabled => "was enabled",
        /// The installed CRD lacks fields, which the API server drops.
        FieldsDropped => "may have lost fields, because the installed CRD lacks them",
        /// The last step timed out or failed, and the node is still unhealthy.
        NoTemplateLeft => "is unhealthy after the last remediation",
        /// The label that excludes a node has no value that counts.
        InvalidNodeLabel => "has an exclusion label that is ignored because its value is not true",
        /// Too many nodes are unhealthy at once.
        StormRecoveryStarted => "starts no remediations because too many nodes are unhealthy",
        /// Enough nodes are healthy again.
        StormRecoveryCooldownStarted => "waits for its cooldown, now that enough nodes are healthy again",
        /// The cooldown is over.
        StormRecoveryEnded => "starts remediations again",
    }
}

impl HealthEvent {
    /// The type of the Event.
    pub const fn severity(self) -> Severity {
        match self {
            Self::DetectedUnhealthy
            | Self::RemediationCreated
            | Self::RemediationRemoved
            | Self::Enabled
            | Self::StormRecoveryCooldownStarted
            | Self::StormRecoveryEnded => Severity::Normal,
            Self::RemediationSkipped
            | Self::Disabled
            | Self::FieldsDropped
            | Self::NoTemplateLeft
            | Self::InvalidNodeLabel
            | Self::StormRecoveryStarted => Severity::Warning,
        }
    }
}

reasons! {
    /// How a node stands in the eyes of a NodeHealthCheck: what is done for it, or what stops it.
    HealthReason {
        // It is not remediated, and need not be.
        /// No unhealthy condition matches.
        Healthy => "is healthy",
        /// It has no condition Ready yet.
        ReadyUnknown => "has no condition Ready yet",
        /// An unhealthy condition matches, but not for long enough yet.
        NotExpired => "has not been unhealthy for long enough yet",
        /// A termination handler's MachineHealthCheck sees to it.
        LeftToTerminationHandler => "is being terminated, which its MachineHealthCheck handles",

        // Its remediation is due, and something stops it.
        /// The NodeHealthCheck is disabled.
        CheckDisabled => "is unhealthy, but its NodeHealthCheck is disabled",
        /// The NodeHealthCheck has pauseRequests.
        CheckPaused => "is unhealthy, but its NodeHealthCheck is paused",
        /// The cluster, its pool or the node itself is being upgraded.
        ClusterUpgrading => "is unhealthy, but being upgraded",
        /// Whether it is being upgraded cannot be told yet.
        UpgradeSignalUnknown => "is unhealthy, but may be in an upgrade: the signal cannot be read",
        /// It carries the exclusion label.
        ExcludedByLabel => "is unhealthy, but excluded by its label",
        /// A NodeDrain, a NodeMaintenance or the holder of its lease declared maintenance.
        UnderMaintenance => "is unhealthy, but under declared maintenance",
        /// Too few of the selected nodes are healthy.
        TooFewHealthy => "is unhealthy, but too few nodes are healthy",
        /// The cooldown after a storm is not over.
        StormCooldown => "is unhealthy, but the cooldown after a storm is not over",
        /// As many nodes are remediated as maxConcurrentRemediations says.
        ConcurrencyLimitReached => "is unhealthy, but as many nodes as allowed are being remediated",
        /// It was remediated not long ago.
        BackingOff => "is unhealthy, but was remediated not long ago",
        /// Another control-plane node is being remediated or is away.
        ControlPlaneNodeAway => "is unhealthy, but another control-plane node is being remediated or is away",
        /// Etcd would lose its quorum, or may.
        EtcdQuorumAtRisk => "is unhealthy, but etcd may lose its quorum without it",
        /// Another failure domain of its Ceph is down, or is being remediated.
        CephDomainDown => "is unhealthy, but another failure domain of Ceph is down",
        /// Whether a failure domain of Ceph is down cannot be told yet.
        CephStateUnknown => "is unhealthy, but the state of Ceph is not known",
        /// Another NodeHealthCheck remediates it.
        RemediatedByAnotherCheck => "is unhealthy, but another NodeHealthCheck remediates it",
        /// A remediation of it belongs to somebody else.
        ForeignRemediation => "is unhealthy, but a remediation of it belongs to somebody else",
        /// A remediation of an earlier node of the name, outage or step is not over, or has the name of the next one.
        EarlierRemediation => "is unhealthy, but an earlier remediation of it is in the way",
        /// Somebody else holds its lease.
        LeaseTaken => "is unhealthy, but another program holds its lease",
        /// This process was cut off from the cluster, or the cluster was away, and nodes may need a moment to report.
        Settling => "is unhealthy, but nodes get a moment to report first",
        /// medik8s' own controller runs.
        PeerActive => "is unhealthy, but medik8s' own controller is running",
        /// Something that its remediation rests on cannot be read.
        SourceUnreadable => "is unhealthy, but something that its remediation rests on cannot be read",
        /// It has changed since it was last seen.
        NodeChanged => "has changed since it was last seen",
        /// The operator may not do what the remediation needs.
        PermissionMissing => "is unhealthy, but a right to remediate it is missing",
        /// The API server rejects its remediation.
        RemediationRejected => "is unhealthy, but the API server rejects its remediation",
        /// It would be remediated, were this no dry run.
        WouldRemediate => "is unhealthy, and would be remediated if this were no dry run",

        // It is remediated.
        /// Its remediation is about to be created.
        StartingRemediation => "is about to be remediated",
        /// A remediation runs.
        RemediationRunning => "is being remediated",
        /// The step failed or timed out, and the next one comes.
        Escalating => "is being remediated, and goes on to the next step",
        /// The last step timed out or failed.
        ChainExhausted => "is unhealthy after the last remediation",

        // Its remediation ends.
        /// Its conditions are healthy, and healthyDelay keeps its remediations.
        HealthyDelayed => "is healthy, and keeps its remediations for healthyDelay",
        /// Its conditions are healthy, and its remediations are being deleted.
        RemovingRemediations => "is healthy, and its remediations are being deleted",
        /// The Node is gone, or another one has its name.
        RemediatedNodeGone => "is gone, and so are its remediations",
        /// The Node is gone for good, and its remediation is not done yet.
        ReplacementExpected => "is gone for good, and its remediation is not done yet",
    }
}

impl HealthReason {
    /// Whether it stops a remediation that is due, or the next step of one that runs.
    pub const fn stops(self) -> bool {
        !matches!(
            self,
            Self::Healthy
                | Self::ReadyUnknown
                | Self::NotExpired
                | Self::LeftToTerminationHandler
                | Self::WouldRemediate
                | Self::StartingRemediation
                | Self::RemediationRunning
                | Self::Escalating
                | Self::ChainExhausted
                | Self::HealthyDelayed
                | Self::RemovingRemediations
                | Self::RemediatedNodeGone
                | Self::ReplacementExpected
        )
    }

    /// Whether all that is known of its end is when the same is tried again.
    pub const fn is_only_tried_again(self) -> bool {
        matches!(self, Self::RemediationRejected | Self::PermissionMissing)
    }

    /// Whether what stops a remediation ends without a person: by time, or with what others do for this node or another one. A
    /// lease ends once its holder renews it no more.
    pub const fn ends_by_itself(self) -> bool {
        matches!(
            self,
            Self::UnderMaintenance
                | Self::ClusterUpgrading
                | Self::LeaseTaken
                | Self::CephDomainDown
                | Self::ForeignRemediation
                | Self::EarlierRemediation
                | Self::StormCooldown
                | Self::ConcurrencyLimitReached
                | Self::BackingOff
                | Self::ControlPlaneNodeAway
                | Self::RemediatedByAnotherCheck
                | Self::Settling
        )
    }
}

reasons! {
    /// Why a CephCluster's OSDs may be evicted or may not.
    CephReason {
        // Open: one OSD at a time may be evicted.
        /// All OSDs are up, and all placement groups are clean.
        AllClean => "has all OSDs up and all placement groups clean",
        /// Placement groups are clean without the OSDs that are down; the budget leaves these out.
        DownOsdsExcluded => "has OSDs down, and all placement groups are clean without them",
        /// All OSDs are up; placement groups that move, or old statistics, are no reason to close.
        AllUp => "has all OSDs up",
        /// All OSDs are up and no placement group lacks a copy, though not all are clean.
        NothingDegraded => "has all OSDs up, and placement groups only move",
        /// `pgHealthCheckTimeout` has passed, and each failure domain may still go down.
        HealthCheckTimedOut => "has all OSDs up, and its placement groups have been unclean for longer than pgHealthCheckTimeout",

        // Closed: no OSD may be evicted, except those of the exempt domain.
        /// OSDs of one domain are down, and the rest of that domain may follow.
        DomainDown => "has OSDs of one failure domain down, and no other domain may lose an OSD",
        /// OSDs are down, and no domain could follow without a loss.
        SecondDomainDown => "has OSDs down, and could not lose the rest of any failure domain",
        /// OSDs are down, and Ceph has not answered since the last change.
        CephNotAsked => "has OSDs down, and Ceph has not answered since",
        /// OSDs are down, and the statistics are older than that.
        StatisticsStale => "has OSDs down, and the statistics of its placement groups are older than that",
        /// OSDs are down, and Ceph has been asked which domain may go.
        AwaitingStopCheck => "has OSDs down, and Ceph has not yet answered which may be stopped",
        /// All OSDs are up, and placement groups are recovering.
        Recovering => "has all OSDs up, and placement groups that have not recovered",
        /// A pool cannot lose any host, and the configuration says that this blocks.
        UnsurvivablePool => "has a pool that cannot lose a host",

        // ceph-pdb writes no budgets.
        /// Rook's own manager is on.
        ManagedByRook => "has its budgets managed by Rook (managePodBudgets: true)",
        /// Its Ceph runs elsewhere.
        ExternalCluster => "is an external cluster",
        /// It is being deleted.
        ClusterDeleting => "is being deleted",

        /// A reason of a later version.
        Other => "has a reason that this version does not know",
    }
}

reasons! {
    /// What somebody should look at in a CephCluster.
    CephCondition {
        /// Ceph cannot be asked.
        CephUnavailable => "has a Ceph that cannot be asked",
        /// librados does not know the type of the key that it is to connect with.
        KeyTypeUnknown => "has a key of a type that librados does not know",
        /// The API server does not take what is to be written.
        BudgetWriteRefused => "has budgets that could not be written",
        /// Ceph does not take a change of the flag `noout`, or the API server its record.
        NooutRefused => "has flags noout that could not be changed",
        /// Rook's own manager is on again after ceph-pdb has managed the budgets.
        ManagedByRookAgain => "has its budgets managed by Rook again, after ceph-pdb managed them",
        /// CRUSH has no bucket of the type that is configured.
        FailureDomainTypeUnknown => "has no bucket of the configured failureDomainType",
        /// The manager does not say which OSDs may be stopped.
        StopCheckFailed => "has a Ceph manager that does not answer ok-to-stop",
        /// Ceph and our own reckoning differ on which OSDs may be stopped: the stricter one holds.
        StopCheckDisagrees => "has a Ceph whose ok-to-stop contradicts its placement groups",
        /// Statistics of placement groups stand still without a manager.
        NoManager => "has no active Ceph manager",
        /// Some pool would lose placement groups without what is down and what would follow.
        StopCheckRefused => "has pools that would stop without what is down and what would follow",
        /// Pools cannot lose a host even when all is well.
        UnsurvivablePools => "has pools that cannot lose a host",
        /// CRUSH has no place for the missing copies, or flags forbid recovery.
        CannotHeal => "cannot recover without the OSDs that are down",
        /// `pgHealthCheckTimeout` has passed, and opening would risk data.
        HealthCheckTimeoutIgnored => "stays closed beyond pgHealthCheckTimeout, because a failure domain could not be lost",
        /// A flag `noout` of ours was removed because its time was over, and its OSDs are still down.
        NooutExpired => "has OSDs down for longer than osdMaintenanceTimeout",
        /// A budget that is not ours has the name of one that is needed, or selects OSDs.
        ForeignBudget => "has a disruption budget of another owner in the place of ceph-pdb's",
        /// An OSD's label names another failure domain than CRUSH.
        OsdLabelWrong => "has an OSD whose topology label contradicts CRUSH",
        /// Ceph has not yet answered all that it is asked before ceph-pdb takes over.
        NotCheckedYet => "has not been checked as a whole yet",
        /// CRUSH has no bucket of the failure domains' type above an OSD.
        OsdOutsideDomains => "has an OSD outside of any failure domain",
        /// The pod of an OSD that is up is not Ready, and uses up the open budget.
        OsdNotReady => "has an OSD whose pod is not Ready, so that the open budget allows none",
        /// The pod of an OSD is on its way out on a node that is not Ready, and Ceph calls the OSD up.
        OsdPodAbandoned => "has an OSD that runs on under a pod that nobody ends",
        /// A node has OSDs of several failure domains: they go together, or none beside the first.
        NodeInSeveralDomains => "has a node with OSDs of several failure domains",
        /// A field of the CephCluster, or a record of ours, cannot be read.
        Unreadable => "has a field or a record that cannot be read",

        /// A condition of a later version.
        Other => "has a condition that this version does not know",
    }
}

impl CephReason {
    /// The type of its Event: budgets close and open as nodes come and go.
    pub const fn severity(self) -> Severity {
        match self {
            Self::SecondDomainDown => Severity::Warning,
            Self::AllClean
            | Self::DownOsdsExcluded
            | Self::AllUp
            | Self::NothingDegraded
            | Self::HealthCheckTimedOut
            | Self::DomainDown
            | Self::CephNotAsked
            | Self::StatisticsStale
            | Self::AwaitingStopCheck
            | Self::Recovering
            | Self::UnsurvivablePool
            | Self::ManagedByRook
            | Self::ExternalCluster
            | Self::ClusterDeleting
            | Self::Other => Severity::Normal,
        }
    }

    /// What ends closed budgets that have this reason: completes "ends when …".
    pub const fn ends_when(self) -> &'static str {
        match self {
            Self::CephNotAsked => "Ceph has answered",
            Self::StatisticsStale => "each OSD has reported twice",
            Self::AwaitingStopCheck => "the manager has answered ok-to-stop",
            Self::Recovering => "no placement group lacks a copy, or pgHealthCheckTimeout has passed",
            Self::UnsurvivablePool => "the pool has more copies, or unsurvivablePools is set to ignore",
            Self::AllClean
            | Self::DownOsdsExcluded
            | Self::AllUp
            | Self::NothingDegraded
            | Self::HealthCheckTimedOut
            | Self::DomainDown
            | Self::SecondDomainDown
            | Self::ManagedByRook
            | Self::ExternalCluster
            | Self::ClusterDeleting
            | Self::Other => "the OSDs are back, or all placement groups are clean without them",
        }
    }
}

macro_rules! lenient {
    ($($name:ident),+) => {$(
        impl $name {
            /// The one of that spelling; [`Self::Other`] for one that a later version gave.
            pub fn parse(text: &str) -> Self {
                let known = Self::ALL.iter().find(|reason| reason.as_str() == text);
                known.copied().unwrap_or(Self::Other)
            }

            /// Reads a stored one, see [`Self::parse`].
            pub(crate) fn lenient<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Ok(Self::parse(&String::deserialize(deserializer)?))
            }
        }
    )+};
}

lenient!(LockReason, CephReason, CephCondition);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Event and condition reasons are CamelCase of at most 128 characters, and label values of a metric must differ.
    #[test]
    fn every_reason_is_valid_unique_and_explained() {
        macro_rules! all {
            ($($name:ident),+) => {
                [$($name::ALL.iter().map(|r| (r.as_str(), r.explanation(), r.to_string())).collect::<Vec<_>>()),+].concat()
            };
        }
        let reasons = all!(
            BlockerReason,
            GateReason,
            ActReason,
            DrainReason,
            LockReason,
            DisabledReason,
            HealthEvent,
            HealthReason,
            CephReason,
            CephCondition
        );
        for (text, explanation, shown) in &reasons {
            assert!(text.starts_with(|c: char| c.is_ascii_uppercase()), "{text}");
            assert!(
                text.bytes().all(|c| c.is_ascii_alphanumeric()) && text.len() <= 128,
                "{text}"
            );
            assert!(
                !explanation.is_empty() && !explanation.ends_with('.'),
                "{text}: {explanation}"
            );
            assert_eq!(shown, text);
        }
        let spellings: BTreeSet<_> = reasons.iter().map(|(text, ..)| text).collect();
        let repeated: usize = SHARED.iter().map(|(_, count)| count - 1).sum();
        assert_eq!(spellings.len(), reasons.len() - repeated);
        for (shared, count) in SHARED {
            let found = reasons.iter().filter(|(text, ..)| *text == shared).count();
            assert_eq!(found, count, "{shared}");
        }
    }

    /// What several operators say, each of its own objects, and in how many lists of reasons it stands.
    const SHARED: [(&str, usize); 12] = [
        ("SeveralPDBs", 2),
        ("WaitCompleted", 2),
        ("UnknownOptOut", 2),
        ("Surging", 2),
        ("WaitsForWindow", 2),
        ("ToleratesCordon", 2),
        ("UnderRemediation", 2),
        ("Unreadable", 2),
        ("OptOutIgnored", 2),
        ("FinalizerStuck", 2),
        ("StuckTerminating", 2),
        ("Other", 3),
    ];

    #[test]
    fn reason_of_later_version_reads_as_other() {
        for reason in LockReason::ALL {
            assert_eq!(LockReason::parse(reason.as_str()), *reason);
        }
        assert_eq!(LockReason::parse("TheMoonIsFull"), LockReason::Other);
        assert_eq!(LockReason::parse(""), LockReason::Other);
    }

    /// A budget may be overridden in time; a drain's turn is waited for.
    #[test]
    #[expect(clippy::match_same_arms, reason = "they are grouped by what is waited for")]
    fn refusals_for_budgets_are_told_from_all_others() {
        use LockReason as R;
        let lacks_a_disruption = |reason| match reason {
            R::WaitsForDisruptions | R::OwnerHold => true,
            R::BudgetUnhealthy | R::CephClosed | R::StatusBehind => true,
            R::BudgetNeverAllows | R::SyncFailed | R::SeveralPDBs | R::NeedExceedsBudget => true,
            // Its turn, or a step on the way to it.
            R::Queued | R::NotPlanned | R::Reserved | R::CircularWait | R::AwaitsUncordon | R::AwaitsConfirmation => {
                false
            }
            R::WaitsForNodeGroup | R::GroupUnhealthy | R::ControlPlaneBusy => false,
            R::Suspect | R::AwaitsDrainer | R::AwaitingPods | R::AwaitingReady => false,
            // What is not known, or not to be.
            R::LedgerUnreadable | R::LedgerFull | R::ReadFailed | R::WriteRefused => false,
            R::StaleTicket | R::ForgedTicket => false,
            // Its owner's wish, or what it is.
            R::OptedOut | R::WaitCompleted | R::UnknownOptOut | R::OptOutIgnored => false,
            R::ToleratesCordon | R::Surging => false,
            R::LocalVolume | R::Pinned | R::NoRoom | R::Unschedulable | R::TolerationTooShort => false,
            R::UnmanagedPodKept | R::EmptyDirDataKept | R::WaitsForWindow => false,
            R::StuckTerminating | R::FinalizerStuck => false,
            // Its node.
            R::LeaseHeldByOther | R::LeaseLost | R::UnderRemediation | R::QuorumLost => false,
            R::NodeGone | R::NodeReplaced | R::CordonTaken | R::CordonShared | R::InvalidDrain => false,
            // What became of it.
            R::DrainRequested | R::Granted | R::ConsentGiven | R::GrantLost => false,
            R::Requeued | R::DeadlinePassed => false,
            R::AdminRelease | R::HoldOverridden | R::HoldExpired | R::Drained | R::Uncordoned => false,
            R::Rebooted | R::Released | R::Cancelled | R::Abandoned => false,
            R::PodEvicted | R::BudgetBypassed | R::EvictionFailed | R::Other => false,
        };
        for reason in LockReason::ALL {
            assert_eq!(reason.refuses_for_a_budget(), lacks_a_disruption(*reason), "{reason}");
        }
    }

    #[test]
    fn a_reason_is_stored_as_it_is_spelled() {
        for reason in BlockerReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
    }
}
