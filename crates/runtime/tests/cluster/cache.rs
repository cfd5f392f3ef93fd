//! A cache shows what the API shows, whatever happens in between.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use nodeward_runtime::{Cache, KindState, NamespacedName, Selection, Watches};
use nodeward_testkit::proxy::{Fault, Proxy, Record, Rule, Verb};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, names};
use rstest::rstest;
use serde_json::json;

use crate::access::{allow_reading, client_as, put, remove, requests_to_list};

const PATIENCE: Duration = secs(90);

/// Only the ConfigMaps of the test's own.
pub fn values(watches: &Watches, client: Client, namespace: &str) -> Cache<String> {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    watches.cache("config maps", api, Selection::all(), |object| {
        object.data?.remove("value")
    })
}

pub fn seen(cache: &Cache<String>) -> BTreeMap<String, String> {
    cache
        .snapshot()
        .iter()
        .map(|(key, value)| (key.name.to_string(), value.to_string()))
        .collect()
}

pub async fn shows(cache: &Cache<String>, expected: &[(&str, &str)]) -> Result<()> {
    let expected: BTreeMap<String, String> = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    wait::until("the cache to show the cluster", PATIENCE, || async {
        ensure!(seen(cache) == expected, "{:?} {:?}", seen(cache), cache.health());
        Ok(())
    })
    .await
}

fn is_watch(record: &Record) -> bool {
    record.request.resource == "configmaps" && record.request.verb == Verb::Watch
}

fn is_read(record: &Record) -> bool {
    record.request.resource == "configmaps" && !record.request.is_write()
}

struct Scene {
    admin: Client,
    proxy: Proxy,
    namespace: String,
    cache: Cache<String>,
    watches: Watches,
}

/// A cache behind a proxy, synced with `a=1, b=2, c=3`.
async fn scene() -> Result<Scene> {
    let plane = ControlPlane::shared().await;
    let admin = plane.client().await?;
    let namespace = names::unique("cache");
    plane.namespace(&namespace).await?;
    for (name, value) in [("a", "1"), ("b", "2"), ("c", "3")] {
        put(&admin, &namespace, name, json!({"value": value})).await?;
    }
    let proxy = Proxy::start(plane).await?;
    let watches = Watches::detached();
    let cache = values(&watches, proxy.client()?, &namespace);
    cache.wait_synced().await;
    shows(&cache, &[("a", "1"), ("b", "2"), ("c", "3")]).await?;
    Ok(Scene {
        admin,
        proxy,
        namespace,
        cache,
        watches,
    })
}

impl Scene {
    /// One object of each fate: changed, deleted, deleted and made again, new.
    async fn churn(&self) -> Result<()> {
        put(&self.admin, &self.namespace, "a", json!({"value": "10"})).await?;
        remove(&self.admin, &self.namespace, "b").await?;
        remove(&self.admin, &self.namespace, "c").await?;
        put(&self.admin, &self.namespace, "c", json!({"value": "30"})).await?;
        put(&self.admin, &self.namespace, "d", json!({"value": "40"})).await
    }
}

const AFTER_CHURN: [(&str, &str); 3] = [("a", "10"), ("c", "30"), ("d", "40")];

#[rstest]
#[case::none(vec![])]
#[case::broken_connections(vec![Fault::BrokenConnection; 3])]
#[case::refused_with_410(vec![Fault::Gone])]
#[case::expired_event(vec![Fault::GoneEvent])]
#[case::expired_again_and_again(vec![Fault::GoneEvent, Fault::Gone, Fault::GoneEvent, Fault::Gone])]
#[case::internal_errors(vec![Fault::Status(500, "InternalError"); 3])]
#[case::unavailable(vec![Fault::Status(503, "ServiceUnavailable"); 3])]
#[case::throttled(vec![Fault::TooManyRequests { retry_after: Some(1) }; 2])]
#[case::slow(vec![Fault::Delay(Duration::from_millis(700))])]
#[case::cut_at_once(vec![Fault::CutWatch(Duration::ZERO); 3])]
#[case::everything(vec![
    Fault::CutWatch(Duration::from_millis(50)), Fault::Gone, Fault::Status(500, "InternalError"),
    Fault::BrokenConnection, Fault::GoneEvent,
])]
#[tokio::test(flavor = "multi_thread")]
async fn cache_recovers_from_dropped_watches_and_errors(#[case] faults: Vec<Fault>) -> Result<()> {
    let scene = scene().await?;
    for fault in faults {
        let rule = Rule::new(fault)
            .resource("configmaps")
            .verbs([Verb::Watch, Verb::List])
            .times(1);
        scene.proxy.inject(rule);
    }
    scene.proxy.drop_watches();
    scene.churn().await?;
    shows(&scene.cache, &AFTER_CHURN).await?;
    assert!(scene.cache.is_synced());
    // It goes on.
    put(&scene.admin, &scene.namespace, "e", json!({"value": "50"})).await?;
    shows(&scene.cache, &[("a", "10"), ("c", "30"), ("d", "40"), ("e", "50")]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_unseen_is_shown_as_it_stands() -> Result<()> {
    let scene = scene().await?;
    scene.proxy.freeze().await?;
    scene.churn().await?;
    scene.proxy.thaw_to_present().await?;
    shows(&scene.cache, &AFTER_CHURN).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_stood_still_catches_up() -> Result<()> {
    let scene = scene().await?;
    scene.proxy.freeze().await?;
    scene.churn().await?;
    let late = values(&Watches::detached(), scene.proxy.client()?, &scene.namespace);
    late.wait_synced().await;
    assert_eq!(seen(&late), seen(&scene.cache), "the proxy shows the past to both");
    assert_eq!(seen(&late)["a"], "1");
    scene.proxy.thaw();
    shows(&scene.cache, &AFTER_CHURN).await?;
    shows(&late, &AFTER_CHURN).await
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_fills_and_resumes_with_one_request() -> Result<()> {
    let scene = scene().await?;
    scene.churn().await?;
    shows(&scene.cache, &AFTER_CHURN).await?;
    let filled = requests_to_list()? + 1;
    assert_eq!(scene.proxy.count(is_read), filled, "the list comes with the watch");
    scene.proxy.drop_watches();
    wait::until("a second watch", PATIENCE, || async {
        let reads = scene.proxy.count(is_read);
        ensure!(reads == filled + 1, "{reads}");
        Ok(())
    })
    .await?;
    put(&scene.admin, &scene.namespace, "d", json!({"value": "41"})).await?;
    shows(&scene.cache, &[("a", "10"), ("c", "30"), ("d", "41")]).await?;
    assert_eq!(scene.proxy.count(is_read), filled + 1, "resumed, not listed again");
    assert_eq!(scene.cache.health().lists, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn loop_wakes_only_for_visible_changes() -> Result<()> {
    let scene = scene().await?;
    // What is visible is told of a moment later.
    let mut changes = scene.cache.changes();
    let revision = *changes.wait_for(|revision| *revision > 0).await?;
    for round in 0..5 {
        put(
            &scene.admin,
            &scene.namespace,
            "a",
            json!({"value": "1", "ignored": round.to_string()}),
        )
        .await?;
        put(
            &scene.admin,
            &scene.namespace,
            &format!("unseen-{round}"),
            json!({"other": "1"}),
        )
        .await?;
    }
    put(&scene.admin, &scene.namespace, "z", json!({"value": "26"})).await?;
    shows(&scene.cache, &[("a", "1"), ("b", "2"), ("c", "3"), ("z", "26")]).await?;
    let told = *changes.wait_for(|told| *told > revision).await?;
    assert_eq!(told, revision + 1, "eleven changes, of which one is visible");
    scene.watches.trigger().notified().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_watch_recovers_once_granted() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let admin = plane.client().await?;
    let (namespace, user) = (names::unique("forbidden"), names::unique("user"));
    plane.namespace(&namespace).await?;
    put(&admin, &namespace, "a", json!({"value": "1"})).await?;
    let cache = values(&Watches::detached(), client_as(plane, &user).await?, &namespace);
    let message = wait::until("the refusal", PATIENCE, || async {
        match cache.state() {
            KindState::Forbidden(message) => Ok(message),
            other => anyhow::bail!("{other:?}"),
        }
    })
    .await?;
    assert!(
        message.contains("configmaps") && message.contains(&user),
        "it names the right: {message}"
    );
    assert!(!cache.is_synced());
    allow_reading(&admin, &user, "", "configmaps").await?;
    wait::until("the cache to be filled", PATIENCE, || async {
        ensure!(cache.state() == KindState::Synced(()), "{:?}", cache.state());
        Ok(())
    })
    .await?;
    // The root certificate is in every namespace; it has no value of ours.
    assert_eq!(
        cache
            .get(&NamespacedName::new(namespace.as_str(), "a"))
            .as_deref()
            .map(String::as_str),
        Some("1")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_are_left_to_the_server() -> Result<()> {
    let scene = scene().await?;
    let api: Api<ConfigMap> = Api::namespaced(scene.proxy.client()?, &scene.namespace);
    let only_a = Selection::all().fields("metadata.name=a");
    let cache = scene
        .watches
        .cache("one", api, only_a, |object| object.data?.remove("value"));
    cache.wait_synced().await;
    assert_eq!(seen(&cache), BTreeMap::from([("a".to_owned(), "1".to_owned())]));
    let selected = |record: &Record| is_watch(record) && record.request.uri.contains("fieldSelector=metadata.name");
    // Of those that list on their own the first is refused.
    let refused = requests_to_list()? / 2;
    wait::until("one watch that is served", PATIENCE, || async {
        let asked = scene.proxy.count(selected);
        ensure!(asked == refused + 1, "{asked}");
        Ok(())
    })
    .await
}
