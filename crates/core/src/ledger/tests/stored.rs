//! What is stored, how large it is, and what cannot be read.

use nodeward_api::drain_ledger::DrainLedgerSpec;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// What a reader sees of a ledger that was written.
fn reread(ledger: &Ledger) -> Ledger {
    let text = serde_json::to_string(&DrainLedgerSpec::from(ledger)).unwrap();
    Ledger::try_from(&serde_json::from_str::<DrainLedgerSpec>(&text).unwrap()).unwrap()
}

fn stored(ledger: &Ledger) -> Value {
    serde_json::to_value(DrainLedgerSpec::from(ledger)).unwrap()
}

#[test]
fn what_is_stored_is_read_again() {
    let all = facts([budget("web"), budget("db"), without(budget("api"), "api-1")]);
    let mut ledger = queue(&[
        ("a", &["web-0", "db-0"]),
        ("b", &["db-1", "api-0", "api-1"]),
        ("c", &[]),
    ]);
    grant(&mut ledger, "a", &all);
    ledger.count_needs(&all);
    let read = reread(&ledger);
    assert_eq!(read, ledger);
    assert_eq!(reread(&read), read, "reading and writing changes nothing");
    assert_eq!(
        stored(&ledger),
        json!({
            "formatVersion": 1, "nextTicket": 4,
            "budgets": [
                { "namespace": "shop", "name": "api", "uid": "uid of api" },
                { "namespace": "shop", "name": "db", "uid": "uid of db", "healthyAtGrant": 3 },
                { "namespace": "shop", "name": "web", "uid": "uid of web", "healthyAtGrant": 3 },
            ],
            "claims": [
                {
                    "ticket": 1, "node": "a", "nodeUID": "a", "state": "Confirmed", "since": "1970-01-01T00:00:00Z",
                    "queuedAt": "1970-01-01T00:00:00Z", "grant": 1, "bootID": "boot", "holds": ["1/db-0/db-0", "2/web-0/web-0"],
                },
                {
                    "ticket": 2, "node": "b", "nodeUID": "b", "state": "Waiting", "since": "1970-01-01T00:00:00Z",
                    "queuedAt": "1970-01-01T00:00:00Z", "grant": 0,
                    "needs": [{ "budget": 0, "disruptions": 2, "healthy": 1 }, { "budget": 1, "disruptions": 1, "healthy": 1 }],
                },
                {
                    "ticket": 3, "node": "c", "nodeUID": "c", "state": "Waiting", "since": "1970-01-01T00:00:00Z",
                    "queuedAt": "1970-01-01T00:00:00Z", "grant": 0,
                },
            ],
        })
    );
}

/// Of two drains that overlap, the second is granted after a pod has failed for good.
#[test]
fn each_claim_keeps_its_own_healthy_count() {
    let wide = BudgetFacts {
        disruptions_allowed: 3,
        desired_healthy: 0,
        ..budget("web")
    };
    let mut ledger = queue(&[("a", &["web-0"]), ("b", &["web-1"]), ("c", &["web-2"])]);
    grant(&mut ledger, "a", &facts([wide.clone()]));
    grant(&mut ledger, "b", &facts([without(wide, "web-2")]));
    let read = reread(&ledger);
    let healthy = |node: &str| claim(&read, node).holds[0].healthy_at_grant;
    assert_eq!((healthy("a"), healthy("b")), (3, 2));
    assert_eq!(DrainLedgerSpec::from(&read), DrainLedgerSpec::from(&ledger));
    assert_eq!(read.claims()[2].needs[0].pdb, ledger.claims()[2].needs[0].pdb);
}

/// Pods of a Deployment, of which the newest was created then.
fn of_deployment(newest: &str, missing: i32) -> BudgetFacts {
    BudgetFacts {
        disruptions_allowed: 3,
        desired_healthy: 0,
        pods: BudgetPods {
            all: 3,
            expected: 3 + missing,
            standing: 3,
            newest: Some(newest.parse().unwrap()),
        },
        ..budget("web")
    }
}

#[test]
fn first_grant_in_force_keeps_its_pods() {
    let kept = |ledger: &Ledger| {
        let stored = stored(&reread(ledger));
        let row = &stored["budgets"][0];
        (row["newestPod"].clone(), row["missingPods"].clone())
    };
    let mut ledger = queue(&[("a", &["web-0"]), ("b", &["web-1"]), ("c", &["web-2"])]);
    grant(&mut ledger, "a", &facts([of_deployment("2026-01-01T12:00:00Z", 1)]));
    assert_eq!(kept(&ledger), (json!("2026-01-01T12:00:00Z"), json!(1)));
    grant(&mut ledger, "b", &facts([of_deployment("2026-01-01T13:00:00Z", 0)]));
    assert_eq!(
        kept(&ledger),
        (json!("2026-01-01T12:00:00Z"), json!(1)),
        "a's is in force"
    );
    ledger.return_pods("a", &["web-0"]);
    ledger.return_pods("b", &["web-1"]);
    grant(&mut ledger, "c", &facts([of_deployment("2026-01-01T14:00:00Z", 0)]));
    assert_eq!(kept(&ledger), (json!("2026-01-01T14:00:00Z"), Value::Null));
}

#[test]
fn scale_of_owners_is_kept_while_named() {
    let mut ledger = queue(&[("a", &["web-0"])]);
    let pdb = ledger.claims()[0].needs[0].pdb.clone();
    ledger.note_scale(&pdb, 3, vec!["Deployment/web".to_owned()]);
    let row = stored(&reread(&ledger))["budgets"][0].clone();
    assert_eq!(
        (&row["expectedPods"], &row["owners"]),
        (&json!(3), &json!(["Deployment/web"]))
    );
    ledger.release("a", NOT_DOWN, NOW);
    ledger.note_scale(&pdb, 2, Vec::new());
    assert_eq!(ledger.budget_row(&pdb).and_then(|row| row.expected_pods), Some(3));
    assert_eq!(reread(&ledger).budgets.len(), 0, "nobody names it any more");
}

#[test]
fn stored_needs_block_and_reserve_like_planned_ones() {
    let down = facts([without(budget("web"), "web-2"), budget("db")]);
    let mut ledger = queue(&[("first", &["web-2"])]);
    grant(&mut ledger, "first", &facts([budget("web"), budget("db")]));
    ask(&mut ledger, "oldest", &["web-0", "db-0"]);
    ask(&mut ledger, "younger", &["db-1"]);
    ledger.count_needs(&down);
    let mut read = reread(&ledger);
    for node in ["oldest", "younger"] {
        assert_eq!(read.obstacles(node, &down), ledger.obstacles(node, &down));
    }
    assert_eq!(read.reserver(&down), ledger.reserver(&down));
    // Of a need that was only read the pods are not known, so nothing is granted for it.
    let free = facts([budget("web"), budget("db")]);
    read.release_by_override("first");
    assert!(read.obstacles("oldest", &free).is_empty());
    assert_eq!(
        read.try_grant("oldest", "boot", &free, NOW).unwrap_err()[0].reason,
        LockReason::NotPlanned
    );
}

/// Which of the two counts nobody can tell, and what the other holds would be lost.
#[test]
fn second_claim_of_a_node_makes_the_ledger_unreadable() {
    let mut written = DrainLedgerSpec::from(&queue(&[("a", &["web-0"])]));
    written.claims.push(written.claims[0].clone());
    assert_eq!(Ledger::try_from(&written).unwrap_err(), "node a has two claims");
}

#[rstest]
#[case::inside(0, 0, None)]
#[case::hold_outside(1, 0, Some("claims[0].holds[0]: there is no budget 1 in a list of 1"))]
#[case::need_outside(0, 7, Some("claims[1].needs[0]: there is no budget 7 in a list of 1"))]
fn place_outside_the_table_makes_the_ledger_unreadable(
    #[case] held: u32,
    #[case] needed: u32,
    #[case] why: Option<&str>,
) {
    let mut ledger = queue(&[("a", &["web-0"])]);
    grant(&mut ledger, "a", &facts([budget("web")]));
    ask(&mut ledger, "b", &["web-1"]);
    let mut written = DrainLedgerSpec::from(&ledger);
    written.claims[0].holds[0].budget = held;
    written.claims[1].needs[0].budget = needed;
    assert_eq!(Ledger::try_from(&written).err().as_deref(), why);
}

#[test]
fn spec_that_could_not_be_read_is_no_empty_ledger() {
    let written = serde_json::from_value(json!({ "claims": [{ "state": "Parked" }] })).unwrap();
    let why = Ledger::try_from(&written).unwrap_err();
    assert!(why.starts_with("claims[0].state: "), "{why}");
}

/// So many nodes drain, and hold so many disruptions each, five of each budget.
fn large(nodes: usize, disruptions_each: usize) -> Ledger {
    let uid = |number: usize| format!("0f7a3c52-1111-4222-8333-{number:012}");
    let moment: Timestamp = "2026-01-01T12:00:00.123456789Z".parse().unwrap();
    let claim = |node: usize| {
        let held = |disruption: usize| {
            let number = (node * disruptions_each + disruption) % (nodes * disruptions_each / 5);
            Disruptions {
                pdb: BudgetRef {
                    namespace: format!("team-{}", number % 50),
                    name: format!("orders-db-{number}"),
                    uid: uid(number),
                },
                healthy_at_grant: 3,
                movable: false,
                pods: vec![HeldPod {
                    name: format!("orders-db-{number}-{}", node % 3),
                    uid: uid(node * disruptions_each + disruption),
                    retained: disruption == 0,
                    containers: if disruption == 0 {
                        format!("{node:016x}")
                    } else {
                        String::new()
                    },
                }],
            }
        };
        Claim {
            ticket: 90_000 + i64::try_from(node).unwrap(),
            node: format!("ip-10-0-12-{node}.eu-west-1.compute.internal"),
            node_uid: uid(node),
            state: ClaimState::Confirmed,
            may_go_down: false,
            since: moment,
            queued_at: moment,
            grant: 1_763_737_380_123,
            boot_id: uid(node),
            foreign_cordon: false,
            obstructed_since: None,
            reserves: false,
            node_groups: vec!["workers".to_owned()],
            needs: Vec::new(),
            holds: super::super::disruptions::normal((0..disruptions_each).map(held)),
            moving: Vec::new(),
        }
    };
    Ledger::of(90_500, (0..nodes).map(claim).collect())
}

/// drain-keeper leaves its budgets alone.
#[test]
fn who_reserves_is_stored() {
    let all = facts([budget("web")]);
    let mut ledger = queue(&[("first", &["web-2"])]);
    grant(&mut ledger, "first", &all);
    ask(&mut ledger, "oldest", &["web-0"]);
    ask(&mut ledger, "younger", &["web-1"]);
    ledger.count_needs(&all);
    let reserves = |ledger: &Ledger| -> Vec<bool> { ledger.claims().iter().map(|claim| claim.reserves).collect() };
    assert_eq!(reserves(&ledger), [false, true, false]);
    let read = Ledger::try_from(&DrainLedgerSpec::from(&ledger)).unwrap();
    assert_eq!(reserves(&read), [false, true, false]);
}

#[test]
fn what_is_kept_of_a_budget_stays_small() {
    let mut ledger = large(500, 20);
    let pdb = ledger.claims()[0].holds[0].pdb.clone();
    let size = |ledger: &Ledger| stored(ledger).to_string().len();
    let before = size(&ledger);
    ledger.note_scale(&pdb, 3, vec![format!("Deployment/{}", pdb.name)]);
    ledger.budgets.get_mut(&pdb).unwrap().first_grant = Some(FirstGrant {
        newest_pod: "2026-01-01T12:00:00Z".parse().unwrap(),
        missing_pods: 0,
    });
    let more = size(&ledger) - before;
    assert!(more <= 100, "{more} bytes a budget");
}

#[test]
fn a_full_cluster_fits_into_one_object() {
    let size = |ledger: &Ledger| serde_json::to_string(&DrainLedgerSpec::from(ledger)).unwrap().len();
    let (full, usual) = (size(&large(500, 20)), size(&large(500, 5)));
    assert!(full <= 1_000_000, "{full} bytes with 20 disruptions a node");
    assert!(usual <= 400_000, "{usual} bytes with 5 disruptions a node");
    let claims = |disruptions: usize| {
        let stored = stored(&large(500, disruptions));
        stored["claims"].to_string().len()
    };
    let (empty, held) = (claims(0) / 500, (claims(20) - claims(0)) / 10_000);
    assert!(empty <= 300, "{empty} bytes a claim");
    assert!(held <= 80, "{held} bytes a held disruption");
    assert_eq!(reread(&large(500, 20)).claims().len(), 500);
}
