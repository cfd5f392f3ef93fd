//! One failure from the lost node to its recovery, run through the three perturbations: ended between any two of its
//! writes, with a view that stands still, and without seeing every change, the operator comes to the same end.

use std::sync::Arc;

use anyhow::{Result, ensure};
use kube::api::ListParams;
use nodeward_testkit::fault_injection::{self, Scenario, TestEnv};
use nodeward_testkit::remediator::{self, Family};
use nodeward_testkit::wait::secs;
use serde_json::json;

use crate::environment::OwnEnvironment;

/// What was made in an environment.
struct World {
    own: OwnEnvironment,
    check: String,
    node: String,
}

async fn set_up(env: TestEnv) -> Result<World> {
    for resource in ["nodes", "nodehealthchecks"] {
        env.proxy.confine(resource, crate::environment::SEEN_BY, &env.name);
    }
    let own = OwnEnvironment::named(env.name.clone(), json!({})).await?;
    let [node, _other] = own.add_nodes(["a", "b"]).await?;
    let mut chain = Vec::new();
    for (order, family) in [Family::SelfNode, Family::FenceAgents].into_iter().enumerate() {
        let template = own.add_template(family, "reboot").await?;
        chain.push(json!({ "remediationTemplate": template, "order": order, "timeout": "5m" }));
    }
    let changes = json!({ "remediationTemplate": null, "escalatingRemediations": chain });
    let check = own.add_check("main", changes).await?;
    Ok(World { own, check, node })
}

/// Never two remediations of a step.
async fn is_remediated_once(_: TestEnv, world: Arc<World>) -> Result<()> {
    for family in [Family::SelfNode, Family::FenceAgents] {
        let all = world.own.remediations(family).list(&ListParams::default()).await?.items;
        ensure!(all.len() <= 1, "{} of {family:?}", all.len());
    }
    Ok(())
}

fn scenario() -> Scenario<World> {
    Scenario::new("a failure that takes two remediators", set_up)
        .event("the node is not ready", |_, world| async move {
            world.own.not_ready(&world.node).await
        })
        .effect("the first remediator is asked", |_, world| async move {
            let found = world.own.remediations_of(Family::SelfNode, &world.node).await?.len();
            ensure!(found == 1, "{found} remediations");
            Ok(())
        })
        .event("the first remediator fails", |_, world| async move {
            for remediation in world.own.remediations_of(Family::SelfNode, &world.node).await? {
                world.own.say_failed(Family::SelfNode, &remediation).await?;
            }
            Ok(())
        })
        .effect("the second remediator is asked", |_, world| async move {
            let found = world.own.remediations_of(Family::FenceAgents, &world.node).await?.len();
            ensure!(found == 1, "{found} remediations");
            Ok(())
        })
        .event("the node boots", |_, world| async move {
            remediator::power_cycle(&world.own.client, &world.node, secs(0)).await
        })
        .end(|_, world| async move {
            let status = world.own.status(&world.check).await?;
            let counted = (status.healthy_nodes, status.observed_nodes);
            ensure!(
                counted == (Some(2), Some(2)) && status.unhealthy_nodes.is_empty(),
                "{status:?}"
            );
            for family in [Family::SelfNode, Family::FenceAgents] {
                let left = world
                    .own
                    .remediations(family)
                    .list(&ListParams::default())
                    .await?
                    .items
                    .len();
                ensure!(left == 0, "{left} of {family:?}");
            }
            let leases = world.own.leases().list(&ListParams::default()).await?.items.len();
            ensure!(leases == 0, "{leases} leases");
            let created = (
                world.own.created(Family::SelfNode)?,
                world.own.created(Family::FenceAgents)?,
            );
            ensure!(created == (1, 1), "{created:?} were created");
            Ok(())
        })
        .throughout(is_remediated_once)
        .within(secs(90))
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_remediations_come_to_the_same_end() -> Result<()> {
    let launch = |env: TestEnv| async move {
        OwnEnvironment::spec_of(&env.name, &json!({}))
            .arg("--leader-elect=false")
            .through(&env.proxy.url())
            .start(env.plane)
            .await
    };
    let scenario = scenario().at_once(6).at_most(14);
    fault_injection::run_with_faults(&scenario, launch).await?.same_end()?;
    Ok(())
}
