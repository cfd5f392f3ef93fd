//! What came of the act: both rounds side by side, and whether they are what was promised.

use super::round::Round;
use super::waits::Waiter;
use crate::demo::table::Table;
use crate::demo::verdict::{Verdict, violated};

/// What came of the act.
#[derive(Debug, Default)]
pub struct Outcome {
    /// By `kubectl drain` alone, as often as it was tried.
    pub naive: Vec<Round>,
    /// By the same commands with drain-lock running; `None` where it was left out.
    pub locked: Option<Round>,
    /// Budgets that fell short.
    pub violations: Vec<String>,
}

impl Outcome {
    pub fn table(&self) -> String {
        let mut table = Table::default();
        let nodes = |round: &Round| format!("{} of {}", round.maintained, round.of);
        let seconds = |round: &Round| format!("{:.0} s", round.took.as_secs_f32());
        if let Some(last) = self.naive.last() {
            table.row("kubectl drain alone: rounds until one wedged", self.naive.len());
            table.row("  nodes maintained in that round", nodes(last));
            table.row("  given up after", seconds(last));
            table.row("  evictions refused", last.refused);
        }
        match &self.locked {
            Some(round) => {
                table.row("with drain-lock: nodes maintained", nodes(round));
                table.row("  duration", seconds(round));
                table.row("  evictions refused", round.refused);
            }
            None => table.row("drain-lock", "left out"),
        }
        table.end(&self.violations)
    }

    pub fn verdict(&self) -> Verdict {
        let mut broken = violated(&self.violations);
        let failures = self
            .naive
            .iter()
            .chain(&self.locked)
            .filter_map(|round| round.failed.as_ref());
        broken.extend(failures.map(|failure| format!("a drain failed: {failure}")));
        let wedge = self
            .naive
            .last()
            .map(|round| round.wedge.as_slice())
            .unwrap_or_default();
        if wedge.is_empty() {
            let rounds = self.naive.len();
            broken.push(format!(
                "kubectl drain alone should have wedged, and did not in {rounds} rounds"
            ));
        }
        if let Some(round) = self.locked.as_ref().filter(|round| !round.is_finished()) {
            broken.push(format!(
                "with drain-lock {} of {} nodes were maintained in {:.0} s",
                round.maintained,
                round.of,
                round.took.as_secs_f32()
            ));
            let waiters = Waiter::all(&round.wedge).into_iter();
            broken.extend(waiters.map(|waiter| format!("{} waits for {}", waiter.node, waiter.text())));
        }
        let promised = if self.locked.is_some() {
            "The same commands that wait for each other for ever end with drain-lock, and no budget was violated."
        } else {
            "WEDGED, as expected: nobody can go on before another has. With drain-lock (without --without) the same commands end."
        };
        Verdict::of(promised.to_owned(), broken)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::waits::Wait;
    use super::*;

    fn wedged() -> Round {
        Round {
            of: 3,
            wedge: vec![Wait {
                node: "db-1".to_owned(),
                budget: "mongo".to_owned(),
                held_by: BTreeMap::from([("db-2".to_owned(), "mongo-1".to_owned())]),
            }],
            ..Round::default()
        }
    }

    fn finished() -> Round {
        Round {
            maintained: 3,
            of: 3,
            ..Round::default()
        }
    }

    fn promised() -> Outcome {
        Outcome {
            naive: vec![finished(), wedged()],
            locked: Some(finished()),
            violations: Vec::new(),
        }
    }

    #[test]
    fn a_wedge_and_then_an_end_is_what_was_promised_and_a_wedge_alone_where_drain_lock_is_left_out() {
        assert!(promised().verdict().is_promised());
        let without = Outcome {
            locked: None,
            ..promised()
        };
        assert!(without.verdict().is_promised());
    }

    #[rstest::rstest]
    #[case::never_wedged(|o: &mut Outcome| o.naive = vec![finished(); 5], "did not in 5 rounds")]
    #[case::wedged_too(|o: &mut Outcome| o.locked = Some(wedged()), "db-1 waits for db-2, which has mongo")]
    #[case::too_slow(|o: &mut Outcome| o.locked = Some(Round { maintained: 2, ..finished() }), "2 of 3 nodes")]
    #[case::failed(|o: &mut Outcome| o.locked = Some(Round { failed: Some("no".to_owned()), ..finished() }), "a drain failed: no")]
    #[case::violation(|o: &mut Outcome| o.violations.push("data/kafka".to_owned()), "budget violated: data/kafka")]
    fn whatever_is_not_as_promised_breaks_the_verdict(#[case] spoil: fn(&mut Outcome), #[case] says: &str) {
        let mut outcome = promised();
        spoil(&mut outcome);
        let verdict = outcome.verdict();
        assert!(
            matches!(&verdict, Verdict::Broken(reasons) if reasons.join("\n").contains(says)),
            "{verdict:?}"
        );
    }
}
