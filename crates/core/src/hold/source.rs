//! Where holds are read: the ledger's claims, DisruptionHolds, and the annotation on a budget.

use jiff::{SignedDuration, Timestamp};
use nodeward_api::annotation;
use nodeward_api::disruption_hold::DisruptionHold;
use nodeward_api::node_drain::Phase;

use super::{Held, Hold, Holder};
use crate::budget::BudgetView;
use crate::deadline::saturating_add;
use crate::drain::NodeDrainView;
use crate::id::BudgetKey;
use crate::ledger::{Claim, ClaimState};

/// How long a drain takes where neither it nor its status says so: the default of drain-lock's `deadlines.drain`.
pub const DRAIN_LASTS: SignedDuration = SignedDuration::from_mins(30);

/// How long a node takes to be back where nothing says so: the default of drain-lock's `deadlines.recover`.
pub const RECOVERY_LASTS: SignedDuration = SignedDuration::from_mins(30);

/// The holds of a claim: on every budget that it has disruptions of, or that its moving pods are of, whatever its state, for a claim
/// that waits or is suspect may still have those of pods that are down. They end with the deadline of its drain. What the ledger reserves for a claim is held
/// for as long as that stands there: no deadline passes because of other drains.
pub fn of_claim<'a>(claim: &'a Claim, drain: Option<&NodeDrainView>) -> impl Iterator<Item = Hold> + 'a {
    let until = Some(claim_ends(claim, drain));
    let held = claim
        .holds
        .iter()
        .chain(&claim.moving)
        .filter(|disruptions| disruptions.movable || !disruptions.pods.is_empty())
        .map(move |disruptions| Hold {
            held: Held::Budget(BudgetKey::from(&disruptions.pdb)),
            holder: Holder::Node {
                name: claim.node.as_str().into(),
                uid: claim.node_uid.as_str().into(),
                pods: disruptions.pods.iter().map(|pod| pod.uid.as_str().into()).collect(),
                movable: disruptions.movable,
            },
            until,
        });
    let needs = claim.needs.iter().filter(|need| claim.reserves && 0 < need.disruptions);
    let reserved = needs.map(|need| Hold {
        held: Held::Budget(BudgetKey::from(&need.pdb)),
        holder: Holder::Reserved {
            name: claim.node.as_str().into(),
            uid: claim.node_uid.as_str().into(),
        },
        until: None,
    });
    held.chain(reserved)
}

/// Until when the claim may have its disruptions: as the drain's status says, if that is of where the claim stands. The status
/// follows the ledger, and one that is behind tells the limit of an earlier part of the drain, or of an earlier grant: then
/// the drain's deadlines count too, from the moment since when the claim stands there.
fn claim_ends(claim: &Claim, drain: Option<&NodeDrainView>) -> Timestamp {
    let drain = drain.filter(|drain| drain.node_uid.as_ref().is_none_or(|uid| uid.as_str() == claim.node_uid));
    let said = drain.and_then(|drain| Some((drain.phase?, drain.holding_deadline()?)));
    if let Some((phase, deadline)) = said
        && is_of_state(phase, claim)
        && claim.since < deadline
    {
        return deadline;
    }
    let deadlines = drain.map(|drain| drain.deadlines).unwrap_or_default();
    let recover = deadlines.recover.unwrap_or(RECOVERY_LASTS);
    let lasts = if claim.state.has_grant() {
        deadlines.drain.unwrap_or(DRAIN_LASTS).saturating_add(recover)
    } else {
        recover
    };
    let counted = saturating_add(claim.since, lasts);
    said.map_or(counted, |(_, deadline)| deadline.max(counted))
}

/// Whether a drain is in this phase while its claim stands so.
fn is_of_state(phase: Phase, claim: &Claim) -> bool {
    match claim.state {
        ClaimState::Granted => matches!(phase, Phase::Granted | Phase::Draining),
        ClaimState::Confirmed if claim.may_go_down => matches!(phase, Phase::Drained | Phase::Recovering),
        ClaimState::Confirmed => matches!(phase, Phase::Draining | Phase::Recovering),
        ClaimState::Waiting | ClaimState::Returning => phase == Phase::Recovering,
        ClaimState::Suspect => phase == Phase::Suspect,
    }
}

/// An owner's hold; `None` where nothing is held: it is being deleted, an administrator has released it, or it is of no
/// disruption. It ends when its owner said, or sooner where drain-lock's policy caps it.
pub fn of_owner(hold: &DisruptionHold) -> Option<Hold> {
    let (meta, spec) = (&hold.metadata, &hold.spec);
    let is_released = annotation::released_by(meta).is_some();
    if is_released || meta.deletion_timestamp.is_some() || spec.disruptions.is_some_and(|disruptions| disruptions < 1) {
        return None;
    }
    let status = hold.status.as_ref().filter(|status| {
        // Of an older spec it may say what the owner has since put off.
        status.observed_generation.is_some() && status.observed_generation == meta.generation
    });
    let capped = status.and_then(|status| status.effective_until);
    Some(Hold {
        held: Held::Budget(BudgetKey::new(meta.namespace.as_deref()?, spec.pdb_ref.as_str())),
        holder: Holder::Owner(spec.reason.clone()),
        until: spec.expires_at.into_iter().chain(capped).min(),
    })
}

/// The hold that an owner set by an annotation on the budget itself; it ends when that is removed, or when drain-lock says.
pub fn of_annotation(budget: &BudgetView) -> Option<Hold> {
    let hold = budget.hold.as_ref()?;
    Some(Hold {
        held: Held::Budget(budget.key.clone()),
        holder: Holder::Owner(hold.reason.to_string()),
        until: hold.until,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nodeward_api::node_drain::NodeDrain;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn minute(minutes: i64) -> Timestamp {
        Timestamp::from_second(minutes * 60).unwrap()
    }

    fn claim(state: &str) -> Claim {
        serde_json::from_value(json!({
            "ticket": 1, "node": "n2", "nodeUID": "u2", "state": state, "since": minute(0), "queuedAt": minute(-10),
            "needs": [{ "pdb": { "namespace": "shop", "name": "later", "uid": "b3" }, "disruptions": 1, "healthy": 1, "several": null }],
            "holds": [
                { "pdb": { "namespace": "shop", "name": "web", "uid": "b1" }, "pods": [{ "name": "a", "uid": "a" }, { "name": "b", "uid": "b" }] },
                { "pdb": { "namespace": "shop", "name": "none", "uid": "b2" }, "pods": [] },
            ],
        }))
        .unwrap()
    }

    fn drain(spec: Value, status: Value) -> NodeDrainView {
        let mut drain = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": "n2" },
            "spec": { "nodeName": "n2", "nodeUID": "u2" }, "status": status,
        });
        for (key, value) in spec.as_object().unwrap() {
            drain["spec"][key] = value.clone();
        }
        NodeDrainView::project(&serde_json::from_value::<NodeDrain>(drain).unwrap()).unwrap()
    }

    #[rstest]
    #[case::is_the_one_that_reserves(false, true)]
    #[case::its_node_may_go_down(true, true)]
    #[case::waits_behind_others(false, false)]
    fn claim_that_reserves_holds_what_it_needs(#[case] may_go_down: bool, #[case] reserves: bool) {
        let claim = Claim {
            reserves,
            may_go_down,
            holds: Vec::new(),
            moving: Vec::new(),
            ..claim("Waiting")
        };
        let reserved = Hold {
            held: Held::Budget(BudgetKey::new("shop", "later")),
            holder: Holder::Reserved {
                name: "n2".into(),
                uid: "u2".into(),
            },
            until: None,
        };
        let expected: Vec<Hold> = reserves.then_some(reserved).into_iter().collect();
        assert_eq!(of_claim(&claim, None).collect::<Vec<_>>(), expected);
    }

    #[rstest]
    fn claim_holds_granted_budgets_only(#[values("Granted", "Confirmed", "Suspect", "Returning")] state: &str) {
        let claim = claim(state);
        let holds: Vec<Hold> = of_claim(&claim, None).collect();
        let holder = Holder::Node {
            name: "n2".into(),
            uid: "u2".into(),
            pods: ["a".into(), "b".into()].into(),
            movable: false,
        };
        assert_eq!(holds.len(), 1, "{holds:?}");
        assert_eq!(
            (&holds[0].held, &holds[0].holder),
            (&Held::Budget(BudgetKey::new("shop", "web")), &holder)
        );
    }

    #[test]
    fn claim_holds_budgets_of_movable_pods_too() {
        let mut claim = claim("Confirmed");
        claim.holds[1].movable = true;
        let hold = of_claim(&claim, None).nth(1).unwrap();
        let holder = Holder::Node {
            name: "n2".into(),
            uid: "u2".into(),
            pods: BTreeSet::new(),
            movable: true,
        };
        assert_eq!(hold.held, Held::Budget(BudgetKey::new("shop", "none")));
        assert_eq!(hold.holder, holder);
    }

    #[rstest]
    #[case::nothing_said("Confirmed", None, 60)]
    #[case::nothing_said_of_a_suspect("Suspect", None, 30)]
    #[case::nothing_said_of_what_comes_back("Returning", None, 30)]
    #[case::its_deadlines("Granted", Some(drain(json!({ "deadlines": { "drain": "10m", "recover": "5m" } }), json!({}))), 15)]
    #[case::its_status("Confirmed", Some(drain(json!({}), json!({ "phase": "Draining", "deadline": minute(42) }))), 42)]
    #[case::its_status_coming_back("Returning", Some(drain(json!({}), json!({ "phase": "Recovering", "deadline": minute(12) }))), 12)]
    #[case::the_status_of_an_earlier_grant("Confirmed", Some(drain(json!({}), json!({ "phase": "Draining", "deadline": minute(0) }))), 60)]
    #[case::a_status_behind_a_suspect("Suspect", Some(drain(json!({}), json!({ "phase": "Draining", "deadline": minute(10) }))), 30)]
    #[case::a_status_behind_that_says_later("Suspect", Some(drain(json!({}), json!({ "phase": "Draining", "deadline": minute(42) }))), 42)]
    #[case::its_status_suspect("Suspect", Some(drain(json!({}), json!({ "phase": "Suspect", "deadline": minute(42) }))), 42)]
    #[case::a_status_from_before_the_grant("Confirmed", Some(drain(json!({}), json!({ "phase": "Queued", "deadline": minute(5) }))), 60)]
    #[case::the_drain_of_another_node_of_that_name(
        "Confirmed", Some(drain(json!({ "nodeUID": "u3" }), json!({ "phase": "Draining", "deadline": minute(42) }))), 60
    )]
    #[case::deadlines_that_cannot_be_read("Granted", Some(drain(json!({ "deadlines": { "drain": "soon" } }), json!({}))), 60)]
    fn a_claims_hold_ends_with_its_drains_deadline(
        #[case] state: &str,
        #[case] drain: Option<NodeDrainView>,
        #[case] ends: i64,
    ) {
        let claim = claim(state);
        let hold = of_claim(&claim, drain.as_ref()).next().unwrap();
        assert_eq!(hold.until, Some(minute(ends)));
    }

    /// The ledger says so before anybody is told, and then the node may be down for as long as it takes to be back.
    #[rstest]
    #[case::not_told_yet("Draining", 42, 60)]
    #[case::told("Drained", 42, 42)]
    #[case::rebooted("Recovering", 42, 42)]
    #[case::not_told_yet_of_a_long_drain("Draining", 90, 90)]
    fn drain_limit_ends_once_node_may_go_down(#[case] phase: &str, #[case] deadline: i64, #[case] ends: i64) {
        let claim = Claim {
            may_go_down: true,
            ..claim("Confirmed")
        };
        let drain = drain(json!({}), json!({ "phase": phase, "deadline": minute(deadline) }));
        let hold = of_claim(&claim, Some(&drain)).next().unwrap();
        assert_eq!(hold.until, Some(minute(ends)));
    }

    fn owners(metadata: Value, spec: Value, status: Value) -> Option<Hold> {
        let mut hold = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "DisruptionHold",
            "metadata": { "namespace": "shop", "name": "h", "generation": 2 },
            "spec": { "pdbRef": "web", "reason": "migration" }, "status": status,
        });
        for (part, patch) in [("metadata", metadata), ("spec", spec)] {
            for (key, value) in patch.as_object().unwrap() {
                hold[part][key] = value.clone();
            }
        }
        of_owner(&serde_json::from_value(hold).unwrap())
    }

    #[rstest]
    #[case::for_ever(json!({}), json!({}), json!({}), None)]
    #[case::as_the_owner_said(json!({}), json!({ "expiresAt": minute(5) }), json!({}), Some(5))]
    #[case::capped(json!({}), json!({ "expiresAt": minute(50) }), json!({ "effectiveUntil": minute(20), "observedGeneration": 2 }), Some(20))]
    #[case::capped_without_an_end(json!({}), json!({}), json!({ "effectiveUntil": minute(20), "observedGeneration": 2 }), Some(20))]
    #[case::put_off_since(json!({}), json!({ "expiresAt": minute(50) }), json!({ "effectiveUntil": minute(20), "observedGeneration": 1 }), Some(50))]
    #[case::brought_forward(json!({}), json!({ "expiresAt": minute(5) }), json!({ "effectiveUntil": minute(20), "observedGeneration": 2 }), Some(5))]
    #[case::released_by_nobody_for_no_reason(json!({ "annotations": { "nodeward.dev/release": " " } }), json!({ "expiresAt": minute(5) }), json!({}), Some(5))]
    #[case::some_disruptions(json!({}), json!({ "disruptions": 1, "expiresAt": minute(5) }), json!({}), Some(5))]
    fn an_owners_hold_ends_as_said_or_as_capped(
        #[case] metadata: Value,
        #[case] spec: Value,
        #[case] status: Value,
        #[case] ends: Option<i64>,
    ) {
        let hold = owners(metadata, spec, status).unwrap();
        assert_eq!(hold.held, Held::Budget(BudgetKey::new("shop", "web")));
        assert_eq!(hold.holder, Holder::Owner("migration".to_owned()));
        assert_eq!(hold.until, ends.map(minute));
    }

    #[rstest]
    #[case::released(json!({ "annotations": { "nodeward.dev/release": "alice: urgent" } }), json!({}))]
    #[case::being_deleted(json!({ "deletionTimestamp": minute(0) }), json!({}))]
    #[case::no_disruption(json!({}), json!({ "disruptions": 0 }))]
    fn what_was_released_is_not_held(#[case] metadata: Value, #[case] spec: Value) {
        assert_eq!(owners(metadata, spec, json!({})), None);
    }
}
