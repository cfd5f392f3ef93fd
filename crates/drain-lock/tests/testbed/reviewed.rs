//! An environment whose evictions a drain-lock reviews: registered, and permitted, by the chart alone.

use anyhow::{Context, Result, ensure};
use axum::http::{HeaderMap, Request};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::client::Body;
use kube::{Api, Client};
use nodeward_api::annotation;
use nodeward_testkit::operator::OperatorSpec;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{bulk, ports};
use serde_json::{Value, json};

use crate::environment::{self, APPS, Environment, Lock, SYSTEM};

/// What the chart calls the ValidatingWebhookConfiguration.
pub const NAME: &str = environment::ACCOUNT;

/// An environment, and where in it reviews are asked for.
pub struct Reviewed {
    pub env: Environment,
    pub port: u16,
}

impl Reviewed {
    /// A new environment with these workers, where the chart is installed with these values of drain-lock's.
    pub async fn new(nodes: &[&str], values: Value) -> Result<Self> {
        Self::of(Environment::new(nodes).await?, values).await
    }

    /// An environment, where the chart is now installed with these values of drain-lock's.
    pub async fn of(env: Environment, values: Value) -> Result<Self> {
        let port = ports::free()?;
        let mut all = json!({
            "webhook": { "url": format!("https://127.0.0.1:{port}") },
            "medik8sLease": { "enabled": false },
        });
        for (field, value) in values.as_object().into_iter().flatten() {
            all[field] = value.clone();
        }
        environment::grant(&env.plane, all).await?;
        Ok(Self { env, port })
    }

    /// An environment with a drain-lock that the API server asks.
    pub async fn with(nodes: &[&str], config: Value) -> Result<(Self, Lock)> {
        let reviewed = Self::new(nodes, json!({})).await?;
        let lock = reviewed.start(config).await?;
        Ok((reviewed, lock))
    }

    /// A drain-lock with this configuration, to be started.
    pub fn spec(&self, config: &Value) -> Result<OperatorSpec> {
        Self::spec_on(self.port, config)
    }

    /// One that answers on a port of its own; 0 is any.
    pub fn spec_on(port: u16, config: &Value) -> Result<OperatorSpec> {
        let mut config = config.clone();
        if config["medik8sLease"].is_null() {
            config["medik8sLease"] = json!({ "enabled": false });
        }
        Ok(OperatorSpec::new("drain-lock", SYSTEM, NAME)
            .binary(env!("CARGO_BIN_EXE_drain-lock"))
            .config(&serde_yaml::to_string(&config)?)
            .arg(&format!("--webhook-bind=127.0.0.1:{port}"))
            .arg(&format!("--webhook-configuration={NAME}")))
    }

    /// Starts a drain-lock, and waits until the API server asks it.
    pub async fn start(&self, config: Value) -> Result<Lock> {
        let lock = self.env.run(self.spec(&config)?).await?;
        self.is_asked().await?;
        Ok(lock)
    }

    /// Waits until the API server asks drain-lock.
    pub async fn is_asked(&self) -> Result<()> {
        wait::until("the API server to ask", secs(60), || async {
            ensure!(self.asks().await?, "it does not");
            Ok(())
        })
        .await
    }

    /// Whether the API server asks drain-lock, which forbids what is forged, before it looks for the pod.
    pub async fn asks(&self) -> Result<bool> {
        let forged = Eviction::of("nobody").ticket("1/1").by(&self.env.client).await?;
        match forged.status {
            403 => Ok(true),
            404 => Ok(false),
            _ => anyhow::bail!("{forged:?}"),
        }
    }

    /// Asks for the eviction of a pod of the applications, as an administrator.
    pub async fn evict(&self, pod: &str) -> Result<Evicted> {
        Eviction::of(pod).by(&self.env.client).await
    }

    /// The pods of the applications on a node, by name.
    pub async fn pods_on(&self, node: &str) -> Result<Vec<String>> {
        let pods = self.env.pods_on(node).await?;
        Ok(pods.into_iter().filter_map(|pod| pod.metadata.name).collect())
    }

    /// A client that acts as this user, with an administrator's rights.
    pub async fn client_as(&self, user: &str) -> Result<Client> {
        let mut config = self.env.plane.config().await?;
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// A client that acts as this user, with no more rights than it is given.
    pub async fn client_of(&self, user: &str) -> Result<Client> {
        let mut config = self.env.plane.config().await?;
        config.auth_info.impersonate = Some(user.to_owned());
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// Lets a user do this in the whole cluster.
    pub async fn permit(&self, user: &str, rules: Value) -> Result<()> {
        let name: String = user.replace(':', "-");
        let metadata = json!({ "name": name });
        let role: ClusterRole = serde_json::from_value(json!({ "metadata": metadata, "rules": rules }))?;
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": metadata,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
        }))?;
        bulk::create(&self.env.client, [role]).await?;
        bulk::create(&self.env.client, [binding]).await?;
        Ok(())
    }

    /// The configuration by which the API server asks.
    pub async fn configuration(&self) -> Result<ValidatingWebhookConfiguration> {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(self.env.client.clone());
        Ok(configurations.get(NAME).await?)
    }

    /// Has the chart tell the API server whom to trust.
    pub async fn trust(&self, authority: &str) -> Result<()> {
        let webhook = json!({
            "url": format!("https://127.0.0.1:{}", self.port),
            "certificate": { "from": "secret", "secretName": "mounted-elsewhere", "caBundle": authority },
        });
        let values = json!({ "webhook": webhook, "medik8sLease": { "enabled": false } });
        environment::grant(&self.env.plane, values).await
    }

    /// The authority that the API server was told to trust, PEM.
    pub async fn published(&self) -> Result<String> {
        let hook = self.configuration().await?.webhooks.unwrap_or_default().remove(0);
        let bundle = hook.client_config.ca_bundle.context("no certificate was published")?;
        Ok(String::from_utf8(bundle.0)?)
    }

    pub async fn end<const N: usize>(self, locks: [Lock; N]) -> Result<()> {
        self.env.end(locks).await
    }
}

/// An eviction, to be asked for.
pub struct Eviction {
    namespace: String,
    pod: String,
    annotations: Value,
    options: Value,
    query: &'static str,
}

impl Eviction {
    /// Of a pod of the applications.
    pub fn of(pod: &str) -> Self {
        Self {
            namespace: APPS.to_owned(),
            pod: pod.to_owned(),
            annotations: json!({}),
            options: json!({}),
            query: "",
        }
    }

    pub fn in_namespace(self, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..self
        }
    }

    /// That says it rests on this grant.
    pub fn ticket(self, ticket: &str) -> Self {
        Self {
            annotations: json!({ annotation::TICKET: ticket }),
            ..self
        }
    }

    /// With these `deleteOptions`.
    pub fn options(self, options: Value) -> Self {
        Self { options, ..self }
    }

    pub fn query(self, query: &'static str) -> Self {
        Self { query, ..self }
    }

    /// Asks for it.
    pub async fn by(&self, client: &Client) -> Result<Evicted> {
        let Self { namespace, pod, .. } = self;
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": pod, "namespace": namespace, "annotations": self.annotations },
            "deleteOptions": self.options,
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction{}", self.query);
        let request = Request::post(path)
            .header("content-type", "application/json")
            .body(Body::from(serde_json::to_vec(&eviction)?))?;
        let response = client.send(request).await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect_bytes().await?;
        Ok(Evicted {
            status,
            headers,
            body: serde_json::from_slice(&body)?,
        })
    }
}

/// What the API server said to an eviction.
#[derive(Debug)]
pub struct Evicted {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Evicted {
    pub fn is_admitted(&self) -> bool {
        self.status == 201
    }

    /// The reason that the first cause has, empty if there is none.
    pub fn reason(&self) -> &str {
        self.body["details"]["causes"][0]["reason"].as_str().unwrap_or_default()
    }

    /// What a person reads.
    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// Fails unless it is a refusal with this reason that drainers try again after.
    pub fn is_to_wait(&self, reason: &str) -> Result<()> {
        ensure!((self.status, self.reason()) == (429, reason), "{self:?}");
        ensure!(self.body["reason"] == "TooManyRequests", "{self:?}");
        // client-go would wait and repeat such a request by itself, unseen.
        ensure!(!self.headers.contains_key("retry-after"), "{self:?}");
        ensure!(self.body["details"].get("retryAfterSeconds").is_none(), "{self:?}");
        Ok(())
    }
}
