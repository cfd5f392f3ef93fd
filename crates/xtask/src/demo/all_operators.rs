//! An act, in parts: one fleet is upgraded by plain `kubectl drain` with all four operators installed by one release of the
//! chart, and each of them has something to do.

mod outcome;
mod scenario;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use console::Style;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use nodeward_api::annotation::LOCKED_BY;
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_api::{DrainLedger, NodeDrain, drain_ledger};
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::operator::Operator;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::remediator::{Behavior, Remediator};
use nodeward_testkit::{fleet, lock, wait};

use self::outcome::{Data, Outcomes, Seen};
use super::ceph_drain::{follow::Follower, load};
use super::drains::Drains;
use super::environment::Environment;
use super::narrator::{Line, Narrator, Voice};
use super::outcome::left_after;
use super::parallel_drains::{self, scenario as databases};
use super::upgrade::{self, failures};
use super::{Binaries, Played, page};
use crate::bench::create_health_check;
use crate::budget_watch::BudgetWatch;
use crate::install;
use crate::maintenance::{Drainer, Maintenance};
use crate::soak::drains::storage::Storage;
use crate::watch::Watched;

/// How long a node is away while it reboots.
const AWAY: Duration = Duration::from_millis(1500);

/// How long a part may take at all.
const PATIENCE: Duration = Duration::from_mins(4);

/// How long a moment that is waited for may take to come.
const COMES_WITHIN: Duration = Duration::from_mins(2);

/// How long all operators may take to clean up.
const CLEAN_WITHIN: Duration = Duration::from_mins(1);

/// How long a command of the plugin may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Between the drains of Ceph's hosts: somebody types three commands in three terminals.
const ONE_AFTER_THE_OTHER: Duration = Duration::from_millis(700);

/// With a Ceph unless there is none to be had.
pub async fn play(env: &Environment, binaries: &Binaries, has_ceph: bool) -> Result<Played> {
    let plane = env.plane.as_ref().context("a control plane of its own is needed")?;
    let storage = if has_ceph {
        Some(Storage::start(plane).await?)
    } else {
        None
    };
    let progress = Progress::begin("fleet and workloads");
    scenario::create(env, &progress).await?;
    progress.done("all pods are Ready");
    let installations = scenario::installations(env, binaries, storage.as_ref())?;
    let operators = install::start_all(&installations, &env.cluster).await?;
    if let Some(storage) = &storage {
        storage.is_open().await?;
    }
    create_health_check(&env.client(), &serde_json::from_value(scenario::health_check())?).await?;
    let plugin = binaries.get("kubectl-nodeward").and_then(|plugin| plugin.parent());
    let mut story = Story::begin(env, plugin.context("the plugin is not built")?, storage)?;
    story.tell(&operators).await?;
    let outcomes = story.end(&operators).await?;
    Ok(Played {
        outcome: outcomes.outcome(),
        operators,
        _storage: story.storage,
    })
}

struct Story<'a> {
    env: &'a Environment,
    client: Client,
    narrator: Arc<Narrator>,
    kubectl: Kubectl,
    drains: Drains,
    seen: Watched<Seen>,
    budgets: BudgetWatch,
    storage: Option<Storage>,
    began: Instant,
    took: Duration,
    data: Option<Data>,
    /// A drain that failed, in its own words.
    failed: Option<String>,
    _following: Vec<tokio::task::JoinSet<()>>,
    _remediator: Remediator,
}

impl<'a> Story<'a> {
    fn begin(env: &'a Environment, plugins: &Path, storage: Option<Storage>) -> Result<Self> {
        let client = env.client();
        let kubectl = Kubectl::of(&env.cluster)?.plugins(plugins).columns(page::width());
        let maintenance = Maintenance {
            client: client.clone(),
            kubectl: kubectl.clone(),
            drainer: Drainer::Kubectl,
            away: AWAY,
        };
        let of_ceph = storage.as_ref().map(|storage| storage.namespace().to_owned());
        let narrator = Arc::new(Narrator::new(env));
        Ok(Self {
            drains: Drains::new(&narrator, &maintenance, 6 + storage.as_ref().map_or(0, Storage::hosts)),
            seen: outcome::watch(&client),
            // Ceph's are judged by the storage itself.
            budgets: BudgetWatch::of_namespaces(client.clone(), move |namespace| Some(namespace) != of_ceph.as_deref()),
            _following: vec![
                parallel_drains::follow::drains(&narrator, env),
                upgrade::follow::events(&narrator, env),
                upgrade::follow::conditions(&narrator, env),
                failures::tell_events(env, &narrator),
            ],
            _remediator: Remediator::start(&client, scenario::REMEDIATOR, scenario::REMEDIATORS, |_| {
                Behavior::POWER_CYCLE.after(Duration::from_secs(1))
            }),
            env,
            client,
            narrator,
            kubectl,
            storage,
            began: Instant::now(),
            took: Duration::ZERO,
            data: None,
            failed: None,
        })
    }

    async fn tell(&mut self, operators: &[Operator]) -> Result<()> {
        self.introduce();
        self.queue().await?;
        self.unblock(operators).await?;
        self.remediate().await?;
        self.storage().await?;
        self.took = self.began.elapsed();
        self.narrator.finish();
        Ok(())
    }

    fn introduce(&self) {
        println!();
        let (hosts, operators) = match &self.storage {
            Some(storage) => (
                format!(", {} hosts of a real Ceph", storage.hosts()),
                "All four operators",
            ),
            None => (
                String::new(),
                "Three operators (there is no Ceph here, so that ceph-pdb is left out)",
            ),
        };
        self.preface(&[
            &format!("A fleet is upgraded: three nodes with databases, three with applications{hosts}."),
            "Each node is drained by kubectl drain, rebooted, and uncordoned.",
            &format!("{operators} run, installed by one helm install, each under its own ServiceAccount."),
            "Times are short, so that you need not wait: what takes seconds here takes minutes in a cluster.",
        ]);
    }

    fn preface(&self, lines: &[&str]) {
        for line in lines {
            self.narrator.preface(line, 0);
        }
    }

    fn act(&self, number: usize, headline: &str, lines: &[&str]) {
        self.narrator.title(&format!("{number}. {headline}"));
        self.preface(lines);
        println!();
    }

    /// Drains these nodes, and waits until all of that is done and what else is waited for has come.
    async fn drain(
        &mut self,
        nodes: impl IntoIterator<Item = (String, Duration)>,
        meanwhile: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        self.drains.begin(nodes);
        let ended = tokio::time::timeout(PATIENCE, self.drains.ended());
        let (ended, came) = tokio::join!(ended, meanwhile);
        came?;
        if let Some(failure) = ended.context("the drains do not end")? {
            self.failed.get_or_insert(failure);
        }
        Ok(())
    }

    async fn queue(&mut self) -> Result<()> {
        self.act(
            1,
            "Three nodes are drained at once: drain-lock",
            &[
                "Each has a member of kafka and one of mongo. Of each, one may be down, and a member is back only with its node.",
                "Without drain-lock one node gets kafka, another mongo, and both wait for ever: cargo xtask demo --act parallel-drains.",
                "Look at: the tickets, and what each node waits for.",
            ],
        );
        let began = Instant::now();
        let (client, shell) = (self.client.clone(), self.shell());
        let moment = async move {
            wait::until("two drains to wait", COMES_WITHIN, || async {
                let drains: Api<NodeDrain> = Api::all(client.clone());
                let drains = drains.list(&ListParams::default()).await?.items;
                let waiting = drains.iter().filter(|drain| outcome::waits_for_another(drain)).count();
                ensure!(waiting >= 2, "{waiting} wait");
                Ok(())
            })
            .await?;
            shell.run(["nodeward", "status"]).await
        };
        let nodes = databases::nodes(self.env).into_iter().zip(databases::BEGIN);
        self.drain(nodes, moment).await?;
        databases::all_ready(self.env).await?;
        self.result(&format!(
            "{} nodes are upgraded after {} s. Nobody waited in a circle, and never was more than one member of a database down.",
            self.upgraded(),
            began.elapsed().as_secs()
        ));
        Ok(())
    }

    async fn unblock(&mut self, operators: &[Operator]) -> Result<()> {
        self.act(
            2,
            "A node does not drain: drain-keeper",
            &[
                "On app-1 runs a ledger whose budget allows no disruption, ever (one replica, minAvailable: 1), and an upload with a \
                 finalizer that nobody removes.",
                "Look at: drain-keeper says on the Node what is in the way, and when it will do what; then it does.",
            ],
        );
        let node = self.env.named(scenario::STUCK);
        let (client, shell) = (self.client.clone(), self.shell());
        let name = node.clone();
        let moment = async move {
            wait::until("drain-keeper to say what is in the way", COMES_WITHIN, || async {
                let nodes: Api<Node> = Api::all(client.clone());
                let blocked = nodes.get(&name).await?;
                fleet::condition(&blocked, DRAIN_BLOCKED)
                    .map(drop)
                    .context("it does not")
            })
            .await?;
            shell.run(["nodeward", "why", &name]).await
        };
        self.drain([(node, Duration::ZERO)], moment).await?;
        let (overridden, removed) = outcome::forced(operators).await?;
        self.result(&format!(
            "{} is upgraded. By the policy in drain-keeper's configuration, it overrode {overridden} budget and removed the \
             finalizers of {removed} pod.",
            scenario::STUCK
        ));
        Ok(())
    }

    async fn remediate(&mut self) -> Result<()> {
        self.act(
            3,
            "A node dies while another is upgraded: health-check",
            &[
                &format!(
                    "A NodeHealthCheck has nodes rebooted that are silent for too long, unless more than {}% of the nodes are unhealthy.",
                    scenario::MAX_UNHEALTHY_PERCENT
                ),
                "Look at: app-3 is remediated; app-2, which reboots because it is upgraded, is not.",
            ],
        );
        let [ordinary, dies] = [scenario::ORDINARY, scenario::DIES].map(|name| self.env.named(name));
        fleet::stop_kubelet(&self.client, &dies).await?;
        let text = Line::plain("its heartbeats stop").look(Style::new().red());
        self.narrator.remark(Voice::Machine, &dies, text);
        let (nodes, narrator, name) = (Api::all(self.client.clone()), Arc::clone(&self.narrator), dies.clone());
        let back = async move {
            failures::until_ready_is(&nodes, &name, "Unknown").await?;
            narrator.remark(Voice::Machine, &name, Line::plain("is not Ready any more"));
            failures::until_ready_is(&nodes, &name, "True").await?;
            let text = Line::plain("has been rebooted, and is Ready").look(Style::new().green());
            narrator.remark(Voice::Machine, &name, text);
            Ok(())
        };
        self.drain([(ordinary, Duration::ZERO)], back).await?;
        self.drain([(dies, Duration::ZERO)], async { Ok(()) }).await?;
        let (remediations, most, of) = {
            let seen = self.seen.read();
            (seen.remediations.len(), seen.most_unhealthy, seen.observed)
        };
        self.result(&format!(
            "{remediations} node was remediated. Never were more than {most} of {of} unhealthy. Both nodes are upgraded."
        ));
        Ok(())
    }

    async fn storage(&mut self) -> Result<()> {
        let Some(storage) = self.storage.take() else {
            println!();
            self.preface(&["4. is left out: there is no Ceph here."]);
            return Ok(());
        };
        self.act(
            4,
            "All storage nodes are drained at once: ceph-pdb",
            &[
                "Each of three hosts has an OSD, and of each object one copy of three. Two are needed to read and write it. Clients \
                 write all the while.",
                "Look at: while a host is away, and until its data is complete again, the budgets of the others are closed.",
            ],
        );
        let hosts = (0..storage.hosts()).map(|host| storage.node(host)).collect::<Vec<_>>();
        let begin = (0..).map(|number| ONE_AFTER_THE_OTHER * number);
        let (narrator, writer) = (Arc::clone(&self.narrator), load::Writer::default());
        let mut follower = Follower::new(storage.rook(), &narrator);
        let ceph = storage.rook().ceph();
        let drained = async {
            self.drain(hosts.into_iter().zip(begin), async { Ok(()) }).await?;
            storage.is_at_rest().await
        };
        tokio::select! {
            ended = drained => ended?,
            failed = follower.run() => match failed? {},
            never = writer.run(ceph) => match never {},
        }
        let (written, failed_writes) = writer.written();
        narrator.say(
            Voice::Ceph,
            "",
            "everything is as before; all that was written is read back",
        );
        let data = Data {
            without_service: follower.without_service(),
            evicted: storage.evicted(),
            unsafe_evictions: storage.broken(),
            written,
            failed_writes,
            lost: load::lost(ceph, written).await?,
        };
        self.result(&format!(
            "{} OSDs were evicted, never two at a time. {written} objects were written meanwhile; {} writes failed, and {} objects \
             are lost.",
            data.evicted,
            data.failed_writes.len(),
            data.lost.len()
        ));
        self.data = Some(data);
        drop(follower);
        self.storage = Some(storage);
        Ok(())
    }

    fn upgraded(&self) -> usize {
        lock(&self.drains.counts()).maintained
    }

    fn result(&self, text: &str) {
        self.narrator.result(text);
    }

    fn shell(&self) -> Shell {
        Shell {
            kubectl: self.kubectl.clone(),
            narrator: Arc::clone(&self.narrator),
        }
    }

    async fn end(&self, operators: &[Operator]) -> Result<Outcomes> {
        let progress = Progress::begin("the operators clean up after themselves");
        let left = left_after("nothing to be left", CLEAN_WITHIN, || self.left()).await?;
        progress.done(if left.is_empty() {
            "nothing is left"
        } else {
            "something is left"
        });
        let (upgraded, of, refused) = {
            let counts = self.drains.counts();
            let counts = lock(&counts);
            (counts.maintained, counts.of, counts.refused)
        };
        let seen = self.seen.read().clone();
        let (overridden, removed) = outcome::forced(operators).await?;
        Ok(Outcomes {
            upgraded,
            of,
            took: self.took,
            refused,
            overridden,
            removed,
            seen,
            data: self.data.clone(),
            violations: self.budgets.violations(),
            left,
            failed: self.failed.clone(),
        })
    }

    /// What the operators should have cleaned up, and have not.
    async fn left(&self) -> Result<Vec<String>> {
        let mut left = upgrade::outcome::left_on_nodes(self.env).await?;
        let ledgers: Api<DrainLedger> = Api::all(self.client.clone());
        let claims = ledgers
            .get_opt(drain_ledger::NAME)
            .await?
            .map(|ledger| ledger.spec.claims);
        let claims = claims.into_iter().flatten();
        left.extend(claims.map(|claim| format!("a claim of {}", claim.node)));
        let budgets: Api<PodDisruptionBudget> = Api::all(self.client.clone());
        for budget in budgets.list(&ListParams::default()).await? {
            if let Some(nodes) = budget.annotations().get(LOCKED_BY) {
                left.push(format!("budget {}: {LOCKED_BY} {nodes}", budget.name_any()));
            }
        }
        let remediations = scenario::REMEDIATOR
            .remediation()
            .api(&self.client, Some(scenario::REMEDIATORS));
        let remediations = remediations.list(&ListParams::default()).await?;
        left.extend(remediations.iter().map(|one| format!("remediation {}", one.name_any())));
        Ok(left)
    }
}

/// Runs a command of kubectl's as a person does, and shows what it prints.
struct Shell {
    kubectl: Kubectl,
    narrator: Arc<Narrator>,
}

impl Shell {
    async fn run<const N: usize>(&self, args: [&str; N]) -> Result<()> {
        let printed = self.kubectl.run(args, ANSWERS_WITHIN).await?;
        self.narrator.shell(&format!("kubectl {}", args.join(" ")), &printed);
        Ok(())
    }
}
