//! The flags of commands about nodes, what they do and what they notice.

use super::common::{ListingArgs, LogListingArgs, duration};
use crate::candidates;
use clap::Args;
use clap_complete::ArgValueCandidates;
use std::{net::IpAddr, path::PathBuf, time::Duration};

pub const DRAIN_NOTES: &str = "\
Typed at the node itself, it is its owner's decision: the node keeps to it, also after a restart, gives back any task that it is \
sent, and no other machine can undo it. Typed for another node, it is a request, which any member can make and undo; `nodectl nodes` \
shows which of the two it is. Tasks that wait there go to other nodes.";
pub const PAUSE_NOTES: &str = "\
This machine takes no tasks until the pause ends. Tasks that run here are stopped where they are (SIGSTOP) and continue afterwards; with \
--finish, they run to their end. Tasks that waited here run elsewhere. The pause does not count as running time of a task, it \
survives a restart of the node, and only this machine can end it. `nodectl nodes` shows it on all machines. For rules that work \
by themselves, such as hours, see node.policy in the settings.";
pub const AUDIT_NOTES: &str = "\
Shows who submitted or changed jobs at this node; who drained, paused, upgraded or stopped it; who forgot, banned, admitted or invited \
nodes; who changed secrets; and what was refused. Each node has its own log: audit.jsonl in its data directory, the newest 20 MiB. Only \
the user who runs the node, root and the group api.admins can read it.";
pub const EVENTS_NOTES: &str = "\
Each node remembers what it noticed since it started: nodes that joined, died, left or came back, jobs that began, changed their coordinator, \
failed, ran again or ended. All nodes that can be reached are asked. What several nodes noticed is shown once, with the time of the first, \
by that node's clock.";
pub const METRICS_NOTES: &str = "\
Prometheus does not read Unix sockets. Either `nodectl ui --metrics` lets it read the numbers from the web page's server, or \
node_exporter's textfile collector reads a file that this command writes every half minute (the guide's page on operating shows both). \
The numbers are those of this node, of its own tasks, and of the jobs that it knows.";
pub const TOP_NOTES: &str = "\
Enter goes into a job, its tasks and their logs, Esc goes back; `?` shows all keys. While the node does not answer, the last picture \
stays, and is updated once the node is back. The terminal needs 80 columns and 24 lines; with NO_COLOR there are no colours.";
pub const UI_NOTES: &str = "\
The address that is printed opens the page once, in one browser; after that, another address is printed. The page is for this machine \
only. To see it from another machine, choose a port: `nodectl ui --port 8080` here, `ssh -N -L 8080:127.0.0.1:8080 HOST` there. Where \
ssh is not possible, --listen serves the page to the network, encrypted: the browser says that it does not know the certificate; \
compare its SHA-256 fingerprint with the one printed here before you go on. Ctrl-C ends the page; the node and its jobs go on.";
pub const UPGRADE_NOTES: &str = "\
Each node takes no new tasks, finishes those that it runs, and comes back with the new program within seconds, in the same process; nothing \
is computed twice, and other nodes go on meanwhile. Jobs that it coordinates are taken over by other nodes. This node is the last. The old \
program stays beside the new one, as FILE.previous. If a node refuses the program, or does not come back, the upgrade stops there; the same \
command continues it. Other nodes take part only if their settings have node.upgrade_by_members = true, because who may replace a node's \
program may do there whatever the node's user may.";

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// How many lines to show, the newest ones
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub lines: u32,
    #[command(flatten)]
    pub listing: LogListingArgs,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Undoes it: the node takes tasks again
    #[arg(long)]
    pub off: bool,
    /// The node's name, its id, or the beginning of its id [default: this node]
    #[arg(add = ArgValueCandidates::new(candidates::nodes))]
    pub node: Option<String>,
}

#[derive(Debug, Args)]
pub struct PauseArgs {
    /// How long the pause lasts, e.g. `2h` [default: until `nodectl resume`]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub span: Option<Duration>,
    /// Lets running tasks finish
    #[arg(long)]
    pub finish: bool,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// How many events to show, the newest ones
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub lines: u32,
    /// Only events of the last so many hours or minutes, e.g. `2h`
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub within: Option<Duration>,
    #[command(flatten)]
    pub listing: LogListingArgs,
}

#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Writes a file, whole or not at all [default: prints]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Prints the picture once, and ends
    #[arg(long)]
    pub once: bool,
}

#[derive(Debug, Args)]
pub struct UiArgs {
    /// The port [default: any free one]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Lets the page cancel, retry and extend jobs, and drain nodes; otherwise it only reads
    #[arg(long)]
    pub write: bool,
    /// Serves the page by TLS on this address of the machine, or on all (0.0.0.0, ::)
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<IpAddr>,
    /// Lets Prometheus read /metrics with the token in the file whose name is printed
    #[arg(long)]
    pub metrics: bool,
    /// With --listen: does not ask whether you are sure
    #[arg(long, requires = "listen")]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// The program: nodectl, of any version, for the architecture of the nodes
    pub file: PathBuf,
    /// All nodes of the cluster, one after the other
    #[arg(long)]
    pub cluster: bool,
    /// Does not change this node; repeatable
    #[arg(long, value_name = "NODE", requires = "cluster")]
    pub except: Vec<String>,
    /// How long a node may take to end its tasks; after that the upgrade stops, and the node takes
    /// tasks again
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h")]
    pub wait: Duration,
    /// How long a node may take to come back; after that the upgrade stops
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1m")]
    pub away: Duration,
    /// Does not wait for tasks: other nodes run them again, from their beginning. Needed for pools
    /// of workers, whose tasks end only when their programs do
    #[arg(long, conflicts_with = "wait")]
    pub give_back: bool,
}

#[derive(Clone, Debug, Default, Args)]
pub struct DevicesArgs {
    /// First measures how fast this machine's GPUs copy and multiply; nothing else should use them
    /// meanwhile
    #[arg(long)]
    pub measure: bool,
    #[command(flatten)]
    pub listing: ListingArgs,
}
