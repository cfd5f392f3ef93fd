//! The soak of health-check holds for two minutes, from another seed each time.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::process::{Command, Stdio};

#[tokio::test]
async fn health_check_survives_two_minutes() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .args(["soak", "health-check", "--minutes=2"])
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{told}");
}
