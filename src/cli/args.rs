//! The flags, as plain data. What they mean together with files and the environment is resolved in `flags`.

use super::plot::PlotSpec;
use crate::types::units::{parse_bytes, parse_duration};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::{path::PathBuf, time::Duration};

const FIRST_STEPS: &str = "\
First steps:
  nodectl init && nodectl run job.toml    a job on this machine, no cluster needed
  nodectl join --detach                   this machine becomes a node; says what to type on others
  nodectl nodes                           who is there

Exit codes: 0 done, 1 a job failed or a command could not do what it was asked, 2 wrong usage, settings or job file, \
3 no node answers, 130 interrupted.";
const JOIN_NOTES: &str = "\
Without a secret, the one that this node made earlier is used, or one is asked for on a terminal; an empty answer, or no \
terminal, makes a new one. Where a node runs already, says so and exits with 0.";
const RUN_NOTES: &str = "\
With no node running here, one inside this process runs the jobs on this machine alone. Progress goes to stderr; results go to \
results.csv, results.jsonl and a directory for each task. `nodectl init` writes a job file with every key explained.";

/// Turns the machines of a lab into a GPU cluster.
#[derive(Debug, Parser)]
#[command(name = "nodectl", version, after_help = FIRST_STEPS, propagate_version = true)]
pub struct Cli {
    /// The node's directory: where it keeps its state, and by which commands find it
    /// [default: ~/.local/share/nodectl, or node.data_dir].
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Makes this machine a node; says what to type on the next one
    #[command(after_help = JOIN_NOTES)]
    Join(JoinArgs),
    /// Stops this node; its running tasks are given to others
    Leave,
    /// A node for one program and this machine alone: prints its socket, ends when its standard input does
    #[command(hide = true)]
    Solo,
    /// Gives a node no new work; what runs there goes on to its end
    Drain(DrainArgs),
    /// Runs the jobs of a job file, shows progress, fetches results
    #[command(after_help = RUN_NOTES)]
    Run(RunArgs),
    /// The cluster at a glance: nodes and open jobs
    Status(ListArgs),
    /// The nodes, what they have and how busy they are
    Nodes(ListArgs),
    /// The jobs, oldest first
    Jobs(ListArgs),
    /// The GPUs of the cluster
    Devices(DevicesArgs),
    /// All about one job; with `--tasks`, each of its tasks
    Job(JobArgs),
    /// What a task wrote to its stdout or stderr
    Logs(LogsArgs),
    /// The results of a job so far
    Results(ResultsArgs),
    /// Follows a submitted job as `run` does, and fetches its results
    Attach(AttachArgs),
    /// Stops a job, or single tasks of it, for good; results so far are kept
    Cancel(CancelArgs),
    /// Gives the failed tasks of a job as many attempts again
    Retry(RetryArgs),
    /// Why a job or a task is not running, node by node
    Explain(ExplainArgs),
    /// Writes a commented job file that runs as it is
    Init(InitArgs),
    /// Finds out what is wrong here and says what to do; exits with 1 if something does not work
    Doctor(JsonArgs),
    /// Measures what this machine can do
    #[command(subcommand)]
    Bench(BenchCommand),
    /// The settings in effect
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Prints a completion script for a shell
    Completions {
        /// The shell, e.g. `nodectl completions bash > ~/.local/share/bash-completion/completions/nodectl`
        shell: clap_complete::Shell,
    },
    /// Prints the manual page, or writes all pages into a directory
    Man {
        /// Where to write a page for each command [default: prints that of nodectl]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct JoinArgs {
    /// The cluster's secret; wiped from the visible argument list at once
    #[arg(long, conflicts_with = "secret_file")]
    pub secret: Option<String>,
    /// A file with the secret [also: NODECTL_SECRET in the environment]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Runs in the background; `nodectl leave` stops it
    #[arg(long)]
    pub detach: bool,
    /// This node's name [default: the host name]
    #[arg(long)]
    pub name: Option<String>,
    /// A node on another network, where discovery does not reach; repeatable
    #[arg(long = "peer", value_name = "HOST:PORT")]
    pub peers: Vec<String>,
    /// The TCP port to listen on [default: any free one]
    #[arg(long)]
    pub port: Option<u16>,
    /// A label that jobs can ask for, e.g. rack=b for `where = "labels.rack == 'b'"`; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = key_value)]
    pub labels: Vec<(String, String)>,
    /// Cores for tasks [default: all]
    #[arg(long)]
    pub cores: Option<f64>,
    /// Memory for tasks, e.g. `48 GiB` [default: all]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Leaves when its standard input ends: with the program that started it, however that ends
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub while_stdin: bool,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Undoes it: the node takes work again
    #[arg(long)]
    pub off: bool,
    /// The node's name, its id, or the beginning of its id [default: this node]
    pub node: Option<String>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The job file (TOML); with --extend, a file of parameter sets (CSV, TSV or JSONL)
    pub job_file: PathBuf,
    /// Runs more parameter sets of a job: a new job with the same command, files and settings
    #[arg(long, value_name = "JOB")]
    pub extend: Option<String>,
    /// Integrates HDF5 files as they appear below a directory, until Ctrl-C (jobs of the kind `integrate`)
    #[arg(long = "follow", value_name = "DIR", conflicts_with_all = ["extend", "detach"])]
    pub watch: Option<PathBuf>,
    /// Submits, prints the ids and returns; `nodectl attach` follows later
    #[arg(long, conflicts_with_all = ["into", "timeout", "cancel_on_interrupt", "detach_on_interrupt"])]
    pub detach: bool,
    #[command(flatten)]
    pub follow: FollowArgs,
}

/// How a job is followed.
#[derive(Debug, Args)]
pub struct FollowArgs {
    /// Where results go; for several jobs, a directory in it for each [default: `<name>-<job id>` here, or for `run` what
    /// the job file's `into` says]
    #[arg(long, value_name = "DIR")]
    pub into: Option<PathBuf>,
    /// On Ctrl-C, cancels without asking; so it does anyway where there is no terminal
    #[arg(long, conflicts_with = "detach_on_interrupt")]
    pub cancel_on_interrupt: bool,
    /// On Ctrl-C, leaves the job running without asking
    #[arg(long)]
    pub detach_on_interrupt: bool,
    /// Cancels the jobs if they have not ended after this long, e.g. `2h`
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ListArgs {
    /// Prints JSON
    #[arg(long, conflicts_with = "quiet")]
    pub json: bool,
    /// Prints ids only
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Clone, Copy, Debug, Default, Args)]
pub struct DevicesArgs {
    /// First measures how fast this machine's GPUs copy and multiply; best while nothing else uses them
    #[arg(long)]
    pub measure: bool,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct JsonArgs {
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct JobName {
    /// The job: its id, the beginning of it, its name, or `last`
    pub job: String,
}

#[derive(Debug, Args)]
pub struct JobArgs {
    #[command(flatten)]
    pub name: JobName,
    /// Lists its tasks, all or those in one state
    #[arg(long, value_name = "STATE", num_args = 0..=1, default_missing_value = "all", require_equals = true)]
    pub tasks: Option<TaskStates>,
    #[command(flatten)]
    pub list: ListArgs,
}

/// Which tasks to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TaskStates {
    All,
    Pending,
    Running,
    Done,
    Failed,
    Cancelled,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    #[command(flatten)]
    pub name: JobName,
    /// The task, counted from 0
    #[arg(default_value_t = 0)]
    pub task: u32,
    /// Waits for more until the task ends
    #[arg(long, short)]
    pub follow: bool,
    /// Prints its stderr in place of its stdout
    #[arg(long)]
    pub stderr: bool,
}

#[derive(Debug, Args)]
pub struct ResultsArgs {
    #[command(flatten)]
    pub name: JobName,
    /// Writes results, logs and output files into a directory, as `run` does
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "quiet"])]
    pub into: Option<PathBuf>,
    /// With the results of the jobs that it extends, as of one job; tasks are numbered on
    #[arg(long)]
    pub all: bool,
    /// Draws one column over another, and marks the best: parameters, parts of results, seconds, node; e.g. lr:accuracy:act
    #[arg(long, value_name = "X:Y[:COLOUR]", conflicts_with_all = ["json", "quiet", "into"])]
    pub plot: Option<PlotSpec>,
    /// The picture's file, an SVG [default: `<name>-<job id>.svg` here]
    #[arg(long, value_name = "FILE", requires = "plot")]
    pub plot_to: Option<PathBuf>,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    #[command(flatten)]
    pub name: JobName,
    #[command(flatten)]
    pub follow: FollowArgs,
}

#[derive(Debug, Args)]
pub struct CancelArgs {
    #[command(flatten)]
    pub name: JobName,
    /// Tasks, counted from 0 [default: the whole job]
    pub tasks: Vec<u32>,
}

#[derive(Debug, Args)]
pub struct RetryArgs {
    #[command(flatten)]
    pub name: JobName,
    /// Required: says that only failed tasks run again
    #[arg(long, required = true)]
    pub failed: bool,
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub name: JobName,
    /// The task, counted from 0 [default: the job as a whole]
    pub task: Option<u32>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// What to write: `map` (default), `worker`, `kernel` or `quickstart`
    pub kind: Option<String>,
    /// Overwrites files that are there
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// CPU time that deciding about a task takes: no processes, no disk, no network
    Scheduler(SchedulerArgs),
}

#[derive(Debug, Args)]
pub struct SchedulerArgs {
    /// Tasks of each job
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub tasks: u32,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Prints every effective setting and where it comes from
    Show(JsonArgs),
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_string(), value.to_string())),
        _ => Err("a label is KEY=VALUE, e.g. rack=b".to_string()),
    }
}

fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}
