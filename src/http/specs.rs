//! The specifications of jobs lately read: records do not repeat the parameters of their tasks.

use super::server::Shared;
use crate::types::{Answer, JobId, JobSpec, Query};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

/// Specifications kept. One may have `MAX_SPEC_BYTES`; the node usually holds the same allocation anyway.
const KEPT: usize = 8;

/// The latest few, newest last.
#[derive(Default)]
pub(super) struct SpecCache(Mutex<VecDeque<(JobId, Arc<JobSpec>)>>);

impl SpecCache {
    fn get(&self, job: JobId) -> Option<Arc<JobSpec>> {
        let specs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        specs.iter().find(|(id, _)| *id == job).map(|(_, spec)| spec.clone())
    }

    fn put(&self, job: JobId, spec: Arc<JobSpec>) {
        let mut specs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        specs.retain(|(id, _)| *id != job);
        specs.push_back((job, spec));
        if specs.len() > KEPT {
            specs.pop_front();
        }
    }
}

impl Shared {
    /// A job's specification. None if nobody can say now: results are then shown without parameters, not withheld.
    pub async fn spec(&self, job: JobId) -> Option<Arc<JobSpec>> {
        if let Some(spec) = self.specs.get(job) {
            return Some(spec);
        }
        match self.ask(Query::Job { job }).await {
            Ok(Answer::Job(detail)) => {
                self.specs.put(job, detail.spec.clone());
                Some(detail.spec)
            }
            _ => None,
        }
    }

    /// Remembers a specification that passes through anyway.
    pub fn keep_spec(&self, job: JobId, spec: Arc<JobSpec>) {
        self.specs.put(job, spec);
    }
}
