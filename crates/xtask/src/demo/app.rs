//! A workload of an act: a Deployment, and the budget of its pods.

use std::time::Duration;

use anyhow::Result;
use nodeward_testkit::bulk;
use nodeward_testkit::workload::{self, Budget, PodTemplate};

use super::environment::Environment;

/// How long all pods may take to be Ready at first.
const READY_WITHIN: Duration = Duration::from_secs(90);

pub struct App {
    /// As [`Environment::create_namespace`] takes it.
    pub namespace: &'static str,
    pub name: &'static str,
    pub replicas: u32,
    pub pods: PodTemplate,
    /// Without its selector, which [`App::create`] adds.
    pub budget: Option<Budget>,
}

impl App {
    /// In its namespace, which exists.
    pub async fn create(&self, env: &Environment) -> Result<()> {
        let namespace = env.named(self.namespace);
        let deployment = self.pods.deployment(&namespace, self.name, self.replicas)?;
        bulk::create_one(env.client(), deployment).await?;
        if let Some(budget) = self.budget.clone() {
            bulk::create_one(env.client(), budget.of(self.name).build()?).await?;
        }
        Ok(())
    }

    /// Waits until its pods are Ready, and its budget has counted them.
    pub async fn ready(&self, env: &Environment) -> Result<()> {
        let (client, namespace) = (env.client(), env.named(self.namespace));
        let count = usize::try_from(self.replicas)?;
        workload::ready_pods(&client, &namespace, self.name, count, READY_WITHIN).await?;
        if self.budget.is_some() {
            let counted = i32::try_from(self.replicas)?;
            workload::counted_budget(&client, &namespace, self.name, counted, READY_WITHIN).await?;
        }
        Ok(())
    }
}
