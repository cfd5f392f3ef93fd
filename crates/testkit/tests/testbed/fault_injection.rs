//! Each fault injection finds the fault that is planted for it, and a sound operator passes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use nodeward_testkit::cluster;
use nodeward_testkit::control_plane::client_from;
use nodeward_testkit::fault_injection::{self, OperatorProcess, Point, Report, Scenario, TestEnv};
use nodeward_testkit::process::Process;
use nodeward_testkit::wait::secs;
use rstest::rstest;
use serde_json::{Value, json};

const MODE: &str = "SAMPLE_OPERATOR_MODE";
const NAMESPACE: &str = "SAMPLE_OPERATOR_NAMESPACE";

/// Lines of the sample operator's log.
const STARTED: &str = "sample operator: started";
const RECONCILED: &str = "sample operator: reconciled";

/// What the sample operator does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// It takes its first write for the whole work.
    HalfDoneIsDone,
    /// It deletes on the word of its cache.
    TrustsItsCache,
    /// It acts only when it sees the switch go from off to on.
    NeedsToSeeEveryChange,
}

impl Fault {
    const ALL: [Self; 4] = [
        Self::None,
        Self::HalfDoneIsDone,
        Self::TrustsItsCache,
        Self::NeedsToSeeEveryChange,
    ];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| format!("{fault:?}") == name)
    }
}

/// A small operator. While the ConfigMap `wanted` is switched on, `first` and then `second` follow its revision; while
/// it is off, there is no `first`.
struct Sample {
    maps: Api<ConfigMap>,
    fault: Fault,
    seen_off: bool,
}

impl Sample {
    async fn reconcile(&mut self, wanted: &ConfigMap) -> Result<()> {
        if !is_on(wanted) {
            self.seen_off = true;
            return self.switch_off().await;
        }
        if self.fault == Fault::NeedsToSeeEveryChange && !std::mem::take(&mut self.seen_off) {
            return Ok(());
        }
        let revision = value(wanted, "revision").context("no revision")?;
        let first = self.maps.get_opt("first").await?;
        let is_current = first.is_some_and(|first| value(&first, "revision") == Some(revision));
        if self.fault == Fault::HalfDoneIsDone && is_current {
            return Ok(());
        }
        put(&self.maps, "sample", "first", json!({"revision": revision})).await?;
        put(&self.maps, "sample", "second", json!({"revision": revision})).await
    }

    async fn switch_off(&self) -> Result<()> {
        let certain = self.fault == Fault::TrustsItsCache || !is_on(&self.maps.get("wanted").await?);
        if certain && self.maps.get_opt("first").await?.is_some() {
            self.maps.delete("first", &DeleteParams::default()).await?;
        }
        Ok(())
    }
}

fn value<'a>(map: &'a ConfigMap, key: &str) -> Option<&'a str> {
    map.data.as_ref()?.get(key).map(String::as_str)
}

fn is_on(wanted: &ConfigMap) -> bool {
    value(wanted, "switch") == Some("on")
}

/// `by` is the field manager: what one has put there, the other leaves there.
async fn put(maps: &Api<ConfigMap>, by: &str, name: &str, data: Value) -> Result<()> {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    maps.patch(name, &PatchParams::apply(by).force(), &Patch::Apply(map))
        .await?;
    Ok(())
}

#[tokio::test]
#[ignore = "the operator of the tests beside it, a process of its own"]
async fn sample_operator() -> Result<()> {
    let client = client_from(std::env::var("KUBECONFIG")?).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client, &std::env::var(NAMESPACE)?);
    let fault = std::env::var(MODE)
        .ok()
        .and_then(|name| Fault::named(&name))
        .context(MODE)?;
    let mut sample = Sample {
        maps: maps.clone(),
        fault,
        seen_off: fault == Fault::NeedsToSeeEveryChange,
    };
    println!("{STARTED}");
    let only = watcher::Config::default().fields("metadata.name=wanted");
    let mut wanted = watcher(maps, only).default_backoff().applied_objects().boxed();
    loop {
        // What a watch cannot deliver, it delivers later.
        let Ok(Some(seen)) = wanted.try_next().await else {
            continue;
        };
        println!("saw {:?}", seen.data);
        while let Err(error) = sample.reconcile(&seen).await {
            println!("again: {error:#}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("{RECONCILED}");
    }
}

/// The sample operator's process.
struct SampleProcess(Process);

impl OperatorProcess for SampleProcess {
    fn process(&self) -> &Process {
        &self.0
    }

    async fn has_started(&self) -> Result<()> {
        let log = std::fs::read_to_string(self.0.log())?;
        let (_, last_run) = log.rsplit_once(STARTED).context("it has not started")?;
        ensure!(last_run.contains(RECONCILED), "it has not reconciled");
        Ok(())
    }
}

/// The test binary again, as the sample operator.
fn launch(env: &TestEnv, fault: Fault) -> Result<SampleProcess> {
    let server = cluster::server(env.proxy.url(), env.proxy.ca());
    let kubeconfig = cluster::kubeconfig(&server, "nobody", &json!({}));
    let file = env.plane.dir().join(&env.name);
    std::fs::write(&file, kubeconfig.to_string())?;
    let operator = Process::new("sample", std::env::current_exe()?, file.with_extension("log"))
        .args([
            "fault_injection::sample_operator",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env("KUBECONFIG", &file)
        .env(NAMESPACE, &env.name)
        .env(MODE, format!("{fault:?}"));
    operator.start()?;
    Ok(SampleProcess(operator))
}

fn maps(client: &Client, env: &TestEnv) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), &env.name)
}

async fn turn(env: &TestEnv, switch: &str, revision: &str) -> Result<()> {
    let data = json!({"switch": switch, "revision": revision});
    put(&maps(&env.client, env), "testbed", "wanted", data).await
}

async fn follows(env: &TestEnv, revision: &str) -> Result<()> {
    for name in ["first", "second"] {
        let map = maps(&env.client, env)
            .get_opt(name)
            .await?
            .with_context(|| format!("no {name}"))?;
        let now = value(&map, "revision");
        ensure!(now == Some(revision), "{name} is at {now:?}");
    }
    Ok(())
}

/// On, and then off and on again without a pause.
fn flapping() -> Scenario<()> {
    Scenario::new("a switch that flaps", |env: TestEnv| async move {
        env.plane.namespace(&env.name).await?;
        turn(&env, "on", "1").await
    })
    .effect("both follow", |env, _| async move { follows(&env, "1").await })
    .event("off", |env, _| async move { turn(&env, "off", "2").await })
    .event("on", |env, _| async move { turn(&env, "on", "3").await })
    .end(|env, _| async move { follows(&env, "3").await })
    .within(secs(30))
    .stays(Duration::from_millis(500))
}

/// Off at first; then somebody switches it on and makes `first` himself, which must not be lost.
fn taken_over() -> Scenario<()> {
    Scenario::new("a switch that is taken over", |env: TestEnv| async move {
        env.plane.namespace(&env.name).await?;
        turn(&env, "off", "1").await
    })
    .event("on", |env, _| async move {
        turn(&env, "on", "2").await?;
        let mut precious = json!({"revision": "2"});
        precious["precious"] = json!("yes");
        put(&maps(&env.client, &env), "testbed", "first", precious).await
    })
    .end(|env, _| async move {
        follows(&env, "2").await?;
        let first = maps(&env.client, &env).get("first").await?;
        ensure!(
            value(&first, "precious").is_some(),
            "what was precious is gone, now {}",
            first.name_any()
        );
        Ok(())
    })
    .within(secs(30))
    .stays(Duration::from_millis(500))
}

async fn report_of(scenario: Scenario<()>, fault: Fault) -> Result<Report> {
    fault_injection::run_with_faults(&scenario.at_once(3), |env| async move { launch(&env, fault) }).await
}

fn failed(report: &Report, is_meant: impl Fn(Point) -> bool) -> (usize, usize) {
    let meant = report.failures.iter().filter(|failure| is_meant(failure.point)).count();
    (meant, report.failures.len() - meant)
}

#[rstest]
#[case::flapping(flapping(), 2)]
#[case::taken_over(taken_over(), 1)]
#[tokio::test(flavor = "multi_thread")]
async fn sound_operator_passes_every_fault(#[case] scenario: Scenario<()>, #[case] events: usize) -> Result<()> {
    let report = report_of(scenario, Fault::None).await?.same_end()?;
    assert!(report.writes >= 2);
    assert_eq!(report.stale(), 2 * events);
    assert_eq!(report.unobserved(), events - 1);
    assert!(report.intermediate() >= 3, "{report}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_between_writes_finds_half_done_work() -> Result<()> {
    let report = report_of(flapping(), Fault::HalfDoneIsDone).await?;
    let (meant, _) = failed(&report, |point| matches!(point, Point::AfterWrite(_)));
    assert!(meant >= 1, "{report}");
    assert!(report.same_end().is_err());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_view_finds_blind_cache_trust() -> Result<()> {
    let report = report_of(taken_over(), Fault::TrustsItsCache).await?;
    let after_a_restart = |point| matches!(point, Point::StaleView { restart: true, .. });
    assert_eq!(failed(&report, after_a_restart).0, 1, "{report}\n{:?}", report.failures);
    // One that is slow to start may act on the old view without a restart, too; nothing else finds this fault.
    let (_, others) = failed(&report, |point| matches!(point, Point::StaleView { .. }));
    assert_eq!(others, 0, "{report}\n{:?}", report.failures);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unobserved_state_finds_edge_triggered_operator() -> Result<()> {
    let report = report_of(flapping(), Fault::NeedsToSeeEveryChange).await?;
    let (meant, _) = failed(&report, |point| matches!(point, Point::UnobservedState { .. }));
    assert_eq!(meant, 1, "{report}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_invariant_fails_despite_expected_end() -> Result<()> {
    let scenario = flapping().throughout(|env, _| async move {
        let second = maps(&env.client, &env).get_opt("second").await?;
        ensure!(
            second.is_none_or(|second| value(&second, "revision") != Some("3")),
            "revision 3 is there"
        );
        Ok(())
    });
    let plain = fault_injection::run_plain(&scenario, |env| async move { launch(&env, Fault::None) }).await;
    let error = format!("{:#}", plain.expect_err("a broken invariant"));
    assert!(error.contains("an invariant is broken: revision 3 is there"), "{error}");
    Ok(())
}
