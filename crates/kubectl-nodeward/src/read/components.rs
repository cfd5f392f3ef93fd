//! Which components there are: their Deployments by the chart's labels, and their leases, which a component holds
//! however it was installed.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::{Reader, pages};
use crate::failure::Failure;
use crate::view::status::{Component, ComponentState};

/// The components, each of which has a lease of its name.
const COMPONENTS: [&str; 4] = ["drain-keeper", "drain-lock", "health-check", "ceph-pdb"];

/// The chart's label on all that it makes.
const PART_OF: &str = "app.kubernetes.io/part-of=nodeward";

/// The chart's label with the component's name.
const NAME: &str = "app.kubernetes.io/name";

/// The chart's label with the version.
const VERSION: &str = "app.kubernetes.io/version";

impl Reader<'_> {
    /// The components that there are.
    pub(super) async fn components(&mut self) -> Result<Vec<Component>, Failure> {
        let client = self.cluster.client.clone();
        let deployments: Api<Deployment> = Api::all(client.clone());
        let params = ListParams::default().labels(PART_OF);
        let found = pages::list(self.cluster, &deployments, params, |deployment| deployment).await;
        let deployments = self.seen("components", found)?.unwrap_or_default();
        let mut leases = Vec::new();
        for name in COMPONENTS {
            let params = ListParams::default().fields(&format!("metadata.name={name}"));
            let found = pages::list(self.cluster, &Api::all(client.clone()), params, |lease: Lease| lease).await;
            match self.seen("leaders", found)? {
                Some(found) => leases.extend(found),
                // The right to the others is missing as well.
                None => break,
            }
        }
        Ok(components(&deployments, &leases, self.now))
    }
}

/// What a component leaves in the cluster.
#[derive(Default)]
struct Traces<'a> {
    deployment: Option<&'a Deployment>,
    lease: Option<&'a Lease>,
}

/// Components by name and namespace.
fn components(deployments: &[Deployment], leases: &[Lease], now: Timestamp) -> Vec<Component> {
    let mut found: BTreeMap<(String, String), Traces<'_>> = BTreeMap::new();
    for deployment in deployments {
        let name = deployment
            .labels()
            .get(NAME)
            .filter(|name| COMPONENTS.contains(&name.as_str()));
        if let Some(name) = name {
            let key = (name.clone(), deployment.namespace().unwrap_or_default());
            found.entry(key).or_default().deployment = Some(deployment);
        }
    }
    for lease in leases {
        let key = (lease.name_any(), lease.namespace().unwrap_or_default());
        found.entry(key).or_default().lease = Some(lease);
    }
    found
        .into_iter()
        .map(|((name, namespace), traces)| component(name, namespace, &traces, now))
        .collect()
}

fn component(name: String, namespace: String, traces: &Traces<'_>, now: Timestamp) -> Component {
    let deployment = traces.deployment;
    let lease = traces.lease.and_then(|lease| lease.spec.as_ref());
    let leader = lease
        .and_then(|lease| lease.holder_identity.clone())
        .filter(|leader| !leader.is_empty());
    let renewed = lease.and_then(|lease| lease.renew_time.as_ref()).map(|time| time.0);
    // Twice the lease's time, lest a clock that is off by seconds makes a leader look dead.
    let seconds = lease.and_then(|lease| lease.lease_duration_seconds).unwrap_or_default();
    let lasts = SignedDuration::from_secs(2 * i64::from(seconds));
    let renews = renewed.is_some_and(|renewed| now.duration_since(renewed) <= lasts);
    let ready = deployment.map(|deployment| {
        let status = deployment.status.as_ref();
        status.and_then(|status| status.ready_replicas).unwrap_or_default()
    });
    let state = match (leader.is_some() && renews, lease.is_some(), ready) {
        (true, ..) => ComponentState::Leading,
        (false, _, Some(0)) => ComponentState::NotReady,
        (false, true, _) | (false, false, None) => ComponentState::NotLeading,
        (false, false, Some(_)) => ComponentState::Ready,
    };
    Component {
        name,
        state,
        version: deployment.and_then(|deployment| deployment.labels().get(VERSION).cloned()),
        namespace,
        ready,
        replicas: deployment.and_then(|deployment| deployment.spec.as_ref()?.replicas),
        leader: leader.filter(|_| renews),
        renewed,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn deployment(ready: Option<i32>) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {
                "name": "nodeward-drain-lock", "namespace": "nodeward-system",
                "labels": { "app.kubernetes.io/name": "drain-lock", "app.kubernetes.io/version": "1.2.3" },
            },
            "spec": { "replicas": 2, "selector": {}, "template": {} },
            "status": { "readyReplicas": ready },
        }))
        .unwrap()
    }

    fn lease(holder: &str, renewed: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": { "name": "drain-lock", "namespace": "nodeward-system" },
            "spec": { "holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15 },
        }))
        .unwrap()
    }

    const FRESH: &str = "2026-01-01T09:59:50.000000Z";
    const OLD: &str = "2026-01-01T09:59:00.000000Z";

    #[rstest]
    #[case::leads(vec![deployment(Some(2))], vec![lease("a", FRESH)], ComponentState::Leading)]
    #[case::leads_without_a_deployment(vec![], vec![lease("a", FRESH)], ComponentState::Leading)]
    #[case::has_stopped(vec![], vec![lease("a", OLD)], ComponentState::NotLeading)]
    #[case::has_given_up_its_lease(vec![deployment(Some(1))], vec![lease("", FRESH)], ComponentState::NotLeading)]
    #[case::leases_cannot_be_read(vec![deployment(Some(1))], vec![], ComponentState::Ready)]
    #[case::no_replica(vec![deployment(None)], vec![lease("a", OLD)], ComponentState::NotReady)]
    fn a_component_works_as_far_as_its_lease_and_its_replicas_say(
        #[case] deployments: Vec<Deployment>,
        #[case] leases: Vec<Lease>,
        #[case] state: ComponentState,
    ) {
        let found = components(&deployments, &leases, "2026-01-01T10:00:00Z".parse().unwrap());
        assert_eq!(
            found.iter().map(|component| component.state).collect::<Vec<_>>(),
            [state]
        );
    }

    #[rstest]
    #[case(json!({ "app.kubernetes.io/name": "grafana" }))]
    #[case(json!({}))]
    fn another_deployment_of_the_chart_is_no_component(#[case] labels: Value) {
        let mut other = deployment(Some(1));
        other.metadata.labels = serde_json::from_value(labels).unwrap();
        assert_eq!(components(&[other], &[], Timestamp::UNIX_EPOCH), []);
    }
}
