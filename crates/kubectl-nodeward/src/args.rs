//! The command line, parsed once into types that cannot be wrong.

mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use nodeward_core::duration::ConfigDuration;

pub use self::values::Target;
use self::values::{budget, duration, node, reason, request_timeout, target, units};

/// Safe node maintenance: what stands in the way of drains, and drains that wait their turn.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "kubectl-nodeward",
    bin_name = "kubectl nodeward",
    version,
    disable_help_subcommand = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Exit status: 0 done, 1 failed, 2 wrong usage, 3 --timeout has passed, 130 interrupted."
)]
pub struct CommandLine {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// How to print the result: table, json, yaml
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        hide_default_value = true,
        global = true
    )]
    pub output: Output,
    /// The kubeconfig file [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context [default: its current one]
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
    /// The namespace of budgets and holds [default: the context's to hold and release, all to look]
    #[arg(short, long, value_name = "NAME", global = true)]
    pub namespace: Option<String>,
    /// How long one request may take: 30s, 2m; a bare number is seconds, 0 is no limit
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = request_timeout, global = true)]
    pub request_timeout: RequestTimeout,
    /// No colours; so does the environment variable NO_COLOR
    #[arg(long, global = true)]
    pub no_color: bool,
}

/// How long one request may take; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTimeout(pub Option<Duration>);

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// Text for people, fitted to the terminal.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// What to do.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// The fleet at a glance: components, drains and their queue, blocked nodes
    Status,
    /// What stands in the way of a node's drain, who holds it, and what comes next
    Why {
        /// The node
        #[arg(value_name = "NODE", value_parser = node)]
        node: String,
    },
    /// What draining a node would take; nothing is evicted
    Plan {
        /// The node
        #[arg(value_name = "NODE", value_parser = node)]
        node: String,
    },
    /// Drain nodes: each waits its turn, and their progress is shown until all are drained
    Drain(Drain),
    /// End your request to drain a node, or a hold of a budget
    Release(Release),
    /// Which node holds or waits for which budget, and the holds of their owners
    Locks,
    /// Keep drains from disrupting the pods of a budget for a while
    Hold(Hold),
    /// Print the completion script of a shell
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: Completion,
    },
}

/// Options of `drain`.
#[derive(Debug, Clone, Args)]
pub struct Drain {
    /// The nodes
    #[arg(value_name = "NODE", required = true, value_parser = node)]
    pub nodes: Vec<String>,
    /// What the drain is for, shown to everybody who looks
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub purpose: Option<String>,
    /// What happens when a drain's deadline passes [default of a new drain: release-and-requeue]
    #[arg(long, value_enum, ignore_case = true, value_name = "WHAT")]
    pub fallback: Option<FallbackArg>,
    /// How long a drain may wait for its turn before the fallback acts [default: drain-lock's configuration]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub deadline_queue: Option<ConfigDuration>,
    /// How long a node may take from the grant until it is drained before the fallback acts
    /// [default: drain-lock's configuration]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub deadline_drain: Option<ConfigDuration>,
    /// How long its pods may take to be back, on top of --deadline-drain, before the drain may become Suspect
    /// [default: drain-lock's configuration]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub deadline_recover: Option<ConfigDuration>,
    /// Stop waiting after this time; the drains go on [default: wait as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait")]
    pub timeout: Option<ConfigDuration>,
    /// Only ask for the drains, and do not wait for them
    #[arg(long)]
    pub no_wait: bool,
}

/// What happens when a drain's deadline passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FallbackArg {
    /// Go on waiting.
    #[value(alias = "Wait")]
    Wait,
    /// Give back what is held, and queue again.
    #[value(alias = "ReleaseAndRequeue")]
    ReleaseAndRequeue,
    /// Evict as an ordinary drain does, without the rest of the claim.
    #[value(alias = "EvictAnyway")]
    EvictAnyway,
    /// Delete the pods, around their budgets.
    #[value(alias = "Delete")]
    Delete,
}

/// Options of `release`.
#[derive(Debug, Clone, Args)]
pub struct Release {
    /// Nodes, or holds as hold/NAME (with -n)
    #[arg(value_name = "NODE|hold/NAME", required = true, value_parser = target)]
    pub targets: Vec<Target>,
    /// Whose request to end [default: yours]
    #[arg(long, value_name = "NAME", conflicts_with = "force")]
    pub requester: Option<String>,
    /// Free what is held although pods are down: an override that is written down with its reason
    #[arg(long, requires = "reason")]
    pub force: bool,
    /// Why it is overridden
    #[arg(long, value_name = "TEXT", requires = "force", value_parser = reason)]
    pub reason: Option<String>,
}

/// Options of `hold`.
#[derive(Debug, Clone, Args)]
pub struct Hold {
    /// The PodDisruptionBudget
    #[arg(value_name = "PDB", value_parser = budget)]
    pub budget: String,
    /// Why, shown to everybody whose drain waits for it
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub reason: String,
    /// For how long: 30m, 2h; drain-lock's configuration may allow less
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub duration: ConfigDuration,
    /// How many of the budget's disruptions are held [default: all]
    #[arg(long, value_name = "N", value_parser = units)]
    pub units: Option<i32>,
}

/// A shell whose completion can be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Completion {
    /// Bash.
    Bash,
    /// Zsh.
    Zsh,
    /// fish.
    Fish,
    /// PowerShell.
    #[value(name = "powershell")]
    PowerShell,
}

impl From<Completion> for Shell {
    fn from(shell: Completion) -> Self {
        match shell {
            Completion::Bash => Self::Bash,
            Completion::Zsh => Self::Zsh,
            Completion::Fish => Self::Fish,
            Completion::PowerShell => Self::PowerShell,
        }
    }
}

#[cfg(test)]
mod tests;
