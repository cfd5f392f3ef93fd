//! FleetLock, by a client that is written to the published protocol
//! (<https://coreos.github.io/zincati/development/fleetlock/protocol/>).

use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use nodeward_api::node_drain::{Consent, Evictor, Phase};
use nodeward_testkit::operator::OperatorSpec;
use nodeward_testkit::pause::{self, CutOff};
use nodeward_testkit::proxy::Proxy;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{self, End, PodTemplate};
use nodeward_testkit::{ControlPlane, Options, bulk, fleet, ports, reboot};
use serde_json::{Value, json};

use crate::caller::{Answer, Caller, Trust};
use crate::environment::{APPS, Environment, Lock, SYSTEM, pinned, spec};
use crate::retained::{add_staying, lose_sibling};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

const PROTOCOL: (&str, &str) = ("fleet-lock-protocol", "true");

/// A machine-id, and what systemd derives from it for Zincati.
const MACHINE: &str = "1c09ca98649c4c7abc779cd04c96812e";
const DERIVED: &str = "978a225b3d7b40e9acd7ce9b62f68444";

/// A machine that speaks the protocol.
#[derive(Clone, Copy)]
struct Machine<'a> {
    caller: &'a Caller,
    group: &'a str,
    id: &'a str,
}

impl Machine<'_> {
    async fn ask(&self, path: &str) -> Result<Answer> {
        let body = json!({ "client_params": { "id": self.id, "group": self.group } });
        self.caller.post(path, &[PROTOCOL], body.to_string()).await
    }

    /// Whether it may reboot; if not, the error's kind.
    async fn pre_reboot(&self) -> Result<std::result::Result<(), String>> {
        let answer = self.ask("/v1/pre-reboot").await?;
        if answer.status == 200 {
            return Ok(Ok(()));
        }
        Ok(Err(problem(&answer, 423)?))
    }

    /// Asks until it may reboot.
    async fn may_reboot(&self) -> Result<()> {
        wait::until(format!("{} to be let reboot", self.id), secs(90), || async {
            let told = self.pre_reboot().await?;
            ensure!(told.is_ok(), "{told:?}");
            Ok(())
        })
        .await
    }

    async fn steady_state(&self) -> Result<()> {
        let answer = self.ask("/v1/steady-state").await?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    }
}

/// The kind of an error with this status: a JSON object of two texts.
fn problem(answer: &Answer, status: u16) -> Result<String> {
    ensure!(answer.status == status, "{status} expected: {answer:?}");
    let error = answer.json().with_context(|| format!("{answer:?}"))?;
    let fields = error.as_object().context("no object")?;
    ensure!(
        fields.len() == 2 && fields["value"].as_str().is_some_and(|value| !value.is_empty()),
        "{answer:?}"
    );
    let kind = fields["kind"].as_str().context("no kind")?;
    ensure!(
        kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
        "{kind}"
    );
    Ok(kind.to_owned())
}

/// Gives a node a machine-id.
async fn identify(env: &Environment, node: &str, machine: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(env.client.clone());
    let patch = Patch::Merge(json!({ "status": { "nodeInfo": { "machineID": machine } } }));
    nodes.patch_status(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// A drain-lock that answers machines, and a way to ask it; `dir` is the caller's.
async fn answers(env: &Environment, dir: &Path) -> Result<(Lock, Caller)> {
    answers_from(env, dir, |spec| spec).await
}

/// The same for one that is started otherwise.
async fn answers_from(
    env: &Environment,
    dir: &Path,
    change: impl FnOnce(OperatorSpec) -> OperatorSpec,
) -> Result<(Lock, Caller)> {
    let port = ports::free()?;
    let bind = format!("127.0.0.1:{port}");
    let config = json!({ "medik8sLease": { "enabled": false }, "fleetLock": { "enabled": true, "bind": bind } });
    let lock = env.run(change(spec(&config))).await?;
    let caller = Caller::new(&format!("http://{bind}"), dir, Trust::default()).await?;
    Ok((lock, caller))
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_reboot_one_by_one_under_a_budget() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    let stays = pinned("stays", &NODES)
        .label(nodeward_api::label::DRAIN, "skip")
        .tolerates_all();
    env.add_app("stays", NODES.len(), stays).await?;
    env.add_fixed("leaves", &NODES).await?;
    identify(&env, "n1", MACHINE).await?;
    let dir = tempfile::tempdir()?;
    let (lock, caller) = answers(&env, dir.path()).await?;
    let budgets = env.watch_budgets();
    let first = Machine {
        caller: &caller,
        group: "default",
        id: DERIVED,
    };
    // Of the group default nobody waits for the other but by a budget.
    let second = Machine {
        caller: &caller,
        group: "default",
        id: "n2",
    };

    // It says that it is up at each boot, whether or not it had asked for anything.
    first.steady_state().await?;
    wait::until("the machine-id to be known", secs(60), || async {
        let told = first.pre_reboot().await?;
        ensure!(told == Err("queued".to_owned()), "{told:?}");
        Ok(())
    })
    .await?;
    let drain = env.drains().get("n1").await?;
    ensure!(drain.spec.evict == Evictor::Nodeward, "{:?}", drain.spec);
    ensure!(
        drain.spec.requesters[0].name == "fleetlock:default:n1",
        "{:?}",
        drain.spec
    );
    first.may_reboot().await?;
    // 200 only when the node is really drained; asked again, the answer is the same.
    let left = env.pods_on("n1").await?;
    ensure!(left.len() == 1, "{} pods are left", left.len());
    ensure!(
        fleet::cordon_taint(&env.nodes().get("n1").await?).is_some(),
        "not cordoned"
    );
    ensure!(
        env.claim("n1").await?.is_some_and(|claim| claim.may_go_down),
        "not recorded as drained"
    );
    first.may_reboot().await?;

    let plan = caller.get("/v1/plan?node=n2", &[]).await?;
    ensure!(plan.status == 200, "{plan:?}");
    let plan = plan.json()?;
    let classes: Vec<&Value> = plan["pods"]
        .as_array()
        .context("no pods")?
        .iter()
        .map(|pod| &pod["class"])
        .collect();
    ensure!(
        classes.len() == 2 && classes.contains(&&json!("held")) && classes.contains(&&json!("retained")),
        "{plan}"
    );
    ensure!(
        plan["obstacles"][0]["reason"] == "WaitsForDisruptions" && plan["obstacles"][0]["node"] == "n1",
        "{plan}"
    );

    wait::until("the second to wait for disruptions", secs(60), || async {
        let told = second.pre_reboot().await?;
        ensure!(told == Err("waiting".to_owned()), "{told:?}");
        Ok(())
    })
    .await?;
    reboot::reboot(&env.client, "n1", secs(2)).await?;
    let told = second.pre_reboot().await?;
    ensure!(told.is_err(), "{told:?}");
    // What its first reboot rested on is on its way back: it has to say that it is up, and ask anew.
    wait::until("the reboot to be known", secs(60), || async {
        let told = first.pre_reboot().await?;
        ensure!(told == Err("ending".to_owned()), "{told:?}");
        Ok(())
    })
    .await?;
    first.steady_state().await?;
    env.released("n1", secs(60)).await?;
    ensure!(
        fleet::cordon_taint(&env.nodes().get("n1").await?).is_none(),
        "still cordoned"
    );

    second.may_reboot().await?;
    reboot::reboot(&env.client, "n2", secs(1)).await?;
    second.steady_state().await?;
    second.steady_state().await?;
    env.released("n2", secs(60)).await?;
    budgets.none_was_violated()?;
    let answers = lock.metrics().await?;
    let labels = [("request", "pre-reboot"), ("answer", "waiting")];
    ensure!(
        answers.sum("nodeward_drain_lock_fleetlock_answers_total", &labels) > 0.5,
        "not counted"
    );
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn machine_keeps_a_drain_with_another_requester() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    identify(&env, "n1", MACHINE).await?;
    let dir = tempfile::tempdir()?;
    let (lock, caller) = answers(&env, dir.path()).await?;
    env.drain("n1", json!({})).await?;
    let machine = Machine {
        caller: &caller,
        group: "default",
        id: "n1",
    };
    machine.may_reboot().await?;
    // Whichever form of its id it sends, it is one requester.
    let by_other_form = Machine { id: DERIVED, ..machine };
    by_other_form.may_reboot().await?;
    let requesters = env.drains().get("n1").await?.spec.requesters;
    ensure!(requesters.len() == 2, "{requesters:?}");
    by_other_form.steady_state().await?;
    wait::until("the machine to have left", secs(60), || async {
        let requesters = env.drains().get("n1").await?.spec.requesters;
        ensure!(requesters.len() == 1 && requesters[0].name == "test", "{requesters:?}");
        Ok(())
    })
    .await?;
    env.phase("n1", Phase::Drained, secs(60)).await?;
    // Somebody uncordons the node: it is not drained any more, and its machine may not reboot.
    env.uncordon("n1").await?;
    let told = machine.pre_reboot().await?;
    ensure!(told.is_err(), "{told:?}");
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn late_bound_pod_withdraws_the_reboot_permission() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    env.add_pinned("a", &NODES).await?;
    let dir = tempfile::tempdir()?;
    let (lock, caller) = answers(&env, dir.path()).await?;
    let machine = Machine {
        caller: &caller,
        group: "default",
        id: "n1",
    };
    machine.may_reboot().await?;
    // Bound without the scheduler: it does not tolerate the cordon, or it would stay.
    let late = PodTemplate::new().on("n1").end(End::Stuck);
    let late = late.owned_by("example.com/v1", "Load", "load", "5a8e1c5e-0f0e-4f5c-9a53-d53a41de5a03");
    bulk::create(&env.client, [late.pod(APPS, "late")?]).await?;
    // At once, whether the watches show it yet or not; and for as long as it is there, be it on its way out.
    wait::throughout("the machine may not reboot", secs(3), || async {
        let told = machine.pre_reboot().await?;
        ensure!(told == Err("draining".to_owned()), "{told:?}");
        Ok(())
    })
    .await?;
    env.phase("n1", Phase::Draining, secs(60)).await?;
    wait::until("its eviction", secs(60), || async {
        let late = env.pods().get("late").await?;
        ensure!(late.metadata.deletion_timestamp.is_some(), "not evicted");
        Ok(())
    })
    .await?;
    let told = machine.pre_reboot().await?;
    ensure!(told == Err("draining".to_owned()), "{told:?}");
    let at_once = DeleteParams::default().grace_period(0);
    env.pods().delete("late", &at_once).await?;
    machine.may_reboot().await?;
    ensure!(env.pods_on("n1").await?.is_empty(), "pods are left");
    env.end([lock]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_disruption_withdraws_the_reboot_permission() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    add_staying(&env).await?;
    let dir = tempfile::tempdir()?;
    let (lock, caller) = answers(&env, dir.path()).await?;
    let machine = Machine {
        caller: &caller,
        group: "default",
        id: "n1",
    };
    machine.may_reboot().await?;
    lose_sibling(&env, "n2").await?;
    wait::throughout("the machine may not reboot", secs(3), || async {
        let told = machine.pre_reboot().await?;
        ensure!(told == Err("disruption_lost".to_owned()), "{told:?}");
        Ok(())
    })
    .await?;
    // It may have rebooted a moment ago: what it holds stays.
    let claim = env.claim("n1").await?.context("no claim")?;
    ensure!(claim.may_go_down && claim.held_disruptions() == 1, "{claim:?}");
    machine.may_reboot().await?;
    env.end([lock]).await
}

/// A request that is refused: what is wrong with it, its headers and body; the status and kind of the answer.
type Bad = (
    &'static str,
    Vec<(&'static str, &'static str)>,
    Vec<u8>,
    u16,
    &'static str,
);

/// A file as a mounted Secret changes it.
fn replace(dir: &Path, name: &str, content: &str) -> Result<()> {
    let new = dir.join(format!("{name}.new"));
    std::fs::write(&new, content)?;
    Ok(std::fs::rename(new, dir.join(name))?)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_need_certificate_token_and_valid_form() -> Result<()> {
    let env = Environment::new(&["n1", "n2"]).await?;
    for node in ["n1", "n2"] {
        identify(&env, node, MACHINE).await?;
    }
    let files = tempfile::tempdir()?;
    let (certificate, key) = env.plane.serving_certificate("fleetlock")?;
    replace(files.path(), "tls.crt", &certificate)?;
    replace(files.path(), "tls.key", &key)?;
    replace(files.path(), "ca.crt", env.plane.ca())?;
    replace(files.path(), "token", "s3cret\n")?;
    let port = ports::free()?;
    let config = json!({ "medik8sLease": { "enabled": false }, "fleetLock": {
        "enabled": true, "bind": format!("127.0.0.1:{port}"), "tls": files.path(),
        "clientCA": files.path().join("ca.crt"), "bearerTokenFile": files.path().join("token"),
    } });
    let lock = env.start(config).await?;
    let url = format!("https://127.0.0.1:{port}");
    let dir = tempfile::tempdir()?;

    let (known, known_key) = env.plane.client_certificate("machine", "machines")?;
    let stranger = ControlPlane::start(Options::default())
        .await?
        .client_certificate("machine", "machines")?;
    let trust = |identity| Trust {
        authority: Some(env.plane.ca()),
        identity,
    };
    for identity in [None, Some((stranger.0.as_str(), stranger.1.as_str()))] {
        let refused = Caller::new(&url, dir.path(), trust(identity))
            .await?
            .get("/v1/plan?node=n1", &[])
            .await;
        ensure!(
            refused.is_err(),
            "a client without a certificate of ours was heard: {refused:?}"
        );
    }
    let caller = Caller::new(&url, dir.path(), trust(Some((&known, &known_key)))).await?;

    let body = |id: &str, group: &str| json!({ "client_params": { "id": id, "group": group } }).to_string();
    let bearer = ("authorization", "Bearer s3cret");
    let good = body("n1", "default");
    let table: Vec<Bad> = vec![
        ("no token", vec![PROTOCOL], good.clone().into(), 401, "unauthorized"),
        (
            "a wrong token",
            vec![PROTOCOL, ("authorization", "Bearer s3cret2")],
            good.clone().into(),
            401,
            "unauthorized",
        ),
        (
            "another scheme",
            vec![PROTOCOL, ("authorization", "Basic s3cret")],
            good.clone().into(),
            401,
            "unauthorized",
        ),
        ("no header", vec![bearer], good.clone().into(), 400, "missing_header"),
        (
            "another header",
            vec![bearer, ("fleet-lock-protocol", "1")],
            good.clone().into(),
            400,
            "missing_header",
        ),
        ("nothing", vec![bearer, PROTOCOL], Vec::new(), 400, "bad_body"),
        ("words", vec![bearer, PROTOCOL], b"reboot".to_vec(), 400, "bad_body"),
        ("not UTF-8", vec![bearer, PROTOCOL], vec![0xfe; 32], 400, "bad_body"),
        (
            "deep nesting",
            vec![bearer, PROTOCOL],
            vec![b'['; 10_000],
            400,
            "bad_body",
        ),
        ("no parameters", vec![bearer, PROTOCOL], b"{}".to_vec(), 400, "bad_body"),
        (
            "a malformed group",
            vec![bearer, PROTOCOL],
            body("n1", "a/b").into(),
            400,
            "bad_group",
        ),
        (
            "no group",
            vec![bearer, PROTOCOL],
            body("n1", "").into(),
            400,
            "bad_group",
        ),
        (
            "an unknown group",
            vec![bearer, PROTOCOL],
            body("n1", "g").into(),
            400,
            "unknown_group",
        ),
        (
            "a group of others",
            vec![bearer, PROTOCOL],
            body("n1", "control-plane").into(),
            400,
            "node_not_in_group",
        ),
        ("no id", vec![bearer, PROTOCOL], body("", "g").into(), 400, "bad_id"),
        (
            "an unknown machine",
            vec![bearer, PROTOCOL],
            body("n9", "g").into(),
            404,
            "unknown_node",
        ),
        (
            "cloned machines",
            vec![bearer, PROTOCOL],
            body(DERIVED, "g").into(),
            409,
            "ambiguous_id",
        ),
        (
            "too much",
            vec![bearer, PROTOCOL],
            vec![b' '; 17 * 1024],
            413,
            "too_large",
        ),
    ];
    for (what, headers, body, status, kind) in table {
        let answer = caller.post("/v1/pre-reboot", &headers, body).await.context(what)?;
        let told = problem(&answer, status).context(what)?;
        ensure!(told == kind, "{what}: {answer:?}");
    }
    // What holds nothing has nothing to release, whatever it says it is.
    for (id, group) in [("n9", "default"), ("n1", "g"), ("n1", "control-plane")] {
        let answer = caller
            .post("/v1/steady-state", &[bearer, PROTOCOL], body(id, group))
            .await?;
        ensure!(answer.status == 200, "{id} of {group}: {answer:?}");
    }
    let cloned = caller
        .post("/v1/steady-state", &[bearer, PROTOCOL], body(DERIVED, "default"))
        .await?;
    ensure!(problem(&cloned, 409)? == "ambiguous_id", "{cloned:?}");
    for (path, status, kind) in [
        ("/v1/pre-reboot", 405, "method_not_allowed"),
        ("/v1/reboot", 404, "not_found"),
        ("/v1/plan", 400, "bad_id"),
        ("/v1/plan?node=n9", 404, "unknown_node"),
    ] {
        let answer = caller.get(path, &[bearer]).await.context(path)?;
        ensure!(problem(&answer, status)? == kind, "{path}: {answer:?}");
    }
    let drains = env.drains().list(&ListParams::default()).await?;
    ensure!(drains.items.is_empty(), "a drain was asked for: {drains:?}");

    // A token that changes counts at once, a certificate within seconds.
    replace(files.path(), "token", "other")?;
    let answer = caller.post("/v1/pre-reboot", &[PROTOCOL, bearer], good.clone()).await?;
    ensure!(problem(&answer, 401)? == "unauthorized", "{answer:?}");
    let machine = caller
        .post("/v1/steady-state", &[PROTOCOL, ("authorization", "Bearer other")], good)
        .await?;
    ensure!(machine.status == 200, "{machine:?}");
    let rejected = async || {
        let metrics = lock.metrics().await?;
        anyhow::Ok(metrics.sum("nodeward_drain_lock_fleetlock_certificate_rejected", &[]))
    };
    replace(files.path(), "tls.crt", "nothing")?;
    wait::until("the bad certificate to be rejected", secs(60), || async {
        ensure!(rejected().await? > 0.5, "not yet");
        Ok(())
    })
    .await?;
    let again = Caller::new(&url, dir.path(), trust(Some((&known, &known_key)))).await?;
    let answer = again
        .get("/v1/plan?node=n1", &[("authorization", "Bearer other")])
        .await?;
    ensure!(
        answer.status == 200,
        "the last good certificate is not served: {answer:?}"
    );
    env.end([lock]).await
}

/// No turn comes for it: what it is told says so.
#[tokio::test(flavor = "multi_thread")]
async fn machine_is_told_that_a_person_is_waited_for() -> Result<()> {
    let env = Environment::new(&["n1"]).await?;
    bulk::create(&env.client, [PodTemplate::new().on("n1").pod(APPS, "alone")?]).await?;
    let dir = tempfile::tempdir()?;
    let (lock, caller) = answers(&env, dir.path()).await?;
    let machine = Machine {
        caller: &caller,
        group: "default",
        id: "n1",
    };
    wait::until("the pod to be named", secs(60), || async {
        let answer = machine.ask("/v1/pre-reboot").await?;
        ensure!(problem(&answer, 423)? == "queued", "{answer:?}");
        let told = format!("{answer:?}");
        let is_named = told.contains("waits for a person") && told.contains("apps/alone");
        ensure!(is_named, "{told}");
        Ok(())
    })
    .await?;
    env.pods().delete("alone", &DeleteParams::default()).await?;
    machine.may_reboot().await?;
    env.end([lock]).await
}

/// emptyDir data is on most nodes, and machines cannot be asked.
#[tokio::test(flavor = "multi_thread")]
async fn machine_reboots_over_empty_dir_data_announced() -> Result<()> {
    let env = Environment::new(&["n1"]).await?;
    bulk::create(
        &env.client,
        [PodTemplate::new().empty_dir().deployment(APPS, "scratch", 1)?],
    )
    .await?;
    workload::ready_pods(&env.client, APPS, "scratch", 1, secs(60)).await?;
    let dir = tempfile::tempdir()?;
    let (lock, caller) = answers(&env, dir.path()).await?;
    let machine = Machine {
        caller: &caller,
        group: "default",
        id: "n1",
    };
    machine.may_reboot().await?;
    let spec = env.drains().get("n1").await?.spec;
    ensure!(
        (spec.unmanaged_pods, spec.empty_dir_data) == (Consent::Keep, Consent::Evict),
        "{spec:?}"
    );
    let events: Api<Event> = Api::namespaced(env.client.clone(), "default");
    wait::until("an Event on the node", secs(60), || async {
        let consents = events
            .list(&ListParams::default().fields("reason=ConsentGiven"))
            .await?;
        let notes: Vec<_> = consents.iter().filter_map(|event| event.note.as_deref()).collect();
        ensure!(
            notes.len() == 1 && notes[0].contains("fleetLock.emptyDirData: Evict"),
            "{notes:?}"
        );
        Ok(())
    })
    .await?;
    env.end([lock]).await
}

/// The drain has ended, and the watch of the pause is cut off before somebody pauses drain-lock.
#[tokio::test(flavor = "multi_thread")]
async fn machine_is_not_let_reboot_by_a_lock_that_hears_of_no_pause() -> Result<()> {
    let env = Environment::new(&NODES).await?;
    let (dir, proxy) = (tempfile::tempdir()?, Proxy::start(&env.plane).await?);
    let (lock, caller) = answers_from(&env, dir.path(), |spec| spec.through(&proxy.url())).await?;
    let machine = Machine {
        caller: &caller,
        group: "default",
        id: "n1",
    };
    machine.may_reboot().await?;
    CutOff::HalfOpen.watch(&proxy);
    pause::write(&env.client, SYSTEM, json!({ "drain-lock": "INC-1" })).await?;
    wait::until("the pause to be read", secs(60), || async {
        let told = machine.pre_reboot().await?;
        ensure!(told == Err("paused".to_owned()), "{told:?}");
        Ok(())
    })
    .await?;
    CutOff::Refused.reads(&proxy);
    pause::write(&env.client, SYSTEM, Value::Null).await?;
    let told = wait::throughout("no permission", secs(3), || async {
        let told = machine.pre_reboot().await?;
        ensure!(told.is_err(), "{told:?}");
        Ok(())
    });
    told.await?;
    proxy.heal();
    machine.may_reboot().await?;
    env.end([lock]).await
}
