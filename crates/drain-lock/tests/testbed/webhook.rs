//! The eviction webhook, as the API server asks it.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use nodeward_api::node_drain::{Evictor, Phase};
use nodeward_api::{annotation, label};
use nodeward_core::ledger::ClaimState;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{Budget, PodTemplate, Start};
use nodeward_testkit::{bulk, fleet, ports, reboot, workload};
use serde_json::{Value, json};

use crate::caller::{Caller, Trust};
use crate::environment::{APPS, Environment, Lock, SYSTEM, pinned};
use crate::reviewed::{Evicted, Eviction, NAME, Reviewed};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Asks until the watches have shown the cordon, then gives the refusal.
async fn refused_once_cordoned(reviewed: &Reviewed, pod: &str) -> Result<Evicted> {
    wait::until("the cordon to be known", secs(60), || async {
        let evicted = Eviction::of(pod).by(&reviewed.env.client).await?;
        ensure!(!evicted.is_admitted(), "admitted");
        Ok(evicted)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn eviction_from_cordoned_node_requests_its_drain() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    env.add_pinned("a", &NODES).await?;
    let pod = reviewed.pods_on("n1").await?.remove(0);
    fleet::cordon(&env.client, "n1").await?;
    wait::until("the eviction to be admitted", secs(60), || async {
        let evicted = reviewed.evict(&pod).await?;
        ensure!(evicted.is_admitted(), "{evicted:?}");
        Ok(())
    })
    .await?;
    let drain = env.drains().get("n1").await?;
    ensure!(drain.spec.evict == Evictor::Requester, "{:?}", drain.spec);
    let requester = &drain.spec.requesters[0];
    ensure!(requester.name.starts_with("eviction:"), "{requester:?}");
    ensure!(requester.since.is_some(), "{requester:?}");
    let annotations = drain.metadata.annotations.clone().unwrap_or_default();
    ensure!(annotations.contains_key(annotation::LAST_EVICTION), "{annotations:?}");
    let claim = env.claim("n1").await?.context("no claim")?;
    ensure!(
        claim.state == ClaimState::Confirmed && claim.foreign_cordon,
        "{claim:?}"
    );
    env.phase("n1", Phase::Drained, secs(60)).await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;
    reviewed.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn held_disruption_is_refused_to_other_evictions() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    // It stays on its node, so that the budget itself still shows a free disruption while the claim holds it.
    let stays = pinned("a", &NODES).label(label::DRAIN, "skip").tolerates_all();
    env.add_app("a", NODES.len(), stays).await?;
    env.drain("n1", json!({})).await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    let claim = env.claim("n1").await?.context("no claim")?;
    let (held, other) = (
        reviewed.pods_on("n1").await?.remove(0),
        reviewed.pods_on("n2").await?.remove(0),
    );

    let refused = reviewed.evict(&other).await?;
    refused.is_to_wait("WaitsForDisruptions")?;
    let message = refused.message();
    let since = claim.since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    for part in ["budget apps/a", "node n1", &since] {
        ensure!(message.contains(part), "{message:?} does not say {part}");
    }

    // Who only asks what would happen is told what the API itself says.
    for dry_run in [
        Eviction::of(&other).options(json!({ "dryRun": ["All"] })),
        Eviction::of(&other).query("?dryRun=All"),
    ] {
        let told = dry_run.by(&env.client).await?;
        ensure!(told.is_admitted(), "{told:?}");
    }

    let forged = Eviction::of(&other).ticket(&format!("{}/{}", claim.ticket, claim.grant));
    let told = forged.by(&env.client).await?;
    ensure!((told.status, told.reason()) == (403, "ForgedTicket"), "{told:?}");
    let itself = reviewed
        .client_as(&format!("system:serviceaccount:{SYSTEM}:{NAME}"))
        .await?;
    for stale in [
        Eviction::of(&held),
        Eviction::of(&held).ticket("1"),
        Eviction::of(&held).ticket(&format!("{}/{}", claim.ticket, claim.grant - 1)),
        Eviction::of(&held).ticket(&format!("{}/{}", claim.ticket + 1, claim.grant)),
        Eviction::of(&other).ticket(&format!("{}/{}", claim.ticket, claim.grant)),
    ] {
        stale.by(&itself).await?.is_to_wait("StaleTicket")?;
    }
    ensure!(reviewed.pods_on("n1").await? == [held.clone()], "the held pod has gone");

    // Its own pods are not reviewed, all others are, in its namespace and in kube-system: they have budgets, too.
    let asked = async |namespace: &str, pod: &str| {
        let forged = Eviction::of(pod).in_namespace(namespace).ticket("1/1");
        anyhow::Ok(forged.by(&env.client).await?.status)
    };
    let own = format!("{NAME}-5d9c7b8f6d-x2x5z");
    ensure!(asked(SYSTEM, &own).await? == 404, "it is asked about its own pods");
    for (namespace, pod) in [(SYSTEM, "nobody"), ("kube-system", "nobody"), ("kube-system", &own)] {
        ensure!(asked(namespace, pod).await? == 403, "{namespace}/{pod} is not reviewed");
    }

    reboot::reboot(&env.client, "n1", secs(1)).await?;
    env.delete_drain("n1").await?;
    env.released("n1", secs(60)).await?;
    wait::until("the release to be known", secs(60), || async {
        let evicted = reviewed.evict(&other).await?;
        ensure!(evicted.is_admitted(), "{evicted:?}");
        Ok(())
    })
    .await?;
    reviewed.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_eviction_of_retained_pod_follows_policy() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    let stays = pinned("a", &NODES).label(label::DRAIN, "skip");
    env.add_app("a", NODES.len(), stays).await?;
    let foreign = pinned("b", &NODES).label("cluster.x-k8s.io/drain", "skip");
    env.add_app("b", NODES.len(), foreign).await?;
    env.add_pinned("c", &NODES).await?;
    let app = async |node: &str, app: &str| {
        let pods = reviewed.pods_on(node).await?;
        let found = pods.into_iter().find(|pod| pod.starts_with(app));
        found.with_context(|| format!("no pod of {app} on {node}"))
    };

    let pod = app("n1", "a").await?;
    fleet::cordon(&env.client, "n1").await?;
    let admitted = wait::until("the claim to be granted", secs(60), || async {
        let evicted = reviewed.evict(&pod).await?;
        ensure!(evicted.is_admitted(), "{evicted:?}");
        Ok(evicted)
    })
    .await?;
    let warning = admitted.headers.get("warning").context("no warning")?.to_str()?;
    ensure!(warning.contains("has an opt-out"), "{warning}");
    let events: Api<Event> = Api::namespaced(env.client.clone(), APPS);
    wait::until("the announcement", secs(60), || async {
        let announced = events
            .list(&ListParams::default().fields("reason=OptOutIgnored"))
            .await?;
        ensure!(!announced.items.is_empty(), "no such event");
        Ok(())
    })
    .await?;
    let counted = lock
        .metrics()
        .await?
        .sum("nodeward_drain_lock_opt_outs_ignored_total", &[]);
    ensure!((counted - 1.0).abs() < 0.5, "{counted} counted");
    // Its claim was confirmed, so the other drainer may have taken the node down over b's pod.
    reboot::reboot(&env.client, "n1", secs(1)).await?;
    env.uncordon("n1").await?;
    env.released("n1", secs(60)).await?;

    let changes = || lock.log().matches("a new configuration is in force").count();
    let before = changes();
    lock.write_config("medik8sLease: { enabled: false }\nauto: { refuseOptOut: true }\n")?;
    // Under the old policy the pods would be let go once their claim is granted.
    wait::until("the policy to be in force", secs(60), || async {
        ensure!(changes() > before, "{before} changes of the configuration");
        Ok(())
    })
    .await?;
    fleet::cordon(&env.client, "n2").await?;
    for opted_out in [app("n2", "a").await?, app("n2", "b").await?] {
        wait::until("the policy to be read", secs(60), || async {
            reviewed.evict(&opted_out).await?.is_to_wait("OptedOut")
        })
        .await?;
    }
    // The documented way around them.
    let kubectl = Kubectl::of(&env.plane)?;
    let selector = "--pod-selector=nodeward.dev/drain!=skip,cluster.x-k8s.io/drain!=skip";
    let args = ["drain", "n2", "--ignore-daemonsets", "--timeout=90s", selector];
    kubectl.run(args, secs(100)).await?;
    let left = reviewed.pods_on("n2").await?;
    ensure!(
        left.iter().all(|pod| !pod.starts_with('c')) && left.len() == 2,
        "{left:?}"
    );
    // Whoever has drained it may take it down: what stays on it is not back before that, or for a while.
    reboot::reboot(&env.client, "n2", secs(1)).await?;
    env.uncordon("n2").await?;
    env.released("n2", secs(60)).await?;
    reviewed.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn evictions_without_budget_check_pass_through() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1", "n2"], json!({})).await?;
    let env = &reviewed.env;
    let on = |name: &str, template: PodTemplate| template.tolerates_all().label("app", name).pod(APPS, name);
    let node = || PodTemplate::new().on("n1");
    let budget = |name: &str, app: &str| Budget::min_available(APPS, name, 1).of(app).build();
    bulk::create(
        &env.client,
        [
            budget("twice", "twice")?,
            budget("again", "twice")?,
            budget("unready", "unready")?,
            budget("pending", "pending")?,
            budget("mirror", "mirror")?,
        ],
    )
    .await?;
    let pods = [
        on("free", node())?,
        on("twice", node())?,
        on("unready", node().start(Start::NeverReady))?,
        on("pending", node().start(Start::NeverStarted))?,
        on("mirror", node().mirror())?,
    ];
    Box::pin(bulk::create(&env.client, pods)).await?;
    for app in ["free", "twice", "mirror"] {
        workload::ready_pods(&env.client, APPS, app, 1, secs(60)).await?;
    }
    fleet::cordon(&env.client, "n1").await?;
    let said = async |pod: &str| anyhow::Ok(reviewed.evict(pod).await?.status);
    let admitted = async |label: &str| {
        let labels = [("decision", "admitted"), ("reason", label)];
        let metrics = lock.metrics().await?;
        anyhow::Ok(metrics.sum("nodeward_drain_lock_eviction_reviews_total", &labels))
    };
    for (pod, reason, status) in [
        ("twice", "several-budgets", 500),
        // Its budget has nothing to spare, and the API lets an unready pod go with a healthy budget alone.
        ("unready", "unready", 429),
        ("pending", "skips-budgets", 201),
        ("mirror", "mirror-pod", 429),
        ("free", "no-budget", 201),
    ] {
        wait::until(format!("{pod} to be known as {reason}"), secs(60), || async {
            let told = said(pod).await?;
            ensure!(admitted(reason).await? > 0.5, "{told}");
            ensure!(told == status || told == 404, "{pod}: {told}");
            Ok(())
        })
        .await?;
    }
    reviewed.end([lock]).await
}

/// Keeps drain-lock from leading: it then does nothing but answer, and file what follows from that.
async fn another_leads(env: &Environment) -> Result<()> {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let lease: Lease = serde_json::from_value(json!({
        "metadata": { "name": "drain-lock", "namespace": SYSTEM },
        "spec": { "holderIdentity": "another", "leaseDurationSeconds": 3600, "acquireTime": now, "renewTime": now,
            "leaseTransitions": 0 },
    }))?;
    bulk::create(&env.client, [lease]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_need_no_api_request() -> Result<()> {
    let reviewed = Reviewed::new(&NODES, json!({})).await?;
    let env = &reviewed.env;
    env.add_pinned("a", &NODES).await?;
    another_leads(env).await?;
    // It takes a leader that never says that it plans for none after two minutes.
    let lock = reviewed.start(json!({})).await?;
    fleet::cordon(&env.client, "n1").await?;
    let pod = reviewed.pods_on("n1").await?.remove(0);
    let mark = env.plane.audit().mark()?;
    refused_once_cordoned(&reviewed, &pod).await?.is_to_wait("NotPlanned")?;
    for _ in 0..20 {
        reviewed.evict(&pod).await?.is_to_wait("NotPlanned")?;
    }
    wait::until("the drain to be asked for", secs(60), || async {
        Ok(env.drains().get("n1").await?)
    })
    .await?;
    let asked = env.plane.audit().since(mark)?.of_service_account(SYSTEM, NAME);
    let counts = asked.without_leases().without_watches().by_verb_and_resource();
    // One drain is asked for: who evicts is reviewed, the emergency stop is read, and an Event tells it.
    let once = [
        "create subjectaccessreviews",
        "get configmaps",
        "get nodedrains",
        "create nodedrains",
        "create events",
    ];
    let expected = once.map(|request| (request.to_owned(), 1)).into();
    ensure!(counts == expected, "{counts:?}");
    let reviews = lock.metrics().await?;
    let answered = reviews.sum("nodeward_drain_lock_eviction_reviews_total", &[("decision", "refused")]);
    ensure!(answered > 20.5, "{answered} answered");
    reviewed.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_outage_stops_no_eviction() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    env.add_pinned("a", &NODES).await?;
    lock.process().pause()?;
    fleet::cordon(&env.client, "n1").await?;
    let pod = reviewed.pods_on("n1").await?.remove(0);
    let admitted = reviewed.evict(&pod).await?;
    ensure!(admitted.is_admitted(), "{admitted:?}");
    lock.process().kill();
    let refused = reviewed.evict(&reviewed.pods_on("n2").await?.remove(0)).await?;
    refused.is_to_wait("DisruptionBudget")?;
    env.uncordon("n1").await?;
    let kubectl = Kubectl::of(&env.plane)?;
    let args = ["drain", "n2", "--ignore-daemonsets", "--timeout=80s"];
    kubectl.run(args, secs(90)).await?;
    env.uncordon("n2").await?;
    lock.process().restart()?;
    reviewed.is_asked().await?;
    reviewed.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_dry_run_requests_no_drain() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&NODES, json!({})).await?;
    let env = &reviewed.env;
    let stays = pinned("a", &NODES).label(label::DRAIN, "skip").tolerates_all();
    env.add_app("a", NODES.len(), stays).await?;
    // The budget itself would allow it, and the claim of another node does not.
    env.drain("n2", json!({})).await?;
    env.phase("n2", Phase::Drained, secs(60)).await?;
    fleet::cordon(&env.client, "n1").await?;
    let kubectl = Kubectl::of(&env.plane)?;
    kubectl
        .run(["drain", "n1", "--ignore-daemonsets", "--dry-run=server"], secs(60))
        .await?;
    ensure!(env.pods_on("n1").await?.len() == 1, "a pod has gone");
    ensure!(env.drains().get_opt("n1").await?.is_none(), "a drain was asked for");
    reviewed.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn process_dry_run_refuses_and_requests_nothing() -> Result<()> {
    let reviewed = Reviewed::new(&NODES, json!({})).await?;
    let env = &reviewed.env;
    // A certificate that is mounted, and a registration that somebody else keeps.
    let files = tempfile::tempdir()?;
    let (certificate, key) = env.plane.serving_certificate("webhook")?;
    std::fs::write(files.path().join("tls.crt"), certificate)?;
    std::fs::write(files.path().join("tls.key"), key)?;
    reviewed.trust(env.plane.ca()).await?;
    // Its budget refuses by itself, so that the eviction can be tried again.
    let app = pinned("a", &NODES).stateful_set(APPS, "a", 3)?;
    bulk::create(&env.client, [app]).await?;
    bulk::create(&env.client, [Budget::max_unavailable(APPS, "a", 0).of("a").build()?]).await?;
    workload::ready_pods(&env.client, APPS, "a", 3, secs(60)).await?;
    let port = ports::free()?;
    let config = json!({ "fleetLock": { "enabled": true, "bind": format!("127.0.0.1:{port}") } });
    let directory = format!("--webhook-cert-dir={}", files.path().display());
    let spec = reviewed.spec(&config)?.arg("--dry-run").arg(&directory);
    let lock = env.run(spec).await?;
    fleet::cordon(&env.client, "n1").await?;
    let pod = reviewed.pods_on("n1").await?.remove(0);
    wait::until("an eviction to be reviewed", secs(60), || async {
        let told = reviewed.evict(&pod).await?;
        ensure!((told.status, told.reason()) == (429, "DisruptionBudget"), "{told:?}");
        let metrics = lock.metrics().await?;
        let would_refuse = metrics.sum(
            "nodeward_drain_lock_eviction_reviews_total",
            &[("decision", "would-refuse")],
        );
        ensure!(would_refuse > 0.5, "it was not asked, or would have admitted it");
        Ok(())
    })
    .await?;
    let machines = Caller::new(&format!("http://127.0.0.1:{port}"), files.path(), Trust::default()).await?;
    let body = json!({ "client_params": { "id": "n2", "group": "default" } }).to_string();
    let protocol = [("fleet-lock-protocol", "true")];
    let answer = machines.post("/v1/pre-reboot", &protocol, body.clone()).await?;
    ensure!(
        answer.status == 503 && answer.json()?["kind"] == "not_ready",
        "{answer:?}"
    );
    // It holds nothing, and is not kept from starting.
    let answer = machines.post("/v1/steady-state", &protocol, body).await?;
    ensure!(answer.status == 200, "{answer:?}");
    let drains = env.drains().list(&ListParams::default()).await?;
    ensure!(drains.items.is_empty(), "a drain was asked for: {drains:?}");
    reviewed.end([lock]).await
}

/// What is too large is refused before it is read, whether or not its sender still listens to that.
async fn too_large(lock: &Lock, caller: &Caller) -> Result<()> {
    let refused = async || {
        let metrics = lock.metrics().await?;
        anyhow::Ok(metrics.sum("nodeward_drain_lock_bad_reviews_total", &[("problem", "body")]))
    };
    let before = refused().await?;
    let json = [("content-type", "application/json")];
    if let Ok(answer) = caller.post("/evictions", &json, vec![b' '; 3 * 1024 * 1024]).await {
        ensure!(answer.status == 413, "{answer:?}");
    }
    wait::until("the refusal to be counted", secs(60), || async {
        ensure!(refused().await? > before, "{before}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_review_gets_a_clear_refusal() -> Result<()> {
    let (reviewed, lock) = Reviewed::with(&["n1"], json!({})).await?;
    let authority = reviewed.published().await?;
    let dir = tempfile::tempdir()?;
    let trust = Trust {
        authority: Some(&authority),
        ..Trust::default()
    };
    let caller = Caller::new(&format!("https://127.0.0.1:{}", reviewed.port), dir.path(), trust).await?;
    let good = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "r1", "kind": { "group": "policy", "version": "v1", "kind": "Eviction" },
            "resource": { "group": "", "version": "v1", "resource": "pods" }, "subResource": "eviction",
            "name": "nobody", "namespace": APPS, "operation": "CREATE", "userInfo": { "username": "alice" },
            "object": { "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "nobody", "namespace": APPS } },
        },
    });
    let json = [("content-type", "application/json")];
    let with = |pointer: &str, value: Value| {
        let mut review = good.clone();
        *review.pointer_mut(pointer).expect("the review has the field") = value;
        review.to_string().into_bytes()
    };
    let nameless = {
        let mut review = good.clone();
        review["request"]["name"] = json!("");
        review["request"]["object"]["metadata"] = json!({ "namespace": APPS });
        review.to_string().into_bytes()
    };
    let bad: Vec<(&str, Vec<u8>, u16)> = vec![
        ("nothing", Vec::new(), 400),
        ("words", b"evict it".to_vec(), 400),
        ("deep nesting", "[".repeat(100_000).into_bytes(), 400),
        ("not UTF-8", vec![0xff; 64], 400),
        (
            "another version",
            with("/apiVersion", json!("admission.k8s.io/v1beta1")),
            400,
        ),
        ("another kind", with("/kind", json!("Pod")), 400),
        ("no request", with("/request", Value::Null), 400),
        ("no UID", with("/request/uid", json!("")), 400),
        ("no name", nameless, 400),
        ("an endless name", with("/request/name", json!("p".repeat(254))), 400),
        ("no user", with("/request/userInfo", json!({})), 400),
        ("an unknown object", with("/request/kind/kind", json!("Binding")), 422),
        ("a delete", with("/request/operation", json!("DELETE")), 422),
        ("another resource", with("/request/subResource", json!("exec")), 422),
    ];
    for (what, body, status) in bad {
        let answer = caller.post("/evictions", &json, body).await.context(what)?;
        ensure!(
            answer.status == status && !answer.text.trim().is_empty() && answer.text.len() < 1024,
            "{what}: {answer:?}"
        );
    }
    let plain = caller
        .post("/evictions", &[("content-type", "text/plain")], good.to_string())
        .await?;
    ensure!(plain.status == 415, "{plain:?}");
    ensure!(caller.get("/evictions", &[]).await?.status == 405, "GET is answered");
    ensure!(caller.get("/", &[]).await?.status == 404, "another path is answered");
    let admitted = caller.post("/evictions", &json, good.to_string()).await?;
    ensure!(
        admitted.status == 200 && admitted.json()?["response"]["allowed"] == true,
        "{admitted:?}"
    );
    ensure!(admitted.json()?["response"]["uid"] == "r1", "{admitted:?}");
    // A later API server may tell more: what is not known is ignored, and counted.
    let ignored = async || {
        let metrics = lock.metrics().await?;
        anyhow::Ok(metrics.sum("nodeward_drain_lock_review_unknown_fields_total", &[]))
    };
    let before = ignored().await?;
    let mut surprising = good.clone();
    surprising["request"]["surprise"] = json!(true);
    let answered = caller.post("/evictions", &json, surprising.to_string()).await?;
    ensure!(answered.json()?["response"]["allowed"] == true, "{answered:?}");
    let counted = ignored().await? - before;
    ensure!((counted - 1.0).abs() < 0.5, "{counted} unknown fields counted");
    too_large(&lock, &caller).await?;
    reviewed.is_asked().await?;
    reviewed.end([lock]).await
}
