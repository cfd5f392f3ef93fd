mod fake;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use nodeward_runtime::{CancellationToken, Component, Metrics, ReconcileTrigger, Supervisor};
use rados::Options;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use self::fake::{FakeCeph, FakeState};
use super::{CephClient, CephConnections, NooutAnswer, OpenClient};
use crate::ceph::OsdId;
use crate::plan::tests::world::World;
use crate::snapshot::{
    CephProblem, CephProblemKind, CephQuestions, CephState, CephView, ClusterSnapshot, Namespace, Snapshot,
};

/// By tokio's clock, which does not make a test wait.
const LONG: Duration = Duration::from_mins(5);

const CLUSTER: &str = "rook-ceph";

fn namespace(name: &str) -> Namespace {
    name.into()
}

fn options(mon_host: &str) -> Options {
    Options {
        mon_host: mon_host.to_owned(),
        user: "client.nodeward".to_owned(),
        key: "AQ==".to_owned(),
        encrypted: false,
        timeout: None,
    }
}

fn problem(kind: CephProblemKind) -> CephProblem {
    CephProblem::new(kind, format!("{kind:?}"))
}

/// Clusters by the address that their connections are opened with.
struct Fixture {
    connections: CephConnections,
    trigger: ReconcileTrigger,
    metrics: Metrics,
}

impl Fixture {
    fn of(clusters: &[(&'static str, &Arc<FakeCeph>)]) -> Self {
        let known: BTreeMap<String, Arc<FakeCeph>> = clusters
            .iter()
            .map(|(name, ceph)| ((*name).to_owned(), Arc::clone(ceph)))
            .collect();
        let open: OpenClient = Arc::new(move |options, wake| {
            let ceph = Arc::clone(&known[&options.mon_host]);
            let log = Arc::clone(&ceph.log);
            tokio::spawn(async move {
                loop {
                    log.notified().await;
                    wake.notify_one();
                }
            });
            Ok(ceph as Arc<dyn CephClient>)
        });
        let supervisor = Supervisor::new(CancellationToken::new());
        let metrics = Metrics::new(Component::new("ceph-pdb", "0.0.0"));
        let trigger = ReconcileTrigger::new();
        let connections = CephConnections::with_clients(open, &supervisor, trigger.clone(), &metrics);
        for (name, _) in clusters {
            connections.set_target(&namespace(name), Some(Ok(options(name))));
        }
        Self {
            connections,
            trigger,
            metrics,
        }
    }

    fn with(ceph: &Arc<FakeCeph>) -> Self {
        Self::of(&[(CLUSTER, ceph)])
    }

    fn ask(&self, is_watchful: bool, may_stop: &[&[OsdId]]) {
        let may_stop = may_stop.iter().map(|osds| osds.iter().copied().collect()).collect();
        self.connections.ask(
            &namespace(CLUSTER),
            CephQuestions {
                is_watchful,
                may_stop,
                ..CephQuestions::default()
            },
        );
    }

    fn state(&self) -> CephState {
        self.connections.state(&namespace(CLUSTER))
    }

    /// The first view of which this is true.
    async fn view(&self, is_true: impl Fn(&CephView) -> bool) -> Arc<CephView> {
        let found = async {
            loop {
                if let CephState::Answering(view) = self.state()
                    && is_true(&view)
                {
                    return view;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LONG, found).await.expect("such a view")
    }

    async fn fresh(&self) -> Arc<CephView> {
        self.view(|view| view.fresh_since.is_some()).await
    }

    async fn silence(&self) -> CephProblem {
        let found = async {
            loop {
                if let CephState::Silent { problem, .. } = self.state() {
                    return problem;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LONG, found).await.expect("silence")
    }
}

/// A Ceph that is like this, and is asked this.
fn asking(is_like: impl FnOnce(&mut FakeState), is_watchful: bool, may_stop: &[&[OsdId]]) -> (Arc<FakeCeph>, Fixture) {
    let ceph = FakeCeph::new();
    ceph.change(is_like);
    let fixture = Fixture::with(&ceph);
    fixture.ask(is_watchful, may_stop);
    (ceph, fixture)
}

/// A Ceph at rest.
async fn connected() -> (Arc<FakeCeph>, Fixture) {
    let ceph = FakeCeph::new();
    let fixture = Fixture::with(&ceph);
    fixture.fresh().await;
    (ceph, fixture)
}

/// A Ceph that is asked each second, and has answered whether these OSDs may stop.
async fn watched(osds: &[OsdId]) -> (Arc<FakeCeph>, Fixture) {
    let (ceph, fixture) = asking(|_| (), true, &[osds]);
    fixture
        .view(|view| view.fresh_since.is_some() && (osds.is_empty() || is_answered(view, osds)))
        .await;
    (ceph, fixture)
}

fn refusal() -> Value {
    json!({"ok_to_stop": false, "num_not_ok_pgs": 1, "bad_become_inactive": ["1.0"]})
}

fn is_answered(view: &CephView, osds: &[OsdId]) -> bool {
    view.stop_answers.contains_key(&osds.iter().copied().collect())
}

#[rstest]
#[case::reported(true, 20)]
#[case::no_manager(false, 40)]
#[tokio::test(start_paused = true)]
async fn freshness_is_known_once_osds_had_the_time(#[case] mgr_reports: bool, #[case] within: u64) {
    let (_ceph, fixture) = asking(|state| state.mgr_reports = mgr_reports, true, &[]);
    let began = Instant::now();
    assert!(!fixture.view(|_| true).await.is_freshness_known);
    let view = fixture.view(|view| view.is_freshness_known).await;
    assert_eq!(view.fresh_since.is_some(), mgr_reports);
    assert!(began.elapsed() <= Duration::from_secs(within));
}

#[tokio::test(start_paused = true)]
async fn rest_costs_one_command_a_minute() {
    let (ceph, fixture) = asking(|_| (), false, &[&[0], &[1]]);
    fixture
        .view(|view| is_answered(view, &[0]) && is_answered(view, &[1]))
        .await;
    sleep(Duration::from_secs(30)).await;
    let since = Instant::now();
    sleep(Duration::from_mins(10)).await;
    assert_eq!(ceph.asked("status", since).len(), 10);
    assert_eq!(ceph.asked("", since).len(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_watchful_round_comes_each_second() {
    let (ceph, _fixture) = watched(&[]).await;
    let since = Instant::now();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(ceph.asked("status", since).len(), 10);
    assert_eq!(ceph.asked("", since).len(), 10);
}

#[tokio::test(start_paused = true)]
async fn the_map_is_read_once_an_epoch() {
    let (ceph, fixture) = watched(&[]).await;
    let since = Instant::now();
    ceph.change(|state| state.epoch += 1);
    fixture.view(|view| view.map.dump.epoch == 11).await;
    sleep(Duration::from_secs(10)).await;
    for prefix in ["osd dump", "osd tree", "osd crush rule dump"] {
        assert_eq!(ceph.asked(prefix, since).len(), 1, "{prefix}");
    }
    // No OSD has started since.
    assert!(ceph.asked("osd metadata", since).is_empty());
    assert!(ceph.asked("quorum_status", since).is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_election_has_the_quorum_read() {
    let (ceph, fixture) = watched(&[]).await;
    ceph.change(|state| state.mons_out.insert("b"));
    let view = fixture.view(|view| !view.mons_out_of_quorum.is_empty()).await;
    assert!(view.mons_out_of_quorum.contains("b"));
}

#[tokio::test(start_paused = true)]
async fn a_log_line_wakes_a_round_at_once() {
    let (ceph, fixture) = connected().await;
    sleep(Duration::from_secs(5)).await;
    let _ = fixture.trigger.notified().now_or_never();
    let since = Instant::now();
    ceph.change(|state| {
        state.epoch += 1;
        state.up[2] = false;
    });
    ceph.log.notify_one();
    fixture.trigger.notified().await;
    assert_eq!(since.elapsed(), Duration::ZERO);
    let CephState::Answering(view) = fixture.state() else {
        panic!("{:?}", fixture.state());
    };
    assert!(!view.map.dump.osds[2].up);
    assert_eq!(view.fresh_since, None);
}

#[tokio::test(start_paused = true)]
async fn only_osds_that_owe_reports_are_asked() {
    let (ceph, fixture) = watched(&[]).await;
    let since = Instant::now();
    ceph.change(|state| {
        state.epoch += 1;
        state.up[2] = false;
    });
    fixture.view(|view| view.fresh_since.is_none()).await;
    fixture.fresh().await;
    // At the change, and then once a period.
    let asked = ceph.asked("osd last-stat-seq", since);
    let of = |id: i64| asked.iter().filter(|command| command["id"] == id).count();
    assert_eq!((of(0), of(1), of(2)), (3, 3, 0));
}

#[tokio::test(start_paused = true)]
async fn stale_statistics_leave_the_manager_unasked() {
    let (ceph, fixture) = asking(|state| state.mgr_reports = false, true, &[&[0]]);
    let since = Instant::now();
    sleep(LONG).await;
    assert!(ceph.asked("osd ok-to-stop", since).is_empty());
    let view = fixture.view(|_| true).await;
    assert_eq!((view.fresh_since, view.stop_answers.len()), (None, 0));
    ceph.change(|state| state.mgr_reports = true);
    fixture.view(|view| is_answered(view, &[0])).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_osds_voids_the_answers() {
    let (ceph, fixture) = watched(&[0]).await;
    ceph.change(|state| {
        state.epoch += 1;
        state.up[2] = false;
    });
    let view = fixture.view(|view| view.map.dump.epoch == 11).await;
    assert!(view.stop_answers.is_empty() && view.fresh_since.is_none());
}

/// Each OSD that goes down or comes up makes the statistics old; a whole host is on its way, and back.
#[tokio::test(start_paused = true)]
async fn an_answer_outlasts_osds_that_it_was_asked_about() {
    let (ceph, fixture) = watched(&[1, 2]).await;
    for (osd, is_up) in [(2, false), (1, false), (2, true)] {
        ceph.change(|state| {
            state.epoch += 1;
            state.up[osd] = is_up;
            state.mgr_reports = false;
        });
        sleep(Duration::from_secs(10)).await;
        let view = fixture.view(|view| view.map.dump.osds[osd].up == is_up).await;
        assert!(is_answered(&view, &[1, 2]) && view.fresh_since.is_none());
    }
    let since = Instant::now();
    fixture.view(|view| view.stop_answers.is_empty()).await;
    let waited = since.elapsed().as_secs();
    assert!(
        (4..=6).contains(&waited),
        "three periods after the last of them: {waited} s"
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_only_for_what_it_rests_on() {
    let (ceph, fixture) = asking(|state| state.mgr_delay = Duration::from_secs(3), true, &[&[0]]);
    fixture.fresh().await;
    // The answer is under way.
    ceph.change(|state| {
        state.epoch += 1;
        state.pools = json!([{"pool": 1, "pool_name": "data", "crush_rule": 0, "size": 3, "min_size": 2, "pg_num": 0}]);
        state.verdict = (-16, refusal());
    });
    let view = fixture.view(|view| is_answered(view, &[0])).await;
    assert_eq!(view.stop_answers.values().next().unwrap().ceph.lost.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_epoch_alone_voids_no_answer() {
    let (ceph, fixture) = watched(&[0]).await;
    ceph.change(|state| {
        state.epoch += 1;
        state.mgr_delay = Duration::from_millis(300);
    });
    let view = fixture.view(|view| view.map.dump.epoch == 11).await;
    assert!(is_answered(&view, &[0]));
}

/// A manager that takes a second for each question: they are spread over several reports of the placement groups, and each answer is
/// kept until its turn comes again.
#[tokio::test(start_paused = true)]
async fn many_questions_are_asked_a_few_at_a_time() {
    let all: [&[OsdId]; 6] = [&[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2]];
    let (ceph, fixture) = asking(|state| state.mgr_delay = Duration::from_secs(1), true, &all);
    fixture.view(|view| view.stop_answers.len() == all.len()).await;
    let dumps = ceph.asked("pg dump", Instant::now() - LONG).len();
    assert_eq!(dumps, 3, "two by each report");
}

/// The placement groups of each pool are told where that is wanted, without any OSD that is asked about, and not of old statistics.
#[tokio::test(start_paused = true)]
async fn pools_are_told_with_their_placement_groups() {
    let group = json!([{"pgid": "7.0", "state": "down", "up": [2], "acting": [2]}]);
    let (ceph, fixture) = asking(|state| state.groups = group, true, &[]);
    fixture.fresh().await;
    let questions = CephQuestions {
        is_watchful: true,
        wants_pool_states: true,
        ..CephQuestions::default()
    };
    fixture.connections.ask(&namespace(CLUSTER), questions);
    let view = fixture.view(|view| !view.pool_states.is_empty()).await;
    assert_eq!(view.pool_states, [(7, [("down".to_owned(), 1)].into())].into());
    ceph.change(|state| {
        state.epoch += 1;
        state.up[2] = false;
    });
    fixture
        .view(|view| view.fresh_since.is_none() && view.pool_states.is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn unknown_osds_are_never_asked_about() {
    let (ceph, fixture) = asking(|_| (), true, &[&[0, 9], &[1]]);
    let view = fixture.view(|view| is_answered(view, &[1])).await;
    assert!(!is_answered(&view, &[0, 9]));
    let why = view.stop_problem.as_ref().unwrap().message.as_ref();
    assert!(why.contains("osd.9"), "{why}");
    assert!(
        ceph.asked("osd ok-to-stop", Instant::now() - LONG)
            .iter()
            .all(|command| command["ids"] == json!(["1"]))
    );
}

#[rstest]
#[case::refusal(-16, refusal(), true)]
#[case::not_known_yet(-11, json!({"ok_to_stop": false, "num_not_ok_pgs": 0, "unknown_pgs": ["1.0"]}), false)]
#[case::no_reasons(-1, Value::Null, false)]
#[case::no_verdict(0, json!({}), false)]
#[case::contradiction(0, json!({"ok_to_stop": true, "num_not_ok_pgs": 1}), false)]
#[tokio::test(start_paused = true)]
async fn refusals_with_reasons_are_answers(#[case] code: i32, #[case] output: Value, #[case] counts: bool) {
    let (ceph, fixture) = asking(|state| state.verdict = (code, output), true, &[&[0]]);
    let view = fixture
        .view(|view| is_answered(view, &[0]) || view.stop_problem.is_some())
        .await;
    assert_eq!(is_answered(&view, &[0]), counts);
    assert_eq!(view.stop_problem.is_none(), counts);
    // What is not known is asked again.
    ceph.change(|state| state.verdict = (0, json!({"ok_to_stop": true, "num_not_ok_pgs": 0})));
    fixture
        .view(|view| is_answered(view, &[0]) && view.stop_problem.is_none())
        .await;
}

/// The manager's map is behind the monitors': it lists an OSD as serving that is down, and was not asked about.
#[tokio::test(start_paused = true)]
async fn groups_that_contradict_the_map_are_no_answer() {
    let group = |acting: &[OsdId]| json!([{"pgid": "1.0", "state": "active+clean", "up": acting, "acting": acting}]);
    let (ceph, fixture) = asking(
        |state| {
            state.up[2] = false;
            state.pools =
                json!([{"pool": 1, "pool_name": "data", "crush_rule": 0, "size": 3, "min_size": 2, "pg_num": 1}]);
            state.groups = group(&[0, 1, 2]);
        },
        true,
        &[&[0]],
    );
    let view = fixture.view(|view| view.stop_problem.is_some()).await;
    let why = view.stop_problem.as_ref().unwrap().message.as_ref();
    assert!(view.stop_answers.is_empty() && why.contains("1.0"), "{why}");
    ceph.change(|state| state.groups = group(&[0, 1]));
    let view = fixture.view(|view| is_answered(view, &[0])).await;
    let answer = view.stop_answers.values().next().unwrap();
    assert_eq!((answer.ceph.lost.len(), answer.own.lost.len()), (0, 1));
}

/// Without a manager statistics stand still, and begin anew with the next one.
#[tokio::test(start_paused = true)]
async fn statistics_are_stale_without_a_manager() {
    let (ceph, fixture) = watched(&[0]).await;
    ceph.change(|state| state.has_manager = false);
    let view = fixture.view(|view| view.fresh_since.is_none()).await;
    assert!(is_answered(&view, &[0]), "no other answer is due yet");
    fixture.view(|view| view.stop_answers.is_empty()).await;
    ceph.change(|state| state.has_manager = true);
    let since = Instant::now();
    fixture.view(|view| is_answered(view, &[0])).await;
    assert!(Duration::from_secs(5) <= since.elapsed(), "{:?}", since.elapsed());
}

#[rstest]
#[case::at_rest(false, 0)]
#[case::watchful(true, 2)]
#[tokio::test(start_paused = true)]
async fn newer_statistics_are_asked_about_again(#[case] is_watchful: bool, #[case] times: usize) {
    let (ceph, fixture) = asking(|_| (), is_watchful, &[&[0]]);
    fixture.view(|view| is_answered(view, &[0])).await;
    let since = Instant::now();
    sleep(Duration::from_secs(11)).await;
    assert_eq!(ceph.asked("osd ok-to-stop", since).len(), times);
}

#[tokio::test(start_paused = true)]
async fn other_states_are_asked_about_at_once() {
    let (ceph, _fixture) = watched(&[0]).await;
    let since = Instant::now();
    ceph.change(|state| state.pg_state = "active+remapped");
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(ceph.asked("osd ok-to-stop", since).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hung_manager_delays_no_monitor() {
    let (ceph, fixture) = asking(|state| state.mgr_hangs = true, true, &[&[0]]);
    fixture.fresh().await;
    let since = Instant::now();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(ceph.asked("status", since).len(), 10);
    assert!(ceph.asked("osd ok-to-stop", since).is_empty());
    let view = fixture.view(|view| view.stop_problem.is_some()).await;
    assert_eq!(view.stop_problem.as_ref().unwrap().kind, CephProblemKind::Hung);
    ceph.change(|state| state.mgr_hangs = false);
    fixture.view(|view| is_answered(view, &[0])).await;
}

/// Nothing that such an answer would say is taken for true: the cluster is silent, or the question has no answer.
#[rstest]
#[case::status("status", "")]
#[case::cut_short("status", r#"{"election_epoch": 1, "monmap": {"epo"#)]
#[case::of_another_type("status", "[]")]
#[case::other_words("osd dump", "<html>502 Bad Gateway</html>")]
#[case::without_osds("osd dump", r#"{"epoch": 11}"#)]
#[case::tree("osd tree", "null")]
#[case::rules("osd crush rule dump", "{}")]
#[case::metadata("osd metadata", "7")]
#[case::quorum("quorum_status", r#"{"quorum": [0]}"#)]
#[case::groups("pg dump", "{}")]
#[case::degraded("pg ls", "7")]
#[case::verdict("osd ok-to-stop", r#"{"ok_to_stop": "#)]
#[tokio::test(start_paused = true)]
async fn garbage_is_told_and_no_answer(#[case] prefix: &'static str, #[case] text: &'static str) {
    let (ceph, fixture) = asking(|state| state.garbled = Some((prefix, text)), true, &[&[0]]);
    let told = async {
        loop {
            let state = fixture.state();
            let view = state.last_view();
            assert!(view.is_none_or(|view| view.stop_answers.is_empty()));
            if let CephState::Silent { problem, .. } = state {
                return problem;
            }
            if let Some(problem) = view.and_then(|view| view.stop_problem.clone()) {
                return problem;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let problem = timeout(LONG, told).await.expect("a problem");
    assert_eq!(problem.kind, CephProblemKind::CommandFailed);
    assert!(problem.message.contains(prefix), "{}", problem.message);
    ceph.change(|state| state.garbled = None);
    fixture.view(|view| is_answered(view, &[0])).await;
}

#[rstest]
#[case::of_two(1)]
#[case::of_twenty(19)]
#[tokio::test(start_paused = true)]
async fn a_hung_cluster_is_told_and_delays_no_other(#[case] others: usize) {
    const NAMES: [&str; 19] = [
        "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t",
    ];
    let hung = FakeCeph::new();
    let well: Vec<_> = NAMES.iter().take(others).map(|name| (*name, FakeCeph::new())).collect();
    let all = well.iter().map(|(name, ceph)| (*name, ceph));
    let fixture = Fixture::of(&all.chain([(CLUSTER, &hung)]).collect::<Vec<_>>());
    for (name, _) in &well {
        let watchful = CephQuestions {
            is_watchful: true,
            ..CephQuestions::default()
        };
        fixture.connections.ask(&namespace(name), watchful);
    }
    fixture.fresh().await;
    hung.change(|state| state.mons_hang = true);
    fixture.ask(true, &[]);
    let since = Instant::now();
    assert_eq!(fixture.silence().await.kind, CephProblemKind::Hung);
    assert!(since.elapsed() < Duration::from_secs(20));
    assert!(fixture.state().last_view().is_some());
    for (name, well) in &well {
        assert!(12 <= well.asked("status", since).len(), "{name}");
        let state = fixture.connections.state(&namespace(name));
        assert!(matches!(state, CephState::Answering(_)), "{name}: {state:?}");
    }
}

/// Whenever between two of the minute's commands it begins to hang.
#[rstest]
#[case::early(0)]
#[case::between_questions(25)]
#[case::before_the_command(59)]
#[tokio::test(start_paused = true)]
async fn a_cluster_that_hangs_at_rest_is_told(#[case] after: u64) {
    let (ceph, fixture) = connected().await;
    sleep(Duration::from_mins(2)).await;
    let before = ceph.asked("status", Instant::now() - Duration::from_mins(1)).len();
    assert_eq!(before, 1, "it is at rest");
    sleep(Duration::from_secs(after)).await;
    ceph.change(|state| state.mons_hang = true);
    let since = Instant::now();
    assert_eq!(fixture.silence().await.kind, CephProblemKind::Hung);
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    assert!(fixture.state().last_view().is_some());
    ceph.change(|state| state.mons_hang = false);
    fixture.fresh().await;
}

/// The commands of a round say that as well.
#[rstest]
#[case::at_rest(false, 8)]
#[case::watchful(true, 0)]
#[tokio::test(start_paused = true)]
async fn monitors_are_only_asked_to_answer_at_rest(#[case] is_watchful: bool, #[case] a_minute: usize) {
    let (ceph, fixture) = asking(|_| (), is_watchful, &[]);
    fixture.fresh().await;
    sleep(Duration::from_mins(1)).await;
    let since = Instant::now();
    sleep(Duration::from_mins(1)).await;
    let asked = ceph.change(|state| state.asked_to_answer.iter().filter(|at| since <= **at).count());
    assert_eq!(asked, a_minute);
}

#[tokio::test(start_paused = true)]
async fn a_slow_cluster_is_told_as_well() {
    let (ceph, fixture) = connected().await;
    // Each command in time, all together not.
    ceph.change(|state| {
        state.epoch += 1;
        state.mon_delay = Duration::from_secs(6);
    });
    ceph.log.notify_one();
    let since = Instant::now();
    assert_eq!(fixture.silence().await.kind, CephProblemKind::Hung);
    assert!(since.elapsed() < Duration::from_secs(20));
    ceph.change(|state| state.mon_delay = Duration::ZERO);
    fixture.view(|view| view.map.dump.epoch == 11).await;
}

#[tokio::test(start_paused = true)]
async fn silence_backs_off_and_ends() {
    let ceph = FakeCeph::new();
    ceph.change(|state| state.mon_problem = Some(problem(CephProblemKind::Authentication)));
    let fixture = Fixture::with(&ceph);
    fixture.silence().await;
    let CephState::Silent { since, .. } = fixture.state() else {
        panic!("{:?}", fixture.state());
    };
    sleep(Duration::from_mins(1)).await;
    ceph.change(|state| state.mon_problem = Some(problem(CephProblemKind::Unreachable)));
    let begin = Instant::now();
    sleep(Duration::from_mins(1)).await;
    let tries = ceph.asked("status", begin).len();
    assert!((4..=8).contains(&tries), "{tries}");
    let CephState::Silent {
        since: later, problem, ..
    } = fixture.state()
    else {
        panic!("{:?}", fixture.state());
    };
    assert_eq!((later, problem.kind), (since, CephProblemKind::Unreachable));
    ceph.change(|state| state.mon_problem = None);
    fixture.fresh().await;
}

#[rstest]
#[case::done(0, Ok(NooutAnswer::Done))]
#[case::unknown_bucket(-22, Ok(NooutAnswer::UnknownBucket))]
#[case::refused(-13, Err(CephProblemKind::CommandFailed))]
#[tokio::test(start_paused = true)]
async fn noout_is_set_or_its_bucket_is_gone(#[case] code: i32, #[case] expected: Result<NooutAnswer, CephProblemKind>) {
    let ceph = FakeCeph::new();
    ceph.change(|state| state.noout_code = code);
    let fixture = Fixture::with(&ceph);
    let namespace = namespace(CLUSTER);
    for (on, prefix) in [(true, "osd set-group"), (false, "osd unset-group")] {
        let since = Instant::now();
        let answer = fixture.connections.set_noout(&namespace, "host-1", on).await;
        assert_eq!(answer.map_err(|problem| problem.kind), expected);
        let command = json!({"prefix": prefix, "flags": "noout", "who": ["host-1"]});
        assert_eq!(ceph.asked(prefix, since), [command]);
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_credentials_nothing_is_asked() {
    let (ceph, fixture) = connected().await;
    let namespace = namespace(CLUSTER);
    let missing = problem(CephProblemKind::CredentialsMissing);
    fixture.connections.set_target(&namespace, Some(Err(missing.clone())));
    let CephState::Silent { problem, last, .. } = fixture.state() else {
        panic!("{:?}", fixture.state());
    };
    assert_eq!(problem, missing);
    assert!(last.is_some());
    let since = Instant::now();
    assert_eq!(
        fixture.connections.set_noout(&namespace, "host-1", true).await,
        Err(missing)
    );
    sleep(LONG).await;
    assert!(ceph.asked("", since).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_same_target_keeps_its_connection() {
    let (ceph, fixture) = connected().await;
    let since = Instant::now();
    let namespace = namespace(CLUSTER);
    fixture.connections.set_target(&namespace, Some(Ok(options(CLUSTER))));
    sleep(Duration::from_secs(30)).await;
    assert!(ceph.asked("osd dump", since).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_goes_is_asked_no_more() {
    let (ceph, fixture) = connected().await;
    let namespace = namespace(CLUSTER);
    fixture.connections.set_target(&namespace, None);
    let since = Instant::now();
    sleep(LONG).await;
    assert!(ceph.asked("", since).is_empty());
    assert!(matches!(fixture.state(), CephState::Connecting));
    let refused = fixture
        .connections
        .set_noout(&namespace, "host-1", true)
        .await
        .unwrap_err();
    assert_eq!(refused.kind, CephProblemKind::Unreachable);
}

#[rstest]
#[case::often(2, 2)]
#[case::usual(5, 5)]
#[case::seldom(600, 60)]
#[tokio::test(start_paused = true)]
async fn reports_are_asked_for_once_a_period(#[case] period: u64, #[case] pause: u64) {
    let (ceph, fixture) = asking(|state| (state.period, state.mgr_reports) = (period, false), true, &[]);
    fixture.view(|_| true).await;
    let since = Instant::now();
    sleep(Duration::from_secs(3 * pause) + Duration::from_millis(900)).await;
    let asked = ceph.asked("osd last-stat-seq", since);
    assert_eq!(asked.iter().filter(|command| command["id"] == 0).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn connections_follow_the_plan() {
    let (ceph, fixture) = watched(&[]).await;
    let asked_in_a_minute = async || {
        let since = Instant::now();
        sleep(Duration::from_mins(1)).await;
        ceph.asked("status", since).len()
    };
    let mut snapshot = Snapshot::default();
    snapshot.unknown.insert(namespace(CLUSTER), "not listed".into());
    fixture.connections.follow(&snapshot, BTreeMap::new());
    assert!((59..=61).contains(&asked_in_a_minute().await), "as it was");
    fixture.connections.follow(&Snapshot::default(), BTreeMap::new());
    assert_eq!(asked_in_a_minute().await, 0);
    let cluster = ClusterSnapshot {
        target: Some(Ok(options(CLUSTER))),
        ..World::new().cluster_snapshot()
    };
    snapshot.unknown.clear();
    snapshot.clusters.insert(namespace(CLUSTER), Arc::new(cluster));
    let watchful = CephQuestions {
        is_watchful: true,
        ..CephQuestions::default()
    };
    fixture
        .connections
        .follow(&snapshot, [(namespace(CLUSTER), watchful)].into());
    fixture.fresh().await;
    assert!((59..=61).contains(&asked_in_a_minute().await));
    fixture.connections.close();
    assert_eq!(asked_in_a_minute().await, 0);
}

#[tokio::test(start_paused = true)]
async fn commands_of_a_cluster_that_is_gone_are_not_exported() {
    let (_ceph, fixture) = connected().await;
    let is_exported = || fixture.metrics.encode().unwrap().contains(r#"namespace="rook-ceph""#);
    assert!(is_exported());
    fixture.connections.set_target(&namespace(CLUSTER), None);
    sleep(Duration::from_secs(1)).await;
    assert!(!is_exported());
}
