//! The faults of the proxy, seen by a client behind it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{FutureExt, Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use nodeward_testkit::proxy::{Fault, Gate, Outcome, Proxy, Rule, Stage, Verb, Verdict};
use nodeward_testkit::wait::secs;
use nodeward_testkit::{ControlPlane, names};
use serde_json::json;

/// ConfigMaps in a namespace of the test's own, seen directly and through a proxy.
struct Bench {
    proxy: Proxy,
    direct: Api<ConfigMap>,
    through: Api<ConfigMap>,
}

impl Bench {
    async fn new() -> Result<Self> {
        let plane = ControlPlane::shared().await;
        let namespace = names::unique("proxy");
        plane.namespace(&namespace).await?;
        let proxy = Proxy::start(plane).await?;
        let direct = Api::namespaced(plane.client().await?, &namespace);
        let through = Api::namespaced(proxy.client()?, &namespace);
        // The control plane puts a ConfigMap of its own into each namespace.
        let bench = Self { proxy, direct, through };
        nodeward_testkit::wait::until("the root certificate", secs(60), || async {
            Ok(bench.direct.get("kube-root-ca.crt").await.map(drop)?)
        })
        .await?;
        Ok(bench)
    }

    async fn write(api: &Api<ConfigMap>, name: &str, value: &str) -> kube::Result<ConfigMap> {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}});
        api.patch(name, &PatchParams::apply("testbed"), &Patch::Apply(map))
            .await
    }

    async fn create(api: &Api<ConfigMap>, name: &str) -> kube::Result<ConfigMap> {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        api.create(&PostParams::default(), &map).await
    }

    /// What a watch tells, as `ADDED name`; errors by their code, bookmarks as such.
    async fn watch(&self, params: &WatchParams, version: &str) -> Result<impl Stream<Item = Result<String>> + use<>> {
        let events = self.through.watch(params, version).await?;
        let name = |map: &ConfigMap| map.metadata.name.clone().unwrap_or_default();
        Ok(events
            .err_into()
            .map_ok(move |event| match &event {
                WatchEvent::Added(map) => format!("ADDED {}", name(map)),
                WatchEvent::Modified(map) => format!("MODIFIED {}", name(map)),
                WatchEvent::Deleted(map) => format!("DELETED {}", name(map)),
                WatchEvent::Bookmark(_) => "BOOKMARK".to_owned(),
                WatchEvent::Error(error) => format!("ERROR {}", error.code),
            })
            .boxed())
    }

    async fn version(&self) -> Result<String> {
        self.direct
            .list(&ListParams::default())
            .await?
            .metadata
            .resource_version
            .context("a version")
    }
}

async fn next(events: &mut (impl Stream<Item = Result<String>> + Unpin)) -> Result<String> {
    match tokio::time::timeout(secs(60), events.next()).await {
        Ok(Some(event)) => event,
        Ok(None) => bail!("the watch ended"),
        Err(_) => bail!("the watch told nothing"),
    }
}

fn code(outcome: kube::Result<ConfigMap>) -> (u16, String) {
    match outcome {
        Ok(_) => (200, String::new()),
        Err(kube::Error::Api(status)) => (status.code, status.reason),
        Err(other) => (0, other.to_string()),
    }
}

#[tokio::test]
async fn injected_status_hits_named_requests_and_counts() -> Result<()> {
    let bench = Bench::new().await?;
    let cases = [
        (Fault::TooManyRequests { retry_after: Some(1) }, 429, "TooManyRequests"),
        (Fault::BudgetRefusal { retry_after: None }, 429, "TooManyRequests"),
        (Fault::Status(500, "InternalError"), 500, "InternalError"),
        (Fault::Gone, 410, "Expired"),
    ];
    for (n, (fault, expected, reason)) in cases.into_iter().enumerate() {
        let name = format!("map-{n}");
        bench
            .proxy
            .inject(Rule::new(fault).verbs([Verb::Create]).resource("configmaps").times(2));
        assert_eq!(
            bench.through.list(&ListParams::default()).await?.items.len(),
            n + 1,
            "reads are not met"
        );
        for _ in 0..2 {
            assert_eq!(
                code(Bench::create(&bench.through, &name).await),
                (expected, reason.to_owned())
            );
        }
        assert_eq!(code(Bench::create(&bench.through, &name).await).0, 200);
    }
    let injected = |outcome: Outcome| matches!(outcome, Outcome::Injected(_));
    assert_eq!(bench.proxy.count(|record| injected(record.outcome)), 8);
    Ok(())
}

#[tokio::test]
async fn injected_budget_refusal_carries_its_cause() -> Result<()> {
    let bench = Bench::new().await?;
    bench
        .proxy
        .inject(Rule::new(Fault::BudgetRefusal { retry_after: Some(7) }));
    let Err(kube::Error::Api(status)) = bench.through.get("kube-root-ca.crt").await else {
        bail!("not refused")
    };
    let details = status.details.context("details")?;
    assert_eq!(details.causes[0].reason, "DisruptionBudget");
    assert_eq!(details.retry_after_seconds, 7);
    Ok(())
}

#[tokio::test]
async fn lost_reply_writes_and_broken_connection_does_not() -> Result<()> {
    let bench = Bench::new().await?;
    bench
        .proxy
        .inject(Rule::new(Fault::LostReply).writes().name("lost").times(1));
    bench
        .proxy
        .inject(Rule::new(Fault::BrokenConnection).writes().name("broken").times(1));
    assert_eq!(code(Bench::write(&bench.through, "lost", "1").await).0, 0);
    assert_eq!(code(Bench::write(&bench.through, "broken", "1").await).0, 0);
    assert!(bench.direct.get_opt("lost").await?.is_some());
    assert!(bench.direct.get_opt("broken").await?.is_none());
    let outcomes: Vec<Outcome> = bench
        .proxy
        .journal()
        .into_iter()
        .filter(|record| record.request.is_write())
        .map(|record| record.outcome)
        .collect();
    assert_eq!(outcomes, [Outcome::Lost(201), Outcome::Broken]);
    Ok(())
}

#[tokio::test]
async fn a_delay_holds_a_request_back() -> Result<()> {
    let bench = Bench::new().await?;
    let rule = bench
        .proxy
        .inject(Rule::new(Fault::Delay(Duration::from_millis(300))).verbs([Verb::Get]));
    let began = Instant::now();
    bench.through.get("kube-root-ca.crt").await?;
    assert!(began.elapsed() >= Duration::from_millis(300));
    bench.proxy.remove(rule);
    let record = bench.proxy.journal().pop().context("a record")?;
    let took = record.answered.context("answered")?.duration_since(record.request.at);
    assert!(took >= jiff::SignedDuration::from_millis(300), "{took}");
    Ok(())
}

#[tokio::test]
async fn watches_break_by_drop_cut_and_410() -> Result<()> {
    let bench = Bench::new().await?;
    let version = bench.version().await?;
    let mut dropped = bench.watch(&WatchParams::default(), &version).await?;
    bench.proxy.drop_watches();
    assert!(next(&mut dropped).await.is_err());

    bench.proxy.inject(
        Rule::new(Fault::CutWatch(Duration::from_millis(100)))
            .verbs([Verb::Watch])
            .times(1),
    );
    let mut cut = bench.watch(&WatchParams::default(), &version).await?;
    assert!(next(&mut cut).await.is_err());

    bench
        .proxy
        .inject(Rule::new(Fault::GoneEvent).verbs([Verb::Watch]).times(1));
    let mut gone = bench.watch(&WatchParams::default(), &version).await?;
    assert_eq!(next(&mut gone).await?, "ERROR 410");

    bench.proxy.inject(Rule::new(Fault::Gone).verbs([Verb::Watch]).times(1));
    // kube hands a refused watch on as a stream that fails at once.
    let mut refused = bench.watch(&WatchParams::default(), &version).await?;
    let refusal = next(&mut refused).await;
    ensure!(
        refusal.is_err() || refusal.as_ref().is_ok_and(|told| told == "ERROR 410"),
        "{refusal:?}"
    );
    let last = bench.proxy.journal().pop().context("a record")?;
    assert_eq!(last.outcome, Outcome::Injected(410));
    Ok(())
}

#[tokio::test]
async fn frozen_view_spares_quorum_reads() -> Result<()> {
    let bench = Bench::new().await?;
    Bench::write(&bench.direct, "before", "1").await?;
    let mut open = bench.watch(&WatchParams::default(), &bench.version().await?).await?;
    bench.proxy.freeze().await?;
    Bench::write(&bench.direct, "before", "2").await?;
    Bench::write(&bench.direct, "after", "1").await?;
    bench
        .direct
        .delete("kube-root-ca.crt", &DeleteParams::default())
        .await?;

    // Quorum reads.
    let all = bench.through.list(&ListParams::default()).await?;
    assert!(
        all.items
            .iter()
            .any(|map| map.metadata.name.as_deref() == Some("after"))
    );
    assert!(bench.through.get_opt("after").await?.is_some());
    // Lists that fill a cache.
    for params in [ListParams::default().limit(500), ListParams::default().match_any()] {
        let names: Vec<_> = bench
            .through
            .list(&params)
            .await?
            .items
            .into_iter()
            .filter_map(|map| map.metadata.name)
            .collect();
        assert_eq!(names, ["before", "kube-root-ca.crt"]);
    }
    // A watch that begins with the list, as of a client that restarts.
    let streamed = WatchParams {
        send_initial_events: true,
        bookmarks: true,
        ..WatchParams::default()
    };
    let mut restarted = bench.watch(&streamed, "").await?;
    for expected in ["ADDED before", "ADDED kube-root-ca.crt", "BOOKMARK"] {
        assert_eq!(next(&mut restarted).await?, expected);
    }
    // The same for metadata alone, which comes in another form.
    let mut metadata = bench.through.watch_metadata(&streamed, "").await?.boxed();
    let first = tokio::time::timeout(secs(60), metadata.try_next()).await??;
    ensure!(
        matches!(&first, Some(WatchEvent::Added(map)) if map.metadata.name.as_deref() == Some("before")),
        "{first:?}"
    );
    for events in [&mut open, &mut restarted] {
        let told = tokio::time::timeout(Duration::from_millis(300), events.next()).await;
        ensure!(told.is_err(), "{told:?} while the view stood still");
    }

    bench.proxy.thaw();
    for events in [&mut open, &mut restarted] {
        for expected in ["MODIFIED before", "ADDED after", "DELETED kube-root-ca.crt"] {
            assert_eq!(next(events).await?, expected);
        }
    }
    Ok(())
}

#[tokio::test]
async fn thaw_to_present_skips_missed_changes() -> Result<()> {
    let bench = Bench::new().await?;
    Bench::write(&bench.direct, "flapping", "1").await?;
    let version = bench.version().await?;
    let mut open = bench.watch(&WatchParams::default(), &version).await?;
    bench.proxy.freeze().await?;
    Bench::write(&bench.direct, "flapping", "2").await?;
    Bench::write(&bench.direct, "flapping", "3").await?;
    bench.proxy.thaw_to_present().await?;

    assert!(next(&mut open).await.is_err(), "the watch breaks");
    let mut resumed = bench.watch(&WatchParams::default(), &version).await?;
    assert_eq!(next(&mut resumed).await?, "ERROR 410");
    let mut again = bench.watch(&WatchParams::default(), &bench.version().await?).await?;
    Bench::write(&bench.direct, "flapping", "4").await?;
    assert_eq!(next(&mut again).await?, "MODIFIED flapping");
    Ok(())
}

#[tokio::test]
async fn gate_stops_before_and_after_each_write() -> Result<()> {
    let bench = Bench::new().await?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    bench.proxy.set_gate(Some(Gate::new(move |write| {
        noted
            .lock()
            .unwrap()
            .push((write.number, write.stage, write.request.name.clone()));
        let cut = match write.stage {
            Stage::Before => write.number == 2,
            Stage::After(_) => write.number == 3,
        };
        async move { if cut { Verdict::Cut } else { Verdict::Pass } }.boxed()
    })));
    for name in ["one", "two", "three"] {
        let passed = code(Bench::write(&bench.through, name, "1").await).0 == 200;
        assert_eq!(passed, name == "one");
    }
    bench.through.get("one").await?;
    bench.proxy.set_gate(None);
    Bench::write(&bench.through, "four", "1").await?;

    let expected = [
        (1, Stage::Before, "one"),
        (1, Stage::After(201), "one"),
        (2, Stage::Before, "two"),
        (3, Stage::Before, "three"),
        (3, Stage::After(201), "three"),
    ];
    let seen = seen.lock().unwrap().clone();
    assert_eq!(
        seen,
        expected.map(|(number, stage, name)| (number, stage, name.to_owned()))
    );
    assert!(bench.direct.get_opt("two").await?.is_none());
    assert!(bench.direct.get_opt("three").await?.is_some());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn confined_lists_and_watches_bring_labelled_objects() -> Result<()> {
    let bench = Bench::new().await?;
    let label = |value: &str| json!({"metadata": {"labels": {"test.nodeward.dev/site": value}}});
    for (name, site) in [("inside", "one"), ("outside", "two")] {
        Bench::create(&bench.direct, name).await?;
        let patch = Patch::Merge(label(site));
        bench.direct.patch(name, &PatchParams::default(), &patch).await?;
    }
    bench.proxy.confine("configmaps", "test.nodeward.dev/site", "one");
    let listed = bench.through.list(&ListParams::default()).await?;
    let names: Vec<_> = listed
        .items
        .iter()
        .filter_map(|map| map.metadata.name.as_deref())
        .collect();
    ensure!(names == ["inside"], "{names:?}");
    // Combined with a selector of the client's own.
    let other = ListParams::default().labels("test.nodeward.dev/site=two");
    ensure!(bench.through.list(&other).await?.items.is_empty());
    let version = bench.version().await?;
    let mut events = bench.watch(&WatchParams::default(), &version).await?;
    Bench::write(&bench.direct, "outside", "changed").await?;
    Bench::write(&bench.direct, "inside", "changed").await?;
    ensure!(next(&mut events).await? == "MODIFIED inside");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn muted_watch_stays_open_and_its_successor_is_sound() -> Result<()> {
    let bench = Bench::new().await?;
    let version = bench.version().await?;
    let mut muted = bench.watch(&WatchParams::default(), &version).await?;
    Bench::write(&bench.direct, "a", "1").await?;
    assert_eq!(next(&mut muted).await?, "ADDED a");
    bench.proxy.mute_watches(|request| request.resource == "configmaps");
    Bench::write(&bench.direct, "b", "1").await?;
    let mut successor = bench.watch(&WatchParams::default(), &version).await?;
    assert_eq!(next(&mut successor).await?, "ADDED a");
    assert_eq!(next(&mut successor).await?, "ADDED b");
    let told = tokio::time::timeout(secs(2), muted.next()).await;
    ensure!(told.is_err(), "{:?}", told.map(|told| told.map(drop)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_answers_nothing_and_writes_nothing() -> Result<()> {
    let bench = Bench::new().await?;
    bench.proxy.inject(Rule::new(Fault::Silence).writes().times(1));
    let silent = tokio::time::timeout(secs(2), Bench::create(&bench.through, "a")).await;
    ensure!(silent.is_err(), "it was answered");
    Bench::create(&bench.through, "a").await?;
    Ok(())
}
