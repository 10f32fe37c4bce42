//! The specifications of jobs lately read: records do not repeat the parameters of their tasks.

use super::state::Shared;
use nodectl_ports::specs;
use nodectl_types::{Answer, JobHead, JobId, JobQuery, JobSpec, Query, query::JobDetail};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

/// Specifications kept. One may have `MAX_SPEC_BYTES`; the node usually holds the same allocation
/// anyway.
const KEPT: usize = 8;

/// The latest few, newest last.
#[derive(Default)]
pub(super) struct SpecCache(Mutex<VecDeque<(JobId, Arc<JobSpec>)>>);

impl SpecCache {
    fn get(&self, job: JobId) -> Option<Arc<JobSpec>> {
        let specs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        specs
            .iter()
            .find(|(id, _)| *id == job)
            .map(|(_, spec)| spec.clone())
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
    /// A job's specification. None if nobody can say now: results are then shown without
    /// parameters, not withheld.
    pub async fn spec(&self, job: JobId) -> Option<Arc<JobSpec>> {
        if let Some(spec) = self.specs.get(job) {
            return Some(spec);
        }
        let Ok(Answer::Job(detail)) = self.ask(Query::Job(job, JobQuery::Detail)).await else {
            return None;
        };
        let spec = if detail.is_whole() {
            detail.spec
        } else {
            self.fetch_spec(&detail.head).await?
        };
        self.specs.put(job, spec.clone());
        Some(spec)
    }

    /// One too large for a message, from whoever holds the job's state.
    async fn fetch_spec(&self, head: &JobHead) -> Option<Arc<JobSpec>> {
        let fetched = specs::fetch(
            &*self.api.fetcher,
            &self.api.blobs,
            head.spec,
            head.holders(),
        )
        .await;
        if let Err(error) = &fetched {
            tracing::warn!(
                "results of job {} are shown without parameters: its specification: {error}",
                head.job
            );
        }
        fetched.ok().filter(|spec| spec.may_have(head.tasks))
    }

    /// Remembers the specification in an answer, if all of it is there.
    pub fn keep_detail(&self, detail: &JobDetail) {
        if detail.is_whole() {
            self.specs.put(detail.head.job, detail.spec.clone());
        }
    }

    /// Remembers a specification that passes through anyway.
    pub fn keep_spec(&self, job: JobId, spec: Arc<JobSpec>) {
        self.specs.put(job, spec);
    }
}
