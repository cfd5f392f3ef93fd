//! Execute: carries out a plan's actions, each on its own with its own preconditions.
