//! The applications whose pods drains have to move, each with a budget of its name.

use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use kube::Client;
use nodeward_api::annotation::DRAIN;
use nodeward_api::label::{FORCE_DRAIN, FORCE_DRAIN_NEVER};
use nodeward_testkit::workload::{Budget, PodTemplate, TERMINATES};
use nodeward_testkit::{bulk, workload};

use crate::soak::cluster::name;

/// Their namespace.
pub const APPS: &str = "apps";

/// The first nodes: most applications run on them, and most events meet them.
pub const BUSY: usize = 16;

/// The nodes after those, whose pods stay while the node reboots. Only NodeDrains drain them: without its webhook, for it may
/// be killed, drain-lock cannot hold back the evictions of others.
pub const RETAINING: std::ops::Range<usize> = BUSY..BUSY + 4;

/// How long all pods may take to be Ready at first.
const READY_WITHIN: Duration = Duration::from_mins(3);

#[derive(Clone, Debug)]
pub struct Application {
    pub name: String,
    pub replicas: u32,
    /// The nodes that its pods may run on, no two on one; all, and any number, where it names none.
    nodes: Vec<usize>,
    /// The `maxUnavailable` of its budget.
    pub max_unavailable: usize,
    /// There is no other node than a pod's own for it to run on.
    pub is_pinned: bool,
    /// Its pods stay on a node that is drained, and go down with it.
    pub is_retained: bool,
    /// Nobody may force its pods.
    pub is_never: bool,
}

impl Application {
    fn new(name: String, replicas: u32, max_unavailable: usize) -> Self {
        Self {
            name,
            replicas,
            nodes: Vec::new(),
            max_unavailable,
            is_pinned: false,
            is_retained: false,
            is_never: false,
        }
    }

    fn template(&self) -> PodTemplate {
        let pods = PodTemplate::new().end(TERMINATES);
        let pods = if self.is_retained {
            pods.annotation(DRAIN, "skip")
        } else {
            pods
        };
        if self.nodes.is_empty() {
            return pods;
        }
        let nodes: Vec<String> = self.nodes.iter().map(|node| name(*node)).collect();
        pods.pinned(&self.name, &nodes)
    }

    fn budget(&self) -> Budget {
        let budget = Budget::max_unavailable(APPS, &self.name, self.max_unavailable).of(&self.name);
        if self.is_never {
            budget.label(FORCE_DRAIN, FORCE_DRAIN_NEVER)
        } else {
            budget
        }
    }

    /// Whether its pods may be scaled: what is judged of the others counts them.
    pub const fn is_scaled(&self) -> bool {
        self.nodes.is_empty()
    }
}

/// The applications of a seed.
pub fn draw(seed: u64) -> Vec<Application> {
    let mut rng = Rng::with_seed(seed);
    let mut busy: Vec<usize> = (0..BUSY).collect();
    let mut all = Vec::new();
    // Their nodes overlap, so that drains of several nodes need the same budgets.
    for number in 0..6 {
        rng.shuffle(&mut busy);
        all.push(Application {
            nodes: busy[..4].to_vec(),
            is_pinned: true,
            ..Application::new(format!("pinned-{number}"), 4, 1)
        });
    }
    for number in 0..2 {
        all.push(Application {
            nodes: RETAINING.collect(),
            is_pinned: true,
            is_retained: true,
            ..Application::new(format!("retained-{number}"), 4, 1)
        });
    }
    for number in 0..4 {
        all.push(Application::new(format!("movable-{number}"), 6, 2));
    }
    // Their budgets allow nothing: the one is overridden, the other never.
    for (name, replicas, is_never) in [("strict", 8, false), ("never", 2, true)] {
        all.push(Application {
            nodes: (0..BUSY).collect(),
            is_never,
            ..Application::new(name.to_owned(), replicas, 0)
        });
    }
    all
}

/// Creates them, and waits until their pods are Ready.
pub async fn create(client: &Client, all: &[Application]) -> Result<()> {
    let built = |app: &Application| app.template().deployment(APPS, &app.name, app.replicas);
    bulk::create(client, all.iter().map(built).collect::<Result<Vec<_>>>()?).await?;
    for app in all {
        let count = usize::try_from(app.replicas)?;
        workload::ready_pods(client, APPS, &app.name, count, READY_WITHIN).await?;
    }
    let budgets = all.iter().map(|app| app.budget().build());
    bulk::create(client, budgets.collect::<Result<Vec<_>>>()?).await?;
    for app in all {
        let count = i32::try_from(app.replicas)?;
        workload::counted_budget(client, APPS, &app.name, count, READY_WITHIN).await?;
    }
    Ok(())
}
