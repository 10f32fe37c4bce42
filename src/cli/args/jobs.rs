//! The flags of commands about jobs: `run` and what is asked of jobs later.

use super::common::{FailedJob, JobName, ListArgs, ListingArgs, OpenJob, UnfinishedJob, duration};
use crate::candidates;
use clap::{Args, ValueEnum};
use clap_complete::ArgValueCandidates;
use std::{
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The job file (TOML); with --extend, a file of parameter sets (CSV, TSV or JSONL)
    #[arg(required_unless_present_any = ["resume", "command"], conflicts_with = "command")]
    pub job_file: Option<PathBuf>,
    #[command(flatten)]
    pub line: CommandArgs,
    /// Continues a training job that has ended, from its newest checkpoint; with a job file, the
    /// training that the file describes, from there
    #[arg(long, value_name = "JOB", conflicts_with_all = ["extend", "computing", "watch", "command"], add = ArgValueCandidates::new(candidates::ended_jobs))]
    pub resume: Option<String>,
    /// Runs more parameter sets of a job: a new job with the same command, files and settings
    #[arg(long, value_name = "JOB", conflicts_with = "command", add = ArgValueCandidates::new(candidates::jobs))]
    pub extend: Option<String>,
    /// A computing mode: how many workers, on whose machines (config/computing) [default: what the
    /// job file's `computing` says]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["extend", "detach", "detach_on_interrupt"])]
    pub computing: Option<PathBuf>,
    /// Integrates HDF5 files as they appear below a directory, until Ctrl-C (jobs of the kind
    /// `integrate`)
    #[arg(long = "follow", value_name = "DIR", conflicts_with_all = ["extend", "detach", "command"])]
    pub watch: Option<PathBuf>,
    /// Runs only tasks that no earlier run with the same command, parameters and files has done;
    /// the results of the others are taken from there
    #[arg(long, conflicts_with_all = ["resume", "extend", "watch", "detach", "key"])]
    pub skip_done: bool,
    /// Submits, prints the ids and returns; `nodectl attach` follows later
    #[arg(long, conflicts_with_all = ["into", "timeout", "cancel_on_interrupt", "detach_on_interrupt"])]
    pub detach: bool,
    /// A name for this submission: a second `run` with the same name follows the same jobs, and
    /// does not submit them twice [default: a random one]
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
    /// On Ctrl-C, cancels without asking; without a terminal, it always does
    #[arg(long, conflicts_with = "detach_on_interrupt")]
    pub cancel_on_interrupt: bool,
    /// On Ctrl-C or SIGTERM, leaves the job running without asking
    #[arg(long)]
    pub detach_on_interrupt: bool,
    /// On a terminal, also shows the tasks that run
    #[arg(long, short, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Cancels the jobs if they have not ended after this long, e.g. `2h`
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Clone, Debug, Default, Args)]
pub struct JobsArgs {
    /// Only jobs that have not ended
    #[arg(long)]
    pub open: bool,
    /// Only jobs with this text in their names
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Only jobs of this user
    #[arg(long)]
    pub user: Option<String>,
    /// Shows at most N jobs
    #[arg(short = 'n', value_name = "N")]
    pub number: Option<usize>,
    /// Also lists the steps of each job
    #[arg(long)]
    pub steps: bool,
    #[command(flatten)]
    pub listing: ListingArgs,
}

#[derive(Debug, Args)]
pub struct JobArgs {
    #[command(flatten)]
    pub name: JobName,
    /// Lists its tasks, all or those in one state
    #[arg(long, value_name = "STATE", num_args = 0..=1, default_missing_value = "all", require_equals = true)]
    pub tasks: Option<TaskStates>,
    #[command(flatten)]
    pub listing: ListingArgs,
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
    /// The task: its number, counted from 0, or its name
    #[arg(default_value = "0")]
    pub task: String,
    /// Of which process, where a task is several (`nodes`, `per_node`): its rank. Without it that
    /// of rank 0, or, of an attempt that failed, of the rank that did
    #[arg(long)]
    pub rank: Option<u32>,
    /// Waits for more until the task ends
    #[arg(long, short)]
    pub follow: bool,
    /// Prints its stderr in place of its stdout
    #[arg(long)]
    pub stderr: bool,
    /// Prints the bytes as they are, also on a terminal, which may obey control characters in them
    #[arg(long)]
    pub raw: bool,
}

#[derive(Debug, Args)]
pub struct ResultsArgs {
    #[command(flatten)]
    pub name: JobName,
    /// Writes results, logs and output files into a directory, as `run` does
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "quiet", "watch"])]
    pub into: Option<PathBuf>,
    /// With --into: all files in one directory, as TASK-FILE, in place of a directory for each task
    #[arg(long, requires = "into")]
    pub flat: bool,
    /// Also the results of the jobs that this one extends, as if all were one job
    #[arg(long)]
    pub all: bool,
    /// Sorts by a parameter, a field of the results, `seconds`, `node` or `status`; with `-` before
    /// it, the greatest first [default: by task; of more than 10,000 tasks, as they ended]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with_all = ["into", "plot"])]
    pub sort: Option<String>,
    /// Only the best task, by the metric and the goal of the job's sweep
    #[arg(long, conflicts_with_all = ["into", "plot", "sort"])]
    pub best: bool,
    /// Shows at most N results
    #[arg(short = 'n', value_name = "N", conflicts_with_all = ["into", "plot"])]
    pub number: Option<usize>,
    /// Prints CSV, as in results.csv
    #[arg(long, conflicts_with_all = ["json", "quiet", "watch", "into", "plot"])]
    pub csv: bool,
    /// Draws one column over another: parameters, fields of results, seconds, node; e.g.
    /// lr:accuracy:act; marks the best task, by the goal of the job's sweep
    #[arg(long, value_name = "X:Y[:COLOUR]", conflicts_with_all = ["json", "quiet", "watch", "into"])]
    pub plot: Option<PlotSpec>,
    /// Which task is marked as the best in the picture: the one with the least or with the greatest
    /// value [default: as the job's sweep says]
    #[arg(long, value_name = "GOAL", requires = "plot")]
    pub goal: Option<GoalArg>,
    /// The picture's file, SVG or PNG by its ending [default: `<name>-<job id>.svg` here]
    #[arg(long, value_name = "FILE", requires = "plot")]
    pub plot_to: Option<PathBuf>,
    #[command(flatten)]
    pub listing: ListingArgs,
}

/// Which values are the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GoalArg {
    Min,
    Max,
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
    pub name: UnfinishedJob,
    /// Tasks: their numbers, counted from 0, or their names [default: the whole job]
    pub tasks: Vec<String>,
}

#[derive(Debug, Args)]
pub struct AddArgs {
    #[command(flatten)]
    pub name: OpenJob,
    /// A file of parameter sets (CSV, TSV or JSONL): each becomes a task
    #[arg(value_name = "FILE")]
    pub rows: PathBuf,
    /// A name for these rows: a second `add` with the same name and file adds nothing twice
    /// [default: a random one]
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
}

#[derive(Debug, Args)]
pub struct CloseArgs {
    #[command(flatten)]
    pub name: OpenJob,
}

#[derive(Debug, Args)]
pub struct RetryArgs {
    #[command(flatten)]
    pub name: FailedJob,
    /// Required: says that only failed tasks run again
    #[arg(long, required = true)]
    pub failed: bool,
}

#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// The jobs: ids, the beginnings of ids, or names
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new(), value_name = "JOB", required_unless_present_any = ["ended", "older"], conflicts_with_all = ["ended", "older"], add = ArgValueCandidates::new(candidates::ended_jobs))]
    pub jobs: Vec<String>,
    /// All jobs that have ended, except those whose results an unfinished job needs
    #[arg(long, conflicts_with = "older")]
    pub ended: bool,
    /// All jobs that ended at least this long ago, e.g. `7d`
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub older: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub name: JobName,
    /// The task: its number, counted from 0, or its name [default: the job as a whole]
    pub task: Option<String>,
    /// Prints JSON: the sentences, their reasons, the job and the task
    #[arg(long)]
    pub json: bool,
}

/// A command, and what a job file would say of it.
#[derive(Clone, Debug, Default, Args)]
pub struct CommandArgs {
    /// Cores for each task, e.g. `4` or `0.5`
    #[arg(
        long,
        value_name = "N",
        requires = "command",
        help_heading = "Without a job file"
    )]
    pub cpus: Option<String>,
    /// GPUs for each task, e.g. `1` or `0.25`
    #[arg(
        long,
        value_name = "N",
        requires = "command",
        help_heading = "Without a job file"
    )]
    pub gpus: Option<String>,
    /// Memory for each task, e.g. `2GiB`
    #[arg(
        long,
        value_name = "SIZE",
        requires = "command",
        help_heading = "Without a job file"
    )]
    pub memory: Option<String>,
    /// Files and directories that travel with the job, besides those that the command names
    #[arg(
        long,
        value_name = "FILE",
        num_args = 1..,
        requires = "command",
        help_heading = "Without a job file"
    )]
    pub files: Vec<String>,
    /// A task for each file that the pattern matches, or with `-` for each line of the standard
    /// input; `{}` in the command stands for it
    #[arg(
        long,
        value_name = "PATTERN",
        requires = "command",
        help_heading = "Without a job file"
    )]
    pub each: Option<String>,
    /// Sets a key of the job file, e.g. `retries=0`, `outputs='["*.npy"]'` or
    /// `params.rate=[0.1,0.2]`; repeatable
    #[arg(
        long,
        value_name = "KEY=VALUE",
        requires = "command",
        help_heading = "Without a job file"
    )]
    pub set: Vec<String>,
    /// The command: all that follows `--`
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// What is plotted over what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlotSpec {
    pub x: String,
    pub y: String,
    pub colour: Option<String>,
}

impl FromStr for PlotSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<String> = text
            .split(':')
            .map(|part| part.trim().to_string())
            .collect();
        match parts.as_slice() {
            [x, y] if !x.is_empty() && !y.is_empty() => Ok(Self {
                x: x.clone(),
                y: y.clone(),
                colour: None,
            }),
            [x, y, colour] if [x, y, colour].iter().all(|part| !part.is_empty()) => Ok(Self {
                x: x.clone(),
                y: y.clone(),
                colour: Some(colour.clone()),
            }),
            _ => Err("what is plotted is X:Y or X:Y:COLOUR, e.g. lr:accuracy".into()),
        }
    }
}
