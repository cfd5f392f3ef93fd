//! What a machine that asks to reboot is told: pure.

use nodeward_api::drain_ledger::{Claim, ClaimState};
use nodeward_core::ledger::{Facts, Ledger};

use super::protocol::{Kind, Problem};

/// A machine's node, and the ledger.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// UID of the node.
    pub node_uid: &'a str,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// Its boot.
    pub boot_id: &'a str,
    /// The ledger.
    pub ledger: &'a Ledger,
    /// The budgets that claims in the ledger need; for words alone.
    pub facts: &'a Facts,
}

impl Standing<'_> {
    /// Whether the machine may reboot: its node's claim is in force and says that the node is drained. Nothing else counts,
    /// and nobody's status is read for it.
    ///
    /// # Errors
    /// What is waited for.
    pub fn may_reboot(&self) -> Result<(), Problem> {
        let node = self.node;
        let Some(claim) = self.ledger.claim(self.node_uid) else {
            return Err(Problem::new(
                Kind::Queued,
                &format!("the drain of node {node} is being planned"),
            ));
        };
        match claim.state {
            // Its pods have begun to come back, and their units to return: they are no longer there for another reboot.
            ClaimState::Confirmed if claim.drained && self.has_rebooted_since(claim) => {
                let rebooted =
                    format!("node {node} has rebooted since it was drained; it has to say so (steady-state) first");
                Err(Problem::new(Kind::Ending, &rebooted))
            }
            ClaimState::Confirmed if claim.drained && self.cordoned => Ok(()),
            ClaimState::Confirmed => {
                let pods = format!("pods are leaving node {node}");
                Err(Problem::new(Kind::Draining, &pods))
            }
            ClaimState::Granted => {
                let confirming = format!("the drain of node {node} has its units, which are being confirmed");
                Err(Problem::new(Kind::Granted, &confirming))
            }
            ClaimState::Suspect => {
                let suspect = format!("the drain of node {node} was given up half-way; an administrator has to look");
                Err(Problem::new(Kind::Suspect, &suspect))
            }
            ClaimState::Waiting if Ledger::comes_back(claim) => {
                let ending = format!("an earlier drain of node {node} ends: its pods are on their way back");
                Err(Problem::new(Kind::Ending, &ending))
            }
            ClaimState::Waiting => Err(self.waits(claim)),
        }
    }

    fn has_rebooted_since(&self, claim: &Claim) -> bool {
        !claim.boot_id.is_empty() && !self.boot_id.is_empty() && claim.boot_id != self.boot_id
    }

    fn waits(&self, claim: &Claim) -> Problem {
        let ticket = format!("the drain of node {} (ticket {})", self.node, claim.ticket);
        let obstacles = if claim.needs.is_empty() {
            Vec::new()
        } else {
            self.ledger.obstacles(self.node_uid, self.facts)
        };
        match obstacles.first() {
            Some(obstacle) => Problem::new(Kind::Waiting, &format!("{ticket}: {obstacle}")),
            None => Problem::new(
                Kind::Queued,
                &format!("{ticket} waits for its turn, or for pods that need no units"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use nodeward_api::BudgetRef;
    use nodeward_api::drain_ledger::{DrainLedgerSpec, HeldPod, Units};
    use rstest::rstest;

    use super::*;

    fn units() -> Vec<Units> {
        vec![Units {
            pdb: BudgetRef {
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
                uid: "b".to_owned(),
            },
            healthy_at_grant: 0,
            pods: vec![HeldPod {
                name: "web-0".to_owned(),
                uid: "p0".to_owned(),
                retained: true,
            }],
        }]
    }

    fn claim(state: ClaimState, needs: Vec<Units>, holds: Vec<Units>) -> Claim {
        Claim {
            ticket: 4,
            node: "n1".to_owned(),
            node_uid: "u1".to_owned(),
            state,
            since: Timestamp::UNIX_EPOCH,
            queued_at: Timestamp::UNIX_EPOCH,
            grant: 40,
            boot_id: "b1".to_owned(),
            foreign_cordon: false,
            drained: false,
            needs,
            holds,
        }
    }

    fn drained() -> Claim {
        Claim {
            drained: true,
            ..claim(ClaimState::Confirmed, units(), units())
        }
    }

    fn told(claims: Vec<Claim>, cordoned: bool) -> Result<(), Problem> {
        told_after(claims, cordoned, "b1")
    }

    fn told_after(claims: Vec<Claim>, cordoned: bool, boot_id: &str) -> Result<(), Problem> {
        let ledger = Ledger(DrainLedgerSpec { next_ticket: 9, claims });
        let standing = Standing {
            node: "n1",
            node_uid: "u1",
            cordoned,
            boot_id,
            ledger: &ledger,
            facts: &Facts::new(),
        };
        standing.may_reboot()
    }

    #[test]
    fn a_machine_may_reboot_once_its_claim_says_that_it_is_drained() {
        assert_eq!(told(vec![drained()], true), Ok(()));
    }

    #[rstest]
    #[case::no_claim(vec![], Kind::Queued)]
    #[case::another_nodes(vec![Claim { node_uid: "u2".to_owned(), ..drained() }], Kind::Queued)]
    #[case::no_need_yet(vec![claim(ClaimState::Waiting, vec![], vec![])], Kind::Queued)]
    #[case::waits(vec![claim(ClaimState::Waiting, units(), vec![])], Kind::Waiting)]
    #[case::comes_back(vec![claim(ClaimState::Waiting, vec![], units())], Kind::Ending)]
    #[case::unconfirmed(vec![Claim { drained: true, ..claim(ClaimState::Granted, units(), units()) }], Kind::Granted)]
    #[case::pods_left(vec![claim(ClaimState::Confirmed, units(), units())], Kind::Draining)]
    #[case::suspect(vec![Claim { drained: true, ..claim(ClaimState::Suspect, units(), units()) }], Kind::Suspect)]
    fn nothing_less_lets_it(#[case] claims: Vec<Claim>, #[case] kind: Kind) {
        let problem = told(claims, true).unwrap_err();
        assert_eq!(problem.kind, kind, "{}", problem.value);
        assert_eq!(kind.status(), axum::http::StatusCode::LOCKED);
        assert!(problem.value.contains("n1"));
    }

    #[test]
    fn a_machine_that_has_rebooted_says_so_before_it_reboots_again() {
        let problem = told_after(vec![drained()], true, "b2").unwrap_err();
        assert_eq!(problem.kind, Kind::Ending);
        assert!(problem.value.contains("steady-state"), "{}", problem.value);
        // A boot that is not known is no other one.
        assert_eq!(told_after(vec![drained()], true, ""), Ok(()));
    }

    #[test]
    fn a_node_that_takes_pods_again_is_not_drained() {
        assert_eq!(told(vec![drained()], false).unwrap_err().kind, Kind::Draining);
    }
}
