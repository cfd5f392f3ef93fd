//! What the commands change: one file an action. Each write rests on what was read just before, so that two people who do
//! the same at once do it once.

pub mod drain;
pub mod hold;
pub mod plan;
pub mod release;
pub mod request;

use nodeward_api::node_drain::REQUESTER_AT_MOST;
use nodeward_core::text::cut;

use crate::cluster::Cluster;
use crate::failure::Failure;

/// How often a write is tried again because somebody else was faster.
const ATTEMPTS: u32 = 5;

/// What the name of a request begins with; the user follows.
const PREFIX: &str = "kubectl-nodeward:";

/// An action that could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// A request failed.
    #[error(transparent)]
    Request(Failure),
    /// The kind is not served.
    #[error("drain-lock is not installed: the API server knows no {0}")]
    NotInstalled(&'static str),
    /// Anything else, in the words for the user.
    #[error("{0}")]
    Refused(String),
}

impl From<Failure> for ActError {
    fn from(failure: Failure) -> Self {
        Self::Request(failure.to_act())
    }
}

/// The name of the caller's requests: `kubectl-nodeward:alice`.
///
/// # Errors
/// The API server does not say who the caller is.
pub async fn requester(cluster: &Cluster) -> Result<String, ActError> {
    let name = format!("{PREFIX}{}", cluster.user().await?);
    Ok(cut(name, REQUESTER_AT_MOST))
}
