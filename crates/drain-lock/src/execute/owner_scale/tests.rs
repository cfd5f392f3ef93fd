//! What owners answer, against a scripted API server.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::tests::fixture::{merged, owner, parse, pod};

const SETS: &str = "/apis/apps/v1/namespaces/shop/replicasets/";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/shop/deployments/web/scale";
const STATEFUL_SET: &str = "/apis/apps/v1/namespaces/shop/statefulsets/db/scale";
const LOAD: &str = "/apis/example.com/v1/namespaces/shop/loads/load/scale";

fn client(answers: &[(&str, u16, Value)]) -> Client {
    let answers: BTreeMap<String, (u16, Value)> = answers
        .iter()
        .map(|(path, code, body)| ((*path).to_owned(), (*code, body.clone())))
        .collect();
    let answer = move |request: Request| {
        let answer = answers.get(request.uri().path()).cloned();
        async move {
            let (code, body) = answer.unwrap_or((404, Value::Null));
            let failed = json!({ "kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "" });
            let body = if code < 300 { body } else { failed };
            (StatusCode::from_u16(code).unwrap(), axum::Json(body)).into_response()
        }
    };
    Client::new(Router::new().fallback(answer), "default")
}

fn scale(uid: &str, replicas: Option<i32>) -> Value {
    json!({ "metadata": { "name": "web", "uid": uid }, "spec": { "replicas": replicas } })
}

fn set(owner: Value) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": { "name": "web", "uid": "uid-web", "ownerReferences": [owner] },
    })
}

/// Pods of a ReplicaSet `web`, of a StatefulSet `db`, of a Job, and of an unknown kind `Load`.
fn pods(names: &[&str]) -> Vec<PodFacts> {
    let pods = names.iter().map(|name| {
        let (kind, _) = name.split_once('-').unwrap();
        let owner = match kind {
            "db" => owner("apps/v1", "StatefulSet", "db"),
            "load" => owner("example.com/v1", "Load", "load"),
            "job" => owner("batch/v1", "Job", "job"),
            _ => owner("apps/v1", "ReplicaSet", "web"),
        };
        let pod = merged(
            pod(name, json!({})),
            json!({ "metadata": { "ownerReferences": [owner] } }),
        );
        PodFacts::project(&parse(pod)).unwrap()
    });
    pods.collect()
}

async fn read_with(answers: &[(&str, u16, Value)], row: Option<&BudgetRow>, there: &[&str]) -> (i32, Vec<String>) {
    let scale = read(&client(answers), "shop", row, &pods(there), 1).await.unwrap();
    (scale.expected_pods, scale.owners)
}

fn of_deployment() -> (String, u16, Value) {
    (format!("{SETS}web"), 200, set(owner("apps/v1", "Deployment", "web")))
}

/// Two pods are there, and one is down.
#[rstest]
#[case::deployment(&["web-1", "web-2"], &[(DEPLOYMENT, 200, scale("uid-web", Some(3)))], 3, &["Deployment/web"])]
#[case::deployment_without_replicas(&["web-1", "web-2"], &[(DEPLOYMENT, 200, scale("uid-web", None))], 0, &[])]
#[case::two_owners(
    &["web-1", "db-0"],
    &[(DEPLOYMENT, 200, scale("uid-web", Some(3))), (STATEFUL_SET, 200, scale("uid-db", Some(2)))],
    5, &["Deployment/web", "StatefulSet/db"],
)]
#[case::kind_with_a_scale(&["load-1", "load-2"], &[(LOAD, 200, scale("uid-load", Some(4)))], 4, &["example.com/v1/Load/load"])]
#[case::kind_without_a_scale(&["load-1", "load-2"], &[], 3, &["example.com/v1/Load/load"])]
#[case::job(&["job-1", "db-0"], &[(STATEFUL_SET, 200, scale("uid-db", Some(1)))], 2, &["StatefulSet/db", "batch/v1/Job/job"])]
#[case::kind_that_may_not_be_read(&["load-1", "load-2"], &[(LOAD, 403, Value::Null)], 3, &["example.com/v1/Load/load"])]
#[case::another_owner_of_that_name(&["db-0", "db-1"], &[(STATEFUL_SET, 200, scale("another", Some(9)))], 3, &["StatefulSet/db"])]
#[case::owner_that_is_gone_before_its_pods(&["db-0", "db-1"], &[], 3, &["StatefulSet/db"])]
#[tokio::test]
async fn owners_tell_how_many_pods(
    #[case] there: &[&str],
    #[case] answers: &[(&str, u16, Value)],
    #[case] expected: i32,
    #[case] owners: &[&str],
) {
    let (path, code, set) = of_deployment();
    let mut answers = answers.to_vec();
    answers.push((&path, code, set));
    let (pods, named) = read_with(&answers, None, there).await;
    assert_eq!(
        (pods, named),
        (expected, owners.iter().map(|owner| (*owner).to_owned()).collect())
    );
}

/// The ledger names a StatefulSet of three pods, none of which is there.
#[rstest]
#[case::as_before(200, Some(3), 3)]
#[case::scaled_down(200, Some(1), 1)]
#[case::scaled_to_none(200, Some(0), 0)]
#[case::gone(404, None, 0)]
#[case::forbidden(403, None, 3)]
#[tokio::test]
async fn only_an_answer_lowers_the_scale(#[case] code: u16, #[case] replicas: Option<i32>, #[case] expected: i32) {
    let row = BudgetRow {
        expected_pods: Some(3),
        owners: vec!["StatefulSet/db".to_owned()],
        ..BudgetRow::default()
    };
    let answers = [(STATEFUL_SET, code, scale("whatever", replicas))];
    assert_eq!(read_with(&answers, Some(&row), &[]).await.0, expected);
}

/// Whether it was deleted or has finished.
#[tokio::test]
async fn job_without_pods_wants_none() {
    let row = BudgetRow {
        expected_pods: Some(4),
        owners: vec!["Deployment/web".to_owned(), "batch/v1/Job/job".to_owned()],
        ..BudgetRow::default()
    };
    let (path, code, set) = of_deployment();
    let answers = [(&*path, code, set), (DEPLOYMENT, 200, scale("uid-web", Some(2)))];
    let told = read_with(&answers, Some(&row), &["web-1", "web-2"]).await;
    assert_eq!(told, (2, vec!["Deployment/web".to_owned()]));
}

#[tokio::test]
async fn server_error_is_no_answer() {
    let answers = [(STATEFUL_SET, 500, Value::Null)];
    let read = read(&client(&answers), "shop", None, &pods(&["db-0"]), 0).await;
    assert!(read.is_err());
}

#[rstest]
#[case("apps/v1", "Deployment", "Deployment/web")]
#[case("v1", "ReplicationController", "ReplicationController/web")]
#[case("v1", "Other", "v1/Other/web")]
#[case("apps/v1", "DaemonSet", "apps/v1/DaemonSet/web")]
#[case("apps.example.com/v2", "StatefulSet", "apps.example.com/v2/StatefulSet/web")]
fn owner_is_read_as_it_was_written(#[case] api_version: &str, #[case] kind: &str, #[case] text: &str) {
    assert_eq!(written(api_version, kind, "web"), text);
    let (read, name) = parse_owner(text);
    assert_eq!(
        (read.api_version().as_str(), read.kind.as_str(), name),
        (api_version, kind, "web")
    );
}

fn parse_owner(text: &str) -> (GroupVersionKind, &str) {
    super::parse(text).unwrap()
}
