//! All operators together hold for a minute of failures, from another seed each time; a rule that is broken is found.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::process::{Command, Output, Stdio};

use tokio::sync::Mutex;

/// One at a time: each starts a cluster and its operators.
static TURN: Mutex<()> = Mutex::const_new(());

async fn soak(args: &'static [&'static str]) -> Output {
    let _turn = TURN.lock().await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("soak").args(args).stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}\n{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

#[tokio::test]
async fn all_operators_survive_a_minute_together() {
    let output = soak(&["--minutes=1"]).await;
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("nothing was broken"), "{said}");
    let (before, _) = said.rsplit_once(" queries of the dashboards found series").unwrap();
    let numbers: Vec<f64> = before
        .rsplit("; ")
        .next()
        .unwrap()
        .split(" of ")
        .map(|n| n.parse().unwrap())
        .collect();
    // The others tell of what is rare, or off here: FleetLock, refused certificates, old remediations.
    assert!(numbers[0] > numbers[1] * 0.6, "{said}");
}

#[tokio::test]
async fn broken_rule_ends_the_soak_with_its_seed() {
    let output = soak(&["--seed=7", "--nodes=24", "--break-a-rule"]).await;
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in [
        "the last events:",
        "somebody breaks a rule",
        "error: seed 7: pod never-",
        "was forced, and its budget forbids it for ever",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
