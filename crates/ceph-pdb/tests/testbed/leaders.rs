//! An operator that is killed between its steps, and two that both lead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::FutureExt;
use nodeward_testkit::proxy::{ApiRequest, Gate, Proxy, Stage, Verdict, Write};
use nodeward_testkit::wait;
use serde_json::json;

use crate::environment::{DEADLINE, Environment, SEVERAL_PERIODS};

/// Each life of an operator begins by waiting for fresh statistics, for two of Ceph's periods.
const ALL_LIVES: Duration = Duration::from_mins(5);

async fn drain_and_bring_back(env: &Environment) -> Result<()> {
    env.drain(0).await?;
    let host = env.rook.node_of(0);
    env.noout_is([&host]).await?;
    let closed = || env.is_closed_but_for("rack-0");
    wait::until("closed", DEADLINE, closed).await?;
    wait::throughout("closed", SEVERAL_PERIODS, closed).await?;
    env.bring_back(0).await?;
    env.open_within(ALL_LIVES).await?;
    env.noout_is([]).await?;
    env.no_records().await
}

/// A write of a budget or of a record, unlike those that only report.
fn protects(request: &ApiRequest) -> bool {
    request.resource == "poddisruptionbudgets" || request.name == "rook-ceph-pdbstatemap"
}

/// Each second such write ends its life, and it never learns of the outcome. Were it each one, no flag would ever be set: the
/// record is written again right before. The budgets of single domains are left out: the plan's property applies their steps one
/// at a time, and here they would take minutes.
#[tokio::test(flavor = "multi_thread")]
async fn operator_killed_between_steps_goes_on() -> Result<()> {
    let env = Environment::new().await?;
    let proxy = Proxy::start(env.plane).await?;
    let spec = env
        .spec(&json!({"osdBudgets": "single"}))
        .through(&proxy.url())
        .arg("--leader-elect=false");
    let operator = Arc::new(spec.prepare(env.plane).await?);
    let writes = Arc::new(AtomicU64::new(0));
    let gate = {
        let (operator, writes) = (Arc::clone(&operator), Arc::clone(&writes));
        Gate::new(move |write: Write| {
            let (operator, writes) = (Arc::clone(&operator), Arc::clone(&writes));
            async move {
                if write.stage == Stage::Before || !protects(&write.request) {
                    return Verdict::Pass;
                }
                if writes.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
                    return Verdict::Pass;
                }
                if let Err(error) = operator.process().restart() {
                    eprintln!("it does not start again: {error:#}");
                }
                Verdict::Cut
            }
            .boxed()
        })
    };
    proxy.set_gate(Some(gate));
    operator.process().start()?;
    env.open_within(ALL_LIVES).await?;
    drain_and_bring_back(&env).await?;
    let writes = writes.load(Ordering::SeqCst);
    println!("killed after each second of {writes} writes");
    ensure!(writes >= 8, "{writes} writes");
    // The proxy keeps the gate, and the gate the operator.
    proxy.set_gate(None);
    operator.process().kill();
    env.end([]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_leaders_come_to_the_same_end() -> Result<()> {
    let env = Environment::new().await?;
    let leader = |name: &str| env.spec(&json!({})).identity(name).arg("--leader-elect=false");
    let operators = [env.run(leader("one")).await?, env.run(leader("another")).await?];
    env.open().await?;
    drain_and_bring_back(&env).await?;
    // Statistics may be fresh for one of them some seconds before they are for the other.
    wait::until("agreement", DEADLINE, || async {
        let mark = env.plane.audit().mark()?;
        wait::throughout("no write", SEVERAL_PERIODS, || async {
            let writes = env.writes_since(mark)?;
            ensure!(writes.count() == 0, "{:?}", writes.0);
            Ok(())
        })
        .await
    })
    .await?;
    env.end(operators).await
}
