//! The plugin's binary: `kubectl nodeward`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use kubectl_nodeward::{CommandLine, Exit, complete, error_line, run, words_to_complete};

fn main() -> ExitCode {
    let words = words_to_complete(std::env::args_os());
    let line = words.is_none().then(CommandLine::parse);
    let wants_json = line.as_ref().is_some_and(CommandLine::wants_json);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into(), wants_json),
    };
    let outcome = runtime.block_on(async {
        if let Some(line) = line {
            return run(line).await;
        }
        let candidates = complete(&words.unwrap_or_default()).await;
        std::io::stdout().write_all(candidates.as_bytes())?;
        Ok(Exit::Done)
    });
    runtime.shutdown_background();
    match outcome {
        Ok(exit) => ExitCode::from(exit.status()),
        Err(error) => failed(&error, wants_json),
    }
}

/// Prints the error on one line, unless the reader has gone away (`… | head`).
fn failed(error: &anyhow::Error, wants_json: bool) -> ExitCode {
    let is_closed = error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
    if !is_closed {
        eprintln!("{}", error_line(error.as_ref(), wants_json));
    }
    ExitCode::FAILURE
}
