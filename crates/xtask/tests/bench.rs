//! The benchmark of drains runs, and its last line has what the pages about cost cite.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::process::{Command, Stdio};

use serde_json::Value;

#[tokio::test]
async fn parallel_drains_are_measured() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .args(["bench", "drain-lock", "--json", "--nodes-at-once=2", "--regimes=C"])
        .args(["--modes=nodeward", "--webhook-nodes=0"])
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let figures: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
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
