//! Completion: the script of a shell, and the candidates for a word in the form that kubectl reads.
//! `kubectl_complete-nodeward ARGS` prints a line for each candidate, `TEXT<tab>HELP`, and last `:DIRECTIVE` (cobra's
//! ShellCompDirective).

mod target;

use std::ffi::OsString;
use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use clap::CommandFactory;
use clap_complete::Shell;
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::config::Kubeconfig;
use kube::{Api, ResourceExt};
use nodeward_api::{DisruptionHold, NodeDrain};
use serde::de::DeserializeOwned;

use self::target::{Candidate, CompletionTarget, GivenWords, completion_target};
use crate::args::{CommandLine, Global};
use crate::cluster::Cluster;
use crate::text::printable;

/// The link to the plugin by which kubectl asks.
const COMPLETES: &str = "kubectl_complete-nodeward";

/// The argument by which the same can be asked without a link.
const ARGUMENT: &str = "__complete";

/// cobra: the shell completes names of files.
const FILES: u8 = 0;

/// cobra: nothing but the candidates.
const CANDIDATES: u8 = 4;

/// A shell does not wait long for a word.
const TIMEOUT: Duration = Duration::from_secs(2);

/// More names are no help to anybody.
const MOST: u32 = 500;

pub fn print_script(shell: Shell) {
    let mut command = CommandLine::command();
    clap_complete::generate(shell, &mut command, "kubectl-nodeward", &mut std::io::stdout());
}

/// The words to complete, if the program was called to complete; the last one is being written.
pub fn words_to_complete(args: impl IntoIterator<Item = OsString>) -> Option<Vec<String>> {
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
    let (given, target) = completion_target(&command, words);
    let directive = match target {
        CompletionTarget::Files => FILES,
        _ => CANDIDATES,
    };
    let candidates = candidates(&given, target).await.into_iter();
    let lines = candidates.map(|(candidate, help)| match help {
        Some(help) => format!("{candidate}\t{}\n", printable(&help)),
        None => candidate + "\n",
    });
    lines.collect::<String>() + &format!(":{directive}\n")
}

/// The candidates that begin as the word does.
async fn candidates(given: &GivenWords, target: CompletionTarget) -> Vec<Candidate> {
    let mut found = match target {
        CompletionTarget::These(these) => these,
        CompletionTarget::Contexts => contexts(given),
        CompletionTarget::Files | CompletionTarget::Nothing => Vec::new(),
        target => {
            let answer = tokio::time::timeout(TIMEOUT, objects(given, &target));
            answer.await.ok().flatten().unwrap_or_default()
        }
    };
    found.retain(|(name, _)| name.starts_with(&given.begun) && !given.words.contains(name));
    found
}

async fn objects(given: &GivenWords, target: &CompletionTarget) -> Option<Vec<Candidate>> {
    let global = Global {
        request_timeout: Some(TIMEOUT),
        ..given.global.clone()?
    };
    let cluster = Cluster::connect(&global).await.ok()?;
    let namespace = Some(cluster.one_namespace());
    match target {
        CompletionTarget::Nodes => names(&cluster, cluster.all::<Node>()).await,
        CompletionTarget::Namespaces => names(&cluster, cluster.all::<Namespace>()).await,
        CompletionTarget::Budgets => names(&cluster, cluster.within::<PodDisruptionBudget>(namespace)).await,
        CompletionTarget::Releasable => {
            let (drains, holds) = tokio::join!(
                names(&cluster, cluster.all::<NodeDrain>()),
                names(&cluster, cluster.within::<DisruptionHold>(namespace)),
            );
            let holds = holds.into_iter().flatten();
            let holds = holds.map(|(name, help)| (format!("hold/{name}"), help));
            Some(drains.into_iter().flatten().chain(holds).collect())
        }
        _ => None,
    }
}

async fn names<K>(cluster: &Cluster, api: Api<K>) -> Option<Vec<Candidate>>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug,
{
    let params = ListParams::default().limit(MOST);
    let list = cluster.ask(api.list_metadata(&params)).await.ok()?;
    Some(list.items.iter().map(|object| (object.name_any(), None)).collect())
}

fn contexts(given: &GivenWords) -> Vec<Candidate> {
    let kubeconfig = match given.global.as_ref().and_then(|global| global.kubeconfig.as_ref()) {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    let contexts = kubeconfig.map(|kubeconfig| kubeconfig.contexts).unwrap_or_default();
    contexts.into_iter().map(|context| (context.name, None)).collect()
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
    fn completion_is_asked_by_link_or_argument(#[case] line: &[&str], #[case] words: Option<&[&str]>) {
        let found = words_to_complete(line.iter().map(OsString::from));
        assert_eq!(
            found.as_deref(),
            words
                .map(|words| words.iter().map(ToString::to_string).collect::<Vec<_>>())
                .as_deref()
        );
    }
}
