//! Pages of what several components have to say.

use anyhow::Result;
use nodeward_api::node_drain::Phase;
use nodeward_testkit::fleet;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::workload::{Budget, PodTemplate};
use nodeward_testkit::{bulk, workload};

use crate::environment::Environment;
use crate::person::says;

#[tokio::test(flavor = "multi_thread")]
async fn why_puts_the_verdicts_of_drain_keeper_and_drain_lock_together() -> Result<()> {
    let env = Environment::new().await?;
    let [node, other] = env.workers().await?;
    // A budget that can never allow a disruption, and one that its owner holds.
    let single = PodTemplate::new().node_selector("kubernetes.io/hostname", &node);
    bulk::create(&env.client, [single.deployment(&env.name, "single", 1)?]).await?;
    bulk::create(
        &env.client,
        [Budget::min_available(&env.name, "single", 1).of("single").build()?],
    )
    .await?;
    workload::ready_pods(&env.client, &env.name, "single", 1, secs(90)).await?;
    workload::counted_budget(&env.client, &env.name, "single", 1, secs(60)).await?;
    env.add_pinned("db", &[node.clone(), other]).await?;
    let admin = &env.admin;
    let hold = ["hold", "db", "-n", &env.name, "--reason", "reindexing", "--for", "1h"];
    admin.page(&hold).await?;

    fleet::cordon(&env.client, &node).await?;
    admin.page(&["drain", &node, "--no-wait", "--fallback", "wait"]).await?;
    env.phase(&node, Phase::Queued).await?;
    let why = wait::until("both verdicts", secs(90), || async {
        let why = admin.page(&["why", &node]).await?;
        says(
            &why,
            &[
                "node Ready, cordoned since",
                "drain Queued, ticket",
                "[BudgetNeverAllows]",
                "[OwnerHold]",
                "drain-keeper times the drain since",
                "2 pods keep it from ending [",
                "/single-",
                "next:",
                "refused",
                "goes on when its owner's hold of",
                "does not go on by itself: PDB",
                "Budgets that matter here",
                "reindexing",
            ],
        )?;
        Ok(why)
    })
    .await?;
    // An obstacle is told once, whoever found it.
    assert_eq!(why.matches("[BudgetNeverAllows]").count(), 1, "{why}");

    let json = admin.json(&["why", &node]).await?;
    assert_eq!(json["drain"]["fallback"], "Wait", "{json:#}");
    assert!(json["node"]["drainKeeper"]["blocked"]["reason"].is_string(), "{json:#}");
    let status = admin.page(&["status"]).await?;
    says(
        &status,
        &["drain-keeper", "DRAIN-KEEPER TIMES", &node, "kubectl nodeward why NODE"],
    )?;
    admin.page(&["release", &node]).await?;
    env.gone(&node).await
}
