//! Situations in which somebody asks why: every door gives one answer, what it promises happens, and what it advises ends it.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use nodeward_api::node_drain::{NodeDrain, Phase};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use nodeward_testkit::{bulk, fleet};
use rstest::rstest;
use serde_json::{Value, json};

use crate::environment::{Environment, drain_lock};
use crate::person::says;

/// What all doors say of a node.
#[derive(Debug)]
struct Told {
    severity: String,
    why: String,
    next: Vec<Value>,
}

impl Told {
    /// The step of which the text has this.
    fn step(&self, part: &str) -> Result<&Value> {
        let has = |step: &&Value| step["text"].as_str().is_some_and(|text| text.contains(part));
        let step = self.next.iter().find(has);
        step.with_context(|| format!("no step says {part:?}: {self:#?}"))
    }

    /// When that happens.
    fn time(&self, part: &str) -> Result<Timestamp> {
        let at = self.step(part)?["at"].as_str().context("no time")?;
        Ok(at.parse()?)
    }

    /// The command for it that contains this.
    fn command(&self, part: &str) -> Result<&str> {
        let commands = self
            .next
            .iter()
            .flat_map(|step| step["commands"].as_array().into_iter().flatten());
        let command = commands
            .filter_map(Value::as_str)
            .find(|command| command.contains(part));
        command.with_context(|| format!("no command has {part:?}: {self:#?}"))
    }
}

/// Asks by every door until all say the same, and it is of this severity and names this reason.
async fn told(env: &Environment, node: &str, severity: &str, reason: &str) -> Result<Told> {
    wait::until(format!("{node}: {severity} for {reason}"), secs(90), || async {
        let why = env.admin.json(&["why", node]).await?;
        let answer = &why["answer"];
        let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
        let told = Told {
            severity: text("severity"),
            why: text("why"),
            next: why["next"].as_array().cloned().unwrap_or_default(),
        };
        ensure!(told.severity == severity && told.why.contains(reason), "{told:#?}");

        let status = env.admin.json(&["status"]).await?;
        let causes = status["needsPerson"].as_array().into_iter().flatten();
        let names = |cause: &&Value| {
            cause["nodes"]
                .as_array()
                .is_some_and(|nodes| nodes.contains(&json!(node)))
        };
        let cause = causes.clone().find(names);
        ensure!(cause.is_some() == (severity == "NeedsPerson"), "{told:#?}: {status:#}");
        if let Some(cause) = cause {
            ensure!(
                cause["why"] == answer["why"] && cause["state"] == answer["state"],
                "{cause:#}: {answer:#}"
            );
        }

        let dir = tempfile::tempdir()?;
        let file = dir.path().join("moment.json");
        let path = file.to_str().context("a path of text")?;
        env.admin.page(&["ui", "--snapshot", path]).await?;
        let moment: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
        let shown = &moment["state"]["nodes"][node];
        for field in ["state", "severity", "since", "until", "why"] {
            ensure!(shown[field] == answer[field], "{field}: {shown:#}: {answer:#}");
        }
        Ok(told)
    })
    .await
}

/// Requests the drain of the node, which somebody has cordoned.
async fn drain(env: &Environment, node: &str) -> Result<()> {
    fleet::cordon(&env.client, node).await?;
    env.admin.page(&["drain", node, "--no-wait"]).await?;
    Ok(())
}

/// Runs what was printed.
async fn run(env: &Environment, command: &str) -> Result<()> {
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    let answer = env.admin.kubectl(&words).await?;
    ensure!(answer.code == 0, "{command}: {answer:?}");
    Ok(())
}

/// What was drained is given back.
async fn end(env: &Environment, node: &str) -> Result<()> {
    env.phase(node, Phase::Drained).await?;
    let drained = told(env, node, "Waits", "").await?;
    run(env, drained.command(" release ")?).await?;
    fleet::uncordon(&env.client, node).await?;
    env.gone(node).await?;
    told(env, node, "Fine", "").await?;
    Ok(())
}

/// A Deployment whose pods fit all of these nodes, and a budget that demands so many of them.
async fn singleton(env: &Environment, app: &str, nodes: &[&String]) -> Result<()> {
    let zone = format!("{}-{app}", env.name);
    let api = Api::<Node>::all(env.client.clone());
    for name in nodes {
        let label = json!({ "metadata": { "labels": { format!("example.com/{app}"): zone } } });
        api.patch(name, &PatchParams::default(), &Patch::Merge(&label)).await?;
    }
    let template = PodTemplate::new()
        .node_selector(&format!("example.com/{app}"), &zone)
        .grace(1);
    bulk::create(&env.client, [template.deployment(&env.name, app, 1)?]).await?;
    bulk::create(&env.client, [Budget::min_available(&env.name, app, 1).of(app).build()?]).await?;
    workload::ready_pods(&env.client, &env.name, app, 1, secs(90)).await?;
    workload::counted_budget(&env.client, &env.name, app, 1, secs(60)).await?;
    Ok(())
}

/// The name of the pod of `web` that this node runs.
async fn pod_on(env: &Environment, node: &str) -> Result<String> {
    let pods = workload::ready_pods(&env.client, &env.name, "web", 2, secs(60)).await?;
    let is_here = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    Ok(pods.iter().find(is_here).context("no pod")?.name_any())
}

async fn scale(env: &Environment, app: &str, replicas: i32) -> Result<()> {
    let deployments = Api::<Deployment>::namespaced(env.client.clone(), &env.name);
    let scale = json!({ "spec": { "replicas": replicas } });
    deployments
        .patch_scale(app, &PatchParams::default(), &Patch::Merge(&scale))
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_of_an_owner_ends_when_it_says() -> Result<()> {
    let env = Environment::new().await?;
    let [node, other] = env.workers().await?;
    env.add_pinned("db", &[node.clone(), other]).await?;
    env.admin
        .page(&["hold", "db", "-n", &env.name, "--reason", "reindexing", "--for", "30s"])
        .await?;
    drain(&env, &node).await?;
    let waits = told(&env, &node, "Waits", "OwnerHold").await?;
    let named = waits.time("goes on when its owner's hold of")?;
    let drained = env.phase(&node, Phase::Drained).await?;
    let granted = drained.granted_at.context("no grant")?;
    // It is told to the second.
    ensure!(
        named - SignedDuration::from_secs(1) < granted,
        "granted at {granted}, before {named}"
    );
    end(&env, &node).await
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_ends_a_hold_by_the_printed_command() -> Result<()> {
    let env = Environment::new().await?;
    let [node, other] = env.workers().await?;
    env.add_pinned("db", &[node.clone(), other]).await?;
    env.admin
        .page(&["hold", "db", "-n", &env.name, "--reason", "reindexing", "--for", "1h"])
        .await?;
    drain(&env, &node).await?;
    let waits = told(&env, &node, "Waits", "OwnerHold").await?;
    run(&env, waits.command(" release ")?).await?;
    end(&env, &node).await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_replica_ends_a_budget_that_never_allows() -> Result<()> {
    let env = Environment::new().await?;
    let [node, other] = env.workers().await?;
    fleet::cordon(&env.client, &other).await?;
    singleton(&env, "single", &[&node, &other]).await?;
    fleet::uncordon(&env.client, &other).await?;
    drain(&env, &node).await?;
    let blocked = told(&env, &node, "NeedsPerson", "BudgetNeverAllows").await?;
    blocked.step("add a replica to the workload")?;
    let pdb = env.admin.page(&["why", "pdb/single", "-n", &env.name]).await?;
    says(
        &pdb,
        &[
            "no disruption now",
            "[BudgetNeverAllows]",
            "add a replica to the workload",
        ],
    )?;
    scale(&env, "single", 2).await?;
    end(&env, &node).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_that_is_scaled_away_is_not_blamed_any_more() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    singleton(&env, "room", &[&node]).await?;
    let budget = json!({ "spec": { "minAvailable": null, "maxUnavailable": 1 } });
    let budgets = Api::<PodDisruptionBudget>::namespaced(env.client.clone(), &env.name);
    budgets
        .patch("room", &PatchParams::default(), &Patch::Merge(&budget))
        .await?;
    drain_with_pending(&env, &node).await?;
    let blocked = told(&env, &node, "NeedsPerson", "BudgetUnhealthy").await?;
    let pending = blocked.step("goes on when")?["text"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    ensure!(pending.contains("it is Pending"), "{pending}");
    let pdb = env.admin.page(&["why", "pdb/room", "-n", &env.name]).await?;
    says(&pdb, &["1 of 2 pods healthy", "is Pending"])?;
    wait::until("the time from which it goes on", secs(60), || async {
        let blocked = told(&env, &node, "NeedsPerson", "BudgetUnhealthy").await?;
        blocked.time("without the pods that cannot go")
    })
    .await?;
    scale(&env, "room", 1).await?;
    end(&env, &node).await
}

/// Drains the node while a second pod of the budget finds no node.
async fn drain_with_pending(env: &Environment, node: &str) -> Result<()> {
    fleet::cordon(&env.client, node).await?;
    scale(env, "room", 2).await?;
    workload::counted_budget(&env.client, &env.name, "room", 2, secs(60)).await?;
    env.admin.page(&["drain", node, "--no-wait"]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_of_two_budgets_goes_once_one_is_deleted() -> Result<()> {
    let env = Environment::new().await?;
    let [node, other] = env.workers().await?;
    env.add_pinned("web", &[node.clone(), other]).await?;
    let second = Budget::max_unavailable(&env.name, "second", 1).of("web").build()?;
    bulk::create(&env.client, [second]).await?;
    drain(&env, &node).await?;
    let blocked = told(&env, &node, "NeedsPerson", "SeveralPDBs").await?;
    blocked.step("until one of them selects the pod")?;
    ensure!(blocked.next.len() == 1, "it is told once: {blocked:#?}");
    let target = format!("pod/{}/{}", env.name, pod_on(&env, &node).await?);
    says(&env.admin.page(&["why", &target]).await?, &["[SeveralPDBs]"])?;
    env.admin
        .kubectl(&["delete", "pdb", "second", "-n", &env.name])
        .await?
        .page()?;
    end(&env, &node).await
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_for_another_node_ends_by_its_printed_command() -> Result<()> {
    let env = Environment::new().await?;
    let [first, second] = env.workers().await?;
    env.add_pinned("db", &[first.clone(), second.clone()]).await?;
    drain(&env, &first).await?;
    env.phase(&first, Phase::Drained).await?;
    drain(&env, &second).await?;
    let waits = told(&env, &second, "Waits", "WaitsForDisruptions").await?;
    let command = waits.command(" release ")?.to_owned();
    ensure!(command.contains(&first), "{command}");
    run(&env, &command).await?;
    // It was cordoned by a person, who uncordons it.
    fleet::uncordon(&env.client, &first).await?;
    env.gone(&first).await?;
    end(&env, &second).await
}

#[tokio::test(flavor = "multi_thread")]
async fn consent_is_given_by_the_printed_commands() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let bare = PodTemplate::new().on(&node).empty_dir().pod(&env.name, "bare")?;
    bulk::create(&env.client, [bare]).await?;
    drain(&env, &node).await?;
    let blocked = told(&env, &node, "NeedsPerson", "Kept").await?;
    for flag in ["--force", "--delete-emptydir-data"] {
        run(&env, &format!("{} --no-wait", blocked.command(flag)?)).await?;
    }
    end(&env, &node).await
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_opt_out_ends_when_it_is_removed() -> Result<()> {
    let env = Environment::new().await?;
    let [node, other] = env.workers().await?;
    env.add_pinned("web", &[node.clone(), other]).await?;
    let pod = pod_on(&env, &node).await?;
    let opt_out = |value: Value| json!({ "annotations": { "nodeward.dev/drain": value } });
    workload::patch_metadata(&env.client, &env.name, &pod, opt_out(json!("perhaps"))).await?;
    drain(&env, &node).await?;
    let blocked = told(&env, &node, "NeedsPerson", "UnknownOptOut").await?;
    blocked.step("correct or remove its opt-out")?;
    workload::patch_metadata(&env.client, &env.name, &pod, opt_out(Value::Null)).await?;
    end(&env, &node).await
}

#[tokio::test(flavor = "multi_thread")]
async fn forgotten_cordon_ends_by_the_printed_command() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    fleet::cordon_since(&env.client, &node, Timestamp::now() - SignedDuration::from_hours(2)).await?;
    let forgotten = told(&env, &node, "NeedsPerson", "nobody drains it").await?;
    run(&env, forgotten.command(" uncordon ")?).await?;
    told(&env, &node, "Fine", "").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_nobody_repairs_needs_a_person() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    fleet::stop_kubelet(&env.client, &node).await?;
    let silent = told(&env, &node, "NeedsPerson", "no NodeHealthCheck counts that").await?;
    run(&env, silent.command(" describe node ")?).await?;
    fleet::start_kubelet(&env.client, &node).await?;
    told(&env, &node, "Fine", "").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_is_not_there_is_drained_by_nobody() -> Result<()> {
    let env = Environment::new().await?;
    let ghost = format!("{}-ghost", env.name);
    for command in [&["why"][..], &["plan"], &["drain"]] {
        let answer = env.admin.nodeward(&[command, &[&ghost]].concat()).await?;
        ensure!(answer.code == 1, "{answer:?}");
        says(&answer.err, &[&format!("there is no node {ghost}")])?;
    }
    env.gone(&ghost).await?;
    // Whoever writes the NodeDrain by hand is told.
    let drain = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": ghost },
        "spec": { "nodeName": ghost, "requesters": [{ "name": "someone" }] },
    });
    bulk::create(&env.client, [serde_json::from_value::<NodeDrain>(drain)?]).await?;
    let command = wait::until("the answer about it", secs(60), || async {
        let why = env.admin.json(&["why", &ghost]).await?;
        let answer = &why["answer"];
        ensure!(answer["severity"] == "NeedsPerson", "{why:#}");
        says(answer["why"].as_str().unwrap_or_default(), &["does not exist"])?;
        ensure!(
            !why.to_string().contains("nodeward drain "),
            "it cannot be drained: {why:#}"
        );
        let status = env.admin.json(&["status"]).await?;
        let mut causes = status["needsPerson"].as_array().into_iter().flatten();
        ensure!(causes.any(|cause| cause["why"] == answer["why"]), "{status:#}: {why:#}");
        let mut steps = why["next"].as_array().into_iter().flatten();
        let command = steps.find_map(|step| step["commands"][0].as_str());
        Ok(command.context("no command")?.to_owned())
    });
    run(&env, &command.await?).await?;
    env.gone(&ghost).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_node_that_stays_cordoned_come_back_by_the_printed_command() -> Result<()> {
    let env = Environment::new().await?;
    let [first, second] = env.workers().await?;
    env.add_pinned("db", &[first.clone(), second.clone()]).await?;
    drain(&env, &first).await?;
    env.phase(&first, Phase::Drained).await?;
    env.admin.page(&["release", &first]).await?;
    drain(&env, &second).await?;
    told(&env, &first, "Waits", "once it is uncordoned")
        .await?
        .command(" uncordon ")?;
    let waits = told(&env, &second, "Waits", "WaitsForDisruptions").await?;
    let command = waits.command(" uncordon ")?.to_owned();
    ensure!(command.ends_with(&first), "{command}");
    run(&env, &command).await?;
    end(&env, &second).await
}

/// A person is called once the node is out of service for longer than the expected 15 minutes.
#[rstest]
#[case::a_moment_ago(0, "Waits", "AwaitsUncordon")]
#[case::long_ago(16, "NeedsPerson", "CircularWait")]
#[tokio::test(flavor = "multi_thread")]
async fn node_that_somebody_else_emptied_is_uncordoned_by_the_printed_command(
    #[case] minutes: i64,
    #[case] severity: &str,
    #[case] reason: &str,
) -> Result<()> {
    let env = Environment::new().await?;
    let [first, second] = env.workers().await?;
    env.add_pinned("web", &[first.clone(), second.clone()]).await?;
    fleet::cordon_since(
        &env.client,
        &first,
        Timestamp::now() - SignedDuration::from_mins(minutes),
    )
    .await?;
    workload::delete(&env.client, &env.name, &pod_on(&env, &first).await?).await?;
    drain(&env, &second).await?;
    let waits = told(&env, &second, severity, reason).await?;
    let command = waits.command(" uncordon ")?.to_owned();
    ensure!(command.ends_with(&first), "{command}");
    run(&env, &command).await?;
    end(&env, &second).await
}

#[tokio::test(flavor = "multi_thread")]
async fn need_of_more_than_a_budget_ever_gives_ends_when_it_allows_more() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let template = PodTemplate::new().on_nodes(&[&node], &[&node]).grace(1);
    bulk::create(&env.client, [template.stateful_set(&env.name, "pair", 2)?]).await?;
    let budget = Budget::max_unavailable(&env.name, "pair", 1).of("pair").build()?;
    bulk::create(&env.client, [budget]).await?;
    workload::ready_pods(&env.client, &env.name, "pair", 2, secs(90)).await?;
    workload::disruptions_allowed(&env.client, &env.name, "pair", 1, secs(60)).await?;
    drain(&env, &node).await?;
    let blocked = told(&env, &node, "NeedsPerson", "NeedExceedsBudget").await?;
    blocked.step("let the budget allow more")?;
    let more = json!({ "spec": { "maxUnavailable": 2 } });
    let budgets = Api::<PodDisruptionBudget>::namespaced(env.client.clone(), &env.name);
    budgets
        .patch("pair", &PatchParams::default(), &Patch::Merge(&more))
        .await?;
    end(&env, &node).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bare_pod_of_two_budgets_is_told_with_all_that_it_takes() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let bare = PodTemplate::new()
        .on(&node)
        .label("app", "bare")
        .pod(&env.name, "bare")?;
    bulk::create(&env.client, [bare]).await?;
    let budgets = ["first", "second"].map(|name| Budget::min_available(&env.name, name, 0).of("bare").build());
    bulk::create(&env.client, budgets.into_iter().collect::<Result<Vec<_>>>()?).await?;
    drain(&env, &node).await?;
    let blocked = told(&env, &node, "NeedsPerson", "").await?;
    blocked.step("until one of them selects the pod")?;
    run(&env, &format!("{} --no-wait", blocked.command("--force")?)).await?;
    // Consent alone does not let it go.
    let blocked = told(&env, &node, "NeedsPerson", "").await?;
    blocked.step("until one of them selects the pod")?;
    env.admin
        .kubectl(&["delete", "pdb", "second", "-n", &env.name])
        .await?
        .page()?;
    end(&env, &node).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_that_finishes_first_is_waited_for() -> Result<()> {
    let env = Environment::new().await?;
    let [node, other] = env.workers().await?;
    env.add_pinned("web", &[node.clone(), other]).await?;
    let pod = pod_on(&env, &node).await?;
    let waits = |value: Value| json!({ "annotations": { "nodeward.dev/drain": value } });
    workload::patch_metadata(&env.client, &env.name, &pod, waits(json!("wait-completed"))).await?;
    drain(&env, &node).await?;
    let blocked = told(&env, &node, "Waits", "WaitCompleted").await?;
    blocked.step("wait until the pod has finished")?;
    workload::patch_metadata(&env.client, &env.name, &pod, waits(Value::Null)).await?;
    end(&env, &node).await
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_that_is_overdue_needs_a_person_and_nothing_happens_then() -> Result<()> {
    let env = Environment::new().await?;
    let [first, second] = env.workers().await?;
    env.add_pinned("db", &[first.clone(), second.clone()]).await?;
    drain(&env, &first).await?;
    env.phase(&first, Phase::Drained).await?;
    env.admin
        .page(&["drain", &second, "--no-wait", "--deadline-queue", "15s"])
        .await?;
    let waits = told(&env, &second, "Waits", "WaitsForDisruptions").await?;
    ensure!(waits.next.iter().all(|step| step["at"].is_null()), "{waits:#?}");
    let overdue = told(&env, &second, "NeedsPerson", "WaitsForDisruptions").await?;
    run(&env, overdue.command(" release ")?).await?;
    fleet::uncordon(&env.client, &first).await?;
    env.phase(&second, Phase::Drained).await?;
    env.admin.page(&["release", &second]).await?;
    env.gone(&second).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_that_a_finalizer_keeps_goes_once_it_is_removed() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let template = PodTemplate::new().on_nodes(&[&node], &[&node]).grace(1);
    let template = template.finalizer("example.com/backup");
    bulk::create(&env.client, [template.stateful_set(&env.name, "kept", 1)?]).await?;
    workload::ready_pods(&env.client, &env.name, "kept", 1, secs(90)).await?;
    drain(&env, &node).await?;
    // Its controller has a minute.
    wait::until("the step about the finalizer", secs(150), || async {
        let kept = told(&env, &node, "NeedsPerson", "example.com/backup").await?;
        kept.step("repair the controller that owns the finalizer").map(drop)
    })
    .await?;
    let target = format!("pod/{}/kept-0", env.name);
    says(
        &env.admin.page(&["why", &target]).await?,
        &["terminating", "example.com/backup"],
    )?;
    let none = json!({ "finalizers": null });
    workload::patch_metadata(&env.client, &env.name, "kept-0", none).await?;
    end(&env, &node).await
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_lock_that_does_not_act_is_told_until_it_does() -> Result<()> {
    let (env, lock) = Environment::alone().await?;
    let [node, other] = env.workers().await?;
    env.add_pinned("db", &[node.clone(), other]).await?;
    env.admin
        .page(&["hold", "db", "-n", &env.name, "--reason", "reindexing", "--for", "1h"])
        .await?;
    drain(&env, &node).await?;
    told(&env, &node, "Waits", "OwnerHold").await?;
    // It is not drain-keeper's turn, so that its pause changes nothing here.
    env.admin.page(&["pause", "drain-keeper", "--reason", "INC-2"]).await?;
    told(&env, &node, "Waits", "OwnerHold").await?;
    says(&env.admin.page(&["why", &node]).await?, &["paused since", "INC-2"])?;
    env.admin.page(&["pause", "drain-lock", "--reason", "INC-1"]).await?;
    let paused = told(&env, &node, "NeedsPerson", "drain-lock is paused: INC-1").await?;
    ensure!(paused.next.len() == 1, "nothing else is promised: {paused:#?}");
    run(&env, paused.command(" resume ")?).await?;
    told(&env, &node, "Waits", "OwnerHold").await?;
    lock.stop(secs(30)).await?;
    let dead = told(&env, &node, "NeedsPerson", "nobody runs drain-lock").await?;
    ensure!(dead.next.len() == 1, "nothing else is promised: {dead:#?}");
    run(&env, dead.command(" get pods ")?).await?;
    let _lock = drain_lock(env.plane).await?;
    let waits = told(&env, &node, "Waits", "OwnerHold").await?;
    run(&env, waits.command(" release ")?).await?;
    end(&env, &node).await
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_beside_an_unhealthy_pod_is_told_with_the_pod() -> Result<()> {
    let env = Environment::new().await?;
    let [node, other] = env.workers().await?;
    env.add_pinned("db", &[node.clone(), other.clone()]).await?;
    env.admin
        .page(&["hold", "db", "-n", &env.name, "--reason", "reindexing", "--for", "1h"])
        .await?;
    fleet::stop_kubelet(&env.client, &other).await?;
    told(&env, &other, "NeedsPerson", "not Ready").await?;
    drain(&env, &node).await?;
    let held = wait::until("both obstacles", secs(90), || async {
        let held = told(&env, &node, "NeedsPerson", "BudgetUnhealthy").await?;
        held.step("goes on when its owner's hold of")?;
        Ok(held)
    })
    .await?;
    let text = held.step("is Ready: it")?["text"].as_str().unwrap_or_default();
    let cause = format!(" is Ready: it is not Ready on {other}, which is not Ready");
    let pod = text.split('/').nth(1).and_then(|pod| pod.strip_suffix(&cause));
    let pod = pod.with_context(|| text.to_owned())?;
    run(&env, held.command(" release ")?).await?;
    fleet::start_kubelet(&env.client, &other).await?;
    told(&env, &other, "Fine", "").await?;
    // The simulated kubelet leaves it as the node's lifecycle has marked it.
    workload::delete(&env.client, &env.name, pod).await?;
    end(&env, &node).await
}
