//! What happens next to drains, applications and their operators, from a seed.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use nodeward_testkit::proxy::Fault;

use super::applications::{Application, BUSY, RETAINING};
use crate::soak::event::WRITE_FAULTS;
use crate::soak::replicas::REPLICAS;

/// Who drains a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drainer {
    /// `kubectl drain`.
    Kubectl,
    /// drain-lock, for a NodeDrain.
    NodeDrain,
}

/// Nodes, hosts of Ceph, OSDs, operators and replicas are named by their number.
#[derive(Clone, Debug)]
pub enum Event {
    /// These nodes are drained together, rebooted and uncordoned, each by itself.
    Upgrade(Vec<usize>, Drainer),
    /// The same with a host of Ceph.
    HostUpgrade(usize, Drainer),
    /// Somebody evicts an OSD.
    OsdEvicted(usize),
    /// A node is cordoned for so long, and nobody drains it but drain-keeper.
    Cordoned(usize, Duration),
    /// The owner of an application holds its budget for so long.
    Held(String, Duration),
    /// An application is scaled.
    Scaled(String, u32),
    /// So many of the next writes of an operator's replica fail in this way.
    WritesFail(usize, usize, Fault, u32),
    /// The watches of an operator's replica break.
    WatchesBreak(usize, usize),
    /// A replica is killed, and started again.
    Killed(usize, usize),
    /// The same with the one that leads.
    LeaderKilled(usize),
}

/// Draws the events.
pub struct Dice {
    rng: Rng,
    applications: Vec<Application>,
    operators: usize,
    hosts: usize,
}

impl Dice {
    pub fn new(seed: u64, applications: Vec<Application>, operators: usize, hosts: usize) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            applications,
            operators,
            hosts,
        }
    }

    pub fn next(&mut self) -> Event {
        let drainer = self.drainer();
        let operator = self.rng.usize(..self.operators);
        let replica = self.rng.usize(..REPLICAS);
        match self.rng.u32(..100) {
            0..25 => Event::Upgrade(self.nodes(), drainer),
            25..30 => Event::Upgrade(vec![self.rng.usize(RETAINING)], Drainer::NodeDrain),
            30..36 if self.hosts > 0 => Event::HostUpgrade(self.rng.usize(..self.hosts), drainer),
            36..44 if self.hosts > 0 => Event::OsdEvicted(self.rng.usize(..self.hosts)),
            30..54 => Event::Cordoned(self.rng.usize(..BUSY), self.seconds(15..25)),
            54..64 => Event::Held(self.application(|_| true), self.seconds(5..15)),
            64..74 => Event::Scaled(self.application(Application::is_scaled), self.rng.u32(3..9)),
            74..86 => {
                let fault = self.rng.choice(WRITE_FAULTS).unwrap_or(Fault::LostReply);
                Event::WritesFail(operator, replica, fault, self.rng.u32(1..8))
            }
            86..91 => Event::WatchesBreak(operator, replica),
            91..96 => Event::Killed(operator, replica),
            _ => Event::LeaderKilled(operator),
        }
    }

    fn drainer(&mut self) -> Drainer {
        if self.rng.bool() {
            Drainer::Kubectl
        } else {
            Drainer::NodeDrain
        }
    }

    /// Several at once.
    fn nodes(&mut self) -> Vec<usize> {
        let count = self.rng.usize(1..5);
        self.rng.choose_multiple(0..BUSY, count)
    }

    fn application(&mut self, is_meant: impl Fn(&Application) -> bool) -> String {
        let meant: Vec<&Application> = self.applications.iter().filter(|app| is_meant(app)).collect();
        meant[self.rng.usize(..meant.len())].name.clone()
    }

    fn seconds(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_secs(self.rng.u64(range))
    }
}

impl fmt::Display for Drainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kubectl => "kubectl drain",
            Self::NodeDrain => "a NodeDrain",
        })
    }
}

/// What operators are called, by their number.
const OPERATORS: [&str; 3] = ["drain-keeper", "drain-lock", "ceph-pdb"];

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upgrade(nodes, by) => write!(f, "nodes {nodes:?} are upgraded at once, by {by}"),
            Self::HostUpgrade(host, by) => write!(f, "Ceph's host {host} is upgraded, by {by}"),
            Self::OsdEvicted(osd) => write!(f, "somebody evicts OSD {osd}"),
            Self::Cordoned(node, time) => write!(f, "node {node} is cordoned for {time:?}"),
            Self::Held(app, time) => write!(f, "the owner of {app} holds its budget for {time:?}"),
            Self::Scaled(app, replicas) => write!(f, "{app} is scaled to {replicas}"),
            Self::WritesFail(operator, replica, fault, count) => {
                let operator = OPERATORS[*operator];
                write!(
                    f,
                    "the next {count} writes of {operator}'s replica {replica} fail: {fault:?}"
                )
            }
            Self::WatchesBreak(operator, replica) => {
                write!(f, "the watches of {}'s replica {replica} break", OPERATORS[*operator])
            }
            Self::Killed(operator, replica) => write!(f, "{}'s replica {replica} is killed", OPERATORS[*operator]),
            Self::LeaderKilled(operator) => write!(f, "{}'s leader is killed", OPERATORS[*operator]),
        }
    }
}
