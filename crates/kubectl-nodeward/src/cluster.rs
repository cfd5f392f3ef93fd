//! The cluster that the command speaks to.

use std::future::Future;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use nodeward_api::NodeDrain;

use crate::args::Global;
use crate::failure::Failure;

/// No connection can be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read, or lacks the context.
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// There is none, and this is no pod.
    #[error("no cluster is configured: {0}; set KUBECONFIG or --kubeconfig")]
    None(#[from] kube::config::InferConfigError),
    /// It was read and does not work.
    #[error("the cluster's configuration cannot be used: {0}")]
    Setup(#[from] kube::Error),
}

/// The cluster that the command speaks to.
#[derive(Clone)]
pub struct Cluster {
    /// For requests of any kind; see [`Cluster::ask`].
    pub client: Client,
    /// The namespace that `-n` names.
    pub namespace: Option<String>,
    /// The context's namespace.
    default_namespace: String,
    /// The API server's.
    address: http::Uri,
    limit: Option<Duration>,
    kinds: Kinds,
}

/// Which of Nodeward's kinds the API server serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kinds {
    /// `NodeDrain`.
    pub node_drains: bool,
    /// `DrainLedger`.
    pub drain_ledgers: bool,
    /// `DisruptionHold`.
    pub disruption_holds: bool,
}

impl Cluster {
    /// Connects as the arguments say, and asks which kinds there are.
    ///
    /// # Errors
    /// The kubeconfig is unusable.
    pub async fn connect(global: &Global) -> Result<Self, ConnectError> {
        let mut config = config(global).await?;
        config.headers.push((
            USER_AGENT,
            HeaderValue::from_static(concat!("nodeward/kubectl-nodeward/", env!("CARGO_PKG_VERSION"))),
        ));
        // Watches are quiet for minutes; each request has the limit of its own that `ask` sets.
        config.read_timeout = None;
        let default_namespace = config.default_namespace.clone();
        let address = config.cluster_url.clone();
        Ok(Self {
            address,
            client: Client::try_from(config)?,
            namespace: global.namespace.clone(),
            default_namespace,
            limit: global.request_timeout.0,
            kinds: Kinds::default(),
        })
    }

    /// The namespace that an object is in unless its name says otherwise.
    pub fn one_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or(&self.default_namespace)
    }

    /// Waits for an answer, for as long as one request may take.
    ///
    /// # Errors
    /// No answer in time, or one that is a failure.
    pub async fn ask<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
        let answer = match self.limit {
            None => request.await,
            Some(limit) => tokio::time::timeout(limit, request)
                .await
                .map_err(|_| Failure::Timeout { limit })?,
        };
        answer.map_err(|error| Failure::from(&error).at(&self.address))
    }

    /// Finds out which of Nodeward's kinds the API server serves.
    ///
    /// # Errors
    /// The API server cannot be asked.
    pub async fn discover(&mut self) -> Result<Kinds, Failure> {
        // All three are of one group and version.
        let version = NodeDrain::api_version(&());
        let served = match self.ask(self.client.list_api_group_resources(&version)).await {
            Ok(list) => list.resources,
            Err(Failure::NotFound { .. }) => Vec::new(),
            Err(failure) => return Err(failure),
        };
        let serves = |name: &str| served.iter().any(|resource| resource.name == name);
        self.kinds = Kinds {
            node_drains: serves("nodedrains"),
            drain_ledgers: serves("drainledgers"),
            disruption_holds: serves("disruptionholds"),
        };
        Ok(self.kinds)
    }

    /// Which of Nodeward's kinds the API server serves, once [`Cluster::discover`] has found out.
    pub fn kinds(&self) -> Kinds {
        self.kinds
    }

    /// The name that the API server knows the caller by.
    ///
    /// # Errors
    /// The API server cannot be asked, or does not serve SelfSubjectReviews (before Kubernetes 1.28).
    pub async fn user(&self) -> Result<String, Failure> {
        let reviews: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let review = SelfSubjectReview::default();
        let answer = self.ask(reviews.create(&PostParams::default(), &review)).await?;
        let user = answer
            .status
            .and_then(|status| status.user_info)
            .and_then(|user| user.username);
        Ok(user.unwrap_or_default())
    }
}

async fn config(global: &Global) -> Result<Config, ConnectError> {
    let options = KubeConfigOptions {
        context: global.context.clone(),
        ..KubeConfigOptions::default()
    };
    if let Some(file) = &global.kubeconfig {
        let kubeconfig = Kubeconfig::read_from(file)?;
        return Ok(Config::from_custom_kubeconfig(kubeconfig, &options).await?);
    }
    if global.context.is_some() {
        return Ok(Config::from_kubeconfig(&options).await?);
    }
    Ok(Config::infer().await?)
}
