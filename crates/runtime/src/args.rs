//! The flags that every operator takes, each with the environment variable that stands in for it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

/// The flags that every operator takes. Cluster access comes from `KUBECONFIG`, else from the pod's service account.
#[derive(Args, Clone, Debug)]
pub struct OperatorArgs {
    /// Configuration file (YAML). Without it every setting has its default.
    #[arg(long, env = "NODEWARD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Address that serves /metrics, /livez and /readyz.
    #[arg(
        long,
        env = "NODEWARD_ADMIN_BIND",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8080"
    )]
    pub admin_bind: SocketAddr,

    /// Take part in leader election. With `false` this process always acts.
    #[arg(
        long,
        env = "NODEWARD_LEADER_ELECT",
        value_name = "true|false",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub leader_elect: bool,

    /// Namespace of the operator's own lease.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = "nodeward-system", value_parser = NonEmptyStringValueParser::new())]
    pub namespace: String,

    /// Name of this process in the lease: unique among replicas. [default: the host's name and a random part]
    #[arg(long, env = "POD_NAME", value_name = "NAME", default_value_t = generated_identity(), hide_default_value = true, value_parser = identity)]
    pub identity: String,

    /// Format of the log on standard error.
    #[arg(long, env = "NODEWARD_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// What to log: a level (`info`) or directives (`info,nodeward_runtime=debug`).
    #[arg(long, env = "RUST_LOG", value_name = "LEVEL", default_value = "info")]
    pub log_level: String,

    /// Decide, log, count and export metrics, but write nothing to the cluster except a lease of its own.
    #[arg(long, env = "NODEWARD_DRY_RUN", action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_name = "true|false")]
    pub dry_run: bool,
}

/// The flags of operators that the API server asks about requests of others.
#[derive(Args, Clone, Debug)]
pub struct WebhookArgs {
    /// Address that serves the admission webhook, over TLS.
    #[arg(
        long,
        env = "NODEWARD_WEBHOOK_BIND",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:9443"
    )]
    pub webhook_bind: SocketAddr,

    /// Directory with the webhook's tls.crt and tls.key, re-read on change. Without it the operator makes, publishes and
    /// rotates a certificate of its own.
    #[arg(long, env = "NODEWARD_WEBHOOK_CERT_DIR", value_name = "DIR")]
    pub webhook_cert_dir: Option<PathBuf>,

    /// ValidatingWebhookConfiguration that the operator's own certificate is made for and published in.
    /// [default: nodeward-COMPONENT]
    #[arg(long, env = "NODEWARD_WEBHOOK_CONFIGURATION", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub webhook_configuration: Option<String>,
}

impl WebhookArgs {
    /// The name of the ValidatingWebhookConfiguration.
    pub fn configuration_of(&self, component: &str) -> String {
        let default = || format!("nodeward-{component}");
        self.webhook_configuration.clone().unwrap_or_else(default)
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// It is the field manager of the lease's writes too, and the API server takes at most 128 bytes as one.
fn identity(given: &str) -> Result<String, String> {
    match given.len() {
        0 => Err("must not be empty".to_owned()),
        1..=128 => Ok(given.to_owned()),
        longer => Err(format!("has {longer} bytes; the API server takes at most 128")),
    }
}

/// A name that no other replica has: a lease must not take two processes on one host for the same holder.
fn generated_identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "nodeward".to_owned());
    format!("{host}-{:08x}", fastrand::u32(..))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::{LogFormat, OperatorArgs, WebhookArgs};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        operator: OperatorArgs,
        #[command(flatten)]
        webhook: WebhookArgs,
    }

    fn parsed(flags: &[&str]) -> Result<OperatorArgs, clap::Error> {
        Cli::try_parse_from(std::iter::once(&"operator").chain(flags)).map(|cli| cli.operator)
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let args = parsed(&[]).unwrap();
        assert_eq!(args.config, None);
        assert_eq!(args.admin_bind.to_string(), "0.0.0.0:8080");
        assert!(args.leader_elect);
        assert_eq!(args.namespace, "nodeward-system");
        assert_eq!(args.log_format, LogFormat::Text);
        assert!(!args.dry_run);
    }

    #[test]
    fn webhook_certificate_is_own_unless_directory_given() {
        let args = Cli::try_parse_from(["operator"]).unwrap().webhook;
        assert_eq!(args.webhook_bind.to_string(), "0.0.0.0:9443");
        assert_eq!((args.webhook_cert_dir, args.webhook_configuration), (None, None));
        let flags = ["operator", "--webhook-bind=127.0.0.1:0", "--webhook-cert-dir=/certs"];
        let args = Cli::try_parse_from(flags).unwrap().webhook;
        assert_eq!(args.webhook_bind.to_string(), "127.0.0.1:0");
        assert_eq!(args.webhook_cert_dir.unwrap().to_str(), Some("/certs"));
    }

    #[test]
    fn two_processes_on_one_host_get_different_identities() {
        assert_ne!(super::generated_identity(), super::generated_identity());
    }

    #[rstest]
    #[case::bare(&["--dry-run"], true)]
    #[case::explicit(&["--dry-run", "false"], false)]
    fn dry_run_flag_takes_an_optional_value(#[case] flags: &[&str], #[case] expected: bool) {
        assert_eq!(parsed(flags).unwrap().dry_run, expected);
    }

    #[rstest]
    #[case::off(&["--leader-elect", "false"], false)]
    #[case::off_with_equals(&["--leader-elect=false"], false)]
    #[case::on(&["--leader-elect", "true"], true)]
    fn leader_election_is_switched_by_a_word(#[case] flags: &[&str], #[case] expected: bool) {
        assert_eq!(parsed(flags).unwrap().leader_elect, expected);
    }

    #[rstest]
    #[case::address(&["--admin-bind", "nowhere"])]
    #[case::election(&["--leader-elect", "perhaps"])]
    #[case::format(&["--log-format", "xml"])]
    #[case::namespace(&["--namespace", ""])]
    #[case::identity(&["--identity", ""])]
    fn nonsense_is_refused(#[case] flags: &[&str]) {
        assert_eq!(parsed(flags).unwrap_err().exit_code(), 2);
    }

    #[rstest]
    #[case::longest(128, true)]
    #[case::too_long(129, false)]
    fn an_identity_fits_into_a_field_manager(#[case] bytes: usize, #[case] taken: bool) {
        assert_eq!(parsed(&["--identity", &"x".repeat(bytes)]).is_ok(), taken);
    }
}
