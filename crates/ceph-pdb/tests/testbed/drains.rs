//! Drains of hosts, one after the other, while somebody tries to evict what must stay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nodeward_testkit::wait;
use serde_json::json;

use crate::environment::{DEADLINE, DEFAULT, Environment, SEVERAL_PERIODS, hosts};

#[tokio::test(flavor = "multi_thread")]
async fn budgets_close_around_drained_host_until_clean() -> Result<()> {
    let env = Environment::with(hosts(6)).await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    env.drain(0).await?;
    let host = env.rook.node_of(0);
    env.noout_is([&host]).await?;
    ensure!(env.records().await?.keys().eq([&host]), "{:?}", env.records().await?);
    // The other host of the rack may follow, and every other rack has a budget of its own.
    wait::until("the rest of the rack to be allowed to go", DEADLINE, || async {
        let may_go = env.may_go().await?;
        ensure!(
            may_go == BTreeSet::from([3]),
            "{may_go:?} may go, state {}",
            env.state().await?
        );
        let names: Vec<String> = env.osd_budgets().await?.into_keys().collect();
        let of_racks = [1, 2].map(|rack| format!("{DEFAULT}-rack-rack-{rack}"));
        ensure!(names.iter().filter(|name| *name != DEFAULT).eq(&of_racks), "{names:?}");
        Ok(())
    })
    .await?;
    let state = env.state().await?;
    ensure!(
        state["disruptions"] == "Closed" && state["exemptDomain"] == "rack-0",
        "{state}"
    );
    let stays = || env.is_closed_but_for("rack-0");
    wait::throughout("closed while the host is away", SEVERAL_PERIODS, stays).await?;

    // All OSDs are back, and one of them lacks what was written meanwhile.
    env.ceph()
        .command(json!({"prefix": "osd set", "key": "norecover"}))
        .await?;
    for object in 0..16 {
        env.ceph().put("data", &format!("object-{object}"), b"content").await?;
    }
    env.bring_back(0).await?;
    wait::throughout("closed while objects lack a copy", SEVERAL_PERIODS, stays).await?;
    env.ceph()
        .command(json!({"prefix": "osd unset", "key": "norecover"}))
        .await?;
    env.open().await?;
    env.noout_is([]).await?;
    env.no_records().await?;
    env.end([operator]).await
}

/// What an evictor has met.
#[derive(Default, Debug)]
struct Met {
    /// Answers by status code.
    codes: BTreeMap<u16, usize>,
}

/// Evicts OSDs of other racks than this one, one after the other, until one goes or `is_over`. One may go only when all OSDs are
/// up and no placement group lacks a copy.
async fn evict_others(env: &Environment, rack: &str, is_over: &AtomicBool) -> Result<Met> {
    let mut met = Met::default();
    let options = env.ceph().options();
    let others: Vec<usize> = (0..options.osds())
        .filter(|osd| options.rack_of(*osd) != rack)
        .collect();
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    while !is_over.load(Ordering::Relaxed) {
        for osd in &others {
            pace.tick().await;
            let Some(code) = env.rook.evict_osd(*osd).await? else {
                continue;
            };
            *met.codes.entry(code).or_default() += 1;
            if code == 201 {
                may_be_missed(env, *osd).await?;
                return Ok(met);
            }
        }
    }
    Ok(met)
}

/// Judges an eviction that has just been allowed: its OSD stops within seconds, and nothing else may be missing then.
async fn may_be_missed(env: &Environment, osd: usize) -> Result<()> {
    let dump = env.ceph().command(json!({"prefix": "osd dump"})).await?;
    let osds = dump["osds"].as_array().context("no osds")?;
    let down: Vec<i64> = osds
        .iter()
        .filter(|osd| osd["up"] == 0)
        .filter_map(|osd| osd["osd"].as_i64())
        .filter(|down| usize::try_from(*down) != Ok(osd))
        .collect();
    ensure!(
        down.is_empty(),
        "OSD {osd} was evicted while {down:?} are down, state {}",
        env.state().await?
    );
    let status = env.ceph().command(json!({"prefix": "status"})).await?;
    let states = &status["pgmap"]["pgs_by_state"];
    let is_short = |state: &serde_json::Value| {
        let name = state["state_name"].as_str().unwrap_or_default();
        ["degraded", "undersized", "down", "incomplete", "unknown"]
            .iter()
            .any(|word| name.contains(word))
    };
    let names = states.as_array().context("no states")?;
    ensure!(
        !names.iter().any(is_short),
        "OSD {osd} was evicted at {states}, state {}",
        env.state().await?
    );
    Ok(())
}

/// Fails when placement groups take no requests in two samples of different statistics.
async fn inactive_twice(env: &Environment, is_over: &AtomicBool) -> Result<()> {
    let mut before: Option<(u64, BTreeSet<String>)> = None;
    let mut pace = tokio::time::interval(Duration::from_secs(1));
    while !is_over.load(Ordering::Relaxed) {
        pace.tick().await;
        let dump = env
            .ceph()
            .mgr_command(json!({"prefix": "pg dump", "dumpcontents": ["all"]}))
            .await?;
        let map = dump.get("pg_map").unwrap_or(&dump);
        let version = map["version"].as_u64().context("no version")?;
        let is_inactive = |state: &str| {
            let peers = ["peering", "activating"].iter().any(|word| state.contains(word));
            !peers && !state.contains("active")
        };
        let pgs = map["pg_stats"].as_array().context("no pg_stats")?;
        let inactive: BTreeSet<String> = pgs
            .iter()
            .filter(|pg| is_inactive(pg["state"].as_str().unwrap_or_default()))
            .map(|pg| format!("{}: {}", pg["pgid"], pg["state"]))
            .collect();
        if let Some((old, previous)) = &before
            && *old != version
            && let Some(twice) = inactive.intersection(previous).next()
        {
            bail!("{twice}, twice; state {}", env.state().await?);
        }
        before = Some((version, inactive));
    }
    Ok(())
}

/// Drains all hosts, one after the other, and evicts OSDs of other racks all the while.
async fn roll(env: &Environment) -> Result<BTreeMap<u16, usize>> {
    let mut codes = BTreeMap::new();
    for osd in 0..env.ceph().options().osds() {
        let rack = env.ceph().options().rack_of(osd);
        env.open().await?;
        env.drain(osd).await?;
        let is_over = AtomicBool::new(false);
        let drain = async {
            env.ceph()
                .put("data", &format!("during-{osd}"), format!("{osd}").as_bytes())
                .await?;
            env.bring_back(osd).await?;
            // The evictor evicts as soon as it may: it is what ends this.
            tokio::time::sleep(DEADLINE).await;
            is_over.store(true, Ordering::Relaxed);
            anyhow::Ok(())
        };
        let met = tokio::select! {
            met = evict_others(env, &rack, &is_over) => met?,
            ended = drain => { ended?; bail!("not open {DEADLINE:?} after OSD {osd} was back: {}", env.state().await?) }
        };
        ensure!(met.codes.get(&201) == Some(&1), "{met:?}");
        for (code, count) in met.codes {
            *codes.entry(code).or_default() += count;
        }
    }
    env.open().await?;
    Ok(codes)
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_drain_ends_with_data_intact() -> Result<()> {
    let env = Environment::with(hosts(6)).await?;
    let operator = env.start(json!({"osdBudgets": "single"})).await?;
    for object in 0..16 {
        let (name, content) = (format!("object-{object}"), format!("content {object}"));
        env.ceph().put("data", &name, content.as_bytes()).await?;
    }
    let is_over = AtomicBool::new(false);
    let codes = tokio::select! {
        codes = roll(&env) => codes?,
        failed = inactive_twice(&env, &is_over) => { failed?; bail!("the watch has ended") }
    };
    println!("answers to evictions of OSDs in other racks, by status code: {codes:?}");
    ensure!(codes.keys().all(|code| matches!(code, 201 | 429)), "{codes:?}");
    for object in 0..16 {
        let content = env.ceph().get("data", &format!("object-{object}")).await?;
        ensure!(
            content == format!("content {object}").as_bytes(),
            "object {object}: {content:?}"
        );
    }
    for osd in 0..6 {
        let content = env.ceph().get("data", &format!("during-{osd}")).await?;
        ensure!(
            content == format!("{osd}").as_bytes(),
            "written while OSD {osd} was away: {content:?}"
        );
    }
    env.noout_is([]).await?;
    env.end([operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_osd_may_go_while_two_racks_lack_one() -> Result<()> {
    let env = Environment::with(hosts(6)).await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    env.drain(0).await?;
    let may_go = |expected: &'static [usize]| {
        let env = &env;
        move || async move {
            let may_go = env.may_go().await?;
            ensure!(
                may_go.iter().eq(expected),
                "{may_go:?} may go, state {}",
                env.state().await?
            );
            Ok(())
        }
    };
    wait::until("the rest of the rack to be allowed to go", DEADLINE, may_go(&[3])).await?;
    // Its pod runs on.
    env.ceph().osd(1).kill();
    wait::until("all to be closed", DEADLINE, may_go(&[])).await?;
    // Once statistics are fresh, Ceph itself refuses.
    wait::until("the second rack to be the reason", DEADLINE, || async {
        let state = env.state().await?;
        ensure!(state["reason"] == "SecondDomainDown", "{state}");
        Ok(())
    })
    .await?;
    wait::throughout("all closed", SEVERAL_PERIODS, may_go(&[])).await?;
    env.noout_is([&env.rook.node_of(0)]).await?;
    env.ceph().start_osd(1)?;
    env.bring_back(0).await?;
    env.open().await?;
    env.noout_is([]).await?;
    env.end([operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn unguarded_drain_is_noticed() -> Result<()> {
    let env = Environment::with(hosts(6)).await?;
    env.drain(0).await?;
    let is_over = AtomicBool::new(false);
    let noticed = evict_others(&env, "rack-0", &is_over).await;
    let error = format!(
        "{:#}",
        noticed.err().context("an eviction in a second rack counts as safe")?
    );
    ensure!(error.contains("while [0] are down"), "{error}");
    // Two of three copies are needed.
    for osd in [1, 4] {
        env.drain(osd).await?;
    }
    let inactive = tokio::time::timeout(DEADLINE, inactive_twice(&env, &is_over)).await;
    let error = inactive.context("placement groups without two copies count as active")?;
    ensure!(error.is_err());
    env.end([]).await
}
