//! A Ceph cluster in memory, by tokio's clock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rados::Answer;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::connection::CephClient;
use crate::snapshot::{CephProblem, CephProblemKind};

/// What a real client waits for an answer.
const DEADLINE: Duration = Duration::from_secs(12);

/// What can be changed of it while it is asked.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct FakeState {
    pub(super) epoch: i64,
    pub(super) up: Vec<bool>,
    pub(super) pg_state: &'static str,
    pub(super) mons_out: BTreeSet<&'static str>,
    /// Why the monitors do not answer.
    pub(super) mon_problem: Option<CephProblem>,
    pub(super) mons_hang: bool,
    pub(super) mon_delay: Duration,
    pub(super) mgr_reports: bool,
    /// How often OSDs report, in seconds.
    pub(super) period: u64,
    pub(super) mgr_hangs: bool,
    pub(super) mgr_delay: Duration,
    /// What `ok-to-stop` answers.
    pub(super) verdict: (i32, Value),
    /// The pools that `osd dump` lists.
    pub(super) pools: Value,
    /// What `pg dump` answers.
    pub(super) groups: Value,
    /// The monitors know of an active manager.
    pub(super) has_manager: bool,
    /// What a change of `noout` answers.
    pub(super) noout_code: i32,
    /// A command, and what it answers in place of what it should.
    pub(super) garbled: Option<(&'static str, &'static str)>,
    /// Which commands were asked, and when.
    pub(super) asked: Vec<(Instant, Value)>,
    /// When it was asked whether it answers.
    pub(super) asked_to_answer: Vec<Instant>,
    last_report: u64,
}

pub(super) struct FakeCeph {
    state: Mutex<FakeState>,
    began: Instant,
    /// What a line of the cluster log notifies.
    pub(super) log: Arc<Notify>,
}

impl FakeCeph {
    /// Three OSDs, all well.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(FakeState {
                epoch: 10,
                up: vec![true; 3],
                pg_state: "active+clean",
                mons_out: BTreeSet::new(),
                mon_problem: None,
                mons_hang: false,
                mon_delay: Duration::ZERO,
                mgr_reports: true,
                period: 5,
                mgr_hangs: false,
                mgr_delay: Duration::ZERO,
                verdict: (0, json!({"ok_to_stop": true, "num_not_ok_pgs": 0})),
                pools: json!([]),
                groups: json!([]),
                has_manager: true,
                noout_code: 0,
                garbled: None,
                asked: Vec::new(),
                asked_to_answer: Vec::new(),
                last_report: 0,
            }),
            began: Instant::now(),
            log: Arc::default(),
        })
    }

    pub(super) fn change<R>(&self, change: impl FnOnce(&mut FakeState) -> R) -> R {
        change(&mut self.state.lock())
    }

    /// The commands of this name since a moment.
    pub(super) fn asked(&self, prefix: &str, since: Instant) -> Vec<Value> {
        let state = self.state.lock();
        let asked = state.asked.iter().filter(|(at, _)| since <= *at);
        let named = asked.filter(|(_, command)| prefix.is_empty() || command["prefix"] == prefix);
        named.map(|(_, command)| command.clone()).collect()
    }

    fn answer(&self, command: &Value) -> (i32, String) {
        let mut state = self.state.lock();
        if state.mgr_reports {
            state.last_report = self.began.elapsed().as_secs() / state.period;
        }
        if let Some((_, text)) = state.garbled.filter(|(prefix, _)| command["prefix"] == *prefix) {
            return (0, text.to_owned());
        }
        let osds = state.up.iter().enumerate();
        let answer = match command["prefix"].as_str().unwrap_or_default() {
            "status" => json!({
                "election_epoch": state.mons_out.len(),
                "monmap": {"epoch": 1},
                "osdmap": {"epoch": state.epoch},
                "mgrmap": {"available": state.has_manager},
                "pgmap": {"num_pgs": 8, "pgs_by_state": [{"state_name": state.pg_state, "count": 8}]},
            }),
            "osd dump" => {
                let osds: Vec<Value> = osds.map(|(id, up)| json!({"osd": id, "up": up, "in": 1})).collect();
                json!({"epoch": state.epoch, "osds": osds, "pools": state.pools})
            }
            "config get" => return (0, format!("{}\n", state.period)),
            "osd tree" => json!({"nodes": []}),
            "osd crush rule dump" => json!([]),
            "osd metadata" => osds
                .map(|(id, _)| json!({"id": id, "hostname": format!("host-{id}")}))
                .collect(),
            "quorum_status" => {
                let names = ["a", "b", "c"];
                let quorum: Vec<&str> = names
                    .into_iter()
                    .filter(|name| !state.mons_out.contains(name))
                    .collect();
                json!({"quorum_names": quorum, "monmap": {"mons": names.map(|name| json!({"name": name}))}})
            }
            "osd last-stat-seq" => return (0, format!("{}\n", state.last_report)),
            "pg dump" => json!({"pg_stats": state.groups}),
            "pg ls" => json!({"pg_ready": true}),
            "osd ok-to-stop" => return (state.verdict.0, state.verdict.1.to_string()),
            "osd set-group" | "osd unset-group" => return (state.noout_code, String::new()),
            other => panic!("nobody asks {other}"),
        };
        (0, answer.to_string())
    }
}

impl CephClient for FakeCeph {
    fn mon_command(&self, command: Value) -> BoxFuture<'_, Result<Answer, CephProblem>> {
        async move {
            self.change(|state| state.asked.push((Instant::now(), command.clone())));
            self.reach_mons().await?;
            Ok(self.reply(&command))
        }
        .boxed()
    }

    fn mons_answer(&self) -> BoxFuture<'_, Result<(), CephProblem>> {
        self.change(|state| state.asked_to_answer.push(Instant::now()));
        self.reach_mons().boxed()
    }

    fn mgr_command(&self, command: Value) -> BoxFuture<'_, Result<Answer, CephProblem>> {
        async move {
            let (hangs, delay) = self.change(|state| {
                state.asked.push((Instant::now(), command.clone()));
                (state.mgr_hangs, state.mgr_delay)
            });
            if hangs {
                sleep(DEADLINE).await;
                return Err(hung());
            }
            let answer = self.reply(&command);
            sleep(delay).await;
            Ok(answer)
        }
        .boxed()
    }
}

impl FakeCeph {
    async fn reach_mons(&self) -> Result<(), CephProblem> {
        let (hangs, delay, problem) =
            self.change(|state| (state.mons_hang, state.mon_delay, state.mon_problem.clone()));
        if hangs {
            sleep(DEADLINE).await;
            return Err(hung());
        }
        sleep(delay).await;
        problem.map_or(Ok(()), Err)
    }

    fn reply(&self, command: &Value) -> Answer {
        let (code, output) = self.answer(command);
        Answer {
            prefix: command["prefix"].as_str().unwrap_or_default().to_owned(),
            code,
            output: output.into_bytes(),
            status: String::new(),
        }
    }
}

fn hung() -> CephProblem {
    CephProblem {
        kind: CephProblemKind::Hung,
        message: "no answer".into(),
    }
}
