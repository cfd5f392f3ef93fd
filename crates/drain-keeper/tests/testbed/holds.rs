//! Budgets that somebody else has the right to: the claims of other nodes' drains, and owners' holds. And drains that a
//! NodeDrain declares.

use anyhow::{Context, Error, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use nodeward_api::{DisruptionHold, DrainLedger, NodeDrain, annotation, crd, drain_ledger};
use nodeward_core::ledger::{Claim, Ledger};
use nodeward_testkit::proxy::{Fault, Proxy, Record, Rule, Verb};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, Options, bulk, fleet, workload};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::environment::{Environment, Keeper, an_hour_ago, is_untouched, managed};

/// A control plane on which drain-lock's kinds are installed, which all tests of this file but one share.
async fn with_drain_locks_kinds() -> Result<&'static ControlPlane> {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    PLANE
        .get_or_try_init(|| async {
            let plane = ControlPlane::start(Options::patient()).await?;
            install_kinds(&plane).await?;
            Ok(plane)
        })
        .await
}

async fn install_kinds(plane: &ControlPlane) -> Result<()> {
    let client = plane.client().await?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in crd::drain_lock() {
        crds.create(&PostParams::default(), &definition).await?;
    }
    wait::until("drain-lock's kinds to be served", secs(60), || async {
        let one = ListParams::default().limit(1);
        Api::<NodeDrain>::all(client.clone()).list(&one).await?;
        Api::<DrainLedger>::all(client.clone()).list(&one).await?;
        Api::<DisruptionHold>::all(client.clone()).list(&one).await?;
        Ok(())
    })
    .await
}

/// Everything falls due at once, budgets included.
fn at_once() -> Value {
    json!({ "pdbForceDrainTimeout": "1s" })
}

/// A pod on the node with a budget of its own, without room; both of the same name. The budget comes first, so that the pod
/// is covered from the start.
async fn covered(env: &Environment<'_>, node: &str, name: &str) -> Result<Pod> {
    bulk::create(&env.client, [env.tight(name, 1).build()?]).await?;
    let [pod] = env.add_pods([(name, managed(node))]).await?;
    Ok(pod)
}

/// A claim in the ledger by which `node` has the disruption that `pods` of these budgets stand for. Other tests have theirs in
/// the same ledger.
async fn claim(env: &Environment<'_>, node: &str, node_uid: &str, pods: &[(&str, &str)]) -> Result<()> {
    let now = Timestamp::now();
    let holds: Vec<Value> = pods
        .iter()
        .map(|(budget, pod_uid)| {
            json!({
                "pdb": { "namespace": env.name, "name": budget, "uid": "" },
                "pods": [{ "name": budget, "uid": pod_uid }],
            })
        })
        .collect();
    let claim: Claim = serde_json::from_value(json!({
        "ticket": 1, "node": node, "nodeUID": node_uid, "state": "Confirmed", "since": now, "queuedAt": now, "holds": holds,
    }))?;
    let ledgers: Api<DrainLedger> = Api::all(env.client.clone());
    wait::until("the claim in the ledger", secs(60), || async {
        let present = ledgers.get_opt(drain_ledger::NAME).await?;
        let mut ledger = match &present {
            Some(present) => Ledger::try_from(&present.spec).map_err(Error::msg)?,
            None => Ledger::default(),
        };
        ledger.claims.retain(|other| other.node_uid != node_uid);
        ledger.claims.push(claim.clone());
        let mut written = DrainLedger::new(drain_ledger::NAME, (&ledger).into());
        match present {
            Some(present) => {
                written.metadata = present.metadata;
                ledgers
                    .replace(drain_ledger::NAME, &PostParams::default(), &written)
                    .await?;
            }
            None => drop(ledgers.create(&PostParams::default(), &written).await?),
        }
        Ok(())
    })
    .await
}

async fn node_drain(env: &Environment<'_>, node: &str, status: Value) -> Result<()> {
    let drains: Api<NodeDrain> = Api::all(env.client.clone());
    let drain = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": node },
        "spec": { "nodeName": node },
    });
    let params = PatchParams::apply("testbed").force();
    drains.patch(node, &params, &Patch::Apply(drain)).await?;
    let status = Patch::Merge(json!({ "status": status }));
    drains.patch_status(node, &PatchParams::default(), &status).await?;
    Ok(())
}

async fn owners_hold(env: &Environment<'_>, budget: &str, reason: &str, expires: Option<Timestamp>) -> Result<()> {
    let hold = json!({
        "apiVersion": "nodeward.dev/v1alpha1", "kind": "DisruptionHold",
        "metadata": { "namespace": env.name, "name": budget },
        "spec": { "pdbRef": budget, "reason": reason, "expiresAt": expires },
    });
    bulk::create(&env.client, [serde_json::from_value::<DisruptionHold>(hold)?]).await?;
    Ok(())
}

async fn annotate_budget(env: &Environment<'_>, budget: &str, reason: Option<&str>) -> Result<()> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client.clone(), &env.name);
    let patch = json!({ "metadata": { "annotations": { annotation::HOLD: reason } } });
    budgets
        .patch(budget, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// Waits until the node's condition names these.
async fn is_told(env: &Environment<'_>, node: &str, parts: &[&str]) -> Result<()> {
    wait::until(format!("the condition to say {parts:?}"), secs(60), || async {
        let condition = env.drain_blocked(node).await?.context("no condition")?;
        let message = condition.message.unwrap_or_default();
        ensure!(parts.iter().all(|part| message.contains(part)), "{message}");
        Ok(())
    })
    .await
}

async fn stay(env: &Environment<'_>, pods: &[&Pod]) -> Result<()> {
    wait::throughout("held pods to stay", secs(4), || async {
        for pod in pods {
            is_untouched(&env.pods(), pod).await?;
        }
        Ok(())
    })
    .await
}

async fn watches_what_holds(keeper: &Keeper) -> Result<()> {
    wait::until("its watches of holds", secs(60), || async {
        let log = keeper.log();
        for cache in ["nodedrains", "drainledgers", "disruptionholds"] {
            let is_it = |line: &str| line.contains("the kind is served") && line.contains(cache);
            ensure!(log.lines().any(is_it), "{cache} is not watched");
        }
        Ok(())
    })
    .await
}

/// As RFC 3339 to the second, as messages say it.
fn shown(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// On a control plane of its own: the kinds are not there at first.
#[tokio::test(flavor = "multi_thread")]
async fn holds_last_and_their_kinds_may_come_late() -> Result<()> {
    let plane = ControlPlane::start(Options::patient()).await?;
    let env = Environment::with(&plane, json!({})).await?;
    let node = env.add_cordoned_node("a").await?;
    let keeper = env.start(at_once()).await?;
    let pid = keeper.process().pid();

    // Without the kinds nothing is held.
    let pod = covered(&env, &node, "before").await?;
    workload::gone(&env.client, &pod, secs(60)).await?;

    install_kinds(&plane).await?;
    watches_what_holds(&keeper).await?;

    // The pods are made once all holds stand. The other node's claim ends with its drain's deadline, the owner's hold when
    // its owner said; the node's own claim stands in nobody's way.
    let until = Timestamp::now() + SignedDuration::from_secs(60);
    let others = env.node_name("b");
    node_drain(&env, &others, json!({ "phase": "Draining", "deadline": until })).await?;
    claim(&env, &others, "other-node", &[("claimed", "another-pod")]).await?;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(env.client.clone());
    let uid = nodes.get(&node).await?.uid().context("no UID")?;
    claim(&env, &node, &uid, &[("own", "own-pod")]).await?;
    owners_hold(&env, "owned", "schema migration", Some(until)).await?;

    let claimed = covered(&env, &node, "claimed").await?;
    let owned = covered(&env, &node, "owned").await?;
    let own = covered(&env, &node, "own").await?;
    workload::gone(&env.client, &own, secs(60)).await?;
    let (by_node, by_owner) = (
        format!("held by the claim of node {others} until {}", shown(until)),
        format!("held by its owner until {}: schema migration", shown(until)),
    );
    is_told(&env, &node, &[&by_node, &by_owner]).await?;
    is_untouched(&env.pods(), &claimed).await?;
    is_untouched(&env.pods(), &owned).await?;
    ensure!(Timestamp::now() < until, "too slow to have seen that they were held");
    for pod in [&claimed, &owned] {
        workload::gone(&env.client, pod, secs(150)).await?;
        ensure!(
            until <= Timestamp::now(),
            "{} was forced before its hold ended",
            pod.name_any()
        );
    }
    ensure!(keeper.process().pid() == pid, "it was restarted");
    env.end([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_annotation_holds_budget_until_removed() -> Result<()> {
    let plane = with_drain_locks_kinds().await?;
    let env = Environment::with(plane, json!({})).await?;
    let node = env.add_node("a").await?;
    let pod = covered(&env, &node, "web").await?;
    annotate_budget(&env, "web", Some("quorum is being rebuilt")).await?;
    let keeper = env.start(at_once()).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    is_told(
        &env,
        &node,
        &[
            "is covered by a budget that is held",
            "held by its owner: quorum is being rebuilt",
        ],
    )
    .await?;
    stay(&env, &[&pod]).await?;
    annotate_budget(&env, "web", None).await?;
    workload::gone(&env.client, &pod, secs(60)).await?;
    env.end([keeper]).await
}

fn was_read(records: &[Record], verb: Verb, resource: &str) -> bool {
    records
        .iter()
        .any(|record| record.request.verb == verb && record.request.resource.starts_with(resource))
}

/// The watches show an old world, in which nothing is held, or no longer; what is read just before the override shows the
/// present one.
#[tokio::test(flavor = "multi_thread")]
async fn unwatched_hold_is_seen_before_the_override() -> Result<()> {
    let plane = with_drain_locks_kinds().await?;
    let env = Environment::with(plane, json!({})).await?;
    let node = env.add_node("a").await?;
    let (claimed, owned, extended) = (
        covered(&env, &node, "claimed").await?,
        covered(&env, &node, "owned").await?,
        covered(&env, &node, "extended").await?,
    );
    for name in ["claimed", "owned", "extended"] {
        workload::counted_budget(&env.client, &env.name, name, 1, secs(60)).await?;
    }
    let proxy = Proxy::start(plane).await?;
    let keeper = env
        .run(
            env.spec(&json!({ "pdbForceDrainTimeout": "25s" }))
                .through(&proxy.url()),
        )
        .await?;
    watches_what_holds(&keeper).await?;
    let slow = env.node_name("c");
    let limit = Timestamp::now() + SignedDuration::from_secs(50);
    node_drain(&env, &slow, json!({ "phase": "Draining", "deadline": limit })).await?;
    claim(&env, &slow, "slow-node", &[("extended", "a-slow-pod")]).await?;
    fleet::cordon(&env.client, &node).await?;
    env.clock_that(&node, "runs", |_| true).await?;
    wait::until("its pods to be watched", secs(60), || async {
        let metrics = keeper.metrics().await?;
        let blockers = metrics.sum("nodeward_drain_keeper_blockers", &[]);
        ensure!(blockers >= 3.0, "{blockers} blockers are known");
        Ok(())
    })
    .await?;
    proxy.freeze().await?;
    let mark = proxy.mark();
    claim(&env, &env.node_name("b"), "stale-view", &[("claimed", "another-pod")]).await?;
    owners_hold(&env, "owned", "migration", None).await?;
    let longer = Timestamp::now() + SignedDuration::from_hours(1);
    node_drain(&env, &slow, json!({ "phase": "Draining", "deadline": longer })).await?;
    ensure!(Timestamp::now() < limit, "too slow: the claim's first limit has passed");

    wait::until("the holds to be read anew", secs(150), || async {
        ensure!(limit < Timestamp::now(), "by the old view a claim still holds");
        let seen = proxy.since(mark);
        ensure!(was_read(&seen, Verb::Get, "drainledgers"), "the ledger was not");
        ensure!(was_read(&seen, Verb::Get, "nodedrains"), "the claim's limit was not");
        ensure!(
            was_read(&seen, Verb::List, "disruptionholds"),
            "the owners' holds were not"
        );
        Ok(())
    })
    .await?;
    stay(&env, &[&claimed, &owned, &extended]).await?;
    proxy.thaw();
    stay(&env, &[&claimed, &owned, &extended]).await?;
    Api::<DisruptionHold>::namespaced(env.client.clone(), &env.name)
        .delete("owned", &kube::api::DeleteParams::default())
        .await?;
    workload::gone(&env.client, &owned, secs(60)).await?;
    is_untouched(&env.pods(), &claimed).await?;
    is_untouched(&env.pods(), &extended).await?;
    env.end([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_hold_reads_stop_overrides() -> Result<()> {
    let plane = with_drain_locks_kinds().await?;
    let env = Environment::with(plane, json!({})).await?;
    let node = env.add_node("a").await?;
    let pod = covered(&env, &node, "web").await?;
    let [free] = env.add_pods([("free", managed(&node))]).await?;
    let proxy = Proxy::start(plane).await?;
    proxy.inject(Rule::new(Fault::Status(403, "Forbidden")).resource("drainledgers"));
    let keeper = env.run(env.spec(&at_once()).through(&proxy.url())).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    workload::gone(&env.client, &free, secs(60)).await?;
    is_told(
        &env,
        &node,
        &[
            "is covered by a budget that may be held",
            "drainledgers may not be read",
        ],
    )
    .await?;
    stay(&env, &[&pod]).await?;
    proxy.heal();
    workload::gone(&env.client, &pod, secs(90)).await?;
    env.end_whatever_was_refused([keeper]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_drain_marks_its_node_as_being_drained() -> Result<()> {
    let plane = with_drain_locks_kinds().await?;
    let env = Environment::with(plane, json!({})).await?;
    let node = env.add_cordoned_node("a").await?;
    let [pod] = env.add_pods([("web", managed(&node))]).await?;
    let keeper = env.start(json!({ "countsAsDrain": "nodeDrain" })).await?;
    stay(&env, &[&pod]).await?;
    ensure!(env.clock(&node).await?.is_none(), "a parked node is timed");
    node_drain(&env, &node, json!({ "phase": "Queued" })).await?;
    stay(&env, &[&pod]).await?;
    let clock = env.clock(&node).await?;
    ensure!(
        clock.is_none_or(|clock| clock.suspended_at.is_some()),
        "a node is timed before its turn"
    );
    node_drain(&env, &node, json!({ "phase": "Draining" })).await?;
    workload::gone(&env.client, &pod, secs(60)).await?;
    env.clock_that(&node, "runs", |_| true).await?;

    node_drain(&env, &node, json!({ "phase": "Drained" })).await?;
    wait::until("the clock of the drain that is over to stop", secs(60), || async {
        let clock = env.clock(&node).await?;
        ensure!(
            clock.as_ref().is_none_or(|clock| clock.uncordoned_at.is_some()),
            "{clock:?}"
        );
        Ok(())
    })
    .await?;
    env.end([keeper]).await
}

/// Whatever else marks the node: a drain that waits for its turn is nobody's to empty by force, nor is one that may.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_forced_before_the_turn_is_known() -> Result<()> {
    let plane = with_drain_locks_kinds().await?;
    let env = Environment::with(plane, json!({})).await?;
    let waiting = env.add_node("a").await?;
    let [pod] = env.add_pods([("web", managed(&waiting))]).await?;
    node_drain(&env, &waiting, json!({ "phase": "Queued" })).await?;
    let proxy = Proxy::start(plane).await?;
    let keeper = env.run(env.spec(&at_once()).through(&proxy.url())).await?;
    fleet::cordon_since(&env.client, &waiting, an_hour_ago()).await?;
    gate_is(&keeper, "WaitsForTurn", 1.0).await?;
    stay(&env, &[&pod]).await?;
    let clock = env.clock(&waiting).await?;
    ensure!(
        clock.is_none_or(|clock| clock.suspended_at.is_some()),
        "it is timed before its turn"
    );
    node_drain(&env, &waiting, json!({ "phase": "Draining" })).await?;
    workload::gone(&env.client, &pod, secs(60)).await?;
    env.end_whatever_was_refused([keeper]).await?;

    // A drain-keeper that may not read NodeDrains from the start.
    let env = Environment::with(plane, json!({})).await?;
    let node = env.add_node("b").await?;
    let [pod] = env.add_pods([("other", managed(&node))]).await?;
    proxy.inject(Rule::new(Fault::Status(403, "Forbidden")).resource("nodedrains"));
    let keeper = env.run(env.spec(&at_once()).through(&proxy.url())).await?;
    fleet::cordon_since(&env.client, &node, an_hour_ago()).await?;
    gate_is(&keeper, "TurnUnknown", 1.0).await?;
    stay(&env, &[&pod]).await?;
    proxy.heal();
    workload::gone(&env.client, &pod, secs(90)).await?;
    env.end_whatever_was_refused([keeper]).await
}

async fn gate_is(keeper: &Keeper, gate: &str, nodes: f64) -> Result<()> {
    wait::until(format!("{nodes} nodes at gate {gate}"), secs(60), || async {
        let metrics = keeper.metrics().await?;
        let value = metrics.value("nodeward_drain_keeper_nodes", &[("gate", gate)]);
        ensure!(value == Some(nodes), "{value:?}");
        Ok(())
    })
    .await
}
