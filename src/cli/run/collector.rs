//! The output directory of a job: `results.jsonl` and `results.csv`, and a directory a task with
//! its stdout, stderr and output files. A line appears only after the files that it names.
//!
//! The streams of jobs with more than `MANY_TASKS` tasks are written for failed tasks only: a
//! million directories with one line each help nobody, and `nodectl logs` has them all.

use super::{earlier::Numbering, fetch, followed::Followed, lines::Lines, throughput::Throughput};
use crate::{
    exit::CliError,
    output::{ComputeRate, FailureGroup, failure_text},
};
use futures::{StreamExt, TryStreamExt, stream};
use nodectl_http::Client;
use nodectl_jobfile::Delivery;
use nodectl_ports::files::remove_if_there;
use nodectl_types::manifest::safe_path;
use nodectl_wire::api::{StatusName, TaskResult};
use serde_json::Value as Json;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs, io,
    path::{Path, PathBuf},
};

/// Above this, streams of tasks that are done are not written.
const MANY_TASKS: u32 = 10_000;
/// Tasks whose files are fetched at once.
const FETCHES_AT_ONCE: usize = 8;
/// Reasons kept apart; tasks may put anything into a message.
const MAX_REASONS: usize = 50;

pub struct Collector {
    client: Client,
    /// Whose results are taken.
    job: String,
    numbering: Numbering,
    /// Whether the job is an earlier one, whose results are taken over.
    is_earlier: bool,
    directory: PathBuf,
    /// None for a step: its results are for other jobs.
    lines: Option<Lines>,
    /// One bit a task: done, and therefore final.
    done: Vec<u64>,
    /// Why a task failed last; a retry may still mend it.
    failed: BTreeMap<u32, String>,
    /// For some reasons, an exception's traceback.
    tracebacks: BTreeMap<String, String>,
    throughput: Throughput,
    many: bool,
    missing_files: u32,
    /// Frames that integrations could not read, and in how many datasets.
    bad_frames: (u64, u32),
    delivery: Option<Delivery>,
    /// Where the files of all tasks lie side by side.
    flat: Option<fetch::FlatNames>,
}

/// What is there to say at the end.
pub struct Collected {
    pub failures: Vec<FailureGroup>,
    pub missing_files: u32,
    pub compute: Option<ComputeRate>,
}

impl Collector {
    pub fn create(client: Client, job: &Followed) -> Result<Self, CliError> {
        let failed = |source| CliError::file("making", &job.directory, source);
        if !job.is_step {
            fs::create_dir_all(&job.directory).map_err(failed)?;
            check_directory(&job.directory)?;
        }
        Ok(Self {
            client,
            job: job.id.clone(),
            numbering: Numbering::From(0),
            is_earlier: false,
            directory: job.directory.clone(),
            lines: if job.is_step {
                None
            } else {
                Some(Lines::create(&job.directory)?)
            },
            done: vec![0; (job.tasks as usize).div_ceil(64)],
            failed: BTreeMap::new(),
            tracebacks: BTreeMap::new(),
            throughput: Throughput::default(),
            many: job.tasks > MANY_TASKS,
            missing_files: 0,
            bad_frames: (0, 0),
            delivery: job.delivery.clone(),
            // What is delivered has names of its own.
            flat: (job.flat && job.delivery.is_none()).then(fetch::FlatNames::default),
        })
    }

    /// What is taken from now on is another job's.
    pub fn turn_to(&mut self, job: &str, numbering: Numbering, is_earlier: bool) {
        (self.job, self.numbering, self.is_earlier) = (job.to_string(), numbering, is_earlier);
    }

    /// Takes a page of results. Those that are known already are passed over.
    pub async fn take(&mut self, results: &[TaskResult]) -> Result<(), CliError> {
        let mut news: BTreeMap<u32, &TaskResult> = BTreeMap::new();
        for result in results.iter().filter(|result| !self.is_done(result.task)) {
            news.insert(result.task, result);
        }
        if self.lines.is_some() {
            self.fetch(&news).await?;
        }
        for result in news.values() {
            if let Some(lines) = &mut self.lines {
                let ran = || (self.job.as_str(), self.numbering.in_job(result.task));
                lines.append(result, self.is_earlier.then(ran))?;
            }
            self.note(result);
            self.throughput.take(result);
        }
        self.lines.as_mut().map_or(Ok(()), Lines::flush)
    }

    /// The files of tasks.
    async fn fetch(&mut self, news: &BTreeMap<u32, &TaskResult>) -> Result<(), CliError> {
        let this = &*self;
        let fetches = stream::iter(news.values()).map(|result| {
            let streams = !this.many || result.status == StatusName::Failed;
            fetch::task(
                &this.client,
                (&this.job, this.numbering.in_job(result.task)),
                &this.directory,
                result,
                streams,
                this.flat.as_ref(),
            )
        });
        let missing: Vec<u32> = fetches
            .buffer_unordered(FETCHES_AT_ONCE)
            .try_collect()
            .await?;
        self.missing_files += missing.iter().sum::<u32>();
        for result in news
            .values()
            .filter(|result| result.status == StatusName::Done)
        {
            self.missing_files += self.deliver(result)?;
        }
        Ok(())
    }

    /// Puts a task's files where the user wants them. Returns how many could not be.
    fn deliver(&self, result: &TaskResult) -> Result<u32, CliError> {
        let Some(delivery) = &self.delivery else {
            return Ok(0);
        };
        let failed = |source| CliError::file("making", &delivery.directory, source);
        fs::create_dir_all(&delivery.directory).map_err(failed)?;
        let from = self.directory.join(result.directory());
        // A task says which of its files are for the user's directory; those of one that had
        // nothing to do are not.
        let files = result
            .value
            .as_ref()
            .and_then(|value| value.get("files"))
            .and_then(Json::as_array);
        let is_meant = |path: &str| {
            files.is_some_and(|files| files.iter().any(|file| file.as_str() == Some(path)))
        };
        let mut missing = 0;
        // From the network: it must not lead out of the directories.
        let is_safe = |path: &str| safe_path(path) && is_meant(path);
        for output in result.outputs.iter().filter(|output| is_safe(&output.path)) {
            let (source, target) = (
                from.join(&output.path),
                delivery.directory.join(&output.path),
            );
            if !source.exists() {
                continue;
            }
            if let Err(error) = place(&source, &target, delivery.replaces) {
                tell!(
                    "warning: task {}: {}: {error}",
                    result.task,
                    target.display()
                );
                missing += 1;
            }
        }
        Ok(missing)
    }

    fn is_done(&self, task: u32) -> bool {
        self.done
            .get(task as usize / 64)
            .is_some_and(|word| word >> (task % 64) & 1 == 1)
    }

    fn note(&mut self, result: &TaskResult) {
        match &result.failure {
            // Cancelled tasks may yet turn out to have been done; they are nobody's fault.
            Some(_) if result.status != StatusName::Failed => {
                drop(self.failed.remove(&result.task))
            }
            None => {
                self.failed.remove(&result.task);
                self.note_bad_frames(result);
                if let Some(word) = self.done.get_mut(result.task as usize / 64) {
                    *word |= 1 << (result.task % 64);
                }
            }
            Some(failure) => {
                if let Some(traceback) = &failure.traceback
                    && self.tracebacks.len() < MAX_REASONS
                {
                    self.tracebacks
                        .insert(failure.message.clone(), traceback.clone());
                }
                self.failed
                    .insert(result.task, failure_text(failure, &result.stderr.tail));
            }
        }
    }

    /// An integration goes on without frames that it cannot read, and says how many they are.
    fn note_bad_frames(&mut self, result: &TaskResult) {
        let value = result.value.as_ref();
        let count = value.and_then(|value| value.get("bad_frames")?.as_u64());
        if let (Some(count), true) = (count, self.lines.is_some()) {
            self.bad_frames.0 += count;
            self.bad_frames.1 += 1;
        }
    }

    /// What the job's GPUs did so far, if it has any.
    pub fn compute(&self) -> Option<ComputeRate> {
        self.throughput.rate()
    }

    /// Brings the files into their final form.
    pub fn finish(self) -> Result<Collected, CliError> {
        if let (frames @ 1.., datasets) = self.bad_frames {
            tell!(
                "warning: bad frames: {frames}, in {datasets} of the datasets: their patterns are NaN, `entry/bad_frames` lists them"
            );
        }
        self.lines.map_or(Ok(()), Lines::finish)?;
        let (failures, compute) = (
            group(&self.failed, &self.tracebacks, &self.numbering),
            self.throughput.rate(),
        );
        Ok(Collected {
            failures,
            missing_files: self.missing_files,
            compute,
        })
    }
}

/// Gives a file another name, whole from the beginning; as a copy where the file system is another.
fn place(source: &Path, target: &Path, replaces: bool) -> io::Result<()> {
    if !replaces && target.exists() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "it exists and is left as it is",
        ));
    }
    let mut temporary = target.as_os_str().to_owned();
    temporary.push(".part");
    let temporary = PathBuf::from(temporary);
    remove_if_there(&temporary)?;
    if fs::hard_link(source, &temporary).is_err() {
        fs::copy(source, &temporary)?;
    }
    fs::rename(&temporary, target)
}

/// Task directories are replaced: they must not be somebody else's.
pub fn check_directory(directory: &Path) -> Result<(), CliError> {
    let holds_something = match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(CliError::file("reading", directory, error)),
    };
    if holds_something && !directory.join("results.jsonl").exists() {
        let problem = format!("{} holds files that are no results", directory.display());
        return Err(CliError::Usage(format!(
            "{problem}\nhint: name a new or an empty directory with --into"
        )));
    }
    Ok(())
}

fn group(
    failed: &BTreeMap<u32, String>,
    tracebacks: &BTreeMap<String, String>,
    numbering: &Numbering,
) -> Vec<FailureGroup> {
    let mut groups: BTreeMap<&str, FailureGroup> = BTreeMap::new();
    for (task, reason) in failed {
        let example = numbering.in_job(*task);
        let full = groups.len() >= MAX_REASONS;
        match groups.entry(reason) {
            Entry::Occupied(mut group) => group.get_mut().tasks += 1,
            Entry::Vacant(group) if !full => {
                let (reason, traceback) = (reason.clone(), tracebacks.get(reason).cloned());
                group.insert(FailureGroup {
                    reason,
                    tasks: 1,
                    example,
                    traceback,
                });
            }
            Entry::Vacant(_) => {
                let other = FailureGroup {
                    reason: "other reasons".into(),
                    tasks: 0,
                    example,
                    traceback: None,
                };
                groups.entry("other reasons").or_insert(other).tasks += 1;
            }
        }
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| (std::cmp::Reverse(group.tasks), group.example));
    groups
}
