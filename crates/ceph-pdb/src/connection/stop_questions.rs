//! Which OSDs may be down together: what the manager is asked, and which of its answers count.
//!
//! It judges by the statistics of placement groups. So it is asked only while these are fresh, and an answer counts only if the
//! map has not changed since it was asked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;
use tokio::time::Instant;

use super::commands::Commands;
use crate::ceph::OsdId;
use crate::ceph::answers::{OkToStop, OsdDump, PgCount};
use crate::snapshot::{CephProblem, CephProblemKind, CephQuestions};

/// How long to leave the manager alone after it has failed to answer.
const RETRY: Duration = Duration::from_secs(1);

/// How long a view without answers is held back while a new map has them asked again: it would close budgets for an instant.
const WITHHOLD: Duration = Duration::from_secs(2);

type Osds = BTreeSet<OsdId>;

/// What the questions of this round rest on.
#[derive(Clone, Copy)]
pub(super) struct Basis<'a> {
    /// The map.
    pub(super) dump: &'a OsdDump,
    /// States of the placement groups.
    pub(super) pgs: &'a [PgCount],
    /// The statistics are of now.
    pub(super) is_fresh: bool,
}

/// The questions, and the answers that count.
#[derive(Default)]
pub(super) struct StopQuestions {
    answers: BTreeMap<Osds, OkToStop>,
    problem: Option<CephProblem>,
    /// Of the map that the answers are true of.
    epoch: i64,
    /// When these answers were asked for, and what the placement groups were like.
    asked_about: Option<(Instant, Vec<PgCount>)>,
    /// What is under way, in the epoch in which it was asked.
    asking: Option<(i64, BoxFuture<'static, Answers>)>,
    /// What came back, until the next round says whether it counts.
    asked: Option<(i64, Answers)>,
    retry_at: Option<Instant>,
    withheld_until: Option<Instant>,
}

struct Answers {
    known: BTreeMap<Osds, OkToStop>,
    problem: Option<CephProblem>,
}

impl StopQuestions {
    /// The answers that count now.
    pub(super) fn answers(&self) -> &BTreeMap<Osds, OkToStop> {
        &self.answers
    }

    /// Why there are none, or not all.
    pub(super) fn problem(&self) -> Option<&CephProblem> {
        self.problem.as_ref()
    }

    /// Whether to wait with what is known: the answers of the map before are void, and those of this one are on their way.
    pub(super) fn withholds(&self) -> bool {
        self.asking.is_some() && self.withheld_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns once the manager has answered or failed to; the next round takes that in.
    pub(super) async fn answered(&mut self) {
        let Some((epoch, answers)) = &mut self.asking else {
            return std::future::pending().await;
        };
        self.asked = Some((*epoch, answers.await));
        self.asking = None;
    }

    /// Nothing said so far counts any more.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Takes in what came back, and asks what is to be asked. Whether all that is wanted is answered.
    pub(super) fn settle(
        &mut self,
        commands: &Commands,
        basis: Basis<'_>,
        questions: &CephQuestions,
        period: Duration,
    ) -> bool {
        let (now, wanted) = (Instant::now(), wanted(questions));
        if !basis.is_fresh || wanted.is_empty() {
            self.forget();
            return true;
        }
        self.accept_answers(basis.dump.epoch, now);
        self.answers.retain(|osds, _| wanted.contains(osds));
        let known: BTreeSet<OsdId> = basis.dump.osds.iter().map(|osd| osd.id).collect();
        // The manager says yes to OSDs that it does not know.
        let (to_ask, unknown): (BTreeSet<&Osds>, BTreeSet<&Osds>) =
            wanted.into_iter().partition(|osds| osds.is_subset(&known));
        if let Some(osds) = unknown.first() {
            self.problem = Some(unknown_osds(osds.difference(&known)));
        }
        let is_answered = to_ask.iter().all(|osds| self.answers.contains_key(*osds));
        let is_due = !is_answered || (questions.is_watchful && self.is_outdated(basis.pgs, now, period));
        let may_ask = self.retry_at.is_none_or(|at| at <= now);
        if self.asking.is_none() && !to_ask.is_empty() && is_due && may_ask {
            self.asked_about = Some((now, basis.pgs.to_vec()));
            let answers = ask(commands.clone(), to_ask.into_iter().cloned().collect());
            self.asking = Some((basis.dump.epoch, answers.boxed()));
        }
        is_answered
    }

    fn accept_answers(&mut self, epoch: i64, now: Instant) {
        if self.epoch != epoch {
            if !self.answers.is_empty() {
                self.withheld_until = Some(now + WITHHOLD);
            }
            self.answers.clear();
            self.epoch = epoch;
        }
        let Some((_, asked)) = self.asked.take().filter(|(asked_in, _)| *asked_in == epoch) else {
            return;
        };
        self.withheld_until = None;
        self.retry_at = asked.problem.is_some().then_some(now + RETRY);
        self.answers = asked.known;
        self.problem = asked.problem;
    }

    /// Whether there are newer statistics than those that the answers are about.
    fn is_outdated(&self, pgs: &[PgCount], now: Instant, period: Duration) -> bool {
        let about = self.asked_about.as_ref();
        about.is_none_or(|(asked_at, asked_pgs)| period <= now.duration_since(*asked_at) || asked_pgs != pgs)
    }
}

fn wanted(questions: &CephQuestions) -> BTreeSet<&Osds> {
    questions.may_stop.iter().filter(|osds| !osds.is_empty()).collect()
}

/// Asks one after the other. Where one fails the rest is not asked.
async fn ask(commands: Commands, questions: BTreeSet<Osds>) -> Answers {
    let (mut known, mut problem) = (BTreeMap::new(), None);
    for osds in questions {
        match ask_one(&commands, &osds).await {
            Ok(answer) if answer.unknown_pgs.is_empty() => {
                known.insert(osds, answer);
            }
            Ok(answer) => problem = Some(unknown_pgs(&answer)),
            Err(failed) => {
                problem = Some(failed);
                break;
            }
        }
    }
    Answers { known, problem }
}

async fn ask_one(commands: &Commands, osds: &Osds) -> Result<OkToStop, CephProblem> {
    let ids: Vec<String> = osds.iter().map(OsdId::to_string).collect();
    let answer = commands
        .mgr(json!({"prefix": "osd ok-to-stop", "ids": ids, "format": "json"}))
        .await?;
    // A no is a refusal with the reasons as its output, and so is "not known yet".
    match answer.json_anyway() {
        Ok(verdict) => Ok(verdict),
        Err(unreadable) => {
            answer.accepted()?;
            Err(unreadable.into())
        }
    }
}

fn unknown_pgs(answer: &OkToStop) -> CephProblem {
    let count = answer.unknown_pgs.len();
    let message = format!("the manager knows nothing yet of {count} placement groups");
    CephProblem::new(CephProblemKind::CommandFailed, message)
}

fn unknown_osds<'a>(osds: impl Iterator<Item = &'a OsdId>) -> CephProblem {
    let names: Vec<String> = osds.map(|id| format!("osd.{id}")).collect();
    let message = format!("Ceph's map has no {}", names.join(", "));
    CephProblem::new(CephProblemKind::CommandFailed, message)
}
