//! Candidates for the word that is being written, from the cluster where they are names of objects.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::config::Kubeconfig;
use kube::{Api, ResourceExt};
use nodeward_api::{DisruptionHold, NodeDrain};
use serde::de::DeserializeOwned;

use super::wanted::{Asked, Wanted};
use crate::args::{Global, Output, RequestTimeout};
use crate::cluster::Cluster;

/// Who waits for a shell to complete a word does not wait long.
const PATIENCE: Duration = Duration::from_secs(2);

/// More names are no help to anybody.
const MOST: u32 = 500;

type Candidate = (String, Option<String>);

/// The candidates that begin as the word does.
pub(super) async fn candidates(asked: &Asked, wanted: &Wanted) -> Vec<Candidate> {
    let mut found = match wanted {
        Wanted::These(these) => these.clone(),
        Wanted::Contexts => contexts(asked),
        Wanted::Files | Wanted::Nothing => Vec::new(),
        Wanted::Nodes | Wanted::Releasable | Wanted::Budgets | Wanted::Namespaces => {
            let answer = tokio::time::timeout(PATIENCE, objects(asked, wanted));
            answer.await.ok().flatten().unwrap_or_default()
        }
    };
    found.retain(|(name, _)| name.starts_with(&asked.begun) && !asked.given.contains(name));
    found
}

async fn objects(asked: &Asked, wanted: &Wanted) -> Option<Vec<Candidate>> {
    let option = |name: &str| asked.options.get(name).cloned();
    let global = Global {
        output: Output::Table,
        kubeconfig: option("kubeconfig").map(Into::into),
        context: option("context"),
        namespace: option("namespace"),
        request_timeout: RequestTimeout(Some(PATIENCE)),
        no_color: true,
    };
    let cluster = Cluster::connect(&global).await.ok()?;
    let client = || cluster.client.clone();
    match wanted {
        Wanted::Nodes => names(&cluster, Api::<Node>::all(client())).await,
        Wanted::Namespaces => names(&cluster, Api::<Namespace>::all(client())).await,
        Wanted::Budgets => {
            let budgets = Api::<PodDisruptionBudget>::namespaced(client(), cluster.one_namespace());
            names(&cluster, budgets).await
        }
        Wanted::Releasable => {
            let holds = Api::<DisruptionHold>::namespaced(client(), cluster.one_namespace());
            let (drains, holds) =
                tokio::join!(names(&cluster, Api::<NodeDrain>::all(client())), names(&cluster, holds));
            let mut all = drains.unwrap_or_default();
            all.extend(
                holds
                    .into_iter()
                    .flatten()
                    .map(|(name, help)| (format!("hold/{name}"), help)),
            );
            Some(all)
        }
        Wanted::These(_) | Wanted::Contexts | Wanted::Files | Wanted::Nothing => None,
    }
}

async fn names<K>(cluster: &Cluster, api: Api<K>) -> Option<Vec<Candidate>>
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let params = ListParams::default().limit(MOST);
    let list = cluster.ask(api.list_metadata(&params)).await.ok()?;
    Some(list.items.iter().map(|object| (object.name_any(), None)).collect())
}

fn contexts(asked: &Asked) -> Vec<Candidate> {
    let kubeconfig = match asked.options.get("kubeconfig") {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    let contexts = kubeconfig.map(|kubeconfig| kubeconfig.contexts).unwrap_or_default();
    contexts.into_iter().map(|context| (context.name, None)).collect()
}
