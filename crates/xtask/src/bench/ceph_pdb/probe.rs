//! Ceph, asked for what it knows itself: by connections of the benchmark's own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nodeward_testkit::ceph::too_few_copies;
use rados::{Answer, Cluster, Librados, Options};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

/// Between two looks: moments are exact to this.
const LOOKS_EVERY: Duration = Duration::from_millis(25);

/// How long anything may take.
const DEADLINE: Duration = Duration::from_mins(3);

/// Connections of the administrator's.
#[derive(Clone)]
pub struct Probe {
    mon: Arc<Cluster>,
    /// A question to the manager has no timeout.
    mgr: Arc<Cluster>,
}

impl Probe {
    pub async fn connect(admin: &Options) -> Result<Self> {
        let with_timeout = admin.clone();
        let without = Options {
            timeout: None,
            ..admin.clone()
        };
        let connect = |options| Cluster::connect(Librados::load()?, options);
        let connected = tokio::task::spawn_blocking(move || {
            anyhow::Ok(Self {
                mon: Arc::new(connect(with_timeout)?),
                mgr: Arc::new(connect(without)?),
            })
        });
        connected.await?
    }

    async fn mon(&self, prefix: &str) -> Result<Value> {
        let (mon, command) = (Arc::clone(&self.mon), json!({"prefix": prefix, "format": "json"}));
        let answer: Answer = tokio::task::spawn_blocking(move || mon.mon_command(&command)).await??;
        Ok(answer.json()?)
    }

    async fn until(&self, prefix: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Instant> {
        let wait = async {
            while !is_so(&self.mon(prefix).await?) {
                sleep(LOOKS_EVERY).await;
            }
            anyhow::Ok(Instant::now())
        };
        let waited = timeout(DEADLINE, wait).await;
        waited.with_context(|| format!("Ceph: not {what} after {DEADLINE:?}"))?
    }

    /// Waits until a host has `noout`; gives when it was seen.
    pub async fn has_noout(&self, host: &str) -> Result<Instant> {
        self.until("osd dump", "noout", |map| {
            let flags = map["crush_node_flags"][host].as_array();
            flags.is_some_and(|flags| flags.contains(&json!("noout")))
        })
        .await
    }

    /// Waits until all OSDs are up; gives when it was seen.
    pub async fn all_up(&self) -> Result<Instant> {
        self.until("osd dump", "all up", |map| down(map).is_empty()).await
    }

    /// Waits until all placement groups are clean; gives when it was seen. Ceph may say so too early: its statistics lag.
    pub async fn clean(&self) -> Result<Instant> {
        self.until("status", "clean", |status| {
            let mut states = states(status).peekable();
            states.peek().is_some() && states.all(|state| state.starts_with("active+clean"))
        })
        .await
    }

    /// Why an OSD must not go now; `None` if it may.
    pub async fn objection(&self, osd: usize) -> Result<Option<String>> {
        let map = self.mon("osd dump").await?;
        let down = down(&map);
        if !down.is_empty() {
            return Ok(Some(format!("OSDs {down:?} are down")));
        }
        let status = self.mon("status").await?;
        let is_short = |state: &&str| {
            let mut flags = state.split('+');
            !state.contains("active") || flags.any(|flag| matches!(flag, "degraded" | "undersized"))
        };
        if let Some(state) = states(&status).find(is_short) {
            return Ok(Some(format!("placement groups are {state}")));
        }
        let mgr = Arc::clone(&self.mgr);
        let reckoned = tokio::task::spawn_blocking(move || too_few_copies(&mgr, &BTreeSet::from([osd])));
        let lost = timeout(DEADLINE, reckoned)
            .await
            .context("the manager does not answer")???;
        Ok((!lost.is_empty()).then(|| format!("{lost:?} would have too few copies")))
    }
}

fn down(map: &Value) -> Vec<&Value> {
    let osds = map["osds"].as_array().into_iter().flatten();
    osds.filter(|osd| osd["up"] != 1).map(|osd| &osd["osd"]).collect()
}

/// States of placement groups.
fn states(status: &Value) -> impl Iterator<Item = &str> {
    let states = status["pgmap"]["pgs_by_state"].as_array().into_iter().flatten();
    states.filter_map(|state| state["state_name"].as_str())
}
