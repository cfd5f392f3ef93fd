//! What is drained: nodes, apps and budgets, made from a few committed numbers and a seed, the same each time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

const COMMITTED: [&str; 5] = [
    include_str!("../../../topologies/a.yaml"),
    include_str!("../../../topologies/b.yaml"),
    include_str!("../../../topologies/c.yaml"),
    include_str!("../../../topologies/d.yaml"),
    include_str!("../../../topologies/e.yaml"),
];

/// A regime: what it is like, whatever its size.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Regime {
    #[serde(rename = "regime")]
    pub letter: String,
    seed: u64,
    reboot_seconds: f64,
    spare_nodes_per_drained: f64,
    /// How many pods a node has room for; absent: for those that it has at first.
    #[serde(default)]
    room_of_node: Option<u32>,
    apps: Vec<Family>,
}

/// Apps of one kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Family {
    name: String,
    per_drained_node: f64,
    replicas: usize,
    max_unavailable: usize,
    ready_seconds: f64,
    /// How many of the replicas.
    #[serde(default)]
    pinned: usize,
}

/// What is put onto the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    pub regime: String,
    pub nodes: Vec<Node>,
    pub apps: Vec<App>,
    /// How long a node is away while it reboots.
    pub away: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub is_drained: bool,
    /// How many pods it has room for.
    pub room: u32,
}

/// An app with a budget of the same name, over its pinned pods and the others.
#[derive(Clone, Debug, PartialEq)]
pub struct App {
    pub name: String,
    /// Where its pods are at first, one on each.
    pub nodes: Vec<String>,
    /// The pods on the first so many of its nodes run nowhere else.
    pub pinned: usize,
    pub max_unavailable: usize,
    /// How long a pod takes to get Ready.
    pub time_to_ready: Duration,
}

impl Node {
    fn new(name: &str, is_drained: bool, room: u32) -> Self {
        Self {
            name: name.to_owned(),
            is_drained,
            room,
        }
    }
}

impl App {
    /// One pod on each of these nodes, one of which may be down, Ready after a second.
    fn small(name: &str, nodes: &[String], is_pinned: bool) -> Self {
        Self {
            name: name.to_owned(),
            nodes: nodes.to_vec(),
            pinned: if is_pinned { nodes.len() } else { 0 },
            max_unavailable: 1,
            time_to_ready: Duration::from_secs(1),
        }
    }
}

pub fn regimes() -> Result<Vec<Regime>> {
    let parse = |text: &&str| serde_yaml::from_str(text).context("a committed topology");
    COMMITTED.iter().map(parse).collect()
}

impl Regime {
    /// With so many nodes that are drained at once.
    pub fn of(&self, drained: usize) -> Result<Topology> {
        ensure!(drained > 0, "no node to drain");
        let mut dice = Dice(self.seed);
        let letter = self.letter.to_lowercase();
        let drained_nodes: Vec<String> = (0..drained).map(|n| format!("{letter}{drained}-{n:02}")).collect();
        let spare = times(self.spare_nodes_per_drained, drained);
        let mut apps = Vec::new();
        for family in &self.apps {
            for number in 0..times(family.per_drained_node, drained).max(1) {
                let mut nodes = dice.choose(&drained_nodes, family.replicas);
                let pinned = family.pinned.min(nodes.len());
                // Not all pinned pods are on the nodes that come first.
                let first = if pinned < nodes.len() { number % nodes.len() } else { 0 };
                nodes.rotate_left(first);
                apps.push(App {
                    name: format!("{}-{number}", family.name),
                    nodes,
                    pinned,
                    max_unavailable: family.max_unavailable,
                    time_to_ready: Duration::from_secs_f64(family.ready_seconds),
                });
            }
        }
        let spare_nodes = (0..spare).map(|n| format!("{letter}{drained}-spare-{n:02}"));
        let all = drained_nodes.into_iter().map(|name| (name, true));
        let nodes = all
            .chain(spare_nodes.map(|name| (name, false)))
            .map(|(name, is_drained)| {
                let room = self.room_of_node.unwrap_or_else(|| pods_at_first(&apps, &name));
                Node::new(&name, is_drained, room)
            });
        Ok(Topology {
            regime: self.letter.clone(),
            nodes: nodes.collect(),
            apps,
            away: Duration::from_secs_f64(self.reboot_seconds),
        })
    }
}

fn pods_at_first(apps: &[App], node: &str) -> u32 {
    let pods = apps.iter().filter(|app| app.nodes.iter().any(|name| name == node));
    u32::try_from(pods.count()).unwrap_or(u32::MAX)
}

impl Topology {
    /// One node with one pod, which waits for it, or finds room on the other.
    pub fn of_one_pod(is_pinned: bool) -> Self {
        let drained = vec!["one-drained".to_owned()];
        Self {
            regime: "one pod".to_owned(),
            apps: vec![App::small("one", &drained, is_pinned)],
            away: Duration::from_secs(2),
            nodes: vec![Node::new("one-drained", true, 1), Node::new("one-spare", false, 1)],
        }
    }

    /// Three nodes and two sets of three members that can run on no others, one on each: the smallest case in which
    /// drains at once wait for each other for ever.
    pub fn of_three_nodes() -> Self {
        let names = ["three-1", "three-2", "three-3"].map(str::to_owned);
        Self {
            regime: "three nodes".to_owned(),
            apps: ["kafka", "mongo"].map(|name| App::small(name, &names, true)).into(),
            away: Duration::from_secs(2),
            nodes: names.iter().map(|name| Node::new(name, true, 9)).collect(),
        }
    }

    /// The nodes that are drained.
    pub fn drained(&self) -> Vec<String> {
        let drained = self.nodes.iter().filter(|node| node.is_drained);
        drained.map(|node| node.name.clone()).collect()
    }

    /// How many pods each app has, by its name.
    pub fn replicas(&self) -> BTreeMap<String, usize> {
        let apps = self.apps.iter();
        apps.map(|app| (app.name.clone(), app.nodes.len())).collect()
    }

    /// How many pods there are.
    pub fn pods(&self) -> usize {
        self.apps.iter().map(|app| app.nodes.len()).sum()
    }

    /// How many pods other nodes than the drained have room for.
    pub fn spare_room(&self) -> usize {
        let spare = self.nodes.iter().filter(|node| !node.is_drained);
        spare.map(|node| node.room as usize).sum()
    }

    /// How many pods of this app stay down until a node is back.
    pub fn held(&self, app: &App) -> usize {
        if self.spare_room() == 0 {
            app.nodes.len()
        } else {
            app.pinned
        }
    }
}

/// Rounded up.
fn times(ratio: f64, count: usize) -> usize {
    // Both are small and not negative.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    let product = (ratio * count as f64).ceil() as usize;
    product
}

/// Numbers that look random and are the same for a seed: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// So many different ones, or all if there are fewer; in their own order.
    fn choose(&mut self, from: &[String], count: usize) -> Vec<String> {
        let mut chosen = BTreeSet::new();
        while chosen.len() < count.min(from.len()) {
            let of = u64::try_from(from.len()).unwrap_or(u64::MAX);
            chosen.insert(usize::try_from(self.next() % of).unwrap_or_default());
        }
        chosen.into_iter().map(|index| from[index].clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regime(letter: &str) -> Regime {
        let found = regimes().unwrap().into_iter().find(|regime| regime.letter == letter);
        found.unwrap()
    }

    #[rstest::rstest]
    fn seed_decides_the_topology(#[values("A", "B", "C", "D", "E")] letter: &str) {
        let same = regime(letter);
        let other = Regime {
            seed: same.seed + 1,
            ..same.clone()
        };
        assert_eq!(same.of(12).unwrap(), same.of(12).unwrap());
        assert_ne!(same.of(12).unwrap().apps, other.of(12).unwrap().apps);
    }

    #[rstest::rstest]
    fn nodes_have_room_for_their_pods(
        #[values("A", "B", "C", "D", "E")] letter: &str,
        #[values(1, 2, 6, 12, 50)] count: usize,
    ) {
        let topology = regime(letter).of(count).unwrap();
        let drained: BTreeSet<String> = topology.drained().into_iter().collect();
        assert_eq!(drained.len(), count);
        for app in &topology.apps {
            let nodes: BTreeSet<&String> = app.nodes.iter().collect();
            assert!(!nodes.is_empty() && nodes.len() == app.nodes.len(), "{app:?}");
            assert!(app.nodes.iter().all(|node| drained.contains(node)), "{app:?}");
            assert!(app.max_unavailable < app.nodes.len() || count < 3, "{app:?}");
        }
        for node in &topology.nodes {
            assert!(pods_at_first(&topology.apps, &node.name) <= node.room, "{node:?}");
        }
    }

    #[rstest::rstest]
    #[case::a("A", true, false)]
    #[case::b("B", false, false)]
    #[case::c("C", false, true)]
    #[case::d("D", true, true)]
    #[case::e("E", true, true)]
    fn regimes_differ_in_room_and_pinning(#[case] letter: &str, #[case] has_room: bool, #[case] has_pinned: bool) {
        for count in [2, 6, 12, 50] {
            let topology = regime(letter).of(count).unwrap();
            let movable: usize = topology.apps.iter().map(|app| app.nodes.len() - app.pinned).sum();
            assert_eq!(topology.apps.iter().any(|app| app.pinned > 0), has_pinned);
            assert_eq!(topology.spare_room() > 0, has_room);
            assert!(
                !has_room || topology.spare_room() >= movable,
                "{count}: no room for {movable}"
            );
        }
    }
}
