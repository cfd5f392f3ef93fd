//! How large the stored ledger is, and how much of it further claims may take: etcd accepts no object above a size.

use nodeward_api::drain_ledger::DrainLedgerSpec;

use super::{Disruptions, Ledger};
use crate::text::json_length;

/// The bytes that etcd accepts by default (`--max-request-bytes`).
pub const ACCEPTED: usize = 1_572_864;

/// Up to here further claims are queued. The rest is for what those that are there come to need and hold.
pub const FOR_CLAIMS: usize = ACCEPTED / 10 * 7;

/// The bytes of a claim without its needs and holds, and of a held pod: with names of the usual length, at most.
const CLAIM: usize = 300;
const HELD_POD: usize = 80;

/// The bytes that a claim takes once it holds all of this.
pub fn of_claim(needs: &[Disruptions]) -> usize {
    CLAIM + of_pods(needs.iter().map(|needed| needed.pods.len()).sum())
}

/// The bytes that so many held pods take.
pub fn of_pods(pods: usize) -> usize {
    HELD_POD.saturating_mul(pods)
}

impl Ledger {
    /// The bytes of what is stored.
    pub fn stored_bytes(&self) -> usize {
        json_length(&DrainLedgerSpec::from(self))
    }
}
