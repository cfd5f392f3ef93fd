use kube::runtime::watcher::Event;
use nodeward_core::ledger::{Claim, ClaimState, Disruptions, HeldPod, Ledger, Need};
use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::advance;

use super::*;
use crate::soak::drains::applications;

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// One that follows the applications of a soak; the budgets of the pinned ones allow one pod to be away.
fn judge() -> Judge {
    Judge::new(&applications::draw(1))
}

/// With the override of a pod, so many seconds after noon.
fn budget(app: &str, version: u64, overridden: Option<(&str, u64)>) -> PodDisruptionBudget {
    let record = overridden.map(|(pod, second)| {
        let at = format!("2026-01-01T12:00:{second:02}Z");
        json!({ LAST_OVERRIDE: json!({ "at": at, "pod": pod, "uid": pod }).to_string() })
    });
    object(json!({
        "metadata": { "name": app, "resourceVersion": version.to_string(), "annotations": record },
    }))
}

/// What is seen of a pod whose UID is its name.
#[derive(Clone, Copy)]
enum Seen {
    Ready,
    Unready,
    /// Deleted; by whom is in the condition.
    Ends(Option<&'static str>),
    Gone,
}

fn pod(app: &str, name: &str, node: &str, version: u64, seen: Seen) -> Event<Pod> {
    let ready = if matches!(seen, Seen::Unready) { "False" } else { "True" };
    let mut pod = json!({
        "metadata": { "name": name, "uid": name, "resourceVersion": version.to_string(), "labels": { "app": app } },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "conditions": [{ "type": "Ready", "status": ready }] },
    });
    if let Seen::Ends(reason) = seen {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T12:00:00Z");
        if let Some(reason) = reason {
            let target = json!({ "type": "DisruptionTarget", "status": "True", "reason": reason });
            pod["status"]["conditions"].as_array_mut().unwrap().push(target);
        }
    }
    match seen {
        Seen::Gone => Event::Delete(object(pod)),
        _ => Event::Apply(object(pod)),
    }
}

/// A pod on each of two nodes.
fn two_pods(judge: &mut Judge, app: &str) {
    for number in 1..=2 {
        judge.take_pod(pod(
            app,
            &format!("a{number}"),
            &format!("n{number}"),
            number,
            Seen::Ready,
        ));
    }
}

fn broken(judge: &mut Judge) -> String {
    judge.settle();
    judge.hold().err().map(|error| error.to_string()).unwrap_or_default()
}

const BY_EVICTION: Seen = Seen::Ends(Some(EVICTED));

/// What happens to the pods `a1` on `n1` and `a2` on `n2`, and whether the budget of one bears it.
#[rstest]
#[case::one_is_evicted(&[("a1", "n1", BY_EVICTION)], true)]
#[case::both_are_evicted(&[("a1", "n1", BY_EVICTION), ("a2", "n2", BY_EVICTION)], false)]
#[case::first_is_replaced(&[("a1", "n1", BY_EVICTION), ("b1", "n1", Seen::Ready), ("a2", "n2", BY_EVICTION)], true)]
#[case::first_is_gone_and_not_replaced(&[("a1", "n1", BY_EVICTION), ("a1", "n1", Seen::Gone), ("a2", "n2", BY_EVICTION)], false)]
#[case::other_was_not_ready(&[("a2", "n2", Seen::Unready), ("a1", "n1", BY_EVICTION), ("a2", "n2", BY_EVICTION)], true)]
#[case::others_node_failed(&[("a1", "n1", BY_EVICTION), ("a2", "n2", Seen::Unready)], true)]
#[case::other_is_deleted_by_its_controller(&[("a1", "n1", BY_EVICTION), ("a2", "n2", Seen::Ends(None))], true)]
#[tokio::test(start_paused = true)]
async fn evictions_beyond_the_budget_are_found(#[case] events: &[(&str, &str, Seen)], #[case] is_borne: bool) {
    let mut judge = judge();
    two_pods(&mut judge, "pinned-0");
    for (version, (name, node, seen)) in (10..).zip(events) {
        judge.take_pod(pod("pinned-0", name, node, version, *seen));
    }
    assert_eq!(broken(&mut judge).is_empty(), is_borne);
}

#[tokio::test(start_paused = true)]
async fn retained_pods_of_two_rebooting_nodes_are_found() {
    let mut judge = judge();
    two_pods(&mut judge, "retained-0");
    judge.reboots("n1", true);
    judge.take_pod(pod("retained-0", "a1", "n1", 10, Seen::Unready));
    // That one's node fails by itself.
    judge.take_pod(pod("retained-0", "a2", "n2", 11, Seen::Unready));
    judge.take_pod(pod("retained-0", "a2", "n2", 12, Seen::Ready));
    assert_eq!(broken(&mut judge), "");
    judge.reboots("n2", true);
    judge.take_pod(pod("retained-0", "a2", "n2", 13, Seen::Unready));
    assert!(broken(&mut judge).contains(r#"{"n1", "n2"}"#), "{}", broken(&mut judge));
}

/// A pod of this application is forced; its owner has held the budget for so long.
#[rstest]
#[case::recorded("strict", None, true, "")]
#[case::not_recorded("strict", None, false, "does not record it")]
#[case::never("never", None, true, "forbids it for ever")]
#[case::held("strict", Some(10), true, "while its owner holds its budget")]
#[case::held_just_now("strict", Some(1), true, "")]
#[tokio::test(start_paused = true)]
async fn forcing_against_the_budget_is_found(
    #[case] app: &str,
    #[case] held: Option<u64>,
    #[case] is_recorded: bool,
    #[case] expected: &str,
) {
    let mut judge = judge();
    two_pods(&mut judge, app);
    if let Some(seconds) = held {
        judge.take_hold(Event::Apply(object(
            json!({ "metadata": { "name": "h" }, "spec": { "pdbRef": app, "reason": "" } }),
        )));
        advance(Duration::from_secs(seconds)).await;
    }
    if is_recorded {
        judge.take_budget(&budget(app, 10, Some(("a1", 0))));
    }
    judge.take_pod(pod(app, "a1", "n1", 11, Seen::Ends(Some(FORCED))));
    advance(SETTLED_AFTER).await;
    let found = broken(&mut judge);
    assert!(
        found.contains(expected) && found.is_empty() == expected.is_empty(),
        "{found}"
    );
}

/// The first pod is deleted and gone at these versions; the second override is recorded at version 20, so many seconds after
/// the first.
#[rstest]
#[case::first_is_gone(Some(11), Some(15), 5, true)]
#[case::first_is_on_its_way(Some(11), None, 5, false)]
#[case::first_goes_later(Some(11), Some(25), 5, false)]
#[case::first_was_never_deleted(None, None, 5, true)]
#[case::spacing_has_passed(Some(11), None, 20, true)]
#[tokio::test(start_paused = true)]
async fn second_override_before_the_first_ended_is_found(
    #[case] deleted: Option<u64>,
    #[case] gone: Option<u64>,
    #[case] after: u64,
    #[case] is_right: bool,
) {
    let mut judge = judge();
    two_pods(&mut judge, "strict");
    judge.take_budget(&budget("strict", 10, Some(("a1", 0))));
    if let Some(version) = deleted {
        judge.take_pod(pod("strict", "a1", "n1", version, Seen::Ends(Some(FORCED))));
    }
    judge.take_budget(&budget("strict", 20, Some(("a2", after))));
    if let Some(version) = gone {
        judge.take_pod(pod("strict", "a1", "n1", version, Seen::Gone));
    }
    assert_eq!(broken(&mut judge), "", "before all watches have told");
    advance(SETTLED_AFTER).await;
    assert_eq!(broken(&mut judge).is_empty(), is_right, "{}", broken(&mut judge));
}

fn claim(ticket: i64, node: &str, state: ClaimState, pod: &str) -> Claim {
    let mut claim: Claim = object(json!({
        "ticket": ticket, "node": node, "nodeUID": node, "state": state,
        "since": "2026-01-01T12:00:00Z", "queuedAt": "2026-01-01T12:00:00Z",
    }));
    let held = HeldPod {
        name: pod.to_owned(),
        uid: pod.to_owned(),
        ..HeldPod::default()
    };
    let mut disruptions = Disruptions {
        pods: vec![held],
        ..Disruptions::default()
    };
    "pinned-0".clone_into(&mut disruptions.pdb.name);
    claim.holds = vec![disruptions];
    claim
}

#[rstest]
#[case::in_order(&[(1, "n1"), (2, "n2")], "")]
#[case::two_of_a_node(&[(1, "n1"), (2, "n1")], "two claims of one node")]
#[case::out_of_order(&[(2, "n1"), (1, "n2")], "out of order")]
#[tokio::test(start_paused = true)]
async fn ledger_that_is_no_queue_is_found(#[case] claims: &[(i64, &str)], #[case] expected: &str) {
    let mut judge = judge();
    let claims = claims
        .iter()
        .map(|(ticket, node)| claim(*ticket, node, ClaimState::Waiting, "a"));
    judge.take_ledger(Ok(Ledger::of(9, claims.collect())));
    let found = broken(&mut judge);
    assert!(
        found.contains(expected) && found.is_empty() == expected.is_empty(),
        "{found}"
    );
}

#[tokio::test(start_paused = true)]
async fn grant_of_less_than_all_is_found() {
    let mut judge = judge();
    let mut granted = claim(1, "n1", ClaimState::Granted, "a1");
    judge.take_ledger(Ok(Ledger::of(2, vec![granted.clone()])));
    assert_eq!(broken(&mut judge), "");
    granted.needs = vec![Need::default()];
    judge.take_ledger(Ok(Ledger::of(2, vec![granted])));
    assert!(broken(&mut judge).contains("less than it needs"));
}

/// The pod of a budget that its owner has held for so long is granted; the grant may be older than the hold.
#[rstest]
#[case::held(10, false, false)]
#[case::held_just_now(1, false, true)]
#[case::granted_before(10, true, true)]
#[tokio::test(start_paused = true)]
async fn grant_against_the_owners_hold_is_found(#[case] held: u64, #[case] before: bool, #[case] is_right: bool) {
    let mut judge = judge();
    two_pods(&mut judge, "pinned-0");
    let granted = Ledger::of(2, vec![claim(1, "n1", ClaimState::Granted, "a1")]);
    if before {
        judge.take_ledger(Ok(granted.clone()));
    }
    judge.take_hold(Event::Apply(object(
        json!({ "metadata": { "name": "h" }, "spec": { "pdbRef": "pinned-0", "reason": "" } }),
    )));
    advance(Duration::from_secs(held)).await;
    judge.take_ledger(Ok(granted));
    assert_eq!(broken(&mut judge).is_empty(), is_right);
}
