//! What every operator's `main` calls: everything around the operator's own loop.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use clap::{CommandFactory as _, FromArgMatches as _};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Probes};
use crate::args::OperatorArgs;
use crate::cache::Watches;
use crate::client::Clients;
use crate::component::Component;
use crate::config::{self, ConfigError, ConfigFile, ConfigHandle, Parse};
use crate::control::{self, Operator};
use crate::crds;
use crate::events::{EventQueue, EventSink, pod_reference};
use crate::leader::{Election, ElectionTimes, Leadership};
use crate::liveness::Liveness;
use crate::metrics::Metrics;
use crate::pause::{Pause, PauseGauges, PauseReporter};
use crate::readiness::Readiness;
use crate::reconcile_trigger::ReconcileTrigger;
use crate::serve::Limits;
use crate::shutdown::{self, StopSignals};
use crate::supervise::Supervisor;
use crate::telemetry;

/// Bad arguments or a bad configuration: starting again cannot help.
const EXIT_BAD_INPUT: u8 = 2;

/// How long work in flight may take after a signal. With those below it stays within the 30 s that a pod is given.
const FINISH: Duration = Duration::from_secs(16);

/// How long the other tasks may take to end, and then giving the lease back.
const RELEASE: Duration = Duration::from_secs(5);

/// How long the last Events may take.
const LAST_EVENTS: Duration = Duration::from_secs(3);

/// Two threads, so that a long pass of the operator's loop never delays the renewal of the lease.
const THREADS: usize = 2;

/// What an operator's own loop works with.
pub struct OperatorContext<T> {
    /// Which operator this is.
    pub component: Component,
    /// The flags.
    pub args: OperatorArgs,
    /// For requests of the operator's own.
    pub clients: Clients,
    /// Opens caches that notify `trigger`.
    pub watches: Watches,
    /// Notified when a cache, the configuration or leadership changed. One loop waits on it.
    pub trigger: ReconcileTrigger,
    /// Add a gate for each cache that decisions rest on, before the first `await`: from then on `/readyz` can be 200.
    pub readiness: Readiness,
    /// Have the main loop watched.
    pub liveness: Liveness,
    /// Register metrics.
    pub metrics: Metrics,
    /// Ask before each write.
    pub leadership: Leadership,
    /// Ask before each write that no permit covers.
    pub pause: Pause,
    /// Tell people.
    pub events: EventSink,
    /// Start further tasks.
    pub supervisor: Supervisor,
    /// Cancelled when it is time to finish what is in flight and return.
    pub shutdown: CancellationToken,
    /// The configuration in force.
    pub config: ConfigHandle<T>,
}

/// The command line of every operator.
#[derive(clap::Parser)]
struct Cli<A: clap::Args> {
    #[command(flatten)]
    operator: OperatorArgs,
    #[command(flatten)]
    own: A,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Prints the CustomResourceDefinitions that this component serves, as YAML.
    Crds,
    /// Checks a configuration file, without a cluster: exits with 2, and names line and field, if it is invalid.
    Check {
        /// Configuration file (YAML).
        #[arg(long, env = "NODEWARD_CONFIG", value_name = "FILE")]
        config: PathBuf,
    },
}

/// The `main` of an operator: runs it until it is told to stop, prints its CustomResourceDefinitions, or checks a
/// configuration.
///
/// Exit codes: 0 when stopped by a signal and everything was finished, 2 for bad arguments or a bad configuration,
/// 1 otherwise.
pub fn main<O: Operator>() -> ExitCode {
    let command = Cli::<O::Args>::command()
        .name(O::COMPONENT.name())
        .version(O::COMPONENT.version())
        .about(O::ABOUT)
        .args_override_self(true);
    let cli = Cli::<O::Args>::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    match cli.command {
        Some(Command::Crds) => print_crds(O::COMPONENT, &O::crds()),
        Some(Command::Check { config }) => check::<O>(&config),
        None => run::<O>(cli.operator, cli.own),
    }
}

#[allow(clippy::print_stdout, reason = "what was asked for is the output")]
fn print_crds(component: Component, definitions: &[CustomResourceDefinition]) -> ExitCode {
    match crds::yaml(definitions) {
        Ok(yaml) => {
            print!("{yaml}");
            ExitCode::SUCCESS
        }
        Err(error) => bad_input(component, &error),
    }
}

#[allow(clippy::print_stdout, reason = "what was asked for is the output")]
fn check<O: Operator>(path: &Path) -> ExitCode {
    let metrics = Metrics::new(O::COMPONENT);
    match first_config(Some(path), O::parse, ReconcileTrigger::new(), &metrics) {
        Ok(_) => {
            println!("{}: valid", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => bad_input(O::COMPONENT, &error),
    }
}

fn run<O: Operator>(args: OperatorArgs, own: O::Args) -> ExitCode {
    let component = O::COMPONENT;
    if let Err(error) = telemetry::install(args.log_format, &args.log_level) {
        return bad_input(component, &error);
    }
    let (trigger, metrics) = (ReconcileTrigger::new(), Metrics::new(component));
    let config = match first_config(args.config.as_deref(), O::parse, trigger.clone(), &metrics) {
        Ok(config) => config,
        Err(error) => return bad_input(component, &error),
    };
    let supervisor = Supervisor::new(CancellationToken::new());
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let outcome = runtime.block_on(operate_until_told::<O>(
                args,
                own,
                config,
                trigger,
                metrics,
                supervisor.clone(),
            ));
            runtime.shutdown_background();
            outcome
        });
    if let Err(error) = &outcome {
        tracing::error!("{error:#}");
    }
    // What a C library does when a process exits in order, it does under the feet of a thread that is still inside it.
    if supervisor.has_threads() {
        shutdown::exit_at_once(i32::from(outcome.is_err()));
    }
    outcome.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

/// Plain on standard error, whatever the log's format: a person is about to read it.
#[allow(clippy::print_stderr)]
fn bad_input(component: Component, error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("{}: {error}", component.name());
    ExitCode::from(EXIT_BAD_INPUT)
}

fn first_config<T>(
    path: Option<&Path>,
    parse: Parse<T>,
    trigger: ReconcileTrigger,
    metrics: &Metrics,
) -> Result<ConfigHandle<T>, ConfigError> {
    let (text, origin) = match path {
        Some(path) => (config::read(path)?, path.display().to_string()),
        None => (String::new(), "config".to_owned()),
    };
    ConfigHandle::first(parse, text, &origin, trigger, metrics)
}

async fn operate_until_told<O: Operator>(
    args: OperatorArgs,
    own: O::Args,
    config: ConfigHandle<O::Settings>,
    trigger: ReconcileTrigger,
    metrics: Metrics,
    supervisor: Supervisor,
) -> anyhow::Result<()> {
    let component = O::COMPONENT;
    let shutdown = supervisor.shutdown().clone();
    let signals = StopSignals::register()?;
    let (readiness, liveness) = (Readiness::new(), Liveness::new());
    let first_turn = FirstTurn::required_by(&readiness);

    let server = admin::bind(args.admin_bind).await?;
    tracing::info!(
        component = component.name(),
        version = component.version(),
        identity = args.identity,
        admin = %server.address(),
        dry_run = args.dry_run,
        "starting"
    );
    // The probes answer until the very end, and signals are heard from the very start.
    let end = CancellationToken::new();
    let probes = Probes {
        readiness: readiness.clone(),
        liveness: liveness.clone(),
        supervisor: supervisor.clone(),
        metrics: metrics.clone(),
    };
    let router = admin::router(probes);
    tokio::spawn(server.serve(router, None, Limits::default(), end.clone()));
    tokio::spawn(signals.cancel(shutdown.clone()));

    let clients = Clients::infer(component).await?;
    let (events, last_events) = start_events(component, &args, &clients, &metrics);
    if let Some(path) = &args.config {
        supervisor.spawn(
            "config",
            ConfigFile::watch(path).follow(config.clone(), shutdown.clone()),
        );
    }
    let election = ElectionHandle::start(component, &args, &clients, &trigger, &metrics);
    let own_pod = pod_reference(&args.namespace, &args.identity, None);
    let announcements = config::announce(config.clone(), events.clone(), own_pod, shutdown.clone());
    supervisor.spawn("config events", announcements);
    let watches = Watches::new(trigger.clone(), supervisor.clone(), &metrics);
    let pause = Pause::watch(component, &watches, &clients, &args.namespace, &readiness);
    let reporter = PauseReporter {
        component,
        pause: pause.clone(),
        namespace: args.namespace.clone(),
        own_pod: args.identity.clone(),
        client: clients.requests.clone(),
        events: events.clone(),
        leadership: election.leadership.clone(),
        dry_run: args.dry_run,
        gauges: PauseGauges::register(&metrics),
    };
    supervisor.spawn("pause", reporter.run(shutdown.clone()));

    let context = OperatorContext {
        component,
        clients,
        watches,
        trigger,
        readiness,
        liveness,
        metrics,
        leadership: election.leadership.clone(),
        pause,
        events,
        supervisor: supervisor.clone(),
        shutdown: shutdown.clone(),
        config,
        args,
    };
    let Finished { outcome, mut is_clean } = finish(
        tokio::spawn(first_turn.of(control::run::<O>(context, own))),
        &supervisor,
        &shutdown,
    )
    .await;

    shutdown.cancel();
    if timeout(RELEASE, supervisor.finished()).await.is_err() {
        tracing::warn!("some tasks did not finish in time");
        is_clean = false;
    }
    election.end(is_clean).await;
    if let Some(queue) = last_events {
        let _ = timeout(LAST_EVENTS, queue).await;
    }
    end.cancel();
    tracing::info!("stopped");
    outcome
}

/// Keeps `/readyz` at 503 until the operator has added its gates, which it does in its first turn. The probes answer
/// before that, and without a gate nothing would keep them from answering 200.
struct FirstTurn(Arc<AtomicBool>);

impl FirstTurn {
    fn required_by(readiness: &Readiness) -> Self {
        let taken = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&taken);
        readiness.require("start", move || {
            if seen.load(Ordering::Acquire) {
                Ok(())
            } else {
                Err("the operator has not begun yet".to_owned())
            }
        });
        Self(taken)
    }

    async fn of<F: Future>(self, operator: F) -> F::Output {
        let mut operator = pin!(operator);
        let turn = futures::poll!(operator.as_mut());
        self.0.store(true, Ordering::Release);
        match turn {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => operator.await,
        }
    }
}

/// How the operator's own loop ended.
struct Finished {
    outcome: anyhow::Result<()>,
    /// It returned, with nothing left under way: no write of this process can still arrive.
    is_clean: bool,
}

/// Waits for the operator's own loop: as long as it likes, until it is time to stop.
async fn finish(
    mut operator: JoinHandle<anyhow::Result<()>>,
    supervisor: &Supervisor,
    shutdown: &CancellationToken,
) -> Finished {
    let failure = tokio::select! {
        ended = &mut operator => return Finished { is_clean: ended.is_ok(), outcome: ended.unwrap_or_else(|panic| Err(panic.into())) },
        failure = supervisor.failure() => Some(failure),
        () = shutdown.cancelled() => None,
    };
    shutdown.cancel();
    let ended = timeout(FINISH, &mut operator).await;
    operator.abort();
    Finished {
        is_clean: matches!(ended, Ok(Ok(_))),
        outcome: match (failure, ended) {
            (Some(failure), _) => Err(failure.into()),
            (None, Ok(ended)) => ended.unwrap_or_else(|panic| Err(panic.into())),
            (None, Err(_)) => Err(anyhow::anyhow!("work in flight did not finish within {FINISH:?}")),
        },
    }
}

/// The election of this process, if it takes part in one.
struct ElectionHandle {
    leadership: Leadership,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl ElectionHandle {
    fn start(
        component: Component,
        args: &OperatorArgs,
        clients: &Clients,
        trigger: &ReconcileTrigger,
        metrics: &Metrics,
    ) -> Self {
        let stop = CancellationToken::new();
        if !args.leader_elect {
            return Self {
                leadership: Leadership::fixed(true),
                stop,
                task: None,
            };
        }
        let election = Election::new(
            clients.lease.clone(),
            &args.namespace,
            component.lease_name(args.dry_run),
            args.identity.clone(),
            ElectionTimes::default(),
            trigger.clone(),
            metrics,
        );
        let leadership = election.leadership();
        let task = Some(tokio::spawn(election.run(stop.clone())));
        Self { leadership, stop, task }
    }

    /// Gives the lease back after the last write, so that a successor never meets one of ours. Where a write may still be
    /// under way nothing is given back: the lease runs out, and by then the write has arrived or never will.
    async fn end(self, is_clean: bool) {
        let Some(task) = self.task else { return };
        if !is_clean {
            tracing::warn!("the lease is kept until it runs out: a write may still be under way");
            task.abort();
            return;
        }
        self.stop.cancel();
        let _ = timeout(RELEASE, task).await;
    }
}

fn start_events(
    component: Component,
    args: &OperatorArgs,
    clients: &Clients,
    metrics: &Metrics,
) -> (EventSink, Option<JoinHandle<()>>) {
    if args.dry_run {
        return (EventSink::silent(metrics), None);
    }
    let (sink, queue) = EventSink::new(clients.requests.clone(), component, &args.identity, metrics);
    (sink, Some(tokio::spawn(EventQueue::run(queue))))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;
    use tokio::time::{Instant, sleep};
    use tokio_util::sync::CancellationToken;

    use super::{ElectionHandle, FINISH, FirstTurn, LAST_EVENTS, RELEASE, finish};
    use crate::leader::Leadership;
    use crate::readiness::Readiness;
    use crate::supervise::Supervisor;

    struct Fixture {
        shutdown: CancellationToken,
        supervisor: Supervisor,
    }

    fn fixture() -> Fixture {
        let shutdown = CancellationToken::new();
        Fixture {
            supervisor: Supervisor::new(shutdown.clone()),
            shutdown,
        }
    }

    impl Fixture {
        async fn finish(
            &self,
            operator: impl Future<Output = anyhow::Result<()>> + Send + 'static,
        ) -> Result<(), String> {
            self.finish_cleanly(operator).await.0
        }

        /// And whether it was clean.
        async fn finish_cleanly(
            &self,
            operator: impl Future<Output = anyhow::Result<()>> + Send + 'static,
        ) -> (Result<(), String>, bool) {
            let finished = finish(tokio::spawn(operator), &self.supervisor, &self.shutdown).await;
            (finished.outcome.map_err(|error| error.to_string()), finished.is_clean)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_in_flight_is_finished_after_a_signal() {
        let fixture = fixture();
        let told = fixture.shutdown.clone();
        fixture.shutdown.cancel();
        let began = Instant::now();
        let work = async move {
            told.cancelled().await;
            sleep(Duration::from_secs(10)).await;
            Ok(())
        };
        assert_eq!(fixture.finish(work).await, Ok(()));
        assert_eq!(began.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn endless_work_is_cut_off_as_failure() {
        let fixture = fixture();
        fixture.shutdown.cancel();
        let began = Instant::now();
        assert!(fixture.finish(std::future::pending()).await.is_err());
        assert_eq!(began.elapsed(), FINISH);
    }

    /// What an operator may end with.
    #[derive(Clone, Copy)]
    enum End {
        Finished,
        Failed,
        Panicked,
        Never,
    }

    #[rstest]
    #[case::finished(End::Finished, true)]
    #[case::failed_with_nothing_under_way(End::Failed, true)]
    #[case::panicked(End::Panicked, false)]
    #[case::cut_off(End::Never, false)]
    #[tokio::test(start_paused = true)]
    async fn lease_is_returned_after_clean_finish_only(#[case] end: End, #[case] expected: bool) {
        let fixture = fixture();
        let told = fixture.shutdown.clone();
        fixture.shutdown.cancel();
        let operator = async move {
            told.cancelled().await;
            match end {
                End::Finished => Ok(()),
                End::Failed => anyhow::bail!("no server"),
                End::Panicked => panic!("boom"),
                End::Never => std::future::pending().await,
            }
        };
        let (_, is_clean) = fixture.finish_cleanly(operator).await;
        let (stop, returned) = (CancellationToken::new(), CancellationToken::new());
        let election = ElectionHandle {
            leadership: Leadership::fixed(true),
            stop: stop.clone(),
            task: Some(tokio::spawn({
                let returned = returned.clone();
                async move {
                    stop.cancelled().await;
                    returned.cancel();
                }
            })),
        };
        election.end(is_clean).await;
        sleep(RELEASE).await;
        assert_eq!(returned.is_cancelled(), expected);
    }

    #[test]
    fn shutdown_fits_a_pods_grace() {
        assert!(FINISH + RELEASE + RELEASE + LAST_EVENTS <= Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn dead_task_stops_the_operator_as_failure() {
        let fixture = fixture();
        let told = fixture.shutdown.clone();
        fixture.supervisor.spawn("reporter", async { panic!("boom") });
        let outcome = fixture
            .finish(async move {
                told.cancelled().await;
                Ok(())
            })
            .await;
        assert_eq!(outcome, Err("task \"reporter\" panicked: boom".to_owned()));
    }

    #[tokio::test]
    async fn process_is_unready_before_its_gates() {
        let readiness = Readiness::new();
        let first_turn = FirstTurn::required_by(&readiness);
        let closed = || -> Vec<String> { readiness.closed_gates().into_iter().map(|gate| gate.gate).collect() };
        assert_eq!(closed(), ["start"]);
        let own = readiness.clone();
        let operator = tokio::spawn(first_turn.of(async move {
            own.require("nodes cache", || Err("not synced".to_owned()));
            std::future::pending::<()>().await;
        }));
        tokio::task::yield_now().await;
        assert_eq!(closed(), ["nodes cache"]);
        operator.abort();
    }

    #[tokio::test]
    async fn loop_panic_is_a_failure() {
        let fixture = fixture();
        let outcome = fixture.finish(async { panic!("boom") }).await.unwrap_err();
        assert!(outcome.contains("panic"), "{outcome}");
    }
}
