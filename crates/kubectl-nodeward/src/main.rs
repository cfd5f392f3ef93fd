//! The plugin's binary: `kubectl nodeward`.

use std::process::ExitCode;

use clap::Parser;
use kubectl_nodeward::args::CommandLine;
use kubectl_nodeward::run::run;
use kubectl_nodeward::text::line::printable;

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let outcome = runtime.block_on(run(line));
    runtime.shutdown_background();
    match outcome {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(error) => failed(&error),
    }
}

/// The error on one line. Where the reader has gone away (`… | head`) there is nobody to tell.
fn failed(error: &anyhow::Error) -> ExitCode {
    let is_closed = error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
    if !is_closed {
        eprintln!("error: {}", printable(&format!("{error:#}")));
    }
    ExitCode::FAILURE
}
