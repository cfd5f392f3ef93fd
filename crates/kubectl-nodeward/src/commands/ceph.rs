//! `ceph open`: lets one OSD at a time go although Ceph may not agree, for as long as ceph-pdb is paused.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use nodeward_api::ceph_state::CONFIG_MAP;
use nodeward_api::{CephClusterState, label};
use nodeward_core::pod::PodView;
use serde::Serialize;
use serde_json::{Value, json};

use super::pause::Pauses;
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::text::Style;
use crate::text::page::Page;

/// The component that writes the budgets.
const COMPONENT: &str = "ceph-pdb";

/// The label `app` of OSDs, and the name of the budget of all of them.
const OSD: &str = "rook-ceph-osd";

/// The label of an OSD's pod with its number.
const NUMBER: &str = "osd";

/// What was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Opened {
    #[serde(flatten)]
    pub pauses: Pauses,
    /// The namespace of the CephCluster.
    pub namespace: String,
    /// The budget that lets one OSD at a time go.
    pub budget: String,
    /// OSDs that it leaves out, because their pods are not Ready: counted, they would use it up.
    pub excluded: BTreeSet<String>,
    /// Budgets of failure domains that were deleted.
    pub deleted: Vec<String>,
}

impl Opened {
    /// Pauses ceph-pdb, opens the budget of all OSDs, and deletes those of failure domains behind it: no OSD is ever without one.
    pub async fn open(cluster: &Cluster, reason: &str) -> Result<Self, Failure> {
        let namespace = cluster.one_namespace().to_owned();
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), &namespace);
        let ours = ListParams::default().labels(&format!("{}={}", label::MANAGED_BY, label::MANAGED_BY_CEPH_PDB));
        let names = cluster
            .ask(budgets.list(&ours))
            .await?
            .into_iter()
            .map(|budget| budget.name_any());
        let names: Vec<String> = names.filter(|name| name.starts_with(OSD)).collect();
        // Beside somebody else's `rook-ceph-osd` it has a name of its own.
        let all_osds = [OSD.to_owned(), format!("{OSD}-nodeward")];
        let budget = all_osds.into_iter().find(|name| names.contains(name)).ok_or_else(|| {
            Failure::Other(format!(
                "ceph-pdb has no budget of OSDs in namespace {namespace}: name that of the CephCluster by -n"
            ))
        })?;
        // The ceph-pdb that writes them, and no other one.
        let mut writer = cluster.clone();
        writer.namespace = operator_namespace(cluster, &namespace).await?;
        let pauses = Pauses::pause(&writer, &[COMPONENT.to_owned()], reason).await?;
        let excluded = unready(cluster, &namespace).await?;
        let patch = Patch::Merge(json!({ "spec": spec(&excluded) }));
        cluster
            .ask(budgets.patch(&budget, &PatchParams::default(), &patch))
            .await?;
        let mut deleted = Vec::new();
        for name in names.into_iter().filter(|name| *name != budget) {
            match cluster.ask(budgets.delete(&name, &DeleteParams::default())).await {
                Ok(_) => deleted.push(name),
                Err(Failure::NotFound(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(Self {
            pauses,
            namespace,
            budget,
            excluded,
            deleted,
        })
    }

    pub fn print(&self, page: &mut Page) {
        self.pauses.print(page);
        let excluded: Vec<String> = self.excluded.iter().map(|osd| format!("osd.{osd}")).collect();
        let but = if excluded.is_empty() {
            String::new()
        } else {
            format!(", leaving out {}, which are not Ready", excluded.join(", "))
        };
        let Self { namespace, budget, .. } = self;
        let text = format!("budget {namespace}/{budget} lets one OSD at a time go{but}");
        page.text(Style::Warning, text);
        for name in &self.deleted {
            page.text(Style::Plain, format!("budget {namespace}/{name} is deleted"));
        }
        let follows = "Nothing follows Ceph now: look at ceph status before each eviction.";
        page.text(Style::Plain, follows);
    }
}

/// Where the ceph-pdb of a CephCluster runs, as it tells itself.
async fn operator_namespace(cluster: &Cluster, namespace: &str) -> Result<Option<String>, Failure> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
    let published = cluster.ask(maps.get_opt(CONFIG_MAP)).await?;
    let state = published.and_then(|map| CephClusterState::read(&map).ok());
    Ok(state.and_then(|state| state.leader_lease).map(|lease| lease.namespace))
}

/// The numbers of the OSDs whose pods are not Ready.
async fn unready(cluster: &Cluster, namespace: &str) -> Result<BTreeSet<String>, Failure> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let pods = cluster
        .ask(pods.list(&ListParams::default().labels(&format!("app={OSD}"))))
        .await?;
    let unready = pods
        .into_iter()
        .filter(|pod| PodView::project(pod).is_none_or(|seen| !seen.ready));
    Ok(unready.filter_map(|pod| pod.labels().get(NUMBER).cloned()).collect())
}

/// All OSDs but these, one at a time.
fn spec(excluded: &BTreeSet<String>) -> Value {
    let not_in = json!([{ "key": NUMBER, "operator": "NotIn", "values": excluded }]);
    let expressions = if excluded.is_empty() { Value::Null } else { not_in };
    json!({
        "maxUnavailable": 1,
        "selector": { "matchLabels": { "app": OSD }, "matchExpressions": expressions },
    })
}
