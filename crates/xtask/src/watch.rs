//! Objects followed in the background.

use std::fmt::Debug;

use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

/// Calls `each` with every object that exists, and with each change, until the returned set is dropped.
pub fn follow<K>(objects: Api<K>, config: watcher::Config, mut each: impl FnMut(K) + Send + 'static) -> JoinSet<()>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut task = JoinSet::new();
    task.spawn(async move {
        let changes = watcher(objects, config).default_backoff().applied_objects();
        changes
            .for_each(|change| {
                // The watcher goes on after an error.
                change.into_iter().for_each(&mut each);
                std::future::ready(())
            })
            .await;
    });
    task
}
