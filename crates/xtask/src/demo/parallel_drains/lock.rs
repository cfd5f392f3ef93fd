//! drain-lock as a user installs it: by the chart, and then the operator's binary under the ServiceAccount that it made.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use nodeward_testkit::operator::Operator;
use nodeward_testkit::progress::Progress;

use crate::demo::chart;
use crate::demo::place::Place;
use crate::drain_lock;

/// Installs and starts it.
pub async fn install(place: &Place, binary: PathBuf) -> Result<Operator> {
    let progress = Progress::begin("drain-lock");
    progress.step("helm install");
    let lock = drain_lock::Install {
        release: chart::release(place),
        service_account: chart::service_account(place, "drain-lock"),
        config: serde_json::json!({}),
    };
    let lock = lock.start(place.cluster(), binary).await?;
    progress.step("starting");
    lock.ready(Duration::from_secs(30)).await?;
    progress.done("installed by helm, runs under its own ServiceAccount");
    Ok(lock)
}
