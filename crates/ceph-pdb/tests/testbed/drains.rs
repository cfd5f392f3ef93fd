//! Drains of hosts, one after the other, while somebody tries to evict what must stay.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nodeward_testkit::ceph::{CephOptions, CephRelease, Judge, ServiceWatch};
use nodeward_testkit::{fleet, wait};
use rstest::rstest;
use serde_json::json;

use crate::environment::{DEADLINE, DEFAULT, Environment, SEVERAL_PERIODS, hosts};
use crate::evictor::Evictor;

#[rstest]
#[case::system(CephRelease::System)]
#[case::newest(CephRelease::Newest)]
#[tokio::test(flavor = "multi_thread")]
async fn budgets_close_around_drained_host_until_clean(#[case] release: CephRelease) -> Result<()> {
    let env = Environment::with(CephOptions {
        release: Some(release),
        ..hosts(6)
    })
    .await?;
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

/// Fails when a placement group is without service.
async fn inactive_twice(env: &Environment) -> Result<Infallible> {
    let mut watch = ServiceWatch::default();
    let mut pace = tokio::time::interval(Duration::from_secs(1));
    loop {
        pace.tick().await;
        watch.look(env.ceph()).await?;
        if let Some(inactive) = watch.without_service().first() {
            bail!("{inactive}, twice; state {}", env.state().await?);
        }
    }
}

/// Drains all hosts, one after the other, and evicts OSDs of other racks all the while.
async fn roll(env: &Environment, judge: &Judge) -> Result<BTreeMap<u16, usize>> {
    let mut codes = BTreeMap::new();
    let options = env.ceph().options();
    for osd in 0..options.osds() {
        let rack = options.rack_of(osd);
        let others: Vec<usize> = (0..options.osds())
            .filter(|osd| options.rack_of(*osd) != rack)
            .collect();
        env.open().await?;
        env.drain(osd).await?;
        let drain = async {
            env.ceph()
                .put("data", &format!("during-{osd}"), format!("{osd}").as_bytes())
                .await?;
            env.bring_back(osd).await?;
            // The evictor evicts as soon as it may: it is what ends this.
            tokio::time::sleep(DEADLINE).await;
            anyhow::Ok(())
        };
        let evictor = Evictor::new(env, judge);
        tokio::select! {
            ended = evictor.run(&others, |met| !met.gone.is_empty()) => ended?,
            ended = drain => { ended?; bail!("not open {DEADLINE:?} after OSD {osd} was back: {}", env.state().await?) }
        };
        let met = evictor.met();
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
    env.open().await?;
    let judge = Judge::new(env.ceph()).await?;
    let codes = tokio::select! {
        codes = roll(&env, &judge) => codes?,
        failed = judge.follow() => match failed? {},
        failed = inactive_twice(&env) => match failed? {},
    };
    println!("answers to evictions of OSDs in other racks, by status code: {codes:?}");
    ensure!(
        codes
            .keys()
            .all(|code| matches!(code, 201 | 429) || CONFLICTS.contains(code)),
        "{codes:?}"
    );
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

#[rstest]
#[case::system(CephRelease::System)]
#[case::newest(CephRelease::Newest)]
#[tokio::test(flavor = "multi_thread")]
async fn no_osd_may_go_while_two_racks_lack_one(#[case] release: CephRelease) -> Result<()> {
    let env = Environment::with(CephOptions {
        release: Some(release),
        ..hosts(6)
    })
    .await?;
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

/// The server's answers to evictions when it could not write for others' writes: the pod stays.
const CONFLICTS: [u16; 2] = [409, 504];

/// So many evictions are answered by 500 at most whenever domains pass from one budget to another.
const HANDFUL: usize = 5;

/// All hosts are drained at once: the first OSD that goes decides whose turn it is. Then all come back, lacking what was written
/// meanwhile; and when that is there, too, another one goes.
async fn whole_drain(env: &Environment, evictor: &Evictor<'_>) -> Result<()> {
    let options = env.ceph().options();
    let went = |count: usize| {
        wait::until(format!("{count} OSDs to be evicted"), DEADLINE, move || async move {
            let gone = evictor.met().gone;
            ensure!(count <= gone.len(), "{gone:?}, state {}", env.state().await?);
            Ok(gone)
        })
    };
    let gone = went(2).await?;
    ensure!(
        options.rack_of(gone[0]) == options.rack_of(gone[1]),
        "{gone:?} are not of one rack"
    );
    let stays = || async {
        let gone = evictor.met().gone;
        ensure!(gone.len() == 2, "{gone:?}, state {}", env.state().await?);
        Ok(())
    };
    for object in 0..16 {
        env.ceph().put("data", &format!("object-{object}"), b"content").await?;
    }
    wait::throughout("no third OSD to go while two are away", SEVERAL_PERIODS, stays).await?;
    // They may still go, as all of their rack.
    evictor.spare(&gone);
    for host in 0..options.hosts {
        fleet::uncordon(&env.client, &options.host_name(host)).await?;
    }
    env.ceph().all_up().await?;
    wait::throughout("no third OSD to go while objects lack a copy", SEVERAL_PERIODS, stays).await?;
    env.ceph()
        .command(json!({"prefix": "osd unset", "key": "norecover"}))
        .await?;
    went(3).await.map(drop)
}

#[rstest]
#[case::per_domain("perDomain")]
#[case::single("single")]
#[tokio::test(flavor = "multi_thread")]
async fn no_eviction_in_whole_drain_is_unsafe(#[case] layout: &str) -> Result<()> {
    let env = Environment::with(hosts(6)).await?;
    // Two copies that are both needed: no rack may go by this pool, which is why it is left out.
    env.rook.add_pool("fragile", 2, 4, "rack").await?;
    for command in [
        json!({"prefix": "osd pool set", "pool": "fragile", "var": "min_size", "val": "2"}),
        json!({"prefix": "osd set", "key": "norecover"}),
    ] {
        env.ceph().command(command).await?;
    }
    let operator = env.start(json!({"osdBudgets": layout})).await?;
    env.condition("UnsurvivablePools").await?;
    env.open().await?;
    let judge = Judge::new(env.ceph()).await?;
    ensure!(judge.left_out().len() == 1, "pools {:?}", judge.left_out());
    let options = env.ceph().options();
    for host in 0..options.hosts {
        fleet::cordon(&env.client, &options.host_name(host)).await?;
    }
    let mark = env.plane.audit().mark()?;
    let (evictor, all) = (Evictor::new(&env, &judge), (0..options.osds()).collect::<Vec<_>>());
    tokio::select! {
        ended = whole_drain(&env, &evictor) => ended?,
        failed = judge.follow() => match failed? {},
        failed = evictor.run(&all, |_| false) => { failed?; bail!("the evictor has ended") }
    };
    env.open().await?;
    env.noout_is([]).await?;
    let codes = evictor.met().codes;
    let swaps = env.writes_since(mark)?.only(|request| {
        request.resource == "poddisruptionbudgets" && matches!(request.verb.as_str(), "create" | "delete")
    });
    let (errors, swaps) = (codes.get(&500).copied().unwrap_or_default(), swaps.count());
    println!("{layout}: answers to evictions by status code: {codes:?}, {swaps} swaps");
    ensure!(
        codes
            .keys()
            .all(|code| matches!(code, 201 | 429 | 500) || CONFLICTS.contains(code)),
        "{codes:?}"
    );
    ensure!(codes.get(&429).is_some_and(|refused| *refused >= 30), "{codes:?}");
    ensure!((swaps == 0) == (layout == "single"), "{swaps} swaps");
    ensure!(errors <= HANDFUL * swaps, "{errors} answers of 500 in {swaps} swaps");
    env.end([operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn unguarded_drain_is_noticed() -> Result<()> {
    let env = Environment::with(hosts(6)).await?;
    let judge = Judge::new(env.ceph()).await?;
    env.drain(0).await?;
    judge.knows_down(&[0]).await?;
    let evictor = Evictor::new(&env, &judge);
    let noticed = evictor.run(&[1, 2, 4, 5], |_| false).await;
    let error = format!(
        "{:#}",
        noticed.err().context("an eviction in a second rack counts as safe")?
    );
    for reason in ["are down", "have too few copies without {0, "] {
        ensure!(error.contains(reason), "no {reason:?}: {error}");
    }
    // Two of three copies are needed.
    for osd in [1, 4] {
        fleet::cordon(&env.client, &env.rook.node_of(osd)).await?;
        // One that the evictor took may be starting, or be without a node, for its own is cordoned now.
        wait::until(format!("OSD {osd} to be away"), DEADLINE, || async {
            env.rook.evict_osd(osd).await?;
            env.rook.osd_gone(osd, wait::secs(5)).await
        })
        .await?;
    }
    let inactive = tokio::time::timeout(DEADLINE, inactive_twice(&env)).await;
    let error = inactive.context("placement groups without two copies count as active")?;
    ensure!(error.is_err());
    env.end([]).await
}

/// Statistics are old each time that an OSD goes down: what was said of the whole host lets the rest go all the same.
#[tokio::test(flavor = "multi_thread")]
async fn rest_of_a_host_follows_its_first_osd_without_a_refusal() -> Result<()> {
    let env = Environment::with(CephOptions {
        osds_per_host: 4,
        ..hosts(3)
    })
    .await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    env.drain(0).await?;
    let rest = BTreeSet::from([1, 2, 3]);
    wait::until("the rest of the host to be allowed to go", DEADLINE, || async {
        let may_go = env.may_go().await?;
        ensure!(may_go == rest, "{may_go:?} may go, state {}", env.state().await?);
        Ok(())
    })
    .await?;
    for osd in rest {
        let code = env.rook.evict_osd(osd).await?;
        ensure!(code == Some(201), "OSD {osd}: {code:?}, state {}", env.state().await?);
        env.rook.osd_gone(osd, DEADLINE).await?;
        env.is_closed_but_for("rack-0").await?;
    }
    env.bring_back(0).await?;
    env.open().await?;
    env.end([operator]).await
}
