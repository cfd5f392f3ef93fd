//! The connections, against a real Ceph: three hosts with an OSD each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ceph_pdb::ceph::OsdId;
use ceph_pdb::connection::{CephConnections, NooutAnswer};
use ceph_pdb::snapshot::{CephProblem, CephProblemKind, CephQuestions, CephState, CephView, Namespace};
use jiff::{SignedDuration, Timestamp};
use nodeward_runtime::{CancellationToken, Component, Liveness, Metrics, ReconcileTrigger, Supervisor};
use nodeward_testkit::ceph::{Ceph, CephOptions, CephRelease};
use nodeward_testkit::wait;
use rados::Options;
use rstest::rstest;
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// How long what must come may take, on a loaded machine. Statistics take some periods of 5 s.
const DEADLINE: Duration = Duration::from_mins(3);

/// Between rounds at rest.
const MINUTE: SignedDuration = SignedDuration::from_mins(1);

/// One cluster for all tests, one after the other: some take parts of it away. Its own `ok-to-stop` is right, unlike that of 20.2.4: it
/// must say what ours says.
async fn ceph() -> Result<MutexGuard<'static, Ceph>> {
    static CEPH: OnceCell<Mutex<Ceph>> = OnceCell::const_new();
    let start = || async {
        let right = CephOptions {
            release: Some(CephRelease::System),
            ..CephOptions::default()
        };
        let ceph = Ceph::start(right).await?;
        ceph.add_pool("data", 3, 8, "host").await?;
        anyhow::Ok(Mutex::new(ceph))
    };
    Ok(CEPH.get_or_try_init(start).await?.lock().await)
}

fn options(ceph: &Ceph) -> Options {
    Options {
        timeout: Some(Duration::from_secs(6)),
        ..ceph.admin().clone()
    }
}

struct Fixture {
    connections: CephConnections,
    supervisor: Supervisor,
    metrics: Metrics,
}

impl Fixture {
    fn new() -> Self {
        let supervisor = Supervisor::new(CancellationToken::new());
        let metrics = Metrics::new(Component::new("ceph-pdb", "0.0.0"));
        Self {
            connections: CephConnections::new(&supervisor, &Liveness::new(), ReconcileTrigger::new(), &metrics),
            supervisor,
            metrics,
        }
    }

    fn cluster(&self, name: &str, options: Options) -> Target<'_> {
        let namespace = Namespace::from(name);
        self.connections.set_target(&namespace, Some(Ok(options)));
        Target {
            connections: &self.connections,
            namespace,
        }
    }
}

/// A cluster that is connected to.
struct Target<'a> {
    connections: &'a CephConnections,
    namespace: Namespace,
}

impl Target<'_> {
    fn ask(&self, is_watchful: bool, may_stop: &[&[OsdId]]) {
        let may_stop = may_stop.iter().map(|osds| set(osds)).collect();
        self.connections.ask(
            &self.namespace,
            CephQuestions {
                is_watchful,
                may_stop,
                ..CephQuestions::default()
            },
        );
    }

    async fn view(&self, what: &str, is_true: impl Fn(&CephView) -> bool) -> Result<Arc<CephView>> {
        wait::until(what, DEADLINE, || async {
            match self.connections.state(&self.namespace) {
                CephState::Answering(view) if is_true(&view) => Ok(view),
                CephState::Answering(view) => bail!(
                    "fresh since {:?}, {:?}, answers {:?}, problem {:?}",
                    view.fresh_since,
                    view.status,
                    view.stop_answers,
                    view.stop_problem
                ),
                other => bail!("{other:?}"),
            }
        })
        .await
    }

    async fn fresh(&self) -> Result<Arc<CephView>> {
        self.view("fresh statistics", |view| view.fresh_since.is_some()).await
    }

    async fn answer_about(&self, osds: &[OsdId]) -> Result<Arc<CephView>> {
        self.view("an answer", |view| view.stop_answers.contains_key(&set(osds)))
            .await
    }

    async fn silence(&self) -> Result<(CephProblem, Timestamp, Option<Arc<CephView>>)> {
        self.silence_that(|_| true).await
    }

    async fn silence_that(
        &self,
        is_so: impl Fn(&CephProblem) -> bool,
    ) -> Result<(CephProblem, Timestamp, Option<Arc<CephView>>)> {
        wait::until("silence", DEADLINE, || async {
            match self.connections.state(&self.namespace) {
                CephState::Silent { problem, since, last } if is_so(&problem) => Ok((problem, since, last)),
                other => bail!("{other:?}"),
            }
        })
        .await
    }
}

fn set(osds: &[OsdId]) -> BTreeSet<OsdId> {
    osds.iter().copied().collect()
}

fn is_up(view: &CephView, id: OsdId) -> bool {
    view.map.dump.osds.iter().any(|osd| osd.id == id && osd.up)
}

async fn start_osd(ceph: &Ceph, id: usize) -> Result<()> {
    ceph.osd(id).start()?;
    ceph.all_up().await?;
    ceph.clean(DEADLINE).await
}

#[rstest]
#[case::wrong_key(|options: &mut Options| options.key = "AQDnW0pmAAAAABAAHsGqYqVhPxVtzgTQyKHw1g==".to_owned(), CephProblemKind::Authentication)]
#[case::unknown_user(|options: &mut Options| options.user = "client.nobody".to_owned(), CephProblemKind::Authentication)]
#[case::key_of_a_later_type(|options: &mut Options| options.key = "AgDnW0pmAAAAACAAHsGqYqVhPxVtzgTQyKHw1h7BqmKlYT8Vbc4E0Mih8NY=".to_owned(), CephProblemKind::KeyTypeUnknown)]
#[case::no_key(|options: &mut Options| options.key = "not base64".to_owned(), CephProblemKind::CredentialsMissing)]
#[case::no_monitor(|options: &mut Options| options.mon_host = "[v2:127.0.0.1:1]".to_owned(), CephProblemKind::Unreachable)]
#[tokio::test(flavor = "multi_thread")]
async fn wrong_options_are_told_and_mended(
    #[case] spoil: fn(&mut Options),
    #[case] expected: CephProblemKind,
) -> Result<()> {
    let ceph = ceph().await?;
    let fixture = Fixture::new();
    let mut wrong = options(&ceph);
    spoil(&mut wrong);
    let target = fixture.cluster("rook-ceph", wrong);
    // A monitor that is busy may answer the first question too late.
    target.silence_that(|problem| problem.kind == expected).await?;
    let target = fixture.cluster("rook-ceph", options(&ceph));
    target.view("an answer", |view| view.map.dump.osds.len() == 3).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_tells_the_whole_cluster() -> Result<()> {
    let ceph = ceph().await?;
    let fixture = Fixture::new();
    let target = fixture.cluster("rook-ceph", options(&ceph));
    let view = target.fresh().await?;
    ensure!((0..3).all(|id| is_up(&view, id)), "{:?}", view.map.dump.osds);
    ensure!(view.map.hostnames.len() == 3, "{:?}", view.map.hostnames);
    ensure!(view.mons_out_of_quorum.is_empty());
    let used: BTreeSet<i64> = view.map.dump.pools.iter().map(|pool| pool.crush_rule).collect();
    let rules: BTreeSet<i64> = view.map.rules.iter().map(|rule| rule.id).collect();
    ensure!(!used.is_empty() && used.is_subset(&rules), "{used:?} {rules:?}");
    ensure!(view.map.tree.nodes.iter().any(|node| node.name == "host-2"));
    // The period in which OSDs report was read.
    let metrics = fixture.metrics.encode()?;
    ensure!(metrics.contains(r#"command="config get",outcome="done""#), "{metrics}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_that_returns_is_heard_again() -> Result<()> {
    let ceph = ceph().await?;
    let fixture = Fixture::new();
    let target = fixture.cluster("rook-ceph", options(&ceph));
    target.ask(true, &[]);
    target.view("an answer", |_| true).await?;
    ceph.mon(0).kill();
    let (problem, since, last) = target.silence().await?;
    ceph.mon(0).start()?;
    ensure!(problem.kind == CephProblemKind::Unreachable, "{problem:?}");
    ensure!(last.is_some_and(|view| view.asked_at <= since));
    target.view("an answer", |view| since < view.asked_at).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_line_tells_of_an_osd_that_stops() -> Result<()> {
    let ceph = ceph().await?;
    let fixture = Fixture::new();
    let target = fixture.cluster("rook-ceph", options(&ceph));
    // From here on it rests.
    let before = target.fresh().await?;
    // It is down before it has ended, and statistics are fresh again some seconds later.
    let (stopped, view) = tokio::join!(ceph.stop_osd(1), target.view("osd.1 down", |view| !is_up(view, 1)));
    stopped?;
    start_osd(&ceph, 1).await?;
    let view = view?;
    ensure!(view.fresh_since.is_none(), "the statistics are older than this");
    let later = view.asked_at.duration_since(before.asked_at);
    ensure!(later < MINUTE, "only the next round at rest has told of it");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_manager_statistics_are_stale() -> Result<()> {
    let ceph = ceph().await?;
    let fixture = Fixture::new();
    let target = fixture.cluster("rook-ceph", options(&ceph));
    target.ask(true, &[&[0]]);
    target.answer_about(&[0]).await?;
    ceph.mgr().pause()?;
    ceph.stop_osd(2).await?;
    let down = target.view("osd.2 down", |view| !is_up(view, 2)).await?;
    // Two periods later it is still not known what that means.
    let later = down.asked_at + SignedDuration::from_secs(11);
    let still = target.view("two periods", |view| later < view.asked_at).await?;
    ceph.mgr().resume()?;
    let view = target.answer_about(&[0]).await?;
    start_osd(&ceph, 2).await?;
    for view in [down, still] {
        ensure!(view.fresh_since.is_none() && view.stop_answers.is_empty(), "{view:?}");
    }
    // One copy of three is gone: another one less, and they take no requests.
    let answer = &view.stop_answers[&set(&[0])];
    ensure!(!answer.ceph.lost.is_empty() && answer.ceph == answer.own, "{answer:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn osds_may_stop_as_far_as_copies_go() -> Result<()> {
    let ceph = ceph().await?;
    let fixture = Fixture::new();
    let target = fixture.cluster("rook-ceph", options(&ceph));
    target.ask(true, &[&[0], &[0, 1], &[0, 99]]);
    let view = target.answer_about(&[0, 1]).await?;
    let (one, two) = (&view.stop_answers[&set(&[0])], &view.stop_answers[&set(&[0, 1])]);
    ensure!(one.ceph.lost.is_empty() && one.own.lost.is_empty(), "{one:?}");
    ensure!(!two.ceph.lost.is_empty() && two.ceph == two.own, "{two:?}");
    ensure!(!view.stop_answers.contains_key(&set(&[0, 99])));
    let problem = view.stop_problem.as_ref().context("no word of osd.99")?;
    ensure!(problem.message.contains("osd.99"), "{problem:?}");
    Ok(())
}

/// Each placement group has one copy left, which takes no requests, and from which the others are recovered: that is no reason to let
/// it go.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_copy_may_not_stop() -> Result<()> {
    let ceph = ceph().await?;
    let fixture = Fixture::new();
    let target = fixture.cluster("rook-ceph", options(&ceph));
    target.fresh().await?;
    for osd in [0, 1] {
        ceph.stop_osd(osd).await?;
    }
    target.ask(true, &[&[0, 1, 2]]);
    let view = target.answer_about(&[0, 1, 2]).await;
    for osd in [0, 1] {
        ceph.osd(osd).start()?;
    }
    ceph.all_up().await?;
    ceph.clean(DEADLINE).await?;
    let view = view?;
    let states = &view.status.pgmap.pgs_by_state;
    ensure!(
        states.iter().any(|state| state.state_name.contains("peered")),
        "{states:?}"
    );
    let answer = &view.stop_answers[&set(&[0, 1, 2])];
    ensure!(answer.may_stop(&BTreeSet::new()) == Some(false), "{answer:?}");
    ensure!(8 <= answer.own.lost.len(), "{answer:?}");
    Ok(())
}

/// `ok-to-stop` of 20.2.4 looks at the last OSD of each placement group only. Whatever a release answers, two of three copies are
/// needed.
#[tokio::test(flavor = "multi_thread")]
async fn newest_release_lets_no_two_osds_stop() -> Result<()> {
    let newest = CephOptions {
        release: Some(CephRelease::Newest),
        ..CephOptions::default()
    };
    let ceph = Ceph::start(newest).await?;
    ceph.add_pool("data", 3, 8, "host").await?;
    let fixture = Fixture::new();
    let target = fixture.cluster("rook-ceph", options(&ceph));
    target.ask(true, &[&[0], &[0, 1], &[1, 2], &[0, 2]]);
    let view = target.answer_about(&[1, 2]).await?;
    let may_stop = |osds: &[OsdId]| view.stop_answers[&set(osds)].may_stop(&BTreeSet::new());
    ensure!(may_stop(&[0]) == Some(true), "{:?}", view.stop_answers);
    for osds in [[0, 1], [1, 2], [0, 2]] {
        let answer = &view.stop_answers[&set(&osds)];
        println!(
            "{osds:?}: ok-to-stop loses {}, we reckon {}",
            answer.ceph.lost.len(),
            answer.own.lost.len()
        );
        ensure!(
            may_stop(&osds) == Some(false) && answer.own.lost.len() == 8,
            "{answer:?}"
        );
    }
    Ok(())
}

/// Two sites with two hosts each: without both hosts of one, enough copies are left, and too few sites.
#[tokio::test(flavor = "multi_thread")]
async fn no_site_of_a_stretched_pool_may_stop() -> Result<()> {
    let ceph = Ceph::start(CephOptions {
        release: Some(CephRelease::Newest),
        racks: 2,
        hosts: 4,
        ..CephOptions::default()
    })
    .await?;
    ceph.add_pool("data", 4, 8, "host").await?;
    ceph.command(json!({
        "prefix": "osd pool stretch set", "pool": "data", "peering_crush_bucket_count": 2, "peering_crush_bucket_target": 2,
        "peering_crush_bucket_barrier": "rack", "crush_rule": "by-host", "size": 4, "min_size": 2,
    }))
    .await?;
    ceph.clean(DEADLINE).await?;
    let fixture = Fixture::new();
    let target = fixture.cluster("rook-ceph", options(&ceph));
    let (sites, across): ([&[OsdId]; 2], &[OsdId]) = ([&[0, 2], &[1, 3]], &[0, 1]);
    target.ask(true, &[sites[0], sites[1], across]);
    let view = target.view("all answers", |view| view.stop_answers.len() == 3).await?;
    for osds in sites {
        let answer = &view.stop_answers[&set(osds)];
        println!(
            "{osds:?}: ok-to-stop loses {}, we reckon {}",
            answer.ceph.lost.len(),
            answer.own.lost.len()
        );
        ensure!(answer.may_stop(&BTreeSet::new()) == Some(false), "{answer:?}");
        ensure!(answer.own.lost.len() == 8, "{answer:?}");
    }
    let one_of_each = &view.stop_answers[&set(across)];
    ensure!(one_of_each.own.lost.is_empty(), "{one_of_each:?}");

    // And so it is.
    for osd in [1, 3] {
        ceph.stop_osd(osd).await?;
    }
    wait::until("groups that take no requests", DEADLINE, || async {
        let status = ceph.command(json!({"prefix": "status"})).await?;
        let groups = status["pgmap"]["pgs_by_state"]
            .as_array()
            .context("no placement groups")?;
        let names = || groups.iter().filter_map(|group| group["state_name"].as_str());
        ensure!(names().any(|state| !state.contains("active")), "{groups:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_manager_leaves_the_monitors_heard() -> Result<()> {
    let ceph = ceph().await?;
    let fixture = Fixture::new();
    let target = fixture.cluster("rook-ceph", options(&ceph));
    target.ask(true, &[]);
    target.fresh().await?;
    ceph.mgr().pause()?;
    target.ask(true, &[&[0]]);
    let view = target.view("a problem", |view| view.stop_problem.is_some()).await?;
    let later = target
        .view("another round", |later| view.asked_at < later.asked_at)
        .await?;
    ceph.mgr().resume()?;
    for view in [view, later] {
        let kind = view.stop_problem.as_ref().map(|problem| problem.kind);
        ensure!(kind == Some(CephProblemKind::Hung), "{:?}", view.stop_problem);
        ensure!(view.stop_answers.is_empty());
    }
    target.answer_about(&[0]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn noout_is_set_and_taken_off() -> Result<()> {
    let ceph = ceph().await?;
    let fixture = Fixture::new();
    let target = fixture.cluster("rook-ceph", options(&ceph));
    target.view("an answer", |_| true).await?;
    let has_noout = |view: &CephView| {
        let flags = view.map.dump.crush_node_flags.get("host-1");
        flags.is_some_and(|flags| flags.contains("noout"))
    };
    for on in [true, false] {
        let done = fixture.connections.set_noout(&target.namespace, "host-1", on).await;
        ensure!(done == Ok(NooutAnswer::Done), "{done:?}");
        target.view("the flag", |view| has_noout(view) == on).await?;
        let gone = fixture.connections.set_noout(&target.namespace, "host-9", on).await;
        ensure!(gone == Ok(NooutAnswer::UnknownBucket), "{gone:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_cluster_delays_no_other() -> Result<()> {
    let hung = ceph().await?;
    let small = CephOptions {
        hosts: 0,
        ..CephOptions::default()
    };
    let well = Ceph::start(small).await?;
    let fixture = Fixture::new();
    let of_hung = fixture.cluster("hung", options(&hung));
    let of_well = fixture.cluster("well", options(&well));
    for target in [&of_hung, &of_well] {
        target.ask(true, &[]);
        target.view("an answer", |_| true).await?;
    }
    hung.mon(0).pause()?;
    let silence = of_hung.silence().await;
    // The silent one is still asked, and the other answers.
    let later = match &silence {
        Ok((_, since, _)) => of_well.view("later answers", |view| since < &view.asked_at).await,
        Err(_) => of_well.view("answers", |_| true).await,
    };
    hung.mon(0).resume()?;
    let (problem, since, _) = silence?;
    later?;
    let kinds = [CephProblemKind::Hung, CephProblemKind::Unreachable];
    ensure!(kinds.contains(&problem.kind), "{problem:?}");
    of_hung.view("an answer", |view| since < view.asked_at).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_connections_leave_no_thread() -> Result<()> {
    let ceph = ceph().await?;
    let fixture = Fixture::new();
    let target = fixture.cluster("rook-ceph", options(&ceph));
    target.view("an answer", |_| true).await?;
    fixture.connections.set_target(&target.namespace, None);
    wait::until("the threads to end", DEADLINE, || async {
        ensure!(!fixture.supervisor.has_threads());
        Ok(())
    })
    .await
}
