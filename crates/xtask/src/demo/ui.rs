//! The demo in a browser.

use anyhow::{Context, Result};
use nodeward_testkit::binaries::{self, Profile};
use nodeward_testkit::process::Process;
use nodeward_testkit::wait::{self, secs};

use super::environment::Environment;

/// Serves `kubectl nodeward ui` of the demo's cluster, and opens it.
pub async fn open(env: &Environment) -> Result<Process> {
    let plugin = tokio::task::spawn_blocking(|| binaries::operator("kubectl-nodeward", Profile::Dev)).await??;
    let log = env.cluster.dir().join("ui.log");
    let page = Process::new("kubectl nodeward ui", plugin, &log)
        .args(["ui", "--kubeconfig"])
        .args([env.cluster.kubeconfig()]);
    page.start()?;
    let address = wait::until("the page to be served", secs(60), || async {
        let said = std::fs::read_to_string(&log)?;
        let address = said.lines().find(|line| line.starts_with("http://"));
        address.map(str::to_owned).context(said.clone())
    })
    .await?;
    println!("the fleet in a browser: {address}");
    Ok(page)
}
