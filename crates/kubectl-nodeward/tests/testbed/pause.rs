//! The emergency stop. In a namespace without components, lest those of other tests stop.

use anyhow::Result;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::environment::Environment;
use crate::person::{Person, says};

#[tokio::test(flavor = "multi_thread")]
async fn pauses_are_merged_and_end_one_by_one() -> Result<()> {
    let env = Environment::new().await?;
    let admin = Person::admin(env.plane)?;
    let namespace = ["-n", env.name.as_str()];
    let on = |words: &[&'static str]| -> Vec<&str> { words.iter().copied().chain(namespace).collect() };
    let config_maps: Api<ConfigMap> = Api::namespaced(env.client.clone(), &env.name);

    says(&admin.page(&on(&["resume"])).await?, &["not paused"])?;
    let paused = admin.page(&on(&["pause", "drain-lock", "--reason", "INC-1"])).await?;
    says(&paused, &["drain-lock in", "paused (INC-1)", "kubectl nodeward resume"])?;
    admin.page(&on(&["pause", "ceph-pdb", "--reason", "INC-2"])).await?;
    admin.page(&on(&["resume", "drain-lock"])).await?;
    let data = config_maps.get("nodeward-pause").await?.data;
    assert_eq!(data, Some([("ceph-pdb".to_owned(), "INC-2".to_owned())].into()));

    // Who resumes one component while all are paused is told that this was not enough.
    admin.page(&on(&["pause", "--reason", "INC-3"])).await?;
    let resumed = admin.nodeward(&on(&["resume", "drain-lock"])).await?;
    assert_eq!(resumed.code, 1, "{resumed:?}");
    says(&resumed.out, &["drain-lock in", "paused (INC-3)"])?;

    // The lease stands for the component.
    let leases: Api<Lease> = Api::namespaced(env.client.clone(), &env.name);
    let lease = json!({ "metadata": { "name": "drain-lock" }, "spec": {
        "holderIdentity": "a", "leaseDurationSeconds": 3600, "renewTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
    } });
    leases
        .create(&PostParams::default(), &serde_json::from_value(lease)?)
        .await?;
    says(&admin.page(&["status"]).await?, &["paused since", "INC-3"])?;
    admin.page(&on(&["resume"])).await?;
    assert_eq!(config_maps.get("nodeward-pause").await?.data, None);
    Ok(())
}
