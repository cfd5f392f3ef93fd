//! Benchmarks run, and their last line has what the pages about cost cite.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::process::{Command, Stdio};

use serde_json::Value;

/// The last line, and what was told besides.
async fn bench(operator: &str, args: &[&str]) -> (Value, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .args(["bench", operator, "--json"])
        .args(args)
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    (serde_json::from_str(said.lines().last().unwrap()).unwrap(), told)
}

#[tokio::test]
async fn parallel_drains_are_measured() {
    let args = [
        "--nodes-at-once=2",
        "--regimes=C",
        "--modes=nodeward",
        "--webhook-nodes=0",
    ];
    let (figures, told) = bench("drain-lock", &args).await;
    let regime = &figures["regimes"]["C"];
    assert!(regime["bound_s"].as_f64().unwrap() > 0.0, "{figures}");
    let drains = &regime["nodeward"];
    assert_eq!(drains["finished_share"], 1.0, "{figures}\n{told}");
    assert!(drains["makespan_s"].as_f64().unwrap() > 0.0, "{figures}");
    assert!(drains["requests"].as_u64().unwrap() > 0, "{figures}");
    assert!(drains["unready_pod_s"].as_f64().unwrap() > 0.0, "{figures}");
    assert_eq!(drains["refused"], 0, "{figures}");
    assert_eq!(figures["violations"], 0, "{figures}");
}

#[tokio::test]
async fn drain_of_ceph_hosts_is_measured() {
    let (figures, told) = bench("ceph-pdb", &["--osds=3", "--rounds=1", "--no-rest"]).await;
    let keys: Vec<&String> = figures.as_object().unwrap().keys().collect();
    let expected = [
        "clean_to_restored_ms",
        "drain_ceph_commands_per_min",
        "http_500",
        "noout_ms",
        "rest_ceph_commands_per_min",
        "rest_requests_per_min",
        "rss_connected_mib",
        "rss_mib",
        "sign_to_closed_ms",
        "sign_to_spelled_out_ms",
        "unsafe_evictions",
        "up_to_restored_ms",
    ];
    assert_eq!(keys, expected);
    let measured = |figure: &Value| figure.as_f64().is_some_and(|figure| figure > 0.0);
    let of_restore = ["clean_to_restored_ms", "up_to_restored_ms"];
    for key in of_restore.iter().chain(&[
        "noout_ms",
        "drain_ceph_commands_per_min",
        "rss_mib",
        "rss_connected_mib",
    ]) {
        assert!(measured(&figures[*key]), "{key}: {figures}\n{told}");
    }
    for quantile in ["p50", "p99"] {
        for key in ["sign_to_closed_ms", "sign_to_spelled_out_ms"] {
            assert!(figures[key][quantile].is_f64(), "{key}: {figures}\n{told}");
        }
    }
    assert_eq!(figures["unsafe_evictions"], 0, "{figures}\n{told}");
}
