//! kubectl as people run it.

use anyhow::{Context, Result, ensure};
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use nodeward_testkit::{ControlPlane, bulk, names};

#[tokio::test(flavor = "multi_thread")]
async fn command_lines_are_whole_and_drop_ends_it() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let (ns, node) = (names::unique("kubectl"), names::unique("node"));
    plane.namespace(&ns).await?;
    fleet::create(&client, [NodeSpec::worker(&node)]).await?;
    let pods = PodTemplate::new().node_selector("kubernetes.io/hostname", &node);
    bulk::create(&client, [pods.deployment(&ns, "web", 1)?]).await?;
    bulk::create(&client, [Budget::min_available(&ns, "web", 1).of("web").build()?]).await?;
    workload::ready_pods(&client, &ns, "web", 1, secs(60)).await?;
    workload::counted_budget(&client, &ns, "web", 1, secs(60)).await?;

    let kubectl = Kubectl::of(plane)?;
    let mut drain = kubectl.start(["drain", &node, "--ignore-daemonsets"])?;
    let mut told = Vec::new();
    wait::until("the drain to be refused", secs(60), || {
        told.extend(drain.news());
        let refused = told.iter().filter(|line| line.contains("disruption budget")).count();
        async move {
            ensure!(refused > 0, "not yet");
            Ok(())
        }
    })
    .await?;
    // It goes on talking.
    let text = drain.text();
    told.extend(drain.news());
    ensure!(told.join("\n").starts_with(text.trim_end()), "{told:?} of {text:?}");
    let (whole, text) = (told.join("\n"), drain.text());
    ensure!(text.starts_with(&whole), "{told:?} of {text:?}");
    ensure!(drain.ended().is_none(), "it goes on trying");
    let id = drain.process().id().context("its id")?;
    drop(drain);
    ensure!(!id.is_alive());

    kubectl.run(["uncordon", &node], secs(60)).await?;
    let refusal = kubectl.run(["uncordon", "no-such-node"], secs(60)).await.unwrap_err();
    ensure!(format!("{refusal:#}").contains("not found"), "{refusal:#}");
    Ok(())
}
