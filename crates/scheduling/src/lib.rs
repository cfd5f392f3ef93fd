//! Where pods can go, read as the Kubernetes scheduler reads it: requests, selectors, affinity, taints, volumes, ports of
//! the host, anti-affinity, spreading. No I/O, no clock, no async runtime, no Kubernetes client.
//!
//! Two questions are answered of a [`SchedulingView`]: can this pod be placed ([`Placement::place`]), and which pod would
//! a cordon leave without any node that takes it ([`Cordons::stranded_by`]).

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
