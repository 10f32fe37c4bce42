//! An attempt that is a call of a worker.

use crate::{
    attempt::{AttemptContext, started_event},
    stop::Stop,
};
use nodectl_ports::Event;
use nodectl_types::{StartTask, WorkerSpec};
use std::{path::PathBuf, sync::Arc};

/// An attempt that is a call of a worker.
#[derive(Clone)]
pub struct AttemptCall {
    pub task: Arc<StartTask>,
    pub stop: Arc<Stop>,
    pub started_ms: u64,
}

impl AttemptCall {
    pub fn dir(&self, context: &AttemptContext) -> PathBuf {
        let StartTask {
            job, task, attempt, ..
        } = *self.task;
        context.layout.task(job, task, attempt)
    }

    pub fn tell_started(&self, context: &AttemptContext) {
        context
            .node
            .blocking_tell(Event::Worker(started_event(&self.task)));
    }

    pub fn worker(&self) -> &WorkerSpec {
        self.task
            .work
            .worker
            .as_ref()
            .expect("a call is one of a worker's")
    }
}
