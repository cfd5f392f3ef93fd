//! The programs themselves that empty nodes, as they are published, each with drain-lock and without it: it must end
//! wherever it ends without, with no more nodes and at most half as many more evictions, and no eviction may break a budget.
//! Beside drain-lock run drain-keeper and health-check, which must force nothing and remediate no node.
//!
//! What a program deletes on its own, past every budget, is counted apart. Times are printed and not judged.

mod another_webhook;
mod autoscaler;
mod cluster_api;
mod descheduler;
mod karpenter;
mod kubectl;
mod nodes;
mod workload_cluster;

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use nodeward_testkit::audit::{AuditedRequest, Mark};
use nodeward_testkit::drainers::FIGURES;
use nodeward_testkit::fleet::{self, NodeSpec};
use nodeward_testkit::helm::Release;
use nodeward_testkit::operator::{Operator, OperatorSpec};
use nodeward_testkit::process::Process;
use nodeward_testkit::remediator::Family;
use nodeward_testkit::wait::secs;
use nodeward_testkit::workload;
use nodeward_testkit::{AuditScope, Options};
use serde_json::{Value, json};

use crate::drain_keeper;
use crate::environment::{BudgetWatch, Environment, Lock, RELEASE, SYSTEM};
use crate::reviewed::Reviewed;

/// A cluster for one run of a scenario.
pub struct Stage {
    pub env: Environment,
    operators: Option<Operators>,
}

/// What Nodeward has for any cluster.
struct Operators {
    lock: Lock,
    keeper: Operator,
    health_check: Operator,
}

impl Operators {
    /// All of one release of the chart, with its defaults, but that drain-keeper watches every drain that drain-lock knows of, and
    /// health-check has its default NodeHealthCheck. `config` is drain-lock's.
    async fn start(reviewed: &Reviewed, config: &Value) -> Result<Self> {
        let env = &reviewed.env;
        Family::SelfNode.install(&env.client).await?;
        let template = Family::SelfNode.create_template(&env.client, SYSTEM, "reboot").await?;
        let check = json!({ "enabled": true, "remediationTemplate": template });
        let enabled = json!({ "enabled": true, "deployment": { "enabled": false } });
        let mut values = json!({ "drainKeeper": enabled, "healthCheck": enabled });
        values["healthCheck"]["default"] = check.clone();
        Release::new(RELEASE, SYSTEM)
            .values(values)
            .install_more(&env.plane)
            .await?;
        let lock = reviewed.start(config.clone()).await?;
        let start = async |component: &str, config: Value| {
            let spec = OperatorSpec::new(component, SYSTEM, &format!("{RELEASE}-{component}"));
            let spec = match component {
                "health-check" => spec.arg("--webhook-bind=127.0.0.1:0"),
                _ => spec,
            };
            let operator = spec.config(&config.to_string()).start(&env.plane).await?;
            operator.ready(secs(60)).await?;
            anyhow::Ok(operator)
        };
        let of_keeper = json!({ "upgradeSignal": "always", "overrideBudgets": "all", "countsAsDrain": "nodeDrain" });
        Ok(Self {
            keeper: start("drain-keeper", of_keeper).await?,
            health_check: start("health-check", json!({ "default": check })).await?,
            lock,
        })
    }

    /// Ends them; fails if one has taken an emptied node for a failed one, or a drain for one that is stuck.
    async fn end(self, env: Environment) -> Result<()> {
        let overrides = self.keeper.metrics().await?.sum(drain_keeper::OVERRIDES, &[]);
        ensure!(overrides < 0.5, "drain-keeper has overridden {overrides} budgets");
        let remediations = Family::SelfNode.remediation().api(&env.client, None);
        let remediations = remediations.list(&ListParams::default()).await?.items;
        ensure!(remediations.is_empty(), "health-check remediates: {remediations:?}");
        for operator in [self.keeper, self.health_check] {
            Lock::of(operator).end().await?;
        }
        env.end([self.lock]).await
    }
}

impl Stage {
    /// drain-lock, where it runs.
    pub fn lock(&self) -> Option<&Lock> {
        self.operators.as_ref().map(|operators| &operators.lock)
    }

    async fn without() -> Result<Self> {
        let env = Environment::with_options(&[], options()).await?;
        Ok(Self { env, operators: None })
    }

    async fn with(config: &Value) -> Result<Self> {
        let env = Environment::with_options(&[], options()).await?;
        let reviewed = Reviewed::of(env, json!({})).await?;
        let operators = Operators::start(&reviewed, config).await?;
        Ok(Self {
            env: reviewed.env,
            operators: Some(operators),
        })
    }

    /// Adds workers of so many CPUs each, `PREFIX-0` and on, with the label `pool=PREFIX`.
    pub async fn add_nodes(&self, prefix: &str, count: usize, cpus: u32) -> Result<Vec<String>> {
        let specs = NodeSpec::workers(prefix, count).into_iter();
        let specs: Vec<NodeSpec> = specs.map(|spec| spec.cpus(cpus).label("pool", prefix)).collect();
        let names = specs.iter().map(|spec| spec.name().to_owned()).collect();
        fleet::create(&self.env.client, specs).await?;
        Ok(names)
    }

    /// From now on what the user does is counted, and budgets are watched.
    pub fn begin(&self, user: &str) -> Result<Begun<'_>> {
        Ok(Begun {
            stage: self,
            user: user.to_owned(),
            since: self.env.plane.audit().mark()?,
            budgets: self.env.watch_budgets(),
            at: Instant::now(),
        })
    }

    /// Waits until the ledger holds no claim and no NodeDrain is left, where drain-lock runs.
    pub async fn released(&self, deadline: Duration) -> Result<()> {
        if self.operators.is_none() {
            return Ok(());
        }
        nodeward_testkit::wait::until("all drains to be released", deadline, || async {
            let drains = self.env.drains().list(&ListParams::default()).await?.items;
            let drains: Vec<_> = drains
                .iter()
                .map(|drain| (&drain.metadata.name, &drain.status))
                .collect();
            ensure!(drains.is_empty(), "{}", serde_json::to_string(&drains)?);
            let ledger = self.env.ledger().await?;
            let claims = ledger.map(|ledger| ledger.spec.claims).unwrap_or_default();
            ensure!(claims.is_empty(), "{claims:?}");
            Ok(())
        })
        .await
    }

    /// Fails unless the application has so many pods, all of them Ready and none on its way out.
    pub async fn all_ready(&self, app: &str, count: usize) -> Result<()> {
        let of_app = ListParams::default().labels(&format!("app={app}"));
        let pods = self.env.pods().list(&of_app).await?.items;
        let stays = |pod: &&Pod| workload::is_up(pod);
        let ready = pods.iter().filter(stays).count();
        ensure!(
            pods.len() == count && ready == count,
            "{ready} of {} pods of {app} are Ready",
            pods.len()
        );
        Ok(())
    }

    async fn end(self) -> Result<()> {
        match self.operators {
            Some(operators) => operators.end(self.env).await,
            None => Ok(()),
        }
    }
}

fn options() -> Options {
    Options {
        audit: AuditScope::Everything,
        ..Options::patient()
    }
}

/// A run that is being watched.
pub struct Begun<'a> {
    stage: &'a Stage,
    user: String,
    since: Mark,
    budgets: BudgetWatch,
    at: Instant,
}

impl Begun<'_> {
    /// The place in the audit log where it began.
    pub const fn since(&self) -> Mark {
        self.since
    }

    /// What came of it; `outcome` says whether the program came to its end.
    pub async fn end(self, outcome: Result<()>) -> Result<Figures> {
        let took = self.at.elapsed();
        let env = &self.stage.env;
        let broken = self.budgets.none_was_violated().err();
        let asked = env.plane.audit().since(self.since)?.writes();
        let asked = asked.only(|request| request.user == self.user && !request.uri.contains("dryRun="));
        let count = |is_so: &dyn Fn(&&AuditedRequest) -> bool| asked.0.iter().filter(is_so).count();
        let evictions = |code: u16| {
            count(&|request| request.resource == "pods/eviction" && request.verb == "create" && request.code == code)
        };
        let of = |verb: &str, resource: &str| {
            count(&|request| request.resource == resource && request.verb == verb && request.code < 300)
        };
        let pods = env.pods().list(&ListParams::default()).await?.items;
        Ok(Figures {
            not_ended: outcome.err(),
            evicted: evictions(201),
            refused: evictions(429),
            deleted: of("delete", "pods"),
            nodes_made: of("create", "nodes"),
            pending: pods.iter().filter(|pod| is_pending(pod)).count(),
            broken,
            took,
        })
    }
}

fn is_pending(pod: &Pod) -> bool {
    workload::phase(pod) == "Pending"
}

/// What a program has done, and what became of it.
pub struct Figures {
    /// Why it came to no end, if it did not.
    pub not_ended: Option<Error>,
    /// Evictions that were admitted.
    pub evicted: usize,
    /// Evictions that were refused.
    pub refused: usize,
    /// Pods that it deleted by itself.
    pub deleted: usize,
    pub nodes_made: usize,
    /// Pods that are Pending at the end.
    pub pending: usize,
    /// The budgets that fell below their minimum.
    pub broken: Option<Error>,
    took: Duration,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            not_ended,
            evicted,
            refused,
            deleted,
            nodes_made,
            pending,
            broken,
            took,
        } = self;
        let ended = if not_ended.is_none() { "ended" } else { "did not end" };
        let broken = if broken.is_none() { "none" } else { "some" };
        write!(
            f,
            "{ended} in {:.0} s; evicted {evicted}, refused {refused}, deleted by itself {deleted}; budgets broken: {broken}; nodes made {nodes_made}; Pending {pending}",
            took.as_secs_f32()
        )
    }
}

impl Figures {
    fn to_json(&self) -> Value {
        json!({
            "ended": self.not_ended.is_none(),
            "evicted": self.evicted,
            "refused": self.refused,
            "deleted": self.deleted,
            "budgetsBroken": self.broken.is_some(),
            "nodesMade": self.nodes_made,
            "pending": self.pending,
            "seconds": self.took.as_secs(),
        })
    }
}

/// Keeps what came of a scenario for `cargo xtask bench drainers`, if that runs.
fn keep(scenario: &str, without: &Figures, with: &Figures) -> Result<()> {
    let Some(path) = std::env::var_os(FIGURES) else {
        return Ok(());
    };
    let line = json!({ "scenario": scenario, "without": without.to_json(), "with": with.to_json() });
    let mut file = OpenOptions::new().append(true).open(path)?;
    file.write_all(format!("{line}\n").as_bytes())?;
    Ok(())
}

/// Prints how the program's log ends, where it did not come to its end.
fn show_log(program: &str, process: &Process, outcome: &Result<()>) {
    if outcome.is_err() {
        println!("{program}'s log ends with:\n{}", process.log_tail(25));
    }
}

/// Runs a scenario without drain-lock and with it, prints what came of each, and judges.
pub async fn compare(name: &str, scenario: impl AsyncFn(&Stage) -> Result<Figures>) -> Result<()> {
    compare_configured(name, &json!({}), scenario).await
}

/// The same with this configuration of drain-lock's.
pub async fn compare_configured(
    name: &str,
    config: &Value,
    scenario: impl AsyncFn(&Stage) -> Result<Figures>,
) -> Result<()> {
    let run = async |stage: Stage| {
        let figures = scenario(&stage).await;
        stage.end().await?;
        figures
    };
    let (without, with) = futures::future::try_join(async { run(Stage::without().await?).await }, async {
        run(Stage::with(config).await?).await
    })
    .await?;
    println!("{name}, without: {without}\n{name}, with: {with}");
    if let Some(not_ended) = &without.not_ended {
        println!("{name}, without: {not_ended:#}");
    }
    keep(name, &without, &with)?;
    judge(&without, &with)
}

fn judge(without: &Figures, with: &Figures) -> Result<()> {
    if let Some(not_ended) = &with.not_ended {
        ensure!(
            without.not_ended.is_some(),
            "it ends without drain-lock only: {not_ended:#}"
        );
    }
    // A program that deletes pods by itself, or their node, breaks budgets with or without us.
    if let Some(broken) = &with.broken {
        ensure!(without.broken.is_some(), "{broken:#}");
    }
    ensure!(with.deleted <= without.deleted, "it deletes {} pods", with.deleted);
    // Who goes on to the end evicts what who gives up does not.
    let ends_alone = without.not_ended.is_some() && with.not_ended.is_none();
    // Where a pod lands is chance: on another node that is yet to be emptied, it is evicted again.
    let most = without.evicted + without.evicted.div_ceil(2);
    ensure!(ends_alone || with.evicted <= most, "it evicts {} pods", with.evicted);
    ensure!(
        with.nodes_made <= without.nodes_made,
        "it makes {} nodes",
        with.nodes_made
    );
    ensure!(with.pending <= without.pending, "{} pods are Pending", with.pending);
    Ok(())
}
