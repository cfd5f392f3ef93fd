use std::sync::Arc;

use axum::http::{Request, Response, StatusCode};
use kube::client::Body;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::config::Config;
use crate::policy::Policy;

const OWN: &str = "system:serviceaccount:nodeward-system:nodeward-drain-lock";

fn user(name: &str) -> User {
    User {
        name: name.to_owned(),
        uid: "u1".to_owned(),
        groups: vec!["admins".to_owned()],
        extra: [("scopes".to_owned(), vec!["a".to_owned()])].into(),
    }
}

fn auto(config: Value) -> Auto {
    let config = json!({ "auto": config });
    Policy::from_config(serde_json::from_value::<Config>(config).unwrap())
        .unwrap()
        .auto
}

#[rstest]
#[case::ourselves(OWN, json!({}), Some(Drainer::No))]
#[case::drain_keeper("system:serviceaccount:nodeward-system:nodeward-drain-keeper", json!({}), Some(Drainer::No))]
#[case::health_check("system:serviceaccount:nodeward-system:nodeward-health-check", json!({}), Some(Drainer::No))]
#[case::ceph_pdb("system:serviceaccount:nodeward-system:nodeward-ceph-pdb", json!({}), Some(Drainer::No))]
#[case::of_another_release("system:serviceaccount:nodeward-system:other-drain-keeper", json!({}), None)]
#[case::of_another_namespace("system:serviceaccount:kube-system:nodeward-drain-keeper", json!({}), None)]
#[case::of_a_neighbour("system:serviceaccount:nodeward-system:nodeward-descheduler", json!({}), None)]
#[case::named_so_besides("system:serviceaccount:nodeward-system:nodeward-drain-keeper-2", json!({}), None)]
#[case::anybody("alice", json!({}), None)]
#[case::configured_as_one("alice", json!({ "alsoDrainers": ["alice"] }), Some(Drainer::Yes))]
#[case::configured_as_none("alice", json!({ "neverDrainers": ["alice"] }), Some(Drainer::No))]
#[case::names_are_exact("alice2", json!({ "alsoDrainers": ["alice"], "neverDrainers": ["alice3"] }), None)]
#[case::ours_whatever_is_configured(
    "system:serviceaccount:nodeward-system:nodeward-drain-keeper",
    json!({ "alsoDrainers": ["system:serviceaccount:nodeward-system:nodeward-drain-keeper"] }),
    Some(Drainer::No)
)]
fn some_are_known_by_name(#[case] name: &str, #[case] config: Value, #[case] known: Option<Drainer>) {
    assert_eq!(by_name(name, &auto(config), Some(OWN)), known);
}

#[test]
fn operator_under_a_name_of_its_own_knows_itself_alone() {
    let own = "system:serviceaccount:ops:locker";
    assert_eq!(by_name(own, &auto(json!({})), Some(own)), Some(Drainer::No));
    assert_eq!(by_name("drain-keeper", &auto(json!({})), Some(own)), None);
}

/// An API server that answers so, and what it was asked.
fn server(answer: impl Fn(&Value) -> (StatusCode, Value) + Send + Sync + 'static) -> (Client, Arc<Mutex<Vec<Value>>>) {
    let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
    let (seen, answer) = (Arc::clone(&asked), Arc::new(answer));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
        async move {
            let body = request.into_body().collect_bytes().await.unwrap();
            let review: Value = serde_json::from_slice(&body).unwrap();
            // Others get their turn while it answers.
            tokio::task::yield_now().await;
            let (status, body) = answer(&review);
            seen.lock().push(review["spec"].clone());
            let response = Response::builder().status(status);
            Ok::<_, std::convert::Infallible>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
        }
    });
    (Client::new(service, "default"), asked)
}

/// One under which the user may do this to nodes.
fn permitting(verbs: &'static [&'static str]) -> (Client, Arc<Mutex<Vec<Value>>>) {
    server(|review| {
        let verb = review["spec"]["resourceAttributes"]["verb"].as_str().unwrap();
        let status = json!({ "allowed": verbs.contains(&verb) });
        (
            StatusCode::CREATED,
            json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {}, "status": status }),
        )
    })
}

fn refusing(code: u16, reason: &'static str) -> Client {
    let status = move |_: &Value| {
        let body = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "no", "reason": reason, "code": code });
        (StatusCode::from_u16(code).unwrap(), body)
    };
    server(status).0
}

#[rstest]
#[case::machine_config_operator_kured_and_eks(&["patch"], Drainer::Yes, 1)]
#[case::cluster_autoscaler(&["update"], Drainer::Yes, 2)]
#[case::administrator(&["patch", "update"], Drainer::Yes, 1)]
#[case::tenant_descheduler_and_vertical_pod_autoscaler(&[], Drainer::No, 2)]
#[tokio::test]
async fn whoever_may_change_nodes_is_a_drainer(
    #[case] verbs: &'static [&'static str],
    #[case] drainer: Drainer,
    #[case] questions: usize,
) {
    let ((client, asked), users) = (permitting(verbs), ReviewedUsers::default());
    assert_eq!(users.look_up(&user("a"), Instant::now()), Drainer::Unanswered);
    assert!(users.review(&client, &user("a")).await.is_some());
    assert_eq!(users.look_up(&user("a"), Instant::now()), drainer);
    assert_eq!(users.review(&client, &user("a")).await, None, "it is known");
    assert_eq!(asked.lock().len(), questions);
    let expected = json!({
        "user": "a", "uid": "u1", "groups": ["admins"], "extra": { "scopes": ["a"] },
        "resourceAttributes": { "resource": "nodes", "verb": "patch" },
    });
    assert_eq!(asked.lock()[0], expected);
}

#[tokio::test]
async fn an_answer_counts_for_that_very_identity_and_ten_minutes() {
    let ((client, _), users) = (permitting(&["patch"]), ReviewedUsers::default());
    users.review(&client, &user("a")).await;
    let now = Instant::now();
    assert_eq!(users.look_up(&user("a"), now + KEPT / 2), Drainer::Yes);
    assert_eq!(users.look_up(&user("a"), now + KEPT), Drainer::Unanswered);
    let without_groups = User {
        groups: Vec::new(),
        ..user("a")
    };
    assert_eq!(users.look_up(&without_groups, now), Drainer::Unanswered);
}

#[test]
fn silence_is_waited_for_half_a_minute() {
    let (users, now) = (ReviewedUsers::default(), Instant::now());
    users.begin(&user("a"), now);
    // Another eviction begins no other wait.
    users.begin(&user("a"), now + AWAITED / 2);
    assert_eq!(users.look_up(&user("a"), now + AWAITED / 2), Drainer::Unanswered);
    assert_eq!(users.look_up(&user("a"), now + AWAITED), Drainer::Unknown);
    assert_eq!(
        users.look_up(&user("a"), now + KEPT),
        Drainer::Unanswered,
        "it is asked anew"
    );
}

#[tokio::test]
async fn missing_right_makes_nobody_a_drainer() {
    let (client, users) = (refusing(403, "Forbidden"), ReviewedUsers::default());
    assert_eq!(users.review(&client, &user("a")).await, Some("forbidden"));
    let now = Instant::now();
    assert_eq!(users.look_up(&user("a"), now), Drainer::Unknown);
    assert_eq!(
        users.look_up(&user("a"), now + REFUSAL_KEPT),
        Drainer::Unanswered,
        "it may be granted"
    );
}

#[rstest]
#[case::server_error(refusing(500, "InternalError"))]
#[case::throttled(refusing(429, "TooManyRequests"))]
#[case::no_json(server(|_| (StatusCode::OK, json!("yes"))).0)]
#[case::without_a_status(server(|_| {
    (StatusCode::CREATED, json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {} }))
}).0)]
#[case::of_another_kind(server(|_| (StatusCode::CREATED, json!({ "apiVersion": "v1", "kind": "Pod", "status": { "allowed": true } }))).0)]
#[tokio::test]
async fn failure_and_nonsense_leave_the_question_open(#[case] client: Client) {
    let users = ReviewedUsers::default();
    assert_eq!(users.review(&client, &user("a")).await, Some("failed"));
    assert_eq!(users.look_up(&user("a"), Instant::now()), Drainer::Unanswered);
    let (client, _) = permitting(&["update"]);
    assert_eq!(
        users.review(&client, &user("a")).await,
        Some("drainer"),
        "it is asked again"
    );
}

#[tokio::test(start_paused = true)]
async fn silent_server_is_not_waited_for_without_end() {
    let service =
        tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, std::io::Error>>());
    let users = ReviewedUsers::default();
    let client = Client::new(service, "default");
    assert_eq!(users.review(&client, &user("a")).await, Some("failed"));
    assert_eq!(users.look_up(&user("a"), Instant::now()), Drainer::Unanswered);
}

#[tokio::test]
async fn one_review_of_a_user_is_under_way() {
    let ((client, asked), users) = (permitting(&["patch"]), ReviewedUsers::default());
    let (a, b) = (user("a"), user("b"));
    let reviews = [&a, &a, &b, &a].map(|user| users.review(&client, user));
    let outcomes = futures::future::join_all(reviews).await;
    assert_eq!(outcomes, [Some("drainer"), None, Some("drainer"), None]);
    assert_eq!(asked.lock().len(), 2);
    // Whoever waited knows it, too.
    assert_eq!(users.look_up(&a, Instant::now()), Drainer::Yes);
}

#[test]
fn memory_stays_bounded_for_any_number_of_users() {
    let (users, now) = (ReviewedUsers::default(), Instant::now());
    for number in 0..2 * REMEMBERED {
        users.begin(&user(&number.to_string()), now);
    }
    assert!(users.known.lock().len() <= REMEMBERED);
    let last = user(&(2 * REMEMBERED - 1).to_string());
    assert_eq!(
        users.look_up(&last, now + AWAITED),
        Drainer::Unknown,
        "the last is remembered"
    );
}
