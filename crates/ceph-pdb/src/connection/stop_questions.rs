//! Which OSDs may be down together: what the manager is asked, and which of its answers count.
//!
//! Both witnesses judge by the statistics of placement groups. So the manager is asked only while these are fresh, and an answer counts
//! only while what they depend on does not change. That OSDs go down or come up that it was asked about changes nothing in it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;
use tokio::time::Instant;

use super::commands::Commands;
use crate::ceph::OsdId;
use crate::ceph::answers::{OkToStop, PgCount};
use crate::ceph::freshness::Basis;
use crate::ceph::reckoning::{PgReport, PoolStates};
use crate::ceph::stop_check::{PgId, StopAnswer, Testimony};
use crate::snapshot::{CephMap, CephProblem, CephProblemKind, CephQuestions};

/// How long to leave the manager alone after it has failed to answer.
const RETRY: Duration = Duration::from_secs(1);

/// How long to go on asking by one report of the placement groups: what is left is asked by the next one.
const WINDOW: Duration = Duration::from_secs(2);

/// So many periods of the statistics an answer counts that is not given anew.
const HOLDS_PERIODS: u32 = 3;

/// So many placement groups are named at most.
const NAMED: usize = 3;

type Osds = BTreeSet<OsdId>;

/// What the questions of this round rest on.
#[derive(Clone, Copy)]
pub(super) struct Round<'a> {
    /// The map.
    pub(super) map: &'a CephMap,
    /// What of it the statistics depend on.
    pub(super) basis: Option<&'a Basis>,
    /// States of the placement groups.
    pub(super) pgs: &'a [PgCount],
    /// The statistics are of now.
    pub(super) is_fresh: bool,
}

/// The questions, and the answers that count.
#[derive(Default)]
pub(super) struct StopQuestions {
    /// Each with the moment from which its time counts.
    answers: BTreeMap<Osds, (Instant, StopAnswer)>,
    /// The newest report, and when it came.
    pool_states: Option<(Instant, PoolStates)>,
    problem: Option<CephProblem>,
    /// What the answers are true of.
    basis: Option<Basis>,
    /// When these answers were asked for, and what the placement groups were like.
    asked_about: Option<(Instant, Vec<PgCount>)>,
    /// What is under way.
    asking: Option<BoxFuture<'static, Answers>>,
    /// What came back, until the next round says whether it counts.
    asked: Option<Answers>,
    retry_at: Option<Instant>,
}

/// What the manager said, up to the first problem.
#[derive(Default)]
struct Answers {
    groups: PgReport,
    verdicts: BTreeMap<Osds, OkToStop>,
    problem: Option<CephProblem>,
}

impl StopQuestions {
    /// The answers that count now.
    pub(super) fn answers(&self) -> BTreeMap<Osds, StopAnswer> {
        let answers = self.answers.iter();
        answers
            .map(|(osds, (_, answer))| (osds.clone(), answer.clone()))
            .collect()
    }

    /// Placement groups by pool, where that is known.
    pub(super) fn pool_states(&self) -> PoolStates {
        let states = self.pool_states.as_ref();
        states.map(|(_, states)| states.clone()).unwrap_or_default()
    }

    /// Why there are none, or not all.
    pub(super) fn problem(&self) -> Option<&CephProblem> {
        self.problem.as_ref()
    }

    /// Returns once the manager has answered or failed to; the next round takes that in.
    pub(super) async fn answered(&mut self) {
        let Some(answers) = &mut self.asking else {
            return std::future::pending().await;
        };
        self.asked = Some(answers.await);
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
        round: Round<'_>,
        questions: &CephQuestions,
        period: Duration,
    ) -> bool {
        let (now, wanted) = (Instant::now(), wanted(questions));
        self.follow(round.basis, now);
        let is_old = |since: Instant| questions.is_watchful && HOLDS_PERIODS * period <= now.duration_since(since);
        self.answers
            .retain(|osds, (since, _)| wanted.contains(osds) && !is_old(*since));
        self.pool_states.take_if(|(since, _)| is_old(*since));
        if !round.is_fresh || (wanted.is_empty() && !questions.wants_pool_states) {
            let answers = std::mem::take(&mut self.answers);
            *self = Self {
                answers,
                basis: self.basis.take(),
                ..Self::default()
            };
            return true;
        }
        self.accept_answers(round.map, now);
        let known: BTreeSet<OsdId> = round.map.dump.osds.iter().map(|osd| osd.id).collect();
        // The manager says yes to OSDs that it does not know.
        let (to_ask, unknown): (BTreeSet<&Osds>, BTreeSet<&Osds>) =
            wanted.into_iter().partition(|osds| osds.is_subset(&known));
        if let Some(osds) = unknown.first() {
            self.problem = Some(unknown_osds(osds.difference(&known)));
        }
        let is_answered = to_ask.iter().all(|osds| self.answers.contains_key(*osds))
            && (self.pool_states.is_some() || !questions.wants_pool_states);
        let is_due = !is_answered || (questions.is_watchful && self.is_outdated(round.pgs, now, period));
        let may_ask = self.retry_at.is_none_or(|at| at <= now);
        let has_any = !to_ask.is_empty() || questions.wants_pool_states;
        if self.asking.is_none() && has_any && is_due && may_ask {
            self.asked_about = Some((now, round.pgs.to_vec()));
            let mut in_turn: Vec<Osds> = to_ask.into_iter().cloned().collect();
            in_turn.sort_by_key(|osds| self.answers.get(osds).map(|(since, _)| *since));
            self.asking = Some(ask(commands.clone(), in_turn).boxed());
        }
        is_answered
    }

    /// Voids the answers that are not true of this map any more. That the rest can do without the OSDs that were asked about stays true
    /// when these go down, and when they come up: only they lack copies then.
    fn follow(&mut self, basis: Option<&Basis>, now: Instant) {
        let Some(basis) = basis.filter(|basis| self.basis.as_ref() != Some(basis)) else {
            return;
        };
        if let Some(before) = self.basis.replace(basis.clone()) {
            self.answers.retain(|osds, _| basis.differs_only_in(&before, osds));
            for (since, _) in self.answers.values_mut() {
                *since = now;
            }
        }
        (self.asking, self.asked, self.pool_states) = (None, None, None);
    }

    fn accept_answers(&mut self, map: &CephMap, now: Instant) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        self.problem = asked.problem;
        self.pool_states = Some((now, asked.groups.states()));
        for (osds, verdict) in asked.verdicts {
            let answer = StopAnswer {
                ceph: Testimony::of_ceph(&verdict),
                own: asked.groups.reckon(&map.dump, &map.tree, &osds),
            };
            let unknown = answer.unknown();
            if unknown.is_empty() {
                self.answers.insert(osds, (now, answer));
            } else {
                self.problem.get_or_insert_with(|| unknown_groups(&unknown));
            }
        }
        self.retry_at = self.problem.is_some().then_some(now + RETRY);
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
async fn ask(commands: Commands, questions: Vec<Osds>) -> Answers {
    let mut answers = Answers::default();
    answers.problem = answers.fill(&commands, questions).await.err();
    answers
}

impl Answers {
    async fn fill(&mut self, commands: &Commands, questions: Vec<Osds>) -> Result<(), CephProblem> {
        let groups = json!({"prefix": "pg dump", "dumpcontents": ["pgs_brief"], "format": "json"});
        let degraded = json!({"prefix": "pg ls", "states": ["degraded"], "format": "json"});
        self.groups = PgReport::new(commands.mgr_json(groups).await?, commands.mgr_json(degraded).await?);
        let began = Instant::now();
        for osds in questions {
            let verdict = ok_to_stop(commands, &osds).await?;
            self.verdicts.insert(osds, verdict);
            if WINDOW <= began.elapsed() {
                break;
            }
        }
        Ok(())
    }
}

async fn ok_to_stop(commands: &Commands, osds: &Osds) -> Result<OkToStop, CephProblem> {
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

fn unknown_groups(groups: &BTreeSet<&PgId>) -> CephProblem {
    let named = groups.iter().take(NAMED).map(|group| group.as_str());
    let named = named.collect::<Vec<_>>().join(", ");
    let message = match groups.len().checked_sub(NAMED) {
        None | Some(0) => format!("of placement groups {named} nothing can be said yet"),
        Some(more) => format!("of placement groups {named} and {more} more nothing can be said yet"),
    };
    CephProblem::new(CephProblemKind::CommandFailed, message)
}

fn unknown_osds<'a>(osds: impl Iterator<Item = &'a OsdId>) -> CephProblem {
    let names: Vec<String> = osds.map(|id| format!("osd.{id}")).collect();
    let message = format!("Ceph's map has no {}", names.join(", "));
    CephProblem::new(CephProblemKind::CommandFailed, message)
}
