//! Whether the API server reaches the webhooks. It is asked for what they refuse, and what it would not do without them either: to
//! evict a pod that does not exist, and, as a dry run, to create a NodeHealthCheck. The refusal names the webhook that gave it.

use std::collections::BTreeMap;

use http::Request;
use k8s_openapi::api::admissionregistration::v1::{
    ServiceReference, ValidatingWebhook, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::client::Body;
use kube::core::{Selector, SelectorExt as _, Status};
use kube::{Api, ResourceExt};
use nodeward_api::annotation;
use nodeward_core::text::counted;
use rand::distr::{Alphanumeric, SampleString as _};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::failure::{Failure, MissingRight};
use crate::model::Unread;
use crate::text::printable;

/// drain-lock's webhook.
const EVICTIONS: &str = "evictions.drain-lock.nodeward.dev";

/// health-check's webhook.
const NODE_HEALTH_CHECKS: &str = "nodehealthchecks.health-check.nodeward.dev";

/// The match conditions of the chart; any other may keep the question from drain-lock.
const CHART_CONDITIONS: [&str; 2] = ["is-no-own-pod", "is-no-dry-run"];

/// The label of every namespace with its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    /// The webhook answered.
    Reached,
    /// The API server went on without it.
    PassedBy,
    NotAllowed(MissingRight),
    /// Something else answered, with its message.
    Unclear(String),
}

/// The webhooks of a configuration that the API server does not reach, a sentence each. What cannot be told is noted.
pub async fn failures(
    cluster: &Cluster,
    configuration: &ValidatingWebhookConfiguration,
    unread: &mut Vec<Unread>,
) -> Result<Vec<String>, Failure> {
    let mut failures = Vec::new();
    for webhook in configuration.webhooks.iter().flatten() {
        let name = configuration.name_any();
        let unclear = |message: String| Unread::Undecodable {
            what: "webhooks",
            message: format!("whether the API server reaches {name} ({}): {message}", webhook.name),
        };
        let question = match question(webhook, cluster.one_namespace()) {
            Ok(question) => question,
            Err(why) => {
                unread.push(unclear(why));
                continue;
            }
        };
        match ask(cluster, webhook, question).await? {
            Reach::Reached => {}
            Reach::NotAllowed(missing) => unread.push(Unread::Forbidden {
                what: "webhooks",
                missing,
            }),
            Reach::Unclear(message) => unread.push(unclear(message)),
            Reach::PassedBy if has_own_conditions(webhook) => {
                unread.push(unclear(
                    "its matchConditions may have kept the question from it".to_owned(),
                ));
            }
            Reach::PassedBy => failures.push(format!(
                "the API server does not reach the webhook {name}, and goes on without it: {}",
                remedy(cluster, webhook).await
            )),
        }
    }
    Ok(failures)
}

fn has_own_conditions(webhook: &ValidatingWebhook) -> bool {
    let mut conditions = webhook.match_conditions.iter().flatten();
    conditions.any(|condition| !CHART_CONDITIONS.contains(&condition.name.as_str()))
}

/// What the webhook refuses, in the namespace of the command line where it is asked there; or why nothing is known.
fn question(webhook: &ValidatingWebhook, namespace: &str) -> Result<(String, Value), String> {
    let name = format!("nodeward-check-{}", random());
    match webhook.name.as_str() {
        EVICTIONS => {
            let namespace = [namespace, "default"]
                .into_iter()
                .find(|namespace| is_asked_in(webhook, namespace));
            let namespace = namespace.ok_or("name a namespace that it reviews by -n")?;
            let eviction = json!({
                "apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": { "name": name, "namespace": namespace, "annotations": { annotation::TICKET: "0/0" } },
                // Whatever pod had this name, it is not meant.
                "deleteOptions": { "preconditions": { "uid": "nodeward-check" } },
            });
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction");
            Ok((path, eviction))
        }
        NODE_HEALTH_CHECKS => {
            let path = "/apis/remediation.medik8s.io/v1alpha1/nodehealthchecks?dryRun=All";
            Ok((path.to_owned(), refused_check(&name)))
        }
        _ => Err("this version does not know it".to_owned()),
    }
}

fn random() -> String {
    Alphanumeric.sample_string(&mut rand::rng(), 10).to_lowercase()
}

/// The schema takes any word for an operator.
fn refused_check(name: &str) -> Value {
    json!({
        "apiVersion": "remediation.medik8s.io/v1alpha1", "kind": "NodeHealthCheck", "metadata": { "name": name },
        "spec": {
            "selector": { "matchExpressions": [{ "key": "nodeward-check", "operator": "Near" }] },
            "remediationTemplate": {
                "apiVersion": "nodeward.dev/v1", "kind": "CheckTemplate", "name": name, "namespace": "default",
            },
        },
    })
}

/// As far as the namespace's name decides.
fn is_asked_in(webhook: &ValidatingWebhook, namespace: &str) -> bool {
    let labels = BTreeMap::from([(NAMESPACE_NAME.to_owned(), namespace.to_owned())]);
    let selector = webhook.namespace_selector.clone().unwrap_or_default();
    Selector::try_from(selector).is_ok_and(|selector| selector.matches(&labels))
}

async fn ask(cluster: &Cluster, webhook: &ValidatingWebhook, question: (String, Value)) -> Result<Reach, Failure> {
    let (path, body) = question;
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(Body::from(body.to_string().into_bytes()));
    let request = request.map_err(|error| Failure::Other(error.to_string()))?;
    let answer = cluster.ask(async {
        let response = cluster.evicting.send(request).await?;
        let code = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter();
        let warnings = warnings.filter_map(|warning| warning.to_str().ok());
        let warnings = warnings.collect::<Vec<_>>().join("\n");
        let body = response.into_body().collect_bytes().await?;
        let status: Status = serde_json::from_slice(&body).unwrap_or_default();
        Ok((code, status.message, warnings))
    });
    let (code, message, warnings) = answer.await?;
    Ok(reach(webhook, code, &message, &warnings))
}

/// What the API server's answer tells.
fn reach(webhook: &ValidatingWebhook, code: u16, message: &str, warnings: &str) -> Reach {
    let denied = format!("admission webhook \"{}\" denied", webhook.name);
    let no_pod = || message.starts_with("pods \"nodeward-check-") && message.ends_with("not found");
    match code {
        _ if message.contains(&denied) => Reach::Reached,
        // In an audit drain-lock refuses nothing, and warns.
        _ if webhook.name == EVICTIONS && warnings.contains("drain-lock only audits") => Reach::Reached,
        201 => Reach::PassedBy,
        404 if no_pod() => Reach::PassedBy,
        code => match MissingRight::parse(message) {
            Some(missing) => Reach::NotAllowed(missing),
            None => Reach::Unclear(format!("the API server answered {code}: {}", printable(message))),
        },
    }
}

/// What to do about a webhook that is not reached, as far as its Service tells.
async fn remedy(cluster: &Cluster, webhook: &ValidatingWebhook) -> String {
    let Some(service) = &webhook.client_config.service else {
        let url = webhook.client_config.url.as_deref().unwrap_or_default();
        return format!("look whether {url} answers, with a certificate that the configuration's caBundle has signed");
    };
    let slices: Api<EndpointSlice> = Api::namespaced(cluster.client.clone(), &service.namespace);
    let params = ListParams::default().labels(&format!("kubernetes.io/service-name={}", service.name));
    let slices = cluster.ask(slices.list(&params)).await;
    remedy_of(service, slices.ok().map(|slices| slices.items).as_deref())
}

fn remedy_of(service: &ServiceReference, slices: Option<&[EndpointSlice]>) -> String {
    let ServiceReference { name, namespace, .. } = service;
    let ready = slices.map(|slices| {
        let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
        let ready = endpoints.filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|conditions| conditions.ready) != Some(false)
        });
        ready.count()
    });
    let has = match ready {
        Some(0) => {
            return format!(
                "its Service {namespace}/{name} has no ready pod; see kubectl -n {namespace} get pods,endpointslices"
            );
        }
        Some(ready) => format!(", which has {}", counted(ready, "ready pod")),
        None => String::new(),
    };
    format!(
        "let the control plane connect to its Service {namespace}/{name}{has} (firewall, NetworkPolicy), and see that the \
         configuration's caBundle has signed the certificate that is served"
    )
}

#[cfg(test)]
mod tests {
    use nodeward_api::NodeHealthCheck;
    use nodeward_core::node_health_check::CheckSpec;
    use rstest::rstest;

    use super::*;

    fn webhook(name: &str, change: Value) -> ValidatingWebhook {
        let mut webhook = json!({
            "name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": {},
            "matchConditions": CHART_CONDITIONS.map(|name| json!({ "name": name, "expression": "true" })),
        });
        crate::fixture::merge(&mut webhook, change);
        serde_json::from_value(webhook).unwrap()
    }

    const DENIED: &str = "admission webhook \"evictions.drain-lock.nodeward.dev\" denied the request: the annotation …";
    const DENIED_BY_ANOTHER: &str = "admission webhook \"evictions.example.com\" denied the request: no";
    const FORBIDDEN: &str = "pods \"p\" is forbidden: User \"bob\" cannot create resource \"pods/eviction\" in API group \
                             \"\" in the namespace \"default\"";
    const AUDITED: &str = "299 - \"drain-lock only audits, and would have refused this eviction (ForgedTicket): …\"";

    #[rstest]
    #[case::denied(403, DENIED, "", "reached")]
    #[case::audited(404, "pods \"nodeward-check-a\" not found", AUDITED, "reached")]
    #[case::passed_by(404, "pods \"nodeward-check-a\" not found", "", "passed by")]
    #[case::passed_by_as_a_dry_run(201, "", "", "passed by")]
    #[case::no_namespace(
        404,
        "namespaces \"shop\" not found",
        "",
        "the API server answered 404: namespaces \"shop\" not found"
    )]
    #[case::denied_by_another(
        403,
        DENIED_BY_ANOTHER,
        "",
        "the API server answered 403: admission webhook \"evictions.example.com\" denied the request: no"
    )]
    #[case::not_allowed(403, FORBIDDEN, "", "bob may not create pods/eviction in namespace default")]
    fn answer_tells_whether_the_webhook_was_reached(
        #[case] code: u16,
        #[case] message: &str,
        #[case] warnings: &str,
        #[case] told: &str,
    ) {
        let found = match reach(&webhook(EVICTIONS, json!({})), code, message, warnings) {
            Reach::Reached => "reached".to_owned(),
            Reach::PassedBy => "passed by".to_owned(),
            Reach::NotAllowed(missing) => missing.to_string(),
            Reach::Unclear(message) => message,
        };
        assert_eq!(found, told);
    }

    /// Without the webhook it would be admitted, as a dry run.
    #[test]
    fn health_check_that_is_asked_for_is_one_that_the_webhook_refuses() {
        let check: NodeHealthCheck = serde_json::from_value(refused_check("c")).unwrap();
        let problems = CheckSpec::compile(&check.spec).problems;
        assert!(
            problems.len() == 1 && problems[0].starts_with("selector: "),
            "{problems:?}"
        );
        let (path, _) = question(&webhook(NODE_HEALTH_CHECKS, json!({})), "shop").unwrap();
        assert!(path.ends_with("?dryRun=All"), "{path}");
    }

    #[rstest]
    #[case::everywhere(json!({}), Some("shop"))]
    #[case::not_there(json!({ "namespaceSelector": { "matchExpressions": [
        { "key": NAMESPACE_NAME, "operator": "NotIn", "values": ["shop", "nodeward-system"] },
    ] } }), Some("default"))]
    #[case::neither_there_nor_in_default(json!({ "namespaceSelector": { "matchLabels": { NAMESPACE_NAME: "bank" } } }), None)]
    fn eviction_is_of_no_pod_in_a_namespace_that_is_reviewed(#[case] change: Value, #[case] namespace: Option<&str>) {
        let asked = question(&webhook(EVICTIONS, change), "shop");
        let Some(namespace) = namespace else {
            assert_eq!(asked, Err("name a namespace that it reviews by -n".to_owned()));
            return;
        };
        let (path, eviction) = asked.unwrap();
        assert!(
            path.starts_with(&format!("/api/v1/namespaces/{namespace}/pods/nodeward-check-")),
            "{path}"
        );
        assert_eq!(eviction["metadata"]["annotations"][annotation::TICKET], "0/0");
        assert_eq!(eviction["deleteOptions"]["preconditions"]["uid"], "nodeward-check");
    }

    #[test]
    fn condition_of_the_user_may_keep_the_question_from_the_webhook() {
        assert!(!has_own_conditions(&webhook(EVICTIONS, json!({}))));
        let own = json!({ "matchConditions": [{ "name": "only-some", "expression": "true" }] });
        assert!(has_own_conditions(&webhook(EVICTIONS, own)));
    }

    #[rstest]
    #[case::no_pod(Some(json!([{ "conditions": { "ready": false } }])), "its Service nodeward-system/hook has no ready pod; see kubectl -n nodeward-system get pods,endpointslices")]
    #[case::pods(Some(json!([{ "conditions": { "ready": true } }, { "conditions": {} }])), "let the control plane connect to its Service nodeward-system/hook, which has 2 ready pods (firewall, NetworkPolicy), and see that the configuration's caBundle has signed the certificate that is served")]
    #[case::hidden(
        None,
        "let the control plane connect to its Service nodeward-system/hook (firewall, NetworkPolicy), and see that the configuration's caBundle has signed the certificate that is served"
    )]
    fn remedy_follows_the_pods_of_the_service(#[case] endpoints: Option<Value>, #[case] told: &str) {
        let service = ServiceReference {
            name: "hook".to_owned(),
            namespace: "nodeward-system".to_owned(),
            ..ServiceReference::default()
        };
        let slice = endpoints.map(|mut endpoints| {
            for endpoint in endpoints.as_array_mut().unwrap() {
                endpoint["addresses"] = json!(["10.0.0.1"]);
            }
            let slice = json!({ "metadata": {}, "addressType": "IPv4", "endpoints": endpoints });
            vec![serde_json::from_value(slice).unwrap()]
        });
        assert_eq!(remedy_of(&service, slice.as_deref()), told);
    }
}
