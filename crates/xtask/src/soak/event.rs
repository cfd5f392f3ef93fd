//! What happens next, from a seed.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use nodeward_testkit::proxy::Fault;

/// What happens to the cluster or to an operator. Nodes are named by their number.
#[derive(Clone, Debug)]
pub enum Event {
    /// Its heartbeats stop.
    Silent(usize),
    /// Its kubelet says that it is not ready.
    NotReady(usize),
    /// It is well again, by itself.
    Recovers(usize),
    /// It is not ready for so long.
    Flaps(usize, Duration),
    /// These stop sending heartbeats together.
    MassFailure(Vec<usize>),
    /// It leaves the selection, or comes back to it.
    Relabelled(usize),
    /// The label that excludes it is set, or taken away.
    Excluded(usize),
    /// It is deleted, and made again so much later.
    Deleted(usize, Duration),
    /// The specification in a template changes.
    TemplateEdited(usize),
    /// A template is deleted, and made again so much later.
    TemplateDeleted(usize, Duration),
    /// A NodeHealthCheck is paused for so long.
    Paused(usize, Duration),
    /// So many of the next writes of this replica fail in this way.
    WritesFail(usize, Fault, u32),
    /// The watches of this replica break.
    WatchesBreak(usize),
    /// This replica is killed, and started again.
    Killed(usize),
}

pub const WRITE_FAULTS: [Fault; 6] = [
    Fault::Status(500, "InternalError"),
    Fault::Status(409, "Conflict"),
    Fault::TooManyRequests { retry_after: Some(1) },
    Fault::LostReply,
    Fault::BrokenConnection,
    Fault::Delay(Duration::from_millis(1500)),
];

/// Draws the events.
pub struct Dice {
    rng: Rng,
    nodes: usize,
}

impl Dice {
    pub fn new(seed: u64, nodes: usize) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            nodes,
        }
    }

    /// Until the next event.
    pub fn pause(&mut self) -> Duration {
        Duration::from_millis(self.rng.u64(50..900))
    }

    pub fn next(&mut self) -> Event {
        let node = self.rng.usize(..self.nodes);
        match self.rng.u32(..100) {
            0..25 => Event::Silent(node),
            25..40 => Event::NotReady(node),
            40..50 => Event::Recovers(node),
            50..60 => Event::Flaps(node, self.seconds(1..5)),
            60..62 => Event::MassFailure(self.many()),
            62..67 => Event::Relabelled(node),
            67..71 => Event::Excluded(node),
            71..77 => Event::Deleted(node, self.seconds(4..15)),
            77..80 => Event::TemplateEdited(self.rng.usize(..super::cluster::TEMPLATES)),
            80..82 => Event::TemplateDeleted(self.rng.usize(..super::cluster::TEMPLATES), self.seconds(2..8)),
            82..84 => Event::Paused(self.rng.usize(..super::cluster::CHECKS), self.seconds(4..12)),
            84..93 => Event::WritesFail(
                self.replica(),
                self.rng.choice(WRITE_FAULTS).unwrap_or(Fault::LostReply),
                self.rng.u32(1..8),
            ),
            93..96 => Event::WatchesBreak(self.replica()),
            _ => Event::Killed(self.replica()),
        }
    }

    fn seconds(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_secs(self.rng.u64(range))
    }

    fn replica(&mut self) -> usize {
        self.rng.usize(..super::replicas::REPLICAS)
    }

    /// A third of all, in a row: more than any threshold allows.
    fn many(&mut self) -> Vec<usize> {
        let first = self.rng.usize(..self.nodes);
        (first..first + self.nodes / 3).map(|node| node % self.nodes).collect()
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(node) => write!(f, "node {node} falls silent"),
            Self::NotReady(node) => write!(f, "node {node} is not ready"),
            Self::Recovers(node) => write!(f, "node {node} recovers"),
            Self::Flaps(node, time) => write!(f, "node {node} is not ready for {time:?}"),
            Self::MassFailure(nodes) => write!(f, "{} nodes fall silent, from {} on", nodes.len(), nodes[0]),
            Self::Relabelled(node) => write!(f, "node {node} is relabelled"),
            Self::Excluded(node) => write!(f, "the exclusion of node {node} changes"),
            Self::Deleted(node, time) => write!(f, "node {node} is deleted for {time:?}"),
            Self::TemplateEdited(template) => write!(f, "template {template} is edited"),
            Self::TemplateDeleted(template, time) => write!(f, "template {template} is deleted for {time:?}"),
            Self::Paused(check, time) => write!(f, "NodeHealthCheck {check} is paused for {time:?}"),
            Self::WritesFail(replica, fault, count) => {
                write!(f, "the next {count} writes of replica {replica} fail: {fault:?}")
            }
            Self::WatchesBreak(replica) => write!(f, "the watches of replica {replica} break"),
            Self::Killed(replica) => write!(f, "replica {replica} is killed"),
        }
    }
}
