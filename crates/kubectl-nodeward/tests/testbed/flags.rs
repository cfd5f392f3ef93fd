//! What users of kubectl expect of every command: several targets, labels, other users and servers, `--watch`, errors for programs.

use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use nodeward_api::node_drain::Phase;
use nodeward_testkit::bulk;
use nodeward_testkit::proxy::Proxy;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::webhook::DenyingWebhook;
use nodeward_testkit::workload::{self, Budget, PodTemplate};
use serde_json::{Value, json};

use crate::environment::Environment;
use crate::person::{Person, says};

#[tokio::test(flavor = "multi_thread")]
async fn several_nodes_are_answered_for_by_name_or_labels() -> Result<()> {
    let env = Environment::new().await?;
    let [n1, n2] = env.workers().await?;
    let admin = &env.admin;
    let selector = format!("kubernetes.io/hostname in ({n1},{n2})");
    for command in [
        &["why", &n1, &n2][..],
        &["why", "-l", &selector],
        &["plan", &n2, &n1, &n2],
        &["plan", "-l", &selector],
        &["drain", "-l", &selector, "--dry-run"],
    ] {
        let page = admin.page(command).await?;
        says(&page, &[&n1, &n2])?;
        let read = admin.json(command).await?;
        ensure!(read.as_array().map(Vec::len) == Some(2), "{command:?}: {read}");
    }
    let drains = env.drains().list(&ListParams::default()).await?.items;
    let of_both = drains
        .iter()
        .filter(|drain| [&n1, &n2].contains(&&drain.spec.node_name));
    assert_eq!(of_both.count(), 0);

    // One that is not there keeps nobody from the other.
    let answer = admin.nodeward(&["why", "missing", &n1]).await?;
    assert_eq!(answer.code, 1, "{answer:?}");
    says(&answer.out, &[&n1])?;
    says(&answer.err, &["error: there is no node missing"])?;
    let answer = admin.nodeward(&["why", "missing", &n1, "-o", "json"]).await?;
    let error: Value = serde_json::from_str(&answer.err).with_context(|| answer.err.clone())?;
    assert_eq!(error, json!({ "error": "there is no node missing" }));
    let error = admin.nodeward(&["plan", "-l", "pool=none"]).await?.error()?;
    says(&error, &["there is no node with the labels pool=none"])
}

/// A dry run shows what the drain would do that the same command line asks for.
#[tokio::test(flavor = "multi_thread")]
async fn dry_run_counts_with_what_the_other_flags_ask_for() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let template = PodTemplate::new().pinned("single", std::slice::from_ref(&node));
    bulk::create(&env.client, [template.deployment(&env.name, "single", 1)?]).await?;
    let never = Budget::max_unavailable(&env.name, "single", 0).of("single").build()?;
    bulk::create(&env.client, [never]).await?;
    workload::ready_pods(&env.client, &env.name, "single", 1, secs(90)).await?;
    workload::counted_budget(&env.client, &env.name, "single", 1, secs(60)).await?;
    let left_out = |plan: &Value| plan["plan"]["leftOut"].as_array().map_or(0, Vec::len);
    let plain = env.admin.json(&["drain", &node, "--dry-run"]).await?;
    ensure!(left_out(&plain) == 0, "{plain:#}");
    let asking = env.admin.json(&["drain", &node, "--dry-run", "--ask-owners"]).await?;
    ensure!(left_out(&asking) == 1, "{asking:#}");
    let gone = env.drains().get_opt(&node).await?;
    ensure!(gone.is_none(), "{gone:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn user_and_server_are_those_of_the_options() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let admin = &env.admin;
    let alone = format!("{}-alone", env.name);
    let status = admin.page(&["status", "--as", &alone]).await?;
    says(&status, &[&format!("{alone} may not list nodes in the whole cluster")])?;
    let status = admin
        .page(&["status", "--as", &alone, "--as-group", "system:masters"])
        .await?;
    ensure!(!status.contains("Cannot tell"), "{status}");
    // Printed commands are for the same user.
    let why = ["why", &node, "--as", &alone, "--as-group", "system:masters"];
    admin.page(&["drain", &node, "--no-wait"]).await?;
    env.phase(&node, Phase::Drained).await?;
    let why = admin.page(&why).await?;
    ensure!(
        why.contains(&format!("--as {alone} --as-group system:masters")),
        "{why}"
    );
    admin.page(&["release", &node]).await?;

    let error = admin.nodeward(&["status", "--token", "nobody's"]).await?.error()?;
    says(&error, &["the API server does not know who you are"])?;
    let nobody_listens = ["status", "--server", "https://127.0.0.1:1", "-o", "json"];
    let answer = admin.nodeward(&nobody_listens).await?;
    assert_eq!((answer.code, answer.out.as_str()), (1, ""), "{answer:?}");
    let error: Value = serde_json::from_str(&answer.err).with_context(|| answer.err.clone())?;
    let error = error["error"].as_str().unwrap_or_default();
    says(error, &["the API server cannot be reached: https://127.0.0.1:1"])?;
    // It takes connections and says nothing.
    let hung = TcpListener::bind("127.0.0.1:0")?;
    let server = format!("https://{}", hung.local_addr()?);
    let error = admin.nodeward(&["status", "--server", &server]).await?.error()?;
    says(&error, &["the API server did not answer within 5s"])
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_shows_what_was_while_the_server_is_away() -> Result<()> {
    let env = Environment::new().await?;
    let [node] = env.workers().await?;
    let proxy = Proxy::start(env.plane).await?;
    let far = Person::through(env.plane, &proxy)?;
    let watch = far.start(&["why", &node, "--watch"])?;
    let times = |text: &str, part: &str| text.matches(part).count();
    wait::until("two looks", secs(60), || async {
        let said = watch.text();
        ensure!(
            times(&said, &format!("\n{node}")) + usize::from(said.starts_with(&node)) >= 2,
            "{said}"
        );
        Ok(())
    })
    .await?;
    drop(proxy);
    wait::until("the last answer with its age", secs(60), || async {
        let said = watch.text();
        says(&said, &["What follows was so"])?;
        ensure!(watch.ended().is_none(), "it has ended: {said}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn check_names_what_does_not_work() -> Result<()> {
    let env = Environment::new().await?;
    let checked = wait::until("all to work", secs(60), || async { env.admin.page(&["check"]).await }).await?;
    says(&checked, &["drain-lock in", "works", "All that is installed works."])?;
    let alone = format!("{}-alone", env.name);
    let answer = env.admin.nodeward(&["check", "--as", &alone]).await?;
    assert_eq!(answer.code, 4, "{answer:?}");
    says(&answer.out, &["Cannot tell: components"])?;
    check_asks_the_webhooks(&env).await
}

/// Part of the test above, for every `check` looks at all webhooks. The one here denies, as drain-lock does what `check` asks for.
async fn check_asks_the_webhooks(env: &Environment) -> Result<()> {
    let denying = DenyingWebhook::of_evictions(env.plane, &env.name, 403, "no").await?;
    let hooks: Api<ValidatingWebhookConfiguration> = Api::all(env.client.clone());
    let is_here = |hook: &ValidatingWebhookConfiguration| json!(hook).to_string().contains(&env.name);
    let all = hooks.list(&ListParams::default()).await?.items;
    let mut hook = all.into_iter().find(is_here).context("no webhook")?;
    let labels = [("app.kubernetes.io/part-of".to_owned(), "nodeward".to_owned())];
    hook.metadata.labels = Some(labels.into());
    let webhook = hook.webhooks.iter_mut().flatten().next().context("no webhook")?;
    "evictions.drain-lock.nodeward.dev".clone_into(&mut webhook.name);
    webhook.failure_policy = Some("Ignore".to_owned());
    let name = hook.name_any();
    let mut hook = hooks.replace(&name, &PostParams::default(), &hook).await?;
    let check = ["check", "-n", &env.name];
    wait::until("the webhook to be reached", secs(60), || async {
        says(&env.admin.page(&check).await?, &["All that is installed works."])
    })
    .await?;
    let unseen = env.admin.nodeward(&["check"]).await?;
    assert_eq!(unseen.code, 4, "{unseen:?}");
    says(&unseen.out, &["name a namespace that it reviews by -n"])?;

    let webhook = hook.webhooks.iter_mut().flatten().next().context("no webhook")?;
    webhook.client_config.url = Some("https://127.0.0.1:1/".to_owned());
    hooks.replace(&name, &PostParams::default(), &hook).await?;
    wait::until("the webhook not to be reached", secs(60), || async {
        let answer = env.admin.nodeward(&check).await?;
        ensure!(answer.code == 1, "{answer:?}");
        let fails = format!("the API server does not reach the webhook {name}");
        says(
            &answer.out.split_whitespace().collect::<Vec<_>>().join(" "),
            &[&fails, "look whether https://127.0.0.1:1/ answers"],
        )
    })
    .await?;
    denying.remove().await
}
