//! Whether a pod would find another node.
