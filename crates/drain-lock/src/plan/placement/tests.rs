//! Tables for every rule.
