//! The kind of value that the word being written stands for, by the definition of the command line. Pure.

use clap::{Arg, Command, FromArgMatches as _};

use crate::args::Global;

/// A word, and its help.
pub type Candidate = (String, Option<String>);

/// The kind of value that the word being written stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompletionTarget {
    /// One of these, each with what it means.
    These(Vec<Candidate>),
    /// A node that is not on the line yet.
    Nodes,
    /// A node with a drain, or a hold.
    Releasable,
    /// A PodDisruptionBudget.
    Budgets,
    /// A namespace.
    Namespaces,
    /// A context of the kubeconfig.
    Contexts,
    /// A file.
    Files,
    /// Something of the user's own.
    Nothing,
}

/// The words before it.
#[derive(Debug, Clone, Default)]
pub struct GivenWords {
    /// The beginning of the word itself.
    pub begun: String,
    /// Options of every command; absent where help is asked for.
    pub global: Option<Global>,
    /// Positional words.
    pub words: Vec<String>,
}

/// The target of the last word.
pub fn completion_target(root: &Command, words: &[String]) -> (GivenWords, CompletionTarget) {
    let (begun, before) = words
        .split_last()
        .map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    // What is not complete yet is no error.
    let line = root.clone().ignore_errors(true).no_binary_name(true);
    let line = line.try_get_matches_from(before).ok();
    let mut given = GivenWords {
        begun: begun.to_owned(),
        global: line.and_then(|line| Global::from_arg_matches(&line).ok()),
        words: Vec::new(),
    };
    let mut command = root;
    let mut option: Option<&Arg> = None;
    let mut only_given = false;
    for word in before {
        if option.take().is_some() {
            continue;
        }
        if !only_given && word == "--" {
            only_given = true;
        } else if !only_given && word.starts_with('-') && word.len() > 1 {
            option = named(command, word).filter(|arg| arg.get_action().takes_values());
        } else if let Some(found) = command.find_subcommand(word).filter(|_| given.words.is_empty()) {
            command = found;
        } else {
            given.words.push(word.clone());
        }
    }
    let target = match option {
        Some(arg) => value_of(arg),
        None if !only_given && begun.starts_with('-') => CompletionTarget::These(options(command)),
        None if command.has_subcommands() => CompletionTarget::These(subcommands(command)),
        None => positional(command, given.words.len()).map_or(CompletionTarget::Nothing, value_of),
    };
    (given, target)
}

/// The option of that name: `--namespace`, `-n`; none of one whose value is given with it: `--namespace=shop`.
fn named<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg
            .get_short()
            .is_some_and(|short| name.strip_prefix('-') == Some(short.to_string().as_str())),
    })
}

/// The argument in this place; the last takes all others, if it takes several.
fn positional(command: &Command, place: usize) -> Option<&Arg> {
    let takes_several = |arg: &&Arg| arg.get_num_args().is_some_and(|count| count.max_values() > 1);
    let places: Vec<&Arg> = command.get_positionals().collect();
    let last = || places.last().copied().filter(takes_several);
    places.get(place).copied().or_else(last)
}

fn value_of(arg: &Arg) -> CompletionTarget {
    let values = arg.get_possible_values();
    if !values.is_empty() {
        let text = |value: &clap::builder::PossibleValue| {
            (value.get_name().to_owned(), value.get_help().map(ToString::to_string))
        };
        return CompletionTarget::These(values.iter().filter(|value| !value.is_hide_set()).map(text).collect());
    }
    match arg.get_id().as_str() {
        "node" | "nodes" => CompletionTarget::Nodes,
        "targets" => CompletionTarget::Releasable,
        "budget" => CompletionTarget::Budgets,
        "namespace" => CompletionTarget::Namespaces,
        "context" => CompletionTarget::Contexts,
        "kubeconfig" => CompletionTarget::Files,
        _ => CompletionTarget::Nothing,
    }
}

fn options(command: &Command) -> Vec<Candidate> {
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    visible
        .filter_map(|arg| {
            Some((
                format!("--{}", arg.get_long()?),
                arg.get_help().map(ToString::to_string),
            ))
        })
        .collect()
}

fn subcommands(command: &Command) -> Vec<Candidate> {
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    let about = |command: &Command| command.get_about().map(ToString::to_string);
    visible
        .map(|command| (command.get_name().to_owned(), about(command)))
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use rstest::rstest;

    use super::*;
    use crate::args::CommandLine;

    fn look(line: &[&str]) -> (GivenWords, CompletionTarget) {
        let mut command = CommandLine::command();
        command.build();
        completion_target(&command, &line.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[rstest]
    #[case(&["why", ""], CompletionTarget::Nodes)]
    #[case(&["why", "-o", "json", "n"], CompletionTarget::Nodes)]
    #[case(&["why", "n1", ""], CompletionTarget::Nodes)]
    #[case(&["why", "-l", ""], CompletionTarget::Nothing)]
    #[case(&["drain", "n1", "n2", ""], CompletionTarget::Nodes)]
    #[case(&["drain", "--timeout=5m", "n1", ""], CompletionTarget::Nodes)]
    #[case(&["drain", "--timeout", ""], CompletionTarget::Nothing)]
    #[case(&["drain", "--", "-"], CompletionTarget::Nodes)]
    #[case(&["release", "-n", "shop", ""], CompletionTarget::Releasable)]
    #[case(&["hold", ""], CompletionTarget::Budgets)]
    #[case(&["status", "-n", ""], CompletionTarget::Namespaces)]
    #[case(&["--context", ""], CompletionTarget::Contexts)]
    #[case(&["--kubeconfig", ""], CompletionTarget::Files)]
    #[case(&["nonsense", "", ""], CompletionTarget::These(Vec::new()))]
    fn each_place_has_its_own_candidates(#[case] line: &[&str], #[case] expected: CompletionTarget) {
        let (_, target) = look(line);
        match (&target, &expected) {
            (CompletionTarget::These(found), CompletionTarget::These(_)) => {
                assert!(found.iter().any(|(name, _)| name == "why"));
            }
            _ => assert_eq!(target, expected),
        }
    }

    #[rstest]
    #[case(&[""], &["status", "why", "drain"], &["--help"])]
    #[case(&["drain", "--"], &["--no-wait", "--fallback", "--namespace"], &["status"])]
    #[case(&["drain", "--fallback", ""], &["wait", "release-and-requeue"], &["Wait"])]
    #[case(&["status", "-o", ""], &["json", "yaml", "name"], &[])]
    #[case(&["completion", ""], &["bash", "zsh", "fish"], &[])]
    fn names_that_are_known_are_offered(#[case] line: &[&str], #[case] has: &[&str], #[case] has_not: &[&str]) {
        let (_, CompletionTarget::These(these)) = look(line) else {
            panic!("not known");
        };
        let names: Vec<&str> = these.iter().map(|(name, _)| name.as_str()).collect();
        assert!(has.iter().all(|name| names.contains(name)), "{names:?}");
        assert!(!has_not.iter().any(|name| names.contains(name)), "{names:?}");
    }

    #[test]
    fn what_stands_before_says_which_cluster_is_meant() {
        let (given, _) = look(&["--context=prod", "release", "-n", "shop", "n1", "n"]);
        let global = given.global.unwrap();
        let options = (global.context.as_deref(), global.namespace.as_deref());
        assert_eq!(options, (Some("prod"), Some("shop")));
        assert_eq!((given.words, given.begun), (vec!["n1".to_owned()], "n".to_owned()));
    }
}
