//! The flags, as plain data. What they mean together with files and the environment is resolved in
//! `flags`.
//!
//! | file | flags of |
//! |---|---|
//! | `common` | several commands; how values are written |
//! | `jobs` | commands about jobs |
//! | `nodes` | commands about nodes, what they do and what they notice |
//! | `launch` | commands that start nodes elsewhere |
//! | `trust` | commands about who belongs to the cluster, and about secrets |

mod common;
mod jobs;
mod launch;
mod nodes;
mod trust;

use super::candidates;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::ArgValueCandidates;
use common::{key_value, size, walltime};
use launch::UP_NOTES;
use nodes::{
    AUDIT_NOTES, DRAIN_NOTES, EVENTS_NOTES, METRICS_NOTES, PAUSE_NOTES, TOP_NOTES, UI_NOTES,
    UPGRADE_NOTES,
};
use std::{path::PathBuf, time::Duration};
use trust::{BAN_NOTES, FORGET_NOTES};

pub use common::{JsonArgs, ListArgs, ListingArgs, WatchArgs};
pub use jobs::{
    AddArgs, AttachArgs, CancelArgs, CloseArgs, CommandArgs, ExplainArgs, FollowArgs, GoalArg,
    JobArgs, JobsArgs, LogsArgs, PlotSpec, RemoveArgs, ReportArgs, ResultsArgs, RetryArgs, RunArgs,
    TaskStates,
};
pub use launch::{DownArgs, PsdRunArgs, RequestArgs, UpArgs};
pub use nodes::{
    AuditArgs, DevicesArgs, DrainArgs, EventsArgs, MetricsArgs, PauseArgs, TopArgs, UiArgs,
    UpgradeArgs,
};
pub use trust::{
    AdmissionMode, ClusterSecret, DoctorArgs, ForgetArgs, InviteArgs, NamedSecret, NodeArgs,
    RotateArgs, SecretCommand,
};

const FIRST_STEPS: &str = "\
First steps:
  nodectl init && nodectl run job.toml    a job here, no cluster needed
  nodectl join --detach                   this machine becomes a node
  nodectl nodes                           who is there

Exit codes: 0 done, 1 a job failed or a command could not do what it was asked, 2 wrong usage, settings or job file, \
3 no node answers, 130 interrupted.";
const JOIN_NOTES: &str = "\
Without a secret, the one that is kept here is used, or one is asked for on a terminal; an empty answer, or no terminal, makes a new \
one. Where this node's secret was in a file or in NODECTL_SECRET, it has to be given again. A secret that could be guessed in fewer \
than 2^60 tries is refused without --weak-secret. If a node is running here already, `join` says so and exits with 0.";
const SCHEMA_NOTES: &str = "\
Editors that use taplo for TOML (Even Better TOML, Helix, Neovim) then propose keys, explain them and mark mistakes in each file \
whose first line is `#:schema FILE`, with a path relative to that file.";
const RUN_NOTES: &str = "\
With no node running here, one inside this process runs the jobs on this machine alone. Progress goes to stderr; results go to \
results.csv, results.jsonl and a directory for each task. `nodectl init` writes a job file with every key explained.

Examples:
  nodectl run job.toml                                  the jobs of a file
  nodectl run -- python3 train.py --rate 0.1            one task, and its output
  nodectl run --each 'logs/*.txt' -- wc -l {}           a task for each file
  seq 100 | nodectl run --each - -- ./simulate {}       a task for each line
  nodectl run --gpus 1 --set 'params.rate=[0.1,0.2]' -- ./fit --rate={rate}";

/// Turns the machines of a lab into a GPU cluster.
#[derive(Debug, Parser)]
#[command(name = "nodectl", version, after_help = FIRST_STEPS, propagate_version = true)]
pub struct Cli {
    /// The node's directory: where it keeps its state, and by which commands find it
    /// [default: ~/.local/share/nodectl, or node.data_dir].
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Does nothing unless this program is of that version: for packages that start it.
    #[arg(long, global = true, hide = true, value_name = "VERSION", value_parser = [env!("CARGO_PKG_VERSION")])]
    pub expect_version: Option<String>,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Makes this machine a node; says what to type on the next one
    #[command(after_help = JOIN_NOTES)]
    Join(JoinArgs),
    /// Stops this node; its running tasks are given to others
    Leave,
    /// A node for one program and this machine alone: prints its socket, ends when its standard
    /// input does
    #[command(hide = true)]
    Solo,
    /// Starts nodes elsewhere: on hosts by ssh, in SLURM or in HTCondor
    #[command(after_help = UP_NOTES)]
    Up(Box<UpArgs>),
    /// Stops what `up` started
    Down(DownArgs),
    /// Runs a command on the workers of a Poseidon cluster file
    PsdRun(PsdRunArgs),
    /// Gives a node no new work; what runs there goes on to its end
    #[command(after_help = DRAIN_NOTES)]
    Drain(DrainArgs),
    /// Stops this machine's tasks until `resume`; it takes no others
    #[command(after_help = PAUSE_NOTES)]
    Pause(PauseArgs),
    /// Ends a pause: this machine's tasks go on
    Resume,
    /// Gives nodes another program, one by one, without losing a task
    #[command(after_help = UPGRADE_NOTES)]
    Upgrade(UpgradeArgs),
    /// What happened to nodes and jobs, and who noticed
    #[command(after_help = EVENTS_NOTES)]
    Events(EventsArgs),
    /// Who did what at this node
    #[command(after_help = AUDIT_NOTES)]
    Audit(AuditArgs),
    /// Declares a machine dead; trainings no longer wait for it
    #[command(after_help = FORGET_NOTES)]
    Forget(ForgetArgs),
    /// Refuses a node's key everywhere, until `unban`
    #[command(after_help = BAN_NOTES)]
    Ban(NodeArgs),
    /// Ends a ban: the node may join again
    Unban(NodeArgs),
    /// Admits a node that waits to join
    Admit(NodeArgs),
    /// Sets whether new nodes wait to be admitted
    Admission { mode: AdmissionMode },
    /// Makes a code with which one machine can join, without the secret
    Invite(InviteArgs),
    /// The cluster's secret, and named values for jobs, such as tokens
    #[command(subcommand)]
    Secret(SecretCommand),
    /// Runs the jobs of a job file, or a command; fetches results
    #[command(after_help = RUN_NOTES)]
    Run(RunArgs),
    /// Runs jobs to look at: digits are learned, a fractal is drawn
    Demo(DemoArgs),
    /// The cluster at a glance: nodes and open jobs
    Status(ListingArgs),
    /// The nodes, what they have and how busy they are
    Nodes(ListingArgs),
    /// The cluster as a web page, for browsers on this machine
    #[command(after_help = UI_NOTES)]
    Ui(UiArgs),
    /// The GPUs of the cluster
    Devices(DevicesArgs),
    /// Follows a submitted job as `run` does, and fetches its results
    Attach(AttachArgs),
    /// Runs the failed tasks of a job again
    Retry(RetryArgs),
    /// Applies a trained model to data
    Predict(PredictArgs),
    /// The cluster and its jobs, live on this terminal
    #[command(after_help = TOP_NOTES)]
    Top(TopArgs),
    /// This node's numbers for Prometheus
    #[command(after_help = METRICS_NOTES)]
    Metrics(MetricsArgs),
    /// Finds out what is wrong here and says what to do
    Doctor(DoctorArgs),
    #[command(flatten)]
    Jobs(JobCommand),
    #[command(flatten)]
    Plain(PlainCommand),
}

/// What is asked of jobs: also where no node runs, of those that a `run` without one has left.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// The jobs, newest first
    Jobs(JobsArgs),
    /// All about one job; with `--tasks`, each of its tasks
    Job(JobArgs),
    /// What a task wrote to its stdout or stderr
    Logs(LogsArgs),
    /// The results of a job so far
    Results(ResultsArgs),
    /// Writes what a job did into one HTML file
    Report(ReportArgs),
    /// Stops a job, or some of its tasks; results so far are kept
    Cancel(CancelArgs),
    /// Adds tasks to an open job
    Add(AddArgs),
    /// Ends an open job once its tasks have ended: no more can be added
    Close(CloseArgs),
    /// Forgets jobs that have ended, with their results, on all nodes
    Remove(RemoveArgs),
    /// Why a job or a task is not running, node by node
    Explain(ExplainArgs),
}

/// What needs no node.
#[derive(Debug, Subcommand)]
pub enum PlainCommand {
    /// Writes a commented job file that runs as it is
    Init(InitArgs),
    /// Measures what this machine can do
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Prints a JSON schema of job files or settings, for editors
    #[command(after_help = SCHEMA_NOTES)]
    Schema {
        /// The kind of file
        of: SchemaOf,
    },
    /// The settings in effect
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Prints a completion script for a shell
    Completions {
        /// The shell, e.g.
        /// `nodectl completions bash > ~/.local/share/bash-completion/completions/nodectl`
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
    /// A file with the secret; - is standard input [also: NODECTL_SECRET in the environment]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Runs the node as root, and with it all that members run here [also: node.allow_root]
    #[arg(long)]
    pub allow_root: bool,
    /// Joins with a code that `nodectl invite` made on a member, and not with the secret; without
    /// CODE, asks for it
    #[arg(long, value_name = "CODE", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["secret", "secret_file"])]
    pub invite: Option<String>,
    /// Accepts a secret that is easy to guess, with a warning: anybody on the network can then find
    /// it by trying
    #[arg(long)]
    pub weak_secret: bool,
    /// Runs in the background; `nodectl leave` stops it
    #[arg(long)]
    pub detach: bool,
    /// Also shows the line for the next machine as a QR code, with an invitation for ten minutes
    /// in place of the secret
    #[arg(long)]
    pub qr: bool,
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
    /// GPUs for tasks: numbers or UUIDs with commas between them, or `none` [default: all]
    #[arg(long, value_name = "LIST")]
    pub gpus: Option<String>,
    /// How long this machine may be used: the node leaves shortly before that, and starts no task
    /// that would take longer; e.g. `2h`, or as SLURM writes it, `2:00:00`
    #[arg(long, value_name = "TIME", value_parser = walltime)]
    pub walltime: Option<Duration>,
    /// Leaves when its standard input ends: with the program that started it, however that ends
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub while_stdin: bool,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Where its files and results go; if it is not empty, another one with a number is made
    #[arg(default_value = "nodectl-demo")]
    pub dir: PathBuf,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// What to write, one of the kinds below [default: map]
    #[arg(add = ArgValueCandidates::new(candidates::templates))]
    pub kind: Option<String>,
    /// Overwrites files that are there
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub struct PredictArgs {
    /// The model that a training left: model.safetensors, or a checkpoint
    #[arg(required_unless_present = "job")]
    pub model: Option<PathBuf>,
    /// Takes the model of a training job, not a file; its newest checkpoint while it still trains
    #[arg(long, value_name = "JOB", conflicts_with = "model", add = ArgValueCandidates::new(candidates::jobs))]
    pub job: Option<String>,
    /// Samples: a CSV file, an image or a folder of them, or an array, e.g. `data.npz:images`
    pub data: String,
    /// Where predictions go: a .csv or .npy file [default: prints them as CSV]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// What a schema is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaOf {
    /// Job files
    Job,
    /// Settings: nodectl.toml
    Config,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// CPU time of the scheduler's decisions, per task: no processes, no disk, no network
    Scheduler(SchedulerArgs),
}

#[derive(Debug, Args)]
pub struct SchedulerArgs {
    /// Tasks of each job
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub tasks: u32,
    /// Measures only jobs whose tasks need no others
    #[arg(long)]
    pub plain: bool,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Prints every effective setting and where it comes from
    Show(JsonArgs),
}
