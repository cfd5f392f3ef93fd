//! Single actions against a scripted API server: which requests they send, and what they expect afterwards.

use std::convert::Infallible;
use std::sync::Mutex;

use http::{Request, Response};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::client::Body;
use kube::core::GroupVersionKind;
use nodeward_api::pause::Paused;
use nodeward_api::reason::HealthReason;
use nodeward_core::id::NodeName;
use nodeward_runtime::{Action as _, ApiError, LeaseTerms, Pause, PauseState};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::action_tracker::ActionTracker;
use crate::default::DefaultStep;
use crate::observe::{project, watched_template};
use crate::plan::{
    CheckRef, Condition, LeaseChange, LeaseName, LeaseStep, NodeChange, NodeEvidence, RemediationChange,
    RemediationRef, RemediationWrite, RestsOn, SelectorWrite, StartRemediation, StatusWrite,
};
use crate::snapshot::{Snapshot, TemplateFacts, TemplateRef};

const NODE: &str = "/api/v1/nodes/n1";
const REMEDIATION: &str = "/apis/a.example.com/v1/namespaces/ns/reboots/n1";
const REMEDIATIONS: &str = "/apis/a.example.com/v1/namespaces/ns/reboots";
const CHECK: &str = "/apis/remediation.medik8s.io/v1alpha1/nodehealthchecks/workers";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/leases/leases/node-n1";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/leases/leases";

/// Answers by method and path, and remembers what it was asked. What is not scripted does not exist.
#[derive(Clone, Default)]
struct Server {
    answers: Arc<BTreeMap<String, (u16, Value)>>,
    asked: Arc<Mutex<Vec<String>>>,
    /// What was sent with each write.
    sent: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    fn new<const N: usize>(answers: [(&str, &str, u16, Value); N]) -> Self {
        let answers = answers.map(|(method, path, code, body)| (format!("{method} {path}"), (code, body)));
        Self {
            answers: Arc::new(answers.into()),
            ..Self::default()
        }
    }

    fn pass(&self) -> PassContext {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let answer = server.answer(&request);
                let sent = request.into_body().collect_bytes().await.unwrap_or_default();
                if let Ok(sent) = serde_json::from_slice(&sent) {
                    server.sent.lock().unwrap().push(sent);
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let client = kube::Client::new(service, "default");
        let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk("a.example.com", "v1", "Reboot"));
        resource.plural = "reboots".to_owned();
        PassContext {
            clients: Clients {
                watches: client.clone(),
                requests: client.clone(),
                lease: client,
            },
            reads: NodeReads::default(),
            check_reads: CheckReads::default(),
            resources: Arc::new([(kind(), resource)].into()),
            polled_templates: Arc::default(),
            own_versions: OwnVersions::default(),
            has_etcd_guards: false,
            lease_namespace: "leases".into(),
            own_namespace: "system".into(),
            planned_at: Instant::now(),
        }
    }

    fn answer(&self, request: &Request<Body>) -> Response<Body> {
        let asked = format!("{} {}", request.method(), request.uri().path());
        let answer = self.answers.get(&asked).cloned();
        let (code, body) = answer.unwrap_or((404, Value::Null));
        let body = match code {
            200 | 201 => body,
            code => {
                let reason = match code {
                    403 => "Forbidden",
                    404 => "NotFound",
                    409 => "AlreadyExists",
                    _ => "InternalError",
                };
                json!({ "kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": reason })
            }
        };
        self.asked.lock().unwrap().push(asked);
        let body = Body::from(body.to_string().into_bytes());
        Response::builder().status(code).body(body).unwrap()
    }

    async fn run(&self, action: Action) -> Effect {
        action.run(self.pass(), Permits::unrestricted()).await.effect
    }

    /// The same while the API server says this of the pause, whatever its watch says.
    async fn run_under(&self, read: PauseState, action: Action) -> Effect {
        action
            .run(self.pass(), Permits::under(Pause::read_as(read)))
            .await
            .effect
    }

    /// What it was asked.
    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn kind() -> RemediationKind {
    RemediationKind {
        api_version: "a.example.com/v1".into(),
        kind: "Reboot".into(),
    }
}

fn stored_remediation(owner: &str) -> Value {
    json!({
        "apiVersion": "a.example.com/v1", "kind": "Reboot",
        "metadata": {
            "namespace": "ns", "name": "n1", "uid": "r1", "resourceVersion": "5",
            "ownerReferences": [{ "apiVersion": "v1", "kind": "A", "name": "a", "uid": owner }],
        },
    })
}

fn remediation() -> Arc<RemediationFacts> {
    let object = serde_json::from_value(stored_remediation("c1")).unwrap();
    Arc::new(project::remediation(kind(), &object).unwrap())
}

fn reference() -> RemediationRef {
    RemediationRef {
        kind: kind(),
        key: NamespacedName::new("ns", "n1"),
        uid: "r1".into(),
        node: "n1".into(),
    }
}

fn check() -> CheckRef {
    CheckRef {
        name: "workers".into(),
        uid: "c1".into(),
    }
}

const LOST_AT: &str = "2026-01-01T00:00:00Z";

fn node(uid: &str, status: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1", "uid": uid },
        "status": { "conditions": [{ "type": "Ready", "status": status, "lastTransitionTime": LOST_AT }] },
    })
}

/// The node `n1` with UID `u1` is not Ready since then.
fn unhealthy() -> NodeEvidence {
    NodeEvidence {
        name: "n1".into(),
        rests_on: RestsOn::Unhealthy {
            uid: "u1".into(),
            type_: "Ready".into(),
            status: Some("Unknown".into()),
            last_transition: LOST_AT.parse().ok(),
        },
    }
}

fn gone() -> NodeEvidence {
    NodeEvidence {
        name: "n1".into(),
        rests_on: RestsOn::Gone { replaced_by: None },
    }
}

fn delete(evidence: NodeEvidence) -> Action {
    Action::DeleteRemediation(RemediationWrite {
        check: check(),
        remediation: reference(),
        seen: Some(remediation()),
        evidence: Some(evidence),
    })
}

fn time_out(evidence: Option<NodeEvidence>) -> Action {
    annotate(RemediationChange::TimedOut(LOST_AT.parse().unwrap()), evidence)
}

fn annotate(change: RemediationChange, evidence: Option<NodeEvidence>) -> Action {
    let write = RemediationWrite {
        check: check(),
        remediation: reference(),
        seen: Some(remediation()),
        evidence,
    };
    Action::AnnotateRemediation(write, change)
}

fn start() -> StartRemediation {
    StartRemediation {
        check: check(),
        node: "n1".into(),
        node_uid: "u1".into(),
        step: 0,
        template: TemplateRef {
            api_version: "a.example.com/v1".into(),
            kind: "RebootTemplate".into(),
            namespace: "ns".into(),
            name: "t".into(),
        },
        made_from: Arc::new(TemplateFacts {
            spec: Some(json!({ "strategy": "reboot" })),
            supports_multiple: false,
        }),
        machine: None,
        kind: kind(),
        key: NamespacedName::new("ns", "n1"),
        conditions: vec![
            Condition::Node(unhealthy()),
            Condition::Intended("9".into()),
            Condition::Template,
            Condition::Lease(node_lease()),
        ],
    }
}

fn node_lease() -> LeaseChange {
    LeaseChange {
        name: LeaseName::Node("n1".into()),
        seen: None,
        step: LeaseStep::Take(LeaseTerms {
            holder: "NodeHealthCheck-workers".to_owned(),
            duration: SignedDuration::from_secs(660),
            owner: None,
        }),
    }
}

/// The NodeHealthCheck with the intent that the start rests on.
fn intended() -> Value {
    json!({
        "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck",
        "metadata": { "name": "workers", "uid": "c1", "resourceVersion": "9" },
        "spec": {},
        "status": { "unhealthyNodes": [{ "name": "n1", "remediations": [
            { "resource": { "apiVersion": "a.example.com/v1", "kind": "Reboot", "namespace": "ns", "name": "n1" } },
        ] }] },
    })
}

fn lease(holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "node-n1", "uid": "l1", "resourceVersion": "3" },
        "spec": { "holderIdentity": holder, "leaseDurationSeconds": 660, "renewTime": "2026-01-01T00:00:00.000000Z" },
    })
}

/// What a later plan sees of the remediation while the watch still shows it.
fn remediations_seen_after(action: Action, effect: Effect) -> Vec<Arc<RemediationFacts>> {
    let now = Timestamp::from_second(0).unwrap();
    let mut tracker = ActionTracker::default();
    tracker.completed(&Executed { action, effect }, 0, now);
    let mut snapshot = Snapshot {
        remediations: vec![remediation()],
        ..Snapshot::default()
    };
    tracker.overlay(&mut snapshot, now);
    snapshot.remediations
}

fn paused() -> PauseState {
    let (reason, since) = ("INC-1".to_owned(), None);
    PauseState::Paused(Arc::new(Paused { reason, since }))
}

fn unread() -> PauseState {
    PauseState::Unknown("no answer in time".to_owned())
}

/// The watch of the pause says that nobody has paused anything, and the API server does not.
#[rstest]
#[case::paused(paused(), Stop::Paused)]
#[case::unread(unread(), Stop::PauseUnknown)]
#[tokio::test]
async fn act_rests_on_what_the_api_server_says_of_the_pause(#[case] read: PauseState, #[case] stop: Stop) {
    let start = Action::StartRemediation(Box::new(start()));
    for action in [start, delete(gone()), time_out(None)] {
        let server = Server::new([
            ("DELETE", REMEDIATION, 200, json!({})),
            ("PATCH", REMEDIATION, 200, json!({})),
        ]);
        let executed = server.run_under(read.clone(), action).await;
        assert_eq!(executed.result, ActionResult::Stopped(stop));
        let asked = server.asked();
        assert!(asked.iter().all(|request| request.starts_with("GET ")), "{asked:?}");
    }
}

#[rstest]
#[case::condition_has_changed(200, node("u1", "True"))]
#[case::node_was_made_again(200, node("u2", "Unknown"))]
#[case::node_is_gone(404, Value::Null)]
#[tokio::test]
async fn escalation_rests_on_the_node_as_it_is(#[case] code: u16, #[case] now: Value) {
    let server = Server::new([("GET", NODE, code, now)]);
    let executed = server.run(time_out(Some(unhealthy()))).await;
    assert!(matches!(executed.result, ActionResult::Outdated(_)), "{executed:?}");
    assert_eq!(server.asked(), [format!("GET {NODE}")]);
}

#[tokio::test]
async fn escalation_reads_the_node_right_before() {
    let patched = stored_remediation("c1");
    let server = Server::new([
        ("GET", NODE, 200, node("u1", "Unknown")),
        ("PATCH", REMEDIATION, 200, patched),
    ]);
    let executed = server.run(time_out(Some(unhealthy()))).await;
    assert_eq!(executed.result, ActionResult::Acted(()));
    assert_eq!(server.asked(), [format!("GET {NODE}"), format!("PATCH {REMEDIATION}")]);
}

#[rstest]
#[case::node_is_back(gone(), 200, node("u1", "Unknown"))]
#[case::node_cannot_be_read(gone(), 500, Value::Null)]
#[case::node_may_not_be_read(gone(), 403, Value::Null)]
#[tokio::test]
async fn remediation_stays_unless_its_node_is_surely_gone(
    #[case] evidence: NodeEvidence,
    #[case] code: u16,
    #[case] now: Value,
) {
    let server = Server::new([("GET", NODE, code, now), ("DELETE", REMEDIATION, 200, json!({}))]);
    let executed = server.run(delete(evidence)).await;
    assert!(
        matches!(executed.result, ActionResult::Outdated(_) | ActionResult::Failed(_)),
        "{executed:?}"
    );
    assert_eq!(server.asked(), [format!("GET {NODE}")]);
}

#[tokio::test]
async fn remediation_of_a_node_answered_with_404_is_deleted() {
    let success = json!({ "kind": "Status", "status": "Success" });
    let server = Server::new([("DELETE", REMEDIATION, 200, success)]);
    let executed = server.run(delete(gone())).await;
    assert_eq!(executed.result, ActionResult::Acted(()));
    assert_eq!(server.asked(), [format!("GET {NODE}"), format!("DELETE {REMEDIATION}")]);
}

#[rstest]
#[case::deleted(delete(gone()))]
#[case::annotated(time_out(None))]
#[tokio::test]
async fn remediation_that_is_gone_already_is_expected_to_be(#[case] action: Action) {
    let executed = Server::default().run(action.clone()).await;
    assert_eq!(executed.result, ActionResult::AlreadyDone);
    assert_eq!(remediations_seen_after(action, executed), []);
}

#[tokio::test]
async fn annotation_of_a_node_that_is_gone_is_written_once() {
    let executed = Server::default()
        .run(Action::AnnotateNode {
            node: "n1".into(),
            node_uid: "u1".into(),
            before: None,
            change: NodeChange::Remediations(None),
        })
        .await;
    assert_eq!(executed.result, ActionResult::AlreadyDone);
    assert!(
        matches!(&*executed.written, [Written::NodeAnnotation { value: None, .. }]),
        "{executed:?}"
    );
}

#[tokio::test]
async fn status_of_a_check_that_is_gone_backs_off() {
    let executed = Server::default().run(write_status()).await;
    assert!(matches!(executed.result, ActionResult::Outdated(_)), "{executed:?}");
    assert_eq!(executed.written, []);
}

#[rstest]
#[case::ours("c1", json!({}), None)]
#[case::of_the_node("c1", json!({ "nodeward.dev/node-uid": "u1" }), None)]
#[case::of_an_earlier_node("c1", json!({ "nodeward.dev/node-uid": "u0" }), Some(HealthReason::ForeignRemediation))]
#[case::of_another_owner("c2", json!({}), Some(HealthReason::ForeignRemediation))]
#[case::of_the_peer_and_older_than_the_node("c1", json!({ "created": "2026-01-01T00:00:00Z" }), Some(HealthReason::ForeignRemediation))]
#[case::of_the_peer_and_younger_than_the_node("c1", json!({ "created": "2026-01-01T00:00:02Z" }), None)]
#[case::being_deleted("c1", json!({ "deleted": "2026-01-01T00:00:03Z" }), Some(HealthReason::ForeignRemediation))]
#[tokio::test]
async fn remediation_that_exists_is_a_success_if_it_is_ours(
    #[case] owner: &str,
    #[case] annotations: Value,
    #[case] refusal: Option<HealthReason>,
) {
    let mut found = stored_remediation(owner);
    found["metadata"]["creationTimestamp"] = annotations["created"].clone();
    found["metadata"]["deletionTimestamp"] = annotations["deleted"].clone();
    found["metadata"]["annotations"] = annotations;
    let mut node = node("u1", "Unknown");
    if found["metadata"]["creationTimestamp"].is_string() {
        node["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z".into();
    }
    let server = Server::new([
        ("GET", NODE, 200, node),
        ("GET", CHECK, 200, intended()),
        ("POST", LEASES, 201, lease("NodeHealthCheck-workers")),
        ("POST", REMEDIATIONS, 409, Value::Null),
        ("GET", REMEDIATION, 200, found),
        ("DELETE", LEASE, 200, json!({ "kind": "Status", "status": "Success" })),
    ]);
    let executed = server.run(Action::StartRemediation(Box::new(start()))).await;
    assert_eq!(
        executed.refusal.as_ref().map(|refusal| refusal.reason),
        refusal,
        "{executed:?}"
    );
    let expects_it = executed
        .written
        .iter()
        .any(|written| matches!(written, Written::Remediation { facts: Some(_), .. }));
    assert_eq!(expects_it, refusal.is_none());
    // The lease that was taken for it goes back where nothing was created.
    let gave_back = server.asked().contains(&format!("DELETE {LEASE}"));
    assert_eq!(gave_back, refusal.is_some(), "{:?}", server.asked());
}

/// An earlier attempt of ours, or another leader of ours, has taken the lease: it serves, and is not this one's to give back.
#[rstest]
#[case::created(201, true)]
#[case::create_is_forbidden(403, false)]
#[tokio::test]
async fn lease_that_is_ours_already_serves(#[case] code: u16, #[case] creates: bool) {
    let server = answered_start([
        ("POST", LEASES, 409, Value::Null),
        ("GET", LEASE, 200, lease("NodeHealthCheck-workers")),
        ("POST", REMEDIATIONS, code, stored_remediation("c1")),
    ]);
    let executed = server.run(Action::StartRemediation(Box::new(start()))).await;
    assert_eq!(executed.result == ActionResult::Acted(()), creates, "{executed:?}");
    assert!(!server.asked().contains(&format!("DELETE {LEASE}")));
}

#[tokio::test]
async fn step_that_another_replica_has_taken_is_done() {
    let server = Server::new([("POST", "/api/v1/namespaces/system/configmaps", 409, Value::Null)]);
    let task = Action::Default {
        step: DefaultStep::Announce,
        template: start().template,
    };
    let executed = server.run(task).await;
    assert_eq!(executed.result, ActionResult::AlreadyDone);
}

/// The caches of a replica that takes over may be behind: what it would create may have been made, and deleted by a user.
#[rstest]
#[case::as_it_was_seen("Creating", json!([]), true)]
#[case::completed_by_another("Done", json!([]), false)]
#[case::made_by_another("Creating", json!([intended()]), false)]
#[tokio::test]
async fn default_check_is_created_from_fresh_reads_alone(
    #[case] state: &str,
    #[case] checks: Value,
    #[case] creates: bool,
) {
    let all = "/apis/remediation.medik8s.io/v1alpha1/nodehealthchecks";
    let record = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "nodeward-health-check-default" }, "data": { "state": state },
    });
    let list = json!({
        "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheckList", "metadata": {}, "items": checks,
    });
    let server = Server::new([
        (
            "GET",
            "/api/v1/namespaces/system/configmaps/nodeward-health-check-default",
            200,
            record,
        ),
        ("GET", all, 200, list),
        ("POST", all, 201, intended()),
    ]);
    let task = Action::Default {
        step: DefaultStep::Create,
        template: start().template,
    };
    task.run(server.pass(), Permits::unrestricted()).await;
    assert_eq!(
        server.asked().contains(&format!("POST {all}")),
        creates,
        "{:?}",
        server.asked()
    );
}

/// In a namespace that does not exist the rights of a Role do not exist either.
#[tokio::test]
async fn missing_lease_namespace_is_named() {
    let server = Server::new([
        ("GET", NODE, 200, node("u1", "Unknown")),
        ("GET", CHECK, 200, intended()),
        ("POST", LEASES, 403, Value::Null),
    ]);
    let executed = server.run(Action::StartRemediation(Box::new(start()))).await;
    let Standing { reason, detail, .. } = executed.refusal.unwrap();
    assert_eq!(reason, HealthReason::PermissionMissing);
    assert!(
        detail.contains("namespace leases") && detail.contains("create it"),
        "{detail}"
    );
    let renewed = server.run(Action::Lease(node_lease())).await;
    let ActionResult::Failed(ApiError::Forbidden { message }) = renewed.result else {
        panic!("{:?}", renewed.result);
    };
    assert!(message.contains("namespace leases"), "{message}");
}

#[tokio::test]
async fn lease_namespace_is_created_where_that_is_allowed() {
    let server = Server::new([
        ("GET", NODE, 200, node("u1", "Unknown")),
        ("GET", CHECK, 200, intended()),
        ("POST", "/api/v1/namespaces", 403, Value::Null),
    ]);
    let executed = server.run(Action::StartRemediation(Box::new(start()))).await;
    assert!(server.asked().contains(&"POST /api/v1/namespaces".to_owned()));
    let detail = executed.refusal.unwrap().detail;
    assert!(detail.contains("namespace leases"), "{detail}");
    assert!(
        !server.asked().contains(&format!("POST {REMEDIATIONS}")),
        "without its lease"
    );
}

fn answered_start<const N: usize>(others: [(&str, &str, u16, Value); N]) -> Server {
    let mut server = Server::new([
        ("GET", NODE, 200, node("u1", "Unknown")),
        ("GET", CHECK, 200, intended()),
        ("POST", LEASES, 201, lease("NodeHealthCheck-workers")),
        ("POST", REMEDIATIONS, 201, stored_remediation("c1")),
    ]);
    let others = others.map(|(method, path, code, body)| (format!("{method} {path}"), (code, body)));
    Arc::make_mut(&mut server.answers).extend(others);
    server
}

#[tokio::test]
async fn start_reads_takes_its_lease_and_creates() {
    let server = answered_start([]);
    let executed = server.run(Action::StartRemediation(Box::new(start()))).await;
    assert_eq!(executed.result, ActionResult::Acted(()));
    let expected = [
        format!("GET {NODE}"),
        format!("GET {CHECK}"),
        format!("POST {LEASES}"),
        format!("POST {REMEDIATIONS}"),
    ];
    assert_eq!(server.asked(), expected);
}

/// What the status intends is what this process has written itself: no read is needed for that.
#[tokio::test]
async fn intent_of_this_process_is_not_read_again() {
    let server = answered_start([("PUT", &format!("{CHECK}/status"), 200, intended())]);
    let pass = server.pass();
    // The answer tells it, and not the next pass: the watch may have shown the intent before.
    write_status().run(pass.clone(), Permits::unrestricted()).await;
    let task = Action::StartRemediation(Box::new(start()));
    let executed = task.run(pass, Permits::unrestricted()).await.effect;
    assert_eq!(executed.result, ActionResult::Acted(()));
    assert!(!server.asked().contains(&format!("GET {CHECK}")));
}

/// An intent never waits for what will not come: its refusal withdraws it.
#[rstest]
#[case::node_recovers(("GET", NODE, 200, node("u1", "True")), Some(HealthReason::NodeChanged), false)]
#[case::node_was_made_again(("GET", NODE, 200, node("u2", "Unknown")), Some(HealthReason::NodeChanged), false)]
#[case::node_is_gone(("GET", NODE, 404, Value::Null), Some(HealthReason::NodeChanged), false)]
#[case::node_is_not_read(("GET", NODE, 500, Value::Null), None, false)]
#[case::intent_is_withdrawn(("GET", CHECK, 404, Value::Null), None, false)]
#[case::lease_is_taken(("POST", LEASES, 409, Value::Null), Some(HealthReason::LeaseTaken), false)]
#[case::create_is_forbidden(("POST", REMEDIATIONS, 403, Value::Null), Some(HealthReason::PermissionMissing), true)]
#[case::create_is_invalid(("POST", REMEDIATIONS, 422, Value::Null), Some(HealthReason::RemediationRejected), true)]
#[tokio::test]
async fn start_is_refused_before_anything_is_created(
    #[case] answer: (&str, &str, u16, Value),
    #[case] refusal: Option<HealthReason>,
    #[case] tries_to_create: bool,
) {
    let server = answered_start([
        ("GET", LEASE, 200, lease("somebody")),
        ("DELETE", LEASE, 200, json!({ "kind": "Status", "status": "Success" })),
        answer,
    ]);
    let executed = server.run(Action::StartRemediation(Box::new(start()))).await;
    assert_ne!(executed.result, ActionResult::Acted(()));
    assert_eq!(
        executed.refusal.as_ref().map(|refusal| refusal.reason),
        refusal,
        "{executed:?}"
    );
    let asked = server.asked();
    assert_eq!(
        asked.contains(&format!("POST {REMEDIATIONS}")),
        tries_to_create,
        "{asked:?}"
    );
    // What it took for a create that failed it gives back, and nobody else's.
    assert_eq!(asked.contains(&format!("DELETE {LEASE}")), tries_to_create, "{asked:?}");
}

/// Whether the server has created it is not known: its lease stays until that is.
#[tokio::test]
async fn lease_stays_where_the_answer_to_a_create_is_lost() {
    let server = answered_start([("POST", REMEDIATIONS, 504, Value::Null)]);
    let executed = server.run(Action::StartRemediation(Box::new(start()))).await;
    assert!(matches!(executed.result, ActionResult::Failed(_)), "{executed:?}");
    assert!(!server.asked().contains(&format!("DELETE {LEASE}")));
    assert!(
        executed
            .written
            .iter()
            .any(|written| matches!(written, Written::Lease { .. }))
    );
}

/// A node never gets two remediations of a step: the watch that no longer shows the first may be wrong.
#[rstest]
#[case::still_there(200, false)]
#[case::not_to_be_read(500, false)]
#[case::gone(404, true)]
#[tokio::test]
async fn vanished_remediation_must_be_gone_before_its_next(#[case] code: u16, #[case] creates: bool) {
    let server = answered_start([("GET", REMEDIATION, code, stored_remediation("c1"))]);
    let mut start = start();
    start.conditions.push(Condition::Gone(reference()));
    server.run(Action::StartRemediation(Box::new(start))).await;
    assert_eq!(server.asked().contains(&format!("POST {REMEDIATIONS}")), creates);
}

/// A template that may not be watched was read a minute ago.
#[rstest]
#[case::as_it_was(200, json!({ "strategy": "reboot" }), true)]
#[case::edited(200, json!({ "strategy": "delete" }), false)]
#[case::gone(404, Value::Null, false)]
#[tokio::test]
async fn polled_template_is_read_before_it_is_used(#[case] code: u16, #[case] spec: Value, #[case] creates: bool) {
    let path = "/apis/a.example.com/v1/namespaces/ns/reboottemplates/t";
    let template = json!({
        "apiVersion": "a.example.com/v1", "kind": "RebootTemplate", "metadata": { "namespace": "ns", "name": "t" },
        "spec": { "template": { "spec": spec } },
    });
    let server = answered_start([("GET", path, code, template)]);
    let start = start();
    let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk("a.example.com", "v1", "RebootTemplate"));
    resource.plural = "reboottemplates".to_owned();
    let mut pass = server.pass();
    pass.polled_templates = Arc::new([(watched_template(&start.template), resource)].into());
    let task = Action::StartRemediation(Box::new(start));
    task.run(pass, Permits::unrestricted()).await;
    assert_eq!(server.asked().contains(&format!("POST {REMEDIATIONS}")), creates);
}

/// Reads that a start rests on are forbidden: its intent does not stay for ever.
#[rstest]
#[case::node([("GET", NODE, 403, Value::Null), ("GET", CHECK, 200, intended())])]
#[case::intent([("GET", NODE, 200, node("u1", "Unknown")), ("GET", CHECK, 403, Value::Null)])]
#[tokio::test]
async fn forbidden_read_withdraws_the_intent_at_once(#[case] answers: [(&str, &str, u16, Value); 2]) {
    let server = Server::new(answers);
    let executed = server.run(Action::StartRemediation(Box::new(start()))).await;
    let reason = executed.refusal.as_ref().map(|refusal| refusal.reason);
    assert_eq!(reason, Some(HealthReason::PermissionMissing), "{executed:?}");
    assert!(!server.asked().iter().any(|asked| asked.starts_with("POST")));
}

/// The other nodes of the control plane are as they are read, whatever the watch has told.
#[rstest]
#[case::majority_without_it([true, true], &["n1", "n2", "n3"], None)]
#[case::another_went_down([true, false], &["n1", "n2", "n3"], Some(HealthReason::EtcdQuorumAtRisk))]
#[case::another_is_gone([true, true], &["n1", "n2", "n3", "n4"], Some(HealthReason::EtcdQuorumAtRisk))]
#[tokio::test]
async fn quorum_is_read_before_the_create(
    #[case] others: [bool; 2],
    #[case] members: &[&str],
    #[case] refused: Option<HealthReason>,
) {
    let recent = members.iter().map(|name| NodeName::from(*name)).collect();
    let member = |name: &str, is_ready: bool| {
        let status = if is_ready { "True" } else { "False" };
        json!({
            "metadata": { "name": name, "uid": name, "labels": { "node-role.kubernetes.io/control-plane": "" } },
            "status": { "conditions": [{ "type": "Ready", "status": status }] },
        })
    };
    let [second, third] = others;
    let members = json!({
        "apiVersion": "v1", "kind": "NodeList", "metadata": {},
        "items": [member("n1", false), member("n2", second), member("n3", third)],
    });
    let server = Server::new([
        ("GET", NODE, 200, node("u1", "Unknown")),
        ("GET", CHECK, 200, intended()),
        ("GET", "/api/v1/nodes", 200, members),
        ("POST", LEASES, 201, lease("NodeHealthCheck-workers")),
        ("DELETE", LEASE, 200, json!({ "kind": "Status", "status": "Success" })),
        ("POST", REMEDIATIONS, 201, stored_remediation("c1")),
    ]);
    let mut start = start();
    start.conditions.push(Condition::EtcdQuorum(recent));
    let executed = server.run(Action::StartRemediation(Box::new(start))).await;
    assert_eq!(
        executed.refusal.as_ref().map(|refusal| refusal.reason),
        refused,
        "{executed:?}"
    );
    let asked = server.asked();
    assert_eq!(asked.contains(&format!("POST {REMEDIATIONS}")), refused.is_none());
    assert_eq!(
        asked.contains(&format!("DELETE {LEASE}")),
        refused.is_some(),
        "its lease is given back"
    );
}

fn write_status() -> Action {
    Action::WriteStatus(Box::new(StatusWrite {
        check: check(),
        base: "1".into(),
        status: Arc::default(),
        announcements: Vec::new(),
    }))
}

fn write_selector() -> Action {
    Action::WriteSelector(SelectorWrite {
        check: check(),
        base: "1".into(),
        selector: LabelSelector::default(),
    })
}

fn note_on_node() -> Action {
    Action::AnnotateNode {
        node: "n1".into(),
        node_uid: "u1".into(),
        before: None,
        change: NodeChange::Remediations(Some("1".to_owned())),
    }
}

/// Another object of the name, or another version, is a conflict: two leaders do no harm.
#[rstest]
#[case::deletion(delete(gone()), &[("/preconditions/uid", "r1")])]
#[case::timeout(time_out(None), &[("/metadata/uid", "r1"), ("/metadata/annotations/remediation.medik8s.io~1nhc-timed-out", LOST_AT)])]
#[case::healthy_delay(
    annotate(RemediationChange::HealthySince(LOST_AT.parse().ok()), None),
    &[("/metadata/uid", "r1"), ("/metadata/annotations/remediation.medik8s.io~1healthy-delay", LOST_AT)]
)]
#[case::old_flag(
    annotate(RemediationChange::FlagOld, None),
    &[("/metadata/annotations/nodehealthcheck.medik8s.io~1old-remediation-cr-flag", "flagon")]
)]
#[case::annotation_of_a_node(note_on_node(), &[("/metadata/uid", "u1")])]
#[case::status(write_status(), &[("/metadata/uid", "c1"), ("/metadata/resourceVersion", "1")])]
#[case::selector(write_selector(), &[("/metadata/uid", "c1"), ("/metadata/resourceVersion", "1")])]
#[tokio::test]
async fn write_is_for_what_was_planned_with(#[case] action: Action, #[case] expected: &[(&str, &str)]) {
    let server = Server::default();
    server.run(action).await;
    let sent = server.sent.lock().unwrap().clone();
    let [sent] = &*sent else { panic!("{sent:?}") };
    for (pointer, value) in expected {
        assert_eq!(sent.pointer(pointer), Some(&json!(value)), "{pointer} of {sent}");
    }
}

/// Its lease goes away with its node, if nobody is there to give it back.
#[tokio::test]
async fn lease_of_a_node_is_owned_by_it() {
    let mut change = node_lease();
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1" });
    if let LeaseStep::Take(terms) = &mut change.step {
        terms.owner = serde_json::from_value(owner.clone()).unwrap();
    }
    let server = answered_start([]);
    let executed = server.run(Action::Lease(change)).await;
    assert_eq!(executed.result, ActionResult::Acted(()));
    let sent = server.sent.lock().unwrap()[0].clone();
    assert_eq!(sent.pointer("/metadata/ownerReferences/0"), Some(&owner), "{sent}");
    assert_eq!(
        sent.pointer("/spec/holderIdentity"),
        Some(&json!("NodeHealthCheck-workers"))
    );
    assert_eq!(sent.pointer("/spec/leaseDurationSeconds"), Some(&json!(660)));
}
