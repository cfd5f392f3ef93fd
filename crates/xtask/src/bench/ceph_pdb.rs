//! How fast ceph-pdb closes budgets and opens them again, what slips through meanwhile, and what it costs.

mod evictor;
mod figures;
mod probe;
mod timeline;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DeleteParams, PostParams};
use nodeward_api::CephClusterState;
use nodeward_api::ceph_state::{CONFIG_MAP, PublishedDisruptions, STATE_KEY};
use nodeward_api::reason::CephCondition;
use nodeward_testkit::binaries::Profile;
use nodeward_testkit::ceph::{Ceph, CephOptions};
use nodeward_testkit::operator::Operator;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::rook::{CLUSTER, Rook};
use nodeward_testkit::{ControlPlane, Options, binaries, fleet, wait};
use serde_json::json;
use tokio::time::{Instant, sleep};

use self::evictor::{Attempts, Evictor};
use self::figures::{CommandRate, Measured, Round};
use self::probe::Probe;
use self::timeline::Timeline;
use super::figures::{Figures, count};
use super::measure::{Bench, Rest};
use crate::install;

/// The CephCluster's namespace.
const NAMESPACE: &str = CLUSTER;

/// The Secret with which ceph-pdb connects.
const SECRET: &str = "rook-ceph-client-nodeward";

/// How long anything may take, on a loaded machine.
const DEADLINE: Duration = Duration::from_mins(3);

/// At rest Ceph is asked once a minute; so many of these minutes are measured.
const REST_COMMANDS: f64 = 2.0;

/// How long to wait for a command of a minute's.
const REST_WITHIN: Duration = Duration::from_secs(150);

#[derive(clap::Args)]
pub struct Args {
    /// OSDs, each on a host of its own
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u8).range(3..=60))]
    osds: u8,
    /// How often a host is drained
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Leave out the minutes at rest, also before memory is measured
    #[arg(long)]
    no_rest: bool,
}

pub async fn bench(args: &Args) -> Result<Figures> {
    let options = CephOptions {
        hosts: args.osds.into(),
        ..CephOptions::default()
    };
    let binary = tokio::task::spawn_blocking(|| binaries::operator("ceph-pdb", Profile::Release)).await??;
    let progress = Progress::begin("control plane");
    let plane = ControlPlane::start(Options {
        // Nodes are never found silent: what their leases cost is not measured here.
        node_monitor_grace: Duration::from_hours(24),
        node_lease: Some(Duration::from_hours(12)),
        ..Options::default()
    })
    .await?;
    progress.done("runs on this machine");
    let bench = Bench::new(plane, "ceph-pdb").await?;
    bench.plane.namespace(NAMESPACE).await?;
    let progress = Progress::begin(format!("Ceph with {} OSDs on {} hosts", options.osds(), options.hosts));
    let placement_groups = options.osds().next_power_of_two().clamp(8, 64);
    let ceph = Arc::new(Ceph::start(options).await?);
    progress.step("Rook's objects");
    let rook = Rook::start(&bench.client, NAMESPACE, ceph).await?;
    rook.add_pool("data", 3, placement_groups, "host").await?;
    progress.done("all up, with Rook's objects");
    Measurement::new(args, &bench, &rook).await?.figures(&binary).await
}

struct Measurement<'a> {
    args: &'a Args,
    bench: &'a Bench,
    rook: &'a Rook,
    timeline: Timeline,
    probe: Probe,
}

impl<'a> Measurement<'a> {
    async fn new(args: &'a Args, bench: &'a Bench, rook: &'a Rook) -> Result<Self> {
        Ok(Self {
            args,
            bench,
            rook,
            timeline: Timeline::start(rook.budgets(), rook.pods()),
            probe: Probe::connect(rook.ceph().admin()).await?,
        })
    }

    async fn figures(self, binary: &std::path::Path) -> Result<Figures> {
        let config = json!({"namespaces": [NAMESPACE]});
        let operator = self.bench.prepare(binary, config).await?;
        let rss_mib = self.start_without_secret(&operator).await?;
        let rss_connected_mib = self.connect(&operator).await?;
        let rest = if self.args.no_rest {
            None
        } else {
            Some(self.rest(&operator).await?)
        };

        let mut rounds = Vec::new();
        let mut attempts = Attempts::default();
        let hosts = self.rook.ceph().options().hosts;
        for round in 0..usize::from(self.args.rounds) {
            let (measured, attempted) = self.drain(&operator, round, round % hosts).await?;
            rounds.push(measured);
            attempts.add(attempted);
        }
        let usage = operator.usage()?;
        install::stop(&operator).await?;
        Ok(Measured {
            osds: hosts,
            rounds,
            attempts,
            rest,
            rss_mib,
            rss_connected_mib,
            peak_rss_mib: usage.peak_rss_mib,
        }
        .figures())
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.bench.client.clone(), NAMESPACE)
    }

    async fn published(&self) -> Result<CephClusterState> {
        let maps: Api<ConfigMap> = Api::namespaced(self.bench.client.clone(), NAMESPACE);
        let data = maps.get(CONFIG_MAP).await?.data.unwrap_or_default();
        let text = data.get(STATE_KEY).context("no state is published")?;
        Ok(serde_json::from_str(text)?)
    }

    /// Starts the operator with all objects but the one by which it connects; gives its memory, in MiB.
    async fn start_without_secret(&self, operator: &Operator) -> Result<f64> {
        let progress = Progress::begin("before the first connect");
        let secret = self.secrets().get(SECRET).await?;
        self.secrets().delete(SECRET, &DeleteParams::default()).await?;
        operator.process().start()?;
        operator.ready(DEADLINE).await?;
        wait::until("ceph-pdb to miss its Secret", DEADLINE, || async {
            let state = self.published().await?;
            let mut kinds = state.conditions.iter().map(|condition| condition.kind);
            ensure!(kinds.any(|kind| kind == CephCondition::CephUnavailable), "{state:?}");
            Ok(())
        })
        .await?;
        self.quiet().await?;
        let rss_mib = operator.usage()?.rss_mib;
        let secret = Secret {
            metadata: kube::core::ObjectMeta {
                name: Some(SECRET.to_owned()),
                ..Default::default()
            },
            ..secret
        };
        self.secrets().create(&PostParams::default(), &secret).await?;
        progress.done(&format!("{rss_mib:.1} MiB"));
        Ok(rss_mib)
    }

    /// Waits until it is connected, and the budgets are open; gives its memory, in MiB.
    async fn connect(&self, operator: &Operator) -> Result<f64> {
        let progress = Progress::begin("connected");
        self.is_settled().await?;
        self.quiet().await?;
        let rss_mib = operator.usage()?.rss_mib;
        progress.done(&format!("{rss_mib:.1} MiB, the budgets are open"));
        Ok(rss_mib)
    }

    /// What was begun before has come to its end.
    async fn quiet(&self) -> Result<()> {
        if self.args.no_rest {
            Ok(())
        } else {
            self.bench.quiet().await
        }
    }

    /// The budgets are open for good.
    async fn is_settled(&self) -> Result<()> {
        let settled = wait::until("the cluster to be clean", DEADLINE, || async {
            let state = self.published().await?;
            let is_fresh = state.statistics_fresh_since.is_some() && state.is_clean == Some(true);
            ensure!(is_fresh && state.noout.is_empty(), "{state:?}");
            Ok(())
        });
        settled.await?;
        self.timeline
            .budgets_are("open", timeline::Budgets::is_open)
            .await
            .map(drop)
    }

    async fn rest(&self, operator: &Operator) -> Result<(Rest, CommandRate)> {
        let rest = self
            .bench
            .at_rest(operator, &format!("{} OSDs", self.args.osds))
            .await?;
        let progress = Progress::begin("Ceph commands at rest");
        let began = Instant::now();
        // From one command to another: a window of any other length would count one too many or too few.
        let (mut first, mut last): (Option<(f64, Instant)>, _) = (None, (commands(operator).await?, Instant::now()));
        while began.elapsed() < REST_WITHIN.mul_f64(REST_COMMANDS) {
            sleep(Duration::from_secs(1)).await;
            let asked = commands(operator).await?;
            if (asked - last.0).abs() < f64::EPSILON {
                continue;
            }
            last = (asked, Instant::now());
            let (before, since) = *first.get_or_insert(last);
            progress.step(&format!("{} since {} s", asked - before, since.elapsed().as_secs()));
            if since.elapsed() > Duration::from_mins(1).mul_f64(REST_COMMANDS - 0.1) {
                break;
            }
        }
        let rate = first.map_or_else(CommandRate::default, |(before, since)| CommandRate {
            commands: last.0 - before,
            minutes: last.1.duration_since(since).as_secs_f64() / 60.0,
        });
        progress.done(&format!("{:.1} a minute", rate.per_minute()));
        Ok((rest, rate))
    }

    /// Drains a host and brings it back.
    async fn drain(&self, operator: &Operator, round: usize, host: usize) -> Result<(Round, Attempts)> {
        let options = self.rook.ceph().options();
        let node = options.host_name(host);
        let progress = Progress::begin(format!("round {}: {node}", round + 1));
        self.is_settled().await?;
        let (of_host, others): (Vec<usize>, Vec<usize>) =
            (0..options.osds()).partition(|osd| options.host_of(*osd) == node);
        let stretch = self.bench.stretch(operator)?;
        let (asked, began) = (commands(operator).await?, Instant::now());

        fleet::cordon(&self.bench.client, &node).await?;
        self.evict(of_host[0]).await?;
        let is_over = AtomicBool::new(false);
        let evictor = Evictor {
            pods: self.rook.pods(),
            timeline: &self.timeline,
            probe: &self.probe,
            osds: options.osds(),
        };
        let drained = async {
            let measured = self.follow(&progress, &node, &of_host, began).await;
            is_over.store(true, Ordering::Relaxed);
            measured
        };
        let (mut measured, attempts) = tokio::try_join!(drained, evictor.evict(&others, &is_over))?;
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        measured.commands = CommandRate {
            commands: commands(operator).await? - asked,
            minutes,
        };
        measured.requests_per_min = count(stretch.requests(self.bench)?.without_watches().count()) / minutes;
        progress.done(&format!(
            "{}; {} attempts, {} unsafe, {} answered 500",
            measured.text(),
            attempts.count,
            attempts.unsafe_evictions.len(),
            attempts.http_500
        ));
        Ok((measured, attempts))
    }

    /// From the first eviction of a host's OSD to the end.
    async fn follow(&self, progress: &Progress, node: &str, osds: &[usize], began: Instant) -> Result<Round> {
        let sign = self.timeline.pod_ends(osds[0], began).await?;
        let others = self.rook.ceph().options().hosts - 1;
        let (closed, spelled_out, noout) = tokio::try_join!(
            self.timeline.budgets_are("closed", timeline::Budgets::is_closed),
            self.timeline
                .budgets_are("spelled out", |budgets| budgets.are_spelled_out(others)),
            self.probe.has_noout(node),
        )?;
        progress.step("closed, waiting for the host to be exempt");
        wait::until("the host to be exempt", DEADLINE, || async {
            let state = self.published().await?;
            ensure!(state.exempt_domain.as_deref() == Some(node), "{state:?}");
            Ok(())
        })
        .await?;
        for osd in osds.iter().skip(1) {
            self.evict(*osd).await?;
        }
        for osd in osds {
            self.rook.osd_gone(*osd, DEADLINE).await?;
        }
        progress.step("drained");
        fleet::uncordon(&self.bench.client, node).await?;
        let up = self.probe.all_up().await?;
        progress.step("up");
        let clean = self.probe.clean().await?;
        progress.step("clean");
        let restored = self.timeline.budgets_are("open", timeline::Budgets::is_open).await?;
        // It is published beside the budgets' writes, or after them.
        let fresh_since = wait::until("open budgets to be published", DEADLINE, || async {
            let state = self.published().await?;
            ensure!(state.disruptions == PublishedDisruptions::Open, "{state:?}");
            state.statistics_fresh_since.context("no fresh statistics")
        });
        let age = Timestamp::now().duration_since(fresh_since.await?).unsigned_abs();
        let fresh = Instant::now()
            .checked_sub(age)
            .context("statistics from before the machine's start")?;
        Ok(Round {
            closed: closed.duration_since(sign),
            spelled_out: spelled_out.duration_since(sign),
            noout: noout.duration_since(sign),
            clean_to_restored: restored.duration_since(fresh.max(clean)),
            up_to_restored: restored.duration_since(up),
            commands: CommandRate::default(),
            requests_per_min: 0.0,
        })
    }

    /// Evicts an OSD as often as it takes.
    async fn evict(&self, osd: usize) -> Result<()> {
        wait::until(format!("OSD {osd} to be evicted"), DEADLINE, || async {
            let code = self.rook.evict_osd(osd).await?;
            // One that an earlier attempt has evicted has no pod to evict.
            ensure!(matches!(code, None | Some(201)), "{code:?}");
            Ok(())
        })
        .await
    }
}

/// Commands for Ceph so far.
async fn commands(operator: &Operator) -> Result<f64> {
    let metrics = operator.metrics().await?;
    Ok(metrics.sum("nodeward_ceph_pdb_ceph_commands_total", &[]))
}
