//! What a run begins with: nodes, applications with their budgets, and who drains what.

use std::fmt;

use fastrand::Rng;

use crate::clock::{Millis, SECOND};

/// Nodes, applications, drains.
#[derive(Debug, Clone)]
pub struct Topology {
    /// How many pods each node takes; the nodes are `n0`, `n1`, …
    pub slots: Vec<usize>,
    pub apps: Vec<App>,
    pub drains: Vec<Drain>,
}

/// An application, and the budget over all of its pods, if it has one.
#[derive(Debug, Clone)]
pub struct App {
    pub budget: Option<MaxUnavailable>,
    pub members: Vec<Member>,
    /// Whether pods that fit elsewhere are a ReplicaSet's, with names of their own, and not the StatefulSet's.
    pub replica_set: bool,
    /// From its binding to a pod's being Ready.
    pub starts_within: Millis,
}

/// `spec.maxUnavailable` of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxUnavailable {
    Pods(i32),
    Percent(i32),
}

/// A pod that is there from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    pub node: usize,
    /// Whether its volume is on that node, so that no other can run it.
    pub is_pinned: bool,
    /// Whether it has opted out: drainers leave it on the node, which goes down with it.
    pub stays: bool,
}

/// A node that is drained, and by whom.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    pub node: usize,
    pub drainer: Drainer,
    /// When its drainer starts.
    pub starts: Millis,
    /// How often it is drained.
    pub rounds: u32,
    /// After how long a foreign drainer gives up, to begin anew later (`kubectl drain --timeout`).
    pub gives_up: Option<Millis>,
}

/// Who empties the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drainer {
    /// A program that cordons the node and evicts its pods in this order.
    Foreign(Order),
    /// drain-lock, by a NodeDrain.
    Own,
    /// Nobody: the node is only cordoned, and later uncordoned, and a tenant evicts a pod of his from it.
    Nobody,
}

/// In which order a foreign drainer asks for pods: the next only once the one before is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// All at once (kubectl, MCO).
    Parallel,
    /// Those first that stay down (ordered groups, a pod selector).
    HeldFirst,
    MovableFirst,
}

/// What is drawn: see [`Topology::draw`].
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub nodes: usize,
    pub apps: usize,
    /// Nodes with pods of an application.
    pub spread: usize,
    /// Of a hundred pods so many fit elsewhere.
    pub movable: u32,
    /// Of a hundred pods so many stay.
    pub staying: u32,
    /// `maxUnavailable` at most; now and then it is a percentage.
    pub cap: i32,
    /// Movable pods on each of these nodes.
    pub per_node: usize,
    /// Free places on all nodes together; `None`: a further node with room for all.
    pub room: Option<usize>,
    /// Pods without a budget on each node.
    pub unbudgeted: usize,
    pub rounds: u32,
}

impl Topology {
    /// A topology of this shape, all of whose nodes are drained.
    pub fn draw(shape: Shape, drainers: &[Drainer], rng: &mut Rng) -> Self {
        let mut apps = Vec::new();
        for _ in 0..shape.apps {
            let mut nodes: Vec<usize> = (0..shape.nodes).collect();
            rng.shuffle(&mut nodes);
            let mut members = Vec::new();
            for &node in nodes.iter().take(shape.spread) {
                let is_pinned = rng.u32(0..100) >= shape.movable;
                let stays = shape.staying > 0 && rng.u32(0..100) < shape.staying;
                let pods = if is_pinned || stays { 1 } else { shape.per_node };
                let member = Member { node, is_pinned, stays };
                members.extend(std::iter::repeat_n(member, pods));
            }
            if rng.u32(0..10) < 3 {
                let node = rng.usize(0..shape.nodes);
                members.push(Member::movable(node));
            }
            let budget = if rng.u32(0..6) == 0 {
                MaxUnavailable::Percent(rng.i32(10..=50))
            } else {
                MaxUnavailable::Pods(rng.i32(1..=shape.cap))
            };
            apps.push(App::new(Some(budget), members, rng));
        }
        for node in 0..shape.nodes {
            let loose = Member::movable(node);
            apps.extend((0..shape.unbudgeted).map(|_| App::new(None, vec![loose], rng)));
        }
        let pods_on = |node| {
            apps.iter()
                .flat_map(|app| &app.members)
                .filter(|member| member.node == node)
                .count()
        };
        let mut slots: Vec<usize> = (0..shape.nodes).map(pods_on).collect();
        match shape.room {
            Some(room) => (0..room).for_each(|_| slots[rng.usize(0..shape.nodes)] += 1),
            None => slots.push(1_000),
        }
        let drains = (0..shape.nodes).map(|node| Drain {
            node,
            drainer: drainers[rng.usize(0..drainers.len())],
            starts: rng.i64(0..3 * SECOND),
            rounds: shape.rounds,
            gives_up: None,
        });
        let drains = drains.collect();
        Self { slots, apps, drains }
    }

    /// The same with one thing less, for each thing that could be left out: how a failure is told on few nodes.
    pub fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for index in 0..self.drains.len() {
            let mut less = self.clone();
            less.drains.remove(index);
            all.push(less);
        }
        for index in 0..self.apps.len() {
            let mut less = self.clone();
            less.apps.remove(index);
            all.push(less);
        }
        for (app, member) in self
            .apps
            .iter()
            .enumerate()
            .flat_map(|(app, of)| (0..of.members.len()).map(move |m| (app, m)))
        {
            let mut less = self.clone();
            less.apps[app].members.remove(member);
            all.push(less);
        }
        all
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self
            .slots
            .iter()
            .enumerate()
            .map(|(node, slots)| format!("n{node} takes {slots}"))
            .collect();
        writeln!(f, "{} pods", places.join(", "))?;
        for (index, app) in self.apps.iter().enumerate() {
            let pods = app.members.iter().enumerate().map(|(ordinal, member)| {
                let kind = match (member.stays, member.is_pinned) {
                    (true, _) => "staying",
                    (false, true) => "held",
                    (false, false) => "movable",
                };
                format!("a{index}-{ordinal} {kind} on n{}", member.node)
            });
            let pods: Vec<String> = pods.collect();
            let most = match app.budget {
                None => "no budget".to_owned(),
                Some(MaxUnavailable::Pods(pods)) => format!("at most {pods} unavailable"),
                Some(MaxUnavailable::Percent(share)) => format!("at most {share} % unavailable"),
            };
            writeln!(f, "a{index}, {most}: {}", pods.join(", "))?;
        }
        for drain in &self.drains {
            let (node, by, rounds) = (drain.node, drain.drainer, drain.rounds);
            writeln!(
                f,
                "n{node} is drained by {by:?} from {} ms on, {rounds} times",
                drain.starts
            )?;
        }
        Ok(())
    }
}

impl Member {
    pub fn movable(node: usize) -> Self {
        Self {
            node,
            is_pinned: false,
            stays: false,
        }
    }

    pub fn pinned(node: usize) -> Self {
        Self {
            is_pinned: true,
            ..Self::movable(node)
        }
    }

    pub fn staying(node: usize) -> Self {
        Self {
            stays: true,
            ..Self::movable(node)
        }
    }
}

impl App {
    pub fn new(budget: Option<MaxUnavailable>, members: Vec<Member>, rng: &mut Rng) -> Self {
        Self {
            budget,
            members,
            replica_set: rng.bool(),
            starts_within: rng.i64(8 * SECOND..18 * SECOND),
        }
    }
}
