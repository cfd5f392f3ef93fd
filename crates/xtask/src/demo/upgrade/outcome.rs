//! What came of the demo: the table at its end, and whether it is what was promised.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use nodeward_api::annotation::DRAIN_CLOCK;
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_testkit::operator::{Metrics, Operator};
use nodeward_testkit::wait;

use super::protected;
use super::scenario::{CLEAN_WITHIN, NODES, STUCK_WITHOUT};
use super::upgrader::Upgrade;
use crate::demo::place::Place;
use crate::demo::table::Table;
use crate::demo::verdict::{Verdict, violated};

/// What came of the demo.
#[derive(Debug, Default)]
pub struct Outcome {
    pub upgrade: Upgrade,
    pub took: Duration,
    /// Budgets that fell short.
    pub violations: Vec<String>,
    /// `None` where drain-keeper was left out.
    pub keeper: Option<Kept>,
}

/// What became of drain-keeper's part.
#[derive(Debug, Default)]
pub struct Kept {
    pub acts: Acts,
    /// What it did to pods that nobody may force.
    pub touched: Vec<String>,
    /// What it should have cleaned up and has not.
    pub leftovers: Vec<String>,
}

/// How often it did what, by its own metrics.
#[derive(Debug, Default, Clone, Copy)]
pub struct Acts {
    pub evicted: f64,
    pub overridden: f64,
    pub finalizers: f64,
    pub without_grace: f64,
}

impl Kept {
    pub async fn gather(place: &Place, keeper: &Operator) -> Result<Self> {
        Ok(Self {
            leftovers: leftovers(place).await?,
            touched: protected::touched(place).await?,
            acts: Acts::read(&keeper.metrics().await?),
        })
    }
}

impl Acts {
    fn read(metrics: &Metrics) -> Self {
        // The sum of nothing is -0.
        let count = |outcome| {
            metrics
                .sum("nodeward_drain_keeper_actions_total", &[("outcome", outcome)])
                .abs()
        };
        Self {
            evicted: count("evicted"),
            overridden: count("budget-overridden"),
            finalizers: count("finalizers-removed"),
            without_grace: count("deleted-without-grace"),
        }
    }
}

impl Outcome {
    pub fn table(&self) -> String {
        let mut table = Table::default();
        table.row("nodes upgraded", format!("{} of {NODES}", self.upgrade.upgraded));
        table.row("duration", format!("{:.0} s", self.took.as_secs_f32()));
        table.row(
            "longest drain of a node",
            format!("{:.1} s", self.upgrade.longest_drain.as_secs_f32()),
        );
        table.row("evictions by the upgrader", self.upgrade.evicted);
        table.row("  refused by budgets", self.upgrade.refused);
        match &self.keeper {
            Some(Kept { acts, touched, .. }) => {
                table.row("evictions by drain-keeper", acts.evicted);
                table.row(
                    "forced by drain-keeper",
                    acts.overridden + acts.finalizers + acts.without_grace,
                );
                table.row("  budget overridden by policy", acts.overridden);
                table.row("  finalizers removed", acts.finalizers);
                table.row("  deleted without grace", acts.without_grace);
                table.must_be_zero("never-forced and opted-out pods touched", touched.len());
            }
            None => table.row("drain-keeper", "left out"),
        }
        table.end(&self.violations)
    }

    pub fn verdict(&self) -> Verdict {
        let mut broken = violated(&self.violations);
        let promised = match &self.keeper {
            Some(kept) => self.with_keeper(kept, &mut broken),
            None => self.without_keeper(&mut broken),
        };
        Verdict::of(promised, broken)
    }

    fn with_keeper(&self, kept: &Kept, broken: &mut Vec<String>) -> String {
        match &self.upgrade.stuck {
            Some((node, pods)) => broken.push(format!("the upgrade got stuck at {node}, on {}", pods.join(", "))),
            None if self.upgrade.upgraded != NODES => {
                broken.push(format!(
                    "{} nodes are upgraded instead of {NODES}",
                    self.upgrade.upgraded
                ));
            }
            None => {}
        }
        broken.extend(
            kept.touched
                .iter()
                .map(|act| format!("a protected pod was touched: {act}")),
        );
        broken.extend(kept.leftovers.iter().map(|what| format!("left behind: {what}")));
        for (what, count) in [
            ("no budget was overridden", kept.acts.overridden),
            ("no finalizer was removed", kept.acts.finalizers),
            ("no pod was deleted without grace", kept.acts.without_grace),
        ] {
            if count < 1.0 {
                broken.push(format!("{what}, though an obstacle needed it"));
            }
        }
        "Every node is upgraded, no budget was violated, no protected pod was touched, and nothing is left behind."
            .to_owned()
    }

    fn without_keeper(&self, broken: &mut Vec<String>) -> String {
        let Some((node, pods)) = &self.upgrade.stuck else {
            broken.push("the upgrade should have got stuck, and did not".to_owned());
            return String::new();
        };
        let expected = pods.iter().all(|pod| pod.starts_with(STUCK_WITHOUT.1));
        if node != STUCK_WITHOUT.0 || !expected {
            broken.push(format!(
                "the upgrade got stuck elsewhere than expected: at {node}, on {}",
                pods.join(", ")
            ));
        }
        format!(
            "STUCK at {node}, as expected: {} stays, and nobody says why. With drain-keeper (without --without) the same \
             upgrade ends.",
            pods.join(", ")
        )
    }
}

/// What drain-keeper should have cleaned up and has not: conditions go at once, drain clocks when no flap can follow.
async fn leftovers(place: &Place) -> Result<Vec<String>> {
    let nodes: Api<Node> = Api::all(place.client());
    let ours = ListParams::default().labels(&place.ours());
    let left = || async {
        let mut left = Vec::new();
        for node in nodes.list(&ours).await? {
            let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            if conditions.into_iter().any(|condition| condition.type_ == DRAIN_BLOCKED) {
                left.push(format!("{}: condition {DRAIN_BLOCKED}", node.name_any()));
            }
            if node.annotations().contains_key(DRAIN_CLOCK) {
                left.push(format!("{}: annotation {DRAIN_CLOCK}", node.name_any()));
            }
        }
        anyhow::Ok(left)
    };
    let cleaned_up = wait::until("nodes without leftovers", CLEAN_WITHIN, || async {
        let left = left().await?;
        anyhow::ensure!(left.is_empty(), "{}", left.join(", "));
        Ok(())
    });
    if cleaned_up.await.is_ok() {
        Ok(Vec::new())
    } else {
        left().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promised() -> Outcome {
        Outcome {
            upgrade: Upgrade {
                upgraded: NODES,
                ..Upgrade::default()
            },
            keeper: Some(Kept {
                acts: Acts {
                    overridden: 4.0,
                    finalizers: 1.0,
                    without_grace: 1.0,
                    ..Acts::default()
                },
                ..Kept::default()
            }),
            ..Outcome::default()
        }
    }

    fn stuck(node: &str, pod: &str) -> Upgrade {
        Upgrade {
            stuck: Some((node.to_owned(), vec![pod.to_owned()])),
            ..Upgrade::default()
        }
    }

    fn kept(outcome: &mut Outcome) -> &mut Kept {
        outcome.keeper.as_mut().unwrap()
    }

    #[test]
    fn all_as_promised_is_promised() {
        assert!(promised().verdict().is_promised());
        assert!(!promised().table().contains("-0"));
    }

    #[rstest::rstest]
    #[case::stuck(|o: &mut Outcome| o.upgrade = stuck("node-04", "finance/ledger-1"), "stuck at node-04")]
    #[case::unfinished(|o: &mut Outcome| o.upgrade.upgraded = 11, "11 nodes")]
    #[case::violation(|o: &mut Outcome| o.violations.push("shop/web".to_owned()), "budget violated: shop/web")]
    #[case::touched(|o: &mut Outcome| kept(o).touched.push("delete pods vault/v".to_owned()), "touched: delete pods vault/v")]
    #[case::leftover(|o: &mut Outcome| kept(o).leftovers.push("node-02".to_owned()), "left behind: node-02")]
    #[case::nothing_overridden(|o: &mut Outcome| kept(o).acts.overridden = 0.0, "no budget was overridden")]
    #[case::no_finalizer(|o: &mut Outcome| kept(o).acts.finalizers = 0.0, "no finalizer")]
    #[case::nothing_forced(|o: &mut Outcome| kept(o).acts.without_grace = 0.0, "without grace")]
    #[case::not_stuck_without(|o: &mut Outcome| o.keeper = None, "should have got stuck")]
    #[case::stuck_elsewhere_without(
        |o: &mut Outcome| (o.keeper, o.upgrade) = (None, stuck("node-04", "finance/ledger-1")),
        "elsewhere than expected"
    )]
    fn whatever_is_not_as_promised_breaks_the_verdict(#[case] spoil: fn(&mut Outcome), #[case] says: &str) {
        let mut outcome = promised();
        spoil(&mut outcome);
        let verdict = outcome.verdict();
        assert!(
            matches!(&verdict, Verdict::Broken(reasons) if reasons.join("\n").contains(says)),
            "{verdict:?}"
        );
    }

    #[test]
    fn without_drain_keeper_a_stuck_upgrade_is_what_was_promised_unless_a_budget_was_violated() {
        let mut outcome = Outcome {
            upgrade: stuck("node-02", "media/transcoder-7f-x"),
            ..Outcome::default()
        };
        assert!(outcome.verdict().is_promised());
        outcome.violations.push("shop/web".to_owned());
        assert!(!outcome.verdict().is_promised());
    }
}
