//! The results of the tasks that a task of a graph needs: `inputs/NAME` in its directory has the
//! files that task NAME kept, and its value as `result.json`.
//!
//! They come as blobs from the nodes that have them, once to a node however many tasks of it need
//! them, and are read-only. Which files they are is asked of the job's coordinator.

use super::{after::stage_outputs, staging::Stager};
use futures::{StreamExt, TryStreamExt, stream};
use nodectl_types::{
    Answer, JobId, JobQuery, Need, NodeId, Query, StartTask, TaskIndex, TaskRecord,
    manifest::{RESULT_FILE, safe_path},
    query::Location,
};
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
};

/// The directory in a task's own that has them.
pub const INPUTS: &str = "inputs";
/// Results brought at once for one task.
const FETCHES: usize = 8;

/// Brings what a task needs and links it into a directory of the task's own. The error is a
/// sentence for the user.
pub async fn stage(stager: &Stager, task: &StartTask) -> Result<PathBuf, String> {
    let bring = |need: Need| async move {
        if !safe_path(&need.name) || need.name.contains('/') {
            return Err(format!("`{}` cannot name the results of a task", need.name));
        }
        let place = stager.result_of(task.job, need.task, &task.holders).await;
        let place = place.map_err(|why| format!("the results of task `{}`: {why}", need.name))?;
        Ok((need.name, place))
    };
    let found: Vec<(String, PathBuf)> = stream::iter(task.needs.clone())
        .map(bring)
        .buffer_unordered(FETCHES)
        .try_collect()
        .await?;
    let dir = stager.layout.inputs(task.job, task.task, task.attempt);
    let place = dir.clone();
    tokio::task::spawn_blocking(move || link(&place, &found))
        .await
        .map_err(|error| error.to_string())?
        .map_err(|error| format!("could not make {}: {error}", dir.display()))?;
    Ok(dir)
}

fn link(dir: &Path, found: &[(String, PathBuf)]) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    for (name, place) in found {
        match symlink(place, dir.join(name)) {
            // An earlier life of this attempt was given up here.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    Ok(())
}

/// Writes what a task that is done left into `dir`, which is empty. False if that is nothing.
pub async fn stage_result(
    stager: &Stager,
    (job, task): (JobId, TaskIndex),
    holders: &[NodeId],
    dir: &Path,
) -> Result<bool, String> {
    let record = ask(stager, job, task).await?;
    if record.outputs.is_empty() && record.value.is_none() {
        return Ok(false);
    }
    let is_value = |path: &str| path == RESULT_FILE;
    let has_file = record.outputs.iter().any(|output| is_value(&output.path));
    if let Some(value) = record.value.as_ref().filter(|_| !has_file) {
        fs::write(dir.join(RESULT_FILE), value).map_err(|error| error.to_string())?;
    }
    stage_outputs(stager, &record, holders, dir.to_path_buf()).await?;
    Ok(true)
}

async fn ask(stager: &Stager, job: JobId, task: TaskIndex) -> Result<Arc<TaskRecord>, String> {
    match stager
        .node
        .ask(Query::Job(job, JobQuery::Locate { task, rank: 0 }))
        .await
    {
        Ok(Answer::Where(Location::Ended(record))) if record.is_done() => Ok(record),
        Ok(Answer::Where(_)) => Err("it is not done".into()),
        Ok(other) => Err(format!("an answer to another question: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}
