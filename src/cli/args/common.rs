//! What the flags of several commands share, and how values are written.

use crate::candidates;
use clap::Args;
use clap_complete::ArgValueCandidates;
use nodectl_types::units::{parse_bytes, parse_duration};
use std::time::Duration;

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
    #[command(flatten)]
    pub repeat: WatchArgs,
}

/// A log that can be watched: of lines that have no ids.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct LogListingArgs {
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub repeat: WatchArgs,
}

/// For commands that have `--json`.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct WatchArgs {
    /// Shows it again every 2 seconds, or every SECONDS, until Ctrl-C
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = period,
        conflicts_with = "json"
    )]
    pub watch: Option<f64>,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct JsonArgs {
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

/// The name of a job, and which jobs Tab proposes for it.
macro_rules! job_names {
    ($($name:ident $proposed:ident,)*) => {$(
        #[derive(Debug, Args)]
        pub struct $name {
            /// The job: its id, the beginning of it, its name, or `last`
            #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(candidates::$proposed))]
            pub job: String,
        }
    )*};
}

job_names! {
    JobName jobs,
    UnfinishedJob unfinished_jobs,
    OpenJob open_jobs,
    FailedJob failed_jobs,
}

pub fn key_value(text: &str) -> Result<(String, String), String> {
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
pub fn period(text: &str) -> Result<f64, String> {
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
