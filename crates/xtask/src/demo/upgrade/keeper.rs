//! drain-keeper as a user installs it: by the chart, and then the operator's binary under the ServiceAccount that it made.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use nodeward_testkit::operator::{Operator, OperatorSpec};
use nodeward_testkit::progress::Progress;
use serde_json::json;

use super::machinery::Machinery;
use crate::demo::chart;
use crate::demo::place::Place;

/// Installs and starts it.
pub async fn install(place: &Place, binary: PathBuf) -> Result<Operator> {
    let progress = Progress::begin("drain-keeper");
    let config = Machinery::of(place).config(place);
    if place.plane().is_none() {
        // With the run's label, by which it is found again.
        place.create_namespace("system").await?;
    }
    progress.step("helm install");
    chart::release(place)
        .values(json!({ "drainKeeper": { "config": config, "deployment": { "enabled": false } } }))
        .install(place.cluster())
        .await?;
    progress.step("starting");
    let keeper = OperatorSpec::new(
        "drain-keeper",
        &chart::namespace(place),
        &chart::service_account(place, "drain-keeper"),
    )
    .binary(binary)
    // JSON is YAML.
    .config(&config.to_string())
    .arg("--log-format=text")
    .start(place.cluster())
    .await?;
    keeper.ready(Duration::from_secs(30)).await?;
    progress.done("installed by helm, runs under its own ServiceAccount");
    Ok(keeper)
}
