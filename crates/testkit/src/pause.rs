//! The emergency stop, as plain kubectl writes it.

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::proxy::{Fault, Proxy, Rule, RuleId, Verb};

const CONFIG_MAP: &str = "nodeward-pause";

/// How an operator behind a proxy is kept from hearing of the emergency stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOff {
    /// 503.
    Refused,
    /// 429.
    Throttled,
    /// No answer.
    Silent,
    /// The connection is dead, and nobody says so; the next one is sound.
    HalfOpen,
}

impl CutOff {
    /// From now on its watch of the ConfigMap brings nothing.
    pub fn watch(self, proxy: &Proxy) {
        let is_meant = |uri: &str| uri.contains(CONFIG_MAP);
        match self {
            Self::HalfOpen => proxy.mute_watches(|request| is_meant(&request.uri)),
            Self::Refused | Self::Throttled | Self::Silent => {
                let rule = Rule::new(self.fault()).verbs([Verb::Watch, Verb::List]);
                proxy.inject(rule.when(move |request| is_meant(&request.uri)));
                proxy.drop_watches();
            }
        }
    }

    /// From now on it cannot read the ConfigMap either.
    pub fn reads(self, proxy: &Proxy) -> RuleId {
        let rule = Rule::new(self.fault()).verbs([Verb::Get]).resource("configmaps");
        let rule = rule.name(CONFIG_MAP);
        proxy.inject(match self {
            Self::HalfOpen => rule.times(1),
            Self::Refused | Self::Throttled | Self::Silent => rule,
        })
    }

    fn fault(self) -> Fault {
        match self {
            Self::Refused => Fault::Status(503, "ServiceUnavailable"),
            Self::Throttled => Fault::TooManyRequests { retry_after: Some(1) },
            Self::Silent | Self::HalfOpen => Fault::Silence,
        }
    }
}

/// Writes the data of the ConfigMap `nodeward-pause`: components and reasons; `null` ends all pauses.
pub async fn write(client: &Client, namespace: &str, data: Value) -> Result<()> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let config_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": CONFIG_MAP }, "data": data,
    });
    let params = PatchParams::apply("somebody").force();
    config_maps
        .patch(CONFIG_MAP, &params, &Patch::Apply(config_map))
        .await?;
    Ok(())
}
