//! Two leaders at once, and one that is killed between two of its writes, or stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use futures::FutureExt;
use kube::ResourceExt;
use nodeward_testkit::operator::Operator;
use nodeward_testkit::proxy::{ApiRequest, Gate, Proxy, Stage, Verb, Verdict};
use nodeward_testkit::remediator::Family;
use nodeward_testkit::wait::{self, secs};
use serde_json::json;

use crate::environment::{OwnEnvironment, SOON, WHILE, confined_proxy};

/// Both lead, for neither asks for a lease: what keeps them apart are preconditions.
#[tokio::test(flavor = "multi_thread")]
async fn two_leaders_remediate_each_node_once() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let nodes = own.add_nodes(["a", "b", "c", "d"]).await?;
    let check = own.add_check("main", json!({ "maxConcurrentRemediations": 2 })).await?;
    let spec = |name: &str| own.spec(&json!({})).arg("--leader-elect=false").identity(name);
    let operators = [
        spec("one").start(own.plane).await?,
        spec("another").start(own.plane).await?,
    ];
    for operator in &operators {
        operator.ready(secs(60)).await?;
    }
    for node in &nodes[..3] {
        own.lose_heartbeats(node).await?;
    }
    wait::until("two remediations", SOON, || async {
        ensure!(own.created(Family::SelfNode)? == 2);
        Ok(())
    })
    .await?;
    wait::throughout("no third", secs(4), || async {
        let created = own.created(Family::SelfNode)?;
        ensure!(created == 2, "{created} were created");
        Ok(())
    })
    .await?;
    for node in &nodes[..3] {
        own.recover(node).await?;
    }
    own.until_at_rest(&check, 4).await?;
    own.end(operators).await
}

/// Ends the operator at the first write of this kind, once: after the write, of whose outcome it does not learn.
fn kill_after(proxy: &Proxy, operator: &Arc<Operator>, is_write: impl Fn(&ApiRequest) -> bool + Send + Sync + 'static) {
    let (operator, killed) = (Arc::clone(operator), Arc::new(AtomicBool::new(false)));
    let gate = Gate::new(move |write| {
        let (operator, killed) = (Arc::clone(&operator), Arc::clone(&killed));
        async move {
            let is_done = matches!(write.stage, Stage::After(200 | 201));
            if !is_done || killed.swap(true, Ordering::SeqCst) {
                return Verdict::Pass;
            }
            operator.process().kill();
            Verdict::Cut
        }
        .boxed()
    });
    proxy.set_gate(Some(gate.counting(is_write)));
}

fn is_dead(operator: &Operator) -> Result<()> {
    ensure!(!operator.process().is_running(), "it still runs");
    Ok(())
}

/// The status says that a remediation begins, and then nobody creates it.
#[tokio::test(flavor = "multi_thread")]
async fn kills_between_status_and_remediation_are_resumed() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let operator = Arc::new(own.start(json!({})).await?);
    own.until_at_rest(&check, 2).await?;
    own.lose_heartbeats_without_waiting(&a).await?;
    // The first status that names the node is the intent.
    let intended = {
        let (checks, check) = (own.checks(), check.clone());
        move || {
            let (checks, check) = (checks.clone(), check.clone());
            async move {
                let status = checks.get(&check).await?.status.unwrap_or_default();
                let mut entries = status.unhealthy_nodes.iter().flat_map(|node| &node.remediations);
                ensure!(
                    entries.any(|remediation| remediation.resource.uid.is_none()),
                    "{status:?}"
                );
                anyhow::Ok(())
            }
        }
    };
    // The create never reaches the API server: the operator is killed at the lease, which comes before it.
    kill_after(&own.proxy, &operator, |request| {
        request.resource == "leases"
            && request.verb == Verb::Create
            && request.name.is_empty()
            && request.uri.contains("-leases/")
    });
    wait::until("the operator to be killed", secs(60), || async { is_dead(&operator) }).await?;
    intended().await?;
    ensure!(own.created(Family::SelfNode)? == 0, "the remediation was created");
    own.proxy.set_gate(None);
    operator.process().start()?;
    own.remediation(Family::SelfNode, &a).await?;
    own.until_status(&check, "the remediation's uid", |status| {
        let mut entries = status.unhealthy_nodes.iter().flat_map(|node| &node.remediations);
        entries.any(|remediation| remediation.resource.uid.is_some())
    })
    .await?;
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    ensure!(
        own.created(Family::SelfNode)? == 1,
        "{} were created",
        own.created(Family::SelfNode)?
    );
    operator.stop(SOON).await?;
    own.end([]).await
}

/// The remediation is created, and the leader that did so is killed before it has learnt of it; another one leads.
#[tokio::test(flavor = "multi_thread")]
async fn kills_after_the_remediation_create_no_second() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let [a, _b] = own.add_nodes(["a", "b"]).await?;
    let check = own.add_check("main", json!({})).await?;
    let spec = |name: &str| own.spec(&json!({})).arg("--leader-elect=false").identity(name);
    let killed = Arc::new(spec("killed").start(own.plane).await?);
    killed.ready(secs(60)).await?;
    // The other one sees the cluster through a proxy of its own.
    let proxy = confined_proxy(own.plane, &own.name).await?;
    let other = spec("other").through(&proxy.url()).start(own.plane).await?;
    other.ready(secs(60)).await?;
    // It stands still until the first one has written.
    other.process().pause()?;
    let plural = Family::SelfNode.remediation().resource().plural;
    kill_after(&own.proxy, &killed, move |request| {
        request.resource == plural && request.verb == Verb::Create
    });
    own.lose_heartbeats(&a).await?;
    wait::until("the operator to be killed", secs(60), || async { is_dead(&killed) }).await?;
    other.process().resume()?;
    own.remediation(Family::SelfNode, &a).await?;
    own.until_status(&check, "the remediation's uid", |status| {
        let mut entries = status.unhealthy_nodes.iter().flat_map(|node| &node.remediations);
        entries.any(|remediation| remediation.resource.uid.is_some())
    })
    .await?;
    wait::throughout("one remediation", secs(4), || async {
        let created = own.created_names(Family::SelfNode)?;
        ensure!(
            created.len() == 1 && created[0].starts_with(&a),
            "{created:?} were created"
        );
        Ok(())
    })
    .await?;
    own.proxy.set_gate(None);
    own.recover(&a).await?;
    own.until_at_rest(&check, 2).await?;
    own.end([other]).await
}

/// A leader stands still while nodes fail and another one remediates them; then it goes on, and in the end leads alone.
#[tokio::test(flavor = "multi_thread")]
async fn leader_that_stood_still_leaves_the_remediations_of_the_other_alone() -> Result<()> {
    let own = OwnEnvironment::new(json!({})).await?;
    let nodes = own.add_nodes(["a", "b", "c", "d", "e", "f", "g", "h"]).await?;
    let failing = &nodes[..6];
    let check = own.add_check("main", json!({ "maxUnhealthy": "100%" })).await?;
    let spec = |name: &str| own.spec(&json!({})).identity(name);
    let stands_still = spec("stands-still").start(own.plane).await?;
    stands_still.ready(secs(60)).await?;
    own.until_at_rest(&check, 8).await?;
    stands_still.process().pause()?;
    let other = spec("other").start(own.plane).await?;
    other.ready(secs(60)).await?;
    for node in failing {
        own.lose_heartbeats(node).await?;
    }
    let mut uids = Vec::new();
    for node in failing {
        uids.push(own.remediation(Family::SelfNode, node).await?.uid());
    }
    stands_still.process().resume()?;
    let are_left_alone = || async {
        for (node, uid) in failing.iter().zip(&uids) {
            let remediation = own.remediation(Family::SelfNode, node).await?;
            ensure!(remediation.uid() == *uid, "{node} has another one");
            ensure!(
                remediation.metadata.deletion_timestamp.is_none(),
                "{node}'s is being deleted"
            );
        }
        let created = own.created(Family::SelfNode)?;
        ensure!(created == 6, "{created} were created");
        Ok(())
    };
    wait::throughout("the same remediations with both", WHILE, are_left_alone).await?;
    other.stop(SOON).await?;
    wait::throughout("the same remediations with one", WHILE, are_left_alone).await?;
    for node in failing {
        own.recover(node).await?;
    }
    own.until_at_rest(&check, 8).await?;
    own.end([stands_still]).await
}
