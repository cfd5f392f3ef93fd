//! What came of the demo: who did how much, and whether it is what was promised.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher;
use nodeward_api::ceph_state::CONFIG_MAP;
use nodeward_api::node_drain::Phase;
use nodeward_api::{CephClusterState, NodeDrain, NodeHealthCheck};
use nodeward_testkit::operator::Operator;
use nodeward_testkit::remediator::node_of;

use super::Cast;
use super::environment::Environment;
use super::outcome::Outcome;
use super::scenario::{DIES, MAX_UNHEALTHY_PERCENT, REMEDIATOR, REMEDIATORS, STUCK, STUCK_PODS};
use crate::soak::drains::judge::is_evicted;
use crate::watch::Watched;

/// What the watches have told.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// UIDs of pods that were evicted, by whomever.
    pub evicted: BTreeSet<String>,
    /// Nodes whose drains have waited in drain-lock's queue for another.
    pub queued: BTreeSet<String>,
    /// Nodes that were remediated.
    pub remediations: BTreeSet<String>,
    /// Most nodes that the NodeHealthCheck found unhealthy at a time, of so many.
    pub most_unhealthy: i32,
    pub observed: i32,
    /// How often somebody looked at the singleton, and what was seen where no pod of it was Ready.
    pub looks: usize,
    pub gaps: Vec<String>,
    /// How often ceph-pdb has closed the budgets.
    pub closed: usize,
    is_closed: bool,
}

impl Seen {
    /// How many nodes may be unhealthy: rounded up, as the NodeHealthCheck does.
    fn may_be_unhealthy(&self) -> i32 {
        (self.observed * MAX_UNHEALTHY_PERCENT + 99) / 100
    }

    pub fn look_at_singleton(&mut self, is_ready: &Result<bool>) {
        self.looks += 1;
        match is_ready {
            Ok(true) => {}
            Ok(false) => self.gaps.push(format!("look {}", self.looks)),
            Err(error) => self.gaps.push(format!("{error:#}")),
        }
    }

    fn take_published(&mut self, map: &ConfigMap) {
        let Ok(state) = CephClusterState::read(map) else { return };
        let is_closed = state.disruptions.is_closed();
        self.closed += usize::from(is_closed && !self.is_closed);
        self.is_closed = is_closed;
    }
}

/// What became of Ceph's data.
#[derive(Clone, Debug, Default)]
pub struct Data {
    pub evicted: usize,
    pub unsafe_evictions: Vec<String>,
    pub without_service: Vec<String>,
    pub written: usize,
    pub failed_writes: Vec<String>,
    pub lost: Vec<String>,
}

/// How the same drains end without the operators.
#[derive(Clone, Debug, Default)]
pub struct Stuck {
    /// How often three drains at once were begun, until they waited for each other.
    pub rounds: usize,
    /// How many waits then never end.
    pub wedge: usize,
    /// Pods that are left on the node that does not drain.
    pub left: Vec<String>,
}

/// What came of the demo.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    pub cast: Cast,
    /// Of [`Cast::Nobody`].
    pub stuck: Stuck,
    pub upgraded: usize,
    pub of: usize,
    pub took: Duration,
    /// Evictions that `kubectl drain` was refused.
    pub refused: usize,
    pub forced: Forced,
    pub seen: Seen,
    /// `None` where there was no Ceph.
    pub data: Option<Data>,
    /// Budgets that fell short.
    pub violations: Vec<String>,
    pub left: Vec<String>,
    /// A drain that failed, in its own words.
    pub failed: Option<String>,
}

/// Looks at the cluster from now on; where not all play, at the demo's pods alone.
pub fn watch(env: &Environment, cast: Cast) -> Watched<Seen> {
    let (client, prefix) = (&env.client(), env.prefix.clone());
    let take_pod = move |seen: &mut Seen, pod: Pod| {
        if is_evicted(&pod) && pod.namespace().is_some_and(|namespace| namespace.starts_with(&prefix)) {
            seen.evicted.extend(pod.uid());
        }
    };
    let watched = Watched::new(Seen::default()).follow(Api::all(client.clone()), watcher::Config::default(), take_pod);
    if cast != Cast::All {
        return watched;
    }
    let config = watcher::Config::default;
    let published = config().fields(&format!("metadata.name={CONFIG_MAP}"));
    let remediations = REMEDIATOR.remediation().api(client, Some(REMEDIATORS));
    watched
        .follow(Api::all(client.clone()), config(), |seen, drain: NodeDrain| {
            if waits_for_another(&drain) {
                seen.queued.insert(drain.name_any());
            }
        })
        .follow(remediations, config(), |seen, one: DynamicObject| {
            seen.remediations.insert(node_of(&one));
        })
        .follow(Api::all(client.clone()), config(), |seen, check: NodeHealthCheck| {
            let status = check.status.unwrap_or_default();
            if let (Some(observed), Some(healthy)) = (status.observed_nodes, status.healthy_nodes) {
                seen.most_unhealthy = seen.most_unhealthy.max(observed - healthy);
                seen.observed = observed;
            }
        })
        .follow(Api::all(client.clone()), published, |seen, map: ConfigMap| {
            seen.take_published(&map);
        })
}

/// Whether a drain is in drain-lock's queue for another.
pub fn waits_for_another(drain: &NodeDrain) -> bool {
    let status = drain.status.as_ref();
    status.is_some_and(|status| status.phase == Some(Phase::Queued) && !status.blocked_by.is_empty())
}

/// What drain-keeper did to pods that did not leave by themselves, by its own metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forced {
    /// Pods that a rollout moved.
    pub surged: f64,
    /// Budgets that it overrode.
    pub overridden: f64,
    /// Pods whose finalizers it removed.
    pub removed: f64,
}

impl Forced {
    pub async fn of(operators: &[Operator]) -> Result<Self> {
        let keeper = operators
            .iter()
            .find(|operator| operator.process().name().starts_with("drain-keeper"));
        let metrics = keeper.context("no drain-keeper")?.metrics().await?;
        // The sum of nothing is -0.
        let count = |metric, outcome| metrics.sum(metric, &[("outcome", outcome)]).abs();
        Ok(Self {
            surged: count("nodeward_drain_keeper_surges_total", "SurgeComplete"),
            overridden: count("nodeward_drain_keeper_actions_total", "budget-overridden"),
            removed: count("nodeward_drain_keeper_actions_total", "finalizers-removed"),
        })
    }
}

impl Outcomes {
    pub fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::new(match self.cast {
            Cast::All => {
                "Every node is upgraded, the cart was Ready all the while, every budget held but the one that was overridden by policy, the dead node was remediated and \
                 no other, and nothing is left behind."
            }
            Cast::KeeperAlone => {
                "The node is upgraded, the cart was Ready all the while, every budget held but the one that was overridden by policy, and nothing is left behind."
            }
            Cast::Nobody => {
                "STUCK, as expected: drains wait for each other for ever, and a node does not drain, and nobody says why. With the \
                 operators (without --without) the same drains end."
            }
        });
        let upgraded = format!("{} of {}", self.upgraded, self.of);
        outcome.row("kubectl drain: nodes upgraded", &upgraded);
        outcome.row("  duration", format!("{:.0} s", self.took.as_secs_f32()));
        outcome.row("  pods evicted", self.seen.evicted.len());
        outcome.row("  evictions refused, and tried again", self.refused);
        match self.cast {
            Cast::All => {
                self.queue(&mut outcome);
                self.forced(&mut outcome);
                self.remediated(&mut outcome);
                match &self.data {
                    Some(data) => data.rows(self.seen.closed, &mut outcome),
                    None => outcome.row("ceph-pdb", "left out"),
                }
            }
            Cast::KeeperAlone => self.forced(&mut outcome),
            Cast::Nobody => self.stuck(&mut outcome),
        }
        outcome.must_be_none("budget violations", "budget violated", &self.violations);
        outcome.must_be_none("left behind", "left behind", &self.left);
        if let Some(failure) = &self.failed {
            outcome.broken(format!("a drain failed: {failure}"));
        } else if self.upgraded < self.of && self.cast != Cast::Nobody {
            outcome.broken(format!("{upgraded} nodes were upgraded"));
        }
        outcome
    }

    fn queue(&self, outcome: &mut Outcome) {
        outcome.row("drain-lock: drains that waited their turn", self.seen.queued.len());
        if self.seen.queued.is_empty() {
            outcome.broken("no drain had to wait");
        }
    }

    fn forced(&self, outcome: &mut Outcome) {
        let Forced {
            surged,
            overridden,
            removed,
        } = self.forced;
        outcome.row("drain-keeper: pods moved by a rollout", surged);
        outcome.must_be_none(
            "  looks at which none was Ready",
            "the cart was not Ready",
            &self.seen.gaps,
        );
        outcome.row("  budgets overridden by policy", overridden);
        outcome.row("  pods whose finalizers were removed", removed);
        if surged == 0.0 {
            outcome.broken("no pod was moved by a rollout");
        }
        if self.seen.looks == 0 {
            outcome.broken("nobody looked at the cart");
        }
        if overridden == 0.0 {
            outcome.broken("no budget was overridden");
        }
        if removed == 0.0 {
            outcome.broken("no finalizer was removed");
        }
    }

    fn remediated(&self, outcome: &mut Outcome) {
        let Seen {
            remediations,
            most_unhealthy,
            observed,
            ..
        } = &self.seen;
        outcome.row("health-check: nodes remediated", remediations.len());
        let others: Vec<&String> = remediations.iter().filter(|node| *node != DIES).collect();
        outcome.must_be_none("  of any other node", "remediated", &others);
        let may_be = self.seen.may_be_unhealthy();
        let unhealthy = format!("{most_unhealthy} of {observed}");
        outcome.row(&format!("  unhealthy at once ({may_be} may be)"), unhealthy);
        if *most_unhealthy > may_be {
            outcome.broken(format!("{most_unhealthy} nodes were unhealthy at once"));
        }
        if !remediations.contains(DIES) {
            outcome.broken(format!("{DIES} was not remediated"));
        }
    }

    fn stuck(&self, outcome: &mut Outcome) {
        let Stuck { rounds, wedge, left } = &self.stuck;
        outcome.row("three drains at once: rounds until stuck", rounds);
        outcome.row("  waits that never end", wedge);
        outcome.row(&format!("{STUCK}: pods left"), left.len());
        outcome.row("operators", "left out");
        if *wedge == 0 {
            outcome.broken(format!(
                "three drains at once should have wedged, and did not in {rounds} rounds"
            ));
        }
        for pod in STUCK_PODS {
            if !left.iter().any(|name| name.starts_with(pod)) {
                outcome.broken(format!("{pod}… should have stayed on {STUCK}, and did not"));
            }
        }
    }
}

impl Data {
    fn rows(&self, closed: usize, outcome: &mut Outcome) {
        outcome.row("ceph-pdb: budgets closed, and opened again", closed);
        outcome.row("  OSDs evicted", self.evicted);
        outcome.must_be_none(
            "  while another host's was away",
            "unsafe eviction",
            &self.unsafe_evictions,
        );
        outcome.must_be_none(
            "  placement groups without service",
            "without service",
            &self.without_service,
        );
        outcome.row("  objects written", self.written);
        outcome.must_be_none("  writes that failed", "write failed", &self.failed_writes);
        outcome.must_be_none("  objects lost", "object lost", &self.lost);
        if closed == 0 {
            outcome.broken("ceph-pdb has closed no budget");
        }
        if self.written == 0 {
            outcome.broken("no client has written anything");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORCED: Forced = Forced {
        surged: 1.0,
        overridden: 1.0,
        removed: 1.0,
    };

    fn promised() -> Outcomes {
        Outcomes {
            upgraded: 9,
            of: 9,
            forced: FORCED,
            seen: Seen {
                looks: 20,
                queued: ["db-2".to_owned()].into(),
                remediations: [DIES.to_owned()].into(),
                most_unhealthy: 1,
                observed: 10,
                closed: 3,
                ..Seen::default()
            },
            data: Some(Data {
                evicted: 3,
                written: 100,
                ..Data::default()
            }),
            ..Outcomes::default()
        }
    }

    fn by_keeper_alone() -> Outcomes {
        Outcomes {
            cast: Cast::KeeperAlone,
            upgraded: 1,
            of: 1,
            forced: FORCED,
            seen: Seen {
                looks: 20,
                ..Seen::default()
            },
            ..Outcomes::default()
        }
    }

    fn stuck() -> Outcomes {
        Outcomes {
            cast: Cast::Nobody,
            of: 4,
            stuck: Stuck {
                rounds: 1,
                wedge: 2,
                left: STUCK_PODS.map(|pod| format!("{pod}0")).to_vec(),
            },
            ..Outcomes::default()
        }
    }

    fn data(outcomes: &mut Outcomes) -> &mut Data {
        outcomes.data.as_mut().unwrap()
    }

    #[test]
    fn expected_figures_keep_the_promise() {
        for outcomes in [promised(), by_keeper_alone(), stuck()] {
            assert!(outcomes.outcome().is_promised(), "{}", outcomes.outcome().verdict());
        }
        let without_ceph = Outcomes {
            data: None,
            ..promised()
        };
        assert!(without_ceph.outcome().is_promised());
    }

    #[rstest::rstest]
    #[case::unfinished(|o: &mut Outcomes| o.upgraded = 8, "8 of 9 nodes")]
    #[case::failed(|o: &mut Outcomes| o.failed = Some("no".to_owned()), "a drain failed: no")]
    #[case::violation(|o: &mut Outcomes| o.violations.push("shop/web".to_owned()), "budget violated: shop/web")]
    #[case::left(|o: &mut Outcomes| o.left.push("a claim of db-1".to_owned()), "left behind: a claim of db-1")]
    #[case::no_queue(|o: &mut Outcomes| o.seen.queued.clear(), "no drain had to wait")]
    #[case::no_override(|o: &mut Outcomes| o.forced.overridden = 0.0, "no budget was overridden")]
    #[case::no_finalizer(|o: &mut Outcomes| o.forced.removed = 0.0, "no finalizer")]
    #[case::no_surge(|o: &mut Outcomes| o.forced.surged = 0.0, "no pod was moved by a rollout")]
    #[case::gap(|o: &mut Outcomes| o.seen.look_at_singleton(&Ok(false)), "the cart was not Ready: look 21")]
    #[case::unseen(|o: &mut Outcomes| o.seen.looks = 0, "nobody looked")]
    #[case::not_remediated(|o: &mut Outcomes| o.seen.remediations.clear(), "app-3 was not remediated")]
    #[case::other_remediated(|o: &mut Outcomes| o.seen.remediations.extend(["app-2".to_owned()]), "remediated: app-2")]
    #[case::too_many_unhealthy(|o: &mut Outcomes| o.seen.most_unhealthy = 5, "5 nodes were unhealthy")]
    #[case::never_closed(|o: &mut Outcomes| o.seen.closed = 0, "closed no budget")]
    #[case::unsafe_eviction(|o: &mut Outcomes| data(o).unsafe_evictions.push("OSD 1".to_owned()), "unsafe eviction: OSD 1")]
    #[case::without_service(|o: &mut Outcomes| data(o).without_service.push("1.0".to_owned()), "without service: 1.0")]
    #[case::failed_write(|o: &mut Outcomes| data(o).failed_writes.push("late".to_owned()), "write failed: late")]
    #[case::lost(|o: &mut Outcomes| data(o).lost.push("object-7".to_owned()), "object lost: object-7")]
    #[case::no_writes(|o: &mut Outcomes| data(o).written = 0, "no client has written")]
    fn unexpected_figures_break_the_promise(#[case] spoil: fn(&mut Outcomes), #[case] says: &str) {
        let mut outcomes = promised();
        spoil(&mut outcomes);
        let outcome = outcomes.outcome();
        assert!(outcome.is_broken_because(says), "{}", outcome.verdict());
    }
    #[rstest::rstest]
    #[case::unfinished(|o: &mut Outcomes| o.upgraded = 0, by_keeper_alone, "0 of 1 nodes")]
    #[case::no_override(|o: &mut Outcomes| o.forced.overridden = 0.0, by_keeper_alone, "no budget was overridden")]
    #[case::left(|o: &mut Outcomes| o.left.push("app-1: annotation".to_owned()), by_keeper_alone, "left behind: app-1")]
    #[case::never_wedged(|o: &mut Outcomes| o.stuck.wedge = 0, stuck, "did not in 1 rounds")]
    #[case::drained(|o: &mut Outcomes| o.stuck.left.clear(), stuck, "finance/ledger-… should have stayed on app-1")]
    #[case::violation(|o: &mut Outcomes| o.violations.push("data/kafka".to_owned()), stuck, "budget violated: data/kafka")]
    #[case::failed(|o: &mut Outcomes| o.failed = Some("no".to_owned()), stuck, "a drain failed: no")]
    fn others_break_promises_of_their_own(
        #[case] spoil: fn(&mut Outcomes),
        #[case] of: fn() -> Outcomes,
        #[case] says: &str,
    ) {
        let mut outcomes = of();
        spoil(&mut outcomes);
        assert!(
            outcomes.outcome().is_broken_because(says),
            "{}",
            outcomes.outcome().verdict()
        );
    }
}
