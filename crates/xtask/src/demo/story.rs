//! The demo, in parts: one fleet is upgraded by plain `kubectl drain` with all four operators installed by one release of the
//! chart, and each of them has something to do. With drain-keeper alone its part is played, and without operators the drains that
//! get stuck.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use console::Style;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use nodeward_api::annotation::{DRAIN_CLOCK, LOCKED_BY};
use nodeward_api::condition::DRAIN_BLOCKED;
use nodeward_api::{DrainLedger, NodeDrain, drain_ledger};
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::operator::Operator;
use nodeward_testkit::progress::Progress;
use nodeward_testkit::remediator::{Behavior, Remediator};
use nodeward_testkit::{fleet, lock, wait};
use tokio::sync::watch;

use super::drains::Drains;
use super::environment::Environment;
use super::narrator::{Line, Narrator, Voice};
use super::outcome::left_after;
use super::promise::{self, Data, Outcomes, Seen, Stuck};
use super::{Binaries, Cast, Played, ceph, follow, page, scenario, wedge};
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

/// How often three drains at once are begun without drain-lock, should they end by luck: one node may get both budgets before the
/// others ask.
const ROUNDS: usize = 4;

/// When somebody gives up a drain that nobody unblocks.
const GIVES_UP_AFTER: Duration = Duration::from_secs(30);

/// What each node of the databases has.
const MEMBERS: &str =
    "Each has a member of kafka and one of mongo. Of each, one may be down, and a member is back only with its node.";

/// What keeps a node from draining.
const OBSTACLES: &str = "On app-1 run a cart and a ledger, one replica each, whose budgets allow no disruption, ever (minAvailable: 1), and an \
    upload with a finalizer that nobody removes. The cart's Deployment can roll: it has a readiness probe, and starts a new pod first.";

/// With a Ceph unless there is none to be had.
pub async fn play(env: &Environment, cast: Cast, binaries: &Binaries, has_ceph: bool) -> Result<Played> {
    let storage = match &env.plane {
        Some(plane) if has_ceph => Some(Storage::start(plane).await?),
        _ => None,
    };
    let progress = Progress::begin("fleet and workloads");
    scenario::create(env, cast, &progress).await?;
    progress.done("all pods are Ready");
    let mut operators = Vec::new();
    if cast != Cast::Nobody {
        if env.plane.is_none() {
            // With the run's label, by which it is found again.
            env.create_namespace("system").await?;
        }
        let installations = scenario::installations(env, cast, binaries, storage.as_ref())?;
        operators = install::start_all(&installations, &env.cluster).await?;
    }
    if let Some(storage) = &storage {
        storage.is_open().await?;
    }
    if cast == Cast::All {
        create_health_check(&env.client(), &serde_json::from_value(scenario::health_check())?).await?;
    }
    let plugin = binaries.get("kubectl-nodeward").and_then(|plugin| plugin.parent());
    let mut story = Story::begin(env, cast, plugin, storage)?;
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
    cast: Cast,
    /// How many parts have begun.
    parts: usize,
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
    stuck: Stuck,
    /// A drain that failed, in its own words.
    failed: Option<String>,
    _following: Vec<tokio::task::JoinSet<()>>,
    _remediator: Option<Remediator>,
}

impl<'a> Story<'a> {
    fn begin(env: &'a Environment, cast: Cast, plugins: Option<&Path>, storage: Option<Storage>) -> Result<Self> {
        let client = env.client();
        let mut kubectl = Kubectl::of(&env.cluster)?.columns(page::width());
        if let Some(plugins) = plugins {
            kubectl = kubectl.plugins(plugins);
        }
        let maintenance = Maintenance {
            client: client.clone(),
            kubectl: kubectl.clone(),
            drainer: Drainer::Kubectl,
            away: AWAY,
        };
        let of_ceph = storage.as_ref().map(|storage| storage.namespace().to_owned());
        let prefix = env.prefix.clone();
        // Ceph's are judged by the storage itself.
        let is_watched = move |namespace: &str| namespace.starts_with(&prefix) && Some(namespace) != of_ceph.as_deref();
        let narrator = Arc::new(Narrator::new(env));
        let nodes = match cast {
            Cast::All => 6 + storage.as_ref().map_or(0, Storage::hosts),
            Cast::KeeperAlone => 1,
            Cast::Nobody => 4,
        };
        let mut following = vec![follow::events(&narrator, env), follow::conditions(&narrator, env)];
        if cast == Cast::All {
            following.push(follow::lock::drains(&narrator, env));
        }
        let remediator = || {
            Remediator::start(&client, scenario::REMEDIATOR, scenario::REMEDIATORS, |_| {
                Behavior::POWER_CYCLE.after(Duration::from_secs(1))
            })
        };
        Ok(Self {
            drains: Drains::new(&narrator, &maintenance, nodes),
            seen: promise::watch(env, cast),
            budgets: BudgetWatch::start(client.clone(), is_watched),
            _following: following,
            _remediator: (cast == Cast::All).then(remediator),
            env,
            cast,
            parts: 0,
            client,
            narrator,
            kubectl,
            storage,
            began: Instant::now(),
            took: Duration::ZERO,
            data: None,
            stuck: Stuck::default(),
            failed: None,
        })
    }

    async fn tell(&mut self, operators: &[Operator]) -> Result<()> {
        self.introduce();
        match self.cast {
            Cast::All => {
                self.queue().await?;
                self.unblock(operators).await?;
                self.remediate().await?;
                self.storage().await?;
            }
            Cast::KeeperAlone => self.unblock(operators).await?,
            Cast::Nobody => {
                self.wedge().await?;
                self.leave_blocked().await?;
            }
        }
        self.took = self.began.elapsed();
        self.narrator.finish();
        Ok(())
    }

    fn introduce(&self) {
        println!();
        let hosts = self.storage.as_ref().map(Storage::hosts);
        let fleet = match (self.cast, hosts) {
            (Cast::KeeperAlone, _) => "A node with applications is upgraded".to_owned(),
            (_, None) => "A fleet is upgraded: three nodes with databases, three with applications".to_owned(),
            (_, Some(hosts)) => {
                format!(
                    "A fleet is upgraded: three nodes with databases, three with applications, {hosts} hosts of a real Ceph"
                )
            }
        };
        let operators = match (self.cast, hosts) {
            (Cast::All, Some(_)) => {
                "All four operators run, installed by one helm install, each under its own ServiceAccount."
            }
            (Cast::All, None) => {
                "Three operators (there is no Ceph here, so that ceph-pdb is left out) run, installed by one helm install, each under \
                 its own ServiceAccount."
            }
            (Cast::KeeperAlone, _) => "drain-keeper runs, installed by helm, under its own ServiceAccount.",
            (Cast::Nobody, _) => "No operator runs.",
        };
        self.preface(&[
            &format!("{fleet}."),
            "Each node is drained by kubectl drain, rebooted, and uncordoned.",
            operators,
            "Times are short, so that you need not wait: what takes seconds here takes minutes in a cluster.",
        ]);
        if !self.env.prefix.is_empty() {
            let prefix = &self.env.prefix;
            self.preface(&[&format!(
                "All names begin with {prefix}, which is left out below. All of it is removed at the end."
            )]);
        }
    }

    fn preface(&self, lines: &[&str]) {
        for line in lines {
            self.narrator.preface(line);
        }
    }

    fn part(&mut self, headline: &str, lines: &[&str]) {
        self.parts += 1;
        self.narrator.title(&format!("{}. {headline}", self.parts));
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
        self.part(
            "Three nodes are drained at once: drain-lock",
            &[
                MEMBERS,
                "Without drain-lock one node gets kafka, another mongo, and both wait for ever: cargo xtask demo --without.",
                "Look at: the tickets, and what each node waits for.",
            ],
        );
        let began = Instant::now();
        let (client, shell) = (self.client.clone(), self.shell());
        let moment = async move {
            wait::until("two drains to wait", COMES_WITHIN, || async {
                let drains: Api<NodeDrain> = Api::all(client.clone());
                let drains = drains.list(&ListParams::default()).await?.items;
                let waiting = drains.iter().filter(|drain| promise::waits_for_another(drain)).count();
                ensure!(waiting >= 2, "{waiting} wait");
                Ok(())
            })
            .await?;
            shell.run(["nodeward", "status"]).await
        };
        let nodes = scenario::databases(self.env).into_iter().zip(scenario::BEGIN);
        self.drain(nodes, moment).await?;
        scenario::members_ready(self.env).await?;
        self.result(&format!(
            "{} nodes are upgraded after {} s. Nobody waited in a circle, and never was more than one member of a database down.",
            self.upgraded(),
            began.elapsed().as_secs()
        ));
        Ok(())
    }

    /// The same without drain-lock, until some wait for each other.
    async fn wedge(&mut self) -> Result<()> {
        self.part("Three nodes are drained at once", &[MEMBERS]);
        while self.stuck.rounds < ROUNDS && self.stuck.wedge == 0 {
            self.stuck.rounds += 1;
            let counts = self.drains.counts();
            self.drains
                .begin(scenario::databases(self.env).into_iter().zip(scenario::BEGIN));
            let waits = tokio::select! {
                failed = self.drains.ended() => {
                    self.failed = self.failed.take().or(failed);
                    Vec::new()
                }
                waits = wedge::wedge(self.env, &counts) => waits?,
                () = tokio::time::sleep(PATIENCE) => bail!("the drains neither end nor wait for each other for ever"),
            };
            if self.failed.is_some() {
                break;
            }
            if waits.is_empty() {
                self.result("They ended by luck: no two of them ever had one budget each.");
                scenario::members_ready(self.env).await?;
                lock(&counts).maintained = 0;
                continue;
            }
            for wait in &waits {
                let line = Line::plain(wait.text()).look(Style::new().red());
                self.narrator.remark(Voice::Observer, &wait.node, line);
            }
            self.stuck.wedge = waits.len();
            self.result("None of these can go on before another has, and kubectl goes on asking every 5 s for ever.");
        }
        self.drains.interrupt().await;
        Ok(())
    }

    /// The same without drain-keeper, until somebody gives it up.
    async fn leave_blocked(&mut self) -> Result<()> {
        self.part("A node does not drain", &[OBSTACLES]);
        let node = self.env.named(scenario::STUCK);
        self.drains.begin([(node.clone(), Duration::ZERO)]);
        if let Ok(failed) = tokio::time::timeout(GIVES_UP_AFTER, self.drains.ended()).await {
            self.failed = self.failed.take().or(failed);
        }
        self.drains.interrupt().await;
        let pods: Api<Pod> = Api::all(self.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let left = pods.list(&on_node).await?.items;
        let full_name = |pod: &Pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
        let left = left.iter().map(full_name).filter(|pod| self.env.is_ours(pod));
        self.stuck.left = left.map(|pod| self.narrator.short(&pod)).collect();
        self.result(&format!(
            "{} is not drained after {} s, and nobody says why. Still there: {}.",
            scenario::STUCK,
            GIVES_UP_AFTER.as_secs(),
            self.stuck.left.join(", ")
        ));
        Ok(())
    }

    async fn unblock(&mut self, operators: &[Operator]) -> Result<()> {
        self.part(
            "A node does not drain: drain-keeper",
            &[
                OBSTACLES,
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
        let looks = look_at_singleton(self.env, self.seen.handle());
        tokio::select! {
            drained = self.drain([(node, Duration::ZERO)], moment) => drained?,
            never = looks => match never {},
        }
        let forced = promise::Forced::of(operators).await?;
        let (looks, gaps) = {
            let seen = self.seen.read();
            (seen.looks, seen.gaps.len())
        };
        self.result(&format!(
            "{} is upgraded. A rollout moved the cart: at {gaps} of {looks} looks, one a second, no pod of it was Ready. By the policy in \
             drain-keeper's configuration, it overrode {} budget and removed the finalizers of {} pod.",
            scenario::STUCK, forced.overridden, forced.removed
        ));
        Ok(())
    }

    async fn remediate(&mut self) -> Result<()> {
        self.part(
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
            until_ready_is(&nodes, &name, "Unknown").await?;
            narrator.remark(Voice::Machine, &name, Line::plain("is not Ready any more"));
            until_ready_is(&nodes, &name, "True").await?;
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
        self.part(
            "All storage nodes are drained at once: ceph-pdb",
            &[
                "Each of three hosts has an OSD, and of each object one copy of three. Two are needed to read and write it. Clients \
                 write all the while.",
                "Look at: while a host is away, and until its data is complete again, the budgets of the others are closed.",
            ],
        );
        let hosts = (0..storage.hosts()).map(|host| storage.node(host)).collect::<Vec<_>>();
        let begin = (0..).map(|number| ONE_AFTER_THE_OTHER * number);
        let (narrator, writer) = (Arc::clone(&self.narrator), ceph::Writer::default());
        let mut follower = ceph::Follower::new(storage.rook(), &narrator);
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
        let text = "everything is as before; all that was written is read back";
        narrator.tell(Voice::Ceph, "", [Line::plain(text)]);
        let data = Data {
            without_service: follower.without_service(),
            evicted: storage.evicted(),
            unsafe_evictions: storage.broken(),
            written,
            failed_writes,
            lost: ceph::lost(ceph, written).await?,
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
        let mut left = Vec::new();
        if self.cast != Cast::Nobody {
            let progress = Progress::begin("the operators clean up after themselves");
            left = left_after("nothing to be left", CLEAN_WITHIN, || self.left()).await?;
            progress.done(if left.is_empty() {
                "nothing is left"
            } else {
                "something is left"
            });
        }
        let (upgraded, of, refused) = {
            let counts = self.drains.counts();
            let counts = lock(&counts);
            (counts.maintained, counts.of, counts.refused)
        };
        let seen = self.seen.read().clone();
        let forced = match self.cast {
            Cast::Nobody => promise::Forced::default(),
            Cast::All | Cast::KeeperAlone => promise::Forced::of(operators).await?,
        };
        Ok(Outcomes {
            cast: self.cast,
            stuck: self.stuck.clone(),
            upgraded,
            of,
            took: self.took,
            refused,
            forced,
            seen,
            data: self.data.clone(),
            violations: self.budgets.violations(),
            left,
            failed: self.failed.clone(),
        })
    }

    /// What the operators should have cleaned up, and have not.
    async fn left(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        let nodes: Api<Node> = Api::all(self.client.clone());
        for node in nodes.list(&ListParams::default().labels(&self.env.ours())).await? {
            if fleet::condition(&node, DRAIN_BLOCKED).is_some() {
                left.push(format!("{}: condition {DRAIN_BLOCKED}", node.name_any()));
            }
            if node.annotations().contains_key(DRAIN_CLOCK) {
                left.push(format!("{}: annotation {DRAIN_CLOCK}", node.name_any()));
            }
        }
        if self.cast != Cast::All {
            return Ok(left);
        }
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

/// Notes once a second whether a pod of the singleton is Ready.
async fn look_at_singleton(env: &Environment, seen: watch::Sender<Seen>) -> Infallible {
    loop {
        let is_ready = scenario::singleton_is_ready(env).await;
        seen.send_modify(|seen| seen.look_at_singleton(&is_ready));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Waits until the node's Ready has this status.
async fn until_ready_is(nodes: &Api<Node>, name: &str, status: &str) -> Result<()> {
    wait::until(format!("Ready of {name} to be {status}"), COMES_WITHIN, || async {
        let node = nodes.get(name).await?;
        let ready = fleet::ready_status(&node).context("no Ready condition")?;
        ensure!(ready == status, "it is {ready}");
        Ok(())
    })
    .await
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
