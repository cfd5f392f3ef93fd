//! The replicas of one operator, each with a proxy of its own in front of the API server.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use nodeward_testkit::operator::Operator;
use nodeward_testkit::prometheus::Job;
use nodeward_testkit::proxy::{Fault, Proxy, Rule};
use nodeward_testkit::{Cluster, ControlPlane};

use super::cluster::SYSTEM;
use crate::install::{self, Installation};

/// How many of an operator run: one leads, the other is a standby.
pub const REPLICAS: usize = 2;

const READY_WITHIN: Duration = Duration::from_mins(1);

pub struct Replicas {
    operator: &'static str,
    all: Vec<(Proxy, Operator)>,
}

impl Replicas {
    /// Installs the operator and starts its replicas; [`Replicas::ready`] waits for them.
    pub async fn start(installation: &Installation, plane: &ControlPlane) -> Result<Self> {
        let cluster = Cluster::from(plane);
        let first = installation.install_for(&cluster).await?;
        let mut all = Vec::new();
        for spec in [first, installation.standby()] {
            let proxy = Proxy::start(plane).await?;
            let operator = spec.through(&proxy.url()).start(&cluster).await?;
            all.push((proxy, operator));
        }
        Ok(Self {
            operator: installation.operator,
            all,
        })
    }

    pub async fn ready(&self) -> Result<()> {
        for (_, operator) in &self.all {
            operator.ready(READY_WITHIN).await?;
        }
        Ok(())
    }

    /// What Prometheus is told of them.
    pub fn job(&self) -> Job {
        Job {
            component: self.operator,
            replicas: self.operators().map(Operator::admin_address).collect(),
        }
    }

    pub fn operators(&self) -> impl Iterator<Item = &Operator> {
        self.all.iter().map(|(_, operator)| operator)
    }

    /// So many of a replica's next writes fail in this way.
    pub fn fail_writes(&self, replica: usize, fault: Fault, count: u32) {
        self.all[replica].0.inject(Rule::new(fault).writes().times(count));
    }

    pub fn break_watches(&self, replica: usize) {
        self.all[replica].0.drop_watches();
    }

    /// Kills a replica, and starts it again.
    pub fn kill(&self, replica: usize) -> Result<()> {
        let (_, operator) = &self.all[replica];
        ensure!(
            operator.process().is_running(),
            "{} had ended by itself",
            operator.process().name()
        );
        operator.process().restart()
    }

    /// Kills the one that leads; nobody, where none does just now.
    pub async fn kill_leader(&self, client: &Client) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), SYSTEM);
        let lease = leases.get_opt(self.operator).await?;
        let leader = lease.and_then(|lease| lease.spec?.holder_identity);
        let is_leader = |operator: &Operator| Some(operator.process().name()) == leader.as_deref();
        self.operators()
            .position(is_leader)
            .map_or(Ok(()), |replica| self.kill(replica))
    }

    /// No further request fails.
    pub fn heal(&self) {
        for (proxy, _) in &self.all {
            proxy.heal();
        }
    }

    /// Ends all, each of which must end well and without ever having panicked.
    pub async fn end(&self) -> Result<()> {
        for operator in self.operators() {
            install::stop(operator).await?;
            let has_panicked = operator.log().contains("panicked");
            ensure!(!has_panicked, "{} has panicked", operator.process().name());
        }
        Ok(())
    }

    /// The ends of their logs.
    pub fn logs(&self) -> String {
        let of = |operator: &Operator| {
            let process = operator.process();
            format!("{} says:\n{}\n", process.name(), process.log_tail(40))
        };
        self.operators().map(of).collect()
    }
}
