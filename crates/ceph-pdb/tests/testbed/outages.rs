//! Parts of Ceph that do not answer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::DeleteParams;
use nodeward_testkit::fleet;
use nodeward_testkit::wait;
use serde_json::json;

use crate::environment::{DEADLINE, DEFAULT, Environment, SEVERAL_PERIODS, hosts};

/// The monitors repeat the last statistics that a manager gave them: all clean.
#[tokio::test(flavor = "multi_thread")]
async fn budgets_stay_closed_without_a_manager() -> Result<()> {
    let env = Environment::new().await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    env.ceph().mgr().kill();
    env.drain(0).await?;
    let closed = || env.is_closed_but_for("rack-0");
    wait::until("closed", DEADLINE, closed).await?;
    env.condition("NoManager").await?;
    wait::throughout("closed with an OSD down", SEVERAL_PERIODS, closed).await?;
    env.bring_back(0).await?;
    wait::throughout("closed with all OSDs up", SEVERAL_PERIODS, closed).await?;
    env.ceph().mgr().start()?;
    env.open().await?;
    env.noout_is([]).await?;
    env.end([operator]).await
}

/// The pod of OSD 1 is on its way out for ever, and the OSD runs on.
#[tokio::test(flavor = "multi_thread")]
async fn osd_of_a_dead_kubelet_is_left_out() -> Result<()> {
    let env = Environment::new().await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    let node = env.rook.node_of(1);
    let dead = env.rook.delay_stops().await;
    fleet::cordon(&env.client, &node).await?;
    let pods = env.rook.osd_pods(1).await?;
    let pod = pods.first().context("no pod")?.name_any();
    env.rook
        .pods()
        .delete(&pod, &DeleteParams::default().grace_period(1))
        .await?;
    let closed = || env.is_closed_but_for("rack-1");
    wait::until("closed", DEADLINE, closed).await?;
    fleet::stop_kubelet(&env.client, &node).await?;
    let long_ago = Timestamp::now() - SignedDuration::from_mins(11);
    fleet::not_ready_since(&env.client, &node, long_ago).await?;
    env.condition("OsdPodAbandoned").await?;
    wait::until("the others to go one at a time", DEADLINE, || async {
        let may_go = env.may_go().await?;
        ensure!(
            may_go.iter().eq(&[0, 2]),
            "{may_go:?} may go, state {}",
            env.state().await?
        );
        Ok(())
    })
    .await?;
    // The kubelet starts, and ends the pod.
    fleet::start_kubelet(&env.client, &node).await?;
    wait::until("closed again", DEADLINE, closed).await?;
    drop(dead);
    env.rook.osd_gone(1, DEADLINE).await?;
    env.bring_back(1).await?;
    env.open().await?;
    env.end([operator]).await
}

async fn budgets_are_kept_and_it_is_said(env: &Environment) -> Result<()> {
    let specs = || async {
        let budgets = env.budgets().await?;
        anyhow::Ok(
            budgets
                .into_iter()
                .map(|(name, budget)| (name, budget.spec))
                .collect::<Vec<_>>(),
        )
    };
    let before = specs().await?;
    env.reported_unavailable().await?;
    wait::throughout("budgets as they were", SEVERAL_PERIODS, || async {
        let now = specs().await?;
        ensure!(now == before, "{now:?} instead of {before:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_stay_as_they_are_without_monitors() -> Result<()> {
    let env = Environment::new().await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    // By now it is asked once a minute only.
    wait::throughout("rest", SEVERAL_PERIODS, || env.is_open()).await?;
    env.ceph().mon(0).pause()?;
    budgets_are_kept_and_it_is_said(&env).await?;
    env.ceph().mon(0).resume()?;
    env.open().await?;

    env.drain(0).await?;
    let closed = || env.is_closed_but_for("rack-0");
    wait::until("closed", DEADLINE, closed).await?;
    env.noout_is([&env.rook.node_of(0)]).await?;
    env.ceph().mon(0).kill();
    env.reported_unavailable().await?;
    wait::throughout("closed", SEVERAL_PERIODS, closed).await?;
    env.ceph().mon(0).start()?;
    env.bring_back(0).await?;
    env.open().await?;
    env.noout_is([]).await?;
    env.end([operator]).await
}

/// The budget of another cluster closes while a first one hangs: neither its monitors nor its manager answer.
#[tokio::test(flavor = "multi_thread")]
async fn hung_cluster_delays_closing_of_no_other() -> Result<()> {
    let (env, others) = Environment::with_clusters([hosts(3), hosts(3)]).await?;
    let other = others.first().context("one cluster")?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    let max_unavailable = || async {
        let budget = other.budgets().get_opt(DEFAULT).await?.context("no budget")?;
        let is_in_force = budget.status.and_then(|status| status.observed_generation) == budget.metadata.generation;
        let allowed = budget.spec.and_then(|spec| spec.max_unavailable);
        anyhow::Ok(allowed.filter(|_| is_in_force))
    };
    wait::until("the other one to be open", DEADLINE, || async {
        let allowed = max_unavailable().await?;
        ensure!(allowed == Some(IntOrString::Int(1)), "{allowed:?}");
        Ok(())
    })
    .await?;
    for part in [env.ceph().mon(0), env.ceph().mgr()] {
        part.pause()?;
    }
    env.reported_unavailable().await?;

    fleet::cordon(&env.client, &other.node_of(0)).await?;
    wait::until("an OSD of the other one to be evicted", DEADLINE, || async {
        let code = other.evict_osd(0).await?;
        ensure!(code == Some(201), "{code:?}");
        Ok(())
    })
    .await?;
    let evicted = Instant::now();
    // Asked for without pauses, for the figure.
    let closed = async {
        while max_unavailable().await? != Some(IntOrString::Int(0)) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        anyhow::Ok(evicted.elapsed())
    };
    let took = tokio::time::timeout(DEADLINE, closed)
        .await
        .context("it stays open")??;
    println!("beside a cluster that hangs another one is closed after {took:?}");
    env.has_condition("CephUnavailable").await?;
    // And opens.
    other.osd_gone(0, DEADLINE).await?;
    fleet::uncordon(&env.client, &other.node_of(0)).await?;
    other.ceph().all_up().await?;
    wait::until("the other one to be open again", DEADLINE, || async {
        let allowed = max_unavailable().await?;
        ensure!(allowed == Some(IntOrString::Int(1)), "{allowed:?}");
        Ok(())
    })
    .await?;
    env.has_condition("CephUnavailable").await?;
    for part in [env.ceph().mon(0), env.ceph().mgr()] {
        part.resume()?;
    }
    env.open().await?;
    env.end([operator]).await
}

/// A call to the manager has no timeout in librados: its thread is inside for as long as the manager hangs.
#[tokio::test(flavor = "multi_thread")]
async fn operator_ends_in_order_while_librados_hangs() -> Result<()> {
    let env = Environment::new().await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    ensure!(!env.leader().await?.is_empty(), "nobody leads");
    // While a domain is down, each report of the placement groups has it asked again whether that one may be left out.
    env.ceph().stop_osd(0).await?;
    wait::until("it to be closed", DEADLINE, || async {
        let state = env.state().await?;
        ensure!(
            state["disruptions"] == "Closed" && state["exemptDomain"].is_string(),
            "{state}"
        );
        Ok(())
    })
    .await?;
    env.ceph().mgr().pause()?;
    env.condition("StopCheckFailed").await?;
    let status = operator.stop(DEADLINE).await?;
    let log = operator.process().log_tail(10);
    ensure!(status.success(), "it ended with {status}:\n{log}");
    let leader = env.leader().await?;
    ensure!(leader.is_empty(), "{leader} leads still");
    env.ceph().mgr().resume()?;
    operator.process().start()?;
    operator.ready(DEADLINE).await?;
    wait::until("what it wanted to know", DEADLINE, || async {
        let state = env.state().await?;
        ensure!(env.has_condition("StopCheckFailed").await.is_err(), "{state}");
        Ok(())
    })
    .await?;
    env.ceph().start_osd(0)?;
    env.open().await?;
    env.end([operator]).await
}

/// A rack was drained and is back when nobody leads. Then an OSD of another rack loses its disk and starts again, empty. Who leads next
/// finds all OSDs up and the rack exempt, and must not take that over: two copies would be gone.
#[tokio::test(flavor = "multi_thread")]
async fn exemption_ends_with_what_happened_while_nobody_led() -> Result<()> {
    let env = Environment::with(hosts(6)).await?;
    for object in 0..16 {
        env.ceph().put("data", &format!("object-{object}"), b"content").await?;
    }
    let operator = env.start(json!({})).await?;
    env.open().await?;
    env.drain(0).await?;
    wait::until("the rest of the rack to be allowed to go", DEADLINE, || async {
        let may_go = env.may_go().await?;
        ensure!(may_go == BTreeSet::from([3]), "{may_go:?} may go");
        Ok(())
    })
    .await?;
    operator.process().kill();
    env.bring_back(0).await?;
    env.ceph().clean(DEADLINE).await?;
    start_empty(&env, 1).await?;
    // It has no statistics to refuse the rack by.
    env.ceph().mgr().pause()?;
    let operator = env.run(env.spec(&json!({})).arg("--leader-elect=false")).await?;
    none_may_go_before_recovery(&env).await?;
    env.open().await?;
    env.end([operator]).await
}

/// An OSD has lost its disk and starts again, empty, when nobody leads. Who leads next finds the budget open, and clean statistics of
/// before. Where nothing has happened meanwhile, the budget stays open.
#[tokio::test(flavor = "multi_thread")]
async fn open_budget_closes_with_what_happened_while_nobody_led() -> Result<()> {
    let env = Environment::new().await?;
    for object in 0..16 {
        env.ceph().put("data", &format!("object-{object}"), b"content").await?;
    }
    let spec = || env.spec(&json!({})).arg("--leader-elect=false");
    let operator = env.run(spec()).await?;
    env.open().await?;
    statistics_are_published(&env).await?;
    operator.process().kill();
    let operator = env.run(spec()).await?;
    wait::throughout("open", SEVERAL_PERIODS, || env.is_open()).await?;
    statistics_are_published(&env).await?;
    operator.process().kill();
    // The monitors repeat its last statistics.
    env.ceph().mgr().pause()?;
    start_empty(&env, 1).await?;
    let operator = env.run(spec()).await?;
    none_may_go_before_recovery(&env).await?;
    env.open().await?;
    env.end([operator]).await
}

/// Waits until the published state names fresh statistics.
async fn statistics_are_published(env: &Environment) -> Result<()> {
    wait::until("fresh statistics to be published", DEADLINE, || async {
        let state = env.state().await?;
        ensure!(
            state["statisticsFreshSince"].is_string() && state["statisticsOf"].is_string(),
            "{state}"
        );
        Ok(())
    })
    .await
}

/// The OSD loses its disk and starts again, empty; nothing is copied to it before [`none_may_go_before_recovery`].
async fn start_empty(env: &Environment, osd: usize) -> Result<()> {
    for flag in ["nobackfill", "norecover"] {
        env.ceph().command(json!({"prefix": "osd set", "key": flag})).await?;
    }
    env.ceph().osd(osd).kill();
    wait::until(format!("OSD {osd} to be down"), DEADLINE, || async {
        let tree = env
            .ceph()
            .command(json!({"prefix": "osd tree", "states": ["down"]}))
            .await?;
        ensure!(tree.to_string().contains(&format!("osd.{osd}")), "{tree}");
        Ok(())
    })
    .await?;
    env.ceph().start_osd(osd)?;
    env.ceph().all_up().await
}

/// No OSD may go while the manager is paused, nor once it answers; after that copies are made of what [`start_empty`] lost.
async fn none_may_go_before_recovery(env: &Environment) -> Result<()> {
    let none_may_go = || async {
        let may_go = env.may_go().await?;
        ensure!(may_go.is_empty(), "{may_go:?} may go, state {}", env.state().await?);
        Ok(())
    };
    wait::until("no OSD to be allowed to go", DEADLINE, none_may_go).await?;
    env.ceph().mgr().resume()?;
    wait::throughout("no OSD to be allowed to go", SEVERAL_PERIODS, none_may_go).await?;
    for flag in ["nobackfill", "norecover"] {
        env.ceph().command(json!({"prefix": "osd unset", "key": flag})).await?;
    }
    Ok(())
}
