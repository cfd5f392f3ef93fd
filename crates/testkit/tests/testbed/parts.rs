//! The parts of a control plane can be killed and brought back.

use anyhow::{Result, ensure};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::wait::secs;
use nodeward_testkit::workload::{self, PodTemplate};
use nodeward_testkit::{ControlPlane, Options, bulk};

/// One pod that becomes Ready needs every part.
async fn everything_works(plane: &ControlPlane, name: &str) -> Result<()> {
    let client = plane.client().await?;
    bulk::create_one(client.clone(), PodTemplate::new().deployment("default", name, 1)?).await?;
    workload::ready_pods(&client, "default", name, 1, secs(60))
        .await
        .map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_parts_return_with_their_state() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    let client = plane.client().await?;
    fleet::create(&client, NodeSpec::workers("kept", 2)).await?;
    everything_works(&plane, "first").await?;
    for part in plane.parts() {
        let before = part.pid();
        part.kill();
        ensure!(!part.is_running(), "{} survived", part.name());
        if part.name() == "kwok" {
            plane.restart_kwok().await?;
        } else {
            part.start()?;
        }
        plane.ready().await?;
        ensure!(
            part.pid().is_some() && part.pid() != before,
            "{} was not started anew",
            part.name()
        );
        everything_works(&plane, &format!("after-{}", part.name())).await?;
    }
    Ok(())
}
