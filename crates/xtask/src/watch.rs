//! Objects followed in the background.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use nodeward_runtime::cache::Watchable;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A state that watches keep up to date, until it is dropped.
pub struct Watched<S> {
    state: watch::Sender<S>,
    watches: JoinSet<()>,
}

impl<S: Send + Sync + 'static> Watched<S> {
    pub fn new(state: S) -> Self {
        Self {
            state: watch::Sender::new(state),
            watches: JoinSet::new(),
        }
    }

    /// Has the state take in every object that exists, and each change.
    pub fn follow<K: Watchable>(
        self,
        objects: Api<K>,
        config: watcher::Config,
        mut take: impl FnMut(&mut S, K) + Send + 'static,
    ) -> Self {
        self.follow_events(objects, config, move |state, event| {
            if let Event::Apply(object) | Event::InitApply(object) = event {
                take(state, object);
            }
        })
    }

    /// The same with what the watch tells, deletes among it.
    pub fn follow_events<K: Watchable>(
        mut self,
        objects: Api<K>,
        config: watcher::Config,
        mut take: impl FnMut(&mut S, Event<K>) + Send + 'static,
    ) -> Self {
        let state = self.state.clone();
        let take = move |event| state.send_modify(|state| take(state, event));
        self.watches.spawn(each_event(objects, config, take));
        self
    }

    /// Holds up the watches as long as the answer is kept.
    pub fn read(&self) -> watch::Ref<'_, S> {
        self.state.borrow()
    }

    /// Changes the state by what no watch tells.
    pub fn modify(&self, change: impl FnOnce(&mut S)) {
        self.state.send_modify(change);
    }

    /// For those who change it later.
    pub fn handle(&self) -> watch::Sender<S> {
        self.state.clone()
    }

    /// Waits until there is something to find in the state.
    pub async fn until<T>(&self, what: impl Display, within: Duration, find: impl Fn(&S) -> Option<T>) -> Result<T> {
        let mut found = None;
        let mut state = self.state.subscribe();
        let look = |state: &S| {
            found = find(state);
            found.is_some()
        };
        let waited = timeout(within, state.wait_for(look)).await;
        waited.with_context(|| format!("waited {within:?} for {what}"))??;
        found.with_context(|| format!("no {what}"))
    }
}

/// Calls `each` with every object that exists, and with each change, until the returned set is dropped.
pub fn follow<K: Watchable>(
    objects: Api<K>,
    config: watcher::Config,
    mut each: impl FnMut(K) + Send + 'static,
) -> JoinSet<()> {
    Watched::new(())
        .follow(objects, config, move |(), object| each(object))
        .watches
}

async fn each_event<K: Watchable>(objects: Api<K>, config: watcher::Config, mut each: impl FnMut(Event<K>)) {
    let mut events = std::pin::pin!(watcher(objects, config).default_backoff());
    while let Some(event) = events.next().await {
        // The watcher goes on after an error.
        event.into_iter().for_each(&mut each);
    }
}
