//! The eviction webhook: an eviction waits until the claim of its pod's node is granted.
