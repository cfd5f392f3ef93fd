//! `cargo xtask soak`: the operators together on a real control plane on which things fail at random, and what must hold
//! meanwhile.

mod cluster;
pub mod drains;
mod event;
mod invariants;
mod monitoring;
mod replicas;
mod view;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::{ControlPlane, prometheus};
use tokio::time::{Instant, sleep};

use self::cluster::SoakCluster;
use self::drains::Drains;
use self::monitoring::Monitoring;
use crate::cluster::find_ceph_libraries;
use crate::until_interrupted;

/// How long things fail before all is mended, and nothing may be left.
const ROUND: Duration = Duration::from_secs(50);

/// Nodes that too many failures at once can be tried with.
const LEAST_NODES: usize = 20;

/// How many of the last events a failure tells.
const TOLD: usize = 60;

/// After so many events a rule is broken, where that is asked for.
const BREAKS_AFTER: usize = 5;

#[derive(clap::Args)]
pub struct Args {
    /// How long it lasts
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// From which the events follow; else a random one, which is printed
    #[arg(long)]
    seed: Option<u64>,
    /// Nodes of the cluster [default: 100, and 300 with health-check alone]
    #[arg(long)]
    nodes: Option<usize>,
    /// Which operators run
    #[arg(long, value_enum, default_value_t = Operators::All)]
    operators: Operators,
    /// Force a pod that nobody may force, for a test of the soak itself; without Ceph
    #[arg(long, hide = true)]
    break_a_rule: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Operators {
    /// All of them together, drains and workloads among the failures, with a real Ceph where Debian's packages can be had
    All,
    /// health-check alone: nodes fail, recover, flap, change and go, templates are edited
    HealthCheck,
}

impl Args {
    fn nodes(&self) -> usize {
        let usual = match self.operators {
            Operators::All => 100,
            Operators::HealthCheck => 300,
        };
        self.nodes.unwrap_or(usual)
    }
}

/// # Errors
/// When something that must hold did not: with the seed, the last events and the operators' logs.
pub fn run(args: &Args) -> Result<ExitCode> {
    // It begins this program anew, with Ceph's libraries.
    let has_ceph = args.operators == Operators::All
        && !args.break_a_rule
        && find_ceph_libraries()
            .inspect_err(|why| println!("ceph-pdb is left out, for there is no Ceph: {why:#}"))
            .is_ok();
    let prometheus = prometheus::program("prometheus")
        .inspect_err(|why| println!("alerts and dashboards are left out, for there is no Prometheus: {why:#}"))
        .ok();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("seed {seed}");
    until_interrupted(async {
        Box::pin(soak(args, seed, has_ceph, prometheus.as_deref()))
            .await
            .with_context(|| format!("seed {seed}"))?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn soak(args: &Args, seed: u64, has_ceph: bool, prometheus: Option<&Path>) -> Result<()> {
    let nodes = args.nodes();
    ensure!(nodes >= LEAST_NODES, "at least {LEAST_NODES} nodes are needed");
    let plane = cluster::control_plane(args.operators == Operators::All).await?;
    let health = SoakCluster::start(&plane, nodes, seed).await?;
    let drains = match args.operators {
        Operators::All => Some(Drains::start(&plane, seed, has_ceph).await?),
        Operators::HealthCheck => None,
    };
    let monitoring = match prometheus {
        Some(program) => {
            let jobs = drains.iter().flat_map(Drains::jobs).chain([health.job()]);
            Some(Monitoring::start(program, &plane, &jobs.collect::<Vec<_>>()).await?)
        }
        None => None,
    };
    let mut soak = Soak {
        which: Rng::with_seed(seed),
        failures: event::Dice::new(seed, nodes),
        health,
        drains,
        monitoring,
        log: EventLog {
            began: Instant::now(),
            told: Vec::new(),
        },
        breaks_a_rule: args.break_a_rule,
        plane,
    };
    let end = Instant::now() + Duration::from_mins(args.minutes);
    let mut round = 0;
    let outcome = loop {
        round += 1;
        let progress = Progress::begin(format!("round {round}"));
        let outcome = soak.fail_and_mend(&progress).await;
        if outcome.is_err() || end <= Instant::now() {
            break outcome;
        }
        progress.done(&soak.text());
    };
    if outcome.is_err() {
        eprintln!("{}", soak.logs());
        eprintln!("the last events:\n{}", soak.log.last(TOLD));
    }
    outcome?;
    soak.end().await?;
    for query in soak.monitoring.iter().flat_map(Monitoring::unanswered) {
        println!("without series: {}: {}", query.title, query.expression);
    }
    let rounds = if round == 1 { "round" } else { "rounds" };
    println!("nothing was broken in {round} {rounds}: {}", soak.text());
    Ok(())
}

struct Soak {
    /// Says whether the next event is a failure of nodes or meets drains.
    which: Rng,
    failures: event::Dice,
    // Before the control plane, which has their objects.
    health: SoakCluster,
    drains: Option<Drains>,
    monitoring: Option<Monitoring>,
    log: EventLog,
    breaks_a_rule: bool,
    plane: ControlPlane,
}

/// The events so far, each with its time.
struct EventLog {
    began: Instant,
    told: Vec<String>,
}

impl EventLog {
    fn tell(&mut self, text: &str, progress: &Progress) {
        progress.step(text);
        self.told
            .push(format!("{:>7.1} s  {text}", self.began.elapsed().as_secs_f64()));
    }

    fn last(&self, count: usize) -> String {
        self.told[self.told.len().saturating_sub(count)..].join("\n")
    }
}

impl Soak {
    /// One round: events at random for a while, then all is mended, and nothing may be left.
    async fn fail_and_mend(&mut self, progress: &Progress) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < ROUND {
            self.next_event(progress).await?;
            sleep(self.failures.pause()).await;
            self.hold()?;
        }
        if let Some(monitoring) = &mut self.monitoring {
            monitoring.hold().await?;
        }
        self.log.tell("all is mended", progress);
        if let Some(drains) = &self.drains {
            drains.mend().await?;
        }
        self.health.mend().await?;
        self.health.nothing_is_left().await?;
        if let Some(drains) = &self.drains {
            drains.nothing_is_left().await?;
        }
        self.hold()
    }

    async fn next_event(&mut self, progress: &Progress) -> Result<()> {
        let breaks_a_rule = self.breaks_a_rule && self.log.told.len() >= BREAKS_AFTER;
        if let Some(drains) = self.drains.as_ref().filter(|_| breaks_a_rule) {
            self.log.tell("somebody breaks a rule", progress);
            drains.break_a_rule().await?;
        }
        let happened = match &mut self.drains {
            Some(drains) if self.which.bool() => {
                let event = drains.dice.next();
                self.log.tell(&event.to_string(), progress);
                drains.let_happen(event).await
            }
            _ => {
                let event = self.failures.next();
                self.log.tell(&event.to_string(), progress);
                self.health.let_happen(event).await
            }
        };
        happened.with_context(|| format!("let it happen: {}", self.log.last(1)))
    }

    /// Everything held so far.
    fn hold(&self) -> Result<()> {
        if let Some(drains) = &self.drains {
            drains.hold()?;
        }
        self.health.invariants.hold()
    }

    fn text(&self) -> String {
        let drains = self.drains.as_ref().map(|drains| format!("; {}", drains.text()));
        let (events, health) = (self.log.told.len(), self.health.invariants.text());
        let monitoring = self
            .monitoring
            .as_ref()
            .map(|monitoring| format!("; {}", monitoring.text()));
        let (drains, monitoring) = (drains.unwrap_or_default(), monitoring.unwrap_or_default());
        format!("{events} events, {health}{drains}{monitoring}")
    }

    /// Ends the operators, which must end well.
    async fn end(&self) -> Result<()> {
        self.health.end().await?;
        match &self.drains {
            Some(drains) => drains.end().await,
            None => Ok(()),
        }
    }

    fn logs(&self) -> String {
        let drains = self.drains.as_ref().map(Drains::logs).unwrap_or_default();
        format!("{}{drains}({})", self.health.logs(), self.plane.dir().display())
    }
}
