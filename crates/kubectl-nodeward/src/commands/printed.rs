//! Commands that pages print, so that they work as they stand: for this caller, on this cluster.

use nodeward_core::drain_request::releases_by_itself;

use crate::args::Global;
use crate::model::drain::Drain;

/// The commands that a page prints.
#[derive(Debug, Clone, Default)]
pub struct PrintedCommands {
    /// The options that find the same cluster again, each with a space before it.
    options: String,
    /// The caller's requester, where it is known.
    requester: Option<String>,
}

impl PrintedCommands {
    pub fn new(global: &Global, requester: Option<String>) -> Self {
        Self {
            options: options(global),
            requester,
        }
    }

    /// `kubectl nodeward COMMAND ARGUMENTS`.
    pub fn nodeward(&self, command: &str, arguments: &str) -> String {
        format!("kubectl nodeward {command}{} {arguments}", self.options)
    }

    /// `kubectl ARGUMENTS`.
    pub fn kubectl(&self, arguments: &str) -> String {
        format!("kubectl{} {arguments}", self.options)
    }

    /// What tells more of a node.
    pub fn why(&self, node: &str) -> String {
        self.nodeward("why", node)
    }

    /// What gives a node back.
    pub fn uncordon(&self, node: &str) -> String {
        self.kubectl(&format!("uncordon {node}"))
    }

    /// What ends the drain: its last request is released, or, where it follows from evictions by others, its node is uncordoned.
    pub fn end_of(&self, drain: &Drain) -> String {
        let node = &drain.node;
        let own = self.requester.as_ref();
        if drain.requesters.is_empty() || own.is_some_and(|own| drain.requesters.contains(own)) {
            return self.nodeward("release", node);
        }
        let requesters = drain.requesters.iter().filter(|name| releases_by_itself(name));
        let commands: Vec<String> = requesters
            .map(|name| self.nodeward("release", &format!("{node} --requester {}", quoted(name))))
            .collect();
        if commands.is_empty() {
            return self.uncordon(node);
        }
        commands.join(" && ")
    }
}

/// The options that find the same cluster again.
pub fn options(global: &Global) -> String {
    // A token is a secret, and stays out of what is printed.
    let given = [
        (
            "kubeconfig",
            global
                .kubeconfig
                .as_ref()
                .map(|file| file.to_string_lossy().into_owned()),
        ),
        ("context", global.context.clone()),
        ("cluster", global.cluster.clone()),
        ("user", global.user.clone()),
        ("server", global.server.as_ref().map(ToString::to_string)),
        ("as", global.impersonate.clone()),
    ];
    let groups = global.impersonate_groups.iter().cloned();
    let given = given.into_iter().chain(groups.map(|group| ("as-group", Some(group))));
    given
        .filter_map(|(option, value)| Some(format!(" --{option} {}", quoted(&value?))))
        .collect()
}

/// As one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::args::CommandLine;

    fn drain(requesters: &[&str]) -> Drain {
        let requesters: Vec<_> = requesters.iter().map(|name| json!({ "name": name })).collect();
        let drain = json!({
            "apiVersion": "nodeward.dev/v1alpha1", "kind": "NodeDrain", "metadata": { "name": "node-1" },
            "spec": { "nodeName": "node-1", "requesters": requesters },
        });
        Drain::of(&serde_json::from_value(drain).unwrap())
    }

    const ALICE: &str = "kubectl-nodeward:alice";

    #[rstest]
    #[case::own(&[ALICE], "kubectl nodeward release --context 'my lab' node-1")]
    #[case::own_among_others(&["fleetlock:default:node-1", ALICE], "kubectl nodeward release --context 'my lab' node-1")]
    #[case::of_nobody(&[], "kubectl nodeward release --context 'my lab' node-1")]
    #[case::of_another_person(
        &["kubectl-nodeward:bob"], "kubectl nodeward release --context 'my lab' node-1 --requester kubectl-nodeward:bob"
    )]
    #[case::by_evictions(&["eviction:system:admin"], "kubectl --context 'my lab' uncordon node-1")]
    #[case::evictions_beside_a_machine(
        &["eviction:system:admin", "fleetlock:default:node-1"],
        "kubectl nodeward release --context 'my lab' node-1 --requester fleetlock:default:node-1"
    )]
    fn command_that_ends_a_drain_works_for_the_caller(#[case] requesters: &[&str], #[case] command: &str) {
        let line = CommandLine::parse_from(["kubectl-nodeward", "--context", "my lab", "locks"]);
        let commands = PrintedCommands::new(&line.global, Some(ALICE.to_owned()));
        assert_eq!(commands.end_of(&drain(requesters)), command);
    }

    #[rstest]
    #[case(&["--server", "https://h:6443", "--token", "secret"], " --server https://h:6443/")]
    #[case(&["--as", "bob", "--as-group", "a", "--as-group", "b c"], " --as bob --as-group a --as-group 'b c'")]
    #[case(&["--cluster", "c", "--user", "u"], " --cluster c --user u")]
    fn options_find_the_same_cluster_without_secrets(#[case] given: &[&str], #[case] printed: &str) {
        let line = ["kubectl-nodeward", "locks"].iter().chain(given);
        assert_eq!(options(&CommandLine::parse_from(line).global), printed);
    }

    #[rstest]
    #[case("lab", "lab")]
    #[case("it's", r"'it'\''s'")]
    #[case("", "''")]
    fn words_reach_a_shell_whole(#[case] word: &str, #[case] written: &str) {
        assert_eq!(quoted(word), written);
    }
}
