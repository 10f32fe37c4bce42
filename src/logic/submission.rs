//! From a user's job to one that its coordinator has safe: checked, numbered, offered to the member that ranks first for
//! it, offered to the next one if that does not answer, and only then promised to the user.

use super::{State, io::Asker, rank, timers::Timer};
use crate::types::{Answer, BlobHash, JobHead, JobId, JobSpec, Message, NodeId, Phase, QueryError, limits};
use rand::RngExt;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// How long a submission waits for the coordinator it chose.
const SUBMISSION_WAIT: Duration = Duration::from_secs(2);

/// A job on its way to its first coordinator.
pub struct Submission {
    spec: Arc<JobSpec>,
    hash: BlobHash,
    asker: Asker,
    /// Specifications too large for a message stay with the submitter, and make it the first coordinator.
    is_inline: bool,
    /// Whom it was offered to last, and whom ever.
    choice: NodeId,
    tried: BTreeSet<NodeId>,
    tries: u64,
}

impl State {
    /// A user's job: chosen, numbered and offered to the member that ranks first for it.
    pub(super) fn submit(&mut self, asker: Asker, spec: Arc<JobSpec>) {
        if let Err(problem) = self.check_spec(&spec) {
            return self.core.answer(asker, Err(problem));
        }
        let job = JobId(self.core.rng.random());
        let bytes = postcard::to_stdvec(&*spec).expect("plain data always encodes");
        let submission = Submission {
            hash: BlobHash::of(&bytes),
            is_inline: bytes.len() <= limits::INLINE_SPEC_BYTES,
            spec,
            asker,
            choice: self.core.me,
            tried: BTreeSet::new(),
            tries: 0,
        };
        self.submissions.insert(job, submission);
        self.offer_submission(job);
    }

    fn check_spec(&self, spec: &JobSpec) -> Result<(), QueryError> {
        if self.leaving {
            return Err(QueryError::Leaving);
        }
        if self.core.directory.is_full() {
            let limit = limits::MAX_JOBS;
            return Err(QueryError::Invalid(format!(
                "{limit} jobs are remembered; ended ones are forgotten after `jobs.keep`"
            )));
        }
        let count = spec.task_count();
        if count == 0 || count > limits::MAX_TASKS || !spec.work.has_program() {
            return Err(QueryError::Invalid(format!("{count} tasks; 1 to {} are possible", limits::MAX_TASKS)));
        }
        let place = crate::types::predicate::Predicate::parse(&spec.place);
        let place = place.map_err(|error| QueryError::Invalid(format!("`where`: {error}")))?;
        if spec.wait_for_nodes {
            return Ok(());
        }
        let members = self.core.members.alive();
        let infos: Vec<_> = members.iter().filter_map(|node| self.core.members.info(*node)).collect();
        let able = infos.iter().any(|info| {
            info.resources.fits(&spec.work.needs(&info.resources)) && (spec.place.is_empty() || place.eval(info))
        });
        if able {
            return Ok(());
        }
        let lacking = infos.iter().filter_map(|info| info.resources.lacks(&spec.work.needs(&info.resources))).next();
        let why = lacking.map_or_else(
            || format!("no node satisfies `where = \"{}\"`", spec.place),
            |lacking| format!("no node has enough {lacking}"),
        );
        Err(QueryError::Unsatisfiable(format!(
            "{why} (`wait = true` accepts it all the same, for nodes that come later)"
        )))
    }

    fn offer_submission(&mut self, job: JobId) {
        let choice = self.next_choice(job).unwrap_or(self.core.me);
        let Some(submission) = self.submissions.get_mut(&job) else { return };
        submission.choice = choice;
        submission.tried.insert(choice);
        // Every try claims a higher epoch than the one before, which may have been heard after all.
        let tries = submission.tries;
        submission.tries += 1;
        let spec = submission.spec.clone();
        let head = JobHead {
            job,
            name: spec.work.name.clone(),
            spec: submission.hash,
            submitter: self.core.me,
            submitted_ms: spec.submitted_ms,
            epoch: 0,
            holder: choice,
            version: tries,
            replicas: Vec::new(),
            cancelled: false,
            reason: None,
            round: 0,
            phase: Phase::Waiting,
            tasks: spec.task_count() as u32,
            done: 0,
            failed: 0,
            stopped: 0,
            saved: None,
            workers: spec.work.pool().map(|_| 0),
            ended_ms: 0,
        };
        self.core.send(choice, Message::Offer { head, spec: Some(spec) });
        self.core.after(SUBMISSION_WAIT, Timer::Resubmit(job));
    }

    /// The member that ranks first for a submission among those that were not asked yet.
    fn next_choice(&self, job: JobId) -> Option<NodeId> {
        let submission = self.submissions.get(&job)?;
        let reachable = self.core.members.connected().into_iter().chain([self.core.me]);
        let is_usable = |node: &NodeId| {
            let stays = self.core.members.info(*node).is_some_and(|info| !info.leaving);
            stays && !submission.tried.contains(node) && (submission.is_inline || *node == self.core.me)
        };
        let ranked = rank::ranked(job, reachable.filter(is_usable));
        let is_drained = |node: &NodeId| self.core.members.info(*node).is_some_and(|info| info.draining);
        ranked.iter().find(|node| !is_drained(node)).or(ranked.first()).copied()
    }

    pub(super) fn resubmit(&mut self, job: JobId) {
        if !self.submissions.contains_key(&job) {
            return;
        }
        let claimed = self.core.directory.get(job).is_some_and(|head| self.core.members.is_alive(head.holder));
        if claimed {
            // It has a coordinator, which only lacks a replica as yet.
            return self.core.after(SUBMISSION_WAIT, Timer::Resubmit(job));
        }
        self.offer_submission(job);
    }

    /// A submission is safe once its coordinator and a replica have it, or the one node that there is.
    pub(super) fn answer_submission(&mut self, head: &JobHead) {
        let job = head.job;
        let has_second = head.replicas.iter().any(|node| self.core.members.may_be_alive(*node));
        let safe = head.epoch > 0 && (has_second || !self.core.members.has_company());
        if !safe || self.coordinators.get(&job).is_some_and(|coordinator| !coordinator.is_written()) {
            return;
        }
        if let Some(submission) = self.submissions.remove(&job) {
            self.core.answer(submission.asker, Ok(Answer::Submitted { job }));
        }
    }

    /// Our disk refuses a job that we are to coordinate: its submitter finds another coordinator.
    pub(super) fn decline(&mut self, job: JobId, error: &str) {
        let head = self.core.directory.get(job).expect("a coordinated job has a head");
        self.core.send(head.submitter, Message::Declined { job, error: error.into() });
    }

    /// The coordinator that was chosen has no room: the next node is asked. Where nobody is left the user decides what to
    /// do, and the job does not linger.
    pub(super) fn declined(&mut self, from: NodeId, job: JobId, error: String) {
        if let Some(coordinator) = self.coordinators.get_mut(&job).filter(|_| from != self.core.me) {
            return coordinator.replica_declined(&mut self.core, from, error);
        }
        if self.submissions.get(&job).is_none_or(|submission| submission.choice != from) {
            return;
        }
        if self.next_choice(job).is_some() {
            return self.offer_submission(job);
        }
        let submission = self.submissions.remove(&job).expect("just found");
        self.core.answer(submission.asker, Err(QueryError::Storage(error)));
        if let Some(head) = self.core.directory.get(job) {
            let head = JobHead { cancelled: true, ..head.clone() };
            self.core.broadcast(&Message::Heads(vec![head.clone()]));
            self.merge_head(head);
        }
    }
}
