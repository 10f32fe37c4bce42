//! A job that is followed, and where its results go.

use super::earlier::TakenOver;
use nodectl_jobfile::Delivery;
use nodectl_ports::wall_ms;
use nodectl_wire::api::JobLine;
use std::{path::PathBuf, time::Duration};

/// A job that is followed.
#[derive(Clone, Debug)]
pub struct Followed {
    pub id: String,
    pub name: String,
    pub tasks: u32,
    /// How long ago it was submitted.
    pub age: Duration,
    pub directory: PathBuf,
    /// A step on the way to another job: its files stay in the cluster, and `directory` is empty.
    pub is_step: bool,
    /// Where the files of its results go besides `directory`.
    pub delivery: Option<Delivery>,
    /// Files of all tasks side by side, in place of a directory for each task.
    pub flat: bool,
    /// What need not be done again; `tasks` counts it.
    pub taken: TakenOver,
}

impl Followed {
    /// A job that has just been submitted.
    pub fn new(id: String, name: String, tasks: u32, directory: PathBuf) -> Self {
        Self {
            id,
            name,
            tasks,
            age: Duration::ZERO,
            directory,
            is_step: false,
            delivery: None,
            flat: false,
            taken: TakenOver::default(),
        }
    }

    /// A job that was submitted before; its files come into `directory`, or one of its own name.
    pub fn of(job: JobLine, directory: Option<PathBuf>) -> Self {
        let directory = directory.unwrap_or_else(|| default_directory(&job.name, &job.id));
        Self {
            age: Duration::from_millis(wall_ms().saturating_sub(job.submitted_ms)),
            ..Self::new(job.id, job.name, job.tasks, directory)
        }
    }
}

/// Where results go unless someone says otherwise.
pub fn default_directory(name: &str, id: &str) -> PathBuf {
    // A name may hold anything; a directory's may not.
    let safe = |c: char| {
        if c.is_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '_'
        }
    };
    let name: String = name.chars().take(64).map(safe).collect();
    PathBuf::from(format!("{}-{id}", name.trim_start_matches('.')))
}
