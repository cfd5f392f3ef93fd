//! One Ceph cluster: a thread that asks its monitors, and another that asks its manager.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use nodeward_runtime::blocking_service::{Hung, ServiceState};
use nodeward_runtime::{BlockingService, Liveness, Supervisor};
use rados::{Answer, Cluster, Error, Librados, LogLine, Options};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::watched_thread::WatchedThread;
use crate::snapshot::{CephProblem, CephProblemKind};

/// How long the monitors may take. librados gives up before that by itself, unless it hangs.
const MON_DEADLINE: Duration = Duration::from_secs(12);

/// How long the manager may take. What it has not answered by then is not known, and so not safe.
const MGR_DEADLINE: Duration = Duration::from_secs(5);

/// Between questions over another connection, while a thread hangs.
const ELSEWHERE_EVERY: Duration = Duration::from_mins(1);

/// From this level up the cluster log says what changes, without our own commands (those come at `debug`).
const LOG_LEVEL: &str = "info";

/// The channel of the daemons.
const DAEMONS: &str = "cluster";

/// The channel of the commands that somebody gives.
const COMMANDS: &str = "audit";

/// Commands that change of how many copies a placement group is, and where they are to be.
const CHANGES: [&str; 8] = [
    "osd pool set",
    "osd pool stretch",
    "osd crush ",
    "osd setcrushmap",
    "osd out",
    "osd in",
    "osd reweight",
    "enable_stretch_mode",
];

/// Commands for one Ceph cluster. A refusal is an answer; each future ends within a deadline.
pub trait CephClient: Send + Sync + 'static {
    /// Asks the monitors. They never wait for the manager.
    fn mon_command(&self, command: Value) -> BoxFuture<'_, Result<Answer, CephProblem>>;

    /// Whether the monitors answer: without a command, which would leave a line in their audit log.
    fn mons_answer(&self) -> BoxFuture<'_, Result<(), CephProblem>>;

    /// Asks the manager. While an earlier question is not answered this one is not asked.
    fn mgr_command(&self, command: Value) -> BoxFuture<'_, Result<Answer, CephProblem>>;
}

type Question = Box<dyn FnOnce(&Cluster) -> Result<Answer, Error> + Send>;
type Service = BlockingService<Question, Result<Answer, Error>>;
type Thread = WatchedThread<Question, Result<Answer, Error>>;

/// The real one. It connects when it is first asked, and anew after each failure.
pub struct RadosClient {
    mon: Thread,
    mgr: Thread,
}

impl RadosClient {
    /// Starts its threads. A line of the cluster log notifies `wake`; a thread that hangs fails `liveness`.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn spawn(
        supervisor: &Supervisor,
        liveness: &Liveness,
        options: Options,
        wake: Arc<Notify>,
    ) -> io::Result<Self> {
        // A call to the manager that times out leaves librados with pointers into a stack that is gone.
        let of_mgr = Options {
            timeout: None,
            ..options.clone()
        };
        let start = |name, mut link: Link, elsewhere: Elsewhere| {
            let answered = move || answered(elsewhere.clone());
            Thread::spawn(supervisor, liveness, name, move |question| link.ask(question), answered)
        };
        let elsewhere = |options: &Options, question, deadline| Elsewhere {
            supervisor: supervisor.clone(),
            options: options.clone(),
            question,
            deadline,
        };
        let (ask_mons, ask_mgr) = (
            elsewhere(&options, stored, MON_DEADLINE),
            elsewhere(&of_mgr, summary, MGR_DEADLINE),
        );
        Ok(Self {
            mon: start("ceph mon", Link::new(options, Some(wake)), ask_mons)?,
            mgr: start("ceph mgr", Link::new(of_mgr, None), ask_mgr)?,
        })
    }
}

/// What the monitors answer without a command.
fn stored() -> Question {
    Box::new(|cluster| cluster.cluster_stat().map(|_| Answer::default()))
}

/// A cheap question for the manager.
fn summary() -> Question {
    Box::new(|cluster| cluster.mgr_command(&json!({"prefix": "pg stat"})))
}

/// A question over another connection than the one that hangs.
#[derive(Clone)]
struct Elsewhere {
    supervisor: Supervisor,
    options: Options,
    question: fn() -> Question,
    deadline: Duration,
}

/// Returns once it is answered. A refusal is an answer.
async fn answered(elsewhere: Elsewhere) {
    let mut link = Link::new(elsewhere.options, None);
    let thread = Service::spawn(&elsewhere.supervisor, "ceph again", move |question| link.ask(question));
    let Ok(thread) = thread else {
        return std::future::pending().await;
    };
    let question = elsewhere.question;
    while !matches!(thread.ask(question(), elsewhere.deadline).await, Ok(Ok(_))) {
        sleep(ELSEWHERE_EVERY).await;
    }
}

impl RadosClient {
    async fn ask_mons(&self, question: Question) -> Result<Answer, CephProblem> {
        let answered = self.mon.service.ask(question, MON_DEADLINE).await;
        Ok(answered.map_err(|hung| hung_problem("connection to the monitors", hung))??)
    }
}

impl CephClient for RadosClient {
    fn mon_command(&self, command: Value) -> BoxFuture<'_, Result<Answer, CephProblem>> {
        self.ask_mons(Box::new(move |cluster| cluster.mon_command(&command)))
            .boxed()
    }

    fn mons_answer(&self) -> BoxFuture<'_, Result<(), CephProblem>> {
        async { self.ask_mons(stored()).await.map(drop) }.boxed()
    }

    fn mgr_command(&self, command: Value) -> BoxFuture<'_, Result<Answer, CephProblem>> {
        async {
            let hung = |hung| hung_problem("manager", hung);
            // Asked now, it would wait for its turn, and then nobody for its answer.
            if let ServiceState::InCall { since } = *self.mgr.service.state().borrow() {
                return Err(hung(Hung {
                    deadline: since.elapsed(),
                }));
            }
            let question: Question = Box::new(move |cluster| cluster.mgr_command(&command));
            Ok(self.mgr.service.ask(question, MGR_DEADLINE).await.map_err(hung)??)
        }
        .boxed()
    }
}

/// A connection of librados', on its thread.
struct Link {
    options: Options,
    /// Notified by the cluster log, for those who follow it.
    wake: Option<Arc<Notify>>,
    cluster: Option<Cluster>,
}

impl Link {
    fn new(options: Options, wake: Option<Arc<Notify>>) -> Self {
        Self {
            options,
            wake,
            cluster: None,
        }
    }

    fn ask(&mut self, question: Question) -> Result<Answer, Error> {
        let cluster = match self.cluster.take() {
            Some(cluster) => cluster,
            None => self.connect()?,
        };
        // After a failure it is dropped: the next question begins with a connection of its own. So it is after a denial, for a
        // connection never learns of caps that its user is given later.
        let answer = question(&cluster)?;
        self.cluster = Some(cluster).filter(|_| !answer.is_denied());
        Ok(answer)
    }

    fn connect(&self) -> Result<Cluster, Error> {
        let mut cluster = Cluster::connect(Librados::load()?, self.options.clone())?;
        if let Some(wake) = self.wake.clone() {
            cluster.follow_log(LOG_LEVEL, move |line: LogLine| {
                if tells_of_change(&line) {
                    wake.notify_one();
                }
            })?;
        }
        Ok(cluster)
    }
}

fn tells_of_change(line: &LogLine) -> bool {
    line.channel == DAEMONS || (line.channel == COMMANDS && CHANGES.iter().any(|name| line.message.contains(name)))
}

fn hung_problem(what: &str, hung: Hung) -> CephProblem {
    let seconds = hung.deadline.as_secs();
    CephProblem::new(
        CephProblemKind::Hung,
        format!("the {what} has not answered for {seconds} s"),
    )
}

impl From<Error> for CephProblem {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::LibraryMissing { .. } => CephProblemKind::LibraryMissing,
            Error::KeyTypeUnknown { .. } => CephProblemKind::KeyTypeUnknown,
            Error::Authentication { .. } => CephProblemKind::Authentication,
            Error::Unreachable { .. } => CephProblemKind::Unreachable,
            // What librados does not take comes from a Secret.
            Error::Option { .. } => CephProblemKind::CredentialsMissing,
            Error::Refused { .. } | Error::Unreadable { .. } => CephProblemKind::CommandFailed,
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use rados::LogLine;
    use rstest::rstest;

    use super::tells_of_change;

    #[rstest]
    #[case::daemon("cluster", "osd.2 marked itself down", true)]
    #[case::pool(
        "audit",
        r#"from='client.? ' entity='client.admin' cmd='[{"prefix": "osd pool set", "pool": "two"}]': finished"#,
        true
    )]
    #[case::crush(
        "audit",
        r#"cmd='[{"prefix": "osd crush reweight", "name": "osd.0"}]': finished"#,
        true
    )]
    #[case::stretch_mode(
        "audit",
        r#"cmd='[{"prefix": "mon enable_stretch_mode", "tiebreaker_mon": "c"}]': finished"#,
        true
    )]
    #[case::our_own("audit", r#"cmd='[{"prefix": "osd set-group", "flags": "noout"}]': finished"#, false)]
    #[case::other("audit", r#"cmd='[{"prefix": "auth get-or-create"}]': finished"#, false)]
    fn changes_of_copies_are_told_by_the_log(#[case] channel: &str, #[case] message: &str, #[case] expected: bool) {
        let line = LogLine {
            channel: channel.to_owned(),
            who: "mon.a".to_owned(),
            level: "[INF]".to_owned(),
            message: message.to_owned(),
        };
        assert_eq!(tells_of_change(&line), expected);
    }
}
