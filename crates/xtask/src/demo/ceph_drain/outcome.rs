//! What came of the act, and whether it is what was promised.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::demo::outcome::Outcome;

/// What came of the act.
#[derive(Debug, Default)]
pub struct Drains {
    /// Hosts that were drained, rebooted and uncordoned.
    pub drained: usize,
    pub of: usize,
    /// ceph-pdb ran.
    pub is_guarded: bool,
    pub took: Duration,
    /// A drain that failed, in its own words.
    pub failed: Option<String>,
    /// Answers to evictions of the other hosts' OSDs, by status code.
    pub answers: BTreeMap<u16, usize>,
    /// Placement groups that were without service.
    pub without_service: Vec<String>,
    /// Objects that Ceph has taken.
    pub written: usize,
    pub failed_writes: Vec<String>,
    pub lost: Vec<String>,
    /// CRUSH buckets with `noout` at the end.
    pub noout_left: BTreeSet<String>,
}

impl Drains {
    pub fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::new(if self.is_guarded {
            "All hosts were drained with the data in service all the while, whoever else evicted."
        } else {
            "OUT OF SERVICE, as expected: nobody keeps OSDs of a second host. With ceph-pdb (without --without) they stay."
        });
        if !self.is_guarded {
            outcome.row("ceph-pdb", "left out");
        }
        let drained = format!("{} of {}", self.drained, self.of);
        outcome.row("hosts drained", &drained);
        outcome.row("duration", format!("{:.0} s", self.took.as_secs_f32()));
        let answered = |code: u16| self.answers.get(&code).copied().unwrap_or_default();
        let (all, evicted) = (self.answers.values().sum::<usize>(), answered(201));
        outcome.row("evictions of other hosts' OSDs refused", all - evicted);
        outcome.row("  allowed", evicted);
        outcome.row("objects written", self.written);
        if self.is_guarded {
            outcome.must_be_none(
                "placement groups without service",
                "placement group without service",
                &self.without_service,
            );
            outcome.must_be_none("writes that failed", "write failed", &self.failed_writes);
            outcome.must_be_none("objects lost", "object lost", &self.lost);
            let left: Vec<&String> = self.noout_left.iter().collect();
            outcome.must_be_none("noout flags left", "noout left on", &left);
        } else {
            outcome.row("placement groups without service", self.without_service.len());
            outcome.row("writes that failed", self.failed_writes.len());
            outcome.row("objects lost", self.lost.len());
        }
        if let Some(failure) = &self.failed {
            outcome.broken(format!("a drain failed: {failure}"));
        } else if self.drained < self.of {
            outcome.broken(format!("{drained} hosts were drained"));
        }
        if self.written == 0 {
            outcome.broken("no client has written anything");
        }
        if self.is_guarded && all == evicted {
            outcome.broken("nobody was refused to evict an OSD");
        }
        if !self.is_guarded && self.without_service.is_empty() && self.failed_writes.is_empty() {
            outcome.broken("without ceph-pdb data should have been out of service, and was not");
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded() -> Drains {
        Drains {
            drained: 3,
            of: 3,
            is_guarded: true,
            answers: [(201, 2), (429, 100)].into(),
            written: 50,
            ..Drains::default()
        }
    }

    fn unguarded() -> Drains {
        Drains {
            is_guarded: false,
            answers: [(201, 20)].into(),
            without_service: vec!["1.0: undersized+peered".to_owned()],
            ..guarded()
        }
    }

    #[test]
    fn guarded_and_unguarded_drains_keep_the_promise() {
        for drains in [guarded(), unguarded()] {
            assert!(drains.outcome().is_promised(), "{}", drains.outcome().verdict());
        }
    }

    #[rstest::rstest]
    #[case::too_slow(|o: &mut Drains| o.drained = 2, "2 of 3 hosts")]
    #[case::failed(|o: &mut Drains| o.failed = Some("no".to_owned()), "a drain failed: no")]
    #[case::without_service(|o: &mut Drains| o.without_service = vec!["1.0".to_owned()], "without service: 1.0")]
    #[case::failed_write(|o: &mut Drains| o.failed_writes = vec!["late".to_owned()], "write failed: late")]
    #[case::lost(|o: &mut Drains| o.lost = vec!["object-7".to_owned()], "object lost: object-7")]
    #[case::noout(|o: &mut Drains| o.noout_left = ["host-1".to_owned()].into(), "noout left on: host-1")]
    #[case::no_writes(|o: &mut Drains| o.written = 0, "no client has written")]
    #[case::no_refusals(|o: &mut Drains| _ = o.answers.remove(&429), "nobody was refused")]
    #[case::in_service(|o: &mut Drains| *o = Drains { without_service: Vec::new(), ..unguarded() }, "and was not")]
    fn unexpected_drains_break_the_promise(#[case] spoil: fn(&mut Drains), #[case] says: &str) {
        let mut drains = guarded();
        spoil(&mut drains);
        assert!(
            drains.outcome().is_broken_because(says),
            "{}",
            drains.outcome().verdict()
        );
    }
}
