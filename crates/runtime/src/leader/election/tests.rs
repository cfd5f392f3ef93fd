//! The election against a lease in memory that others may touch between any two of our requests.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::client::Body;
use nodeward_api::annotation::PLANNED_AT;
use rstest::rstest;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Election, ElectionTimes};
use crate::component::Component;
use crate::leader::{LeaderState, Leadership};
use crate::metrics::Metrics;
use crate::reconcile_trigger::ReconcileTrigger;

const US: &str = "us";
const LONG_AGO: &str = "2001-01-01T00:00:00.000000Z";

const TIMES: ElectionTimes = ElectionTimes {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    renew_interval: Duration::from_secs(5),
    retry_period: Duration::from_secs(2),
    request_timeout: Duration::from_secs(4),
    mark_interval: Duration::from_secs(30),
};

/// What happens around a request, counted from 1.
#[derive(Clone)]
enum Meanwhile {
    /// Another writes this spec just before.
    Written(Value),
    /// Another deletes the lease just before.
    Removed,
    /// It is carried out, and the answer is lost.
    AnswerLost,
    /// It is never answered, nor carried out.
    Hangs,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lease: Option<Value>,
    version: u64,
    /// The annotation that says that passes are finished.
    mark: Option<String>,
    /// `metadata.managedFields`.
    writes: Value,
    asked: Vec<Method>,
    meanwhile: BTreeMap<usize, Meanwhile>,
}

impl State {
    fn write(&mut self, spec: &Value) -> Value {
        self.version += 1;
        let annotations = self.mark.as_ref().map(|mark| json!({ PLANNED_AT: mark }));
        let metadata = json!({
            "name": "l", "namespace": "ns", "resourceVersion": self.version.to_string(), "annotations": annotations,
            "managedFields": self.writes,
        });
        let lease =
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec});
        self.lease.insert(lease).clone()
    }

    fn answer(&mut self, method: &Method, body: &Value) -> (u16, Value) {
        let status = |code: u16, reason: &str| {
            (
                code,
                json!({"kind": "Status", "code": code, "reason": reason, "message": reason}),
            )
        };
        match (method.as_str(), self.lease.clone()) {
            ("POST", None) => (201, self.write(&body["spec"])),
            ("POST", Some(_)) => status(409, "Conflict"),
            (_, None) => status(404, "NotFound"),
            ("GET", Some(lease)) => (200, lease),
            ("PATCH", Some(lease)) => {
                let expected = &body["metadata"]["resourceVersion"];
                if !expected.is_null() && *expected != lease["metadata"]["resourceVersion"] {
                    return status(409, "Conflict");
                }
                if let Some(mark) = body["metadata"]["annotations"][PLANNED_AT].as_str() {
                    self.mark = Some(mark.to_owned());
                }
                let mut spec = lease["spec"].as_object().cloned().unwrap_or_default();
                spec.extend(body["spec"].as_object().cloned().unwrap_or_default());
                (200, self.write(&Value::Object(spec)))
            }
            _ => status(405, "MethodNotAllowed"),
        }
    }
}

impl Server {
    fn holding(spec: &Value) -> Self {
        let server = Self::default();
        server.0.lock().unwrap().write(spec);
        server
    }

    fn meanwhile(&self, request: usize, what: Meanwhile) {
        let mut state = self.0.lock().unwrap();
        let number = state.asked.len() + request;
        state.meanwhile.insert(number, what);
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { server.serve(request).await }
        });
        Client::new(service, "ns")
    }

    async fn serve(&self, request: Request<Body>) -> io::Result<Response<Body>> {
        let method = request.method().clone();
        let bytes = request.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        let (meanwhile, (code, answer)) = {
            let mut state = self.0.lock().unwrap();
            state.asked.push(method.clone());
            let number = state.asked.len();
            let meanwhile = state.meanwhile.remove(&number);
            match &meanwhile {
                Some(Meanwhile::Written(spec)) => drop(state.write(spec)),
                Some(Meanwhile::Removed) => state.lease = None,
                _ => {}
            }
            let answer = match meanwhile {
                Some(Meanwhile::Hangs) => (0, Value::Null),
                _ => state.answer(&method, &body),
            };
            (meanwhile, answer)
        };
        match meanwhile {
            Some(Meanwhile::AnswerLost) => Err(io::ErrorKind::ConnectionReset.into()),
            Some(Meanwhile::Hangs) => std::future::pending().await,
            _ => Ok(Response::builder()
                .status(code)
                .body(Body::from(answer.to_string().into_bytes()))
                .unwrap()),
        }
    }

    fn holder(&self) -> Option<String> {
        let lease: Lease = serde_json::from_value(self.0.lock().unwrap().lease.clone()?).unwrap();
        lease.spec?.holder_identity
    }

    fn mark(&self) -> Option<String> {
        self.0.lock().unwrap().mark.clone()
    }

    fn requests(&self) -> usize {
        self.0.lock().unwrap().asked.len()
    }

    fn election(&self) -> (Election, Leadership) {
        self.election_with(TIMES)
    }

    fn election_with(&self, times: ElectionTimes) -> (Election, Leadership) {
        let metrics = Metrics::new(Component::new("drain-keeper", "1.2.3"));
        let election = Election::new(
            self.client(),
            "ns",
            "l".to_owned(),
            US.to_owned(),
            times,
            ReconcileTrigger::new(),
            &metrics,
        );
        let leadership = election.leadership();
        (election, leadership)
    }
}

/// A term of somebody's, renewed lately.
fn held_by(holder: &str, transitions: i32) -> Value {
    let now = format!("{:.6}", jiff::Timestamp::now());
    json!({
        "holderIdentity": holder, "leaseDurationSeconds": 15, "acquireTime": now, "renewTime": now,
        "leaseTransitions": transitions,
    })
}

/// A lease of somebody whose clock is years behind: to the library it is long expired.
fn held_by_one_whose_clock_is_behind() -> Value {
    json!({
        "holderIdentity": "other", "leaseDurationSeconds": 15, "acquireTime": LONG_AGO, "renewTime": LONG_AGO,
        "leaseTransitions": 0,
    })
}

async fn leading(server: &Server) -> (Election, Leadership) {
    let (mut election, leadership) = server.election();
    election.attempt_or_step_down().await;
    assert!(leadership.is_leading_now());
    (election, leadership)
}

#[tokio::test]
async fn first_candidate_creates_the_lease() {
    let server = Server::default();
    let (_election, leadership) = leading(&server).await;
    assert_eq!(server.holder().as_deref(), Some(US));
    assert!(matches!(leadership.state(), LeaderState::Leading { .. }));
    assert!(leadership.until().is_some());
}

#[tokio::test]
async fn foreign_lease_is_left_despite_old_times() {
    let server = Server::holding(&held_by_one_whose_clock_is_behind());
    let (mut election, leadership) = server.election();
    for _ in 0..3 {
        election.attempt_or_step_down().await;
    }
    assert!(!leadership.is_leading_now());
    assert_eq!(server.holder().as_deref(), Some("other"));
}

#[tokio::test]
async fn a_released_lease_is_taken_at_once() {
    let server = Server::holding(&json!({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 4}));
    leading(&server).await;
    assert_eq!(server.holder().as_deref(), Some(US));
}

fn unrenewed_for(leadership: &Leadership) -> Duration {
    match leadership.state() {
        LeaderState::Leading { unrenewed_for, .. } => unrenewed_for,
        LeaderState::Following => panic!("it does not lead"),
    }
}

fn released(age: Duration) -> Value {
    let renewed = format!("{:.6}", jiff::Timestamp::now() - age);
    json!({ "holderIdentity": "", "leaseDurationSeconds": 15, "renewTime": renewed, "leaseTransitions": 4 })
}

#[rstest]
#[case::answered(None)]
#[case::with_a_lost_answer(Some(Meanwhile::AnswerLost))]
#[tokio::test]
async fn gap_before_a_claim_is_told(#[case] claim: Option<Meanwhile>) {
    let server = Server::holding(&released(Duration::from_mins(1)));
    let (mut election, leadership) = server.election();
    // 1 looks, 2 claims.
    if let Some(what) = claim {
        server.meanwhile(2, what);
        election.attempt_or_step_down().await;
        assert!(!leadership.is_leading_now());
    }
    election.attempt_or_step_down().await;
    assert!(unrenewed_for(&leadership) >= Duration::from_mins(1));
}

#[tokio::test]
async fn gap_ends_with_a_renewal_of_another() {
    let server = Server::holding(&released(Duration::from_mins(1)));
    server.meanwhile(2, Meanwhile::Written(held_by("other", 5)));
    let (mut election, leadership) = server.election();
    election.attempt_or_step_down().await;
    assert!(!leadership.is_leading_now());
    election.attempt_or_step_down().await;
    server.0.lock().unwrap().write(&released(Duration::ZERO));
    election.attempt_or_step_down().await;
    assert!(unrenewed_for(&leadership) < Duration::from_mins(1));
}

#[tokio::test]
async fn a_renewal_moves_the_deadline() {
    let server = Server::default();
    let (mut election, leadership) = leading(&server).await;
    let before = leadership.until().unwrap();
    election.attempt_or_step_down().await;
    assert!(leadership.until().unwrap() > before);
}

#[tokio::test]
async fn slower_of_two_candidates_follows() {
    let server = Server::holding(&json!({}));
    // 1 looks, 2 claims.
    server.meanwhile(2, Meanwhile::Written(held_by("other", 1)));
    let (mut election, leadership) = server.election();
    election.attempt_or_step_down().await;
    assert!(!leadership.is_leading_now());
    assert_eq!(server.holder().as_deref(), Some("other"));
}

/// The library takes what looks expired without a precondition: being told `Acquired` is then no reason to lead, for the
/// holder may lead still.
#[rstest]
#[case::created_by_a_faster_one(None, 2)]
#[case::taken_over_before_a_renewal(Some(()), 2)]
#[tokio::test]
async fn unconditional_library_takeover_does_not_lead(#[case] led: Option<()>, #[case] request: usize) {
    let server = Server::default();
    let (mut election, leadership) = match led {
        Some(()) => leading(&server).await,
        None => server.election(),
    };
    server.meanwhile(request, Meanwhile::Written(held_by_one_whose_clock_is_behind()));
    election.attempt_or_step_down().await;
    assert_eq!(
        server.holder().as_deref(),
        Some(US),
        "the library did take it: this test rests on that"
    );
    assert!(!leadership.is_leading_now());
    election.attempt_or_step_down().await;
    assert!(
        !leadership.is_leading_now(),
        "it must first stand still for its whole duration"
    );
}

#[tokio::test]
async fn a_renewal_that_meets_another_holder_ends_the_lead() {
    let server = Server::default();
    let (mut election, leadership) = leading(&server).await;
    // 1 looks, 2 is the library's look, 3 its renewal.
    server.meanwhile(3, Meanwhile::Written(held_by("other", 1)));
    election.attempt_or_step_down().await;
    assert!(!leadership.is_leading_now());
    assert_eq!(server.holder().as_deref(), Some("other"));
}

#[tokio::test]
async fn lease_lost_at_second_reading_is_not_led() {
    let server = Server::default();
    // 1 looks, 2 is the library's look, 3 its creation, 4 reads once more.
    server.meanwhile(4, Meanwhile::Written(held_by("other", 1)));
    let (mut election, leadership) = server.election();
    election.attempt_or_step_down().await;
    assert!(!leadership.is_leading_now());
}

#[tokio::test]
async fn restart_under_same_name_leads_at_once() {
    let server = Server::holding(&held_by(US, 3));
    leading(&server).await;
    assert_eq!(
        server.0.lock().unwrap().lease.as_ref().unwrap()["spec"]["leaseTransitions"],
        4
    );
}

#[tokio::test]
async fn a_second_process_of_our_name_ends_our_lead() {
    let server = Server::default();
    let (mut first, leads) = leading(&server).await;
    let (_second, also_leads) = leading(&server).await;
    for _ in 0..3 {
        first.attempt_or_step_down().await;
        assert!(!leads.is_leading_now());
    }
    assert!(also_leads.is_leading_now());
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_recognised() {
    let server = Server::holding(&json!({}));
    server.meanwhile(2, Meanwhile::AnswerLost);
    let (mut election, leadership) = server.election();
    election.attempt_or_step_down().await;
    assert!(!leadership.is_leading_now());
    election.attempt_or_step_down().await;
    assert!(leadership.is_leading_now());
}

#[tokio::test]
async fn a_lease_that_was_deleted_is_created_again() {
    let server = Server::default();
    let (mut election, leadership) = leading(&server).await;
    server.meanwhile(1, Meanwhile::Removed);
    election.attempt_or_step_down().await;
    assert!(leadership.is_leading_now());
    assert_eq!(server.holder().as_deref(), Some(US));
}

#[tokio::test]
async fn silent_server_ends_the_lead_at_deadline() {
    let times = ElectionTimes {
        renew_deadline: Duration::from_millis(50),
        ..TIMES
    };
    let server = Server::default();
    let (mut election, leadership) = server.election_with(times);
    election.attempt_or_step_down().await;
    let until = leadership.until().unwrap();
    server.meanwhile(1, Meanwhile::Hangs);
    election.attempt_or_step_down().await;
    assert!(std::time::Instant::now() >= until);
    assert!(!leadership.is_leading_now());
    assert_eq!(leadership.state(), LeaderState::Following);
}

#[tokio::test]
async fn one_failed_renewal_does_not_end_the_lead() {
    let server = Server::default();
    let (mut election, leadership) = leading(&server).await;
    let until = leadership.until();
    server.meanwhile(1, Meanwhile::AnswerLost);
    election.attempt_or_step_down().await;
    assert!(leadership.is_leading_now());
    assert_eq!(leadership.until(), until, "a failure does not move the deadline");
}

#[tokio::test]
async fn the_lease_is_given_back_on_shutdown() {
    let server = Server::default();
    let (election, leadership) = leading(&server).await;
    let stop = CancellationToken::new();
    stop.cancel();
    election.run(stop).await;
    assert!(!leadership.is_leading_now());
    assert_eq!(server.holder().as_deref(), Some(""));
}

#[tokio::test]
async fn expired_lease_is_not_released() {
    let server = Server::default();
    let (election, _) = leading(&server).await;
    election.deadline.expire();
    let asked = server.requests();
    let stop = CancellationToken::new();
    stop.cancel();
    election.run(stop).await;
    assert_eq!(server.requests(), asked);
}

#[tokio::test]
async fn renewal_continues_a_term_and_a_claim_begins_one() {
    let server = Server::holding(&json!({"leaseTransitions": 3}));
    let (mut election, leadership) = leading(&server).await;
    for _ in 0..2 {
        election.attempt_or_step_down().await;
        assert!(leadership.is_leading_now());
        assert_eq!(
            server.0.lock().unwrap().lease.as_ref().unwrap()["spec"]["leaseTransitions"],
            4
        );
    }
    // Taken, and taken back by a process of our name.
    server.meanwhile(1, Meanwhile::Written(held_by(US, 6)));
    election.attempt_or_step_down().await;
    assert!(!leadership.is_leading_now());
}

#[tokio::test]
async fn claim_mends_a_malformed_lease() {
    let server = Server::holding(&Value::Null);
    leading(&server).await;
    let lease: Lease = serde_json::from_value(server.0.lock().unwrap().lease.clone().unwrap()).unwrap();
    let spec = lease.spec.unwrap();
    assert_eq!(
        (
            spec.holder_identity.as_deref(),
            spec.lease_transitions,
            spec.lease_duration_seconds
        ),
        (Some(US), Some(1), Some(15))
    );
    assert!(spec.acquire_time.is_some() && spec.renew_time.is_some());
}

/// A leader that has just finished a pass.
async fn planning(server: &Server) -> (Election, Leadership) {
    let (mut election, leadership) = leading(server).await;
    leadership.planned();
    election.attempt_or_step_down().await;
    (election, leadership)
}

#[tokio::test]
async fn finished_pass_is_told_with_its_term() {
    let server = Server::default();
    let (_election, _leadership) = planning(&server).await;
    assert_eq!(server.mark().as_deref(), Some("0@1"));
}

#[tokio::test]
async fn leader_that_finishes_no_pass_says_nothing() {
    let server = Server::default();
    let (mut election, _leadership) = leading(&server).await;
    election.attempt_or_step_down().await;
    assert_eq!(server.mark(), None);
}

#[rstest]
#[case::at_once(Duration::from_mins(10), "0@1")]
#[case::after_a_while(Duration::ZERO, "0@2")]
#[tokio::test]
async fn further_passes_are_told_with_a_pause(#[case] mark_interval: Duration, #[case] mark: &str) {
    let server = Server::default();
    let (mut election, leadership) = server.election_with(ElectionTimes { mark_interval, ..TIMES });
    election.attempt_or_step_down().await;
    for _ in 0..2 {
        leadership.planned();
        election.attempt_or_step_down().await;
    }
    assert_eq!(server.mark().as_deref(), Some(mark));
}

#[tokio::test]
async fn passes_of_an_earlier_term_are_not_told() {
    let server = Server::default();
    let (mut election, leadership) = leading(&server).await;
    leadership.planned();
    election.follow("another holds the lease");
    server.0.lock().unwrap().write(&released(Duration::ZERO));
    for _ in 0..3 {
        election.attempt_or_step_down().await;
    }
    assert!(leadership.is_leading_now());
    assert_eq!(server.mark(), None);
}

/// Its patch rests on the version that it renewed.
#[tokio::test]
async fn deposed_leaders_mark_is_refused() {
    let server = Server::default();
    let (mut election, leadership) = leading(&server).await;
    leadership.planned();
    // 1 looks, 2 and 3 renew, 4 marks.
    server.meanwhile(4, Meanwhile::Written(held_by("other", 1)));
    election.attempt_or_step_down().await;
    assert_eq!((server.mark(), server.holder().as_deref()), (None, Some("other")));
}

fn leaderless_for(leadership: &Leadership) -> Duration {
    match leadership.state() {
        LeaderState::Leading { leaderless_for, .. } => leaderless_for,
        LeaderState::Following => panic!("it does not lead"),
    }
}

/// Of a time before it began a process knows what the lease tells.
#[tokio::test]
async fn new_leader_knows_of_the_silence_before_it() {
    let server = Server::holding(&released(Duration::from_mins(1)));
    let at = |minute: i64| jiff::Timestamp::from_second(60 * minute).unwrap();
    {
        let mut state = server.0.lock().unwrap();
        state.mark = Some("3@7".to_owned());
        state.writes = json!([
            { "manager": "other", "time": at(30) }, { "manager": "nodeward-planned-at", "time": at(25) },
        ]);
        state.write(&released(Duration::from_mins(1)));
    }
    let (_election, leadership) = leading(&server).await;
    assert!(leaderless_for(&leadership) >= Duration::from_mins(6));
    assert!(leaderless_for(&leadership) < Duration::from_mins(7));
    assert!(
        leadership.leaderless_for() < Duration::from_mins(1),
        "its own clock has not heard it"
    );
}
