//! What networks and loaded servers do between ceph-pdb and the API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::policy::v1::PodDisruptionBudgetSpec;
use nodeward_testkit::pause::{self, CutOff};
use nodeward_testkit::proxy::{ApiRequest, Fault, Mark, Outcome, Proxy, Rule, Verb};
use nodeward_testkit::wait;
use serde_json::{Value, json};

use crate::environment::{DEADLINE, Environment, SEVERAL_PERIODS};

const BUDGETS: &str = "poddisruptionbudgets";

/// Longer than the operator waits for an answer.
const TOO_LATE: Duration = Duration::from_secs(36);

/// Retries after failures take longer and longer.
const AFTER_FAULTS: Duration = Duration::from_mins(5);

fn internal() -> Fault {
    Fault::Status(500, "InternalError")
}

fn conflict() -> Fault {
    Fault::Status(409, "Conflict")
}

/// The requests of which `is_meant` is true meet these faults, one each: of several rules that meet a request, all strike at once.
fn spoil(proxy: &Proxy, is_meant: fn(&ApiRequest) -> bool, faults: &[Fault]) {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    let counts = move |_: &ApiRequest| {
        counting.fetch_add(1, Ordering::SeqCst);
        false
    };
    proxy.inject(Rule::new(internal()).when(is_meant).when(counts));
    for (number, fault) in (1..).zip(faults) {
        let count = Arc::clone(&count);
        let is_next = move |_: &ApiRequest| count.load(Ordering::SeqCst) == number;
        proxy.inject(Rule::new(fault.clone()).when(is_meant).when(is_next));
    }
}

/// Each kind of failed write, of each kind of object; those of budgets meet `more`, too.
fn spoil_writes(proxy: &Proxy, more: &[Fault]) {
    let throttled = Fault::TooManyRequests { retry_after: Some(1) };
    let faults = [
        conflict(),
        throttled,
        internal(),
        Fault::LostReply,
        Fault::BrokenConnection,
    ];
    let of_budgets = |asked: &ApiRequest| asked.is_write() && asked.resource == BUDGETS;
    let of_reports = |asked: &ApiRequest| asked.is_write() && asked.resource == "configmaps";
    spoil(proxy, of_budgets, &[&faults, more].concat());
    spoil(proxy, of_reports, &faults);
}

fn spoil_watches(proxy: &Proxy) {
    let kinds = [Fault::Gone, Fault::GoneEvent, internal()];
    let faults: Vec<Fault> = std::iter::repeat_n(kinds, 3).flatten().collect();
    spoil(proxy, |asked| asked.verb == Verb::Watch, &faults);
    proxy.drop_watches();
}

async fn specs(env: &Environment) -> Result<Vec<(String, Option<PodDisruptionBudgetSpec>)>> {
    let budgets = env.osd_budgets().await?.into_iter();
    Ok(budgets.map(|(name, budget)| (name, budget.spec)).collect())
}

/// Waits until the operator has tried to write a budget, in vain, more than once.
async fn refused_twice(env: &Environment, proxy: &Proxy, mark: Mark) -> Result<()> {
    wait::until("two refused writes of budgets", AFTER_FAULTS, || async {
        let refused = proxy.since(mark).into_iter().filter(|record| {
            let request = &record.request;
            request.resource == BUDGETS && request.is_write() && record.outcome == Outcome::Injected(500)
        });
        let refused = refused.count();
        ensure!(refused >= 2, "{refused}, state {}", env.state().await?);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn api_faults_leave_budgets_at_last_safe_state() -> Result<()> {
    let env = Environment::new().await?;
    let proxy = Proxy::start(env.plane).await?;
    spoil_watches(&proxy);
    spoil_writes(&proxy, &[]);
    let operator = env.run(env.spec(&json!({})).through(&proxy.url())).await?;
    env.open_within(AFTER_FAULTS).await?;

    proxy.heal();
    // It cannot close: what protects is the open budget, which counts the OSD that is away.
    let mark = proxy.mark();
    let refused = || Rule::new(internal()).writes().resource(BUDGETS);
    let refusal = proxy.inject(refused());
    let open = specs(&env).await?;
    env.drain(0).await?;
    refused_twice(&env, &proxy, mark).await?;
    ensure!(specs(&env).await? == open, "{:?}", specs(&env).await?);
    let closed = || env.is_closed_but_for("rack-0");
    closed().await?;
    proxy.remove(refusal);
    spoil_writes(&proxy, &[]);
    spoil_watches(&proxy);
    until_left_out(&env, AFTER_FAULTS).await?;
    wait::throughout("closed", SEVERAL_PERIODS, closed).await?;

    proxy.heal();
    // It cannot open, either.
    let (mark, before) = (proxy.mark(), specs(&env).await?);
    let refusal = proxy.inject(refused());
    env.bring_back(0).await?;
    refused_twice(&env, &proxy, mark).await?;
    ensure!(specs(&env).await? == before, "{:?}", specs(&env).await?);
    closed().await?;
    proxy.remove(refusal);
    // One of the steps takes place after it was given up.
    spoil_writes(&proxy, &[Fault::Delay(TOO_LATE)]);
    env.open_within(AFTER_FAULTS).await?;
    env.noout_is([]).await?;
    env.no_records().await?;
    proxy.heal();

    // Ceph's word alone closes, while no watch tells anything.
    proxy.freeze().await?;
    env.ceph().stop_osd(1).await?;
    wait::until("closed by Ceph's word", DEADLINE, || env.is_closed_but_for("rack-1")).await?;
    wait::throughout("closed", SEVERAL_PERIODS, || env.is_closed_but_for("rack-1")).await?;
    spoil_watches(&proxy);
    proxy.thaw_to_present().await?;
    env.ceph().start_osd(1)?;
    env.open_within(AFTER_FAULTS).await?;
    let met = proxy.count(|record| {
        let is_spoiled = matches!(
            record.outcome,
            Outcome::Injected(_) | Outcome::Lost(_) | Outcome::Broken
        );
        is_spoiled && record.request.is_write() && record.request.resource == BUDGETS
    });
    println!("{met} writes of budgets met a fault");
    ensure!(met >= 15, "{met} writes of budgets met a fault");
    env.end([operator]).await
}

async fn until_left_out(env: &Environment, deadline: Duration) -> Result<()> {
    wait::until("its domain to be left out", deadline, || async {
        let state = env.state().await?;
        ensure!(
            state["exemptDomain"] == "rack-0" && specs(env).await?.len() == 3,
            "{state}"
        );
        Ok(())
    })
    .await
}

/// The watch of the emergency stop is cut off, and its reads fail: what closes goes on. Then somebody pauses ceph-pdb.
#[tokio::test(flavor = "multi_thread")]
async fn pause_that_no_watch_tells_of_opens_nothing() -> Result<()> {
    let env = Environment::new().await?;
    let proxy = Proxy::start(env.plane).await?;
    let operator = env.run(env.spec(&json!({})).through(&proxy.url())).await?;
    env.open().await?;
    env.drain(0).await?;
    let closed = || env.is_closed_but_for("rack-0");
    until_left_out(&env, DEADLINE).await?;
    let says = async |metric: &str| {
        wait::until(format!("{metric} to be 1"), DEADLINE, || async {
            let value = operator.metrics().await?.value(metric, &[]);
            ensure!(value.is_some_and(|value| value > 0.5), "{value:?}");
            Ok(())
        })
        .await
    };
    CutOff::Throttled.watch(&proxy);
    let unread = CutOff::Refused.reads(&proxy);
    env.bring_back(0).await?;
    says("nodeward_ceph_pdb_pause_unknown").await?;
    wait::throughout("closed", SEVERAL_PERIODS, closed).await?;

    pause::write(&env.client, &env.system, json!({ "ceph-pdb": "INC-1" })).await?;
    proxy.remove(unread);
    says("nodeward_ceph_pdb_paused").await?;
    wait::throughout("closed", SEVERAL_PERIODS, closed).await?;

    pause::write(&env.client, &env.system, Value::Null).await?;
    env.open().await?;
    env.noout_is([]).await?;
    env.end([operator]).await
}
