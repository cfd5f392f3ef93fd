//! A text in a ConfigMap that belongs to somebody else.

use std::time::Duration;

use anyhow::{Result, ensure};
use nodeward_runtime::{ConfigMapSource, ConfigMapText, Watches};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, names};
use serde_json::json;

use crate::access::{client_as, put, remove};

const PATIENCE: Duration = secs(90);

async fn reads(source: &ConfigMapSource, expected: &ConfigMapText) -> Result<()> {
    wait::until("the text", PATIENCE, || async {
        ensure!(source.text() == *expected, "{:?}", source.text());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_the_config_map_through_its_whole_life() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let namespace = names::unique("config");
    plane.namespace(&namespace).await?;
    put(&client, &namespace, "another", json!({"config.yaml": "wrong"})).await?;
    let source = ConfigMapSource::spawn(
        &Watches::detached(),
        client.clone(),
        &namespace,
        "theirs",
        "config.yaml",
    );

    reads(&source, &ConfigMapText::Absent).await?;
    put(&client, &namespace, "theirs", json!({"config.yaml": "nodeDrain: {}"})).await?;
    reads(&source, &ConfigMapText::Text("nodeDrain: {}".into())).await?;
    put(
        &client,
        &namespace,
        "theirs",
        json!({"config.yaml": "nodeDrain: {timeOut: 5}"}),
    )
    .await?;
    reads(&source, &ConfigMapText::Text("nodeDrain: {timeOut: 5}".into())).await?;
    put(&client, &namespace, "theirs", json!({"other.yaml": "x"})).await?;
    reads(&source, &ConfigMapText::KeyMissing).await?;
    remove(&client, &namespace, "theirs").await?;
    reads(&source, &ConfigMapText::Absent).await
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_differs_from_missing_config_map() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = client_as(plane, &names::unique("user")).await?;
    let source = ConfigMapSource::spawn(&Watches::detached(), client, "default", "theirs", "config.yaml");
    wait::until("the refusal", PATIENCE, || async {
        ensure!(
            matches!(source.text(), ConfigMapText::Forbidden(_)),
            "{:?}",
            source.text()
        );
        Ok(())
    })
    .await
}
