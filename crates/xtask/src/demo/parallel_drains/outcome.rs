//! What came of the act: both rounds side by side, and whether they are what was promised.

use super::round::Round;
use super::waits::Waiter;
use crate::demo::outcome::Outcome;

/// What came of the act.
#[derive(Debug, Default)]
pub struct Rounds {
    /// By `kubectl drain` alone, as often as it was tried.
    pub naive: Vec<Round>,
    /// By the same commands with drain-lock running; `None` where it was left out.
    pub locked: Option<Round>,
    /// Budgets that fell short.
    pub violations: Vec<String>,
}

impl Rounds {
    pub fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::new(match self.locked {
            Some(_) => {
                "The same commands that wait for each other for ever end with drain-lock, and no budget was violated."
            }
            None => {
                "WEDGED, as expected: nobody can go on before another has. With drain-lock (without --without) the same commands end."
            }
        });
        let nodes = |round: &Round| format!("{} of {}", round.maintained, round.of);
        let seconds = |round: &Round| format!("{:.0} s", round.took.as_secs_f32());
        if let Some(last) = self.naive.last() {
            outcome.row("kubectl drain alone: rounds until one wedged", self.naive.len());
            outcome.row("  nodes maintained in that round", nodes(last));
            outcome.row("  given up after", seconds(last));
            outcome.row("  evictions refused", last.refused);
        }
        match &self.locked {
            Some(round) => {
                outcome.row("with drain-lock: nodes maintained", nodes(round));
                outcome.row("  duration", seconds(round));
                outcome.row("  evictions refused", round.refused);
            }
            None => outcome.row("drain-lock", "left out"),
        }
        outcome.must_be_none("budget violations", "budget violated", &self.violations);
        for failure in self
            .naive
            .iter()
            .chain(&self.locked)
            .filter_map(|round| round.failed.as_ref())
        {
            outcome.broken(format!("a drain failed: {failure}"));
        }
        if self.naive.last().is_none_or(|round| round.wedge.is_empty()) {
            let rounds = self.naive.len();
            outcome.broken(format!(
                "kubectl drain alone should have wedged, and did not in {rounds} rounds"
            ));
        }
        if let Some(round) = self.locked.as_ref().filter(|round| !round.is_finished()) {
            let (nodes, took) = (nodes(round), seconds(round));
            outcome.broken(format!("with drain-lock {nodes} nodes were maintained in {took}"));
            for waiter in Waiter::all(&round.wedge) {
                outcome.broken(format!("{} waits for {}", waiter.node, waiter.text()));
            }
        }
        outcome
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

    fn promised() -> Rounds {
        Rounds {
            naive: vec![finished(), wedged()],
            locked: Some(finished()),
            violations: Vec::new(),
        }
    }

    #[test]
    fn wedge_and_end_keep_the_promise() {
        assert!(promised().outcome().is_promised());
        let without = Rounds {
            locked: None,
            ..promised()
        };
        assert!(without.outcome().is_promised());
    }

    #[rstest::rstest]
    #[case::never_wedged(|o: &mut Rounds| o.naive = vec![finished(); 5], "did not in 5 rounds")]
    #[case::wedged_too(|o: &mut Rounds| o.locked = Some(wedged()), "db-1 waits for db-2, which has mongo")]
    #[case::too_slow(|o: &mut Rounds| o.locked = Some(Round { maintained: 2, ..finished() }), "2 of 3 nodes")]
    #[case::failed(|o: &mut Rounds| o.locked = Some(Round { failed: Some("no".to_owned()), ..finished() }), "a drain failed: no")]
    #[case::violation(|o: &mut Rounds| o.violations.push("data/kafka".to_owned()), "budget violated: data/kafka")]
    fn unexpected_rounds_break_the_promise(#[case] spoil: fn(&mut Rounds), #[case] says: &str) {
        let mut outcome = promised();
        spoil(&mut outcome);
        assert!(
            outcome.outcome().is_broken_because(says),
            "{}",
            outcome.outcome().verdict()
        );
    }
}
