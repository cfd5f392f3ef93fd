//! The world against objects of every kind.
