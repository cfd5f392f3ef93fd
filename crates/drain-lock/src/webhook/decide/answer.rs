//! What is said to an eviction.

use nodeward_api::reason::LockReason;

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The API goes on, and asks the budget itself.
    Admit(Admission),
    /// The API refuses.
    Refuse(Refused),
}

/// Why an eviction is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Admission {
    /// Nothing is to happen.
    DryRun,
    /// It would have been refused, or may have been; drain-lock only audits.
    Audit,
    /// Nobody has led and planned for too long.
    NoLeader,
    /// A person has paused drain-lock.
    Paused,
    /// The watches are not complete.
    Unsynced,
    /// The watches know no such pod.
    UnknownPod,
    /// The API's copy of a static pod.
    #[strum(serialize = "mirror-pod")]
    Mirror,
    /// Pending, finished or terminating.
    SkipsBudgets,
    /// Not Ready.
    Unready,
    /// No budget selects it.
    NoBudget,
    /// Several budgets select it, which the API answers with 500.
    SeveralBudgets,
    /// The claim of its node has a disruption for it.
    UnderClaim,
    FreeDisruption,
    /// A disruption is free, and nobody has planned the drain of its node in time.
    Unplanned,
    /// A disruption is free, and the API server does not say whether who evicts from the cordoned node drains it.
    UnknownUser,
}

impl Admission {
    /// Every one.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its label in metrics and in the API server's audit log.
    pub fn as_label(self) -> &'static str {
        self.into()
    }

    /// Whether it was admitted for want of knowledge, not by a rule.
    pub fn fails_open(self) -> bool {
        matches!(
            self,
            Self::NoLeader | Self::Unsynced | Self::UnknownPod | Self::Unplanned | Self::UnknownUser
        )
    }
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What clients make of it.
    pub kind: RefusalKind,
    /// Why, in one word.
    pub reason: LockReason,
    /// Why, for a person: who holds what is waited for.
    pub message: String,
}

/// What clients make of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// 429: they ask again.
    Wait,
    /// 403: they do not.
    Forbidden,
}

impl RefusalKind {
    /// The HTTP status.
    pub fn code(self) -> u16 {
        match self {
            Self::Wait => 429,
            Self::Forbidden => 403,
        }
    }

    /// `metav1.Status.reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Wait => "TooManyRequests",
            Self::Forbidden => "Forbidden",
        }
    }
}

/// The answer, and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The answer.
    pub decision: Decision,
    /// Whether a drain of the pod's node is to be asked for, if who evicts is a drainer.
    pub requests_drain: bool,
    /// Whether a pod goes that asked to stay.
    pub ignores_opt_out: bool,
    /// Why it would have been refused, were this no audit.
    pub audited: Option<Refused>,
}

impl From<Decision> for Verdict {
    fn from(decision: Decision) -> Self {
        Self {
            decision,
            requests_drain: false,
            ignores_opt_out: false,
            audited: None,
        }
    }
}

impl Verdict {
    /// The same where nothing is refused.
    #[must_use]
    pub fn audited(self) -> Self {
        match self.decision {
            Decision::Admit(_) => self,
            Decision::Refuse(refused) => Self {
                decision: Decision::Admit(Admission::Audit),
                audited: Some(refused),
                ..self
            },
        }
    }

    /// Whether a disruption goes with it that no claim holds.
    pub fn takes_free_disruption(&self) -> bool {
        matches!(
            self.decision,
            Decision::Admit(Admission::FreeDisruption | Admission::Unplanned | Admission::UnknownUser)
        )
    }
}
