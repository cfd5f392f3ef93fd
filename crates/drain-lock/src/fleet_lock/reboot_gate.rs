//! What a machine that asks to reboot is told: pure.

use std::collections::BTreeSet;

use nodeward_core::ledger::{Claim, ClaimState, Facts, Ledger};

use super::protocol::{Kind, Problem};
use crate::plan::residents::{Resident, in_the_way};

/// A machine's node, and the ledger.
#[derive(Debug, Clone, Copy)]
pub struct RebootGate<'a> {
    /// Name of the node.
    pub node: &'a str,
    pub node_uid: &'a str,
    /// Whether it is cordoned.
    pub cordoned: bool,
    pub boot_id: &'a str,
    pub ledger: &'a Ledger,
    /// The budgets that claims in the ledger need; for words alone.
    pub facts: &'a Facts,
}

impl RebootGate<'_> {
    /// Whether the machine may reboot over these pods, which are all that its node has: they are what no drain concerns,
    /// and what stays under the claim. That the claim says drained is not enough: a pod may have been bound since, and
    /// the pods that it was written for may have been seen late.
    ///
    /// # Errors
    /// What is waited for.
    pub fn may_reboot_over(&self, residents: &[Resident]) -> Result<(), Problem> {
        self.may_reboot()?;
        let claim = self.ledger.claim(self.node_uid);
        match claim.and_then(|claim| in_the_way(claim, residents, &BTreeSet::new())) {
            Some(waits) => Err(Problem::new(Kind::Draining, waits)),
            None => Ok(()),
        }
    }

    /// Whether the budgets of the pods that stay still have the disruptions that the claim holds: something else may have
    /// taken them since they were confirmed. The claim keeps them, so that nobody else gets them once they are there again.
    ///
    /// # Errors
    /// What is waited for.
    pub fn has_kept_disruptions(&self, facts: &Facts) -> Result<(), Problem> {
        match self.ledger.lost_by_retained(self.node_uid, facts).first() {
            Some(lost) => Err(Problem::new(
                Kind::DisruptionLost,
                format!("node {}: {lost}", self.node),
            )),
            None => Ok(()),
        }
    }

    /// Whether the machine may reboot by the ledger: its node's claim is in force and says that the node is drained.
    /// Nobody's status is read for it.
    ///
    /// # Errors
    /// What is waited for.
    pub fn may_reboot(&self) -> Result<(), Problem> {
        let node = self.node;
        let Some(claim) = self.ledger.claim(self.node_uid) else {
            let planned = format!("the drain of node {node} is being planned");
            return Err(Problem::new(Kind::Queued, planned));
        };
        let (kind, waits) = match claim.state {
            // Its pods have begun to come back, and their disruptions to return: they are no longer there for another reboot.
            ClaimState::Confirmed if claim.may_go_down && claim.has_rebooted(self.boot_id) => (
                Kind::Ending,
                format!("node {node} has rebooted since it was drained; it has to say so (steady-state) first"),
            ),
            ClaimState::Confirmed if claim.may_go_down && self.cordoned => return Ok(()),
            ClaimState::Confirmed => (Kind::Draining, format!("pods are leaving node {node}")),
            ClaimState::Granted => (
                Kind::Granted,
                format!("the drain of node {node} has its disruptions, which are being confirmed"),
            ),
            ClaimState::Suspect => (
                Kind::Suspect,
                format!("the drain of node {node} was given up half-way; an administrator has to look"),
            ),
            ClaimState::Returning => (
                Kind::Ending,
                format!("an earlier drain of node {node} ends: its pods are on their way back"),
            ),
            ClaimState::Waiting => return Err(self.waits(claim)),
        };
        Err(Problem::new(kind, waits))
    }

    fn waits(&self, claim: &Claim) -> Problem {
        let ticket = format!("the drain of node {} (ticket {})", self.node, claim.ticket);
        let obstacles = self.ledger.obstacles(self.node_uid, self.facts);
        match obstacles.first() {
            Some(obstacle) => Problem::new(Kind::Waiting, format!("{ticket}: {obstacle}")),
            None => Problem::new(
                Kind::Queued,
                format!("{ticket} waits for its turn, or for pods that need no disruptions"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use nodeward_api::BudgetRef;
    use nodeward_core::ledger::{Disruptions, HeldPod};
    use rstest::rstest;
    use serde_json::{Value, json};

    use nodeward_core::ledger::Need;

    use super::*;
    use crate::plan::need::Class;
    use crate::snapshot::PodFacts;
    use crate::tests::fixture::{NOW, merged, owner, parse, pod};

    fn disruptions() -> Vec<Disruptions> {
        vec![Disruptions {
            pdb: BudgetRef {
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
                uid: "b".to_owned(),
            },
            healthy_at_grant: 0,
            movable: false,
            pods: vec![HeldPod {
                name: "web-0".to_owned(),
                uid: "p0".to_owned(),
                retained: true,
                ..HeldPod::default()
            }],
        }]
    }

    fn claim(state: ClaimState, needs: Vec<Disruptions>, holds: Vec<Disruptions>) -> Claim {
        Claim {
            ticket: 4,
            node: "n1".to_owned(),
            node_uid: "u1".to_owned(),
            state,
            may_go_down: false,
            since: Timestamp::UNIX_EPOCH,
            queued_at: Timestamp::UNIX_EPOCH,
            grant: 40,
            boot_id: "b1".to_owned(),
            foreign_cordon: false,
            obstructed_since: None,
            reserves: false,
            node_groups: Vec::new(),
            needs: needs.into_iter().map(Need::from).collect(),
            holds,
            moving: Vec::new(),
        }
    }

    fn drained() -> Claim {
        Claim {
            may_go_down: true,
            ..claim(ClaimState::Confirmed, vec![], disruptions())
        }
    }

    fn told(claims: Vec<Claim>, cordoned: bool) -> Result<(), Problem> {
        told_after(claims, cordoned, "b1")
    }

    fn told_after(claims: Vec<Claim>, cordoned: bool, boot_id: &str) -> Result<(), Problem> {
        let ledger = Ledger::of(9, claims);
        let gate = RebootGate {
            node: "n1",
            node_uid: "u1",
            cordoned,
            boot_id,
            ledger: &ledger,
            facts: &Facts::new(),
        };
        gate.may_reboot()
    }

    #[test]
    fn reboot_is_allowed_once_claim_is_drained() {
        assert_eq!(told(vec![drained()], true), Ok(()));
    }

    #[rstest]
    #[case::no_claim(vec![], Kind::Queued)]
    #[case::another_nodes(vec![Claim { node_uid: "u2".to_owned(), ..drained() }], Kind::Queued)]
    #[case::no_need_yet(vec![claim(ClaimState::Waiting, vec![], vec![])], Kind::Queued)]
    #[case::waits(vec![claim(ClaimState::Waiting, disruptions(), vec![])], Kind::Waiting)]
    #[case::comes_back(vec![claim(ClaimState::Returning, vec![], disruptions())], Kind::Ending)]
    #[case::unconfirmed(vec![claim(ClaimState::Granted, vec![], disruptions())], Kind::Granted)]
    #[case::pods_left(vec![claim(ClaimState::Confirmed, vec![], disruptions())], Kind::Draining)]
    #[case::suspect(vec![claim(ClaimState::Suspect, vec![], disruptions())], Kind::Suspect)]
    fn nothing_less_lets_it(#[case] claims: Vec<Claim>, #[case] kind: Kind) {
        let problem = told(claims, true).unwrap_err();
        assert_eq!(problem.kind, kind, "{}", problem.value);
        assert_eq!(kind.status(), axum::http::StatusCode::LOCKED);
        assert!(problem.value.contains("n1"));
    }

    fn resident(patch: Value, budgets: &[&str]) -> Resident {
        let budget = |uid: &&str| BudgetRef {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: (*uid).to_owned(),
        };
        let base = json!({ "metadata": { "uid": "p0" } });
        let pod = PodFacts::project(&parse(pod("web-0", merged(base, patch)))).unwrap();
        Resident {
            class: Class::in_drain(&pod, None, None, NOW.parse().unwrap()),
            pod,
            budgets: budgets.iter().map(budget).collect(),
        }
    }

    fn labelled(drain: &str, patch: Value) -> Value {
        merged(
            json!({ "metadata": { "labels": { "nodeward.dev/drain": drain } } }),
            patch,
        )
    }

    #[rstest]
    #[case::movable_or_held(json!({}), &[], Some("has yet to leave"))]
    #[case::to_leave_and_its_disruptions_are_held(json!({}), &["b"], Some("has yet to leave"))]
    #[case::without_an_owner(json!({ "metadata": { "ownerReferences": null } }), &[], Some("has yet to leave"))]
    #[case::still_terminating(json!({ "metadata": { "deletionTimestamp": NOW } }), &[], Some("has yet to leave"))]
    #[case::not_ready(json!({ "status": { "phase": "Pending", "conditions": [] } }), &[], Some("has yet to leave"))]
    #[case::finishes_first(labelled("wait-completed", json!({})), &[], Some("has yet to leave"))]
    #[case::asks_for_what_nobody_knows(labelled("later", json!({})), &[], Some("has yet to leave"))]
    #[case::of_a_daemon_set(json!({ "metadata": { "ownerReferences": [owner("apps/v1", "DaemonSet", "d")] } }), &["b"], None)]
    #[case::mirror(json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "h" } } }), &[], None)]
    #[case::succeeded(json!({ "status": { "phase": "Succeeded" } }), &[], None)]
    #[case::failed(json!({ "status": { "phase": "Failed" } }), &[], None)]
    #[case::stays_under_its_disruption(labelled("skip", json!({})), &["b"], None)]
    #[case::stays_and_no_budget_selects_it(labelled("skip", json!({ "metadata": { "uid": "late" } })), &[], None)]
    #[case::stays_and_came_late(labelled("skip", json!({ "metadata": { "uid": "late" } })), &["b"], Some("does not hold"))]
    #[case::stays_and_another_budget_selects_it_by_now(labelled("skip", json!({})), &["b", "b2"], Some("does not hold"))]
    #[case::was_to_stay_and_leaves(
        labelled("skip", json!({ "metadata": { "deletionTimestamp": NOW } })), &["b"], Some("has yet to leave")
    )]
    fn no_reboot_over_pods_that_hold_no_disruption(
        #[case] patch: Value,
        #[case] budgets: &[&str],
        #[case] told: Option<&str>,
    ) {
        let ledger = Ledger::of(9, vec![drained()]);
        let gate = RebootGate {
            node: "n1",
            node_uid: "u1",
            cordoned: true,
            boot_id: "b1",
            ledger: &ledger,
            facts: &Facts::new(),
        };
        let daemon = json!({ "metadata": { "uid": "d", "ownerReferences": [owner("apps/v1", "DaemonSet", "d")] } });
        let residents = [resident(daemon, &[]), resident(patch, budgets)];
        let answer = gate.may_reboot_over(&residents);
        let Some(told) = told else {
            return assert_eq!(answer, Ok(()));
        };
        let problem = answer.unwrap_err();
        assert_eq!(problem.kind, Kind::Draining);
        assert!(
            problem.value.contains(told) && problem.value.contains("shop/web-0"),
            "{}",
            problem.value
        );
    }

    #[test]
    fn empty_node_without_claim_may_not_reboot() {
        let ledger = Ledger::default();
        let gate = RebootGate {
            node: "n1",
            node_uid: "u1",
            cordoned: true,
            boot_id: "b1",
            ledger: &ledger,
            facts: &Facts::new(),
        };
        assert_eq!(gate.may_reboot_over(&[]).unwrap_err().kind, Kind::Queued);
    }

    #[test]
    fn rebooted_machine_must_release_before_next_reboot() {
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
