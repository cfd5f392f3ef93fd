//! The command line, parsed once into types that hold valid values only.

mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use nodeward_api::COMPONENTS;
use nodeward_api::node_drain::Fallback;
use nodeward_core::duration::ConfigDuration;

pub use self::values::{Target, WhyTarget};
use self::values::{budget, disruptions, duration, node, reason, request_timeout, target, why_target};

/// Safe node maintenance: shows what blocks drains, and drains nodes that wait their turn
#[derive(Debug, Clone, Parser)]
#[command(
    name = "kubectl-nodeward",
    bin_name = "kubectl nodeward",
    version,
    disable_help_subcommand = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Exit status: 0 done, 1 failed, 2 wrong usage, 3 --timeout has passed, 130 interrupted;\nof status --exit-code: 3 somebody has to act, 4 that cannot be told."
)]
pub struct CommandLine {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

impl CommandLine {
    /// Whether a program reads what the command prints, errors included.
    pub fn wants_json(&self) -> bool {
        self.global.output == Output::Json
    }
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// The output format: table, wide, json, yaml, name
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
    /// The context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
    /// The cluster of the kubeconfig [default: the context's]
    #[arg(long, value_name = "NAME", global = true)]
    pub cluster: Option<String>,
    /// The user of the kubeconfig [default: the context's]
    #[arg(long, value_name = "NAME", global = true)]
    pub user: Option<String>,
    /// The address of the API server [default: the cluster's]
    #[arg(short, long, value_name = "URL", global = true)]
    pub server: Option<http::Uri>,
    /// The bearer token [default: the user's credentials]
    #[arg(long, value_name = "TOKEN", global = true)]
    pub token: Option<String>,
    /// The user to impersonate
    #[arg(long = "as", value_name = "NAME", global = true)]
    pub impersonate: Option<String>,
    /// A group to impersonate; may be given several times
    #[arg(long = "as-group", value_name = "NAME", requires = "impersonate", global = true)]
    pub impersonate_groups: Vec<String>,
    /// The namespace of budgets and holds [default: the context's for hold and release, else all]
    #[arg(short, long, value_name = "NAME", global = true)]
    pub namespace: Option<String>,
    /// Look at all namespaces, as status, why NODE and locks do without -n
    #[arg(short = 'A', long, conflicts_with = "namespace", global = true)]
    pub all_namespaces: bool,
    /// The timeout of one request: 30s, 2m; a bare number is seconds, 0 is no timeout
    /// [default: 30s; 5s for the first one]
    #[arg(long, value_name = "DURATION", value_parser = request_timeout, global = true)]
    pub request_timeout: Option<Duration>,
    /// Print without colours; the environment variable NO_COLOR does the same
    #[arg(long, global = true)]
    pub no_color: bool,
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// Text for people, fitted to the terminal.
    #[default]
    Table,
    /// The same text, however long its lines are.
    Wide,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
    /// The objects' names, a line each.
    Name,
}

impl Output {
    /// Whether people read it.
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Show the fleet at a glance: what needs a person, components, drains and their queue, blocked nodes
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Show what blocks a node's drain, a pod's eviction or a budget's disruptions, and what comes next
    #[command(after_help = WHY_EXAMPLES)]
    Why(WhyArgs),
    /// Show what draining nodes would take; nothing is evicted
    #[command(after_help = PLAN_EXAMPLES)]
    Plan {
        #[command(flatten)]
        nodes: NodesArgs,
    },
    /// Drain nodes, each in its turn, and show their progress until all are drained
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain(DrainArgs),
    /// End your request for a drain, or a hold of a budget
    Release(ReleaseArgs),
    /// Show which nodes hold or wait for which budgets, and the holds of their owners
    Locks,
    /// Keep drains from disrupting the pods of a budget for some time
    Hold(HoldArgs),
    /// Check that what is installed works, and wait until it does
    #[command(after_help = CHECK_EXAMPLES)]
    Check {
        /// Wait until all works, for at most this time
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        wait: Option<ConfigDuration>,
    },
    /// Show what an uninstall would leave behind, and what of it would block; nothing is uninstalled
    #[command(after_help = UNINSTALL_EXAMPLES)]
    Uninstall {
        /// Only look, the one thing that it does
        #[arg(long, required = true)]
        check: bool,
    },
    /// Emergency stop: keep components from writing anything to the cluster until you resume them
    Pause {
        /// The components [default: all]
        #[arg(value_name = "COMPONENT", value_parser = COMPONENTS)]
        components: Vec<String>,
        /// The reason, shown to everybody
        #[arg(long, value_name = "TEXT", value_parser = reason)]
        reason: String,
    },
    /// End a pause
    Resume {
        /// The components [default: all]
        #[arg(value_name = "COMPONENT", value_parser = COMPONENTS)]
        components: Vec<String>,
    },
    /// Act on the budgets of a Ceph cluster
    #[command(subcommand)]
    Ceph(CephCommand),
    /// Show the fleet live in a browser, with your own rights and nothing installed in the cluster
    #[command(after_help = UI_EXAMPLES)]
    Ui(UiArgs),
    /// Print the completion script of a shell
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
}

/// Arguments of `status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Exit with 3 if somebody has to act, and with 4 if that cannot be told
    #[arg(long, conflicts_with = "watch")]
    pub exit_code: bool,
    /// Show it again every five seconds, until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,
}

const STATUS_EXAMPLES: &str = "\
Examples:
  kubectl nodeward status                Show the fleet, first what needs a person
  kubectl nodeward status --watch        Show it again every five seconds
  kubectl nodeward status --exit-code    The same for a script: 0 nobody has to act, 3 somebody has, 4 it cannot be told
  kubectl nodeward status -o name | grep ^node/ | xargs -r kubectl nodeward why
                                         Show why for each node that is blocked, or needs a person";

/// Nodes by name, or by their labels.
#[derive(Debug, Clone, Args)]
pub struct NodesArgs {
    /// The nodes
    #[arg(value_name = "NODE", required_unless_present = "selector", conflicts_with = "selector", value_parser = node)]
    pub nodes: Vec<String>,
    /// The nodes with these labels: pool=a, 'zone in (a,b)'
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
}

/// Arguments of `why`.
#[derive(Debug, Clone, Args)]
pub struct WhyArgs {
    /// The nodes; or pods as pod/NAME, or budgets as pdb/NAME (with -n, or as pod/NAMESPACE/NAME)
    #[arg(
        id = "node",
        value_name = "NODE|pod/NAME|pdb/NAME",
        required_unless_present = "selector",
        conflicts_with = "selector",
        value_parser = why_target
    )]
    pub targets: Vec<WhyTarget>,
    /// The nodes with these labels: pool=a, 'zone in (a,b)'
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Show it again every five seconds, until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,
}

const WHY_EXAMPLES: &str = "\
Examples:
  kubectl nodeward why worker-1             Show what keeps worker-1 from being drained, or from being remediated
  kubectl nodeward why -l pool=a            The same of each node of a pool
  kubectl nodeward why worker-1 --watch     Show it again every five seconds
  kubectl nodeward why pod/web-0 -n shop    Show what an eviction of the pod would meet
  kubectl nodeward why pdb/web -n shop      Show who has the disruptions of the budget, and who waits for them";

const PLAN_EXAMPLES: &str = "\
Examples:
  kubectl nodeward plan worker-1     Show what becomes of each pod of worker-1
  kubectl nodeward plan -l pool=a    The same of each node of a pool";

const DRAIN_EXAMPLES: &str = "\
Examples:
  kubectl nodeward drain worker-1 worker-2 --purpose 'kernel 6.12'    Drain two nodes, each in its turn
  kubectl nodeward drain -l pool=a --dry-run                          Show what draining a pool would take
  kubectl nodeward drain -l pool=a --no-wait                          Request the drains of a pool
  kubectl nodeward release worker-1                                   Give worker-1 back when its work is done";

const CHECK_EXAMPLES: &str = "\
Examples:
  kubectl nodeward check              Check each component, and your rights to see what they do
  kubectl nodeward check --wait 2m    Wait until all works, as after an installation";

const UNINSTALL_EXAMPLES: &str = "\
Examples:
  kubectl nodeward uninstall --check && helm uninstall nodeward -n nodeward-system
                                     Uninstall only if nothing would block then

Exit status: 0 nothing would block, 1 something would, or the command failed, 4 that cannot be told.";

const UI_EXAMPLES: &str = "\
Examples:
  kubectl nodeward ui                                  Show the fleet of the current context, live
  kubectl nodeward ui --no-open --port 8484            Print the address only, to open it through a tunnel of your own
  kubectl nodeward ui --export incident.html           Write this moment as one file that every browser shows
  kubectl nodeward ui --snapshot before.json           Keep this moment
  kubectl nodeward ui --from before.json               Show it again, without a cluster";

/// Options of `ui`.
#[derive(Debug, Clone, Args)]
pub struct UiArgs {
    /// The port on loopback [default: a free one]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Print the address without opening a browser
    #[arg(long)]
    pub no_open: bool,
    /// Write this moment as one self-contained page, and end
    #[arg(long, value_name = "FILE.html")]
    pub export: Option<PathBuf>,
    /// Write this moment for --from, and end
    #[arg(long, value_name = "FILE.json")]
    pub snapshot: Option<PathBuf>,
    /// Show a moment that --snapshot wrote, instead of a cluster
    #[arg(long, value_name = "FILE.json", conflicts_with = "snapshot")]
    pub from: Option<PathBuf>,
}

/// Options of `drain`.
#[derive(Debug, Clone, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct DrainArgs {
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// Show what draining the nodes would take, as plan does, and request nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The purpose of the drain, shown to everybody
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub purpose: Option<String>,
    /// Evict pods that no controller makes again, too
    #[arg(long)]
    pub force: bool,
    /// Evict pods with emptyDir volumes, too, whose data goes with them
    #[arg(long)]
    pub delete_emptydir_data: bool,
    /// Accepted for who comes from kubectl drain: the pods of DaemonSets always stay
    #[arg(long)]
    pub ignore_daemonsets: bool,
    /// Begin outside maintenance windows, too: for emergencies
    #[arg(long)]
    pub ignore_windows: bool,
    /// Begin though a budget never lets a pod go, and ask whoever runs the pod to move it, once a minute
    #[arg(long)]
    pub ask_owners: bool,
    /// What happens when a drain's deadline for being drained passes [default of a new drain: release-and-requeue]
    #[arg(long, value_enum, ignore_case = true, value_name = "WHAT")]
    pub fallback: Option<FallbackArg>,
    /// The time a drain may wait for its turn before it counts as overdue [default: drain-lock's configuration]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub deadline_queue: Option<ConfigDuration>,
    /// The time from the grant until the node is drained before the fallback acts
    /// [default: drain-lock's configuration]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub deadline_drain: Option<ConfigDuration>,
    /// The time, on top of --deadline-drain, for its pods to return before the drain may become Suspect
    /// [default: drain-lock's configuration]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub deadline_recover: Option<ConfigDuration>,
    /// Stop waiting after this time; the drains go on [default: wait as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait")]
    pub timeout: Option<ConfigDuration>,
    /// Request the drains without waiting for them
    #[arg(long)]
    pub no_wait: bool,
}

/// What happens when a drain has not emptied its node in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FallbackArg {
    /// Keep waiting.
    #[value(alias = "Wait")]
    Wait,
    /// Release the disruptions of running pods, and queue again.
    #[value(alias = "ReleaseAndRequeue")]
    ReleaseAndRequeue,
}

impl From<FallbackArg> for Fallback {
    fn from(fallback: FallbackArg) -> Self {
        match fallback {
            FallbackArg::Wait => Self::Wait,
            FallbackArg::ReleaseAndRequeue => Self::ReleaseAndRequeue,
        }
    }
}

/// Options of `release`.
#[derive(Debug, Clone, Args)]
pub struct ReleaseArgs {
    /// Nodes, or holds as hold/NAME (with -n)
    #[arg(value_name = "NODE|hold/NAME", required = true, value_parser = target)]
    pub targets: Vec<Target>,
    /// The requester whose request to end [default: you]
    #[arg(long, value_name = "NAME", conflicts_with = "force")]
    pub requester: Option<String>,
    /// Release all disruptions and holds even if pods are down; the override is recorded with its reason
    #[arg(long, requires = "reason")]
    pub force: bool,
    /// The reason of the override
    #[arg(long, value_name = "TEXT", requires = "force", value_parser = reason)]
    pub reason: Option<String>,
}

/// What `ceph` does.
#[derive(Debug, Clone, Subcommand)]
pub enum CephCommand {
    /// Emergency: pause ceph-pdb, and let one OSD at a time go, whatever Ceph says; -n names the CephCluster's namespace
    Open {
        /// The reason, shown to everybody
        #[arg(long, value_name = "TEXT", value_parser = reason)]
        reason: String,
    },
}

/// Options of `hold`.
#[derive(Debug, Clone, Args)]
pub struct HoldArgs {
    /// The PodDisruptionBudget
    #[arg(value_name = "PDB", value_parser = budget)]
    pub budget: String,
    /// The reason, shown to everybody whose drain waits for the budget
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub reason: String,
    /// The duration: 30m, 2h; drain-lock's configuration may limit it
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub duration: ConfigDuration,
    /// The number of disruptions to hold [default: all]
    #[arg(long, value_name = "N", value_parser = disruptions)]
    pub disruptions: Option<i32>,
}

#[cfg(test)]
mod tests;
