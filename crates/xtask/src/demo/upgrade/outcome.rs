//! What came of the upgrade, and whether it is what was promised.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use nodeward_api::annotation::DRAIN_CLOCK;
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_testkit::fleet;
use nodeward_testkit::operator::Operator;

use super::failures::Remediated;
use super::protected;
use super::scenario::{CLEAN_WITHIN, NODES, STUCK_WITHOUT};
use super::upgrader::Upgrade;
use crate::demo::environment::Environment;
use crate::demo::outcome::{Outcome, left_after};
use crate::demo::page::seconds;

/// What came of the upgrade.
#[derive(Debug, Default)]
pub struct Upgraded {
    pub upgrade: Upgrade,
    pub took: Duration,
    /// Budgets that fell short.
    pub violations: Vec<String>,
    /// `None` where drain-keeper was left out.
    pub keeper: Option<Kept>,
    /// `None` where health-check was left out.
    pub remediated: Option<Remediated>,
}

/// What became of drain-keeper's part.
#[derive(Debug, Default)]
pub struct Kept {
    /// How often it evicted, by its own metrics.
    pub evicted: f64,
    /// How often it did each of [`FORCED`].
    pub forced: [f64; FORCED.len()],
    /// What it did to pods that nobody may force.
    pub touched: Vec<String>,
    /// What it should have cleaned up and has not.
    pub leftovers: Vec<String>,
}

/// What it forces, each because an obstacle needs it: the outcome in its metrics, the row's name, and the complaint where
/// it was never done.
const FORCED: [(&str, &str, &str); 3] = [
    (
        "budget-overridden",
        "  budget overridden by policy",
        "no budget was overridden",
    ),
    ("finalizers-removed", "  finalizers removed", "no finalizer was removed"),
    (
        "deleted-without-grace",
        "  deleted without grace",
        "no pod was deleted without grace",
    ),
];

impl Kept {
    pub async fn gather(env: &Environment, keeper: &Operator) -> Result<Self> {
        let (leftovers, touched) = (leftovers(env).await?, protected::touched(env).await?);
        let metrics = keeper.metrics().await?;
        let actions = |outcome| metrics.sum("nodeward_drain_keeper_actions_total", &[("outcome", outcome)]);
        Ok(Self {
            // The sum of nothing is -0.
            evicted: actions("evicted").abs(),
            forced: FORCED.map(|(outcome, ..)| actions(outcome).abs()),
            touched,
            leftovers,
        })
    }
}

impl Upgraded {
    pub fn outcome(&self) -> Outcome {
        let Upgrade {
            upgraded,
            evicted,
            refused,
            ..
        } = self.upgrade;
        let mut outcome = Outcome::new(self.promised());
        outcome.row("nodes upgraded", format!("{upgraded} of {NODES}"));
        outcome.row("duration", format!("{:.0} s", self.took.as_secs_f32()));
        outcome.row("longest drain of a node", seconds(self.upgrade.longest_drain));
        outcome.row("evictions by the upgrader", evicted);
        outcome.row("  refused by budgets", refused);
        match &self.keeper {
            Some(kept) => self.with_keeper(kept, &mut outcome),
            None => self.without_keeper(&mut outcome),
        }
        if let Some(remediated) = &self.remediated {
            outcome.row("remediations by health-check", remediated.remediations.len());
            let others: Vec<_> = remediated.others().map(|(_, node)| node).collect();
            outcome.must_be_none("  of any other node", "remediated", &others);
            for why in remediated.broken() {
                outcome.broken(why);
            }
        }
        outcome.must_be_none("budget violations", "budget violated", &self.violations);
        outcome
    }

    fn promised(&self) -> String {
        if let (None, Some((node, pods))) = (&self.keeper, &self.upgrade.stuck) {
            return format!(
                "STUCK at {node}, as expected: {} stays, and nobody says why. With drain-keeper (without --without) the same \
                 upgrade ends.",
                pods.join(", ")
            );
        }
        let remediated = match &self.remediated {
            Some(_) => "the one dead node was remediated and no other, ",
            None => "",
        };
        format!(
            "Every node is upgraded, {remediated}no budget was violated, no protected pod was touched, and nothing is left \
             behind."
        )
    }

    fn with_keeper(&self, kept: &Kept, outcome: &mut Outcome) {
        outcome.row("evictions by drain-keeper", kept.evicted);
        outcome.row("forced by drain-keeper", kept.forced.iter().sum::<f64>());
        for ((_, name, complaint), count) in FORCED.into_iter().zip(kept.forced) {
            outcome.row(name, count);
            if count < 1.0 {
                outcome.broken(format!("{complaint}, though an obstacle needed it"));
            }
        }
        outcome.must_be_none(
            "never-forced and opted-out pods touched",
            "a protected pod was touched",
            &kept.touched,
        );
        for what in &kept.leftovers {
            outcome.broken(format!("left behind: {what}"));
        }
        match &self.upgrade.stuck {
            Some((node, pods)) => outcome.broken(format!("the upgrade got stuck at {node}, on {}", pods.join(", "))),
            None if self.upgrade.upgraded != NODES => {
                outcome.broken(format!(
                    "{} nodes are upgraded instead of {NODES}",
                    self.upgrade.upgraded
                ));
            }
            None => {}
        }
    }

    fn without_keeper(&self, outcome: &mut Outcome) {
        outcome.row("drain-keeper", "left out");
        let Some((node, pods)) = &self.upgrade.stuck else {
            outcome.broken("the upgrade should have got stuck, and did not");
            return;
        };
        if node != STUCK_WITHOUT.0 || !pods.iter().all(|pod| pod.starts_with(STUCK_WITHOUT.1)) {
            let pods = pods.join(", ");
            outcome.broken(format!(
                "the upgrade got stuck elsewhere than expected: at {node}, on {pods}"
            ));
        }
    }
}

/// What drain-keeper should have cleaned up and has not: conditions go at once, drain clocks when no flap can follow.
async fn leftovers(env: &Environment) -> Result<Vec<String>> {
    left_after("nodes without leftovers", CLEAN_WITHIN, || left_on_nodes(env)).await
}

/// What drain-keeper has on the demo's nodes now.
pub async fn left_on_nodes(env: &Environment) -> Result<Vec<String>> {
    let nodes: Api<Node> = Api::all(env.client());
    let ours = ListParams::default().labels(&env.ours());
    let mut left = Vec::new();
    for node in nodes.list(&ours).await? {
        if fleet::condition(&node, DRAIN_BLOCKED).is_some() {
            left.push(format!("{}: condition {DRAIN_BLOCKED}", node.name_any()));
        }
        if node.annotations().contains_key(DRAIN_CLOCK) {
            left.push(format!("{}: annotation {DRAIN_CLOCK}", node.name_any()));
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::super::failures::STAYS_AWAY;
    use super::*;

    fn promised() -> Upgraded {
        Upgraded {
            upgrade: Upgrade {
                upgraded: NODES,
                ..Upgrade::default()
            },
            keeper: Some(Kept {
                forced: [4.0, 1.0, 1.0],
                ..Kept::default()
            }),
            remediated: Some(Remediated {
                remediations: ["SelfNodeRemediation", "FenceAgentsRemediation"]
                    .map(|kind| (kind.to_owned(), STAYS_AWAY.to_owned()))
                    .into(),
                leftovers: Vec::new(),
            }),
            ..Upgraded::default()
        }
    }

    fn stuck(node: &str, pod: &str) -> Upgrade {
        Upgrade {
            stuck: Some((node.to_owned(), vec![pod.to_owned()])),
            ..Upgrade::default()
        }
    }

    fn remediated(outcome: &mut Upgraded) -> &mut Remediated {
        outcome.remediated.as_mut().unwrap()
    }

    fn kept(outcome: &mut Upgraded) -> &mut Kept {
        outcome.keeper.as_mut().unwrap()
    }

    #[test]
    fn expected_figures_keep_the_promise() {
        let outcome = promised().outcome();
        assert!(outcome.is_promised() && !outcome.table().contains("-0"));
    }

    #[rstest::rstest]
    #[case::stuck(|o: &mut Upgraded| o.upgrade = stuck("node-04", "finance/ledger-1"), "stuck at node-04")]
    #[case::unfinished(|o: &mut Upgraded| o.upgrade.upgraded = 11, "11 nodes")]
    #[case::violation(|o: &mut Upgraded| o.violations.push("shop/web".to_owned()), "budget violated: shop/web")]
    #[case::touched(|o: &mut Upgraded| kept(o).touched.push("delete pods vault/v".to_owned()), "touched: delete pods vault/v")]
    #[case::leftover(|o: &mut Upgraded| kept(o).leftovers.push("node-02".to_owned()), "left behind: node-02")]
    #[case::nothing_overridden(|o: &mut Upgraded| kept(o).forced[0] = 0.0, "no budget was overridden")]
    #[case::no_finalizer(|o: &mut Upgraded| kept(o).forced[1] = 0.0, "no finalizer")]
    #[case::nothing_forced(|o: &mut Upgraded| kept(o).forced[2] = 0.0, "without grace")]
    #[case::not_escalated(|o: &mut Upgraded| drop(remediated(o).remediations.pop_first()), "node-10 got no FenceAgentsRemediation")]
    #[case::maintenance_remediated(
        |o: &mut Upgraded| remediated(o).remediations.extend([("SelfNodeRemediation".to_owned(), "node-12".to_owned())]),
        "node-12 got a SelfNodeRemediation"
    )]
    #[case::remediation_left(|o: &mut Upgraded| remediated(o).leftovers.push("node-10 is not Ready".to_owned()), "left behind: node-10")]
    #[case::not_stuck_without(|o: &mut Upgraded| o.keeper = None, "should have got stuck")]
    #[case::stuck_elsewhere_without(
        |o: &mut Upgraded| (o.keeper, o.upgrade) = (None, stuck("node-04", "finance/ledger-1")),
        "elsewhere than expected"
    )]
    fn unexpected_figures_break_the_promise(#[case] spoil: fn(&mut Upgraded), #[case] says: &str) {
        let mut outcome = promised();
        spoil(&mut outcome);
        assert!(
            outcome.outcome().is_broken_because(says),
            "{}",
            outcome.outcome().verdict()
        );
    }

    #[test]
    fn stuck_upgrades_are_promised_without_drain_keeper() {
        let mut outcome = Upgraded {
            upgrade: stuck("node-02", "media/transcoder-7f-x"),
            ..Upgraded::default()
        };
        assert!(outcome.outcome().is_promised());
        outcome.violations.push("shop/web".to_owned());
        assert!(!outcome.outcome().is_promised());
    }
}
