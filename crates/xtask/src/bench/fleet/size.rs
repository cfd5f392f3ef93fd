//! How large the measured cluster is, and which of its nodes do what.

use std::ops::Range;

use anyhow::{Result, ensure};
use indicatif::HumanCount;

/// Nodes that are drained at once.
pub const DRAINING: usize = 100;

/// Nodes that stay cordoned throughout, with waits that do not end here.
pub const RESTING: usize = 5;

/// Pods of a node, where only the number of nodes is asked for.
pub const PODS_PER_NODE: usize = 30;

/// Pods of a drained node that have a part of their own; see [`super::pods::Part`].
pub const PARTS: usize = 8;

/// A cluster's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub nodes: usize,
    pub pods: usize,
}

impl Size {
    /// # Errors
    /// When it has no room for the nodes that are drained, or for what blocks them.
    pub fn new(nodes: usize, pods: usize) -> Result<Self> {
        let least = DRAINING + RESTING;
        ensure!(nodes >= least, "{nodes} nodes: at least {least} are needed");
        let size = Self { nodes, pods };
        ensure!(
            size.pods_per_node() > PARTS,
            "{pods} pods on {nodes} nodes: more than {PARTS} a node are needed"
        );
        Ok(size)
    }

    pub fn pods_per_node(self) -> usize {
        self.pods / self.nodes
    }

    /// As `5,000/150,000`.
    pub fn title(self) -> String {
        format!("{}/{}", thousands(self.nodes), thousands(self.pods))
    }
}

/// The nodes that are drained.
pub fn draining() -> Range<usize> {
    0..DRAINING
}

/// The nodes that stay cordoned.
pub fn resting() -> Range<usize> {
    DRAINING..DRAINING + RESTING
}

/// The nodes whose pods kwok plays: only where something happens.
pub fn played() -> Range<usize> {
    0..DRAINING + RESTING
}

pub fn node_name(node: usize) -> String {
    format!("worker-{node:05}.bench.example.com")
}

/// A number as people read it.
pub fn thousands(number: usize) -> String {
    HumanCount(number as u64).to_string()
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn too_small_sizes_are_refused() {
        assert!(Size::new(104, 10_000).is_err());
        assert!(Size::new(200, 1_600).is_err());
        assert!(Size::new(105, 945).is_ok());
    }
}
