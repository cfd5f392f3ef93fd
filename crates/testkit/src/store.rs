//! Objects written straight into etcd, as the API server stores them: for clusters so large that making them through the
//! API would take many minutes. Nothing checks them, so they must be as the API server would have stored them; it reads
//! JSON as well as its own encoding.

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use k8s_openapi::ByteString;
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::ControlPlane;

/// Writes in one transaction: etcd's own limit (`--max-txn-ops`).
const AT_ONCE: usize = 128;

/// Transactions that are under way at once.
const CONNECTIONS: usize = 4;

/// An object and where it belongs.
#[derive(Clone, Debug)]
pub struct Stored {
    /// As in `/registry/pods/NAMESPACE/NAME`; nodes are `minions` there.
    pub key: String,
    /// The whole object, with `metadata.uid`, `metadata.creationTimestamp`, and all that the API server would have set.
    pub object: Value,
}

impl Stored {
    pub fn namespaced(resource: &str, namespace: &str, name: &str, object: Value) -> Self {
        Self {
            key: format!("/registry/{resource}/{namespace}/{name}"),
            object,
        }
    }

    /// In none.
    pub fn cluster(resource: &str, name: &str, object: Value) -> Self {
        Self {
            key: format!("/registry/{resource}/{name}"),
            object,
        }
    }
}

/// Writes all of them, and tells now and then how many; gives how many there were.
///
/// # Errors
/// When etcd refuses a transaction.
pub async fn put(
    plane: &ControlPlane,
    objects: impl Iterator<Item = Stored>,
    mut tell: impl FnMut(usize),
) -> Result<usize> {
    let url = plane.etcd_url().parse().context("etcd's address")?;
    let mut config = Config::new(url);
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let mut written = 0;
    let batches = stream::iter(objects).chunks(AT_ONCE);
    let mut answers = batches
        .map(|batch| put_batch(client.clone(), batch))
        .buffer_unordered(CONNECTIONS);
    while let Some(count) = answers.try_next().await? {
        written += count;
        tell(written);
    }
    Ok(written)
}

async fn put_batch(client: Client, batch: Vec<Stored>) -> Result<usize> {
    let writes: Vec<Value> = batch
        .iter()
        .map(|Stored { key, object }| {
            let value = ByteString(object.to_string().into_bytes());
            json!({ "requestPut": { "key": ByteString(key.as_bytes().to_vec()), "value": value } })
        })
        .collect();
    let body = serde_json::to_vec(&json!({ "success": writes }))?;
    let request = Request::post("/v3/kv/txn").body(body)?;
    let answer: Value = client.request(request).await.context("etcd's transaction")?;
    ensure!(answer["succeeded"] == true, "etcd answers {answer}");
    Ok(batch.len())
}
