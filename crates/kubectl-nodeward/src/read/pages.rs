//! Lists, page by page, so that no single answer is large and only what is needed of each object is kept.

use std::fmt::Debug;

use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;

use crate::cluster::Cluster;
use crate::failure::Failure;

/// Objects in one answer; what kubectl asks for, too.
const PAGE: u32 = 500;

/// What `keep` makes of each object.
///
/// # Errors
/// A page cannot be read.
pub async fn list<K, T>(
    cluster: &Cluster,
    api: &Api<K>,
    params: ListParams,
    mut keep: impl FnMut(K) -> T,
) -> Result<Vec<T>, Failure>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut kept = Vec::new();
    let mut params = params.limit(PAGE);
    loop {
        let page = cluster.ask(api.list(&params)).await?;
        kept.extend(page.items.into_iter().map(&mut keep));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(kept),
        }
    }
}
