//! What decisions rest on, as plain values and indexes.
