//! The decision. Pure.

pub mod budget_steps;
pub mod daemon_budgets;
pub mod noout;
pub mod osd_disruptions;
