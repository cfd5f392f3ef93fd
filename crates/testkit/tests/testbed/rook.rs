//! A real Ceph whose OSDs follow their pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use nodeward_testkit::ceph::{Ceph, CephOptions};
use nodeward_testkit::rook::Rook;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, fleet, names};
use rados::{Cluster, Librados};
use serde_json::{Value, json};

async fn rook() -> Result<Rook> {
    let plane = ControlPlane::shared().await;
    let namespace = names::unique("rook");
    plane.namespace(&namespace).await?;
    let options = CephOptions {
        prefix: format!("{namespace}-"),
        ..CephOptions::default()
    };
    let ceph = Arc::new(Ceph::start(options).await?);
    Rook::start(&plane.client().await?, &namespace, ceph).await
}

async fn down(ceph: &Ceph) -> Result<BTreeSet<i64>> {
    let dump = ceph.command(json!({"prefix": "osd dump"})).await?;
    let osds = dump["osds"].as_array().context("no osds")?;
    Ok(osds
        .iter()
        .filter(|osd| osd["up"] == 0)
        .filter_map(|osd| osd["osd"].as_i64())
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evicted_osd_stops_in_order_and_returns_with_its_data() -> Result<()> {
    let rook = rook().await?;
    let client = ControlPlane::shared().await.client().await?;
    let ceph = rook.ceph();
    rook.add_pool("data", 3, 8, "host").await?;
    for object in 0..20 {
        ceph.put(
            "data",
            &format!("object-{object}"),
            format!("content {object}").as_bytes(),
        )
        .await?;
    }
    let recovered = ceph.objects_recovered().await?;

    fleet::cordon(&client, &rook.node_of(1)).await?;
    ensure!(rook.evict_osd(1).await? == Some(201));
    rook.osd_gone(1, secs(180)).await?;
    wait::until("it alone to be down", secs(60), || async {
        let down = down(ceph).await?;
        ensure!(down == BTreeSet::from([1]), "{down:?}");
        Ok(())
    })
    .await?;
    let is_pending = || async {
        let pods = rook.osd_pods(1).await?;
        ensure!(pods.len() == 1, "{} pods", pods.len());
        Ok(())
    };
    wait::until("another pod to wait for its node", secs(60), is_pending).await?;

    fleet::uncordon(&client, &rook.node_of(1)).await?;
    ceph.all_up().await?;
    ceph.clean(secs(180)).await?;
    // Nothing was written meanwhile.
    let copied = ceph.objects_recovered().await? - recovered;
    ensure!(copied == 0, "{copied} objects were copied to it");
    for object in 0..20 {
        let content = ceph.get("data", &format!("object-{object}")).await?;
        ensure!(content == format!("content {object}").as_bytes(), "{content:?}");
    }

    // The counter counts: an OSD that never stopped in order has lost its disk when it is killed.
    ceph.osd(2).restart()?;
    let is_copied = || async {
        let copied = ceph.objects_recovered().await? - recovered;
        ensure!(copied > 0, "nothing was copied");
        Ok(())
    };
    wait::until("a lost disk to be filled again", secs(180), is_copied).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rooks_user_may_ask_and_set_noout_alone() -> Result<()> {
    let rook = rook().await?;
    let client = ControlPlane::shared().await.client().await?;
    let secrets: Api<Secret> = Api::namespaced(client, rook.namespace());
    let data = |secret: Secret| secret.data.context("no data");
    let user = data(secrets.get("rook-ceph-client-nodeward").await?)?;
    let config = data(secrets.get("rook-ceph-config").await?)?;
    let text = |bytes: &k8s_openapi::ByteString| String::from_utf8(bytes.0.clone());
    let options = rados::Options {
        mon_host: text(&config["mon_host"])?,
        user: "client.nodeward".to_owned(),
        key: text(&user["nodeward"])?,
        ..rook.ceph().admin().clone()
    };
    let host = rook.node_of(0);
    let asked = tokio::task::spawn_blocking(move || -> Result<()> {
        let cluster = Cluster::connect(Librados::load()?, options)?;
        let mon = |command: Value| cluster.mon_command(&command);
        let group = |prefix: &str, flag: &str| json!({"prefix": prefix, "flags": flag, "who": [host]});
        for prefix in ["osd set-group", "osd unset-group"] {
            mon(group(prefix, "noout"))?.accepted()?;
            ensure!(
                mon(group(prefix, "noup"))?.accepted().is_err(),
                "{prefix} noup is allowed"
            );
        }
        ensure!(mon(json!({"prefix": "osd set", "key": "noout"}))?.accepted().is_err());
        ensure!(mon(json!({"prefix": "osd down", "ids": ["0"]}))?.accepted().is_err());
        mon(json!({"prefix": "osd dump", "format": "json"}))?.accepted()?;
        let stop = cluster.mgr_command(&json!({"prefix": "osd ok-to-stop", "ids": ["0"], "format": "json"}))?;
        ensure!(stop.json_anyway::<Value>()?["osds"] == json!([0]), "{stop:?}");
        Ok(())
    });
    asked.await?
}
