//! Logging to standard error, as text or as JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::args::LogFormat;

/// `--log-level` (or `RUST_LOG`) holds something that is neither a level nor a directive.
#[derive(Debug, thiserror::Error)]
#[error(
    "--log-level (or RUST_LOG) {given:?}: {problem}; use a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug"
)]
pub struct LogLevelError {
    given: String,
    problem: String,
}

/// Installs the global subscriber, and sends panics through it so that none is lost among JSON lines.
/// A second call in one process keeps the first subscriber.
pub fn install(format: LogFormat, level: &str) -> Result<(), LogLevelError> {
    let filter = parse_filter(level)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let installed = match format {
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
    };
    if installed.is_ok() {
        log_panics();
    }
    Ok(())
}

/// Where kube logs what it returns as an error, once more than we do, and even if it is expected, as a kind that is not
/// installed is. Certificates are another matter.
const KUBE_REQUESTS: &str = "kube_client::client";

/// A lone word must be a level: `EnvFilter` would read `inof` as the name of a module and silence everything else.
fn parse_filter(level: &str) -> Result<EnvFilter, LogLevelError> {
    let level = if level.trim().is_empty() { "info" } else { level };
    let refused = |problem: String| LogLevelError {
        given: level.to_owned(),
        problem,
    };
    if level.contains(['=', ',']) {
        return EnvFilter::builder()
            .parse(level)
            .map_err(|error| refused(error.to_string()));
    }
    let level: LevelFilter = level.trim().parse().map_err(|_| refused("not a level".to_owned()))?;
    let directives = if level > LevelFilter::INFO {
        level.to_string()
    } else {
        format!("{level},{KUBE_REQUESTS}=off,{KUBE_REQUESTS}::tls={level}")
    };
    EnvFilter::builder()
        .parse(directives)
        .map_err(|error| refused(error.to_string()))
}

fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let what = panic.payload_as_str().unwrap_or("(no message)");
        tracing::error!(place, "panic: {what}");
    }));
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::parse_filter;

    #[rstest]
    #[case("info")]
    #[case("debug")]
    #[case("off")]
    #[case::as_if_unset("")]
    #[case("warn,nodeward_runtime=trace")]
    fn levels_and_directives_are_taken(#[case] given: &str) {
        parse_filter(given).unwrap();
    }

    #[rstest]
    #[case("info", true)]
    #[case("debug", false)]
    #[case("info,kube=info", false)]
    fn client_errors_are_silenced_unless_requested(#[case] given: &str, #[case] silenced: bool) {
        let filter = parse_filter(given).unwrap().to_string();
        assert_eq!(filter.contains("kube_client::client=off"), silenced, "{filter}");
    }

    #[rstest]
    #[case("inof")]
    #[case("info,kube=loud")]
    fn misspelled_log_level_is_refused(#[case] given: &str) {
        let refusal = parse_filter(given).unwrap_err().to_string();
        assert!(refusal.contains("use a level"), "{refusal}");
    }
}
