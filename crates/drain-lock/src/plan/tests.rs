//! The life of a drain, one step at a time: from a moment of a small cluster to what is written, done and said.

mod fallbacks;
mod properties;

use jiff::SignedDuration;
use nodeward_core::id::PodUid;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::config::Config;
use crate::explain::explain;
use crate::plan::lease::LeaseStep;
use crate::snapshot::fixture::{Cluster, at, budget, merged, node, now, pod, waiting};

const A_MINUTE_AGO: &str = "2026-01-01T11:59:00Z";
const YESTERDAY: &str = "2025-12-31T12:00:00Z";

/// The defaults, without node leases.
fn policy() -> Policy {
    Policy {
        medik8s_leases: None,
        ..Policy::from_config(Config::default()).unwrap()
    }
}

fn planned(cluster: &Cluster) -> Plan {
    plan(&cluster.snapshot(), &Memory::default(), &policy(), now())
}

/// A NodeDrain of `n1` that drain-lock has adopted.
fn drain(patch: Value) -> Value {
    let base = json!({
        "metadata": {
            "name": "n1", "uid": "uid-drain", "resourceVersion": "7", "finalizers": [nodeward_api::finalizer::DRAIN_LOCK],
            "creationTimestamp": A_MINUTE_AGO,
        },
        "spec": { "nodeName": "n1", "nodeUID": "uid-n1", "requesters": [{ "name": "alice" }] },
    });
    merged(base, patch)
}

/// A drain whose requesters evict by themselves and have not been heard of since yesterday.
fn silent_drain_of(requesters: &[&str]) -> Value {
    let requesters: Vec<Value> = requesters.iter().map(|name| json!({ "name": name })).collect();
    drain(json!({
        "metadata": { "creationTimestamp": YESTERDAY }, "spec": { "evict": "Requester", "requesters": requesters },
    }))
}

/// `n1` under the cordon of that drain.
fn ours(patch: Value) -> Value {
    let cordon = json!({
        "metadata": { "annotations": { nodeward_api::annotation::CORDONED_BY: "uid-drain" } },
        "spec": { "unschedulable": true },
    });
    node("n1", merged(cordon, patch))
}

fn foreign(patch: Value) -> Value {
    node("n1", merged(json!({ "spec": { "unschedulable": true } }), patch))
}

fn rebooted() -> Value {
    json!({ "status": {
        "nodeInfo": { "bootID": "boot-2" },
        "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T11:30:00Z" }],
    } })
}

/// The claim of `n1`, first in the queue.
fn claim(patch: Value) -> Value {
    let base = json!({
        "ticket": 1, "node": "n1", "nodeUID": "uid-n1", "state": "Waiting", "since": A_MINUTE_AGO, "queuedAt": A_MINUTE_AGO, "grant": 4,
    });
    merged(base, patch)
}

fn granted(state: &str, pods: &[&str]) -> Value {
    claim(json!({ "state": state, "grant": 5, "bootID": "boot-1", "needs": [units(pods)], "holds": [units(pods)] }))
}

/// Units of the budget `web` for these pods; in brackets: one that stays.
fn units(pods: &[&str]) -> Value {
    let pods: Vec<Value> = pods
        .iter()
        .map(|name| {
            let bare = name.trim_matches(['(', ')']);
            json!({ "name": bare, "uid": format!("uid-{bare}"), "retained": bare != *name })
        })
        .collect();
    json!({ "pdb": { "namespace": "shop", "name": "web", "uid": "uid-web" }, "healthyAtGrant": 3, "pods": pods })
}

/// A pod of `web` that finds no room on any other node.
fn held(name: &str, patch: Value) -> Value {
    pod(
        name,
        merged(
            json!({ "spec": { "nodeSelector": { "kubernetes.io/hostname": "n1" } } }),
            patch,
        ),
    )
}

fn retained(name: &str, patch: Value) -> Value {
    let stays = json!({
        "metadata": { "labels": { "nodeward.dev/drain": "skip" } },
        "spec": { "tolerations": [{ "operator": "Exists", "effect": "NoExecute" }] },
    });
    pod(name, merged(stays, patch))
}

fn leaving(patch: Value) -> Value {
    merged(
        json!({ "metadata": { "deletionTimestamp": "2026-01-01T12:00:00Z" } }),
        patch,
    )
}

fn bare() -> Value {
    json!({ "metadata": { "labels": { "app": "other" } } })
}

/// The other two pods of `web`, elsewhere.
fn siblings() -> [Value; 2] {
    ["b", "c"].map(|name| pod(name, json!({ "spec": { "nodeName": "n2" } })))
}

fn cluster(node_1: Value, drain: Option<Value>, claims: &[Value], pods: &[Value]) -> Cluster {
    let pods = pods.iter().cloned().chain(siblings());
    let cluster = Cluster::new([node_1, node("n2", json!({}))], pods)
        .budgets([budget("web", json!({}))])
        .drains(drain);
    if claims.is_empty() {
        cluster
    } else {
        cluster.ledger(json!({ "nextTicket": 9, "claims": claims }))
    }
}

/// The plan in words: what the ledger becomes, what is done, and how the drains stand. The node's conditions are left out.
fn shown(plan: &Plan) -> Vec<String> {
    let mut lines: Vec<String> = plan.ledger.iter().flat_map(shown_write).collect();
    lines.extend(plan.actions.iter().filter_map(shown_action));
    lines.extend(plan.drains.iter().map(|verdict| {
        let why: Vec<_> = verdict.blocked_by.iter().map(|why| why.reason.as_str()).collect();
        format!("{} is {}: {}", verdict.node, verdict.phase.as_str(), why.join(", "))
            .trim_end_matches([':', ' '])
            .to_owned()
    }));
    lines
}

fn shown_write(write: &LedgerWrite) -> Vec<String> {
    let pods = |units: &[nodeward_core::ledger::Units]| {
        let names = units.iter().flat_map(|units| &units.pods).map(|pod| pod.name.as_str());
        names.collect::<Vec<_>>().join("+")
    };
    let claims = write.next.claims().iter().map(|claim| {
        let needs = claim
            .needs
            .iter()
            .flat_map(|need| &need.pods.0)
            .map(|pod| pod.name.as_str());
        let (needs, holds) = (needs.collect::<Vec<_>>().join("+"), pods(&claim.holds));
        format!(
            "ledger: {}#{} {:?} needs [{needs}] holds [{holds}]",
            claim.node, claim.ticket, claim.state
        )
    });
    let mut lines: Vec<String> = claims.collect();
    if lines.is_empty() {
        lines.push("ledger: empty".to_owned());
    }
    lines.extend(write.grants.iter().map(|ask| format!("grant {}", ask.node_uid)));
    lines.extend(
        write
            .confirms
            .iter()
            .map(|ask| format!("confirm {} {}", ask.node_uid, ask.grant)),
    );
    lines
}

fn shown_action(action: &Action) -> Option<String> {
    let force = |eviction: &PodEviction| match eviction.force {
        Force::Never => "",
        Force::Delete => " or delete",
    };
    Some(match action {
        Action::Adopt { .. } => "adopt".to_owned(),
        Action::Delete { reason, .. } => format!("delete NodeDrain: {}", reason.as_str()),
        Action::Finish { .. } => "let NodeDrain go".to_owned(),
        Action::Node(write) => {
            let cordon = match write.cordon {
                Cordon::Keep => "mark",
                Cordon::Set { .. } => "cordon",
                Cordon::Lift => "uncordon",
                Cordon::Forget => "forget cordon",
            };
            format!(
                "{cordon} {}{}",
                write.node.name,
                if write.queued { " queued" } else { "" }
            )
        }
        Action::Conditions(_) => return None,
        Action::Evict { eviction } => format!("evict {}{}", eviction.pod.key.name, force(eviction)),
        Action::EvictHeld { fence, pods, .. } => {
            let pods: Vec<_> = pods
                .iter()
                .map(|pod| format!("{}{}", pod.pod.key.name, force(pod)))
                .collect();
            format!("evict {} under {}/{}", pods.join("+"), fence.ticket, fence.grant)
        }
        Action::Lease(change) => match change.step {
            LeaseStep::Take => "take lease".to_owned(),
            LeaseStep::GiveBack => "give lease back".to_owned(),
        },
        Action::Reserve(reservation) => format!("reserve in {}", reservation.budget),
        Action::Touch(touch) => format!("touch {}", touch.budget),
    })
}

/// The ordinary life of a drain that drain-lock carries out.
#[rstest]
#[case::a_new_wish_is_adopted_before_anything_is_done_for_it(
    cluster(node("n1", json!({})), Some(drain(json!({ "metadata": { "finalizers": null }, "spec": { "nodeUID": null } }))), &[], &[held("a", json!({}))]),
    &["adopt", "n1 is Queued"]
)]
#[case::an_adopted_wish_is_queued_and_its_node_cordoned(
    cluster(node("n1", json!({})), Some(drain(json!({}))), &[], &[held("a", json!({}))]),
    &["ledger: n1#1 Queued needs [] holds []", "cordon n1", "n1 is Queued"]
)]
#[case::movable_pods_leave_first_and_nothing_is_claimed_for_them(
    cluster(ours(json!({})), Some(drain(json!({}))), &[claim(json!({}))], &[pod("a", json!({}))]),
    &["evict a", "n1 is Queued"]
)]
#[case::pods_that_asked_for_it_finish_first(
    cluster(ours(json!({})), Some(drain(json!({}))), &[claim(json!({}))], &[
        pod("a", json!({ "metadata": { "labels": { "nodeward.dev/drain": "wait-completed" } } })), pod("d", bare()),
    ]),
    &["n1 is Queued: WaitCompleted"]
)]
#[case::then_all_held_units_are_claimed_at_once(
    cluster(ours(json!({})), Some(drain(json!({}))), &[claim(json!({}))], &[held("a", json!({}))]),
    &["ledger: n1#1 Asking needs [a] holds []", "grant uid-n1", "n1 is Queued"]
)]
#[case::a_grant_is_made_sure_of_before_anything_leaves(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Granted", &["a"])], &[held("a", json!({}))]),
    &["ledger: n1#1 Granted needs [] holds [a]", "confirm uid-n1 5", "n1 is Granted: AwaitsConfirmation"]
)]
#[case::held_pods_leave_under_the_grant_that_is_in_the_ledger(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["evict a under 1/5", "n1 is Draining"]
)]
#[case::a_pod_on_its_way_out_is_waited_for(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[held("a", leaving(json!({})))]),
    &["n1 is Draining"]
)]
#[case::the_ledger_says_drained_before_anybody_is_told(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["(a)"])], &[retained("a", json!({}))]),
    &["ledger: n1#1 Drained needs [] holds [a]", "n1 is Draining"]
)]
#[case::drained(
    cluster(ours(json!({})), Some(drain(json!({}))), &[merged(granted("Confirmed", &["(a)"]), json!({ "drained": true }))], &[retained("a", json!({}))]),
    &["n1 is Drained"]
)]
#[case::after_a_reboot_the_unit_waits_for_its_pod(
    cluster(
        ours(rebooted()), Some(drain(json!({}))), &[merged(granted("Confirmed", &["(a)"]), json!({ "drained": true }))],
        &[retained("a", json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }))],
    ),
    &["n1 is Recovering"]
)]
#[case::a_unit_returns_when_its_pod_is_back(
    cluster(
        ours(rebooted()), Some(drain(json!({}))), &[merged(granted("Confirmed", &["(a)"]), json!({ "drained": true }))],
        &[retained("a", json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T11:31:00Z" }] } }))],
    ),
    &["ledger: n1#1 Drained needs [] holds []", "n1 is Recovering"]
)]
#[case::a_node_that_crashes_in_mid_drain_is_not_drained(
    cluster(
        ours(rebooted()), Some(drain(json!({}))), &[granted("Confirmed", &["a"])],
        &[held("a", json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }))],
    ),
    &["evict a under 1/5", "n1 is Draining"]
)]
#[case::whoever_evicts_by_himself_may_reboot_before_he_says_so(
    cluster(
        foreign(rebooted()), Some(drain(json!({ "spec": { "evict": "Requester" } }))), &[merged(granted("Confirmed", &["a"]), json!({ "foreignCordon": true }))],
        &[held("a", json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }))],
    ),
    &["n1 is Recovering"]
)]
fn a_drain_takes_one_step_at_a_time(#[case] cluster: Cluster, #[case] expected: &[&str]) {
    assert_eq!(shown(&planned(&cluster)), expected);
}

#[test]
fn a_node_that_crashed_in_mid_drain_is_drained_in_the_end() {
    let crashed = || ours(rebooted());
    let before = planned(&cluster(
        crashed(),
        Some(drain(json!({}))),
        &[granted("Confirmed", &["a"])],
        &[],
    ));
    assert_eq!(
        shown(&before),
        ["ledger: n1#1 Drained needs [] holds [a]", "n1 is Draining"]
    );
    let claims = serde_json::to_value(before.ledger.unwrap().next.claims()).unwrap();
    let after = planned(&cluster(
        crashed(),
        Some(drain(json!({}))),
        claims.as_array().unwrap(),
        &[],
    ));
    assert_eq!(shown(&after), ["n1 is Drained"]);
}

/// What is never done.
#[rstest]
#[case::under_a_foreign_cordon_no_cordon_is_taken_over(
    cluster(foreign(json!({})), Some(drain(json!({}))), &[claim(json!({ "foreignCordon": true }))], &[held("a", json!({}))]),
    &["ledger: n1#1 Asking needs [a] holds []", "grant uid-n1", "n1 is Queued"]
)]
#[case::another_evicts_and_we_do_not(
    cluster(foreign(json!({})), Some(drain(json!({ "spec": { "evict": "Requester" } }))), &[merged(granted("Confirmed", &["a"]), json!({ "foreignCordon": true }))], &[held("a", json!({}))]),
    &["n1 is Draining"]
)]
#[case::another_evicts_its_movable_pods_while_it_asks(
    cluster(foreign(json!({})), Some(drain(json!({ "spec": { "evict": "Requester" } }))), &[claim(json!({ "foreignCordon": true }))], &[held("a", json!({})), pod("d", bare())]),
    &["ledger: n1#1 Asking needs [a] holds []", "grant uid-n1", "n1 is Queued"]
)]
#[case::no_pod_leaves_without_a_unit_that_is_free(
    cluster(ours(json!({})), Some(drain(json!({}))), &[
        claim(json!({})), merged(granted("Confirmed", &["b"]), json!({ "ticket": 2, "node": "n3", "nodeUID": "uid-n3" })),
    ], &[pod("a", json!({}))]),
    &["ledger: n1#1 Queued needs [] holds []", "n1 is Queued: WaitsForUnits", "n3 is Recovering: AwaitingReady"]
)]
#[case::a_unit_that_is_about_to_be_returned_is_not_used_yet(
    cluster(ours(json!({})), Some(drain(json!({}))), &[
        claim(json!({})), merged(granted("Confirmed", &["b"]), json!({ "ticket": 2, "node": "n2", "nodeUID": "uid-n2" })),
    ], &[pod("a", json!({}))]),
    &["ledger: n1#1 Queued needs [] holds []", "n1 is Queued: WaitsForUnits"]
)]
#[case::nothing_more_is_evicted_when_the_need_has_grown(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[held("a", json!({})), held("d", json!({}))]),
    &["ledger: n1#1 Asking needs [a+d] holds []", "n1 is Queued: NeedExceedsBudget"]
)]
#[case::no_node_goes_down_with_a_pod_that_stays_and_has_no_unit(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["(a)"])], &[retained("a", json!({})), retained("d", json!({}))]),
    &["ledger: n1#1 Asking needs [a+d] holds []", "n1 is Queued: NeedExceedsBudget"]
)]
#[case::nor_where_its_fallback_granted_the_others(
    cluster(
        ours(json!({})), Some(with_fallback("EvictAnyway")), &[merged(granted("Confirmed", &["(a)"]), json!({ "byFallback": true }))],
        &[retained("a", json!({})), retained("d", json!({}))],
    ),
    &["ledger: n1#1 Asking needs [a+d] holds []", "n1 is Queued: NeedExceedsBudget"]
)]
#[case::nor_once_it_was_drained(
    cluster(ours(json!({})), Some(drain(json!({}))), &[merged(granted("Confirmed", &["(a)"]), json!({ "drained": true }))], &[retained("a", json!({})), retained("d", json!({}))]),
    &["ledger: n1#1 DrainedAsking needs [d] holds [a]", "n1 is Queued: NeedExceedsBudget"]
)]
#[case::a_unit_of_another_budget_is_none(
    cluster(ours(json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))])
        .budgets([budget("db", json!({}))]),
    &["ledger: n1#1 Asking needs [a] holds []", "n1 is Queued"]
)]
#[case::a_dry_run_touches_nothing(
    cluster(node("n1", json!({})), Some(drain(json!({ "metadata": { "finalizers": null }, "spec": { "dryRun": true } }))), &[], &[held("a", json!({}))]),
    &["n1 is Queued"]
)]
#[case::a_node_of_the_same_name_is_not_the_one_that_was_meant(
    cluster(node("n1", json!({})), Some(drain(json!({ "metadata": { "finalizers": null }, "spec": { "nodeUID": "uid-before" } }))), &[], &[held("a", json!({}))]),
    &["n1 is Failed: NodeReplaced"]
)]
fn what_is_not_its_to_do_is_left(#[case] cluster: Cluster, #[case] expected: &[&str]) {
    let lines = shown(&planned(&cluster));
    let lines: Vec<_> = lines.iter().filter(|line| !line.starts_with("ledger: n3")).collect();
    assert_eq!(lines, expected);
}

/// `b` of the same budget is down on `n2`.
#[rstest]
#[case::no_claim(None, &["WaitsForUnits"])]
#[case::queued_claim(Some(claim(json!({}))), &["WaitsForUnits"])]
#[case::asking_claim(Some(claim(json!({ "needs": [units(&["a"])] }))), &["WaitsForUnits"])]
#[case::suspect_claim(Some(granted("Suspect", &["a"])), &["Suspect"])]
#[case::granted_claim(Some(granted("Confirmed", &["a"])), &[])]
fn dry_run_and_explanation_name_the_same_obstacles(#[case] own: Option<Value>, #[case] expected: &[&str]) {
    let other = json!({ "ticket": 2, "node": "n2", "nodeUID": "uid-n2" });
    let claims: Vec<Value> = own
        .into_iter()
        .chain([merged(granted("Confirmed", &["b"]), other)])
        .collect();
    let dry_run = drain(json!({ "spec": { "dryRun": true } }));
    let cluster = cluster(node("n1", json!({})), Some(dry_run), &claims, &[held("a", json!({}))]);
    let plan = planned(&cluster);
    let verdict = plan
        .drains
        .iter()
        .find(|verdict| verdict.node.as_str() == "n1")
        .unwrap();
    let explained = explain(&cluster.world(), &policy(), "n1", now()).unwrap();
    assert_eq!(explained.obstacles, verdict.blocked_by);
    let reasons: Vec<_> = verdict.blocked_by.iter().map(|why| why.reason.as_str()).collect();
    assert_eq!(reasons, expected);
}

/// How a drain ends.
#[rstest]
#[case::the_last_requester_released_it(
    cluster(ours(json!({})), Some(drain(json!({ "spec": { "requesters": [] } }))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["delete NodeDrain: Cancelled", "n1 is Recovering"]
)]
#[case::somebody_uncordoned_its_node(
    cluster(ours(json!({ "spec": { "unschedulable": null } })), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["delete NodeDrain: Uncordoned", "n1 is Recovering"]
)]
#[case::its_node_is_gone(
    cluster(node("n9", json!({})), Some(drain(json!({}))), &[granted("Confirmed", &["a"])], &[]),
    &["delete NodeDrain: NodeGone", "n1 is Recovering"]
)]
#[case::deleted_while_its_pods_run(
    cluster(ours(json!({})), Some(drain(leaving(json!({})))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["ledger: empty", "uncordon n1", "n1 is Recovering"]
)]
#[case::deleted_while_a_pod_is_down(
    cluster(ours(json!({})), Some(drain(leaving(json!({})))), &[granted("Confirmed", &["a"])], &[held("a", leaving(json!({})))]),
    &["ledger: n1#1 Recovering needs [] holds [a]", "uncordon n1", "n1 is Recovering: AwaitingReady"]
)]
#[case::a_retained_pod_of_a_drained_node_is_down_until_it_is_back(
    cluster(
        ours(json!({})), Some(drain(leaving(json!({})))), &[merged(granted("Confirmed", &["(a)"]), json!({ "drained": true }))],
        &[retained("a", json!({}))],
    ),
    &["ledger: n1#1 Recovering needs [] holds [a]", "uncordon n1", "n1 is Recovering: AwaitingReady"]
)]
#[case::a_foreign_cordon_is_never_lifted(
    cluster(foreign(json!({})), Some(drain(leaving(json!({})))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["ledger: empty", "n1 is Recovering"]
)]
#[case::nothing_is_left(
    cluster(node("n1", json!({})), Some(drain(leaving(json!({})))), &[], &[]),
    &["let NodeDrain go", "n1 is Released"]
)]
#[case::a_claim_without_a_drain_ends(
    cluster(node("n1", json!({})), None, &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["ledger: empty"]
)]
#[case::a_cordon_that_a_drain_left_is_lifted(cluster(ours(json!({})), None, &[], &[]), &["uncordon n1"])]
#[case::an_administrator_frees_what_is_down(
    cluster(
        ours(json!({})), Some(drain(json!({ "metadata": { "annotations": { nodeward_api::annotation::RELEASE: "alice: disk is dead" } } }))),
        &[granted("Suspect", &["a"])], &[held("a", leaving(json!({})))],
    ),
    &["ledger: empty", "delete NodeDrain: Cancelled", "n1 is Recovering"]
)]
#[case::a_foreign_drainer_is_silent_and_nothing_is_down(
    cluster(
        foreign(json!({})), Some(silent_drain_of(&["eviction:alice"])), &[granted("Confirmed", &["a"])], &[held("a", json!({}))],
    ),
    &["delete NodeDrain: GivenUp", "n1 is Recovering"]
)]
#[case::two_foreign_drainers_are_silent(
    cluster(
        foreign(json!({})), Some(silent_drain_of(&["eviction:alice", "eviction:bob"])),
        &[granted("Confirmed", &["a"])], &[held("a", json!({}))],
    ),
    &["delete NodeDrain: GivenUp", "n1 is Recovering"]
)]
#[case::a_silent_drainer_ends_no_drain_that_a_machine_wants(
    cluster(
        foreign(json!({})), Some(silent_drain_of(&["eviction:alice", "fleetlock:workers:n1"])),
        &[merged(granted("Confirmed", &["(a)"]), json!({ "drained": true, "foreignCordon": true }))], &[retained("a", json!({}))],
    ),
    &["n1 is Drained"]
)]
#[case::but_one_that_nobody_goes_on_with(
    cluster(
        foreign(json!({})), Some(silent_drain_of(&["eviction:alice", "fleetlock:workers:n1"])),
        &[merged(granted("Confirmed", &["a"]), json!({ "foreignCordon": true }))], &[held("a", json!({}))],
    ),
    &["delete NodeDrain: GivenUp", "n1 is Recovering"]
)]
#[case::nor_one_whose_claim_is_in_a_later_versions_state(
    cluster(
        foreign(json!({})), Some(silent_drain_of(&["eviction:alice"])), &[granted("Unknown", &["a"])], &[held("a", json!({}))],
    ),
    &["n1 is Queued: NotPlanned"]
)]
#[case::an_administrator_releases_a_claim_in_a_later_versions_state(
    cluster(
        ours(json!({})), Some(drain(json!({ "metadata": { "annotations": { "nodeward.dev/release": "alice: nothing is down" } } }))),
        &[granted("Unknown", &["a"])], &[held("a", json!({}))],
    ),
    &["ledger: empty", "delete NodeDrain: Cancelled", "n1 is Recovering"]
)]
#[case::a_foreign_drain_is_over_when_its_node_and_pods_are_back(
    cluster(
        foreign(rebooted()), Some(drain(json!({ "spec": { "evict": "Requester" } }))),
        &[claim(json!({ "state": "Confirmed", "bootID": "boot-1", "drained": true, "foreignCordon": true }))], &[],
    ),
    &["delete NodeDrain: Released", "n1 is Recovering"]
)]
#[case::pods_of_a_node_that_is_gone_count_as_down_until_they_are_deleted(
    cluster(node("n9", json!({})), Some(drain(leaving(json!({})))), &[granted("Confirmed", &["a"])], &[held("a", json!({}))]),
    &["ledger: n1#1 Recovering needs [] holds [a]", "n1 is Recovering: AwaitingReady"]
)]
#[case::a_pod_that_stayed_and_outlived_its_node_is_not_down(
    cluster(
        node("n1", json!({ "metadata": { "uid": "uid-again" } })), Some(drain(leaving(json!({})))),
        &[merged(granted("Suspect", &["(a)"]), json!({ "drained": false }))], &[retained("a", json!({}))],
    ),
    &["ledger: empty", "n1 is Recovering"]
)]
fn a_drain_ends_by_what_is_observed(#[case] cluster: Cluster, #[case] expected: &[&str]) {
    assert_eq!(shown(&planned(&cluster)), expected);
}

fn with_fallback(fallback: &str) -> Value {
    drain(json!({ "spec": { "fallback": fallback } }))
}

fn granted_yesterday(pods: &[&str]) -> Value {
    merged(
        granted("Confirmed", pods),
        json!({ "since": YESTERDAY, "queuedAt": "2025-12-31T11:59:00Z" }),
    )
}

#[test]
fn a_held_pod_that_cannot_go_now_keeps_no_other_from_leaving() {
    let cluster = cluster(
        ours(json!({})),
        Some(drain(json!({}))),
        &[granted("Confirmed", &["a", "d"])],
        &[held("a", json!({})), held("d", json!({}))],
    );
    let mut memory = Memory::default();
    memory.note_eviction(PodUid::from("uid-a"), false, at("2026-01-01T12:00:10Z"));
    let one_at_a_time = Policy {
        evictions_per_node: 1,
        ..policy()
    };
    let lines = shown(&plan(&cluster.snapshot(), &memory, &one_at_a_time, now()));
    assert!(lines.contains(&"evict d under 1/5".to_owned()), "{lines:?}");
}

#[rstest]
fn a_drained_node_that_stays_away_is_suspect_and_keeps_its_units(#[values(false, true)] by_fallback: bool) {
    let claim = merged(
        granted_yesterday(&["(a)"]),
        json!({ "drained": true, "byFallback": by_fallback }),
    );
    let away = ours(json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } }));
    let lines = shown(&planned(&cluster(
        away,
        Some(drain(json!({}))),
        &[claim],
        &[retained("a", json!({}))],
    )));
    assert_eq!(
        lines,
        [
            "ledger: n1#1 DrainedSuspect needs [] holds [a]",
            "n1 is Suspect: Suspect"
        ]
    );
}

#[rstest]
#[case::nobody_else_wants_the_drain(&["eviction:bob"], &["ledger: n1#1 Suspect needs [] holds [a]", "n1 is Suspect: Suspect"])]
#[case::a_machine_does(&["eviction:bob", "fleetlock:workers:n1"], &["n1 is Draining"])]
fn a_foreign_drainer_that_vanished_with_pods_down_is_suspect(#[case] requesters: &[&str], #[case] expected: &[&str]) {
    let claim = merged(granted("Confirmed", &["a"]), json!({ "foreignCordon": true }));
    let lines = shown(&planned(&cluster(
        foreign(json!({})),
        Some(silent_drain_of(requesters)),
        &[claim],
        &[held("a", leaving(json!({})))],
    )));
    assert_eq!(lines, expected);
}

#[test]
fn a_requeued_drain_with_pods_down_lifts_its_own_cordon_and_waits_for_them() {
    let claim = claim(json!({ "holds": [units(&["a"])] }));
    let lines = shown(&planned(&cluster(
        ours(json!({})),
        Some(drain(json!({}))),
        &[claim],
        &[held("a", leaving(json!({})))],
    )));
    assert_eq!(lines, ["uncordon n1", "n1 is Recovering"]);
}

#[rstest]
#[case::free(json!({ "holderIdentity": "" }), &["take lease", "n1 is Granted: AwaitsConfirmation"])]
#[case::ours(json!({ "holderIdentity": lease::HOLDER, "renewTime": "2026-01-01T11:59:00.000000Z", "leaseDurationSeconds": 600 }), &[
    "ledger: n1#1 Granted needs [] holds [a]", "confirm uid-n1 5", "n1 is Granted: AwaitsConfirmation",
])]
#[case::of_others_its_units_go_back(json!({ "holderIdentity": "medik8s", "renewTime": "2026-01-01T11:59:00.000000Z", "leaseDurationSeconds": 600 }), &[
    "ledger: n1#9 Asking needs [a] holds []", "n1 is Granted: AwaitsConfirmation",
])]
fn a_grant_is_used_with_the_nodes_lease_in_hand(#[case] spec: Value, #[case] expected: &[&str]) {
    let lease = json!({ "metadata": { "namespace": "medik8s-leases", "name": "node-n1", "resourceVersion": "3" }, "spec": spec });
    let cluster = cluster(
        ours(json!({})),
        Some(drain(json!({}))),
        &[granted("Granted", &["a"])],
        &[held("a", json!({}))],
    );
    let policy = Policy::from_config(Config::default()).unwrap();
    let plan = plan(&cluster.leases([lease]).snapshot(), &Memory::default(), &policy, now());
    assert_eq!(shown(&plan), expected);
}

#[test]
fn an_eviction_that_was_asked_for_is_not_asked_for_again_and_its_unit_is_spent() {
    let mut memory = Memory::default();
    let until = at("2026-01-01T12:00:10Z");
    memory.note_eviction(PodUid::from("uid-a"), true, until);
    let pods = [pod("a", json!({})), pod("d", json!({}))];
    let cluster = cluster(ours(json!({})), Some(drain(json!({}))), &[claim(json!({}))], &pods);
    let plan = plan(&cluster.snapshot(), &memory, &policy(), now());
    assert_eq!(shown(&plan), ["n1 is Queued: BudgetUnhealthy"]);
}

#[test]
fn the_unit_that_a_movable_pod_takes_is_granted_to_nobody_in_the_same_pass() {
    let second = json!({
        "metadata": { "annotations": { nodeward_api::annotation::CORDONED_BY: "uid-second" } }, "spec": { "unschedulable": true },
    });
    let stays_there = json!({ "spec": { "nodeName": "n2", "nodeSelector": { "kubernetes.io/hostname": "n2" } } });
    let pods = [
        pod("a", json!({})),
        pod("b", stays_there),
        pod("c", json!({ "spec": { "nodeName": "n3" } })),
    ];
    let cluster = |free: i64| {
        Cluster::new([ours(json!({})), node("n2", second.clone()), node("n3", json!({}))], pods.clone())
            .budgets([budget("web", json!({ "status": { "disruptionsAllowed": free, "desiredHealthy": 3 - free } }))])
            .drains([
                drain(json!({})),
                drain(json!({ "metadata": { "name": "n2", "uid": "uid-second" }, "spec": { "nodeName": "n2", "nodeUID": "uid-n2" } })),
            ])
            .ledger(json!({ "nextTicket": 9, "claims": [
                claim(json!({})), claim(json!({ "ticket": 2, "node": "n2", "nodeUID": "uid-n2" })),
            ] }))
    };
    let grants = |plan: &Plan| plan.ledger.as_ref().map_or(0, |write| write.grants.len());
    let is_evicted = |plan: &Plan| plan.actions.iter().any(|action| matches!(action, Action::Evict { .. }));
    let plan = planned(&cluster(1));
    assert!(is_evicted(&plan) && grants(&plan) == 0, "{:?}", shown(&plan));
    let plan = planned(&cluster(2));
    assert!(is_evicted(&plan) && grants(&plan) == 1, "{:?}", shown(&plan));
}

#[rstest]
#[case::nobody_needs_its_room(None, None, true)]
#[case::a_movable_pod(Some(pod("a", json!({}))), None, false)]
#[case::one_on_its_way_out(Some(pod("a", json!({ "metadata": { "deletionTimestamp": A_MINUTE_AGO } }))), None, false)]
#[case::one_that_has_just_gone(None, Some(pod("a", json!({}))), false)]
#[case::what_replaces_it(Some(waiting("a", json!({ "metadata": { "creationTimestamp": "2026-01-01T11:59:50Z" } }))), None, false)]
#[case::a_pod_that_has_waited_in_vain(Some(waiting("a", json!({ "metadata": { "creationTimestamp": A_MINUTE_AGO } }))), None, true)]
fn no_cordon_takes_the_last_room_of_a_pod_that_another_drain_moves(
    #[case] present: Option<Value>,
    #[case] departed: Option<Value>,
    #[case] is_cordoned: bool,
) {
    let nodes = [ours(json!({})), node("n2", json!({}))];
    let second =
        json!({ "metadata": { "name": "n2", "uid": "uid-second" }, "spec": { "nodeName": "n2", "nodeUID": "uid-n2" } });
    let cluster = Cluster::new(nodes.clone(), present)
        .drains([drain(json!({})), drain(second)])
        .ledger(json!({ "nextTicket": 9, "claims": [
            claim(json!({})), claim(json!({ "ticket": 2, "node": "n2", "nodeUID": "uid-n2" })),
        ] }));
    let mut memory = Memory::default();
    if let Some(pod) = departed {
        let before = Cluster::new(nodes, [pod]).snapshot();
        memory.note_departing(
            before.pods_of(&"n1".into()).to_vec(),
            now() + SignedDuration::from_secs(1),
        );
    }
    let plan = plan(&cluster.snapshot(), &memory, &policy(), now());
    let cordons = shown(&plan).iter().any(|line| line == "cordon n2");
    assert_eq!(cordons, is_cordoned, "{:?}", shown(&plan));
}

#[test]
fn of_two_that_want_the_last_unit_the_older_is_granted_it() {
    let second = json!({ "ticket": 2, "node": "n3", "nodeUID": "uid-n3" });
    let on_n3 = json!({ "spec": { "nodeName": "n3", "nodeSelector": { "kubernetes.io/hostname": "n3" } } });
    let n3 = merged(
        ours(json!({})),
        json!({
            "metadata": { "name": "n3", "uid": "uid-n3", "labels": { "kubernetes.io/hostname": "n3" }, "annotations": { nodeward_api::annotation::CORDONED_BY: "uid-drain-3" } },
        }),
    );
    let drain_3 = drain(
        json!({ "metadata": { "name": "n3", "uid": "uid-drain-3" }, "spec": { "nodeName": "n3", "nodeUID": "uid-n3" } }),
    );
    let cluster = Cluster::new(
        [ours(json!({})), n3, node("n2", json!({}))],
        [held("a", json!({})), pod("d", on_n3)]
            .into_iter()
            .chain(siblings().into_iter().take(1)),
    )
    .budgets([budget("web", json!({}))])
    .drains([drain(json!({})), drain_3])
    .ledger(json!({ "nextTicket": 9, "claims": [claim(json!({})), claim(second)] }));
    let plan = plan(
        &cluster.snapshot_of(&["n1", "n3"]),
        &Memory::default(),
        &policy(),
        now(),
    );
    let grants: Vec<_> = plan
        .ledger
        .unwrap()
        .grants
        .into_iter()
        .map(|ask| ask.node_uid)
        .collect();
    assert_eq!(grants, [NodeUid::from("uid-n1")]);
}

#[test]
fn what_a_deadline_will_change_wakes_the_plan_in_time() {
    let cluster = cluster(
        ours(json!({})),
        Some(drain(json!({ "spec": { "deadlines": { "drain": "5m" } } }))),
        &[granted("Confirmed", &["a"])],
        &[held("a", leaving(json!({})))],
    )
    .budgets([budget("web", json!({ "status": { "currentHealthy": 2 } }))]);
    let requeue_at = planned(&cluster).requeue_at.unwrap();
    assert_eq!(
        requeue_at.duration_since(at(A_MINUTE_AGO)),
        SignedDuration::from_mins(5)
    );
}

#[rstest]
#[case::known_format(0, 0, false)]
#[case::later_format(1, 0, true)]
#[case::budget_outside_the_table(0, 7, true)]
fn unreadable_ledger_gives_an_empty_plan(#[case] ahead: i32, #[case] place: u32, #[case] is_empty: bool) {
    let claims = [granted("Confirmed", &["a"])];
    let mut cluster = cluster(
        ours(json!({})),
        Some(drain(json!({}))),
        &claims,
        &[held("a", json!({}))],
    );
    let spec = &mut cluster.0.ledger.as_mut().unwrap().spec;
    spec.format_version += ahead;
    spec.claims[0].holds[0].budget = place;
    let plan = planned(&cluster);
    let has_nothing = plan.ledger.is_none() && plan.actions.is_empty() && plan.drains.is_empty();
    assert_eq!(has_nothing, is_empty, "{plan:?}");
}
