//! `--skip-done`: tasks that jobs before this one did already. The cluster's own memory of jobs is
//! what counts, not the directories of earlier runs: results are taken over from the newest jobs of
//! the same user and name, as long as the cluster remembers them.

use super::{fetch::blob_bytes, identity, pages::all_results};
use crate::exit::CliError;
use nodectl_http::{Client, ClientError};
use nodectl_ports::accounts;
use nodectl_types::{BlobHash, JobDraft, Manifest, ParamSpace, units::counted};
use nodectl_wire::api::{JobLine, PhaseName, StatusName, TaskResult};
use std::collections::BTreeMap;

/// Jobs that are looked at, the newest first.
const MOST_JOBS: usize = 50;

/// Jobs that are named in a remark.
const MOST_NAMED: usize = 3;

/// How tasks are numbered where results are written, and how in the job that ran them.
#[derive(Clone, Debug)]
pub enum Numbering {
    /// On from a number; from 0, they are the same.
    From(u32),
    /// The number in the job, by that in the results.
    Listed(BTreeMap<u32, u32>),
}

impl Numbering {
    pub fn in_job(&self, number: u32) -> u32 {
        match self {
            Self::From(first) => number.saturating_sub(*first),
            Self::Listed(numbers) => numbers.get(&number).copied().unwrap_or(number),
        }
    }
}

/// What a run need not do again.
#[derive(Clone, Debug, Default)]
pub struct TakenOver {
    pub jobs: Vec<TakenJob>,
    /// Of the tasks that are left for the job, the number and name that they have among all. None:
    /// all tasks are left.
    rest: Option<Vec<(u32, Option<String>)>>,
}

/// An earlier job, and those of its results that are taken over.
#[derive(Clone, Debug)]
pub struct TakenJob {
    pub id: String,
    pub numbering: Numbering,
    pub results: Vec<TaskResult>,
}

impl TakenOver {
    /// How many tasks are not run again.
    pub fn count(&self) -> u32 {
        let counts = self.jobs.iter().map(|job| job.results.len() as u32);
        counts.fold(0, u32::saturating_add)
    }

    /// Nothing is left to be run.
    pub fn is_all(&self) -> bool {
        self.rest.as_ref().is_some_and(Vec::is_empty)
    }

    /// How the tasks of the job are numbered that does the rest.
    pub fn numbering(&self) -> Numbering {
        match &self.rest {
            None => Numbering::From(0),
            Some(rest) => {
                let numbers = rest.iter().map(|(number, _)| *number).zip(0..);
                Numbering::Listed(numbers.collect())
            }
        }
    }

    /// Results of the job that does the rest, as those of one job with what was taken over.
    pub fn numbered(&self, mut results: Vec<TaskResult>) -> Vec<TaskResult> {
        if let Some(rest) = &self.rest {
            for result in &mut results {
                if let Some((number, name)) = rest.get(result.task as usize) {
                    (result.task, result.name) = (*number, name.clone());
                }
            }
        }
        results
    }

    /// The job with the tasks that are left.
    pub fn left_of(&self, draft: &JobDraft) -> JobDraft {
        let Some(rest) = &self.rest else {
            return draft.clone();
        };
        let names = draft.params.names();
        let sets = rest
            .iter()
            .map(|(number, _)| draft.params.get(u64::from(*number)));
        let params = ParamSpace::Rows {
            columns: names.into_iter().map(str::to_string).collect(),
            cells: sets.flatten().map(|(_, value)| value).collect(),
        };
        JobDraft {
            params,
            ..draft.clone()
        }
    }
}

/// Looks for the job's tasks among those of earlier jobs. With `whole`, only for a job that did all
/// of them: others come after it, and find the results of one job.
pub async fn find(
    client: &Client,
    draft: &JobDraft,
    manifest: &Manifest,
    whole: bool,
) -> Result<TakenOver, CliError> {
    let wanted = identity::of_tasks(draft, manifest);
    let mut missing: BTreeMap<BlobHash, u32> = wanted.iter().copied().zip(0..).collect();
    let mut jobs = Vec::new();
    for line in candidates(client, &draft.work.name).await? {
        if missing.is_empty() {
            break;
        }
        let tasks = match tasks_of(client, &line).await {
            Ok(tasks) => tasks,
            Err(error) => {
                let why = error.to_string();
                let why = why.lines().next().unwrap_or_default();
                tell!("warning: nothing is taken over from job {}: {why}", line.id);
                continue;
            }
        };
        if whole && (tasks != wanted || line.phase != PhaseName::Done) {
            continue;
        }
        let found = tasks.iter().zip(0..);
        let found: BTreeMap<u32, u32> = found
            .filter_map(|(task, number)| Some((number, *missing.get(task)?)))
            .collect();
        if found.is_empty() {
            continue;
        }
        let job = take(client, &line, draft, found).await?;
        for result in &job.results {
            missing.remove(&wanted[result.task as usize]);
        }
        if !job.results.is_empty() {
            jobs.push(job);
        }
    }
    if jobs.is_empty() {
        return Ok(TakenOver::default());
    }
    let mut rest: Vec<u32> = missing.into_values().collect();
    rest.sort_unstable();
    let rest = rest
        .into_iter()
        .map(|number| (number, draft.task_name(number)));
    Ok(TakenOver {
        rest: Some(rest.collect()),
        jobs,
    })
}

/// Says what is taken over of a job with so many tasks.
pub fn tell(name: &str, tasks: u64, taken: &TakenOver) {
    let (jobs, count) = (&taken.jobs, taken.count());
    if jobs.is_empty() {
        let tasks = counted(tasks, "task");
        tell!("{name}: no earlier run did any of its {tasks}");
        return;
    }
    let ids: Vec<&str> = jobs.iter().take(MOST_NAMED).map(|job| &*job.id).collect();
    let more = if jobs.len() > MOST_NAMED { ", …" } else { "" };
    let verb = if count == 1 { "was" } else { "were" };
    let tasks = counted(tasks, "task");
    tell!(
        "{name}: {count} of {tasks} {verb} done by an earlier run (job {}{more}), not again",
        ids.join(", ")
    );
}

/// Earlier jobs of this user that may have done the same, the newest first.
async fn candidates(client: &Client, name: &str) -> Result<Vec<JobLine>, CliError> {
    let uid = rustix::process::geteuid().as_raw();
    let user = tokio::task::spawn_blocking(move || accounts::user_name(uid));
    let user = user.await.ok().flatten();
    let mut jobs = client.jobs().await?;
    let is_own = |job: &JobLine| match &user {
        Some(user) => job.user == *user,
        None => job.uid == Some(uid),
    };
    jobs.retain(|job| job.name == name && job.workers.is_none() && is_own(job));
    jobs.sort_by_key(|job| std::cmp::Reverse((job.submitted_ms, job.id.clone())));
    jobs.truncate(MOST_JOBS);
    Ok(jobs)
}

/// The identities of a job's tasks, in order; none where tasks are not told apart by what they are
/// given.
async fn tasks_of(client: &Client, line: &JobLine) -> Result<Vec<BlobHash>, CliError> {
    let spec = match client.spec(&line.id).await {
        Err(ClientError::Refused { status: 404, .. }) => return Ok(Vec::new()),
        spec => spec?,
    };
    let draft = JobDraft::from(spec);
    if draft.repeat > 1 {
        return Ok(Vec::new());
    }
    let manifest = match draft.work.inputs {
        None => Manifest::default(),
        Some(hash) => {
            let from = line.coordinator.as_deref();
            let bytes = blob_bytes(client, &hash.to_string(), from).await?;
            postcard::from_bytes(&bytes).map_err(|error| CliError::Usage(error.to_string()))?
        }
    };
    Ok(identity::of_tasks(&draft, &manifest))
}

/// The results of tasks that are done, by their numbers in `line` and here.
async fn take(
    client: &Client,
    line: &JobLine,
    draft: &JobDraft,
    found: BTreeMap<u32, u32>,
) -> Result<TakenJob, CliError> {
    let mut numbers = BTreeMap::new();
    let mut results = Vec::new();
    for mut result in all_results(client, &line.id, false).await? {
        let Some(number) = found.get(&result.task) else {
            continue;
        };
        if result.status == StatusName::Done {
            numbers.insert(*number, result.task);
            (result.task, result.name) = (*number, draft.task_name(*number));
            results.push(result);
        }
    }
    Ok(TakenJob {
        id: line.id.clone(),
        numbering: Numbering::Listed(numbers),
        results,
    })
}
