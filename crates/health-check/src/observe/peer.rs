//! Whether medik8s' own controller runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodeward_core::id::NamespacedName;
use nodeward_runtime::Readiness;

use super::leader_leases::{Answers, LeaderLeases};
use crate::snapshot::Reading;

/// Name of its leader lease.
const PEER_LEASE: &str = "e1f13584.medik8s.io";

/// Where its leader lease may be.
pub(super) fn leases(namespaces: &BTreeSet<Arc<str>>) -> impl Iterator<Item = NamespacedName> {
    let namespaces = namespaces.iter();
    namespaces.map(|namespace| NamespacedName::new(Arc::clone(namespace), PEER_LEASE))
}

/// A process that has not looked yet is not ready.
pub(super) fn require(readiness: &Readiness, answers: &Answers, namespaces: &BTreeSet<Arc<str>>) {
    let (answers, leases): (_, Vec<_>) = (answers.clone(), leases(namespaces).collect());
    readiness.require("peer", move || leases.iter().try_for_each(|lease| answers.has(lease)));
}

/// Tells whether the peer leads.
#[derive(Default)]
pub(super) struct Peer {
    /// What was said last.
    said: Option<String>,
}

impl Peer {
    /// The live leader of the peer, and where.
    ///
    /// # Errors
    /// Since this process leads it has not looked yet.
    pub(super) fn live(
        &mut self,
        leases_of: &LeaderLeases,
        namespaces: &BTreeSet<Arc<str>>,
    ) -> Result<Reading<Option<String>>, String> {
        let live = find(leases(namespaces).map(|lease| {
            let holder = leases_of.holder(&lease)?;
            Ok(match holder {
                Reading::Known(live) => {
                    Reading::Known(live.map(|live| format!("{} in namespace {}", live.holder, lease.namespace)))
                }
                Reading::Unknown(why) => Reading::Unknown(format!("whether medik8s' own controller runs: {why}")),
            })
        }))?;
        if let Reading::Known(live) = &live {
            match (&self.said, live) {
                (None, Some(live)) => {
                    tracing::warn!("medik8s' own controller runs ({live}): nothing is written beside it");
                }
                (Some(_), None) => tracing::info!("medik8s' own controller does not run any more"),
                _ => {}
            }
            self.said.clone_from(live);
        }
        Ok(live)
    }
}

/// One that is live counts, whatever is not known of others.
fn find(
    answers: impl Iterator<Item = Result<Reading<Option<String>>, String>>,
) -> Result<Reading<Option<String>>, String> {
    let mut found = Ok(Reading::Known(None));
    for answer in answers {
        match (&found, answer) {
            (_, Ok(Reading::Known(Some(live)))) => return Ok(Reading::Known(Some(live))),
            (Ok(_), Err(why)) => found = Err(why),
            (Ok(Reading::Known(_)), Ok(Reading::Unknown(why))) => found = Ok(Reading::Unknown(why)),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    type Answer = Result<Reading<Option<String>>, &'static str>;

    const NOBODY: Answer = Ok(Reading::Known(None));
    const NOT_YET: Answer = Err("is being read");

    fn live() -> Reading<Option<String>> {
        Reading::Known(Some("nhc-1".to_owned()))
    }

    fn unknown(why: &str) -> Reading<Option<String>> {
        Reading::Unknown(why.to_owned())
    }

    #[rstest]
    #[case::nowhere(vec![], NOBODY)]
    #[case::in_none(vec![NOBODY, NOBODY], NOBODY)]
    #[case::in_one(vec![NOBODY, Ok(live())], Ok(live()))]
    #[case::in_one_beside_an_unreadable_one(vec![Ok(unknown("403")), Ok(live())], Ok(live()))]
    #[case::unreadable(vec![NOBODY, Ok(unknown("403")), Ok(unknown("500"))], Ok(unknown("403")))]
    #[case::not_looked_at_yet(vec![Ok(unknown("403")), NOT_YET, NOBODY], NOT_YET)]
    fn one_live_leader_is_enough(#[case] answers: Vec<Answer>, #[case] expected: Answer) {
        let answers = answers.into_iter().map(|answer| answer.map_err(str::to_owned));
        assert_eq!(find(answers), expected.map_err(str::to_owned));
    }
}
