//! The answers about all that `why` was asked.

use jiff::Timestamp;
use serde::Serialize;

use super::Why;
use super::budget::WhyBudget;
use super::next::Step;
use super::pod::WhyPod;
use crate::args::{WhyArgs, WhyTarget};
use crate::cluster::Cluster;
use crate::commands::once;
use crate::commands::printed::PrintedCommands;
use crate::failure::Failure;
use crate::text::page::Page;

/// The answer about one target, and what comes next there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WhyAnswer {
    #[serde(flatten)]
    pub target: Explained,
    pub next: Vec<Step>,
}

/// One target, explained.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Explained {
    Node(Box<Why>),
    Pod(Box<WhyPod>),
    Budget(Box<WhyBudget>),
}

impl WhyAnswer {
    pub async fn fetch(cluster: &Cluster, target: &WhyTarget, commands: &PrintedCommands) -> Result<Self, Failure> {
        let target = Explained::fetch(cluster, target).await?;
        Ok(Self {
            next: target.next(commands, Timestamp::now()),
            target,
        })
    }

    /// With the times of the moment at which it is printed; what comes next is of the moment at which it was asked.
    pub fn print(&self, page: &mut Page, commands: &PrintedCommands, now: Timestamp) {
        let Self { target, next } = self;
        match target {
            Explained::Node(why) => why.print(page, next, commands, now),
            Explained::Pod(why) => why.print(page, next, now),
            Explained::Budget(why) => why.print(page, next, now),
        }
    }
}

impl Explained {
    async fn fetch(cluster: &Cluster, target: &WhyTarget) -> Result<Self, Failure> {
        let namespace = |given: &Option<String>| given.clone().unwrap_or_else(|| cluster.one_namespace().to_owned());
        Ok(match target {
            WhyTarget::Node(node) => Self::Node(Box::new(Why::fetch(cluster, node).await?)),
            WhyTarget::Pod { namespace: given, name } => {
                Self::Pod(Box::new(WhyPod::fetch(cluster, &namespace(given), name).await?))
            }
            WhyTarget::Budget { namespace: given, name } => {
                Self::Budget(Box::new(WhyBudget::fetch(cluster, &namespace(given), name).await?))
            }
        })
    }

    /// What comes next, in the order in which it happens.
    pub fn next(&self, commands: &PrintedCommands, now: Timestamp) -> Vec<Step> {
        match self {
            Self::Node(why) => why.next(commands, now),
            Self::Pod(why) => why.next(commands),
            Self::Budget(why) => why.next(commands, now),
        }
    }
}

/// What the command line names, each once.
pub async fn targets(cluster: &Cluster, args: &WhyArgs) -> Result<Vec<WhyTarget>, Failure> {
    let Some(selector) = &args.selector else {
        return Ok(once(&args.targets));
    };
    let nodes = cluster.nodes_with(selector).await?;
    Ok(nodes.into_iter().map(WhyTarget::Node).collect())
}
