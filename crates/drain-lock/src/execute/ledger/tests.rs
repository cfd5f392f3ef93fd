//! One write of the ledger against a scripted API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use nodeward_core::id::{NodeUid, PodKey};
use nodeward_core::ledger::{ClaimState, Fence, Ledger};
use nodeward_runtime::{Clients, Permits};
use parking_lot::Mutex;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::execute::PassContext;
use crate::plan::{CalledOff, DrainedAsk, GonePod, GrantAsk};
use crate::tests::fixture::{Cluster, budget, cordoned, merged, parse, pod};

/// What it answers, by path, and for further pages by path and continue token; everything else is 404.
struct ApiServer {
    answers: BTreeMap<String, (u16, Value)>,
    asked: Arc<Mutex<Vec<String>>>,
    written: Arc<Mutex<Option<Value>>>,
}

const PODS_OF_A: &str = "/api/v1/namespaces/shop-a/pods";

impl ApiServer {
    /// Each node has one held pod, `a` and `b`, under a budget of its own with one disruption to spare, in a namespace of its own.
    fn new() -> Self {
        let mut answers = BTreeMap::new();
        for name in ["a", "b"] {
            let namespace = format!("shop-{name}");
            let answer = |path: &str| format!("/{path}/namespaces/{namespace}/");
            let budgets = answer("apis/policy/v1") + "poddisruptionbudgets/";
            answers.insert(format!("{budgets}{name}"), (200, budget_of(name)));
            answers.insert(answer("api/v1") + "pods", (200, list(&pods_of(name), None)));
            let holds = answer("apis/nodeward.dev/v1alpha1") + "disruptionholds";
            answers.insert(holds, (200, list(&[], None)));
        }
        Self {
            answers,
            asked: Arc::default(),
            written: Arc::default(),
        }
    }

    fn answering(mut self, path: &str, code: u16, answer: Value) -> Self {
        self.answers.insert(path.to_owned(), (code, answer));
        self
    }

    fn clients(&self) -> Clients {
        let (answers, asked, written) = (self.answers.clone(), Arc::clone(&self.asked), Arc::clone(&self.written));
        let answer = move |request: Request| {
            let (answers, asked, written) = (answers.clone(), Arc::clone(&asked), Arc::clone(&written));
            async move { answer(request, &answers, &asked, &written).await }
        };
        let client = kube::Client::new(Router::new().fallback(answer), "default");
        Clients {
            watches: client.clone(),
            requests: client.clone(),
            lease: client,
        }
    }

    /// Carries out a write that was planned when the cluster was so.
    async fn run(&self, cluster: &Cluster, write: LedgerWrite) -> TaskOutcome {
        let pass = PassContext {
            clients: self.clients(),
            cache: cluster.cache(),
            field_manager: "test",
            snapshot: Arc::new(cluster.snapshot_of(&["n1", "n2"])),
        };
        let permits = Permits::unrestricted();
        super::write(&ExecutorContext { pass, permits }, write).await
    }

    fn ledger(&self) -> Ledger {
        let written = self.written.lock().clone().unwrap();
        Ledger::try_from(&parse::<DrainLedgerSpec>(written["spec"].clone())).unwrap()
    }

    fn states(&self) -> Vec<(String, ClaimState)> {
        let ledger = self.ledger();
        let states = ledger.claims().iter().map(|claim| (claim.node.clone(), claim.state));
        states.collect()
    }
}

async fn answer(
    request: Request,
    answers: &BTreeMap<String, (u16, Value)>,
    asked: &Mutex<Vec<String>>,
    written: &Mutex<Option<Value>>,
) -> Response {
    let (path, query) = (
        request.uri().path().to_owned(),
        request.uri().query().unwrap_or_default().to_owned(),
    );
    asked.lock().push(format!("{path}?{query}"));
    if path.ends_with("/drainledgers/cluster") {
        let body = to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        *written.lock() = Some(body.clone());
        let object = json!({ "metadata": { "name": "cluster" }, "spec": body["spec"] });
        return axum::Json(object).into_response();
    }
    let token = query.split('&').find_map(|part| part.strip_prefix("continue="));
    let key = token.map_or_else(|| path.clone(), |token| format!("{path}?continue={token}"));
    let (code, body) = answers.get(&key).cloned().unwrap_or((404, json!({})));
    let reason = if code == 404 { "NotFound" } else { "" };
    let failed = json!({ "kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": reason });
    let body = if code < 300 { body } else { failed };
    (StatusCode::from_u16(code).unwrap(), axum::Json(body)).into_response()
}

fn list(items: &[Value], token: Option<&str>) -> Value {
    json!({ "metadata": { "resourceVersion": "1", "continue": token }, "items": items })
}

fn budget_of(name: &str) -> Value {
    let labels = json!({ "matchLabels": { "app": name } });
    budget(
        name,
        json!({ "metadata": { "namespace": format!("shop-{name}") }, "spec": { "selector": labels } }),
    )
}

fn pods_of(name: &str) -> Vec<Value> {
    let pod = |number: usize| {
        let metadata = json!({
            "namespace": format!("shop-{name}"), "name": format!("{name}-{number}"), "uid": format!("uid-{name}-{number}"),
            "labels": { "app": name },
        });
        pod(
            "",
            json!({ "metadata": metadata, "spec": { "nodeName": if name == "a" { "n1" } else { "n2" } } }),
        )
    };
    (0..3).map(pod).collect()
}

fn needs(name: &str) -> Value {
    let pods = json!([{ "name": format!("{name}-0"), "uid": format!("uid-{name}-0") }]);
    json!({ "pdb": { "namespace": format!("shop-{name}"), "name": name, "uid": format!("uid-{name}") }, "pods": pods, "healthyAtGrant": 3 })
}

fn claim(node: &str, ticket: i64, state: &str, needs: Value) -> Value {
    let moment = "2026-01-01T11:59:00Z";
    json!({
        "ticket": ticket, "node": node, "nodeUID": format!("uid-{node}"), "state": state, "since": moment, "queuedAt": moment,
        "grant": 4, "bootID": "boot-1", "needs": [needs.clone()], "holds": if state == "Waiting" { json!([]) } else { json!([needs]) },
    })
}

/// Two nodes whose claims stand so.
fn cluster(state_1: &str) -> Cluster {
    let pods = pods_of("a").into_iter().chain(pods_of("b"));
    Cluster::new([cordoned("n1"), cordoned("n2")], pods)
        .budgets([budget_of("a"), budget_of("b")])
        .ledger(json!({ "nextTicket": 9, "claims": [claim("n1", 1, state_1, needs("a")), claim("n2", 2, "Waiting", needs("b"))] }))
}

/// A write that grants the claims of these nodes.
fn granting(cluster: &Cluster, nodes: &[&str]) -> LedgerWrite {
    let base = cluster.snapshot().ledger.unwrap();
    let mut next = base.ledger.clone();
    for (uid, name) in [("uid-n1", "a"), ("uid-n2", "b")] {
        next.set_needs(uid, vec![parse(needs(name))], &|_| false, Timestamp::now());
    }
    let ask = |node: &&str| GrantAsk {
        node_uid: format!("uid-{node}").into(),
        boot_id: "boot-1".into(),
        node_groups: Vec::new(),
    };
    LedgerWrite {
        next,
        base: Some(base),
        grants: nodes.iter().map(ask).collect(),
        ..LedgerWrite::default()
    }
}

#[tokio::test]
async fn failed_read_stops_its_own_claim_alone() {
    let cluster = cluster("Waiting");
    let server = ApiServer::new().answering(PODS_OF_A, 500, Value::Null);
    let outcome = server.run(&cluster, granting(&cluster, &["n1", "n2"])).await;
    let expected = [
        ("n1".to_owned(), ClaimState::Waiting),
        ("n2".to_owned(), ClaimState::Granted),
    ];
    assert_eq!(server.states(), expected);
    assert_eq!(outcome.granted, [NodeUid::from("uid-n2")]);
    let doubted: Vec<&NodeUid> = outcome.doubted.iter().map(|(uid, _)| uid).collect();
    assert_eq!(doubted, [&NodeUid::from("uid-n1")]);
    assert_eq!(outcome.checked, [NodeUid::from("uid-n2")]);
    assert_eq!(outcome.done, ActionResult::Acted(()));
}

/// A pod that has ended, as after a graceful shutdown of its node, may stay there for good: of a ReplicaSet nobody deletes it.
#[rstest]
#[case::it_runs("Running", json!(["0/a-0/uid-a-0"]), 1)]
#[case::it_has_failed("Failed", json!(null), 0)]
#[case::it_has_succeeded("Succeeded", json!(null), 0)]
#[tokio::test]
async fn pod_that_is_there_returns_no_disruption(#[case] phase: &str, #[case] held: Value, #[case] doubted: usize) {
    let cluster = cluster("Confirmed");
    let present = merged(pods_of("a").remove(0), json!({ "status": { "phase": phase } }));
    let server = ApiServer::new().answering("/api/v1/namespaces/shop-a/pods/a-0", 200, present);
    let mut write = granting(&cluster, &["n2"]);
    assert_eq!(write.next.return_pods("uid-n1", &["uid-a-0"]), 1);
    write.gone.push(GonePod {
        node_uid: "uid-n1".into(),
        key: PodKey::new("shop-a", "a-0"),
        uid: "uid-a-0".to_owned(),
        by_number_of: None,
    });
    let outcome = server.run(&cluster, write).await;
    let written = server.written.lock().clone().unwrap();
    assert_eq!(written["spec"]["claims"][0]["holds"], held);
    assert_eq!(written["spec"]["claims"][1]["state"], "Granted");
    assert_eq!(outcome.doubted.len(), doubted);
}

/// The watches show a Ready pod in the place of the one that was evicted.
#[rstest]
#[case::so_it_is("True", true)]
#[case::it_has_failed("False", false)]
#[tokio::test]
async fn number_of_pods_is_read_before_it_pays(#[case] ready: &str, #[case] returned: bool) {
    let another = merged(
        pods_of("a").remove(1),
        json!({ "metadata": { "name": "a-3", "uid": "uid-a-3" } }),
    );
    let now = merged(
        another.clone(),
        json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } }),
    );
    let there = |last: Value| pods_of("a").into_iter().skip(1).chain([last]).collect::<Vec<_>>();
    let cluster = Cluster::new([cordoned("n1"), cordoned("n2")], there(another))
        .budgets([budget_of("a")])
        .ledger(json!({ "nextTicket": 9, "claims": [claim("n1", 1, "Confirmed", needs("a"))] }));
    let base = cluster.snapshot().ledger.unwrap();
    let mut write = LedgerWrite {
        next: base.ledger.clone(),
        base: Some(base),
        ..LedgerWrite::default()
    };
    let pdb = write.next.claims()[0].holds[0].pdb.clone();
    assert_eq!(write.next.return_pods("uid-n1", &["uid-a-0"]), 1);
    write.gone.push(GonePod {
        node_uid: "uid-n1".into(),
        key: PodKey::new("shop-a", "a-0"),
        uid: "uid-a-0".to_owned(),
        by_number_of: Some(pdb),
    });
    let server = ApiServer::new().answering(PODS_OF_A, 200, list(&there(now), None));
    let outcome = server.run(&cluster, write).await;
    assert_eq!(outcome.doubted.is_empty(), returned, "{:?}", outcome.doubted);
    assert_eq!(server.written.lock().is_some(), returned);
}

/// One of four pods is not there at the moment.
#[tokio::test]
async fn counted_budget_enters_with_owners_scale() {
    let counted = merged(
        budget_of("a"),
        json!({ "spec": { "maxUnavailable": null, "minAvailable": 2 } }),
    );
    let cluster = cluster("Waiting").budgets([counted.clone(), budget_of("b")]);
    let scale = json!({ "metadata": { "name": "web", "uid": "uid-web" }, "spec": { "replicas": 4 } });
    let server = ApiServer::new()
        .answering("/apis/policy/v1/namespaces/shop-a/poddisruptionbudgets/a", 200, counted)
        .answering("/apis/apps/v1/namespaces/shop-a/replicasets/web/scale", 200, scale);
    server.run(&cluster, granting(&cluster, &[])).await;
    let written = server.written.lock().clone().unwrap();
    let rows = &written["spec"]["budgets"];
    assert_eq!(rows[0]["expectedPods"], 4);
    assert_eq!(rows[0]["owners"], json!(["ReplicaSet/web"]));
    assert_eq!(rows[1]["expectedPods"], Value::Null, "its own status tells");
}

/// All pods were created at midnight. A replacement in the same second would pass for one of those that were there.
#[rstest]
#[case::second_is_over("2026-01-01T00:00:01Z", "2026-01-01T00:00:00Z")]
#[case::second_may_go_on("2026-01-01T00:00:00Z", "2025-12-31T23:59:59Z")]
#[tokio::test]
async fn grant_tells_newest_pod_from_later_ones(#[case] requested: &str, #[case] newest: &str) {
    let drain = json!({
        "metadata": { "name": "n1", "uid": "uid-drain-n1", "creationTimestamp": requested },
        "spec": { "nodeName": "n1", "requesters": [{ "name": "test" }] },
    });
    let cluster = cluster("Waiting").drains([drain]);
    let server = ApiServer::new();
    server.run(&cluster, granting(&cluster, &["n1"])).await;
    let written = server.written.lock().clone().unwrap();
    assert_eq!(written["spec"]["budgets"][0]["newestPod"], newest);
}

#[tokio::test]
async fn nothing_is_written_when_every_read_fails() {
    let cluster = cluster("Waiting");
    let mut write = granting(&cluster, &["n1"]);
    write.next = write.base.as_ref().unwrap().ledger.clone();
    let server = ApiServer::new().answering(PODS_OF_A, 500, Value::Null);
    let outcome = server.run(&cluster, write).await;
    assert_eq!(
        outcome.done,
        ActionResult::AlreadyDone,
        "the backoff is the claim's, not the ledger's"
    );
    assert!(server.written.lock().is_none());
}

/// The second page has the pods that make the budget healthy enough.
#[tokio::test]
async fn pods_of_a_budget_are_read_in_pages() {
    let cluster = cluster("Waiting");
    let (first, rest) = (pods_of("a")[..1].to_vec(), pods_of("a")[1..].to_vec());
    let server = ApiServer::new()
        .answering(PODS_OF_A, 200, list(&first, Some("more")))
        .answering(&format!("{PODS_OF_A}?continue=more"), 200, list(&rest, None));
    let outcome = server.run(&cluster, granting(&cluster, &["n1"])).await;
    assert_eq!(outcome.granted, [NodeUid::from("uid-n1")]);
    let asked = server.asked.lock().clone();
    let pages: Vec<&String> = asked.iter().filter(|asked| asked.starts_with(PODS_OF_A)).collect();
    assert_eq!(pages.len(), 2);
    assert!(pages.iter().all(|page| page.contains("limit=500")), "{pages:?}");
}

#[tokio::test]
async fn hold_that_no_watch_shows_counts() {
    let cluster = cluster("Waiting");
    let hold = json!({
        "metadata": { "namespace": "shop-a", "name": "h", "uid": "uid-h" }, "spec": { "pdbRef": "a", "reason": "rebalancing" },
    });
    let holds = "/apis/nodeward.dev/v1alpha1/namespaces/shop-a/disruptionholds";
    let server = ApiServer::new().answering(holds, 200, list(&[hold], None));
    let outcome = server.run(&cluster, granting(&cluster, &["n1", "n2"])).await;
    assert_eq!(outcome.granted, [NodeUid::from("uid-n2")]);
    assert_eq!(outcome.refused_grants.len(), 1);
}

const PODS: &str = "/api/v1/pods";

/// The pod of `n1` stays on it, and everything seems to have left.
fn draining() -> (Cluster, LedgerWrite) {
    let mut held = needs("a");
    held["pods"][0]["retained"] = json!(true);
    let pods = staying().into_iter().chain(pods_of("b"));
    let cluster = Cluster::new([cordoned("n1"), cordoned("n2")], pods)
        .budgets([budget_of("a"), budget_of("b")])
        .ledger(json!({ "nextTicket": 9, "claims": [claim("n1", 1, "Confirmed", held), claim("n2", 2, "Waiting", needs("b"))] }));
    let base = cluster.snapshot().ledger.unwrap();
    let fence = Fence::of(base.ledger.claim("uid-n1").unwrap());
    let write = LedgerWrite {
        next: base.ledger.clone(),
        base: Some(base),
        drained: vec![DrainedAsk {
            node: "n1".into(),
            node_uid: "uid-n1".into(),
            fence,
            boot_id: "boot-1".into(),
            unclaimed: std::collections::BTreeSet::new(),
            down: [].into(),
        }],
        ..LedgerWrite::default()
    };
    (cluster, write)
}

/// Three pods, of which the first is on `n1` and stays there.
fn staying() -> Vec<Value> {
    let mut pods = pods_of("a");
    pods[0]["metadata"]["labels"]["nodeward.dev/drain"] = json!("skip");
    for (number, pod) in pods.iter_mut().enumerate().skip(1) {
        pod["spec"]["nodeName"] = json!(format!("n{}", 3 + number));
    }
    pods
}

fn late() -> Value {
    pod("late", json!({ "metadata": { "labels": { "app": "late" } } }))
}

/// What the watches show says that the node is drained.
#[rstest]
#[case::so_it_is(200, &[], &[], Some(ClaimState::Confirmed))]
#[case::a_sibling_has_gone(200, &["a-2"], &[], Some(ClaimState::Waiting))]
#[case::a_pod_came_late(200, &[], &[late()], None)]
#[case::nobody_can_look(500, &[], &[], None)]
#[tokio::test]
async fn drained_rests_on_quorum_reads(
    #[case] code: u16,
    #[case] gone: &[&str],
    #[case] more: &[Value],
    #[case] becomes: Option<ClaimState>,
) {
    let (cluster, write) = draining();
    let is_there = |pod: &Value| !gone.iter().any(|name| pod["metadata"]["name"] == *name);
    let pods: Vec<Value> = staying().into_iter().filter(is_there).collect();
    let on_node: Vec<Value> = staying().into_iter().take(1).chain(more.iter().cloned()).collect();
    let server =
        ApiServer::new()
            .answering(PODS_OF_A, 200, list(&pods, None))
            .answering(PODS, code, list(&on_node, None));
    let outcome = server.run(&cluster, write).await;
    if let Some(state) = becomes {
        assert_eq!(server.states()[0], ("n1".to_owned(), state));
        assert_eq!(server.ledger().claims()[0].may_go_down, state == ClaimState::Confirmed);
    } else {
        assert_eq!(outcome.doubted.len(), 1);
        assert!(server.written.lock().is_none(), "nothing is told");
    }
    let is_lost = becomes == Some(ClaimState::Waiting);
    let told: Vec<LockReason> = outcome.announcements.iter().map(|told| told.reason).collect();
    assert_eq!(told, if is_lost { vec![LockReason::GrantLost] } else { vec![] });
}

#[rstest]
#[case::heard_of(Some("2026-01-01T12:05:01.000000Z"), "boot-1", true)]
#[case::heard_of_before(Some("2026-01-01T12:05:00.000000Z"), "boot-1", false)]
#[case::booted_anew(Some("2026-01-01T12:05:01.000000Z"), "boot-2", false)]
#[case::never_heard_of(None, "boot-1", false)]
#[tokio::test]
async fn called_off_node_is_heard_of_first(#[case] renewed: Option<&str>, #[case] boot: &str, #[case] returned: bool) {
    let (cluster, mut write) = draining();
    write.drained.clear();
    assert_eq!(write.next.return_pods("uid-n1", &["uid-a-0"]), 1);
    write.called_off.push(CalledOff {
        node: "n1".into(),
        node_uid: "uid-n1".into(),
        boot_id: "boot-1".into(),
        since: "2026-01-01T12:05:00Z".parse().unwrap(),
    });
    let lease = json!({ "metadata": { "name": "n1" }, "spec": { "renewTime": renewed } });
    let node = merged(cordoned("n1"), json!({ "status": { "nodeInfo": { "bootID": boot } } }));
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
    let server = ApiServer::new()
        .answering(leases, if renewed.is_some() { 200 } else { 404 }, lease)
        .answering("/api/v1/nodes/n1", 200, node);
    let outcome = server.run(&cluster, write).await;
    assert_eq!(outcome.doubted.is_empty(), returned);
    assert_eq!(server.written.lock().is_some(), returned);
}
