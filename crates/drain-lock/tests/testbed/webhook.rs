//! The eviction webhook, as the API server asks it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};
use nodeward_api::drain_ledger::ClaimState;
use nodeward_api::node_drain::{Evictor, Phase};
use nodeward_api::{annotation, label};
use nodeward_testkit::kubectl::{Kubectl, Said};
use nodeward_testkit::operator::OperatorSpec;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, PodTemplate};
use nodeward_testkit::{bulk, fleet, ports};
use serde_json::{Value, json};

use crate::caller::{Caller, Trust};
use crate::place::{APPS, Lock, Place, SYSTEM, pinned};

/// Name of the ValidatingWebhookConfiguration, which drain-lock looks up to publish its certificate.
const CONFIGURATION: &str = "nodeward-drain-lock";

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Has the API server ask whoever listens on `port`.
async fn register(place: &Place, port: u16) -> Result<()> {
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": { "name": CONFIGURATION },
        "webhooks": [{
            "name": "evictions.nodeward.dev",
            "clientConfig": { "url": format!("https://127.0.0.1:{port}/evictions") },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"], "operations": ["CREATE"],
                "scope": "Namespaced",
            }],
            "sideEffects": "NoneOnDryRun", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
            "timeoutSeconds": 2, "matchPolicy": "Equivalent",
        }],
    }))?;
    bulk::create(&place.client, [configuration]).await?;
    Ok(())
}

fn spec(port: u16, config: &Value) -> Result<OperatorSpec> {
    Ok(OperatorSpec::new("drain-lock", SYSTEM, "drain-lock")
        .binary(env!("CARGO_BIN_EXE_drain-lock"))
        .config(&serde_yaml::to_string(config)?)
        .arg(&format!("--webhook-bind=127.0.0.1:{port}"))
        .arg(&format!("--webhook-configuration={CONFIGURATION}")))
}

/// A place whose evictions a drain-lock reviews, with a pod under no budget to try that with.
async fn reviewed(nodes: &[&str], config: Value) -> Result<(Place, Lock, u16)> {
    let place = Place::new(nodes).await?;
    let port = ports::free()?;
    register(&place, port).await?;
    let lock = place.run(spec(port, &config)?).await?;
    place.plane.namespace("probe").await?;
    let probe = PodTemplate::new().tolerates_all().pod("probe", "probe")?;
    bulk::create(&place.client, [probe]).await?;
    wait::until("the API server to ask", secs(30), || async {
        let _ = evict(&place, "probe", "probe", json!({ "dryRun": ["All"] }), json!({})).await;
        let asked = lock
            .metrics()
            .await?
            .sum("nodeward_drain_lock_eviction_reviews_total", &[]);
        ensure!(asked > 0.0, "not once");
        Ok(())
    })
    .await?;
    Ok((place, lock, port))
}

/// Asks for an eviction as an administrator.
async fn evict(
    place: &Place,
    namespace: &str,
    pod: &str,
    delete_options: Value,
    annotations: Value,
) -> Result<(), kube::Error> {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": { "name": pod, "namespace": namespace, "annotations": annotations },
        "deleteOptions": delete_options,
    });
    let pods: Api<Pod> = Api::namespaced(place.client.clone(), namespace);
    let evicted: Result<Value, _> = pods
        .create_subresource("eviction", pod, &PostParams::default(), &eviction)
        .await;
    evicted.map(drop)
}

/// Why the eviction was refused: its status code, and the reason of its cause.
fn refusal(outcome: Result<(), kube::Error>) -> Result<(u16, String)> {
    match outcome {
        Ok(()) => anyhow::bail!("the eviction was admitted"),
        Err(kube::Error::Api(status)) => {
            let causes = status.details.as_ref().map(|details| &details.causes);
            let reason = causes
                .and_then(|causes| causes.first())
                .map(|cause| cause.reason.clone());
            Ok((status.code, reason.with_context(|| format!("no cause: {status:?}"))?))
        }
        Err(error) => Err(error.into()),
    }
}

fn drain(kubectl: &Kubectl, node: &str, more: &[&str]) -> Result<Said> {
    let args = [
        "drain",
        node,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--force",
    ];
    kubectl.start(args.iter().chain(more))
}

/// Waits until every drain has ended well; a node is back as soon as its own has.
async fn all_end(place: &Place, mut drains: Vec<(&str, Said)>, deadline: Duration) -> Result<()> {
    let began = std::time::Instant::now();
    while !drains.is_empty() {
        let mut left = Vec::new();
        for (node, said) in drains {
            match said.ended() {
                None => left.push((node, said)),
                Some(ended) => {
                    ensure!(ended, "{} failed:\n{}", said.command(), said.text());
                    place.uncordon(node).await?;
                }
            }
        }
        drains = left;
        if began.elapsed() > deadline {
            let said: Vec<String> = drains
                .iter()
                .map(|(node, said)| format!("{node}:\n{}", said.text()))
                .collect();
            anyhow::bail!("after {deadline:?} these drains go on:\n{}", said.join("\n"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_plain_kubectl_drains_at_once_all_end() -> Result<()> {
    let (place, lock, _) = reviewed(&NODES, json!({})).await?;
    place.add_pinned("a", &NODES).await?;
    place.add_pinned("b", &NODES).await?;
    let kubectl = Kubectl::of(&place.plane)?;
    let budgets = place.watch_budgets();
    for round in 0..2 {
        let drains: Result<Vec<_>> = NODES
            .iter()
            .map(|node| Ok((*node, drain(&kubectl, node, &[])?)))
            .collect();
        all_end(&place, drains?, secs(150))
            .await
            .with_context(|| format!("round {round}"))?;
        for node in NODES {
            place.released(node, secs(30)).await?;
        }
        for app in ["a", "b"] {
            workload::ready_pods(&place.client, APPS, app, NODES.len(), secs(30)).await?;
        }
    }
    budgets.none_was_violated()?;
    place.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_from_a_cordoned_node_asks_for_a_drain_in_its_users_name_and_waits_for_it() -> Result<()> {
    let (place, lock, _) = reviewed(&NODES, json!({})).await?;
    place.add_pinned("a", &NODES).await?;
    let evicted = place.pods_on("n1").await?.remove(0);
    let name = evicted.metadata.name.clone().context("no name")?;
    fleet::cordon(&place.client, "n1").await?;
    let refused = refusal(evict(&place, APPS, &name, json!({}), json!({})).await)?;
    ensure!(refused == (429, "NotPlanned".to_owned()), "{refused:?}");
    let drain = wait::until("the drain to be asked for", secs(10), || async {
        Ok(place.drains().get("n1").await?)
    })
    .await?;
    ensure!(drain.spec.evict == Evictor::Requester, "{:?}", drain.spec);
    ensure!(
        drain.spec.requesters[0].name.starts_with("eviction:"),
        "{:?}",
        drain.spec
    );
    let annotations = drain.metadata.annotations.clone().unwrap_or_default();
    ensure!(annotations.contains_key(annotation::LAST_EVICTION), "{annotations:?}");
    wait::until("the eviction to be admitted", secs(20), || async {
        Ok(evict(&place, APPS, &name, json!({}), json!({})).await?)
    })
    .await?;
    let claim = place.claim("n1").await?.context("no claim")?;
    ensure!(
        claim.state == ClaimState::Confirmed && claim.foreign_cordon,
        "{claim:?}"
    );
    place.phase("n1", Phase::Drained, secs(20)).await?;
    place.uncordon("n1").await?;
    place.released("n1", secs(30)).await?;
    place.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_node_holds_a_budget_no_other_eviction_takes_its_unit() -> Result<()> {
    let (place, lock, _) = reviewed(&NODES, json!({})).await?;
    // It stays on its node, so that the budget still shows a free unit while the claim holds it.
    let stays = pinned("a", &NODES).label(label::DRAIN, "skip").tolerates_all();
    place.add_app("a", &NODES, stays).await?;
    place.drain("n1", json!({})).await?;
    place.phase("n1", Phase::Drained, secs(30)).await?;
    let other = place.pods_on("n2").await?.remove(0);
    let other = other.metadata.name.context("no name")?;
    let refused = refusal(evict(&place, APPS, &other, json!({}), json!({})).await)?;
    ensure!(refused == (429, "WaitsForUnits".to_owned()), "{refused:?}");
    // What only asks what would happen is told what the stock API says.
    evict(&place, APPS, &other, json!({ "dryRun": ["All"] }), json!({})).await?;
    ensure!(
        place.pods_on("n1").await?.len() == 1,
        "the pod that asked to stay has gone"
    );
    place.delete_drain("n1").await?;
    place.released("n1", secs(60)).await?;
    place.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_ticket_is_forbidden() -> Result<()> {
    let (place, lock, _) = reviewed(&["n1"], json!({})).await?;
    let forged = json!({ annotation::TICKET: "1/1" });
    let refused = refusal(evict(&place, "probe", "probe", json!({}), forged).await)?;
    ensure!(refused == (403, "ForgedTicket".to_owned()), "{refused:?}");
    place.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_kubectl_drain_ends_and_asks_for_nothing() -> Result<()> {
    let (place, lock, _) = reviewed(&NODES, json!({})).await?;
    place.add_pinned("a", &NODES).await?;
    fleet::cordon(&place.client, "n1").await?;
    let kubectl = Kubectl::of(&place.plane)?;
    let said = drain(&kubectl, "n1", &["--dry-run=server"])?;
    ensure!(said.ended_within(secs(30)).await == Some(true), "{}", said.text());
    ensure!(place.pods_on("n1").await?.len() == 1, "a pod has gone");
    ensure!(
        place.drains().list(&ListParams::default()).await?.items.is_empty(),
        "a drain was asked for"
    );
    place.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_down_stops_no_eviction() -> Result<()> {
    let (place, lock, _) = reviewed(&NODES, json!({})).await?;
    place.add_pinned("a", &NODES).await?;
    lock.process().kill();
    let kubectl = Kubectl::of(&place.plane)?;
    let said = drain(&kubectl, "n1", &["--timeout=60s"])?;
    ensure!(said.ended_within(secs(70)).await == Some(true), "{}", said.text());
    place.end([]).await
}

/// What is too large is refused before it is read, whether or not its sender still listens to that.
async fn too_large(lock: &Lock, caller: &Caller, path: &str) -> Result<()> {
    let refused = async || {
        let metrics = lock.metrics().await?;
        anyhow::Ok(metrics.sum("nodeward_drain_lock_bad_reviews_total", &[("problem", "body")]))
    };
    let before = refused().await?;
    let json = [("content-type", "application/json")];
    if let Ok(answer) = caller.post(path, &json, vec![b' '; 3 * 1024 * 1024]).await {
        ensure!(answer.status == 413, "{answer:?}");
    }
    wait::until("the refusal to be counted", secs(10), || async {
        ensure!(refused().await? > before, "{before}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_a_review_gets_a_clear_refusal_and_harms_nobody() -> Result<()> {
    let (place, lock, port) = reviewed(&["n1"], json!({})).await?;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(place.client.clone());
    let published = configurations.get(CONFIGURATION).await?;
    let hook = published.webhooks.unwrap_or_default().remove(0);
    let authority = String::from_utf8(hook.client_config.ca_bundle.context("no certificate was published")?.0)?;
    let dir = tempfile::tempdir()?;
    let trust = Trust {
        authority: Some(&authority),
        ..Trust::default()
    };
    let caller = Caller::new(&format!("https://127.0.0.1:{port}"), dir.path(), trust).await?;
    let good = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "r1", "kind": { "group": "policy", "version": "v1", "kind": "Eviction" },
            "resource": { "group": "", "version": "v1", "resource": "pods" }, "subResource": "eviction",
            "name": "probe", "namespace": "probe", "operation": "CREATE", "userInfo": { "username": "alice" },
            "object": { "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "probe", "namespace": "probe" } },
        },
    });
    let json = [("content-type", "application/json")];
    let with = |field: &str, value: Value| {
        let mut review = good.clone();
        review["request"][field] = value;
        review.to_string().into_bytes()
    };
    let bad: Vec<(&str, Vec<u8>, u16)> = vec![
        ("nothing", Vec::new(), 400),
        ("words", b"evict it".to_vec(), 400),
        ("deep nesting", "[".repeat(100_000).into_bytes(), 400),
        ("not UTF-8", vec![0xff; 64], 400),
        ("another kind", br#"{"apiVersion":"v1","kind":"Pod"}"#.to_vec(), 400),
        (
            "no request",
            br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#.to_vec(),
            400,
        ),
        ("an unknown field", with("surprise", json!(true)), 400),
        ("no UID", with("uid", json!("")), 400),
        ("a delete", with("operation", json!("DELETE")), 422),
        ("another resource", with("subResource", json!("exec")), 422),
    ];
    for (what, body, status) in bad {
        let answer = caller.post("/evictions", &json, body).await.context(what)?;
        ensure!(
            answer.status == status && !answer.text.trim().is_empty(),
            "{what}: {answer:?}"
        );
    }
    too_large(&lock, &caller, "/evictions").await?;
    let plain = caller
        .post("/evictions", &[("content-type", "text/plain")], good.to_string())
        .await?;
    ensure!(plain.status == 415, "{plain:?}");
    ensure!(caller.get("/evictions", &[]).await?.status == 405, "GET is answered");
    let admitted = caller.post("/evictions", &json, good.to_string()).await?;
    ensure!(
        admitted.status == 200 && admitted.json()?["response"]["allowed"] == true,
        "{admitted:?}"
    );
    ensure!(admitted.json()?["response"]["uid"] == "r1", "{admitted:?}");
    place.end([lock]).await
}
