use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use rstest::rstest;

use super::*;

fn parse(line: &str) -> Result<CommandLine, clap::Error> {
    CommandLine::try_parse_from(std::iter::once("kubectl-nodeward").chain(line.split_whitespace()))
}

#[test]
fn command_line_definition_is_valid() {
    CommandLine::command().debug_assert();
}

#[rstest]
#[case("status")]
#[case("why node-1 -o json")]
#[case("why node-1 node-2 pod/web-0 -n shop")]
#[case("why -l pool=a --watch")]
#[case("status -w --as bob --as-group a --as-group b")]
#[case("status --server https://127.0.0.1:6443 --token t")]
#[case("status --cluster c --user u")]
#[case("locks -A")]
#[case("plan a b")]
#[case("plan -l pool=a")]
#[case("drain -l pool=a --dry-run")]
#[case("check --wait 2m")]
#[case("why node/node-1 nodedrain.nodeward.dev/node-2 -o name")]
#[case("plan nodedrain.nodeward.dev/node-2")]
#[case("why pod/web-0 -n shop")]
#[case("why pod/shop/web-0")]
#[case("why pdb/shop/web")]
#[case("why poddisruptionbudget.policy/web -n shop")]
#[case("plan ip-10-0-1-2.eu-central-1.compute.internal --context prod")]
#[case("drain a b c --timeout 1h30m --fallback release-and-requeue --purpose kernel")]
#[case("drain a --fallback ReleaseAndRequeue")]
#[case("drain a --force --delete-emptydir-data")]
#[case::as_kubectl_drain("drain a --ignore-daemonsets --delete-emptydir-data --force --timeout=30m")]
#[case("drain a --no-wait --deadline-queue 15m --deadline-drain 90s --deadline-recover 2h")]
#[case("release a b hold/db -n shop")]
#[case("release dh/db -n shop")]
#[case("release a --force --reason gone")]
#[case("release a --requester kubectl-nodeward:bob")]
#[case("locks -n shop -o yaml")]
#[case("hold web -n shop --reason migration --for 2h --disruptions 1")]
#[case("hold pdb/web -n shop --reason migration --for 2h")]
#[case("hold poddisruptionbudget.policy/web -n shop --reason migration --for 2h")]
#[case("completion powershell")]
fn valid_lines_are_accepted(#[case] line: &str) {
    if let Err(error) = parse(line) {
        panic!("{error}");
    }
}

#[rstest]
#[case::no_command("", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand)]
#[case::unknown_command("stauts", ErrorKind::InvalidSubcommand)]
#[case::no_node("why", ErrorKind::MissingRequiredArgument)]
#[case::nodes_beside_labels("why a -l pool=a", ErrorKind::ArgumentConflict)]
#[case::plan_of_nothing("plan", ErrorKind::MissingRequiredArgument)]
#[case::drain_of_nodes_beside_labels("drain a -l pool=a", ErrorKind::ArgumentConflict)]
#[case::groups_of_nobody("status --as-group a", ErrorKind::MissingRequiredArgument)]
#[case::all_namespaces_beside_one("locks -A -n shop", ErrorKind::ArgumentConflict)]
#[case::exit_code_of_a_watch("status -w --exit-code", ErrorKind::ArgumentConflict)]
#[case::bad_name("why Node_1", ErrorKind::ValueValidation)]
#[case::name_of_another_kind("why deployment/a", ErrorKind::ValueValidation)]
#[case::namespace_before_the_name("why shop/web-0", ErrorKind::ValueValidation)]
#[case::plan_of_a_pod("plan pod/a", ErrorKind::ValueValidation)]
#[case::name_ends_with_a_dash("drain a b-", ErrorKind::ValueValidation)]
#[case::drain_nothing("drain", ErrorKind::MissingRequiredArgument)]
#[case::bad_duration("drain a --timeout 5", ErrorKind::ValueValidation)]
#[case::negative_duration("drain a --timeout=-5m", ErrorKind::ValueValidation)]
#[case::bad_fallback("drain a --fallback panic", ErrorKind::InvalidValue)]
#[case::fallback_that_is_gone("drain a --fallback evict-anyway", ErrorKind::InvalidValue)]
#[case::timeout_without_waiting("drain a --no-wait --timeout 5m", ErrorKind::ArgumentConflict)]
#[case::force_without_reason("release a --force", ErrorKind::MissingRequiredArgument)]
#[case::reason_without_force("release a --reason gone", ErrorKind::MissingRequiredArgument)]
#[case::force_for_a_requester("release a --force --reason x --requester y", ErrorKind::ArgumentConflict)]
#[case::release_of_something_else("release pod/a", ErrorKind::ValueValidation)]
#[case::hold_without_reason("hold web --for 2h", ErrorKind::MissingRequiredArgument)]
#[case::hold_without_end("hold web --reason x", ErrorKind::MissingRequiredArgument)]
#[case::hold_of_nothing("hold web --reason x --for 2h --disruptions 0", ErrorKind::ValueValidation)]
#[case::namespace_before_the_name("hold shop/web --reason x --for 2h", ErrorKind::ValueValidation)]
#[case::unknown_output("status -o xml", ErrorKind::InvalidValue)]
#[case::unknown_shell("completion tcsh", ErrorKind::InvalidValue)]
fn wrong_usage_exits_with_2(#[case] line: &str, #[case] kind: ErrorKind) {
    let error = parse(line).unwrap_err();
    assert_eq!((error.kind(), error.exit_code()), (kind, 2), "{error}");
}

#[rstest]
#[case("status", None)]
#[case("status --request-timeout 5", Some(Duration::from_secs(5)))]
#[case("--request-timeout 2m status", Some(Duration::from_mins(2)))]
#[case("status --request-timeout=0", Some(Duration::MAX))]
fn request_timeout_reads_as_in_kubectl(#[case] line: &str, #[case] limit: Option<Duration>) {
    assert_eq!(parse(line).unwrap().global.request_timeout, limit);
}

#[test]
fn target_is_a_node_unless_prefixed() {
    let Command::Release(release) = parse("release node-1 nd/node-2 hold/db").unwrap().command else {
        panic!("another command");
    };
    let node = |name: &str| Target::Node(name.to_owned());
    assert_eq!(
        release.targets,
        [node("node-1"), node("node-2"), Target::Hold("db".to_owned())]
    );
}

#[rstest]
#[case("--reason", "")]
#[case("--reason", "   ")]
#[case("--reason", "two\nlines")]
#[case("--reason", "\u{1b}[31m")]
fn reason_is_one_line(#[case] flag: &str, #[case] text: &str) {
    let line = ["kubectl-nodeward", "hold", "web", "--for", "2h", flag, text];
    assert_eq!(CommandLine::try_parse_from(line).unwrap_err().exit_code(), 2);
}
