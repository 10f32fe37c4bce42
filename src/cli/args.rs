//! The flags, as plain data. What they mean together with files and the environment is resolved in
//! `flags`.

pub use super::launch_args::{DownArgs, PsdRunArgs, RequestArgs, UpArgs};
pub use super::trust_args::{
    AdmissionMode, BAN_NOTES, ClusterSecret, DoctorArgs, FORGET_NOTES, ForgetArgs, InviteArgs,
    NodeArgs, RotateArgs, SecretCommand,
};
use super::{
    complete, events, help,
    launch_args::UP_NOTES,
    metrics::{METRICS_NOTES, MetricsArgs},
    owner,
    plot::PlotSpec,
    run::CommandArgs,
    top::{TOP_NOTES, TopArgs},
    ui::{UI_NOTES, UiArgs},
    upgrade,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::ArgValueCandidates;
use nodectl_types::units::{parse_bytes, parse_duration};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

const FIRST_STEPS: &str = "\
First steps:
  nodectl init && nodectl run job.toml    a job here, no cluster needed
  nodectl join --detach                   this machine becomes a node
  nodectl nodes                           who is there

Exit codes: 0 done, 1 a job failed or a command could not do what it was asked, 2 wrong usage, settings or job file, \
3 no node answers, 130 interrupted.";
const JOIN_NOTES: &str = "\
Without a secret, the one that this node made earlier is used, or one is asked for on a terminal; an empty answer, or no \
terminal, makes a new one. One that fewer than 2^60 guesses may find is refused without --weak-secret. Where a node runs already, \
says so and exits with 0.";
const SCHEMA_NOTES: &str = "\
Editors that know TOML by taplo (Even Better TOML, Helix, Neovim) then propose keys, explain them and mark mistakes, once a file's \
first line is `#:schema FILE`, with a path relative to it.";
const RUN_NOTES: &str = "\
With no node running here, one inside this process runs the jobs on this machine alone. Progress goes to stderr; results go to \
results.csv, results.jsonl and a directory for each task. `nodectl init` writes a job file with every key explained.

  nodectl run job.toml                                  the jobs of a file
  nodectl run -- python3 train.py --rate 0.1            one task, whose output is shown
  nodectl run --each 'logs/*.txt' -- grep -c error {}   a task for each file
  seq 100 | nodectl run --each - -- ./simulate {}       a task for each line
  nodectl run --gpus 1 --set 'params.rate=[0.1,0.2]' -- ./fit --rate={rate}";

/// Turns the machines of a lab into a GPU cluster.
#[derive(Debug, Parser)]
#[command(name = "nodectl", version, after_help = FIRST_STEPS, help_template = help::template(), propagate_version = true)]
pub struct Cli {
    /// The node's directory: where it keeps its state, and by which commands find it
    /// [default: ~/.local/share/nodectl, or node.data_dir].
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
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
    #[command(after_help = owner::DRAIN_NOTES)]
    Drain(owner::DrainArgs),
    /// Stops this machine's tasks until `resume`; it takes no others
    #[command(after_help = owner::PAUSE_NOTES)]
    Pause(owner::PauseArgs),
    /// Ends a pause: this machine's tasks go on
    Resume,
    /// Gives nodes another program, one node after the other, without losing a task
    #[command(after_help = upgrade::UPGRADE_NOTES)]
    Upgrade(upgrade::UpgradeArgs),
    /// What happened to nodes and jobs, and who noticed
    #[command(after_help = events::EVENTS_NOTES)]
    Events(events::EventsArgs),
    /// Who did what at this node
    #[command(after_help = owner::AUDIT_NOTES)]
    Audit(owner::AuditArgs),
    /// Declares a machine dead; trainings no longer wait for it
    #[command(after_help = FORGET_NOTES)]
    Forget(ForgetArgs),
    /// Refuses a node's key everywhere, until `unban`
    #[command(after_help = BAN_NOTES)]
    Ban(NodeArgs),
    /// Takes a ban back
    Unban(NodeArgs),
    /// Lets a node in that waits to be admitted
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
    /// The jobs, newest first
    Jobs(JobsArgs),
    /// The cluster as a web page, for browsers on this machine
    #[command(after_help = UI_NOTES)]
    Ui(UiArgs),
    /// The GPUs of the cluster
    Devices(DevicesArgs),
    /// All about one job; with `--tasks`, each of its tasks
    Job(JobArgs),
    /// What a task wrote to its stdout or stderr
    Logs(LogsArgs),
    /// The results of a job so far
    Results(ResultsArgs),
    /// Writes what a job did into one HTML file
    Report(ReportArgs),
    /// Follows a submitted job as `run` does, and fetches its results
    Attach(AttachArgs),
    /// Stops a job, or some of its tasks; results so far are kept
    Cancel(CancelArgs),
    /// Runs the failed tasks of a job again
    Retry(RetryArgs),
    /// Forgets jobs that have ended, with their results, on all nodes
    Remove(RemoveArgs),
    /// Why a job or a task is not running, node by node
    Explain(ExplainArgs),
    /// Writes a commented job file that runs as it is
    Init(InitArgs),
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
    /// Measures what this machine can do
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Prints a JSON schema of job files or settings, for editors
    #[command(after_help = SCHEMA_NOTES)]
    Schema {
        /// Of which files
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
    /// A file with the secret [also: NODECTL_SECRET in the environment]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Runs the node as root, and so whatever members run here [also: node.allow_root]
    #[arg(long)]
    pub allow_root: bool,
    /// In place of the secret: a code that `nodectl invite` made on a member; asked for if left out
    #[arg(long, value_name = "CODE", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["secret", "secret_file"])]
    pub invite: Option<String>,
    /// Takes a secret that is easy to guess, with a warning: everybody on the network can try
    /// secrets out at home
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
    /// Leaves in time before this is over, and starts nothing that would not end before; e.g. `2h`,
    /// or as SLURM says it, `2:00:00`
    #[arg(long, value_name = "TIME", value_parser = walltime)]
    pub walltime: Option<Duration>,
    /// Leaves when its standard input ends: with the program that started it, however that ends
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub while_stdin: bool,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The job file (TOML); with --extend, a file of parameter sets (CSV, TSV or JSONL)
    #[arg(required_unless_present_any = ["resume", "command"], conflicts_with = "command")]
    pub job_file: Option<PathBuf>,
    #[command(flatten)]
    pub line: CommandArgs,
    /// Runs a training job that has ended once more, from its newest checkpoint; with a job file,
    /// the training in that from there
    #[arg(long, value_name = "JOB", conflicts_with_all = ["extend", "computing", "watch", "command"], add = ArgValueCandidates::new(complete::jobs))]
    pub resume: Option<String>,
    /// Runs more parameter sets of a job: a new job with the same command, files and settings
    #[arg(long, value_name = "JOB", conflicts_with = "command", add = ArgValueCandidates::new(complete::jobs))]
    pub extend: Option<String>,
    /// A computing mode: how many workers, on whose machines (config/computing) [default: what the
    /// job file's `computing` says]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["extend", "detach", "detach_on_interrupt"])]
    pub computing: Option<PathBuf>,
    /// Integrates HDF5 files as they appear below a directory, until Ctrl-C (jobs of the kind
    /// `integrate`)
    #[arg(long = "follow", value_name = "DIR", conflicts_with_all = ["extend", "detach", "command"])]
    pub watch: Option<PathBuf>,
    /// Runs only tasks that no earlier run of the same command, parameters and files did; the
    /// results of the others are taken over
    #[arg(long, conflicts_with_all = ["resume", "extend", "watch", "detach", "key"])]
    pub skip_done: bool,
    /// Submits, prints the ids and returns; `nodectl attach` follows later
    #[arg(long, conflicts_with_all = ["into", "timeout", "cancel_on_interrupt", "detach_on_interrupt"])]
    pub detach: bool,
    /// A name for this submission: run again with the same one, the jobs are the same and are
    /// followed, not submitted twice
    /// [default: drawn]
    #[arg(long, value_name = "KEY", conflicts_with = "watch")]
    pub key: Option<String>,
    #[command(flatten)]
    pub follow: FollowArgs,
}

impl RunArgs {
    /// The job file; only `--resume` and a command need none.
    pub fn job_file(&self) -> &Path {
        self.job_file.as_deref().unwrap_or(Path::new(""))
    }
}

/// How a job is followed.
#[derive(Debug, Default, Args)]
pub struct FollowArgs {
    /// Where results go; for several jobs, a directory in it for each [default: `<name>-<job id>`
    /// here, or for `run` what the job file's `into` says]
    #[arg(long, value_name = "DIR")]
    pub into: Option<PathBuf>,
    /// Puts the files of all tasks into one directory, as TASK-FILE, in place of a directory for
    /// each task
    #[arg(long)]
    pub flat: bool,
    /// On Ctrl-C, cancels without asking; so it does anyway where there is no terminal
    #[arg(long, conflicts_with = "detach_on_interrupt")]
    pub cancel_on_interrupt: bool,
    /// On Ctrl-C or SIGTERM, leaves the job running without asking
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

/// A listing that can be watched.
#[derive(Clone, Debug, Default, Args)]
pub struct ListingArgs {
    #[command(flatten)]
    pub list: ListArgs,
    /// Shows it anew every 2 seconds, or every so many, until Ctrl-C
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = period,
        conflicts_with_all = ["json", "quiet"]
    )]
    pub watch: Option<f64>,
}

#[derive(Clone, Debug, Default, Args)]
pub struct JobsArgs {
    /// Only those that have not ended
    #[arg(long)]
    pub open: bool,
    /// Only those with this in their names
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Only this user's
    #[arg(long)]
    pub user: Option<String>,
    /// At most so many
    #[arg(short = 'n', value_name = "N")]
    pub number: Option<usize>,
    /// Also the steps of jobs, each by itself
    #[arg(long)]
    pub steps: bool,
    #[command(flatten)]
    pub listing: ListingArgs,
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

#[derive(Clone, Copy, Debug, Args)]
pub struct JsonArgs {
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct JobName {
    /// The job: its id, the beginning of it, its name, or `last`
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(complete::jobs))]
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
    /// On a terminal, too, the bytes as they are: control characters act on it
    #[arg(long)]
    pub raw: bool,
}

#[derive(Debug, Args)]
pub struct ResultsArgs {
    #[command(flatten)]
    pub name: JobName,
    /// Writes results, logs and output files into a directory, as `run` does
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "quiet"])]
    pub into: Option<PathBuf>,
    /// With --into: all files in one directory, as TASK-FILE, in place of a directory for each task
    #[arg(long, requires = "into")]
    pub flat: bool,
    /// With the results of the jobs that it extends, as of one job; tasks are numbered on
    #[arg(long)]
    pub all: bool,
    /// Sorts by a parameter, a part of the results, `seconds`, `node` or `status`; with `-` before
    /// it, the greatest first
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with_all = ["into", "plot"])]
    pub sort: Option<String>,
    /// Only the best task, by the metric and the goal of the job's sweep
    #[arg(long, conflicts_with_all = ["into", "plot", "sort"])]
    pub best: bool,
    /// At most so many
    #[arg(short = 'n', value_name = "N", conflicts_with_all = ["into", "plot"])]
    pub number: Option<usize>,
    /// Prints CSV, as in results.csv
    #[arg(long, conflicts_with_all = ["json", "quiet", "into", "plot"])]
    pub csv: bool,
    /// Draws one column over another, and marks the best: parameters, parts of results, seconds,
    /// node; e.g. lr:accuracy:act
    #[arg(long, value_name = "X:Y[:COLOUR]", conflicts_with_all = ["json", "quiet", "into"])]
    pub plot: Option<PlotSpec>,
    /// The picture's file, SVG or PNG by its ending [default: `<name>-<job id>.svg` here]
    #[arg(long, value_name = "FILE", requires = "plot")]
    pub plot_to: Option<PathBuf>,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    #[command(flatten)]
    pub name: JobName,
    /// The file [default: `<name>-<job id>.html` here]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
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
pub struct RemoveArgs {
    /// The jobs: ids, the beginnings of ids, or names
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new(), value_name = "JOB", required_unless_present_any = ["ended", "older"], conflicts_with_all = ["ended", "older"], add = ArgValueCandidates::new(complete::jobs))]
    pub jobs: Vec<String>,
    /// All jobs that have ended; those that unfinished jobs come after are kept
    #[arg(long, conflicts_with = "older")]
    pub ended: bool,
    /// All jobs that ended at least so long ago, e.g. `7d`
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub older: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub name: JobName,
    /// The task, counted from 0 [default: the job as a whole]
    pub task: Option<u32>,
    /// Prints JSON: the lines, and the job and the task as `nodectl job --json` has them
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Where its files and results go; with a number behind it where that is not empty
    #[arg(default_value = "nodectl-demo")]
    pub dir: PathBuf,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// What to write: `map` (default), `worker`, `kernel`, `train`, `integrate`, `quickstart`, or a
    /// kernel that does something: `heat`, `nbody`, `option`, `knn`
    #[arg(add = ArgValueCandidates::new(complete::templates))]
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
    /// In place of a file: the model of a training job, or while there is none its newest
    /// checkpoint
    #[arg(long, value_name = "JOB", conflicts_with = "model", add = ArgValueCandidates::new(complete::jobs))]
    pub job: Option<String>,
    /// Samples: a CSV file, an image or a folder of them, or an array, e.g. `data.npz:images`
    pub data: String,
    /// Where answers go: a .csv file, or a .npy file with all of them [default: CSV, printed]
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

pub fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}

/// A duration, or SLURM's way to write one.
pub fn walltime(text: &str) -> Result<Duration, String> {
    nodectl_launch::slurm::parse_time(text).map_or_else(|| duration(text), Ok)
}

/// Seconds between two looks.
fn period(text: &str) -> Result<f64, String> {
    let seconds = text
        .parse()
        .map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if (0.1..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("from 0.1 to 86400 seconds".into())
    }
}

pub fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}
