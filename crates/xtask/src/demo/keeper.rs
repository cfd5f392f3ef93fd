//! drain-keeper as a user installs it: by the chart, and then the operator's binary under the ServiceAccount that it made.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::{Operator, OperatorSpec};
use nodeward_testkit::progress::Progress;
use serde_json::json;

use super::place::Place;

/// The name of the chart's release.
fn release_name(place: &Place) -> &str {
    if place.plane().is_some() {
        "nodeward"
    } else {
        place.run()
    }
}

/// Where it lives.
pub fn namespace(place: &Place) -> String {
    if place.plane().is_some() {
        nodeward_api::DEFAULT_NAMESPACE.to_owned()
    } else {
        place.named("system")
    }
}

/// The name of its ServiceAccount.
pub fn service_account(place: &Place) -> String {
    format!("{}-drain-keeper", release_name(place))
}

/// The chart's release.
pub fn release(place: &Place) -> Release {
    Release::new(release_name(place), &namespace(place))
}

/// Installs and starts it.
pub async fn install(place: &Place, binary: PathBuf) -> Result<Operator> {
    let progress = Progress::begin("drain-keeper");
    let config = place.machinery().config(place);
    if place.plane().is_none() {
        // With the run's label, by which it is found again.
        place.create_namespace("system").await?;
    }
    progress.step("helm install");
    release(place)
        .values(json!({ "drainKeeper": { "config": config, "deployment": { "enabled": false } } }))
        .install(place.cluster())
        .await?;
    progress.step("starting");
    let keeper = OperatorSpec::new("drain-keeper", &namespace(place), &service_account(place))
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
