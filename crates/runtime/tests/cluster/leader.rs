//! Two candidates at once, a leader that is cut off, one that stands still, one that dies.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use nodeward_core::lease;
use nodeward_runtime::leader::{Election, ElectionTimes};
use nodeward_runtime::{CancellationToken, Component, LeaderState, Leadership, Metrics, ReconcileTrigger};
use nodeward_testkit::proxy::{Fault, Proxy, Rule, Verb};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, names};
use rstest::rstest;
use tokio::task::JoinHandle;

const PATIENCE: Duration = secs(90);

/// In the proportions of the defaults, for tests that wait for each of them: so long that no busy machine costs a leader its
/// lease.
pub const TIMES: ElectionTimes = ElectionTimes {
    lease_duration: secs(9),
    renew_deadline: secs(6),
    renew_interval: Duration::from_millis(2400),
    retry_period: Duration::from_millis(900),
    request_timeout: Duration::from_millis(2100),
    mark_interval: Duration::from_millis(200),
};

/// For tests in which no lease runs out.
const LASTING: ElectionTimes = ElectionTimes {
    lease_duration: secs(90),
    renew_deadline: secs(60),
    renew_interval: secs(24),
    ..TIMES
};

pub struct Candidate {
    pub leadership: Leadership,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

pub fn election(client: Client, namespace: &str, identity: &str, times: ElectionTimes) -> Election {
    let metrics = Metrics::new(Component::new("drain-keeper", "1.2.3"));
    let (name, identity) = ("drain-keeper".to_owned(), identity.to_owned());
    Election::new(
        client,
        namespace,
        name,
        identity,
        times,
        ReconcileTrigger::new(),
        &metrics,
    )
}

pub fn stand(client: Client, namespace: &str, identity: &str, times: ElectionTimes) -> Candidate {
    let election = election(client, namespace, identity, times);
    let (leadership, stop) = (election.leadership(), CancellationToken::new());
    let task = tokio::spawn(election.run(stop.clone()));
    Candidate { leadership, stop, task }
}

impl Candidate {
    async fn resign(self) -> Result<()> {
        self.stop.cancel();
        Ok(self.task.await?)
    }

    fn die(&self) {
        self.task.abort();
    }
}

pub async fn leads(leadership: &Leadership) -> Result<()> {
    wait::until("the candidate to lead", PATIENCE, || async {
        ensure!(leadership.is_leading_now(), "{:?}", leadership.state());
        Ok(())
    })
    .await
}

async fn follows(leadership: &Leadership) -> Result<()> {
    wait::until("the candidate to follow", PATIENCE, || async {
        ensure!(leadership.state() == LeaderState::Following, "{:?}", leadership.state());
        Ok(())
    })
    .await
}

async fn holder(client: &Client, namespace: &str) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let spec = leases.get("drain-keeper").await?.spec.unwrap_or_default();
    Ok(spec.holder_identity.unwrap_or_default())
}

/// Looks all the time, from a thread of its own, for two that lead at the same moment.
struct Referee {
    stop: mpsc::Sender<()>,
    thread: thread::JoinHandle<Verdict>,
}

#[derive(Debug, Default)]
struct Verdict {
    most_at_once: usize,
    looks: u64,
}

impl Referee {
    fn of<'a>(candidates: impl IntoIterator<Item = &'a Leadership>) -> Self {
        let candidates: Vec<Leadership> = candidates.into_iter().cloned().collect();
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut verdict = Verdict::default();
            while stopped.recv_timeout(Duration::from_micros(500)) == Err(mpsc::RecvTimeoutError::Timeout) {
                let leading = candidates.iter().filter(|candidate| candidate.is_leading_now()).count();
                verdict.most_at_once = verdict.most_at_once.max(leading);
                verdict.looks += 1;
            }
            verdict
        });
        Self { stop, thread }
    }

    fn most_at_once(self) -> Result<usize> {
        drop(self.stop);
        let verdict = self.thread.join().ok().context("the referee has ended")?;
        ensure!(verdict.looks > 100, "{verdict:?}");
        Ok(verdict.most_at_once)
    }
}

struct Arena {
    plane: &'static ControlPlane,
    client: Client,
    namespace: String,
}

async fn arena() -> Result<Arena> {
    let plane = ControlPlane::shared().await;
    let namespace = names::unique("lease");
    plane.namespace(&namespace).await?;
    Ok(Arena {
        plane,
        client: plane.client().await?,
        namespace,
    })
}

impl Arena {
    fn stand(&self, identity: &str) -> Candidate {
        stand(self.client.clone(), &self.namespace, identity, TIMES)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_and_the_next_follows_at_once() -> Result<()> {
    let arena = arena().await?;
    let mut candidates: Vec<Candidate> = (0..6)
        .map(|number| {
            let identity = format!("c{number}");
            stand(arena.client.clone(), &arena.namespace, &identity, LASTING)
        })
        .collect();
    let referee = Referee::of(candidates.iter().map(|candidate| &candidate.leadership));
    while !candidates.is_empty() {
        let leading = wait::until("a leader", PATIENCE, || async {
            let leading = candidates
                .iter()
                .position(|candidate| candidate.leadership.is_leading_now());
            leading.ok_or_else(|| anyhow::anyhow!("nobody"))
        })
        .await?;
        let leader = candidates.remove(leading);
        let asked = Instant::now();
        leader.resign().await?;
        if !candidates.is_empty() {
            wait::until("a successor", PATIENCE, || async {
                ensure!(
                    candidates.iter().any(|candidate| candidate.leadership.is_leading_now()),
                    "nobody"
                );
                Ok(())
            })
            .await?;
            assert!(
                asked.elapsed() < LASTING.lease_duration / 2,
                "a released lease need not run out: {:?}",
                asked.elapsed()
            );
        }
    }
    assert_eq!(referee.most_at_once()?, 1);
    assert_eq!(
        holder(&arena.client, &arena.namespace).await?,
        "",
        "the last one released it, too"
    );
    Ok(())
}

/// The API server keeps the word through renewals, and when it came.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_without_passes_leave_the_word_standing() -> Result<()> {
    let arena = arena().await?;
    let leader = arena.stand("leads");
    leads(&leader.leadership).await?;
    let standby = arena.stand("follows");
    let leases: Api<Lease> = Api::namespaced(arena.client.clone(), &arena.namespace);
    let said = async || lease::planned(&leases.get("drain-keeper").await?).context("nothing is said");
    let last = wait::until("passes to be told", PATIENCE, || async {
        leader.leadership.planned();
        let planned = said().await?;
        ensure!(planned.is_of_present_term && planned.at.passes > 1, "{planned:?}");
        Ok(planned)
    })
    .await?;
    let silent = wait::until("renewals in silence", PATIENCE, || async {
        let planned = said().await?;
        ensure!(planned.silent_for() >= Some(2 * TIMES.renew_interval), "{planned:?}");
        Ok(planned)
    })
    .await?;
    assert!(silent.at.passes >= last.at.passes, "{silent:?} after {last:?}");
    assert!(leader.leadership.is_leading_now());
    for replica in [&leader, &standby] {
        let leaderless_for = replica.leadership.leaderless_for();
        assert!(leaderless_for >= TIMES.renew_interval, "{leaderless_for:?}");
    }
    leader.resign().await?;
    standby.resign().await
}

#[rstest]
#[case::connection_lost(Fault::BrokenConnection)]
#[case::no_answers(Fault::Delay(secs(300)))]
#[case::server_errors(Fault::Status(500, "InternalError"))]
#[case::throttled(Fault::TooManyRequests { retry_after: Some(1) })]
#[tokio::test(flavor = "multi_thread")]
async fn unrenewed_leader_stops_before_the_next_starts(#[case] fault: Fault) -> Result<()> {
    let arena = arena().await?;
    let proxy = Proxy::start(arena.plane).await?;
    let first = stand(proxy.client()?, &arena.namespace, "first", TIMES);
    leads(&first.leadership).await?;
    let second = arena.stand("second");
    let referee = Referee::of([&first.leadership, &second.leadership]);

    proxy.inject(Rule::new(fault));
    follows(&first.leadership).await?;
    leads(&second.leadership).await?;
    proxy.heal();
    wait::throughout("the second to lead", TIMES.renew_interval * 2, || async {
        ensure!(second.leadership.is_leading_now(), "the second lost the lease");
        ensure!(!first.leadership.is_leading_now(), "the first leads again");
        Ok(())
    })
    .await?;
    assert_eq!(referee.most_at_once()?, 1);
    Ok(())
}

/// Its renewals arrive, so the lease stays its own, but it cannot know.
#[tokio::test(flavor = "multi_thread")]
async fn leader_with_lost_replies_stops_without_successor() -> Result<()> {
    let arena = arena().await?;
    let proxy = Proxy::start(arena.plane).await?;
    let first = stand(proxy.client()?, &arena.namespace, "first", TIMES);
    leads(&first.leadership).await?;
    let second = arena.stand("second");
    proxy.inject(Rule::new(Fault::LostReply).verbs([Verb::Patch]));
    follows(&first.leadership).await?;
    proxy.heal();
    leads(&first.leadership).await?;
    assert!(!second.leadership.is_leading_now());
    assert_eq!(holder(&arena.client, &arena.namespace).await?, "first");
    Ok(())
}

/// A candidate whose every thread can be stopped, as a process is by SIGSTOP or a machine by its hypervisor.
struct Stoppable {
    leadership: Leadership,
    jobs: tokio::sync::mpsc::UnboundedSender<mpsc::Receiver<()>>,
}

impl Stoppable {
    async fn stand(arena: &Arena, identity: &str) -> Result<Self> {
        let config = arena.plane.config().await?;
        let (namespace, identity) = (arena.namespace.clone(), identity.to_owned());
        let (jobs, mut wanted) = tokio::sync::mpsc::unbounded_channel::<mpsc::Receiver<()>>();
        let (told, leadership) = tokio::sync::oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let life = async move {
            let election = election(Client::try_from(config)?, &namespace, &identity, TIMES);
            let _ = told.send(election.leadership());
            let stop = CancellationToken::new();
            let running = tokio::spawn(election.run(stop.clone()));
            while let Some(resumed) = wanted.recv().await {
                // Blocks the only thread of this runtime.
                let _ = resumed.recv();
            }
            stop.cancel();
            anyhow::Ok(running.await?)
        };
        thread::spawn(move || runtime.block_on(life));
        Ok(Self {
            leadership: leadership.await?,
            jobs,
        })
    }

    /// Stands still until what is returned is dropped.
    fn stop(&self) -> Result<mpsc::Sender<()>> {
        let (resume, resumed) = mpsc::channel();
        self.jobs.send(resumed).ok().context("the candidate has ended")?;
        Ok(resume)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_leader_neither_acts_nor_retakes_on_waking() -> Result<()> {
    let arena = arena().await?;
    let paused = Stoppable::stand(&arena, "paused").await?;
    // At other moments of its loop each time: asleep, in a request, between two.
    for moment in [0, 1230, 2400] {
        leads(&paused.leadership).await?;
        tokio::time::sleep(Duration::from_millis(moment)).await;
        let second = arena.stand("second");
        let referee = Referee::of([&paused.leadership, &second.leadership]);
        let resume = paused.stop()?;
        leads(&second.leadership).await?;
        assert!(!paused.leadership.is_leading_now(), "its deadline needs nobody to run");
        drop(resume);
        wait::throughout("the second to lead", TIMES.renew_interval * 2, || async {
            ensure!(!paused.leadership.is_leading_now(), "the paused one leads");
            ensure!(second.leadership.is_leading_now(), "the second lost the lease");
            Ok(())
        })
        .await?;
        assert_eq!(holder(&arena.client, &arena.namespace).await?, "second");
        second.resign().await?;
        assert_eq!(referee.most_at_once()?, 1);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_leaders_lease_is_taken_after_its_duration() -> Result<()> {
    let arena = arena().await?;
    let first = arena.stand("first");
    leads(&first.leadership).await?;
    let second = arena.stand("second");
    let dies = Instant::now();
    first.die();
    leads(&second.leadership).await?;
    assert!(
        dies.elapsed() + TIMES.renew_interval >= TIMES.lease_duration,
        "too early: {:?}",
        dies.elapsed()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_whose_answer_is_lost_changes_nothing() -> Result<()> {
    let arena = arena().await?;
    let proxy = Proxy::start(arena.plane).await?;
    let candidate = stand(proxy.client()?, &arena.namespace, "first", TIMES);
    leads(&candidate.leadership).await?;
    let first @ LeaderState::Leading { .. } = candidate.leadership.state() else {
        anyhow::bail!("it follows")
    };
    let renewals = |proxy: &Proxy| proxy.count(|record| record.request.verb == Verb::Patch);
    proxy.inject(Rule::new(Fault::LostReply).verbs([Verb::Patch]).times(1));
    let before = renewals(&proxy);
    wait::until("three more renewals", PATIENCE, || async {
        ensure!(renewals(&proxy) >= before + 3, "{}", renewals(&proxy));
        ensure!(candidate.leadership.is_leading_now(), "it stopped");
        Ok(())
    })
    .await?;
    assert_eq!(candidate.leadership.state(), first);
    Ok(())
}
