//! OSDs that fail while nobody drains anything: their pods run on.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::{Api, DeleteParams, PostParams};
use nodeward_testkit::ceph::CephOptions;
use nodeward_testkit::wait;
use nodeward_testkit::workload::Budget;
use rstest::rstest;
use serde_json::{Value, json};

use crate::environment::{DEADLINE, DEFAULT, Environment, SEVERAL_PERIODS, hosts};

/// Waits until the published state has this reason, and the budgets are as it says.
async fn becomes(env: &Environment, disruptions: &str, reason: &str) -> Result<()> {
    wait::until(format!("{disruptions} for {reason}"), DEADLINE, || async {
        let state = env.state().await?;
        ensure!(
            state["disruptions"] == disruptions && state["reason"] == reason,
            "{state}"
        );
        Ok(())
    })
    .await
}

/// The numbers that the budget of all OSDs leaves out.
async fn left_out(env: &Environment) -> Result<Vec<String>> {
    let budget = env.rook.budgets().get(DEFAULT).await?;
    let selector = budget.spec.and_then(|spec| spec.selector).context("no selector")?;
    let expressions = selector.match_expressions.unwrap_or_default().into_iter();
    let mut of_osds = expressions.filter(|expression| expression.key == "osd" && expression.operator == "NotIn");
    Ok(of_osds
        .next()
        .and_then(|expression| expression.values)
        .unwrap_or_default())
}

async fn command(env: &Environment, command: Value) -> Result<()> {
    env.ceph().command(command).await.map(drop)
}

/// Placement groups that are only to move elsewhere: each has all its copies, and some of them at the wrong place.
async fn groups_only_move(env: &Environment) -> Result<()> {
    let status = env.ceph().command(json!({"prefix": "status"})).await?;
    let groups = &status["pgmap"]["pgs_by_state"];
    let states = groups.as_array().context("no placement groups")?.iter();
    let states: Vec<&str> = states.filter_map(|group| group["state_name"].as_str()).collect();
    let has = |word: &str| states.iter().any(|state| state.split('+').any(|own| own == word));
    ensure!(has("remapped"), "{groups}");
    ensure!(!has("degraded") && !has("undersized"), "{groups}");
    ensure!(states.iter().all(|state| state.starts_with("active+")), "{groups}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_budget_opens_while_groups_only_move() -> Result<()> {
    let env = Environment::with(hosts(6)).await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    // With short logs only a backfill brings data to an OSD that never had it: what a log holds is recovered at once.
    for option in [
        "osd_min_pg_log_entries",
        "osd_max_pg_log_entries",
        "osd_pg_log_trim_min",
    ] {
        command(
            &env,
            json!({"prefix": "config set", "who": "osd", "name": option, "value": "1"}),
        )
        .await?;
    }
    for _ in 0..4 {
        let names: Vec<String> = (0..24).map(|object| format!("object-{object}")).collect();
        try_join_all(names.iter().map(|name| env.ceph().put("data", name, b"content"))).await?;
    }
    for flag in ["norebalance", "nobackfill"] {
        command(&env, json!({"prefix": "osd set", "key": flag})).await?;
    }
    env.ceph().stop_osd(5).await?;
    becomes(&env, "Closed", "DomainDown").await?;
    // What OSD 0 has is to move to the other one of its rack, and does not.
    command(
        &env,
        json!({"prefix": "osd crush reweight", "name": "osd.0", "weight": 0.1}),
    )
    .await?;
    env.is_closed_but_for("rack-2").await?;
    env.ceph().start_osd(5)?;
    env.open().await?;
    // The monitors tell of it later than the manager.
    wait::until("groups only to move", DEADLINE, || groups_only_move(&env)).await?;
    wait::throughout("open while some are to move", SEVERAL_PERIODS, || async {
        groups_only_move(&env).await?;
        env.is_open().await
    })
    .await?;
    env.end([operator]).await
}

/// All OSDs are up and all groups are clean, until a pool needs one more copy of each object: where two are there and two are needed,
/// none may go. Budgets close by the pool alone, before any statistic tells of it.
#[rstest]
#[case::with_statistics(true)]
#[case::before_any_statistic(false)]
#[tokio::test(flavor = "multi_thread")]
async fn raised_size_closes_open_budget(#[case] has_statistics: bool) -> Result<()> {
    let env = Environment::with(hosts(6)).await?;
    env.rook.add_pool("two", 2, 8, "rack").await?;
    let names: Vec<String> = (0..24).map(|object| format!("object-{object}")).collect();
    try_join_all(names.iter().map(|name| env.ceph().put("two", name, b"content"))).await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    // The third copies stay away.
    for flag in ["nobackfill", "norecover"] {
        command(&env, json!({"prefix": "osd set", "key": flag})).await?;
    }
    if !has_statistics {
        env.ceph().mgr().pause()?;
    }
    let size = json!({"prefix": "osd pool set", "pool": "two", "var": "size", "val": "3"});
    command(&env, size).await?;
    let raised = Instant::now();
    wait::until("closed", DEADLINE, || async {
        let may_go = env.may_go().await?;
        ensure!(may_go.is_empty(), "{may_go:?} may go, state {}", env.state().await?);
        Ok(())
    })
    .await?;
    println!("closed {:?} after the pool was changed", raised.elapsed());
    let all_refused = || async {
        for osd in 0..env.ceph().options().osds() {
            let code = env.rook.evict_osd(osd).await?;
            ensure!(code != Some(201), "OSD {osd} was evicted: {}", env.state().await?);
        }
        Ok(())
    };
    all_refused().await?;
    if !has_statistics {
        env.ceph().mgr().resume()?;
    }
    becomes(&env, "Closed", "Recovering").await?;
    wait::throughout("closed while third copies are missing", SEVERAL_PERIODS, all_refused).await?;
    for flag in ["nobackfill", "norecover"] {
        command(&env, json!({"prefix": "osd unset", "key": flag})).await?;
    }
    becomes(&env, "Open", "AllClean").await?;
    env.open().await?;
    env.end([operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_osd_blocks_until_data_is_complete() -> Result<()> {
    let env = Environment::with(hosts(6)).await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    for object in 0..16 {
        env.ceph().put("data", &format!("object-{object}"), b"content").await?;
    }
    env.ceph().stop_osd(5).await?;
    becomes(&env, "Closed", "DomainDown").await?;
    let closed = || async {
        env.has_noout([]).await?;
        env.is_closed_but_for("rack-2").await
    };
    wait::throughout("closed around the rack, without a flag", SEVERAL_PERIODS, closed).await?;
    // The other OSD of the rack takes its place.
    command(&env, json!({"prefix": "osd out", "ids": ["5"]})).await?;
    becomes(&env, "Open", "DownOsdsExcluded").await?;
    env.open().await?;
    ensure!(left_out(&env).await? == ["5"], "{:?}", left_out(&env).await?);
    env.ceph().start_osd(5)?;
    becomes(&env, "Open", "AllClean").await?;
    env.open().await?;
    ensure!(left_out(&env).await?.is_empty(), "{:?}", left_out(&env).await?);

    // It has its data again: the budget is open once that is known.
    command(&env, json!({"prefix": "osd in", "ids": ["5"]})).await?;
    env.ceph().clean(DEADLINE).await?;
    becomes(&env, "Open", "AllClean").await?;
    env.open().await?;
    env.end([operator]).await
}

/// A pool with one copy has lost what was on a disk that has died. That is no reason to keep the other OSD of the host.
#[tokio::test(flavor = "multi_thread")]
async fn dead_disk_of_a_pool_with_one_copy_lets_its_host_go() -> Result<()> {
    let env = Environment::with(CephOptions {
        osds_per_host: 2,
        ..hosts(3)
    })
    .await?;
    env.rook.add_pool("single", 3, 8, "rack").await?;
    for change in [
        json!({"prefix": "config set", "who": "global", "name": "mon_allow_pool_size_one", "value": "true"}),
        json!({
            "prefix": "osd pool set", "pool": "single", "var": "size", "val": "1", "yes_i_really_mean_it": true,
        }),
    ] {
        command(&env, change).await?;
    }
    let operator = env.start(json!({})).await?;
    env.condition("UnsurvivablePools").await?;
    env.open().await?;
    env.ceph().osd(0).kill();
    becomes(&env, "Closed", "DomainDown").await?;
    command(&env, json!({"prefix": "osd out", "ids": ["0"]})).await?;
    // What the pool has lost never comes back; all else is complete without the disk.
    becomes(&env, "Open", "DownOsdsExcluded").await?;
    wait::throughout("open without the disk", SEVERAL_PERIODS, || async {
        let state = env.state().await?;
        ensure!(state["disruptions"] == "Open", "{state}");
        Ok(())
    })
    .await?;
    env.drain(1).await?;
    becomes(&env, "Closed", "DomainDown").await?;
    env.is_closed_but_for("rack-0").await?;
    env.end([operator]).await
}

/// An admission policy denies budgets that allow nothing: the open budget stays, and that is said.
#[tokio::test(flavor = "multi_thread")]
async fn refused_close_is_reported_until_it_is_written() -> Result<()> {
    let env = Environment::new().await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    let name = env.rook.namespace().to_owned();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(env.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(env.client.clone());
    let budgets = json!({
        "apiGroups": ["policy"], "apiVersions": ["v1"], "resources": ["poddisruptionbudgets"], "operations": ["CREATE", "UPDATE"],
    });
    let policy = json!({
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [budgets]},
            "validations": [{
                "expression": "!has(object.spec.maxUnavailable) || object.spec.maxUnavailable != 0",
                "message": "a budget has to allow something",
            }],
        },
    });
    let binding = json!({
        "metadata": {"name": name},
        "spec": {
            "policyName": name, "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}},
        },
    });
    policies
        .create(&PostParams::default(), &serde_json::from_value(policy)?)
        .await?;
    bindings
        .create(&PostParams::default(), &serde_json::from_value(binding)?)
        .await?;
    let closed = Budget::max_unavailable(&name, "probe", 0).of("nobody").build()?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    wait::until("the policy to be in force", DEADLINE, || async {
        let probe = env.rook.budgets().create(&dry_run, &closed).await;
        ensure!(probe.is_err(), "a budget that allows nothing is taken");
        Ok(())
    })
    .await?;
    env.ceph().stop_osd(2).await?;
    env.condition("BudgetWriteRefused").await?;
    let state = env.state().await?;
    ensure!(state["disruptions"] == "Closing", "{state}");
    let state = state.to_string();
    ensure!(state.contains("a budget has to allow something"), "{state}");
    bindings.delete(&name, &DeleteParams::default()).await?;
    wait::until("the budget to be closed", DEADLINE, || async {
        env.is_closed_but_for("rack-2").await?;
        let is_reported = env.has_condition("BudgetWriteRefused").await.is_ok();
        ensure!(!is_reported, "{}", env.state().await?);
        Ok(())
    })
    .await?;
    policies.delete(&name, &DeleteParams::default()).await?;
    env.ceph().start_osd(2)?;
    env.open().await?;
    env.end([operator]).await
}
