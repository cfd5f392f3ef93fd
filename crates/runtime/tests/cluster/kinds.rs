//! Kinds that appear late, go, and come back.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use nodeward_core::signal::WatchedResource;
use nodeward_runtime::{DynamicCache, KindRegistry, KindState, NamespacedName, Watches};
use nodeward_testkit::proxy::{Proxy, Record, Verb};
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, bulk, names};
use serde_json::json;

use crate::access::{allow_reading, client_as, requests_to_list};

const PATIENCE: Duration = secs(90);

/// A kind of a group of the test's own, so that tests do not see each other's.
struct Kind {
    group: String,
    client: Client,
}

impl Kind {
    fn of_its_own(client: &Client) -> Self {
        Self {
            group: format!("{}.example.com", names::unique("kinds")),
            client: client.clone(),
        }
    }

    fn resource(&self) -> WatchedResource {
        WatchedResource::all(&format!("{}/v1", self.group), "Signal")
    }

    fn definitions(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.client.clone())
    }

    async fn define(&self) -> Result<()> {
        let definition: CustomResourceDefinition = serde_json::from_value(json!({
            "metadata": {"name": format!("signals.{}", self.group)},
            "spec": {
                "group": self.group,
                "scope": "Cluster",
                "names": {"plural": "signals", "singular": "signal", "kind": "Signal", "listKind": "SignalList"},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }],
            },
        }))?;
        bulk::create_one(self.client.clone(), definition).await?;
        Ok(())
    }

    async fn undefine(&self) -> Result<()> {
        let name = format!("signals.{}", self.group);
        self.definitions().delete(&name, &DeleteParams::default()).await?;
        wait::until("the definition to be gone", PATIENCE, || async {
            ensure!(self.definitions().get_opt(&name).await?.is_none(), "still there");
            Ok(())
        })
        .await
    }

    /// A definition is served a moment after it is stored.
    async fn signal(&self, name: &str, phase: &str) -> Result<()> {
        let resource =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(&self.group, "v1", "Signal"), "signals");
        let signals: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let object = DynamicObject::new(name, &resource).data(json!({"phase": phase}));
        wait::until("the kind to be served", PATIENCE, || async {
            Ok(signals.create(&PostParams::default(), &object).await.map(drop)?)
        })
        .await
    }

    fn phases(&self, watches: &Watches, kinds: &KindRegistry) -> DynamicCache<String> {
        let phase = |object: DynamicObject| Some(object.data.get("phase")?.as_str()?.to_owned());
        watches.dynamic("signals", kinds, self.resource(), phase)
    }
}

async fn reaches(cache: &DynamicCache<String>, expected: &KindState) -> Result<()> {
    wait::until(format!("{expected:?}"), PATIENCE, || async {
        ensure!(cache.state() == *expected, "{:?}", cache.state());
        Ok(())
    })
    .await
}

async fn shows(cache: &DynamicCache<String>, name: &str, expected: &str) -> Result<()> {
    wait::until("the object", PATIENCE, || async {
        let found = cache.get(&NamespacedName::cluster(name));
        ensure!(
            found.as_deref().map(String::as_str) == Some(expected),
            "{found:?} {:?}",
            cache.state()
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_followed_as_they_come_and_go() -> Result<()> {
    let admin = ControlPlane::shared().await.client().await?;
    let kind = Kind::of_its_own(&admin);
    let watches = Watches::detached();
    let kinds = KindRegistry::spawn(&watches, admin.clone());
    let cache = kind.phases(&watches, &kinds);
    reaches(&cache, &KindState::Absent).await?;
    assert!(cache.is_settled() && cache.snapshot().is_empty());

    for phase in ["Pending", "Upgrading"] {
        kind.define().await?;
        kind.signal("now", phase).await?;
        shows(&cache, "now", phase).await?;
        assert_eq!(cache.state(), KindState::Synced(()));
        kind.undefine().await?;
        reaches(&cache, &KindState::Absent).await?;
        assert!(cache.snapshot().is_empty(), "what was known of a kind goes with it");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_and_builtin_kinds_are_served() -> Result<()> {
    let admin = ControlPlane::shared().await.client().await?;
    let kind = Kind::of_its_own(&admin);
    kind.define().await?;
    kind.signal("now", "Upgrading").await?;
    let watches = Watches::detached();
    let kinds = KindRegistry::spawn(&watches, admin.clone());
    let cache = kind.phases(&watches, &kinds);
    shows(&cache, "now", "Upgrading").await?;

    let built_in = WatchedResource::all("v1", "Namespace").named("kube-system");
    let namespaces = watches.dynamic("namespaces", &kinds, built_in, |object| object.metadata.name);
    shows(&namespaces, "kube-system", "kube-system").await?;
    assert_eq!(namespaces.snapshot().len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn absent_kind_is_not_polled() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let proxy = Proxy::start(plane).await?;
    let admin = plane.client().await?;
    let (absent, other) = (Kind::of_its_own(&admin), Kind::of_its_own(&admin));
    let watches = Watches::detached();
    let kinds = KindRegistry::spawn(&watches, proxy.client()?);
    let cache = absent.phases(&watches, &kinds);
    reaches(&cache, &KindState::Absent).await?;
    kinds.wait_synced().await;

    let group = absent.group.clone();
    let of_the_group = move |record: &Record| record.request.uri.contains(&group);
    let asked = proxy.count(&of_the_group);
    // Another group's definition comes and goes.
    other.define().await?;
    let seen = other.phases(&watches, &kinds);
    reaches(&seen, &KindState::Synced(())).await?;
    other.undefine().await?;
    reaches(&seen, &KindState::Absent).await?;
    assert_eq!(proxy.count(&of_the_group), asked);
    let definitions = |record: &Record| record.request.resource == "customresourcedefinitions";
    let listed = requests_to_list()?;
    assert_eq!(proxy.count(definitions), listed + 1, "one watch serves all kinds");
    let whole = |record: &Record| definitions(record) && record.request.verb != Verb::Watch;
    assert_eq!(proxy.count(whole), listed / 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_kind_differs_from_absent() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let admin = plane.client().await?;
    let kind = Kind::of_its_own(&admin);
    kind.define().await?;
    kind.signal("now", "Upgrading").await?;
    let user = names::unique("user");
    let watches = Watches::detached();
    // Definitions may not be read either: discovery, which everybody may ask, is enough.
    let kinds = KindRegistry::spawn(&watches, client_as(plane, &user).await?);
    let cache = kind.phases(&watches, &kinds);
    wait::until("the refusal", PATIENCE, || async {
        match cache.state() {
            KindState::Forbidden(message) if message.contains("signals") => Ok(()),
            other => bail!("{other:?}"),
        }
    })
    .await?;
    allow_reading(&admin, &user, &kind.group, "signals").await?;
    shows(&cache, "now", "Upgrading").await
}
