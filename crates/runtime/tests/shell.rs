//! The shell around an operator, seen from outside: `examples/minimal_operator.rs` as a process, on a control plane.
#![allow(clippy::unwrap_used)] // the lint spares test functions, not what they share

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};
use nodeward_testkit::process::{Process, Signal};
use nodeward_testkit::{ControlPlane, binaries, names, ports, wait};
use rstest::rstest;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(90);

/// `cargo test` builds the examples of a crate along with all of its tests, but not with a single one.
fn program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let test = std::env::current_exe().unwrap();
        let profile = test.parent().and_then(Path::parent).unwrap();
        let mut build = binaries::cargo();
        build.args([
            "build",
            "--quiet",
            "--package",
            "nodeward-runtime",
            "--example",
            "minimal_operator",
        ]);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the example does not build");
        profile.join("examples/minimal_operator")
    });
    &PROGRAM
}

fn without_cluster(args: &[&str]) -> Output {
    let mut command = Command::new(program());
    command
        .args(args)
        .env("KUBECONFIG", "/nonexistent")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[rstest]
#[case("--version", "minimal-operator 0.1.0")]
#[case("--help", "NODEWARD_ADMIN_BIND")]
fn version_and_help_need_no_cluster(#[case] flag: &str, #[case] shown: &str) {
    let output = without_cluster(&[flag]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains(shown));
}

#[rstest]
#[case::flag(&["--leader-elect", "perhaps"], "perhaps")]
#[case::log_level(&["--log-level", "loud"], "use a level")]
#[case::unreadable_config(&["--config", "/nonexistent/f.yaml"], "/nonexistent/f.yaml: cannot be read")]
fn bad_arguments_exit_with_2_and_name_the_fault(#[case] args: &[&str], #[case] fault: &str) {
    let output = without_cluster(args);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains(fault), "{}", stderr(&output));
}

#[rstest]
#[case::wrong_type(
    "greeting: hi\nrepeat: often\n",
    ":2:9: repeat: invalid type: string \"often\", expected u32"
)]
#[case::unknown_field(
    "greting: hi\n",
    ":1:1: greting: unknown field `greting`, expected `greeting` or `repeat`"
)]
#[case::refused_by_the_operator("greeting: hi\nrepeat: 0\n", ":2:9: repeat: must be at least 1")]
fn bad_config_exits_2_with_position(#[case] text: &str, #[case] fault: &str) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("config.yaml");
    std::fs::write(&path, text).unwrap();
    let flag = ["--config", path.to_str().unwrap()];
    for args in [&flag[..], &[&["check"], &flag[..]].concat()] {
        let output = without_cluster(args);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(
            stderr(&output).contains(&format!("{}{fault}", path.display())),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn valid_config_is_checked_without_cluster() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("config.yaml");
    std::fs::write(&path, "greeting: hi\n").unwrap();
    let output = without_cluster(&["check", "--config", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, format!("{}: valid\n", path.display()));
}

#[test]
fn check_without_file_exits_2() {
    let output = without_cluster(&["check"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--config"), "{}", stderr(&output));
}

/// The chart gives its own flags first, and then those of its user.
#[test]
fn flag_given_twice_takes_the_last() {
    let output = without_cluster(&["--config=/first", "--config=/last", "--dry-run", "--dry-run=false"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("/last: cannot be read"), "{}", stderr(&output));
}

#[test]
fn missing_cluster_exits_1_with_hint() {
    let output = without_cluster(&["--admin-bind", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("set KUBECONFIG"), "{}", stderr(&output));
}

#[test]
fn taken_address_exits_1_with_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = without_cluster(&["--admin-bind", &address]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains(&address) && stderr(&output).contains("--admin-bind"),
        "{}",
        stderr(&output)
    );
}

/// A namespace of one's own, with what the operators in it leave there.
struct Place {
    plane: &'static ControlPlane,
    client: Client,
    namespace: String,
    directory: TempDir,
}

impl Place {
    async fn new() -> Result<Self> {
        let plane = ControlPlane::shared().await;
        let namespace = names::unique("shell");
        plane.namespace(&namespace).await?;
        Ok(Self {
            plane,
            client: plane.client().await?,
            namespace,
            directory: TempDir::new()?,
        })
    }

    fn config(&self) -> PathBuf {
        self.directory.path().join("config.yaml")
    }

    fn start(&self, identity: &str, flags: &[&str]) -> Result<Operator> {
        let port = ports::free()?;
        let process = Process::new(
            identity,
            program(),
            self.directory.path().join(format!("{identity}.log")),
        )
        .env("KUBECONFIG", self.plane.kubeconfig())
        .args(["--namespace", &self.namespace, "--identity", identity])
        .args(["--admin-bind", &format!("127.0.0.1:{port}")])
        .args(flags);
        process.start()?;
        Ok(Operator { process, port })
    }

    async fn holder(&self, lease: &str) -> Result<String> {
        let lease = Api::<Lease>::namespaced(self.client.clone(), &self.namespace)
            .get(lease)
            .await?;
        Ok(lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default())
    }

    async fn until_held_by(&self, lease: &str, expected: &str) -> Result<()> {
        wait::until(format!("{lease} to be held by {expected:?}"), PATIENCE, || async {
            let holder = self.holder(lease).await?;
            ensure!(holder == expected, "held by {holder:?}");
            Ok(())
        })
        .await
    }

    async fn report(&self) -> Result<Option<String>> {
        let report = Api::<ConfigMap>::namespaced(self.client.clone(), &self.namespace)
            .get_opt("report")
            .await?;
        Ok(report
            .and_then(|report| report.data)
            .and_then(|mut data| data.remove("text")))
    }

    async fn told(&self, reason: &str) -> Result<Vec<Event>> {
        let events = Api::<Event>::namespaced(self.client.clone(), &self.namespace);
        let mut events = events.list(&ListParams::default()).await?.items;
        events.retain(|event| event.reason.as_deref() == Some(reason));
        Ok(events)
    }

    async fn until_told(&self, reason: &str) -> Result<()> {
        wait::until(format!("an Event {reason}"), PATIENCE, || async {
            ensure!(!self.told(reason).await?.is_empty(), "none");
            Ok(())
        })
        .await
    }

    async fn until_reported(&self, expected: &str) -> Result<()> {
        wait::until(format!("the report {expected:?}"), PATIENCE, || async {
            let report = self.report().await?;
            ensure!(report.as_deref() == Some(expected), "{report:?}");
            Ok(())
        })
        .await
    }
}

/// A running operator.
struct Operator {
    process: Process,
    port: u16,
}

impl Operator {
    fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    async fn until_ready(&self) -> Result<()> {
        wait::until(format!("{} to be ready", self.process.name()), PATIENCE, || async {
            let answer = self.get("/readyz")?;
            ensure!(
                answer.starts_with("HTTP/1.0 200"),
                "{answer}\n{}",
                self.process.log_tail(5)
            );
            Ok(())
        })
        .await
    }

    async fn until_shown(&self, metric: &str) -> Result<()> {
        wait::until(format!("the metric {metric:?}"), PATIENCE, || async {
            let metrics = self.get("/metrics")?;
            ensure!(metrics.lines().any(|line| line == metric), "{metrics}");
            Ok(())
        })
        .await
    }

    async fn stop(&self) -> Result<Option<i32>> {
        self.process.signal(Signal::TERM)?;
        Ok(self.process.wait_for_exit(PATIENCE).await?.code())
    }
}

const LEASE: &str = "minimal-operator";

#[tokio::test]
async fn sigterm_releases_the_lease_and_exits_with_0() -> Result<()> {
    let place = Place::new().await?;
    let operator = place.start("one", &[])?;
    operator.until_ready().await?;
    place.until_reported("hello 0").await?;
    assert_eq!(place.holder(LEASE).await?, "one");
    operator.until_shown("nodeward_minimal_operator_leading 1").await?;
    assert!(operator.get("/livez")?.starts_with("HTTP/1.0 200"));
    assert_eq!(operator.stop().await?, Some(0), "{}", operator.process.log_tail(10));
    assert_eq!(place.holder(LEASE).await?, "", "released, not left to run out");
    Ok(())
}

#[tokio::test]
async fn an_event_is_sent_before_the_process_ends() -> Result<()> {
    let place = Place::new().await?;
    let operator = place.start("one", &[])?;
    place.until_reported("hello 0").await?;
    assert_eq!(operator.stop().await?, Some(0));
    let found = place.told("Reported").await?;
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].reporting_controller.as_deref(),
        Some("nodeward.dev/minimal-operator")
    );
    Ok(())
}

#[tokio::test]
async fn broken_config_keeps_last_good_one() -> Result<()> {
    let place = Place::new().await?;
    let config = place.config();
    std::fs::write(&config, "greeting: good day\n")?;
    let operator = place.start("one", &["--config", config.to_str().unwrap_or_default()])?;
    place.until_reported("good day 0").await?;

    std::fs::write(&config, "greeting: bye\nrepeat: 0\n")?;
    operator
        .until_shown("nodeward_minimal_operator_config_rejected 1")
        .await?;
    let log = operator.process.log_tail(20);
    assert!(log.contains("config.yaml:2:9: repeat: must be at least 1"), "{log}");
    operator.until_ready().await?;
    assert_eq!(place.report().await?.as_deref(), Some("good day 0"));
    place.until_told("ConfigRejected").await?;

    std::fs::write(&config, "greeting: bye\n")?;
    place.until_reported("bye 0").await?;
    operator
        .until_shown("nodeward_minimal_operator_config_rejected 0")
        .await?;
    place.until_told("ConfigAccepted").await?;
    assert_eq!(operator.stop().await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn every_line_of_a_json_log_is_json() -> Result<()> {
    let place = Place::new().await?;
    let operator = place.start("one", &["--log-format", "json", "--log-level", "debug"])?;
    place.until_reported("hello 0").await?;
    assert_eq!(operator.stop().await?, Some(0));
    let log = std::fs::read_to_string(operator.process.log())?;
    ensure!(log.lines().count() > 3, "{log}");
    for line in log.lines() {
        ensure!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn parallel_dry_run_writes_only_its_lease() -> Result<()> {
    let place = Place::new().await?;
    let dry = place.start("dry", &["--dry-run"])?;
    dry.until_ready().await?;
    place.until_held_by("minimal-operator-dry-run", "dry").await?;
    wait::until("the dry run to decide", PATIENCE, || async {
        ensure!(
            dry.process.log_tail(20).contains("did not report hello 0: dry run"),
            "{}",
            dry.process.log_tail(20)
        );
        Ok(())
    })
    .await?;
    assert_eq!(place.report().await?, None);
    let real = place.start("real", &[])?;
    place.until_reported("hello 0").await?;
    place.until_held_by(LEASE, "real").await?;
    place.until_held_by("minimal-operator-dry-run", "dry").await?;
    assert_eq!((dry.stop().await?, real.stop().await?), (Some(0), Some(0)));
    Ok(())
}

#[tokio::test]
async fn ready_standby_takes_over_at_once() -> Result<()> {
    let place = Place::new().await?;
    let leader = place.start("leader", &[])?;
    place.until_held_by(LEASE, "leader").await?;
    let standby = place.start("standby", &[])?;
    standby.until_ready().await?;
    standby.until_shown("nodeward_minimal_operator_leading 0").await?;
    assert_eq!(place.holder(LEASE).await?, "leader");
    assert_eq!(leader.stop().await?, Some(0));
    let released = std::time::Instant::now();
    place.until_held_by(LEASE, "standby").await?;
    assert!(
        released.elapsed() < Duration::from_secs(10),
        "well before the lease would have run out"
    );
    standby.until_shown("nodeward_minimal_operator_leading 1").await?;
    assert_eq!(standby.stop().await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn without_election_it_acts_and_touches_no_lease() -> Result<()> {
    let place = Place::new().await?;
    let operator = place.start("one", &["--leader-elect", "false"])?;
    place.until_reported("hello 0").await?;
    let leases = Api::<Lease>::namespaced(place.client.clone(), &place.namespace)
        .list(&ListParams::default())
        .await?;
    assert_eq!(leases.items.len(), 0);
    assert_eq!(operator.stop().await?, Some(0));
    Ok(())
}
