//! Objects followed in the background.

use std::fmt::Debug;

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

/// Calls `each` with every object that exists, and with each change, until the returned set is dropped.
pub fn follow<K>(objects: Api<K>, config: watcher::Config, mut each: impl FnMut(K) + Send + 'static) -> JoinSet<()>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    follow_events(objects, config, move |event| {
        if let Event::Apply(object) | Event::InitApply(object) = event {
            each(object);
        }
    })
}

/// The same with what the watch tells, deletes among it.
pub fn follow_events<K>(
    objects: Api<K>,
    config: watcher::Config,
    mut each: impl FnMut(Event<K>) + Send + 'static,
) -> JoinSet<()>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut events = std::pin::pin!(watcher(objects, config).default_backoff());
        while let Some(event) = events.next().await {
            // The watcher goes on after an error.
            event.into_iter().for_each(&mut each);
        }
    });
    task
}
