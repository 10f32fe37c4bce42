//! The flags of commands about nodes, what they do and what they notice.

use super::common::{ListArgs, duration};
use crate::candidates;
use clap::Args;
use clap_complete::ArgValueCandidates;
use std::{net::IpAddr, path::PathBuf, time::Duration};

pub const DRAIN_NOTES: &str = "\
Said at the node itself it is its owner's word: the node keeps it, also over a restart, returns whatever it is ordered, and nobody can take \
it back elsewhere. Said of another node it is a request that any member can make and take back; `nodectl nodes` shows which it is. \
What waits there goes to other nodes.";
pub const PAUSE_NOTES: &str = "\
This machine takes no tasks until the pause ends, and those that run here stand still (SIGSTOP) or, with --finish, go on to their ends. \
What waited here runs elsewhere. The time does not count against tasks' time limits, a restart of the node changes nothing, and nobody can \
end it elsewhere. `nodectl nodes` shows it to all. For what should happen by itself see node.policy in the settings.";
pub const AUDIT_NOTES: &str = "\
Who submitted and changed jobs at this node, drained, paused or stopped it, forgot, banned or admitted others, invited them, changed the secret \
or named ones, and what of that was refused. Each node keeps its own, in audit.jsonl of its data directory, the newest 20 MiB; for the user \
who runs it, root and api.admins.";
pub const EVENTS_NOTES: &str = "\
Each node remembers what it noticed since it started: nodes that joined, died, left or came back, jobs that began, changed their coordinator, \
failed, ran again or ended. All nodes that are here are asked; what several noticed is told once, at the time of the first, by its clock.";
pub const METRICS_NOTES: &str = "\
Prometheus does not read Unix sockets: `nodectl ui --metrics` lets it read them from the web page's server, or have node_exporter's \
textfile collector read a file that this command writes every half minute (the guide's page on operating has both). One node tells of itself, of its own tasks, and of the jobs that it remembers.";
pub const TOP_NOTES: &str = "\
Enter goes into a job, its tasks and their logs, Esc out again; `?` shows all keys. While the node is away, what was seen last stays, \
and it goes on when the node is back. NO_COLOR is obeyed; 80 columns and 24 lines are needed.";
pub const UI_NOTES: &str = "\
The address on stdout opens the page once, in one browser; when it was used, the next one is printed. The page is for this \
machine only. To see it from another one, keep the port: `ssh -N -L 8080:127.0.0.1:8080 HOST` there, `nodectl ui --port 8080` \
here. Where ssh is not at hand, --listen serves it to the network, encrypted: the browser says that it does not know the \
certificate; compare its SHA-256 fingerprint with the one printed here before you go on. It ends with Ctrl-C; the node and its \
jobs go on.";
pub const UPGRADE_NOTES: &str = "\
Each node takes no new tasks, ends those that it runs, and comes back with the new program within seconds, in the same process; nothing \
is computed twice, and others go on meanwhile. What it coordinates goes to other nodes. This node is the last. The old program stays beside \
the new one, as FILE.previous. A node whose program is refused, or that does not come back, stops the roll; the same command goes on \
where it stopped. Other nodes take part only if their settings say node.upgrade_by_members = true: who may replace a program may do \
there whatever its user may.";

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Shows so many of the newest lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub lines: u32,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Undoes it: the node takes work again
    #[arg(long)]
    pub off: bool,
    /// The node's name, its id, or the beginning of its id [default: this node]
    #[arg(add = ArgValueCandidates::new(candidates::nodes))]
    pub node: Option<String>,
}

#[derive(Debug, Args)]
pub struct PauseArgs {
    /// Ends by itself after this long, e.g. `2h` [default: when `nodectl resume` ends it]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub span: Option<Duration>,
    /// Lets running tasks go on to their ends
    #[arg(long)]
    pub finish: bool,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Shows so many of the newest events
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub lines: u32,
    /// Shows only what was noticed lately, such as `2h`
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub within: Option<Duration>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Writes into this file, which is never there in part [default: prints]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Prints what there is now, and ends
    #[arg(long)]
    pub once: bool,
}

#[derive(Debug, Args)]
pub struct UiArgs {
    /// The port [default: any free one]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Lets the page cancel and retry jobs, and drain nodes; otherwise it only reads
    #[arg(long)]
    pub write: bool,
    /// Serves the page by TLS on this address of the machine, or on all (0.0.0.0, ::)
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<IpAddr>,
    /// Lets Prometheus read /metrics with the token in the file whose name is printed
    #[arg(long)]
    pub metrics: bool,
    /// With --listen: without asking
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
    /// Leaves this node as it is; repeatable
    #[arg(long, value_name = "NODE", requires = "cluster")]
    pub except: Vec<String>,
    /// How long a node may take to end its tasks; then the roll stops, and the node takes tasks
    /// again
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h")]
    pub wait: Duration,
    /// How long a node may take to come back; then the roll stops
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1m")]
    pub away: Duration,
    /// Does not wait for tasks: they are given to other nodes, and begin anew there. For pools of
    /// workers, whose tasks end with their programs only
    #[arg(long, conflicts_with = "wait")]
    pub give_back: bool,
}

#[derive(Clone, Copy, Debug, Default, Args)]
pub struct DevicesArgs {
    /// First measures how fast this machine's GPUs copy and multiply; best while nothing else uses
    /// them
    #[arg(long)]
    pub measure: bool,
    #[command(flatten)]
    pub list: ListArgs,
}
