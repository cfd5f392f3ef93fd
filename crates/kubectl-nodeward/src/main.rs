//! The plugin's binary.

fn main() {}
