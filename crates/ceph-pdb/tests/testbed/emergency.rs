//! What a person does when a drain cannot wait for Ceph.

use anyhow::{Context, Result, ensure};
use nodeward_testkit::binaries::Profile;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::{binaries, wait};
use serde_json::json;

use crate::environment::{DEADLINE, DEFAULT, Environment, SEVERAL_PERIODS, hosts};

/// Two racks lack an OSD, so all is closed. One command lets the others go, one at a time, until ceph-pdb is resumed.
#[tokio::test(flavor = "multi_thread")]
async fn one_command_opens_what_is_closed_until_it_is_resumed() -> Result<()> {
    let env = Environment::with(hosts(6)).await?;
    let operator = env.start(json!({})).await?;
    env.open().await?;
    env.drain(0).await?;
    env.ceph().osd(1).kill();
    let closed = || async {
        let may_go = env.may_go().await?;
        ensure!(may_go.is_empty(), "{may_go:?} may go, state {}", env.state().await?);
        let budgets = env.osd_budgets().await?;
        ensure!(budgets.len() == 4, "{:?}", budgets.keys());
        Ok(())
    };
    wait::until("all to be closed", DEADLINE, closed).await?;

    let plugin = binaries::operator("kubectl-nodeward", Profile::Dev)?;
    let kubectl = Kubectl::of(env.plane)?.plugins(plugin.parent().context("no directory")?);
    let open = [
        "nodeward",
        "ceph",
        "open",
        "-n",
        env.rook.namespace(),
        "--reason",
        "INC-1",
    ];
    let said = kubectl.run(open, DEADLINE).await?;
    for told in [
        "paused (INC-1)",
        "lets one OSD at a time go, leaving out osd.0",
        "is deleted",
    ] {
        ensure!(said.contains(told), "no {told:?}:\n{said}");
    }
    let opened = || async {
        let names: Vec<String> = env.osd_budgets().await?.into_keys().collect();
        ensure!(names == [DEFAULT], "{names:?}");
        // The pod of OSD 1 is Ready, whatever Ceph says.
        let may_go = env.may_go().await?;
        ensure!(may_go.iter().eq(&[1, 2, 3, 4, 5]), "{may_go:?} may go");
        Ok(())
    };
    wait::until("the others to be allowed to go", DEADLINE, opened).await?;
    wait::throughout("open", SEVERAL_PERIODS, opened).await?;

    let resume = ["nodeward", "resume", "ceph-pdb", "-n", &env.system];
    kubectl.run(resume, DEADLINE).await?;
    wait::until("all to be closed again", DEADLINE, closed).await?;
    env.ceph().start_osd(1)?;
    env.bring_back(0).await?;
    env.open().await?;
    env.end([operator]).await
}
