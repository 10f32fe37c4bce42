//! The results of a job, and of those that it extends, page by page.

use crate::exit::CliError;
use nodectl_http::{Client, ClientError};
use nodectl_wire::api::{CursorView, Job, TaskResult};
use std::collections::BTreeMap;

/// Jobs that are seen together.
const MOST_JOBS: usize = 1000;

/// Every result so far of a job, with `all` also of those that it extends; of a task that was told
/// twice the last.
pub async fn all_results(
    client: &Client,
    job: &str,
    all: bool,
) -> Result<Vec<TaskResult>, CliError> {
    let mut results: BTreeMap<u32, TaskResult> = BTreeMap::new();
    let mut first = 0;
    for job in jobs(client, job, all).await? {
        let mut cursor = CursorView::default();
        while let Some(page) = next_page(client, &job, &mut cursor, first).await? {
            results.extend(page.into_iter().map(|result| (result.task, result)));
        }
        first = first.saturating_add(job.line.tasks);
    }
    Ok(results.into_values().collect())
}

/// The job, with `all` after those that it extends, the first one first.
pub async fn jobs(client: &Client, job: &str, all: bool) -> Result<Vec<Job>, CliError> {
    let mut jobs = vec![client.job(job).await?];
    while let Some(earlier) = jobs
        .last()
        .and_then(|job| job.work.extends.clone())
        .filter(|_| all)
    {
        match client.job(&earlier).await {
            Ok(job) if jobs.len() < MOST_JOBS => jobs.push(job),
            Ok(_) => {
                return Err(CliError::Usage(format!(
                    "more than {MOST_JOBS} jobs extend one another"
                )));
            }
            Err(ClientError::Refused { status: 404, .. }) => {
                tell!(
                    "warning: job {earlier}, which was extended, is forgotten; its results are left out"
                );
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    jobs.reverse();
    Ok(jobs)
}

/// The page after the cursor, tasks numbered from `first`; None where there is no more now.
pub async fn next_page(
    client: &Client,
    job: &Job,
    cursor: &mut CursorView,
    first: u32,
) -> Result<Option<Vec<TaskResult>>, CliError> {
    let mut page = client.results(&job.line.id, *cursor, 0).await?;
    *cursor = page.cursor;
    for result in &mut page.results {
        result.task = result.task.saturating_add(first);
        // Names are apart within a job only.
        result.name = result.name.take().filter(|_| first == 0);
    }
    Ok(Some(page.results).filter(|results| !results.is_empty()))
}
