//! What the commands change: one file an action. Each write rests on what was read just before, so that two people who do
//! the same at once do it once.

pub mod drain;
pub mod hold;
pub mod plan;
pub mod release;
pub mod request;

use crate::cluster::Cluster;
use crate::failure::Failure;

/// How often a write is tried again because somebody else was faster.
const ATTEMPTS: u32 = 5;

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
    /// The API's limit of a requester's name.
    const LONGEST: usize = 512;
    let mut name = format!("kubectl-nodeward:{}", cluster.user().await?);
    while name.len() > LONGEST {
        name.pop();
    }
    Ok(name)
}
