//! The ValidatingWebhookConfiguration: by which names the API server calls, and whom it trusts.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhookConfiguration, WebhookClientConfig};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

/// One ValidatingWebhookConfiguration, read by quorum.
pub(super) struct Registration {
    pub(super) api: Api<ValidatingWebhookConfiguration>,
    pub(super) name: String,
}

/// What it says.
pub(super) struct Registered {
    resource_version: Option<String>,
    bundles: Vec<Option<Vec<u8>>>,
    /// By which an object belongs to it, and is removed with it.
    pub(super) owner: Option<OwnerReference>,
    /// The names and addresses by which the API server calls.
    pub(super) hosts: BTreeSet<String>,
}

impl Registration {
    pub(super) async fn read(&self) -> Result<Option<Registered>, kube::Error> {
        Ok(self.api.get_opt(&self.name).await?.map(Registered::of))
    }

    /// Gives the bundle to all of its webhooks, if it is still what was read.
    pub(super) async fn publish(&self, bundle: &str, over: &Registered, manager: &str) -> Result<(), kube::Error> {
        let mut patch = vec![json!({
            "op": "replace", "path": "/metadata/resourceVersion", "value": over.resource_version,
        })];
        let bundle = k8s_openapi::ByteString(bundle.as_bytes().to_vec());
        patch.extend((0..over.bundles.len()).map(
            |index| json!({ "op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": bundle }),
        ));
        let patch = serde_json::from_value(serde_json::Value::Array(patch)).map_err(kube::Error::SerdeError)?;
        let params = PatchParams::apply(manager);
        self.api
            .patch(&self.name, &params, &Patch::Json::<()>(patch))
            .await
            .map(drop)
    }
}

impl Registered {
    fn of(configuration: ValidatingWebhookConfiguration) -> Self {
        let owner = configuration.owner_ref(&());
        let webhooks = configuration.webhooks.unwrap_or_default();
        Self {
            owner,
            resource_version: configuration.metadata.resource_version,
            hosts: webhooks
                .iter()
                .filter_map(|webhook| host(&webhook.client_config))
                .collect(),
            bundles: webhooks
                .into_iter()
                .map(|webhook| webhook.client_config.ca_bundle.map(|bundle| bundle.0))
                .collect(),
        }
    }

    /// Whether every webhook has just this bundle.
    pub(super) fn has(&self, bundle: &str) -> bool {
        self.bundles
            .iter()
            .all(|given| given.as_deref() == Some(bundle.as_bytes()))
    }
}

/// By which the API server calls, and which it looks for in the certificate.
fn host(config: &WebhookClientConfig) -> Option<String> {
    if let Some(service) = &config.service {
        return Some(format!("{}.{}.svc", service.name, service.namespace));
    }
    let address: http::Uri = config.url.as_deref()?.parse().ok()?;
    let host = address.host()?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    Some(
        bare.parse::<IpAddr>()
            .map_or_else(|_| host.to_owned(), |address| address.to_string()),
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn registered(configs: &[Value]) -> Registered {
        let webhook = |config: &Value| json!({ "name": "a.b.c", "clientConfig": config, "admissionReviewVersions": ["v1"], "sideEffects": "None" });
        let webhooks: Vec<Value> = configs.iter().map(webhook).collect();
        let configuration = json!({ "metadata": { "name": "x", "resourceVersion": "7" }, "webhooks": webhooks });
        Registered::of(serde_json::from_value(configuration).unwrap())
    }

    #[rstest]
    #[case::service(json!({ "service": { "namespace": "ns", "name": "hook", "path": "/x" } }), "hook.ns.svc")]
    #[case::address(json!({ "url": "https://127.0.0.1:9443/evictions" }), "127.0.0.1")]
    #[case::address_of_six(json!({ "url": "https://[0:0::1]:9443/evictions" }), "::1")]
    #[case::name(json!({ "url": "https://example.com/evictions" }), "example.com")]
    fn names_match_the_api_servers_calls(#[case] config: Value, #[case] expected: &str) {
        assert_eq!(registered(&[config]).hosts, BTreeSet::from([expected.to_owned()]));
    }

    #[test]
    fn the_bundle_is_published_once_every_webhook_has_it() {
        let service = json!({ "service": { "namespace": "ns", "name": "hook" } });
        let mut with = service.clone();
        with["caBundle"] = serde_json::to_value(k8s_openapi::ByteString(b"pem".to_vec())).unwrap();
        assert!(registered(&[with.clone(), with.clone()]).has("pem"));
        assert!(!registered(&[with.clone(), service]).has("pem"));
        assert!(!registered(&[with]).has("other"));
    }
}
