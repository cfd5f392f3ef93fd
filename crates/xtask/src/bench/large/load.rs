//! Creates very many objects, keeping none of them.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::PostParams;
use kube::core::Request;
use nodeward_testkit::progress::Progress;
use serde_json::Value;

use super::size::thousands;

/// How many requests are under way at once.
pub const CONNECTIONS: usize = 12;

/// Creates each object under its collection's path.
pub async fn create(
    client: &Client,
    progress: &Progress,
    what: &str,
    objects: impl Iterator<Item = (String, Value)>,
) -> Result<usize> {
    let mut created = 0;
    let mut requests = stream::iter(objects)
        .map(|(path, object)| create_one(client, path, object))
        .buffer_unordered(CONNECTIONS);
    while requests.try_next().await?.is_some() {
        created += 1;
        if created % 500 == 0 {
            progress.step(&format!("{} {what}", thousands(created)));
        }
    }
    Ok(created)
}

async fn create_one(client: &Client, path: String, object: Value) -> Result<()> {
    let request = Request::new(&path).create(&PostParams::default(), serde_json::to_vec(&object)?)?;
    // The answer repeats the object, and is not read.
    let answer = client.request_text(request).await;
    answer
        .map(drop)
        .with_context(|| format!("create {} in {path}", object["metadata"]["name"]))
}
