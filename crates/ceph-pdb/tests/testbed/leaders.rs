//! An operator that is killed between its steps, and two that both lead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::FutureExt;
use nodeward_testkit::proxy::{Gate, Proxy, Stage, Verdict, Write};
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

/// Each write ends its life, reports included, and it never learns of the outcome. Of the writes of the record of a flag it is each
/// second one: the record is written again right before the command to Ceph, which would never be sent. The budgets of single
/// domains are left out: the plan's property applies their steps one at a time, and here they would take minutes.
#[tokio::test(flavor = "multi_thread")]
async fn operator_killed_after_each_write_goes_on() -> Result<()> {
    let env = Environment::new().await?;
    let proxy = Proxy::start(env.plane).await?;
    let spec = env
        .spec(&json!({"osdBudgets": "single"}))
        .through(&proxy.url())
        .arg("--leader-elect=false");
    let operator = Arc::new(spec.prepare(env.plane).await?);
    let (killed, records) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let gate = {
        let (operator, killed) = (Arc::clone(&operator), Arc::clone(&killed));
        Gate::new(move |write: Write| {
            let (operator, killed, records) = (Arc::clone(&operator), Arc::clone(&killed), Arc::clone(&records));
            async move {
                if write.stage == Stage::Before {
                    return Verdict::Pass;
                }
                let is_record = write.request.name == "rook-ceph-pdbstatemap";
                if is_record && records.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
                    return Verdict::Pass;
                }
                killed.fetch_add(1, Ordering::SeqCst);
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
    let killed = killed.load(Ordering::SeqCst);
    println!("killed {killed} times");
    // Open, closed, and open again; the record of the flag and its end; and what is reported of these.
    ensure!(killed >= 8, "killed {killed} times");
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
