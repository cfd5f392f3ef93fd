//! drain-keeper.
