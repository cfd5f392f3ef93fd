//! The plugin's binary: `kubectl nodeward`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use kubectl_nodeward::args::CommandLine;
use kubectl_nodeward::complete::{self, complete};
use kubectl_nodeward::run::{Exit, run};
use kubectl_nodeward::text::line::printable;

fn main() -> ExitCode {
    let wish = match complete::asked(std::env::args_os()) {
        Some(words) => Wish::Complete(words),
        None => Wish::Run(Box::new(CommandLine::parse())),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let outcome = runtime.block_on(fulfil(wish));
    runtime.shutdown_background();
    match outcome {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(error) => failed(&error),
    }
}

/// What the program was called for.
enum Wish {
    Run(Box<CommandLine>),
    Complete(Vec<String>),
}

async fn fulfil(wish: Wish) -> anyhow::Result<Exit> {
    match wish {
        Wish::Run(line) => run(*line).await,
        Wish::Complete(words) => {
            std::io::stdout().write_all(complete(&words).await.as_bytes())?;
            Ok(Exit::Done)
        }
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
