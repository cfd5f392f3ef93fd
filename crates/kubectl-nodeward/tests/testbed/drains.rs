//! Drains from the command to the release.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams};
use nodeward_api::node_drain::Phase;
use nodeward_api::reason::LockReason;
use nodeward_testkit::bulk;
use nodeward_testkit::fleet;
use nodeward_testkit::kubectl::Said;
use nodeward_testkit::proxy::{Fault, Proxy, Rule, Verb};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::PodTemplate;
use rustix::process::Signal;
use serde_json::json;

use crate::environment::Environment;
use crate::person::{Person, says};

/// Waits until a running command has said this.
async fn told(command: &Said, part: &str) -> Result<()> {
    wait::until(format!("{} to say {part}", command.command()), secs(90), || async {
        ensure!(command.text().contains(part), "{}", command.text());
        Ok(())
    })
    .await
}

/// Waits for the end of a running command: its exit code, and all that it has said.
async fn end(command: &Said) -> Result<(i32, String)> {
    let status = command.process().wait_for_exit(secs(90)).await?;
    Ok((status.code().context("killed")?, command.text()))
}

#[tokio::test(flavor = "multi_thread")]
async fn drains_of_one_budget_queue_and_pages_tell() -> Result<()> {
    let env = Environment::new().await?;
    let [n1, n2, n3] = env.workers().await?;
    env.add_pinned("db", &[n1.clone(), n2.clone(), n3]).await?;
    let (admin, db) = (&env.admin, format!("{}/db", env.name));

    // A plan changes nothing, and leaves nothing behind.
    let plan = admin.page(&["plan", &n1]).await?;
    says(
        &plan,
        &[&format!("Plan for {n1}"), "nothing was cordoned", &db, "[NoRoom]"],
    )?;
    env.gone(&n1).await?;
    says(
        &admin.page(&["why", &n1]).await?,
        &["not cordoned", "not requested from drain-lock"],
    )?;

    let first = admin.start(&["drain", &n1, "--purpose", "kernel 6.12"])?;
    assert_eq!(end(&first).await?.0, 0, "{}", first.text());
    says(
        &first.text(),
        &[&format!("{n1}: requested"), &format!("{n1}: is drained"), "may go down"],
    )?;

    // Of a node that is cordoned, the drain waits for the budget, and not for room.
    fleet::cordon(&env.client, &n2).await?;
    let both = admin.start(&["drain", &n1, &n2, &n1])?;
    told(&both, &format!("{n2}: Queued")).await?;
    let waits = format!("waits for {n1} ({db})");
    told(&both, &waits).await?;
    says(
        &both.text(),
        &[
            &format!("{n1}: already requested: Drained"),
            &format!("{n2}: requested"),
        ],
    )?;

    // All that concerns the two, while one waits for the other.
    let status = admin.page(&["status"]).await?;
    says(
        &status,
        &["drain-lock", "in nodeward-system: works", &n1, &n2, "Drained", "Queued"],
    )?;
    let status = admin.json(&["status"]).await?;
    let queued = status["drains"]
        .as_array()
        .context("no drains")?
        .iter()
        .find(|drain| drain["node"] == *n2);
    let queued = queued.context("not queued")?;
    assert_eq!(queued["blockedBy"][0]["node"], *n1, "{queued:#}");
    assert_eq!(queued["blockedBy"][0]["reason"], "WaitsForDisruptions", "{queued:#}");

    let why = admin.page(&["why", &n2]).await?;
    says(
        &why,
        &[
            "[WaitsForDisruptions]",
            &format!("goes on when {n1} releases its disruptions"),
            &db,
        ],
    )?;
    let plan = admin.page(&["plan", &n2]).await?;
    says(
        &plan,
        &[
            "Of its drain, which is Queued",
            &db,
            "[NoRoom]",
            "[WaitsForDisruptions]",
        ],
    )?;

    let locks = admin.page(&["locks", "-n", &env.name]).await?;
    says(&locks, &["held", &n1, "waiting", &n2])?;
    let locks = admin.json(&["locks", "-n", &env.name]).await?;
    assert_eq!(locks["budgets"][0]["pdb"], *db, "{locks:#}");
    assert_eq!(locks["budgets"][0]["held"][0]["node"], *n1, "{locks:#}");
    assert_eq!(locks["budgets"][0]["waiting"][0]["node"], *n2, "{locks:#}");
    let yaml = admin.nodeward(&["locks", "-n", &env.name, "-o", "yaml"]).await?.out;
    assert_eq!(
        serde_yaml::from_str::<serde_json::Value>(&yaml)?["budgets"][0]["pdb"],
        *db
    );

    // Not before the first is back does the second get its turn.
    says(
        &admin.page(&["release", &n1]).await?,
        &[&format!("node/{n1}: its drain ends")],
    )?;
    let (code, text) = end(&both).await?;
    assert_eq!(code, 0, "{text}");
    says(
        &text,
        &[
            &format!("{n2}: is drained"),
            &format!("All 2 nodes were drained. {n2} may go down"),
        ],
    )?;
    ensure!(!text.contains('\u{1b}'), "coloured: {text}");
    env.gone(&n1).await?;
    let node = Api::<Node>::all(env.client.clone()).get(&n1).await?;
    ensure!(
        node.spec.and_then(|spec| spec.unschedulable) != Some(true),
        "still cordoned"
    );
    says(&admin.page(&["release", &n2]).await?, &["its drain ends"])?;
    // Who cordoned it ends that.
    fleet::uncordon(&env.client, &n2).await?;
    env.gone(&n2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_drain_continues_and_can_be_followed_again() -> Result<()> {
    let env = Environment::new().await?;
    let [n1, n2] = env.workers().await?;
    env.add_pinned("web", &[n1.clone(), n2]).await?;
    let proxy = Proxy::start(env.plane).await?;
    let admin = &Person::through(env.plane, &proxy)?;
    let hold = ["hold", "web", "-n", &env.name, "--reason", "migration"];
    let held = admin.json(&[&hold[..], &["--for", "2h"]].concat()).await?;
    let hold_name = format!("hold/{}", held["name"].as_str().context("no name")?);
    assert_eq!(held["phase"], "Active", "{held:#}");

    // Ctrl-C ends the command, not the drain.
    let drain = ["drain", &n1, "--deadline-queue", "1h"];
    let command = admin.start(&drain)?;
    told(&command, "waits for OwnerHold").await?;
    command.process().signal(Signal::INT)?;
    let (code, text) = end(&command).await?;
    assert_eq!(code, 130, "{text}");
    let again = format!("watch again kubectl nodeward drain {n1}");
    says(&text, &["Interrupted. The drains go on without this command.", &again])?;
    let left = env.drains().get(&n1).await?;
    ensure!(left.metadata.deletion_timestamp.is_none(), "it ends: {left:?}");

    // The same command joins what there is; so does one with a limit, which passes.
    let watching = admin.start(&drain)?;
    told(&watching, &format!("{n1}: already requested: ")).await?;
    let limited = admin.nodeward(&["drain", &n1, "--timeout", "5s", "-o", "json"]).await?;
    assert_eq!(limited.code, 3, "{limited:?}");
    says(&limited.err, &["Timed out", &again])?;
    let board: serde_json::Value = serde_json::from_str(&limited.out)?;
    assert_eq!(board["drains"][0]["outcome"], "Waiting", "{board:#}");
    let no_wait = admin.page(&["drain", &n1, "--no-wait"]).await?;
    says(&no_wait, &["already requested", &again])?;
    let now = env.drains().get(&n1).await?;
    assert_eq!(now.metadata.uid, left.metadata.uid, "it is another drain");
    assert_eq!(now.spec.requesters, left.spec.requesters);

    let why = admin.page(&["why", &n1]).await?;
    says(&why, &["[OwnerHold]", "migration", &hold_name, "kept"])?;

    // A connection that breaks is made again.
    let lost = Rule::new(Fault::BrokenConnection)
        .verbs([Verb::List, Verb::Watch])
        .resource("nodedrains")
        .times(2);
    proxy.inject(lost);
    proxy.drop_watches();
    told(&watching, "the API server cannot be reached").await?;

    // The hold ends, and the drain goes on.
    let released = admin.page(&["release", &hold_name, "-n", &env.name]).await?;
    says(&released, &["it holds nothing any more"])?;
    let (code, text) = end(&watching).await?;
    assert_eq!(code, 0, "{text}");
    says(
        &text,
        &[
            &format!("{n1} is drained and may go down"),
            &format!("when done kubectl nodeward release {n1}"),
        ],
    )?;
    says(&admin.page(&["release", &n1]).await?, &["its drain ends"])?;
    env.gone(&n1).await?;
    let twice = admin.nodeward(&["release", &n1]).await?;
    assert_eq!(twice.code, 1, "{twice:?}");
    says(&twice.out, &[&format!("node/{n1}: ")])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_fails_and_says_so() -> Result<()> {
    let env = Environment::new().await?;
    let [n1, n2] = env.workers().await?;
    env.add_pinned("web", &[n1.clone(), n2.clone()]).await?;
    let admin = &env.admin;

    // A mistake in the last name asks for nothing.
    let error = admin.nodeward(&["drain", &n1, &n2, "nowhere"]).await?;
    assert_eq!(
        (error.code, error.err.trim_end()),
        (1, "error: there is no node nowhere"),
        "{error:?}"
    );
    ensure!(env.drains().get_opt(&n1).await?.is_none(), "{n1} was asked for");
    let error = admin.nodeward(&["why", "nowhere"]).await?.error()?;
    assert_eq!(error, "there is no node nowhere");
    let usage = admin.nodeward(&["drain", "NODE_1"]).await?;
    assert_eq!(usage.code, 2, "{usage:?}");

    // An owner's hold lasts as long as policy allows.
    let hold = ["hold", "web", "-n", &env.name, "--reason", "r"];
    let capped = admin
        .page(&[&hold[..], &["--for", "999h", "--disruptions", "1"]].concat())
        .await?;
    says(
        &capped,
        &[
            "keeps 1 disruption of",
            "sooner than requested",
            "end it kubectl nodeward release hold/web-",
        ],
    )?;
    let none = ["hold", "nothing", "-n", &env.name, "--reason", "r", "--for", "1h"];
    let error = admin.nodeward(&none).await?.error()?;
    assert_eq!(
        error,
        format!("there is no PodDisruptionBudget nothing in namespace {}", env.name)
    );

    // A drain that somebody cancels did not succeed.
    let command = admin.start(&["drain", &n1])?;
    env.status_that(&n1, "to wait for the hold", |status| {
        status
            .blocked_by
            .iter()
            .any(|blocked| blocked.reason == LockReason::OwnerHold)
    })
    .await?;
    // Not ours to end, until its name is said.
    let patch = json!({ "spec": { "requesters": [{ "name": "fleetlock:workers:n1" }] } });
    let patch = kube::api::Patch::Merge(&patch);
    env.drains()
        .patch(&n1, &kube::api::PatchParams::default(), &patch)
        .await?;
    let foreign = admin.nodeward(&["release", &n1]).await?;
    assert_eq!(foreign.code, 1, "{foreign:?}");
    says(&foreign.out, &["by fleetlock:workers:n1: name one with --requester"])?;
    // Somebody else wants it, too.
    says(
        &admin.page(&["drain", &n1, "--no-wait"]).await?,
        &["joined the drain of fleetlock:workers:n1"],
    )?;
    says(
        &admin.page(&["release", &n1]).await?,
        &["its drain goes on for fleetlock:workers:n1"],
    )?;
    env.drains().delete(&n1, &DeleteParams::default()).await?;
    let (code, text) = end(&command).await?;
    assert_eq!(code, 1, "{text}");
    says(
        &text,
        &[
            "its drain was cancelled before it was done",
            &format!("{n1} was not drained"),
        ],
    )?;
    env.gone(&n1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn early_uncordon_withdraws_the_reboot_permission() -> Result<()> {
    let env = Environment::new().await?;
    let [n1, n2] = env.workers().await?;
    env.add_pinned("web", &[n1.clone(), n2.clone()]).await?;
    let admin = &env.admin;
    says(&admin.page(&["drain", &n2, "--timeout", "90s"]).await?, &["is drained"])?;
    let command = admin.start(&["drain", &n1])?;
    told(&command, &format!("waits for {n2}")).await?;
    fleet::uncordon(&env.client, &n1).await?;
    let (code, text) = end(&command).await?;
    assert_eq!(code, 1, "{text}");
    says(&text, &[&format!("{n1} was not drained")])?;
    ensure!(!text.contains("may go down"), "{text}");
    env.gone(&n1).await
}

/// Whoever uncordons a node and drains it again means a new drain, and not the one that is ending.
#[tokio::test(flavor = "multi_thread")]
async fn drain_right_after_uncordon_is_a_new_one() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let admin = &env.admin;
    let drain = ["drain", &node, "--timeout", "90s"];
    says(&admin.page(&drain).await?, &["is drained and may go down"])?;
    fleet::uncordon(&env.client, &node).await?;
    says(&admin.page(&drain).await?, &["is drained and may go down"])?;
    admin.page(&["release", &node]).await?;
    env.gone(&node).await
}

/// As with kubectl drain.
#[tokio::test(flavor = "multi_thread")]
async fn drain_begins_nothing_without_consent() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let bare = PodTemplate::new().on(&node).empty_dir().pod(&env.name, "bare")?;
    bulk::create(&env.client, [bare]).await?;
    let admin = &env.admin;
    let plan = admin.page(&["plan", &node]).await?;
    says(&plan, &["Needs attention", "UnmanagedPodKept", "EmptyDirDataKept"])?;
    let command = admin.start(&["drain", &node])?;
    told(&command, "UnmanagedPodKept").await?;
    let next = [
        format!("kubectl nodeward drain {node} --force"),
        format!("kubectl nodeward drain {node} --delete-emptydir-data"),
    ];
    let why = admin.page(&["why", &node]).await?;
    says(&why, &next.each_ref().map(String::as_str))?;
    let one = ["drain", &node, "--force", "--no-wait"];
    says(&admin.page(&one).await?, &["already requested"])?;
    told(&command, "EmptyDirDataKept").await?;
    let nodes: Api<Node> = Api::all(env.client.clone());
    let spec = nodes.get(&node).await?.spec.unwrap_or_default();
    ensure!(spec.unschedulable.is_none(), "it was cordoned");

    let consent = ["drain", &node, "--delete-emptydir-data", "--timeout", "90s"];
    says(&admin.page(&consent).await?, &["is drained and may go down"])?;
    let (code, text) = end(&command).await?;
    assert_eq!(code, 0, "{text}");
    admin.page(&["release", &node]).await?;
    env.gone(&node).await
}

#[tokio::test(flavor = "multi_thread")]
async fn administrator_release_records_its_reason() -> Result<()> {
    let env = Environment::new().await?;
    let [n1, n2] = env.workers().await?;
    env.add_pinned("db", &[n1.clone(), n2]).await?;
    let admin = &env.admin;
    admin
        .page(&["hold", "db", "-n", &env.name, "--reason", "audit", "--for", "1h"])
        .await?;
    let command = admin.start(&["drain", &n1])?;
    told(&command, "waits for OwnerHold").await?;

    let locks = admin.json(&["locks", "-n", &env.name]).await?;
    let hold = locks["budgets"][0]["ownerHolds"][0]["name"]
        .as_str()
        .context("no hold")?;
    let usage = admin.nodeward(&["release", &format!("hold/{hold}"), "--force"]).await?;
    assert_eq!(usage.code, 2, "a reason is missing: {usage:?}");
    let forced = [
        "release",
        &format!("hold/{hold}"),
        "-n",
        &env.name,
        "--force",
        "--reason",
        "outage 4711",
    ];
    says(&admin.page(&forced).await?, &["your override, which is recorded"])?;
    let (code, text) = end(&command).await?;
    assert_eq!(code, 0, "{text}");
    let holds: Api<nodeward_api::DisruptionHold> = Api::namespaced(env.client.clone(), &env.name);
    let written = holds.get(hold).await?.metadata.annotations.unwrap_or_default();
    let written = written
        .get(nodeward_api::annotation::RELEASE)
        .context("nothing is written")?;
    ensure!(written.ends_with(": outage 4711"), "{written}");

    let drained = env.phase(&n1, Phase::Drained).await?;
    assert_eq!(drained.held_disruptions, Some(1), "{drained:?}");
    let forced = ["release", &n1, "--force", "--reason", "its pods do not come back"];
    says(
        &admin.page(&forced).await?,
        &["your override, which is recorded, releases all that its drain holds"],
    )?;
    wait::until("nothing to be held", secs(60), || async {
        let locks = admin.json(&["locks", "-n", &env.name]).await?;
        let held = &locks["budgets"][0]["held"];
        ensure!(held.as_array().is_none_or(Vec::is_empty), "{locks:#}");
        Ok(())
    })
    .await
}
