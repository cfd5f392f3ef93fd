//! Report: what a plan says, as people and monitoring see it.
