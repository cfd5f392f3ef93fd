use jiff::SignedDuration;
use std::convert::Infallible;

use http::{Request, Response};
use kube::client::Body;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// One lease, as the API server has it; absent: 404, null: 403.
type Stored = Arc<Mutex<Option<Value>>>;

fn key() -> NamespacedName {
    NamespacedName::new("ns", "leader")
}

fn held(renewed: Timestamp, seconds: i64) -> Value {
    let renewed = renewed.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "leader" },
        "spec": { "holderIdentity": "leader-0", "renewTime": renewed, "leaseDurationSeconds": seconds },
    })
}

fn client(stored: &Stored) -> Client {
    let stored = Arc::clone(stored);
    let service = tower::service_fn(move |_: Request<Body>| {
        let refused = |code: u16| {
            (
                code,
                json!({ "kind": "Status", "status": "Failure", "code": code, "message": "", "reason": "" }),
            )
        };
        let (code, body) = match stored.lock().unwrap().clone() {
            None => refused(404),
            Some(Value::Null) => refused(403),
            Some(lease) => (200, lease),
        };
        let body = Body::from(body.to_string().into_bytes());
        std::future::ready(Ok::<_, Infallible>(
            Response::builder().status(code).body(body).unwrap(),
        ))
    });
    Client::new(service, "default")
}

/// An API server that never answers.
fn silent() -> Client {
    let service = tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    Client::new(service, "default")
}

struct Setup {
    stored: Stored,
    answers: Answers,
    trigger: ReconcileTrigger,
    leadership: Leadership,
}

impl Setup {
    /// Looks each millisecond, for as long as the test runs.
    fn start(lease: Option<Value>) -> Self {
        let stored = Arc::new(Mutex::new(lease));
        Self::looking(client(&stored), stored)
    }

    fn looking(client: Client, stored: Stored) -> Self {
        let this = Self {
            stored,
            answers: Answers::default(),
            trigger: ReconcileTrigger::new(),
            leadership: Leadership::fixed(true),
        };
        this.answers.keep(&BTreeSet::from([key()]));
        let looker = Looker {
            client,
            lease: key(),
            answers: this.answers.clone(),
            trigger: this.trigger.clone(),
            interval: Duration::from_millis(1),
        };
        tokio::spawn(looker.run(this.leadership.subscribe()));
        this
    }

    fn holder(&self) -> Result<Reading<Option<Live>>, String> {
        self.answers.holder(&key(), self.leadership.state())
    }

    fn answer(&self) -> Answer {
        self.answers.lock()[&key()].clone()
    }
}

/// The lease appears while this process leads, and nothing else changes.
#[tokio::test]
async fn lease_that_is_taken_is_seen_with_the_next_look() {
    let setup = Setup::start(None);
    assert!(setup.answers.has(&key()).is_err(), "nobody has looked");
    setup.trigger.notified().await;
    assert_eq!(setup.answer().live, None);
    assert_eq!(setup.answers.has(&key()), Ok(()));
    *setup.stored.lock().unwrap() = Some(held(Timestamp::now(), 15));
    setup.trigger.notified().await;
    let live = setup.answer().live.unwrap();
    assert_eq!((live.holder.as_str(), live.is_renewed), ("leader-0", true));
}

#[tokio::test]
async fn lease_that_nobody_wants_is_forgotten() {
    let setup = Setup::start(Some(held(Timestamp::now(), 15)));
    setup.trigger.notified().await;
    setup.answers.keep(&BTreeSet::new());
    assert_eq!(setup.answers.has(&key()), Ok(()));
    assert!(setup.answers.lock().is_empty());
}

/// Of two leases one does not answer: the other one's answer is there at once, and decisions wait for a second at most.
#[tokio::test(start_paused = true)]
async fn lease_that_does_not_answer_delays_nothing_else() {
    let slow = Setup::looking(silent(), Stored::default());
    let quick = Setup::start(Some(held(Timestamp::now(), 15)));
    quick.trigger.notified().await;
    assert!(matches!(quick.holder(), Ok(Reading::Known(Some(_)))));
    let began = tokio::time::Instant::now();
    let waits = slow.holder();
    assert_eq!(waits, Err("lease ns/leader is being read".to_owned()));
    slow.trigger.notified().await;
    assert_eq!(began.elapsed().as_secs(), 1);
    let unknown = |why: &str| Ok(Reading::Unknown(format!("lease ns/leader {why}")));
    assert_eq!(slow.holder(), unknown("is still being read"));
    slow.trigger.notified().await;
    assert_eq!(began.elapsed().as_secs(), TIMEOUT.as_secs());
    assert_eq!(slow.holder(), unknown("cannot be read: no answer within 10 s"));
}

/// A standby looks once. What it saw then tells the leader that it becomes nothing.
#[tokio::test(start_paused = true)]
async fn lease_is_looked_at_again_on_take_over() {
    let (stored, answers, trigger) = (Stored::default(), Answers::default(), ReconcileTrigger::new());
    answers.keep(&BTreeSet::from([key()]));
    let looker = Looker {
        client: client(&stored),
        lease: key(),
        answers: answers.clone(),
        trigger: trigger.clone(),
        interval: INTERVAL,
    };
    let leadership = watch::Sender::new(LeaderState::Following);
    tokio::spawn(looker.run(leadership.subscribe()));
    trigger.notified().await;
    *stored.lock().unwrap() = Some(held(Timestamp::now(), 15));
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(answers.holder(&key(), LeaderState::Following), Ok(Reading::Known(None)));
    let leading = LeaderState::Leading {
        since: Timestamp::now(),
        unrenewed_for: Duration::ZERO,
        leaderless_for: Duration::ZERO,
    };
    leadership.send_replace(leading);
    assert!(answers.holder(&key(), leading).is_err());
    let told = tokio::time::timeout(INTERVAL, trigger.notified()).await;
    assert!(told.is_ok(), "nobody has looked");
    let holder = answers.holder(&key(), leading);
    assert!(matches!(holder, Ok(Reading::Known(Some(_)))), "{holder:?}");
}

/// Late, but in time.
#[tokio::test(start_paused = true)]
async fn late_answer_of_a_lease_counts() {
    let answers_late = tower::service_fn(|_: Request<Body>| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let body = Body::from(held(Timestamp::now(), 15).to_string().into_bytes());
        Ok::<_, Infallible>(Response::new(body))
    });
    let setup = Setup::looking(Client::new(answers_late, "default"), Stored::default());
    setup.trigger.notified().await;
    assert!(setup.answer().failure.is_some());
    setup.trigger.notified().await;
    assert!(matches!(setup.holder(), Ok(Reading::Known(Some(_)))));
}

#[tokio::test]
async fn lease_that_may_not_be_read_says_so() {
    let setup = Setup::start(Some(Value::Null));
    setup.trigger.notified().await;
    let failure = setup.answer().failure.unwrap();
    assert!(failure.starts_with("lease ns/leader cannot be read: "), "{failure}");
    assert_eq!(setup.answers.has(&key()), Err(failure));
}

/// Two looks at one lease, renewed so many seconds before, and its duration.
#[rstest]
#[case::living_holder([Some((5, 15)), Some((0, 15))], [Some(true), Some(true)])]
#[case::dead_holder([Some((60, 15)), Some((60, 15))], [Some(false), Some(false)])]
#[case::dead_holder_whose_duration_has_passed([Some((60, 0)), Some((60, 0))], [None, None])]
#[case::holder_whose_clock_is_behind([Some((600, 15)), Some((590, 15))], [Some(false), Some(true)])]
#[case::leftover([Some((4000, 15)), Some((4000, 15))], [None, None])]
#[case::given_back([Some((5, 15)), None], [Some(true), None])]
#[tokio::test]
async fn lease_is_renewed_by_its_stamp_or_before_our_eyes(
    #[case] leases: [Option<(i64, i64)>; 2],
    #[case] expected: [Option<bool>; 2],
) {
    let (now, stored) = (Timestamp::now(), Stored::default());
    let looker = Looker {
        client: client(&stored),
        lease: key(),
        answers: Answers::default(),
        trigger: ReconcileTrigger::new(),
        interval: INTERVAL,
    };
    let mut known = Followed::default();
    let mut renewed = Vec::new();
    for lease in leases {
        let lease = lease.map(|(ago, duration)| held(now - SignedDuration::from_secs(ago), duration));
        *stored.lock().unwrap() = lease;
        let live = looker.look(&mut known).await.unwrap();
        renewed.push(live.map(|(live, _)| live.is_renewed));
    }
    assert_eq!(renewed, expected);
}

#[test]
fn failures_are_looked_at_ever_more_rarely() {
    let mut known = Followed::default();
    let mut waits = |answer: Result<&Look, &String>| known.wait(answer, INTERVAL).as_secs();
    let failure = "403".to_owned();
    let failures: Vec<u64> = (0..6).map(|_| waits(Err(&failure))).collect();
    assert_eq!(failures, [5, 10, 20, 40, 60, 60]);
    let live = Live {
        holder: "leader-0".to_owned(),
        is_renewed: false,
    };
    let live = Some((live, Some(Duration::from_secs(15))));
    assert_eq!([waits(Ok(&live)), waits(Ok(&live)), waits(Ok(&None))], [15, 60, 60]);
    assert_eq!(waits(Err(&failure)), 5);
}

#[rstest]
#[case::renewed_lately("2026-01-01T11:59:50.000000Z", false)]
#[case::run_out_by_a_clock_that_may_be_wrong("2026-01-01T11:00:00.000000Z", false)]
#[case::of_a_clock_ahead("2026-01-01T17:00:00.000000Z", false)]
#[case::run_out_for_an_hour("2026-01-01T10:59:45.000000Z", true)]
fn leftover_lease_ran_out_long_ago(#[case] renewed: &str, #[case] expected: bool) {
    let lease = json!({
        "metadata": { "name": "leader" },
        "spec": { "holderIdentity": "leader-0", "renewTime": renewed, "leaseDurationSeconds": 15 },
    });
    let lease = LeaseView::project(&serde_json::from_value(lease).unwrap()).unwrap();
    assert_eq!(is_leftover(&lease, "2026-01-01T12:00:00Z".parse().unwrap()), expected);
}
