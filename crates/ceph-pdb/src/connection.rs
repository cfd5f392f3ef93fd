//! The connections to Ceph, one for each CephCluster: none waits for another.
//!
//! What Ceph answers reaches the operator's loop like a watch: as a state that is read, and a notification of each change.

mod client;
mod commands;
mod poller;
mod stop_questions;
#[cfg(test)]
mod tests;
mod watched_thread;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use nodeward_runtime::supervise::TaskGuard;
use nodeward_runtime::{Liveness, Metrics, ReconcileTrigger, Supervisor};
use parking_lot::Mutex;
use rados::Options;
use serde_json::json;
use tokio::sync::{Notify, watch};

pub use self::client::{CephClient, RadosClient};
use self::commands::{ClusterMetrics, CommandMetrics, Commands};
use self::poller::Poller;
use crate::snapshot::{CephProblem, CephProblemKind, CephQuestions, CephState, Namespace, Snapshot};

/// Error number of a command whose arguments mean nothing to Ceph.
const EINVAL: i32 = -22;

/// Opens a client. The client notifies `wake` when the cluster log says something.
pub type OpenClient = Arc<dyn Fn(Options, Arc<Notify>) -> io::Result<Arc<dyn CephClient>> + Send + Sync>;

/// What Ceph made of a change of `noout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NooutAnswer {
    /// It is as asked for.
    Done,
    /// There is no such bucket (any more): it has no flag either.
    UnknownBucket,
}

/// The connections. All clones stand for the same.
#[derive(Clone)]
pub struct CephConnections {
    open: OpenClient,
    supervisor: Supervisor,
    trigger: ReconcileTrigger,
    metrics: CommandMetrics,
    clusters: Arc<Mutex<BTreeMap<Namespace, Connection>>>,
}

struct Connection {
    target: Result<Options, CephProblem>,
    metrics: Arc<ClusterMetrics>,
    state: watch::Receiver<CephState>,
    /// `None` while it is not known how to connect.
    polling: Option<Polling>,
}

struct Polling {
    commands: Commands,
    questions: watch::Sender<CephQuestions>,
    wake: Arc<Notify>,
    _task: TaskGuard,
}

impl CephConnections {
    /// None yet. Each change of what Ceph says notifies `trigger`; a thread that hangs in librados fails `liveness`.
    pub fn new(supervisor: &Supervisor, liveness: &Liveness, trigger: ReconcileTrigger, metrics: &Metrics) -> Self {
        let (threads, liveness) = (supervisor.clone(), liveness.clone());
        let open: OpenClient = Arc::new(move |options, wake| {
            let client = RadosClient::spawn(&threads, &liveness, options, wake)?;
            Ok(Arc::new(client))
        });
        Self::with_clients(open, supervisor, trigger, metrics)
    }

    /// As [`CephConnections::new`], with other clients than librados.
    pub fn with_clients(
        open: OpenClient,
        supervisor: &Supervisor,
        trigger: ReconcileTrigger,
        metrics: &Metrics,
    ) -> Self {
        Self {
            open,
            supervisor: supervisor.clone(),
            trigger,
            metrics: CommandMetrics::register(metrics),
            clusters: Arc::default(),
        }
    }

    /// Asks each cluster of a plan what it is to be asked, and closes the connections to all others. Those of namespaces that
    /// cannot be told now stay as they are.
    pub fn follow(&self, snapshot: &Snapshot, questions: BTreeMap<Namespace, CephQuestions>) {
        self.clusters
            .lock()
            .retain(|name, _| questions.contains_key(name) || snapshot.unknown.contains_key(name));
        for (namespace, questions) in questions {
            let target = snapshot
                .clusters
                .get(&namespace)
                .and_then(|cluster| cluster.target.clone());
            if target.is_some() {
                self.set_target(&namespace, target);
            }
            self.ask(&namespace, questions);
        }
    }

    /// Closes all: only the leader asks.
    pub fn close(&self) {
        self.clusters.lock().clear();
    }

    /// How to connect to the cluster of a namespace, or why that is not known; `None` once there is no cluster. What is as it
    /// was changes nothing; another way to connect takes the place of the old one, and what Ceph said last is kept.
    pub fn set_target(&self, namespace: &Namespace, target: Option<Result<Options, CephProblem>>) {
        let mut clusters = self.clusters.lock();
        let Some(target) = target else {
            clusters.remove(namespace);
            return;
        };
        let before = clusters.remove(namespace);
        let connection = match before {
            Some(before) if before.target == target => before,
            before => {
                self.trigger.notify();
                self.connect(namespace, target, before.as_ref())
            }
        };
        clusters.insert(Arc::clone(namespace), connection);
    }

    fn connect(
        &self,
        namespace: &Namespace,
        target: Result<Options, CephProblem>,
        before: Option<&Connection>,
    ) -> Connection {
        let metrics = before.map_or_else(
            || Arc::new(ClusterMetrics::new(&self.metrics, namespace)),
            |before| Arc::clone(&before.metrics),
        );
        let polling = before.and_then(|before| before.polling.as_ref());
        let questions = polling.map(|polling| polling.questions.borrow().clone());
        let state = before.map_or(CephState::Connecting, |before| before.state.borrow().clone());
        let wake = Arc::new(Notify::new());
        let client = target.clone().and_then(|options| {
            (self.open)(options, Arc::clone(&wake)).map_err(|error| {
                let message = format!("no thread for the connection can be started: {error}");
                CephProblem::new(CephProblemKind::Unreachable, message)
            })
        });
        let commands = match client {
            Ok(client) => Commands::new(client, Arc::clone(&metrics)),
            Err(problem) => {
                let silent = state.silenced(problem, Timestamp::now());
                return Connection {
                    target,
                    metrics,
                    state: watch::channel(silent).1,
                    polling: None,
                };
            }
        };
        let (publish, state) = watch::channel(state);
        let (questions, asked) = watch::channel(questions.unwrap_or_default());
        let poller = Poller::new(
            commands.clone(),
            asked,
            Arc::clone(&wake),
            publish,
            self.trigger.clone(),
        );
        let polling = Polling {
            commands,
            questions,
            wake,
            _task: self.supervisor.spawn_guarded("ceph", poller.run()),
        };
        Connection {
            target,
            metrics,
            state,
            polling: Some(polling),
        }
    }

    /// What the cluster of a namespace says.
    pub fn state(&self, namespace: &Namespace) -> CephState {
        let clusters = self.clusters.lock();
        let connection = clusters.get(namespace);
        connection.map_or(CephState::Connecting, |connection| connection.state.borrow().clone())
    }

    /// What to find out from now on. The answers come with the state.
    pub fn ask(&self, namespace: &Namespace, questions: CephQuestions) {
        if let Some(polling) = self.clusters.lock().get(namespace).and_then(|it| it.polling.as_ref()) {
            polling.questions.send_if_modified(|present| {
                let is_new = *present != questions;
                *present = questions;
                is_new
            });
        }
    }

    /// Sets `noout` on a bucket of CRUSH, or takes it off.
    ///
    /// # Errors
    /// There is no connection, Ceph has not answered in time, or it refuses. Without an answer it may be done all the same.
    pub async fn set_noout(&self, namespace: &Namespace, bucket: &str, on: bool) -> Result<NooutAnswer, CephProblem> {
        let (commands, wake) = self.connected(namespace)?;
        let prefix = if on { "osd set-group" } else { "osd unset-group" };
        let command = json!({"prefix": prefix, "flags": "noout", "who": [bucket]});
        let answer = commands.mon(command).await?;
        wake.notify_one();
        if answer.code == EINVAL {
            return Ok(NooutAnswer::UnknownBucket);
        }
        answer.accepted()?;
        Ok(NooutAnswer::Done)
    }

    fn connected(&self, namespace: &Namespace) -> Result<(Commands, Arc<Notify>), CephProblem> {
        let clusters = self.clusters.lock();
        let connection = clusters.get(namespace);
        match connection.map(|connection| (&connection.polling, &connection.target)) {
            Some((Some(polling), _)) => Ok((polling.commands.clone(), Arc::clone(&polling.wake))),
            Some((None, Err(problem))) => Err(problem.clone()),
            Some((None, Ok(_))) | None => Err(CephProblem::new(
                CephProblemKind::Unreachable,
                format!("there is no connection to a Ceph cluster in namespace {namespace}"),
            )),
        }
    }
}
