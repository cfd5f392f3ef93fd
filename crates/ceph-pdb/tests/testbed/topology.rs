//! Labels and Nodes that are not as they should be.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use nodeward_testkit::ceph::CephOptions;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::{wait, workload};
use serde_json::{Value, json};

use crate::environment::{DEADLINE, Environment, SEVERAL_PERIODS, hosts};

/// Gives the pod of an OSD another label of its rack, or takes it off.
async fn relabel(env: &Environment, osd: usize, rack: Value) -> Result<()> {
    let pods = env.rook.osd_pods(osd).await?;
    let name = pods.first().context("no pod")?.name_any();
    let labels = json!({"labels": {"topology-location-rack": rack}});
    workload::patch_metadata(&env.client, env.rook.namespace(), &name, labels).await
}

/// OSD 3 is of the rack that is drained, but its label says that it is of another one; OSD 5 has no label.
#[tokio::test(flavor = "multi_thread")]
async fn mislabelled_osds_follow_the_crush_map() -> Result<()> {
    let env = Environment::with(hosts(6)).await?;
    relabel(&env, 3, json!("rack-1")).await?;
    relabel(&env, 5, Value::Null).await?;
    let operator = env.start(json!({})).await?;
    env.condition("OsdLabelWrong").await?;
    env.open().await?;
    env.drain(0).await?;
    let only = |expected: &'static [usize]| {
        let env = &env;
        move || async move {
            let may_go: BTreeSet<usize> = env.may_go().await?;
            ensure!(
                may_go.iter().eq(expected),
                "{may_go:?} may go, state {}",
                env.state().await?
            );
            Ok(())
        }
    };
    wait::until("the rest of the rack to be allowed to go", DEADLINE, only(&[3])).await?;
    // While statistics are stale, not even the rest of the rack may go.
    wait::throughout("no rack but its own", SEVERAL_PERIODS, || {
        env.is_closed_but_for("rack-0")
    })
    .await?;
    env.evict(3).await?;
    wait::throughout("no other rack", SEVERAL_PERIODS, || env.is_closed_but_for("rack-0")).await?;
    env.bring_back(0).await?;
    // Its new pod has the label of its Deployment again.
    env.open().await?;
    env.noout_is([]).await?;
    env.end([operator]).await
}

/// Two OSDs of a node are hosts of their own in CRUSH, where hosts are the failure domains: both go.
#[tokio::test(flavor = "multi_thread")]
async fn portable_osds_of_one_node_both_go() -> Result<()> {
    let env = Environment::with(CephOptions {
        osds_per_host: 2,
        are_portable: true,
        ..hosts(3)
    })
    .await?;
    // Hosts are the failure domains by this pool. Its one placement group has not both OSDs of each node.
    env.rook.add_pool("by-host", 3, 1, "host").await?;
    let groups = json!({"prefix": "pg ls-by-pool", "poolstr": "by-host"});
    let acting = env.ceph().mgr_command(groups).await?["pg_stats"][0]["acting"].clone();
    let has = |osd: usize| acting.as_array().is_some_and(|acting| acting.contains(&json!(osd)));
    let first = [0, 2, 4].into_iter().find(|first| !(has(*first) && has(first + 1)));
    let first = first.context("no node that may go")?;
    let operator = env.start(json!({})).await?;
    env.condition("NodeInSeveralDomains").await?;
    env.open().await?;
    env.drain(first).await?;
    let node = env.rook.node_of(first);
    wait::until("its node to be left out", DEADLINE, || async {
        let state = env.state().await?;
        ensure!(state["exemptNodes"] == json!([node]), "{state}");
        Ok(())
    })
    .await?;
    let stays = || async {
        let may_go = env.may_go().await?;
        ensure!(
            may_go.iter().eq(&[first + 1]),
            "{may_go:?} may go, state {}",
            env.state().await?
        );
        Ok(())
    };
    wait::until("the other one to be allowed to go, and no third", DEADLINE, stays).await?;
    env.drain(first + 1).await?;
    wait::throughout("no third one to go", SEVERAL_PERIODS, || async {
        let may_go = env.may_go().await?;
        ensure!(may_go.is_empty(), "{may_go:?} may go, state {}", env.state().await?);
        Ok(())
    })
    .await?;
    env.bring_back(first).await?;
    env.open().await?;
    env.end([operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn osd_of_missing_node_is_drained_by_host() -> Result<()> {
    let env = Environment::new().await?;
    // No object of Rook's tells of this pool, which managers from Ceph 17 on make by themselves.
    for command in [
        json!({"prefix": "osd crush rule create-replicated", "name": "by-host", "root": "default", "type": "host"}),
        json!({
            "prefix": "osd pool create", "pool": ".mgr", "pg_num": 1, "pool_type": "replicated", "rule": "by-host", "size": 3,
            "autoscale_mode": "off", "yes_i_really_mean_it": true,
        }),
    ] {
        env.ceph().command(command).await?;
    }
    env.ceph().clean(DEADLINE).await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    wait::until("domains by host", DEADLINE, || async {
        let state = env.state().await?;
        ensure!(state["failureDomainType"] == "host", "{state}");
        Ok(())
    })
    .await?;
    let (nodes, host): (Api<Node>, String) = (Api::all(env.client.clone()), env.rook.node_of(0));
    nodes.delete(&host, &DeleteParams::default()).await?;
    let pods = env.rook.osd_pods(0).await?;
    let pod = pods.first().context("no pod")?.name_any();
    workload::delete(&env.client, env.rook.namespace(), &pod).await?;
    env.rook.osd_gone(0, DEADLINE).await?;
    // Nobody has cordoned anything.
    env.noout_is([&host]).await?;
    wait::throughout("closed", SEVERAL_PERIODS, || env.is_closed_but_for("rack-0")).await?;
    wait::until("its host to be left out", DEADLINE, || async {
        let state = env.state().await?;
        ensure!(state["exemptDomain"] == host, "{state}");
        Ok(())
    })
    .await?;
    let node = NodeSpec::worker(&host).label("topology.rook.io/rack", "rack-0");
    fleet::create(&env.client, [node]).await?;
    env.ceph().all_up().await?;
    env.open().await?;
    env.noout_is([]).await?;
    env.end([operator]).await
}

/// CRUSH has no zones, and Rook has lost the Deployment of OSD 2, which runs on: both are told, and the rest works.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_domain_type_and_osd_without_deployment_close_nothing() -> Result<()> {
    let env = Environment::new().await?;
    let running = env.rook.delay_stops().await;
    let deployments: Api<Deployment> = Api::namespaced(env.client.clone(), env.rook.namespace());
    deployments
        .delete("rook-ceph-osd-2", &DeleteParams::background())
        .await?;
    wait::until("its pod to be gone", DEADLINE, || async {
        for pod in env.rook.osd_pods(2).await? {
            let at_once = DeleteParams::default().grace_period(0);
            env.rook.pods().delete(&pod.name_any(), &at_once).await?;
        }
        ensure!(env.rook.osd_pods(2).await?.is_empty());
        Ok(())
    })
    .await?;
    let operator = env.start(json!({"failureDomainType": "zone"})).await?;
    env.condition("FailureDomainTypeUnknown").await?;
    let others_may_go = || async {
        let (state, may_go) = (env.state().await?, env.may_go().await?);
        let is_open = state["reason"] == "AllClean" && state["failureDomainType"] == "rack";
        ensure!(is_open && may_go == BTreeSet::from([0, 1]), "{may_go:?}, {state}");
        Ok(())
    };
    wait::until("the others to go one at a time", DEADLINE, others_may_go).await?;
    // Once it stops it is down as any other.
    drop(running);
    env.ceph().stop_osd(2).await?;
    wait::until("closed", DEADLINE, || env.is_closed_but_for("rack-2")).await?;
    env.end([operator]).await
}
