//! How far the ledger is filled.

use nodeward_core::ledger::size;

use super::*;

/// The claim of a node that is away, with this many pods of long names.
fn large(pods: usize) -> Value {
    let names: Vec<String> = (0..pods).map(|pod| format!("{pod:0>240}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let other = json!({ "ticket": 2, "node": "n9", "nodeUID": "uid-n9" });
    merged(granted("Confirmed", &names), other)
}

/// So many of them fill the ledger to where no further claim is queued.
fn filling() -> usize {
    let bytes = |pods: usize| {
        let ledger = cluster(node("n1", json!({})), None, &[large(pods)], &[])
            .snapshot()
            .ledger;
        ledger.map_or(0, |ledger| ledger.bytes)
    };
    size::FOR_CLAIMS
        .div_ceil(bytes(1001) - bytes(1000))
        .saturating_sub(bytes(1000) / 100_000)
}

/// The lines about `n1`, and whether it has a claim.
fn about_n1(plan: &Plan) -> (Vec<String>, bool) {
    let lines = shown(plan).into_iter().filter(|line| line.contains("n1"));
    let next = plan.ledger.as_ref().map(|write| &write.next);
    let has_claim = next.is_some_and(|ledger| ledger.claim("uid-n1").is_some());
    (lines.filter(|line| !line.starts_with("ledger")).collect(), has_claim)
}

#[rstest]
#[case::half_full(filling() / 2, &["cordon n1", "n1 is Queued"], true)]
#[case::full(filling(), &["n1 is Queued: LedgerFull"], false)]
fn full_ledger_queues_no_further_claim(#[case] pods: usize, #[case] expected: &[&str], #[case] is_queued: bool) {
    let cluster = cluster(
        node("n1", json!({})),
        Some(drain(json!({}))),
        &[large(pods)],
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
    let claims = [granted("Confirmed", &["a"]), large(filling())];
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
    let mut cluster = cluster(node("n9", json!({})), None, &[large(filling())], &[]);
    cluster.0.nodes.clear();
    let plan = planned(&cluster);
    let write = plan.ledger.unwrap();
    assert!(write.next.stored_bytes() < write.base.unwrap().bytes / 2);
}
