//! What could come next on the command line, in the form that kubectl reads: `kubectl_complete-nodeward ARGS` prints a line
//! for each candidate, `TEXT<tab>HELP`, and last `:DIRECTIVE` (cobra's ShellCompDirective).

mod candidates;
pub mod wanted;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use clap::CommandFactory;

use self::candidates::candidates;
use self::wanted::Wanted;
use crate::args::CommandLine;
use crate::text::line::printable;

/// The name by which kubectl asks: a link to the plugin.
const COMPLETES: &str = "kubectl_complete-nodeward";

/// The argument by which the same can be asked without a link.
const ARGUMENT: &str = "__complete";

/// cobra: the shell completes names of files.
const FILES: u8 = 0;

/// cobra: nothing but the candidates.
const CANDIDATES: u8 = 4;

/// The words to complete, if the program was called to complete: the last one is the one that is being written.
pub fn asked(args: impl IntoIterator<Item = OsString>) -> Option<Vec<String>> {
    let mut args = args.into_iter();
    let called = args.next()?;
    let is_link = Path::new(&called).file_stem().is_some_and(|name| name == COMPLETES);
    let mut words = args.map(|word| word.to_string_lossy().into_owned()).peekable();
    let is_asked = is_link || words.next_if(|word| word == ARGUMENT).is_some();
    is_asked.then(|| words.collect())
}

/// The answer. A cluster that does not answer has no candidates.
pub async fn complete(words: &[String]) -> String {
    let mut command = CommandLine::command();
    command.build();
    let (asked, wanted) = wanted::wanted(&command, words);
    let mut text = String::new();
    let directive = if wanted == Wanted::Files { FILES } else { CANDIDATES };
    for (candidate, help) in candidates(&asked, &wanted).await {
        let _ = match help {
            Some(help) => writeln!(text, "{candidate}\t{}", printable(&help)),
            None => writeln!(text, "{candidate}"),
        };
    }
    let _ = writeln!(text, ":{directive}");
    text
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(&["/usr/local/bin/kubectl_complete-nodeward", "why", ""], Some(&["why", ""][..]))]
    #[case(&["kubectl_complete-nodeward.exe", "wh"], Some(&["wh"][..]))]
    #[case(&["kubectl-nodeward", "__complete", "why", "n"], Some(&["why", "n"][..]))]
    #[case(&["kubectl-nodeward", "why", "__complete"], None)]
    #[case(&[], None)]
    fn who_asks_is_known_by_the_name_or_the_first_argument(#[case] line: &[&str], #[case] words: Option<&[&str]>) {
        let found = asked(line.iter().map(OsString::from));
        assert_eq!(
            found.as_deref(),
            words
                .map(|words| words.iter().map(ToString::to_string).collect::<Vec<_>>())
                .as_deref()
        );
    }
}
