//! drain-keeper's own words, taken apart for a reader who watches: the message of a Node's condition, the note of an Event.

/// What a condition's message says.
#[derive(Debug, PartialEq, Eq)]
pub struct Told {
    /// How many pods there are.
    pub head: String,
    /// Each of them.
    pub blockers: Vec<ToldBlocker>,
}

/// What it says of one pod.
#[derive(Debug, PartialEq, Eq)]
pub struct ToldBlocker {
    /// Namespace and name.
    pub pod: String,
    /// Why it stands in the way.
    pub why: String,
    /// What happens next, and when.
    pub next: String,
}

impl ToldBlocker {
    /// The same as long as the situation is, while times go by.
    pub fn situation(&self) -> String {
        let why = self.why.split(" (").next().unwrap_or_default();
        format!("{} {why}", self.pod)
    }
}

/// Takes a condition's message apart.
pub fn condition(message: &str) -> Told {
    let (head, rest) = message.split_once(" from ending: ").unwrap_or((message, ""));
    let blockers = rest.split(" | ").filter(|text| !text.is_empty()).map(|text| {
        let (now, next) = text.split_once("; next: ").unwrap_or((text, ""));
        let (pod, why) = now.split_once(' ').unwrap_or((now, ""));
        ToldBlocker {
            pod: pod.to_owned(),
            why: why.to_owned(),
            next: next.to_owned(),
        }
    });
    Told {
        head: format!("{head} from ending"),
        blockers: blockers.collect(),
    }
}

/// The strategy and what was done, from the note of an Event about a pod on `node`.
pub fn act<'a>(note: &'a str, node: &str) -> (&'a str, &'a str) {
    let note = note.strip_suffix(&format!(" (node {node})")).unwrap_or(note);
    note.split_once(": ").unwrap_or(("", note))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "2 pods keep the drain from ending: finance/ledger-1 is covered by a budget without room (PDB finance/ledger); \
        next: PdbDelete at 2026-11-21T11:09:31Z: evict it, or delete it if the budget refuses | finance/ledger-2 is kept by finalizers \
        beyond its grace period (finalizers a/b; grace until 2026-11-21T11:09:00Z); next: nothing by itself: somebody has to look";

    #[test]
    fn a_message_is_a_head_and_a_blocker_each() {
        let told = condition(MESSAGE);
        assert_eq!(told.head, "2 pods keep the drain from ending");
        assert_eq!(told.blockers.len(), 2);
        assert_eq!(told.blockers[0].pod, "finance/ledger-1");
        assert_eq!(
            told.blockers[0].why,
            "is covered by a budget without room (PDB finance/ledger)"
        );
        assert_eq!(told.blockers[1].next, "nothing by itself: somebody has to look");
    }

    #[test]
    fn a_situation_stays_the_same_when_only_times_change() {
        let later = condition(&MESSAGE.replace("11:09", "11:10"));
        let situations = |told: &Told| told.blockers.iter().map(ToldBlocker::situation).collect::<Vec<_>>();
        assert_eq!(situations(&condition(MESSAGE)), situations(&later));
        let another = condition(&MESSAGE.replace("is covered by a budget without room", "waits"));
        assert_ne!(situations(&condition(MESSAGE)), situations(&another));
    }

    #[test]
    fn an_act_is_told_without_the_node_that_is_named_above() {
        assert_eq!(
            act("PdbDelete: deleted: so (node n1)", "n1"),
            ("PdbDelete", "deleted: so")
        );
        assert_eq!(act("gone", "n1"), ("", "gone"));
    }
}
