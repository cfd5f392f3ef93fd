//! Why something is as it is. One enum variant gives the Event reason, the condition reason, the metric label and the
//! command line's text, so that an operator who reads one finds the others by searching for the same word.

use std::fmt;

use serde::{Deserialize, Serialize};

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

reasons! {
    /// Why a pod still keeps its node's drain from ending.
    BlockerReason {
        /// Nothing stands in the way but the drainer's own pace.
        AwaitingEviction => "waits for its eviction",
        /// Its budget allows no disruption now.
        BudgetExhausted => "is covered by a budget without room",
        /// Several budgets select it: the eviction API answers 500 every time.
        MisconfiguredPDB => "is selected by several budgets, which the eviction API refuses",
        /// Its budget is labelled `nodeward.dev/force-drain: never`.
        BudgetNeverForced => "is covered by a budget that must never be overridden",
        /// Its budget guards Ceph's data.
        CephBudget => "is covered by a Ceph budget, which is never overridden",
        /// Another node's claim or an owner's hold has its budget.
        BudgetHeld => "is covered by a budget that is held",
        /// Another pod of its budget was forced and is not replaced yet.
        BudgetInUse => "waits until the budget's last override is made good",
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
        /// No controller would make it again.
        Unmanaged => "has no controller that would replace it",
        /// It asked to be waited for.
        OptedOut => "asked to finish before the drain (wait-completed)",
        /// Its opt-out has a value that Nodeward does not know.
        UnknownOptOut => "has an unknown nodeward.dev/drain value and is waited for",
        /// It came after the drain began, tolerating the cordon.
        ToleratesCordon => "was created on the cordoned node, whose taint it tolerates",
        /// Its namespace is ignored by the configuration.
        NamespaceIgnored => "is in an ignored namespace",
        /// Its namespace is being deleted; the namespace controller removes it.
        NamespaceTerminating => "is in a namespace that is being deleted",
        /// The configured limits of forced pods are reached.
        LimitReached => "waits for the limits of forced pods",
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
        /// A remediation of it is open.
        UnderRemediation => "is being remediated",
        /// Its drain clock is being written.
        ClockStarting => "has just begun to drain",
        /// Its pods have not been listed yet.
        PodsSyncing => "has pods that are still being listed",
        /// All gates hold.
        Open => "is being drained",
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
        FinalizersRemoved => "lost its finalizers",
        /// It was deleted without grace.
        DeletedWithoutGrace => "was deleted without grace",
    }
}

reasons! {
    /// What became of a drain.
    DrainReason {
        /// Everything that may be done has been, and pods still block it.
        DrainFailed => "has failed to drain",
        /// Something that the drain depends on could not be read as it is meant.
        Unreadable => "depends on something that cannot be read",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Event and condition reasons are CamelCase of at most 128 characters, and label values of a metric must differ.
    #[test]
    fn every_reason_has_one_spelling_that_the_api_accepts_and_an_explanation() {
        macro_rules! all {
            ($($name:ident),+) => {
                [$($name::ALL.iter().map(|r| (r.as_str(), r.explanation(), r.to_string())).collect::<Vec<_>>()),+].concat()
            };
        }
        let reasons = all!(BlockerReason, GateReason, ActReason, DrainReason);
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
        assert_eq!(spellings.len(), reasons.len());
    }

    #[test]
    fn a_reason_is_stored_as_it_is_spelled() {
        for reason in BlockerReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
    }
}
