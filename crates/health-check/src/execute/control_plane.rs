//! Whether etcd keeps its quorum without a control-plane node, read past all caches: a watch may be minutes behind.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Resource};
use nodeward_api::label;
use nodeward_core::id::NodeName;
use nodeward_core::node::NodeView;

use super::PassContext;
use super::quorum::Unmet;
use crate::observe::{ETCD_GUARDS, ETCD_NAMESPACE, project};
use crate::plan::keeps_quorum;
use crate::snapshot::EtcdGuards;

/// Lists the control-plane nodes, and on OpenShift what guards etcd, and decides as the plan did.
pub(super) async fn check_quorum(
    pass: &PassContext,
    node: &NodeName,
    recent: &BTreeSet<NodeName>,
) -> Result<(), Unmet> {
    let mut views = BTreeMap::new();
    let nodes: Api<Node> = Api::all(pass.clients.requests.clone());
    for role in label::CONTROL_PLANE_ROLES {
        let listed = nodes.list(&ListParams::default().labels(role)).await?;
        let listed: Vec<NodeView> = listed.items.iter().filter_map(NodeView::project).collect();
        views.extend(listed.into_iter().map(|view| (view.name.clone(), view)));
    }
    let guards = if pass.has_etcd_guards {
        Some(etcd_guards(pass).await?)
    } else {
        None
    };
    let views: Vec<&NodeView> = views.values().collect();
    keeps_quorum(node, &views, recent, guards.as_ref()).map_err(Unmet::Refused)
}

async fn etcd_guards(pass: &PassContext) -> Result<EtcdGuards, kube::Error> {
    let budgets = in_etcd::<PodDisruptionBudget>(pass)
        .list(&ListParams::default())
        .await?;
    let guards = in_etcd::<Pod>(pass);
    let guards = guards.list(&ListParams::default().labels(ETCD_GUARDS)).await?;
    Ok(EtcdGuards {
        disruptions_allowed: budgets.items.iter().map(project::disruptions_allowed).collect(),
        guards: guards.items.iter().filter_map(project::guard).collect(),
    })
}

fn in_etcd<K: Resource<DynamicType = ()>>(pass: &PassContext) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<K>(&());
    Api::namespaced_with(pass.clients.requests.clone(), ETCD_NAMESPACE, &resource)
}
