//! Single writes against a scripted API server and a Ceph that notes its commands.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::client::Body;
use nodeward_runtime::{Component, Metrics, Pause, PauseState, ReconcileTrigger, Supervisor};
use parking_lot::Mutex;
use rados::Answer;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::budgets;
use crate::connection::CephClient;
use crate::plan::daemon_budgets::{DaemonBudget, Limit};
use crate::plan::noout::{NooutPhase, NooutRecord};
use crate::plan::tests::world::World;
use crate::snapshot::{CephProblem, CephState, DefaultBudget};

const BUDGET: &str = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/rook-ceph-osd";
const BUDGETS: &str = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets";
const DOMAIN_BUDGET: &str = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/rook-ceph-osd-host-a";
const STATE_MAP: &str = "/api/v1/namespaces/ns/configmaps/rook-ceph-pdbstatemap";

type Sent = Arc<Mutex<Vec<(String, Value)>>>;

/// Answers in order, each request being the expected one.
struct Server {
    answers: Arc<Mutex<VecDeque<(String, u16, Value)>>>,
    sent: Sent,
    commands: Sent,
    /// What Ceph answers.
    ceph_code: i32,
}

/// Notes each command, and answers it.
struct NotingCeph {
    commands: Sent,
    code: i32,
}

impl CephClient for NotingCeph {
    fn mon_command(&self, command: Value) -> BoxFuture<'_, Result<Answer, CephProblem>> {
        let prefix = command["prefix"].as_str().unwrap_or_default().to_owned();
        if prefix.ends_with("set-group") {
            self.commands.lock().push((prefix, command));
        }
        let answer = Answer {
            code: self.code,
            ..Answer::default()
        };
        async { Ok(answer) }.boxed()
    }

    fn mons_answer(&self) -> BoxFuture<'_, Result<(), CephProblem>> {
        async { Ok(()) }.boxed()
    }

    fn mgr_command(&self, command: Value) -> BoxFuture<'_, Result<Answer, CephProblem>> {
        self.mon_command(command)
    }
}

impl Server {
    fn new(answers: impl IntoIterator<Item = (&'static str, &'static str, u16, Value)>) -> Self {
        let answers = answers.into_iter();
        let answers = answers.map(|(method, path, code, body)| (format!("{method} {path}"), code, body));
        Self {
            answers: Arc::new(Mutex::new(answers.collect())),
            sent: Sent::default(),
            commands: Sent::default(),
            ceph_code: 0,
        }
    }

    /// Carries out a write that was planned when these were the budgets.
    async fn run(&self, budgets: &[Value], write: Write) -> ActionResult<Written> {
        self.run_in(cluster(budgets), write).await
    }

    /// The same while it cannot be read whether ceph-pdb is paused.
    async fn run_unread(&self, budgets: &[Value], write: Write) -> ActionResult<Written> {
        let unknown = Pause::read_as(PauseState::Unknown("no answer in time".to_owned()));
        self.run_under(unknown, cluster(budgets), write).await
    }

    /// Carries out a write that was planned when the cluster was so.
    async fn run_in(&self, cluster: ClusterSnapshot, write: Write) -> ActionResult<Written> {
        self.run_under(Pause::fixed(PauseState::Running), cluster, write).await
    }

    async fn run_under(&self, pause: Pause, cluster: ClusterSnapshot, write: Write) -> ActionResult<Written> {
        let context = PassContext {
            clients: self.clients(),
            connections: self.connections(),
            snapshot: Arc::new(snapshot(cluster)),
        };
        let planned = PlannedWrite { owner: owner(), write };
        let task = tasks(vec![planned], &context.snapshot).remove(0);
        let mut executed = task.run(context, Permits::under(pause)).await;
        assert_eq!(*self.answers.lock(), [], "requests that were expected");
        executed.writes.remove(0).1
    }

    fn clients(&self) -> Clients {
        let (answers, sent) = (Arc::clone(&self.answers), Arc::clone(&self.sent));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (answers, sent) = (Arc::clone(&answers), Arc::clone(&sent));
            async move {
                let asked = format!("{} {}", request.method(), request.uri().path());
                let (expected, code, body) = answers.lock().pop_front().unwrap_or_default();
                assert_eq!(asked, expected);
                let body = if code < 300 {
                    body
                } else {
                    json!({ "kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "" })
                };
                let content = request.into_body().collect_bytes().await.unwrap_or_default();
                sent.lock()
                    .push((asked, serde_json::from_slice(&content).unwrap_or_default()));
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        let client = kube::Client::new(service, "default");
        Clients {
            watches: client.clone(),
            requests: client.clone(),
            lease: client,
        }
    }

    fn connections(&self) -> CephConnections {
        let (commands, code) = (Arc::clone(&self.commands), self.ceph_code);
        let connections = CephConnections::with_clients(
            Arc::new(move |_, _| {
                let commands = Arc::clone(&commands);
                Ok(Arc::new(NotingCeph { commands, code }))
            }),
            &Supervisor::new(nodeward_runtime::CancellationToken::new()),
            ReconcileTrigger::new(),
            &Metrics::new(Component::new("ceph-pdb", "0")),
        );
        let options = rados::Options {
            mon_host: "192.0.2.1".to_owned(),
            user: "client.a".to_owned(),
            key: "k".to_owned(),
            encrypted: false,
            timeout: None,
        };
        connections.set_target(&"ns".into(), Some(Ok(options)));
        connections
    }

    /// The part of the last request's content.
    fn last_sent(&self, pointer: &str) -> Option<Value> {
        self.sent.lock().last()?.1.pointer(pointer).cloned()
    }
}

pub(crate) fn owner() -> Owner {
    Owner {
        namespace: "ns".into(),
        name: "rook".into(),
        uid: "u1".into(),
    }
}

pub(crate) fn cluster(budgets: &[Value]) -> ClusterSnapshot {
    let budgets = budgets.iter().map(|budget| {
        let budget: PodDisruptionBudget = serde_json::from_value(budget.clone()).unwrap();
        (
            budget.metadata.name.as_deref().unwrap().into(),
            budgets::facts(&budget, "u1"),
        )
    });
    ClusterSnapshot {
        budgets: budgets.collect(),
        ceph: CephState::Connecting,
        ..World::new().cluster_snapshot()
    }
}

pub(crate) fn snapshot(cluster: ClusterSnapshot) -> Snapshot {
    Snapshot {
        clusters: [("ns".into(), Arc::new(cluster))].into(),
        ..Snapshot::default()
    }
}

fn form(max_unavailable: i32) -> BudgetForm {
    BudgetForm::Osds(DefaultBudget {
        max_unavailable,
        except_domains: BTreeSet::new(),
        except_osds: BTreeSet::new(),
    })
}

/// `rook-ceph-osd`, stored with this version.
pub(crate) fn stored(version: &str, max_unavailable: i32) -> Value {
    stored_as(version, &form(max_unavailable))
}

fn stored_as(version: &str, form: &BudgetForm) -> Value {
    let mut budget = budgets::object(&owner(), "rook-ceph-osd", form);
    budget.metadata.uid = Some("b1".to_owned());
    budget.metadata.resource_version = Some(version.to_owned());
    serde_json::to_value(budget).unwrap()
}

fn stored_of_domain(version: &str) -> Value {
    let of_domain = BudgetForm::OsdsOfDomain {
        max_unavailable: 0,
        domain: ("host".parse().unwrap(), "a".into()),
    };
    let mut budget = budgets::object(&owner(), "rook-ceph-osd-host-a", &of_domain);
    budget.metadata.uid = Some("b2".to_owned());
    budget.metadata.resource_version = Some(version.to_owned());
    serde_json::to_value(budget).unwrap()
}

fn close() -> Write {
    Write::WriteBudget {
        name: "rook-ceph-osd".into(),
        resource_version: Some("1".into()),
        form: form(0),
    }
}

#[tokio::test]
async fn budget_is_closed_by_one_patch() {
    let server = Server::new([("PATCH", BUDGET, 200, stored("2", 0))]);
    let result = server.run(&[stored("1", 1)], close()).await;
    let ActionResult::Acted(Written::Budget { bases, facts, .. }) = result else {
        panic!("{result:?}");
    };
    assert_eq!(bases, [Some("1".into())]);
    assert_eq!(facts.unwrap().form, Some(form(0)));
    assert_eq!(server.last_sent("/metadata/resourceVersion"), Some(json!("1")));
    assert_eq!(server.last_sent("/spec/minAvailable"), Some(Value::Null));
    assert_eq!(server.last_sent("/spec/selector/matchExpressions"), Some(Value::Null));
}

#[tokio::test]
async fn status_written_meanwhile_costs_no_new_plan() {
    let server = Server::new([
        ("PATCH", BUDGET, 409, Value::Null),
        ("GET", BUDGET, 200, stored("2", 1)),
        ("PATCH", BUDGET, 200, stored("3", 0)),
    ]);
    let result = server.run(&[stored("1", 1)], close()).await;
    let ActionResult::Acted(Written::Budget { bases, .. }) = result else {
        panic!("{result:?}");
    };
    assert_eq!(bases, [Some("1".into()), Some("2".into())]);
    assert_eq!(server.last_sent("/metadata/resourceVersion"), Some(json!("2")));
}

#[tokio::test]
async fn spec_written_meanwhile_needs_a_new_plan() {
    let changed = stored("2", 5);
    let server = Server::new([("PATCH", BUDGET, 409, Value::Null), ("GET", BUDGET, 200, changed)]);
    let result = server.run(&[stored("1", 1)], close()).await;
    assert!(matches!(result, ActionResult::Outdated(_)), "{result:?}");
}

#[tokio::test]
async fn selector_with_more_labels_is_replaced() {
    let mut patched = stored("2", 0);
    patched["spec"]["selector"]["matchLabels"]["tier"] = json!("gold");
    let server = Server::new([("PATCH", BUDGET, 200, patched), ("PUT", BUDGET, 200, stored("3", 0))]);
    let result = server.run(&[stored("1", 1)], close()).await;
    assert!(matches!(result, ActionResult::Acted(_)), "{result:?}");
    let labels = server.last_sent("/spec/selector/matchLabels");
    assert_eq!(labels, Some(json!({ "app": "rook-ceph-osd" })));
    assert_eq!(server.last_sent("/metadata/resourceVersion"), Some(json!("2")));
}

#[rstest]
#[case::stands(stored("7", 0), true)]
#[case::was_opened(stored("7", 1), false)]
#[tokio::test]
async fn domain_loses_its_budget_only_to_the_default(#[case] default: Value, #[case] is_deleted: bool) {
    let deleted = (
        "DELETE",
        DOMAIN_BUDGET,
        200,
        json!({ "kind": "Status", "status": "Success", "code": 200, "message": "", "reason": "" }),
    );
    let answers = [("GET", BUDGET, 200, default)]
        .into_iter()
        .chain(is_deleted.then_some(deleted));
    let server = Server::new(answers);
    let delete = Write::DeleteBudget {
        name: "rook-ceph-osd-host-a".into(),
        uid: "b2".into(),
        resource_version: "4".into(),
        rests_on: Some("rook-ceph-osd".into()),
    };
    let result = server.run(&[stored("6", 0), stored_of_domain("4")], delete).await;
    assert_eq!(matches!(result, ActionResult::Acted(_)), is_deleted, "{result:?}");
    if is_deleted {
        let preconditions = json!({ "uid": "b2", "resourceVersion": "4" });
        assert_eq!(server.last_sent("/preconditions"), Some(preconditions));
    }
}

fn record(phase: NooutPhase) -> NooutRecord {
    let since = jiff::Timestamp::UNIX_EPOCH;
    NooutRecord {
        since,
        phase,
        changed: since,
    }
}

pub(crate) fn set_noout() -> Write {
    let record = record(NooutPhase::Setting);
    Write::SetNoout {
        buckets: ["host-a".into(), "host-b".into()].into(),
        on: true,
        state_map_version: "9".into(),
        noout: [("host-a".into(), record), ("host-b".into(), record)].into(),
    }
}

#[tokio::test]
async fn flags_are_set_once_their_records_stand() {
    let written = json!({ "metadata": { "name": "rook-ceph-pdbstatemap", "resourceVersion": "9" } });
    let server = Server::new([("PATCH", STATE_MAP, 200, written)]);
    let result = server.run(&[], set_noout()).await;
    assert_eq!(result, ActionResult::Acted(Written::Noout));
    assert_eq!(server.last_sent("/metadata/resourceVersion"), Some(json!("9")));
    let text = server.last_sent("/data/nodeward-noout-host-a").unwrap();
    assert!(text.as_str().unwrap().contains("setting"), "{text}");
    let commands = server.commands.lock().clone();
    let buckets: Vec<_> = commands
        .iter()
        .map(|(prefix, sent)| (prefix.as_str(), &sent["who"]))
        .collect();
    let expected = [
        ("osd set-group", &json!(["host-a"])),
        ("osd set-group", &json!(["host-b"])),
    ];
    assert_eq!(buckets, expected);
}

#[tokio::test]
async fn refused_flag_names_the_caps() {
    let written = json!({ "metadata": { "name": "rook-ceph-pdbstatemap", "resourceVersion": "9" } });
    let server = Server {
        ceph_code: -13,
        ..Server::new([("PATCH", STATE_MAP, 200, written)])
    };
    let ActionResult::Failed(error) = server.run(&[], set_noout()).await else {
        panic!("it is refused");
    };
    let said = error.to_string();
    let caps = r#"allow command "osd set-group" with flags=noout"#;
    assert!(said.contains("noout of host-a") && said.contains(caps), "{said}");
}

#[rstest]
#[case::changed(409)]
#[case::gone(404)]
#[tokio::test]
async fn records_that_do_not_stand_stop_the_commands(#[case] code: u16) {
    let server = Server::new([("PATCH", STATE_MAP, code, Value::Null)]);
    let result = server.run(&[], set_noout()).await;
    assert!(matches!(result, ActionResult::Outdated(_)), "{result:?}");
    assert_eq!(*server.commands.lock(), []);
}

#[rstest]
#[case::taken_over(true, json!({
    "draining-failure-domain": "", "set-no-out": "", "zone-a-noout-last-set-at": null, "nodeward-noout-old": null,
}))]
#[case::given_back(false, json!({ "nodeward-noout-old": null }))]
#[tokio::test]
async fn records_take_the_place_of_rooks_keys(#[case] takes_over: bool, #[case] expected: Value) {
    let mut cluster = cluster(&[]);
    cluster.state_map.noout = [("old".into(), record(NooutPhase::Over))].into();
    cluster.state_map.rook.noout_set_at = [("zone-a".into(), jiff::Timestamp::UNIX_EPOCH)].into();
    let written = json!({ "metadata": { "name": "rook-ceph-pdbstatemap", "resourceVersion": "10" } });
    let server = Server::new([("PATCH", STATE_MAP, 200, written)]);
    let write = Write::WriteStateMap {
        resource_version: Some("9".into()),
        takes_over,
        noout: BTreeMap::new(),
    };
    let result = server.run_in(cluster, write).await;
    assert!(
        matches!(result, ActionResult::Acted(Written::StateMap { .. })),
        "{result:?}"
    );
    assert_eq!(server.last_sent("/data"), Some(expected));
}

#[test]
fn budgets_of_osds_are_one_task_and_others_are_not() {
    let mon = DaemonBudget {
        name: "rook-ceph-mon-pdb".to_owned(),
        selector: ("app", "rook-ceph-mon".to_owned()),
        limit: Limit::MaxUnavailable(1),
        evicts_unready: false,
    };
    let snapshot = snapshot(cluster(&[stored("1", 1), stored_of_domain("4")]));
    let create = |name: &str, form| Write::WriteBudget {
        name: name.into(),
        resource_version: None,
        form,
    };
    let delete = Write::DeleteBudget {
        name: "rook-ceph-osd-host-a".into(),
        uid: "b2".into(),
        resource_version: "4".into(),
        rests_on: None,
    };
    let writes = [
        close(),
        create("rook-ceph-mon-pdb", BudgetForm::Daemon(mon)),
        delete,
        create("b", form(0)),
    ];
    let writes = writes.map(|write| PlannedWrite { owner: owner(), write });
    let tasks = tasks(writes.into(), &snapshot);
    let keys: Vec<(String, usize)> = tasks
        .iter()
        .map(|task| (task.key.to_string(), task.writes.len()))
        .collect();
    let expected = [("budgets of the OSDs in ns", 3), ("budget ns/rook-ceph-mon-pdb", 1)];
    assert_eq!(keys, expected.map(|(key, count)| (key.to_owned(), count)));
}

fn except(max_unavailable: i32, domains: &[&str]) -> BudgetForm {
    let domains = domains.iter().map(|domain| ("host".parse().unwrap(), (*domain).into()));
    BudgetForm::Osds(DefaultBudget {
        max_unavailable,
        except_domains: domains.collect(),
        except_osds: BTreeSet::new(),
    })
}

#[rstest]
#[case::closed(except(1, &[]), except(0, &[]), false)]
#[case::domain_taken_in(except(0, &["a", "b"]), except(0, &["a"]), false)]
#[case::opened(except(0, &[]), except(1, &[]), true)]
#[case::domain_left_out(except(1, &["a"]), except(0, &["a", "b"]), true)]
#[tokio::test]
async fn only_what_opens_waits_for_a_read_of_the_pause(
    #[case] before: BudgetForm,
    #[case] next: BudgetForm,
    #[case] waits: bool,
) {
    let written = ("PATCH", BUDGET, 200, stored_as("2", &next));
    let server = Server::new((!waits).then_some(written));
    let write = Write::WriteBudget {
        name: "rook-ceph-osd".into(),
        resource_version: Some("1".into()),
        form: next,
    };
    let result = server.run_unread(&[stored_as("1", &before)], write).await;
    if waits {
        assert_eq!(result, ActionResult::Stopped(Stop::PauseUnknown));
    } else {
        assert!(matches!(result, ActionResult::Acted(_)), "{result:?}");
    }
}

#[tokio::test]
async fn budget_is_created_but_not_deleted_while_the_pause_cannot_be_read() {
    let server = Server::new([("POST", BUDGETS, 201, stored("2", 0))]);
    let create = Write::WriteBudget {
        name: "rook-ceph-osd".into(),
        resource_version: None,
        form: form(0),
    };
    let result = server.run_unread(&[], create).await;
    assert!(matches!(result, ActionResult::Acted(_)), "{result:?}");
    let delete = Write::DeleteBudget {
        name: "rook-ceph-osd".into(),
        uid: "b1".into(),
        resource_version: "2".into(),
        rests_on: None,
    };
    let result = server.run_unread(&[stored("2", 0)], delete).await;
    assert_eq!(result, ActionResult::Stopped(Stop::PauseUnknown));
}

#[rstest]
#[case::set(true, 2)]
#[case::cleared(false, 0)]
#[tokio::test]
async fn noout_is_set_but_not_cleared_while_the_pause_cannot_be_read(#[case] on: bool, #[case] commands: usize) {
    let Write::SetNoout {
        buckets,
        state_map_version,
        noout,
        ..
    } = set_noout()
    else {
        panic!("it sets flags");
    };
    let write = Write::SetNoout {
        buckets,
        on,
        state_map_version,
        noout,
    };
    let written = json!({ "metadata": { "name": "rook-ceph-pdbstatemap", "resourceVersion": "9" } });
    let server = Server::new(on.then_some(("PATCH", STATE_MAP, 200, written)));
    server.run_unread(&[], write).await;
    assert_eq!(server.commands.lock().len(), commands);
}
