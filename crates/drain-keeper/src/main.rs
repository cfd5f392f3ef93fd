//! drain-keeper.
fn main() {}
