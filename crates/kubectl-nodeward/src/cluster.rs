//! The cluster that the command speaks to.

use std::future::Future;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Config, Resource, ResourceExt};
use nodeward_api::{NodeDrain, NodeHealthCheck};

use crate::args::Global;
use crate::failure::{Failure, MissingRight};

/// Why no connection can be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error("no cluster is configured: {0}; set KUBECONFIG or --kubeconfig")]
    None(#[from] kube::config::InferConfigError),
    #[error("the cluster's configuration cannot be used: {0}")]
    Setup(#[from] kube::Error),
}

/// How long a request may take, where the user does not say.
const LIMIT: Duration = Duration::from_secs(30);

/// The same of the first one, which is small: an API server that hangs is told soon.
const FIRST_LIMIT: Duration = Duration::from_secs(5);

/// Group and version of Rook's kinds.
const ROOK: &str = "ceph.rook.io/v1";

/// The cluster that the command speaks to.
#[derive(Clone)]
pub struct Cluster {
    /// For requests, by way of [`Cluster::ask`].
    pub client: Client,
    /// For evictions that are tried: one that is refused is an answer, and not tried again.
    pub evicting: Client,
    /// The namespace that `-n` names.
    pub namespace: Option<String>,
    /// The context's namespace.
    default_namespace: String,
    address: http::Uri,
    /// How long the next request may take.
    limit: Duration,
    /// How long the user lets each take.
    asked_limit: Option<Duration>,
    /// Groups and plurals of Nodeward's kinds, and of Rook's, that the API server serves.
    served: Vec<(String, String)>,
    /// Whether the command changes something: then the rights to look that it lacks do not suffice.
    changes: bool,
}

impl Cluster {
    /// Connects as the arguments say.
    pub async fn connect(global: &Global) -> Result<Self, ConnectError> {
        let mut config = config(global).await?;
        let agent = HeaderValue::from_static(concat!("nodeward/kubectl-nodeward/", env!("CARGO_PKG_VERSION")));
        config.headers.push((USER_AGENT, agent));
        // Watches are quiet for minutes; each request has the limit of its own that `ask` sets.
        config.read_timeout = None;
        let default_namespace = config.default_namespace.clone();
        let address = config.cluster_url.clone();
        let mut once = config.clone();
        once.default_retry = false;
        Ok(Self {
            address,
            evicting: Client::try_from(once)?,
            client: Client::try_from(config)?,
            namespace: global.namespace.clone(),
            default_namespace,
            limit: global.request_timeout.unwrap_or(FIRST_LIMIT),
            asked_limit: global.request_timeout,
            served: Vec::new(),
            changes: false,
        })
    }

    /// The namespace of `-n`, or else the context's.
    pub fn one_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or(&self.default_namespace)
    }

    /// Waits for an answer for at most `--request-timeout`.
    pub async fn ask<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
        let answer = tokio::time::timeout(self.limit, request).await;
        let answer = answer.map_err(|_| Failure::Timeout(self.limit))?;
        answer.map_err(|error| self.failure(&error))
    }

    /// The meaning of a failed request of this command.
    pub fn failure(&self, error: &kube::Error) -> Failure {
        match Failure::from(error) {
            Failure::Unreachable(message) => Failure::Unreachable(format!("{}: {message}", self.address)),
            Failure::MissingRight(missing) => Failure::MissingRight(Box::new(MissingRight {
                changes: self.changes,
                ..*missing
            })),
            failure => failure,
        }
    }

    /// Finds out which of Nodeward's kinds, and of Rook's, the API server serves, for a command that `changes` something or does not.
    pub async fn discover(&mut self, changes: bool) -> Result<(), Failure> {
        self.changes = changes;
        self.limit = self.asked_limit.unwrap_or(FIRST_LIMIT);
        let mut served = Vec::new();
        // All kinds of a group are of one version. Nothing that changes anything concerns the health of nodes, or Ceph.
        let versions = [
            NodeDrain::api_version(&()),
            NodeHealthCheck::api_version(&()),
            ROOK.into(),
        ];
        for version in &versions[..if changes { 1 } else { versions.len() }] {
            let group = version.split('/').next().unwrap_or_default();
            match self.ask(self.client.list_api_group_resources(version)).await {
                Ok(list) => {
                    let resources = list.resources.into_iter();
                    served.extend(resources.map(|resource| (group.to_owned(), resource.name)));
                }
                Err(Failure::NotFound(_)) => (),
                Err(failure) => return Err(failure),
            }
        }
        self.served = served;
        self.limit = self.asked_limit.unwrap_or(LIMIT);
        Ok(())
    }

    /// The names of the nodes with these labels, in their order.
    pub async fn nodes_with(&self, selector: &str) -> Result<Vec<String>, Failure> {
        let labels = ListParams::default().labels(selector);
        let found = self.ask(self.all::<Node>().list_metadata(&labels)).await?;
        let mut names: Vec<String> = found.items.iter().map(ResourceExt::name_any).collect();
        names.sort();
        if names.is_empty() {
            return Err(Failure::NotFound(format!(
                "there is no node with the labels {selector}"
            )));
        }
        Ok(names)
    }

    /// Whether the API server serves the kind, if it is Nodeward's.
    pub fn serves<K: Resource<DynamicType = ()>>(&self) -> bool {
        let (group, plural) = (K::group(&()), K::plural(&()));
        let is_own = [NodeDrain::group(&()), NodeHealthCheck::group(&())].contains(&group);
        !is_own || self.served.iter().any(|served| served.0 == group && served.1 == plural)
    }

    /// Whether the API server serves CephClusters.
    pub fn serves_ceph_clusters(&self) -> bool {
        let mut served = self.served.iter();
        served.any(|(group, plural)| ROOK.starts_with(group.as_str()) && plural == "cephclusters")
    }

    /// Fails unless the API server serves the kind.
    pub fn require<K: Resource<DynamicType = ()>>(&self) -> Result<(), Failure> {
        let absent = || Failure::NotInstalled(K::kind(&()).into_owned());
        self.serves::<K>().then_some(()).ok_or_else(absent)
    }

    /// Objects in all namespaces, or of a kind without any.
    pub fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Objects in this namespace, or in all.
    pub fn within<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(
        &self,
        namespace: Option<&str>,
    ) -> Api<K> {
        match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => self.all(),
        }
    }

    /// Objects in the namespace of `-n`, or in all.
    pub fn scoped<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        self.within(self.namespace.as_deref())
    }

    /// What people call it: its context, or its address.
    pub fn display_name(&self, global: &Global) -> String {
        let kubeconfig = || match &global.kubeconfig {
            Some(file) => Kubeconfig::read_from(file).ok(),
            None => Kubeconfig::read().ok(),
        };
        let context = global.context.clone().or_else(|| kubeconfig()?.current_context);
        context.unwrap_or_else(|| self.address.to_string())
    }

    /// The caller's user name.
    pub async fn user(&self) -> Result<String, Failure> {
        let reviews: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let review = SelfSubjectReview::default();
        let answer = self.ask(reviews.create(&PostParams::default(), &review)).await?;
        let user = answer.status.and_then(|status| status.user_info?.username);
        Ok(user.unwrap_or_default())
    }
}

async fn config(global: &Global) -> Result<Config, ConnectError> {
    let options = KubeConfigOptions {
        context: global.context.clone(),
        cluster: global.cluster.clone(),
        user: global.user.clone(),
    };
    let is_asked = [&global.context, &global.cluster, &global.user]
        .iter()
        .any(|one| one.is_some());
    let mut config = if let Some(file) = &global.kubeconfig {
        let kubeconfig = Kubeconfig::read_from(file)?;
        Config::from_custom_kubeconfig(kubeconfig, &options).await?
    } else if is_asked {
        Config::from_kubeconfig(&options).await?
    } else {
        Config::infer().await?
    };
    if let Some(server) = &global.server {
        config.cluster_url = server.clone();
    }
    if let Some(token) = &global.token {
        config.auth_info = AuthInfo {
            token: Some(token.clone().into()),
            ..AuthInfo::default()
        };
    }
    if let Some(user) = &global.impersonate {
        config.auth_info.impersonate = Some(user.clone());
        config.auth_info.impersonate_groups = Some(global.impersonate_groups.clone());
    }
    Ok(config)
}
