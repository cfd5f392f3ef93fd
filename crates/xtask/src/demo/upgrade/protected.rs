//! Did drain-keeper keep its hands off the pods that nobody may force? Where the control plane is ours, the API server's
//! audit log answers: every request of drain-keeper's that was to change one of them counts, accepted or not. Elsewhere
//! its Events do.

use anyhow::Result;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use nodeward_testkit::audit::Requests;

use super::follow;
use super::scenario::{REPORT, VAULT};
use crate::demo::environment::Environment;

/// What drain-keeper did, or tried, to protected pods.
pub async fn touched(env: &Environment) -> Result<Vec<String>> {
    let namespaces = [env.named(VAULT.0), env.named(REPORT.0)];
    if let Some(plane) = &env.plane {
        let audit = plane.audit();
        let asked = audit.since(audit.beginning())?;
        let release = env.release();
        let account = format!("{}-drain-keeper", release.name());
        let asked = asked.of_service_account(release.namespace(), &account);
        return Ok(writes_to_pods(asked, &namespaces));
    }
    let mut touched = Vec::new();
    for namespace in &namespaces {
        let events: Api<Event> = Api::namespaced(env.client(), namespace);
        for event in events.list(&ListParams::default()).await? {
            if let Some(pod) = follow::subject_of(&event, "drain-keeper", "Pod") {
                let (reason, name) = (
                    event.reason.as_deref().unwrap_or_default(),
                    pod.name.as_deref().unwrap_or_default(),
                );
                touched.push(format!("{reason} {namespace}/{name}"));
            }
        }
    }
    Ok(touched)
}

fn writes_to_pods(asked: Requests, namespaces: &[String]) -> Vec<String> {
    let on_pod = asked
        .writes()
        .only(|request| request.resource.split('/').next() == Some("pods") && namespaces.contains(&request.namespace));
    let told = |request: &nodeward_testkit::audit::AuditedRequest| {
        format!(
            "{} {} {}/{}: {}",
            request.verb, request.resource, request.namespace, request.name, request.code
        )
    };
    on_pod.0.iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use nodeward_testkit::audit::AuditedRequest;

    use super::*;

    fn asked(verb: &str, resource: &str, namespace: &str) -> Requests {
        Requests(vec![AuditedRequest {
            user: String::new(),
            user_agent: String::new(),
            verb: verb.to_owned(),
            group: String::new(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: "vault-1".to_owned(),
            uri: String::new(),
            code: 429,
            received: jiff::Timestamp::UNIX_EPOCH,
        }])
    }

    #[rstest::rstest]
    #[case::eviction("create", "pods/eviction", "vault", 1)]
    #[case::deletion("delete", "pods", "vault", 1)]
    #[case::finalizer("patch", "pods", "vault", 1)]
    #[case::reading("list", "pods", "vault", 0)]
    #[case::an_event("create", "events", "vault", 0)]
    #[case::another_namespace("delete", "pods", "shop", 0)]
    fn attempted_writes_to_protected_pods_count(
        #[case] verb: &str,
        #[case] resource: &str,
        #[case] namespace: &str,
        #[case] count: usize,
    ) {
        assert_eq!(
            writes_to_pods(asked(verb, resource, namespace), &["vault".to_owned()]).len(),
            count
        );
    }
}
