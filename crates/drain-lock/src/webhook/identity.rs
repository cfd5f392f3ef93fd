//! Who drain-lock itself is to the API server, so that its own evictions are told from others'.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};
use nodeward_runtime::{ApiError, CancellationToken};

/// From one attempt to the next, doubling up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The user that this process is, once it is known.
#[derive(Debug, Clone, Default)]
pub struct OwnUser(Arc<OnceLock<String>>);

impl OwnUser {
    /// The user, once it is known.
    pub fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Asks the API server who this process is (`SelfSubjectReview`, which everybody may create), until it says so.
    pub async fn learn(self, client: Client, stop: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        while !stop.is_cancelled() {
            match ask(&client).await {
                Ok(user) => {
                    tracing::info!(user, "this process is known to the API server by this name");
                    let _ = self.0.set(user);
                    break;
                }
                Err(problem) => tracing::warn!(%problem, "cannot learn who this process is to the API server"),
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        stop.cancelled().await;
    }
}

async fn ask(client: &Client) -> Result<String, ApiError> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await?;
    review
        .status
        .and_then(|status| status.user_info)
        .and_then(|user| user.username)
        .filter(|user| !user.is_empty())
        .ok_or_else(|| ApiError::Invalid {
            message: "the answer names no user".to_owned(),
        })
}
