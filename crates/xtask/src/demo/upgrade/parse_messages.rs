//! The message of a Node's condition, taken apart for a reader who watches: nothing else says what blocks a drain and what
//! comes next.

/// What a condition's message says of one pod.
#[derive(Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The pod, and why it stands in the way.
    pub now: String,
    /// What happens next, and when.
    pub next: String,
}

impl Blocker {
    /// The same as long as the situation is, while times go by.
    pub fn situation(&self) -> &str {
        self.now.split(" (").next().unwrap_or_default()
    }
}

/// How many pods there are, in words, and each of them.
pub fn condition(message: &str) -> (String, Vec<Blocker>) {
    const HEAD: &str = " from ending";
    let (head, rest) = message.split_once(&format!("{HEAD}: ")).unwrap_or((message, ""));
    let blockers = rest.split(" | ").filter(|text| !text.is_empty()).map(|text| {
        let (now, next) = text.split_once("; next: ").unwrap_or((text, ""));
        let (now, next) = (now.to_owned(), next.to_owned());
        Blocker { now, next }
    });
    (format!("{head}{HEAD}"), blockers.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "2 pods keep the drain from ending: finance/ledger-1 is covered by a budget that allows no disruption (PDB finance/ledger); \
        next: PdbDelete at 2026-11-21T11:09:31Z: evict it, or delete it if the budget refuses | finance/ledger-2 is kept by finalizers \
        beyond its grace period (finalizers a/b; grace until 2026-11-21T11:09:00Z); next: nothing by itself: somebody has to look";

    #[test]
    fn messages_have_a_head_and_blockers() {
        let (head, blockers) = condition(MESSAGE);
        assert_eq!(head, "2 pods keep the drain from ending");
        assert_eq!(blockers.len(), 2);
        assert_eq!(
            blockers[0].now,
            "finance/ledger-1 is covered by a budget that allows no disruption (PDB finance/ledger)"
        );
        assert_eq!(blockers[1].next, "nothing by itself: somebody has to look");
    }

    #[test]
    fn failed_drains_have_a_longer_head() {
        let failed = "The drain has failed: everything that may be done has been. ";
        let (head, blockers) = condition(&format!("{failed}{MESSAGE}"));
        assert_eq!(head, format!("{failed}2 pods keep the drain from ending"));
        assert_eq!(blockers.len(), 2);
    }

    #[test]
    fn situations_outlast_their_times() {
        let later = MESSAGE.replace("11:09", "11:10");
        let another = MESSAGE.replace("is covered by a budget that allows no disruption", "waits");
        let situations = |message| {
            let (_, blockers) = condition(message);
            blockers
                .iter()
                .map(|blocker| blocker.situation().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(situations(MESSAGE), situations(&later));
        assert_ne!(situations(MESSAGE), situations(&another));
    }
}
