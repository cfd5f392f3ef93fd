//! How far the ledger is filled.

use nodeward_core::ledger::size;

use super::*;

/// The claim of a node that is away: with its few pods, of very long names, the ledger has this part of what it may have before
/// no further claim is queued.
fn large(percent: usize) -> Value {
    const PODS: usize = 50;
    let length = size::FOR_CLAIMS * percent / 100 / PODS / 2;
    let pods: Vec<Value> = (0..PODS)
        .map(|pod| json!({ "name": format!("{pod:0>length$}"), "uid": format!("{pod:0>length$}") }))
        .collect();
    let held = json!({ "pdb": { "namespace": "shop", "name": "db", "uid": "uid-db" }, "pods": pods });
    let other = json!({ "ticket": 2, "node": "n9", "nodeUID": "uid-n9", "holds": [held] });
    merged(granted("Confirmed", &[]), other)
}

/// The lines that are not about the other node, and whether `n1` has a claim.
fn about_n1(plan: &Plan) -> (Vec<String>, bool) {
    let lines = shown(plan).into_iter().filter(|line| !line.contains("n9"));
    let next = plan.ledger.as_ref().map(|write| &write.next);
    let has_claim = next.is_some_and(|ledger| ledger.claim("uid-n1").is_some());
    (lines.filter(|line| !line.starts_with("ledger")).collect(), has_claim)
}

#[rstest]
#[case::nearly_full(99, &["cordon n1", "n1 is Scheduled"], true)]
#[case::full(100, &["n1 is Queued: LedgerFull"], false)]
fn full_ledger_queues_no_further_claim(#[case] percent: usize, #[case] expected: &[&str], #[case] is_queued: bool) {
    let cluster = cluster(
        node("n1", json!({})),
        Some(drain(json!({}))),
        &[large(percent)],
        &[held("a", json!({}))],
    );
    let (lines, has_claim) = about_n1(&planned(&cluster));
    assert_eq!(
        (lines, has_claim),
        (expected.iter().map(|line| (*line).to_owned()).collect(), is_queued)
    );
}

#[test]
fn claims_in_a_full_ledger_go_on() {
    let claims = [granted("Confirmed", &["a"]), large(110)];
    let cluster = cluster(
        ours(json!({})),
        Some(drain(json!({}))),
        &claims,
        &[held("a", json!({}))],
    );
    let (lines, _) = about_n1(&planned(&cluster));
    assert_eq!(lines, ["evict a under 1/5", "n1 is Draining"]);
}

/// Of the pods of a node that is gone none is down any more.
#[test]
fn full_ledger_shrinks() {
    let mut cluster = cluster(node("n9", json!({})), None, &[large(110)], &[]);
    cluster.0.nodes.clear();
    let plan = planned(&cluster);
    let write = plan.ledger.unwrap();
    assert!(write.next.stored_bytes() < write.base.unwrap().bytes / 2);
}
