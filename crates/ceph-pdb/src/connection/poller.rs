//! What a cluster is asked, and when: one round of answers after the other.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodeward_runtime::{BackoffPolicy, Backoffs, ReconcileTrigger};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::commands::Commands;
use super::stop_questions::{Round, StopQuestions};
use crate::ceph::answers::{OsdDump, OsdMetadata, OsdTree, QuorumStatus, Rules, Status};
use crate::ceph::freshness::Freshness;
use crate::snapshot::{CephMap, CephProblem, CephProblemKind, CephQuestions, CephState, CephView};

/// Between rounds while something is going on.
const WATCHFUL: Duration = Duration::from_secs(1);

/// Between rounds while nothing is: one cheap command a minute.
const AT_REST: Duration = Duration::from_mins(1);

/// Between rounds the monitors are asked this often whether they answer: with a call's deadline of 12 s, a cluster that hangs at
/// rest is reported within 20 s.
const ANSWERS_EVERY: Duration = Duration::from_secs(7);

/// How often OSDs report what placement groups are like: Ceph's default of `mgr_stats_period`, in seconds.
const STATS_PERIOD: u64 = 5;

/// What is taken of another period.
const STATS_PERIODS: RangeInclusive<u64> = 1..=60;

/// So many periods after connecting, old statistics are no longer due to a process that has not watched for long.
const FRESHNESS_KNOWN_AFTER: u32 = 6;

/// How long a round may take: a cluster that hangs is reported within 20 s of the first question that it does not answer.
const ROUND_DEADLINE: Duration = Duration::from_secs(15);

/// How long to leave a cluster alone that has not answered.
const BACKOFF: BackoffPolicy = BackoffPolicy {
    first: SignedDuration::from_secs(1),
    limit: SignedDuration::from_secs(15),
};

/// Asks one cluster for as long as it runs.
pub(super) struct Poller {
    commands: Commands,
    questions: watch::Receiver<CephQuestions>,
    wake: Arc<Notify>,
    publish: watch::Sender<CephState>,
    trigger: ReconcileTrigger,
    map: Option<Arc<CephMap>>,
    quorum: Option<Arc<Quorum>>,
    freshness: Freshness,
    fresh_since: Option<Timestamp>,
    is_freshness_known: bool,
    first_asked: Option<Instant>,
    /// How often OSDs report what placement groups are like.
    period: Duration,
    reports_due: Instant,
    stop_questions: StopQuestions,
    pause: Duration,
}

/// What the monitors say of each other, after an election.
struct Quorum {
    /// Number of the election, and epoch of the monitors' map.
    epochs: (i64, i64),
    mons_out: BTreeSet<Arc<str>>,
}

impl Poller {
    pub(super) fn new(
        commands: Commands,
        questions: watch::Receiver<CephQuestions>,
        wake: Arc<Notify>,
        publish: watch::Sender<CephState>,
        trigger: ReconcileTrigger,
    ) -> Self {
        Self {
            commands,
            questions,
            wake,
            publish,
            trigger,
            map: None,
            quorum: None,
            freshness: Freshness::default(),
            fresh_since: None,
            is_freshness_known: false,
            first_asked: None,
            period: Duration::from_secs(STATS_PERIOD),
            reports_due: Instant::now(),
            stop_questions: StopQuestions::default(),
            pause: WATCHFUL,
        }
    }

    pub(super) async fn run(mut self) {
        let mut backoffs = Backoffs::new(BACKOFF);
        loop {
            let round = timeout(ROUND_DEADLINE, self.round()).await;
            let ended = match round.unwrap_or_else(|_| Err(too_slow())) {
                Ok(view) => {
                    backoffs.succeeded(&());
                    self.tell(CephState::Answering(Arc::new(view)));
                    self.rest().await
                }
                Err(problem) => Err(problem),
            };
            if let Err(problem) = ended {
                let now = Timestamp::now();
                self.stop_questions.forget();
                let silent = self.publish.borrow().clone().silenced(problem, now);
                self.tell(silent);
                let retry_at = backoffs.failed((), now, None);
                sleep(retry_at.duration_since(now).unsigned_abs()).await;
            }
        }
    }

    fn tell(&self, state: CephState) {
        self.publish.send_replace(state);
        self.trigger.notify();
    }

    /// Until there is a reason for the next round, or the monitors do not answer.
    async fn rest(&mut self) -> Result<(), CephProblem> {
        let end = Instant::now() + self.pause;
        loop {
            let until = end.min(Instant::now() + ANSWERS_EVERY);
            tokio::select! {
                () = sleep_until(until) => {}
                () = self.wake.notified() => return Ok(()),
                Ok(()) = self.questions.changed() => return Ok(()),
                () = self.stop_questions.answered() => return Ok(()),
            }
            if until == end {
                return Ok(());
            }
            self.commands.mons_answer().await?;
        }
    }

    async fn round(&mut self) -> Result<CephView, CephProblem> {
        let asked_at = Timestamp::now();
        let questions = self.questions.borrow_and_update().clone();
        let status: Status = self.commands.mon_json("status").await?;
        let map = self.current_map(&status).await?;
        if !status.mgrmap.available {
            self.freshness.manager_lost();
        }
        let quorum = self.current_quorum(&status).await?;
        self.read_reports().await?;
        let is_fresh = self.freshness.is_fresh();
        self.fresh_since = is_fresh.then(|| self.fresh_since.unwrap_or(asked_at));
        let first_asked = *self.first_asked.get_or_insert_with(Instant::now);
        self.is_freshness_known |= is_fresh || FRESHNESS_KNOWN_AFTER * self.period <= first_asked.elapsed();
        let round = Round {
            map: &map,
            basis: self.freshness.basis(),
            pgs: &status.pgmap.pgs_by_state,
            is_fresh,
        };
        let is_answered = self
            .stop_questions
            .settle(&self.commands, round, &questions, self.period);
        self.pause = match (questions.is_watchful, is_fresh && is_answered) {
            (true, _) => WATCHFUL,
            (false, false) => self.period,
            (false, true) => AT_REST,
        };
        Ok(CephView {
            asked_at,
            status,
            map,
            mons_out_of_quorum: quorum.mons_out.clone(),
            fresh_since: self.fresh_since,
            is_freshness_known: self.is_freshness_known,
            doubt: self.freshness.doubt(),
            basis: self.freshness.fingerprint(),
            stop_answers: self.stop_questions.answers(),
            pool_states: self.stop_questions.pool_states(),
            stop_problem: self.stop_questions.problem().cloned(),
        })
    }

    /// The map, asked for again only when its epoch is another one.
    async fn current_map(&mut self, status: &Status) -> Result<Arc<CephMap>, CephProblem> {
        let before = self.map.clone();
        if let Some(map) = before.as_ref().filter(|map| map.dump.epoch == status.osdmap.epoch) {
            return Ok(Arc::clone(map));
        }
        let dump: OsdDump = self.commands.mon_json("osd dump").await?;
        let tree: OsdTree = self.commands.mon_json("osd tree").await?;
        let rules: Rules = self.commands.mon_json("osd crush rule dump").await?;
        let hostnames = if let Some(before) = before.filter(|before| before.dump.osds == dump.osds) {
            // An OSD that has moved has started since.
            before.hostnames.clone()
        } else {
            let metadata: Vec<OsdMetadata> = self.commands.mon_json("osd metadata").await?;
            let known = metadata.into_iter();
            known.filter_map(|osd| Some((osd.id, osd.hostname?.into()))).collect()
        };
        self.freshness.map_seen(&dump, &tree);
        if !self.freshness.is_fresh() {
            self.fresh_since = None;
            self.reports_due = Instant::now();
            self.period = self.stats_period().await?;
        }
        let map = Arc::new(CephMap {
            dump,
            tree,
            rules: rules.all().to_vec(),
            hostnames,
        });
        self.map = Some(Arc::clone(&map));
        Ok(map)
    }

    /// `mgr_stats_period`, or Ceph's default where it cannot be read.
    async fn stats_period(&mut self) -> Result<Duration, CephProblem> {
        // The name has to be of some manager. All have the same period, unless somebody names one.
        let command = json!({"prefix": "config get", "who": "mgr.x", "key": "mgr_stats_period"});
        let answer = self.commands.mon(command).await?;
        let read = String::from_utf8_lossy(&answer.output).trim().parse::<u64>();
        let seconds = read.ok().filter(|_| answer.accepted().is_ok()).unwrap_or(STATS_PERIOD);
        let seconds = seconds.clamp(*STATS_PERIODS.start(), *STATS_PERIODS.end());
        Ok(Duration::from_secs(seconds))
    }

    /// The quorum, asked for again only after an election or a change of the monitors.
    async fn current_quorum(&mut self, status: &Status) -> Result<Arc<Quorum>, CephProblem> {
        let epochs = (status.election_epoch, status.monmap.epoch);
        if let Some(quorum) = self.quorum.as_ref().filter(|quorum| quorum.epochs == epochs) {
            return Ok(Arc::clone(quorum));
        }
        let said: QuorumStatus = self.commands.mon_json("quorum_status").await?;
        let quorum = Arc::new(Quorum {
            epochs,
            mons_out: said.out_of_quorum().map(Arc::from).collect(),
        });
        self.quorum = Some(Arc::clone(&quorum));
        Ok(quorum)
    }

    /// Whether OSDs have reported since the last change: once a period, and only of those that matter still.
    async fn read_reports(&mut self) -> Result<(), CephProblem> {
        let now = Instant::now();
        if now < self.reports_due {
            return Ok(());
        }
        self.reports_due = now + self.period;
        for osd in self.freshness.outstanding() {
            let command = json!({"prefix": "osd last-stat-seq", "id": osd});
            let answer = self.commands.mon(command).await?;
            // Without a number it has not reported.
            let text = String::from_utf8_lossy(&answer.output);
            if let (Ok(()), Ok(sequence)) = (answer.accepted(), text.trim().parse()) {
                self.freshness.report_seen(osd, sequence);
            }
        }
        Ok(())
    }
}

fn too_slow() -> CephProblem {
    let seconds = ROUND_DEADLINE.as_secs();
    let message = format!("Ceph has not answered all questions within {seconds} s");
    CephProblem::new(CephProblemKind::Hung, message)
}
