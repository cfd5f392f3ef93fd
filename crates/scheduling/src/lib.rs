//! Where pods can go, read as the Kubernetes scheduler reads it: requests, selectors, affinity, taints, volumes, ports of
//! the host, anti-affinity, spreading. No I/O, no clock, no async runtime, no Kubernetes client.
//!
//! Two questions are answered of a [`SchedulingView`]: can this pod be placed ([`Placement::place`]), and do all that have to
//! move find room together once a node is cordoned ([`Cordons::cordon_if_room`]).

mod cordons;
mod neighbours;
mod node;
mod placement;
mod pod;
mod quantity;
pub mod requirements;
mod resources;
#[cfg(test)]
mod tests;
mod view;

pub use cordons::Cordons;
pub use neighbours::BoundPods;
pub use node::{NodeFacts, NodeProjector};
pub use placement::{Placement, PlacementError, ReasonCounts, UnschedulableReason};
pub use pod::{PodFacts, PodProjector};
pub use requirements::{NodeAffinity, Requirements};
pub use resources::Resources;
pub use view::{NodeCapacity, NodeUsage, SchedulingView};
