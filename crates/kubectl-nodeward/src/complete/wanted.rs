//! What the word that is being written could be, by the definition of the command line. Pure.

use std::collections::BTreeMap;

use clap::{Arg, Command};

/// What the word that is being written could be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// One of these, each with what it means.
    These(Vec<(String, Option<String>)>),
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

/// What the words before it say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    /// What has been written of the word.
    pub begun: String,
    /// Values of options, by the option's name.
    pub options: BTreeMap<String, String>,
    /// Words that stand for themselves.
    pub given: Vec<String>,
}

/// What the last of the words could be.
pub fn wanted(root: &Command, words: &[String]) -> (Asked, Wanted) {
    let (begun, before) = words
        .split_last()
        .map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let mut asked = Asked {
        begun: begun.to_owned(),
        ..Asked::default()
    };
    let mut command = root;
    let mut option: Option<&Arg> = None;
    let mut only_given = false;
    for word in before {
        if let Some(arg) = option.take() {
            asked.options.insert(arg.get_id().to_string(), word.clone());
        } else if !only_given && word == "--" {
            only_given = true;
        } else if !only_given && word.starts_with('-') && word.len() > 1 {
            let (name, value) = word
                .split_once('=')
                .map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            let arg = named(command, name).filter(|arg| arg.get_action().takes_values());
            match (arg, value) {
                (Some(arg), Some(value)) => {
                    asked.options.insert(arg.get_id().to_string(), value.to_owned());
                }
                (arg, _) => option = arg,
            }
        } else if let Some(found) = command.find_subcommand(word).filter(|_| asked.given.is_empty()) {
            command = found;
        } else {
            asked.given.push(word.clone());
        }
    }
    let wanted = match option {
        Some(arg) => value_of(arg),
        None if !only_given && begun.starts_with('-') => Wanted::These(options(command)),
        None if command.has_subcommands() => Wanted::These(subcommands(command)),
        None => positional(command, asked.given.len()).map_or(Wanted::Nothing, value_of),
    };
    (asked, wanted)
}

/// The option of that name: `--namespace`, `-n`.
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

fn value_of(arg: &Arg) -> Wanted {
    let values = arg.get_possible_values();
    if !values.is_empty() {
        let text = |value: &clap::builder::PossibleValue| {
            (value.get_name().to_owned(), value.get_help().map(ToString::to_string))
        };
        return Wanted::These(values.iter().filter(|value| !value.is_hide_set()).map(text).collect());
    }
    match arg.get_id().as_str() {
        "node" | "nodes" => Wanted::Nodes,
        "targets" => Wanted::Releasable,
        "budget" => Wanted::Budgets,
        "namespace" => Wanted::Namespaces,
        "context" => Wanted::Contexts,
        "kubeconfig" => Wanted::Files,
        _ => Wanted::Nothing,
    }
}

fn options(command: &Command) -> Vec<(String, Option<String>)> {
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

fn subcommands(command: &Command) -> Vec<(String, Option<String>)> {
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    visible
        .map(|command| {
            (
                command.get_name().to_owned(),
                command.get_about().map(ToString::to_string),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use rstest::rstest;

    use super::*;
    use crate::args::CommandLine;

    fn look(line: &[&str]) -> (Asked, Wanted) {
        let mut command = CommandLine::command();
        command.build();
        wanted(&command, &line.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[rstest]
    #[case(&["why", ""], Wanted::Nodes)]
    #[case(&["why", "-o", "json", "n"], Wanted::Nodes)]
    #[case(&["why", "n1", ""], Wanted::Nothing)]
    #[case(&["drain", "n1", "n2", ""], Wanted::Nodes)]
    #[case(&["drain", "--timeout=5m", "n1", ""], Wanted::Nodes)]
    #[case(&["drain", "--timeout", ""], Wanted::Nothing)]
    #[case(&["drain", "--", "-"], Wanted::Nodes)]
    #[case(&["release", "-n", "shop", ""], Wanted::Releasable)]
    #[case(&["hold", ""], Wanted::Budgets)]
    #[case(&["status", "-n", ""], Wanted::Namespaces)]
    #[case(&["--context", ""], Wanted::Contexts)]
    #[case(&["--kubeconfig", ""], Wanted::Files)]
    #[case(&["nonsense", "", ""], Wanted::These(Vec::new()))]
    fn each_place_has_its_own_candidates(#[case] line: &[&str], #[case] expected: Wanted) {
        let (_, wanted) = look(line);
        match (&wanted, &expected) {
            (Wanted::These(found), Wanted::These(_)) => assert!(found.iter().any(|(name, _)| name == "why")),
            _ => assert_eq!(wanted, expected),
        }
    }

    #[rstest]
    #[case(&[""], &["status", "why", "drain"], &["--help"])]
    #[case(&["drain", "--"], &["--no-wait", "--fallback", "--namespace"], &["status"])]
    #[case(&["drain", "--fallback", ""], &["wait", "release-and-requeue"], &["Wait"])]
    #[case(&["status", "-o", ""], &["json", "yaml"], &[])]
    #[case(&["completion", ""], &["bash", "zsh", "fish"], &[])]
    fn names_that_are_known_are_offered(#[case] line: &[&str], #[case] has: &[&str], #[case] has_not: &[&str]) {
        let (_, Wanted::These(these)) = look(line) else {
            panic!("not known");
        };
        let names: Vec<&str> = these.iter().map(|(name, _)| name.as_str()).collect();
        assert!(has.iter().all(|name| names.contains(name)), "{names:?}");
        assert!(!has_not.iter().any(|name| names.contains(name)), "{names:?}");
    }

    #[test]
    fn what_stands_before_says_which_cluster_is_meant() {
        let (asked, _) = look(&["--context=prod", "release", "-n", "shop", "n1", "n"]);
        let options = [("context", "prod"), ("namespace", "shop")];
        assert_eq!(
            asked.options,
            options.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
        );
        assert_eq!((asked.given, asked.begun), (vec!["n1".to_owned()], "n".to_owned()));
    }
}
