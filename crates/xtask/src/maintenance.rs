//! What maintenance does to a node: it is drained, rebooted and uncordoned, by the commands that an admin types.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kube::Client;
use nodeward_testkit::kubectl::Kubectl;
use nodeward_testkit::reboot;

/// How often a drain's output is looked at; durations of drains are exact to this.
const LOOKS_EVERY: Duration = Duration::from_millis(50);

/// How long `kubectl uncordon` may take.
const UNCORDONED_WITHIN: Duration = Duration::from_secs(30);

/// The label that pods of StatefulSets have.
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// By which command a node is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drainer {
    /// `kubectl drain`.
    Kubectl,
    /// `kubectl drain` for the pods of StatefulSets, then for all: in the order of many an upgrader.
    StatefulSetsFirst,
    /// `kubectl nodeward drain`.
    Nodeward,
}

impl Drainer {
    /// The arguments of kubectl, for one command after another.
    fn commands(self, node: &str) -> Vec<Vec<String>> {
        let own = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        let drain = own(&["drain", node, "--ignore-daemonsets", "--delete-emptydir-data"]);
        match self {
            Self::Kubectl => vec![drain],
            Self::StatefulSetsFirst => vec![[drain.clone(), own(&["--pod-selector", POD_INDEX])].concat(), drain],
            Self::Nodeward => vec![own(&["nodeward", "drain", node, "--delete-emptydir-data"])],
        }
    }
}

/// How far the maintenance of a node is.
#[derive(Debug)]
pub enum Step {
    /// The drain begins, with this command.
    Begins(String),
    /// The command says this.
    Says(String),
    /// The drain has ended, after this long.
    Drained(Duration),
    /// The node has rebooted and is Ready; it is about to be uncordoned.
    Rebooted,
    /// It is uncordoned: all is done.
    Done,
}

/// Maintains nodes.
#[derive(Clone)]
pub struct Maintenance {
    pub client: Client,
    pub kubectl: Kubectl,
    pub drainer: Drainer,
    /// How long a node is away while it reboots.
    pub away: Duration,
}

impl Maintenance {
    /// Drains, reboots and uncordons a node, and tells each step. Waits for the drain as long as it takes.
    pub async fn of(&self, node: &str, mut tell: impl FnMut(Step)) -> Result<()> {
        let began = Instant::now();
        for command in self.drainer.commands(node) {
            self.follow(command, &mut tell).await?;
        }
        tell(Step::Drained(began.elapsed()));
        reboot::reboot(&self.client, node, self.away).await?;
        tell(Step::Rebooted);
        self.uncordon(node).await?;
        tell(Step::Done);
        Ok(())
    }

    /// Runs a command of kubectl to its end, and tells what it says.
    async fn follow(&self, command: Vec<String>, tell: &mut impl FnMut(Step)) -> Result<()> {
        let mut drain = self.kubectl.start(command)?;
        tell(Step::Begins(drain.command().to_owned()));
        let succeeded = loop {
            let ended = drain.ended();
            for line in drain.news() {
                tell(Step::Says(line));
            }
            if let Some(succeeded) = ended {
                break succeeded;
            }
            tokio::time::sleep(LOOKS_EVERY).await;
        };
        if !succeeded {
            bail!("{} failed:\n{}", drain.command(), drain.text().trim_end());
        }
        Ok(())
    }

    /// `kubectl uncordon`.
    pub async fn uncordon(&self, node: &str) -> Result<()> {
        self.kubectl.run(["uncordon", node], UNCORDONED_WITHIN).await.map(drop)
    }
}
