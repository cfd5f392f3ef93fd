//! The rules that can be left out, to show that the checks notice.

/// A rule of the ledger, or of those who use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The budgets are read again between a grant and its first use.
    ConfirmAfterGrant,
    /// An eviction passes only under the grant that is in force.
    FenceEvictions,
    /// A claim takes everything that it needs at once, and holds nothing while it waits.
    AllOrNothing,
    /// What is granted in part is not granted.
    WholeGrants,
    /// A claim is released by its own node's drain alone.
    OwnerReleases,
    /// A claim never grows while it holds.
    NeverGrow,
    /// The first claim that waits for disruptions reserves them.
    Reserve,
    /// A claim that holds disruptions of down pods goes ahead of those that need them.
    HoldersGoAhead,
    /// A suspect claim is freed by what is observed, not by time.
    NeverFreeByTime,
    /// A write returns the disruptions of running pods only.
    KeepDisruptionsOfDownPods,
    /// The ledger is written only as it was read.
    CompareAndSwap,
    /// That the node may go down is in the ledger before the node is told.
    NoteBeforeTheNodeIsTold,
    /// In a circle of claims that hold and wait, one whose cordon is ours gives way.
    GiveWayInACircle,
    /// What waits in a circle reserves nothing.
    ReserveNothingInACircle,
    /// Free disruptions are bounded by the pods that are healthy, not by the budget's status alone.
    CountHealthyPods,
    /// A pod that stays is back after the reboot, not before.
    BackOnlyAfterTheReboot,
    /// Only our own cordon is lifted.
    UncordonOnlyOurs,
    /// The OSDs of a node take one disruption of the budget that Ceph's operator keeps.
    OneDisruptionANode,
    /// A node has one claim.
    OneClaimANode,
    /// A pod that stays keeps its disruption when the claim of a drained node is let go.
    DrainedStaysDrained,
    /// After a drain was called off its node may go down for a while.
    WaitAfterCallOff,
    /// A pod that stays is back once its containers are others.
    CompareContainers,
    /// A claim whose turn ended returns disruptions of pods that run after all.
    ReturnRunningWhileRecovering,
    /// What another drainer was admitted to empty may go down, though nobody said so.
    RequesterMayReboot,
    /// Others' evictions wait while pods that stay lack their disruptions.
    HoldEvictionsAroundRetained,
    /// No more nodes of a group are away than it allows.
    PlaceInGroups,
    /// Another drainer's node takes its places with its disruptions, in one write.
    PlaceWithTheGrant,
    /// A place returns with the node.
    KeepPlaceUntilBack,
    /// A pod that fails keeps nobody waiting for pods that were evicted.
    CountFailedPods,
    /// Movable pods leave before the claim is asked for, which has one disruption of their budget for those that are left.
    MovablePodsFirst,
    /// A node that is drained again before its pods are back takes its claim over.
    TakeOver,
}
