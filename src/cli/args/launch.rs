//! The flags of commands that start nodes elsewhere.

use super::common::{ListArgs, duration, size, walltime};
use clap::Args;
use std::{path::PathBuf, time::Duration};

pub const UP_NOTES: &str = "\
A cluster file has a line for each server or worker, `ps,HOST,PORT,GPU` or `worker,HOST,PORT,GPU`; the lines of a host become one \
node. A file whose name ends in .toml is an inventory:

  user = \"ada\"                      # on top: for all hosts; also ssh_port, key, python, environment, labels
  [[host]]
  name = \"gpu1\"                     # as ssh knows it
  gpus = [0, 1]                     # default: all; also cores, port (the node's), and all of the above

ssh is the system's, so your configuration, agent and jumps apply; it is never asked for a password. Where no node runs here, one is \
started in the background, and `down` stops it. Ctrl-C stops all that this command has started.";

/// What says nothing of hosts that a file names.
#[rustfmt::skip]
const OF_SCHEDULERS: [&str; 18] = [
    "slurm", "condor", "nodes", "cpus_per_node", "gpus_per_node", "memory", "time", "partition", "account", "together", "transfer",
    "requirements", "create_environment", "options", "min", "max", "idle", "tasks_per_node",
];

#[derive(Debug, Args)]
pub struct UpArgs {
    /// The cluster file or inventory
    #[arg(required_unless_present_any = ["slurm", "condor"], conflicts_with_all = OF_SCHEDULERS)]
    pub file: Option<PathBuf>,
    /// Nodes in allocations of SLURM
    #[arg(long, conflicts_with = "condor")]
    pub slurm: bool,
    /// Nodes in jobs of HTCondor
    #[arg(long)]
    pub condor: bool,
    #[command(flatten)]
    pub request: RequestArgs,
    /// How long ssh may take to connect
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    pub connect_timeout: Duration,
    /// How long nodes may take to join [default: 2m on hosts; with a scheduler, as long as it
    /// takes]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// If one host fails, stops all others, too
    #[arg(long)]
    pub strict: bool,
    /// Goes on in the background, with --max or while nodes wait in a queue; its log is below the
    /// data directory
    #[arg(long, conflicts_with = "file")]
    pub detach: bool,
    /// The cluster's secret; wiped from the visible argument list at once
    #[arg(long, conflicts_with = "secret_file")]
    pub secret: Option<String>,
    /// A file with the secret [also: NODECTL_SECRET in the environment]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Accepts a secret that is easy to guess, with a warning: anybody on the network can then find
    /// it by trying
    #[arg(long)]
    pub weak_secret: bool,
    /// The launch that this process goes on with, in the background
    #[arg(long, hide = true)]
    pub resume: Option<String>,
    #[command(flatten)]
    pub list: ListArgs,
}

/// What a scheduler is asked for.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "With --slurm or --condor")]
pub struct RequestArgs {
    /// How many nodes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub nodes: u32,
    /// Cores of each node
    #[arg(long, value_name = "N")]
    pub cpus_per_node: Option<u32>,
    /// GPUs of each node
    #[arg(long, value_name = "N")]
    pub gpus_per_node: Option<u32>,
    /// Memory of each node, e.g. `48 GiB`
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// How long a node may run, e.g. `1h`; it leaves shortly before that, and starts no task that
    /// would take longer
    #[arg(long, value_name = "TIME", value_parser = walltime)]
    pub time: Option<Duration>,
    /// SLURM's partition; `local` is this machine, without SLURM
    #[arg(long)]
    pub partition: Option<String>,
    /// SLURM's account
    #[arg(long)]
    pub account: Option<String>,
    /// SLURM: one job for all nodes, which start together or not at all, not a job for each
    #[arg(long)]
    pub together: bool,
    /// SLURM: for nodes that share no files with this machine; they are sent this program and the
    /// secret, encrypted by MUNGE
    #[arg(long)]
    pub transfer: bool,
    /// HTCondor: the requirements on machines
    #[arg(long, value_name = "EXPRESSION")]
    pub requirements: Option<String>,
    /// HTCondor: a script that prepares the environment and then executes its arguments
    #[arg(long, value_name = "FILE")]
    pub create_environment: Option<PathBuf>,
    /// A further option of sbatch, e.g. `--option=--constraint=a100`, or line of the submit
    /// description; repeatable
    #[arg(long = "option", value_name = "TEXT")]
    pub options: Vec<String>,
    /// Elastic: never fewer nodes than this
    #[arg(long, value_name = "N", requires = "max")]
    pub min: Option<u32>,
    /// Elastic: as many nodes as the waiting tasks can use, at most this many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), conflicts_with_all = ["nodes", "together", "strict", "timeout", "json", "quiet"])]
    pub max: Option<u32>,
    /// Elastic: a node that has had nothing to do for this long is stopped
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1m", requires = "max")]
    pub idle: Duration,
    /// Elastic: tasks that a node runs at once [default: its GPUs, or its cores]
    #[arg(long, value_name = "N", requires = "max")]
    pub tasks_per_node: Option<u32>,
}

#[derive(Debug, Args)]
pub struct DownArgs {
    /// What to stop: the file that `up` was given, `slurm`, `condor`, or the id of a launch
    /// [default: all that was started from here]
    pub what: Option<String>,
    /// Also cancels every job in SLURM and HTCondor that was submitted with this data directory,
    /// even if nothing else is known of its launch
    #[arg(long, conflicts_with = "what")]
    pub all: bool,
    /// Forgets hosts that cannot be reached; what may still run there is not stopped
    #[arg(long)]
    pub forget: bool,
    /// How long ssh may take to connect
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    pub connect_timeout: Duration,
}

#[derive(Debug, Args)]
pub struct PsdRunArgs {
    /// The cluster: JSON with `worker_nodes` and `server_nodes`; optional are `master_node`,
    /// `pem_file`, `virtualenv`, `username`
    #[arg(short, long, value_name = "FILE")]
    pub cluster_config: PathBuf,
    /// Where logs go: `master.log`, `server<k>.log`, `worker<k>.log`
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// The master's port; 0 takes a free one where the master is this machine
    #[arg(long, value_name = "PORT", default_value_t = 5555)]
    pub master_port: u16,
    /// Passed to the workers' command as --num_push_threads, and to `nodectl.params`
    #[arg(long, value_name = "N")]
    pub num_push_threads: Option<u32>,
    /// Passed to the workers' command as --num_pull_threads, and to `nodectl.params`
    #[arg(long, value_name = "N")]
    pub num_pull_threads: Option<u32>,
    /// Passed to the workers' command as --block_size, in bytes, and to `nodectl.params`; e.g.
    /// `4 MiB`
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub block_size: Option<u64>,
    /// Passes --use_sfb=True to the workers' command; scripts with nodectl.torch then send
    /// sufficient factors of dense layers
    #[arg(long)]
    pub use_sfb: bool,
    /// How long ssh may take to connect
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    pub connect_timeout: Duration,
    /// The workers' command, one shell line; flags that say who takes part are added to its end
    pub command: String,
}
