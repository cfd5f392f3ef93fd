//! Many requests quickly, over several connections.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::PostParams;
use kube::core::{Request, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How many requests are under way at once: eight saturate a two-core API server.
const CONNECTIONS: usize = 8;

/// Creates `objects`, of any scope, and gives them back as the server stored them (in no particular order).
///
/// # Errors
/// The first refusal; objects created before it stay.
pub async fn create<K>(client: &Client, objects: impl IntoIterator<Item = K>) -> Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    each(objects, |object| create_one(client.clone(), object)).await
}

/// Does the same with each of them, some at once, and gives what came of it (in no particular order).
///
/// # Errors
/// The first that comes of one; what was begun is dropped.
pub async fn each<T, R, Fut>(items: impl IntoIterator<Item = T>, act: impl FnMut(T) -> Fut) -> Result<Vec<R>>
where
    Fut: Future<Output = Result<R>>,
{
    let acts = stream::iter(items.into_iter().map(act));
    acts.buffer_unordered(CONNECTIONS).try_collect().await
}

/// Creates one object, of any scope, in the namespace that it names.
///
/// # Errors
/// When the server refuses it.
pub async fn create_one<K>(client: Client, object: K) -> Result<K>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
{
    let kind = K::kind(&());
    let name = object.meta().name.clone().unwrap_or_default();
    let url = K::url_path(&(), object.meta().namespace.as_deref());
    let request = Request::new(url).create(&PostParams::default(), serde_json::to_vec(&object)?)?;
    client
        .request(request)
        .await
        .with_context(|| format!("create {kind} {name}"))
}
