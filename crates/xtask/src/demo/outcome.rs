//! What came of the demo: the table at its end, and whether it is what was promised.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use nodeward_api::annotation::DRAIN_CLOCK;
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_testkit::operator::Metrics;
use nodeward_testkit::wait;

use super::budgets::BudgetWatch;
use super::scenario::{self, NODES};
use super::upgrader::Upgrade;

/// What came of the demo.
pub struct Outcome {
    upgrade: Upgrade,
    took: Duration,
    violations: Vec<String>,
    leftovers: Vec<String>,
    acts: Option<Acts>,
}

/// What drain-keeper did.
#[derive(Debug, Clone, Copy)]
struct Acts {
    evicted: f64,
    overridden: f64,
    finalizers: f64,
    without_grace: f64,
}

/// Whether the outcome is the promised one.
pub enum Verdict {
    Promised(String),
    Broken(Vec<String>),
}

impl Outcome {
    pub async fn gather(
        client: &Client,
        upgrade: Upgrade,
        budgets: &BudgetWatch,
        metrics: Option<Metrics>,
        took: Duration,
    ) -> Result<Self> {
        let acts = metrics.map(|metrics| {
            let count = |outcome| metrics.sum("nodeward_drain_keeper_actions_total", &[("outcome", outcome)]) + 0.0;
            Acts {
                evicted: count("evicted"),
                overridden: count("budget-overridden"),
                finalizers: count("finalizers-removed"),
                without_grace: count("deleted-without-grace"),
            }
        });
        let leftovers = if acts.is_some() { leftovers(client).await? } else { Vec::new() };
        Ok(Self { upgrade, took, violations: budgets.violations(), leftovers, acts })
    }

    pub fn table(&self, without: bool) -> String {
        let mut rows: Vec<(&str, String)> = vec![
            ("nodes upgraded", format!("{} of {NODES}", self.upgrade.upgraded)),
            ("duration", format!("{:.0} s", self.took.as_secs_f32())),
            ("longest drain of a node", format!("{:.1} s", self.upgrade.longest_drain.as_secs_f32())),
            ("evictions by the upgrader", self.upgrade.evicted.to_string()),
            ("  refused by budgets", self.upgrade.refused.to_string()),
        ];
        match self.acts {
            Some(acts) => {
                let forced = acts.overridden + acts.finalizers + acts.without_grace;
                rows.push(("evictions by drain-keeper", format!("{:.0}", acts.evicted)));
                rows.push(("forced by drain-keeper", format!("{forced:.0}")));
                rows.push(("  budget overridden by policy", format!("{:.0}", acts.overridden)));
                rows.push(("  finalizers removed", format!("{:.0}", acts.finalizers)));
                rows.push(("  deleted without grace", format!("{:.0}", acts.without_grace)));
            }
            None if without => rows.push(("drain-keeper", "not installed".to_owned())),
            None => {}
        }
        rows.push(("budget violations", self.violations.len().to_string()));
        let mut table = String::new();
        for (name, value) in rows {
            let _ = writeln!(table, "  {name:<30} {value:>10}");
        }
        table
    }

    pub fn verdict(&self, without: bool) -> Verdict {
        if without {
            return match &self.upgrade.stuck {
                Some((node, pods)) => Verdict::Promised(format!(
                    "As expected, the upgrade is stuck at {node}, on {}. Run it again without --without.",
                    pods.join(", ")
                )),
                None => Verdict::Broken(vec!["the upgrade should have got stuck, and did not".to_owned()]),
            };
        }
        let mut broken = Vec::new();
        if let Some((node, pods)) = &self.upgrade.stuck {
            broken.push(format!("the upgrade got stuck at {node}, on {}", pods.join(", ")));
        }
        broken.extend(self.violations.iter().map(|violation| format!("budget violated: {violation}")));
        broken.extend(self.leftovers.iter().cloned());
        if let Some(acts) = self.acts {
            let mut must_be = |what: &str, count: f64, at_least: f64| {
                if count < at_least {
                    broken.push(format!("{what}: {count:.0}, expected at least {at_least:.0}"));
                }
            };
            must_be("budgets overridden", acts.overridden, 1.0);
            must_be("finalizers removed", acts.finalizers, 1.0);
            must_be("deleted without grace", acts.without_grace, 1.0);
        }
        if broken.is_empty() {
            Verdict::Promised("Every node is upgraded, no budget was violated, and nothing is left behind.".to_owned())
        } else {
            Verdict::Broken(broken)
        }
    }
}

impl Verdict {
    pub fn is_promised(&self) -> bool {
        matches!(self, Self::Promised(_))
    }

    pub fn text(&self) -> String {
        match self {
            Self::Promised(text) => text.clone(),
            Self::Broken(reasons) => format!("NOT as promised:\n  {}", reasons.join("\n  ")),
        }
    }
}

/// What drain-keeper should have cleaned up and has not: conditions go at once, drain clocks when no flap can follow.
async fn leftovers(client: &Client) -> Result<Vec<String>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let left = || async {
        let mut left = Vec::new();
        for node in nodes.list(&ListParams::default()).await? {
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
    let cleaned_up = wait::until("nodes without leftovers", scenario::CLEAN_WITHIN, || async {
        let left = left().await?;
        anyhow::ensure!(left.is_empty(), "{}", left.join(", "));
        Ok(())
    });
    if cleaned_up.await.is_ok() { Ok(Vec::new()) } else { left().await }
}
