//! Answers in three values, which explain themselves.

use jiff::Timestamp;

/// Whether an upgrade is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tristate {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// It cannot be told. This never counts as upgrading.
    Unknown,
}

/// What a signal says of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Whether an upgrade is on that concerns the node.
    pub truth: Tristate,
    /// When it began, where the signal knows.
    pub since: Option<Timestamp>,
    /// What a person should know about this answer.
    pub notes: Vec<SignalNote>,
}

/// Something worth telling a person, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignalNote {
    /// Stays the same while the situation does: what has been reported under a key need not be reported again.
    pub key: String,
    /// How much it matters.
    pub level: NoteLevel,
    /// A sentence.
    pub message: String,
}

/// How much a note matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoteLevel {
    /// Expected in some clusters.
    Info,
    /// Somebody should mend something.
    Warning,
}

impl SignalNote {
    /// A note that something is as it may be.
    pub fn info(key: impl Into<String>, message: impl Into<String>) -> Self {
        let (key, message) = (key.into(), message.into());
        let level = NoteLevel::Info;
        Self { key, level, message }
    }

    /// A note that something is to be mended.
    pub fn warning(key: impl Into<String>, message: impl Into<String>) -> Self {
        let (key, message) = (key.into(), message.into());
        let level = NoteLevel::Warning;
        Self { key, level, message }
    }
}

impl Answer {
    /// An upgrade is on.
    pub fn yes(since: Option<Timestamp>) -> Self {
        Self {
            truth: Tristate::Yes,
            since,
            notes: Vec::new(),
        }
    }

    /// No upgrade is on.
    pub fn no() -> Self {
        Self {
            truth: Tristate::No,
            since: None,
            notes: Vec::new(),
        }
    }

    /// It cannot be told, and why.
    pub fn unknown(note: SignalNote) -> Self {
        Self {
            truth: Tristate::Unknown,
            since: None,
            notes: vec![note],
        }
    }

    /// Adds a note.
    #[must_use]
    pub fn with_note(mut self, note: SignalNote) -> Self {
        self.notes.push(note);
        self
    }

    /// Yes if any is, since the earliest of those, or since no known time if one of those has none; Unknown if none is Yes
    /// and some are Unknown.
    pub fn any_of(answers: impl IntoIterator<Item = Self>) -> Self {
        Self::combine(answers, Tristate::Yes, |yes| yes.iter().copied().min().flatten())
    }

    /// No if any is; Unknown if none is No and some are Unknown; else Yes, since the latest known time.
    pub fn all_of(answers: impl IntoIterator<Item = Self>) -> Self {
        Self::combine(answers, Tristate::No, |yes| yes.iter().copied().max().flatten())
    }

    /// `deciding` wins over Unknown, which wins over the other. `None` sorts before every time.
    fn combine(
        answers: impl IntoIterator<Item = Self>,
        deciding: Tristate,
        since: impl Fn(&[Option<Timestamp>]) -> Option<Timestamp>,
    ) -> Self {
        let mut notes: Vec<SignalNote> = Vec::new();
        let mut truths = Vec::new();
        let mut yes = Vec::new();
        for answer in answers {
            truths.push(answer.truth);
            if answer.truth == Tristate::Yes {
                yes.push(answer.since);
            }
            for note in answer.notes {
                if !notes.iter().any(|known| known.key == note.key) {
                    notes.push(note);
                }
            }
        }
        let otherwise = if deciding == Tristate::Yes {
            Tristate::No
        } else {
            Tristate::Yes
        };
        let truth = [deciding, Tristate::Unknown]
            .into_iter()
            .find(|t| truths.contains(t))
            .unwrap_or(otherwise);
        Self {
            truth,
            since: if truth == Tristate::Yes { since(&yes) } else { None },
            notes,
        }
    }
}
