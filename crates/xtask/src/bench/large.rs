//! A cluster of thousands of nodes: what it is made of.

pub mod fill;
pub mod load;
pub mod nodes;
pub mod pods;
pub mod size;
