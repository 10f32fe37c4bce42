//! From a user's job to one that its coordinator has safe: checked, numbered, offered to the member
//! that ranks first for it, offered to the next one if that does not answer, and only then promised
//! to the user.

use super::{DiskEffect, Effect, State, io::Asker, rank, timers::Timer};
use nodectl_types::{
    Answer, BlobHash, JobHead, JobId, JobSpec, Message, NodeId, NodeInfo, QueryError, Resources,
    Time, Voters, limits, predicate::Predicate, units::counted,
};
use rand::RngExt;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// How long a submission waits for the coordinator it chose.
const SUBMISSION_WAIT: Duration = Duration::from_secs(2);
/// Whoever asks again begins so many epochs above the first claims of the question before, which
/// nobody here may know of.
const CLAIMS_A_QUESTION: u64 = 16;
/// Of more questions the last ones begin as the one before them: cells have little room for epochs.
const QUESTIONS: u32 = 64;

/// A job on its way to its first coordinator.
pub struct PendingSubmission {
    spec: Arc<JobSpec>,
    hash: BlobHash,
    /// Whoever asked for it: with the same key, perhaps several times.
    askers: Vec<Asker>,
    /// When they are told that it is not known what became of it.
    deadline: Time,
    /// Specifications too large for a message stay with the submitter, and make it the first
    /// coordinator.
    is_inline: bool,
    /// Whom it was offered to last, and whom ever.
    choice: NodeId,
    tried: BTreeSet<NodeId>,
    tries: u64,
    /// Who held it by a claim that an offer set aside, and has not said that it does not.
    held_by: BTreeSet<NodeId>,
}

impl State {
    /// A user's job: chosen, numbered and offered to the member that ranks first for it. One that
    /// is known already is the same, submitted again because the answer was lost.
    pub(super) fn submit(
        &mut self,
        asker: Asker,
        (job, asked_before): (Option<JobId>, u32),
        spec: Arc<JobSpec>,
    ) {
        let job = job.unwrap_or_else(|| JobId(self.core.rng.random()));
        let deadline = self.core.mono() + limits::QUERY_TIMEOUT;
        if let Some(submission) = self.submissions.get_mut(&job) {
            submission.askers.push(asker);
            submission.deadline = deadline;
            return;
        }
        let known = self.core.directory.get(job).cloned();
        let checked = match &known {
            Some(head) => is_same(head, &spec),
            None if self.core.directory.is_removed(job) => Err(QueryError::Invalid(format!(
                "its key is of job {job}, which was removed"
            ))),
            None => self
                .check_secrets(&spec.work)
                .and_then(|()| self.check_spec(&spec)),
        };
        if let Err(problem) = checked {
            return self.core.answer(asker, Err(problem));
        }
        // Two disks have had it. That it has ended says nothing of that: what has nothing to run
        // ends at once.
        if known.as_ref().is_some_and(names_second) {
            return self.core.answer(asker, Ok(Answer::Submitted { job }));
        }
        let bytes = postcard::to_stdvec(&*spec).expect("plain data always encodes");
        let submission = PendingSubmission {
            hash: BlobHash::of(&bytes),
            is_inline: bytes.len() <= limits::INLINE_SPEC_BYTES,
            spec,
            askers: vec![asker],
            deadline,
            choice: self.core.me,
            tried: BTreeSet::new(),
            tries: CLAIMS_A_QUESTION * u64::from(asked_before.min(QUESTIONS - 1)),
            held_by: BTreeSet::new(),
        };
        self.submissions.insert(job, submission);
        match known {
            Some(head) => {
                self.want(job);
                self.answer_submission(&head);
                self.wait_for_submission(job);
            }
            None => self.offer_submission(job),
        }
    }

    fn check_spec(&self, spec: &JobSpec) -> Result<(), QueryError> {
        if self.leaving {
            return Err(QueryError::Leaving);
        }
        if self.core.directory.is_full() {
            return Err(QueryError::Full(limits::MAX_JOBS as u32));
        }
        spec.check()
            .map_err(|error| QueryError::Invalid(error.to_string()))?;
        let place = Predicate::parse(&spec.place);
        let place = place.map_err(|error| QueryError::Invalid(format!("`where`: {error}")))?;
        if spec.wait_for_nodes {
            return Ok(());
        }
        if spec.work.is_log() {
            return Ok(());
        }
        let members = self.core.members.alive().into_iter();
        let infos = members.filter_map(|node| self.core.members.info(node));
        suits_some(spec, Some(&place), infos).map_err(QueryError::Unsatisfiable)
    }

    fn offer_submission(&mut self, job: JobId) {
        let choice = self.next_choice(job).unwrap_or(self.core.me);
        self.offer_to(job, choice);
    }

    fn offer_to(&mut self, job: JobId, choice: NodeId) {
        let held_by = self.may_hold(job);
        let Some(submission) = self.submissions.get_mut(&job) else {
            return;
        };
        submission.choice = choice;
        submission.tried.insert(choice);
        submission.held_by.extend(held_by);
        // Every try claims a higher epoch than the one before, which may have been heard after all.
        let tries = submission.tries.max(
            self.core
                .directory
                .get(job)
                .map_or(0, |head| u64::from(head.epoch)),
        );
        submission.tries = tries + 1;
        let head = JobHead {
            submitter: self.core.me,
            holder: choice,
            version: tries,
            ..JobHead::unclaimed(job, &submission.spec, submission.hash)
        };
        // Another node that coordinates the job needs none: it is asked whether it is safe.
        let may_carry = submission.is_inline || choice == self.core.me;
        let spec = may_carry.then(|| submission.spec.clone());
        let head = Box::new(head);
        self.core.send(choice, Message::Offer { head, spec });
        self.wait_for_submission(job);
    }

    fn wait_for_submission(&mut self, job: JobId) {
        if let Some(submission) = self.submissions.get(&job) {
            let at = submission.deadline.min(self.core.mono() + SUBMISSION_WAIT);
            self.core.timers.set(at, Timer::Resubmit(job));
        }
    }

    /// The member that ranks first for a submission among those that were not asked yet.
    fn next_choice(&self, job: JobId) -> Option<NodeId> {
        let submission = self.submissions.get(&job)?;
        let reachable = self
            .core
            .members
            .connected()
            .into_iter()
            .chain([self.core.me]);
        let is_usable = |node: &NodeId| {
            let stays = self
                .core
                .members
                .info(*node)
                .is_some_and(|info| !info.leaving);
            stays
                && !submission.tried.contains(node)
                && (submission.is_inline || *node == self.core.me)
        };
        let ranked = rank::ranked(job, reachable.filter(is_usable));
        let is_drained = |node: &NodeId| {
            self.core
                .members
                .info(*node)
                .is_some_and(NodeInfo::is_drained)
        };
        ranked
            .iter()
            .find(|node| !is_drained(node))
            .or(ranked.first())
            .copied()
    }

    pub(super) fn resubmit(&mut self, job: JobId) {
        let Some(submission) = self.submissions.get(&job) else {
            return;
        };
        let now = self.core.mono();
        if submission.deadline <= now {
            return self.give_up(job);
        }
        // Its coordinator, this node, may find itself alone by now.
        if self.coordinators.contains_key(&job) {
            self.answer_submission_of(job);
            return self.wait_for_submission(job);
        }
        // It has the job on its disk, and claims it when it has looked for others who hold it.
        if self.turn_to_claim(job).is_some() {
            return self.wait_for_submission(job);
        }
        match self.living_holder(job) {
            // It has a coordinator, which says when it is safe; or which told of it, and died
            // before it had written it: that one takes it anew.
            Some(holder) => self.offer_to(job, holder),
            None => self.offer_submission(job),
        }
    }

    /// Whom the head of a job names, and who has not said that it does not hold it.
    fn may_hold(&self, job: JobId) -> Vec<NodeId> {
        let named = self.core.directory.get(job).map(JobHead::holders);
        let mut named = named.unwrap_or_default();
        named.retain(|node| !self.is_without(job, *node));
        named
    }

    /// Who coordinates a job, as far as is known.
    fn living_holder(&self, job: JobId) -> Option<NodeId> {
        let holder = self.core.directory.get(job)?.holder;
        let lives = self.core.members.is_alive(holder) && !self.is_without(job, holder);
        lives.then_some(holder)
    }

    /// Somebody has a job for a first coordinator. Whom it reaches coordinates it, perhaps: then it
    /// says so once the job is safe, and until then it is asked again.
    pub(super) fn offered_new(&mut self, from: NodeId, head: JobHead, spec: Option<Arc<JobSpec>>) {
        let job = head.job;
        if self.is_safe(job) {
            let kept = Message::OfferKept {
                job,
                lacks_inputs: false,
            };
            return self.core.send(from, kept);
        }
        self.want(job);
        if let (false, Some(spec)) = (self.leaving, spec) {
            self.claim_new(head, spec);
        }
    }

    /// A node has a job that it was offered: as our replica; or it coordinates one that was
    /// submitted here, and the job is safe.
    pub(super) fn offer_kept(&mut self, from: NodeId, job: JobId, lacks_inputs: bool) {
        if self.coordinators.contains_key(&job) {
            return self.with_coordinator(job, |coordinator, core, _| {
                coordinator.offer_kept(core, from, lacks_inputs);
            });
        }
        let head = self.core.directory.get(job);
        if head.is_some_and(|head| head.holder == from) {
            self.confirm(job);
        }
    }

    /// Nobody knows what will become of it: its users ask again, with the same key, or give it up.
    fn give_up(&mut self, job: JobId) {
        let Some(submission) = self.submissions.remove(&job) else {
            return;
        };
        let why = match self.core.directory.get(job) {
            None => "no node has taken it yet".into(),
            Some(head) => {
                let holder = self.core.members.name(head.holder);
                format!("{holder} has taken it, and that it is safe there is not confirmed yet")
            }
        };
        for asker in submission.askers {
            self.core.answer(
                asker,
                Err(QueryError::Undecided {
                    job,
                    why: why.clone(),
                }),
            );
        }
    }

    /// Who was to coordinate a job does not hold it: a submission looks for another.
    pub(super) fn holder_lapsed(&mut self, job: JobId, node: NodeId) {
        if self.submissions.contains_key(&job)
            && self
                .core
                .directory
                .get(job)
                .is_some_and(|head| head.holder == node)
        {
            self.resubmit(job);
        }
    }

    /// Answers whoever submitted a job that this node coordinates, if the job is safe by now.
    pub(super) fn answer_submission_of(&mut self, job: JobId) {
        let head = self.core.directory.get(job).cloned();
        self.answer_submission(&head.expect("a coordinated job has a head"));
    }

    /// A submission is safe once its coordinator and a replica have it, or the one node that there
    /// is.
    pub(super) fn answer_submission(&mut self, head: &JobHead) {
        let job = head.job;
        if head.epoch == 0 || !self.submissions.contains_key(&job) {
            return;
        }
        let has_it =
            |node: &NodeId| self.core.members.may_be_alive(*node) && !self.is_without(job, *node);
        let safe = match self.coordinators.contains_key(&job) {
            true => self.is_safe(job),
            // Who finds itself alone may be the one that is cut off: it cannot speak for what
            // another had.
            false => names_second(head) && head.replicas.iter().any(has_it),
        };
        if safe {
            self.confirm(job);
        }
    }

    /// This node coordinates the job, and another has it, too, if there is another.
    fn is_safe(&self, job: JobId) -> bool {
        self.coordinators.get(&job).is_some_and(|coordinator| {
            coordinator.is_written()
                && (coordinator.has_second_copy(&self.core) || self.core.is_alone())
                && coordinator.has_voters_enough(&self.core)
        })
    }

    fn confirm(&mut self, job: JobId) {
        if let Some(submission) = self.submissions.remove(&job) {
            for asker in submission.askers {
                self.core.answer(asker, Ok(Answer::Submitted { job }));
            }
        }
    }

    /// Our disk refuses a job that we are to coordinate, or its files cannot be had: its submitter
    /// finds another coordinator. It is not cancelled: by the same key it may be submitted again,
    /// and another node may have taken it.
    pub(super) fn decline(&mut self, job: JobId, error: &str) {
        let mut is_kept = false;
        if let Some(mut coordinator) = self.coordinators.remove(&job)
            && let Some(copy) = self.copies.get(&job)
        {
            coordinator.dismiss_watchers(&mut self.core, &copy.lattice);
            coordinator.dismiss_cancellers(&mut self.core);
            is_kept = coordinator.is_kept();
        }
        self.core
            .notice(format!("job {job} cannot be kept here: {error}"));
        self.drop_claim(job, is_kept);
        if let Some(head) = self.core.directory.discard(job) {
            // Others may hold the job by an earlier claim, which this one has set aside.
            self.disown(job, head.epoch);
            self.core.send(
                head.submitter,
                Message::Declined {
                    job,
                    error: error.into(),
                },
            );
        }
    }

    /// What this node has of a job that it is not to coordinate after all goes: it has never been a
    /// copy of it.
    pub(super) fn drop_claim(&mut self, job: JobId, is_kept: bool) {
        self.copies.remove(&job);
        if is_kept {
            self.core.effects.push(Effect::ForgetJob { job });
        } else if !self.orphans.contains_key(&job) {
            // A disk that failed one write, or was slow with it, may have done others.
            let discard = DiskEffect::Discard { job };
            self.core.effects.push(Effect::Disk(discard));
        }
        self.core.resync.forget(job);
    }

    /// The coordinator that was chosen has no room: the next node is asked. Where nobody is left
    /// the user decides what to do, and the job does not linger.
    pub(super) fn declined(&mut self, from: NodeId, job: JobId, error: String) {
        if self.coordinators.contains_key(&job) && from != self.core.me {
            return self.with_coordinator(job, |coordinator, core, copy| {
                coordinator.replica_declined(core, &copy.lattice, from, error);
            });
        }
        let Some(submission) = self
            .submissions
            .get_mut(&job)
            .filter(|submission| submission.choice == from)
        else {
            return;
        };
        submission.held_by.remove(&from);
        let was_held = !submission.held_by.is_empty();
        if self.next_choice(job).is_some() {
            return self.offer_submission(job);
        }
        // One that was asked before, and answered late, may have it, or one that is gone for a
        // while, and was asked by others, too: what becomes of it there is not known yet.
        if was_held || !self.may_hold(job).is_empty() {
            return self.wait_for_submission(job);
        }
        let submission = self
            .submissions
            .remove(&job)
            .expect("the submission was found by its job");
        for asker in submission.askers {
            self.core
                .answer(asker, Err(QueryError::Storage(error.clone())));
        }
        if let Some(head) = self.core.directory.get(job) {
            let head = JobHead {
                cancelled: true,
                ..head.clone()
            };
            self.core.tell_head(&head);
            self.merge_head(head);
        }
    }
}

/// The head says that another node than the coordinator has the job. Whoever took over names former
/// holders, too, until it has heard them: they may have lost it, or have given it up before they
/// had its files. Of such a job only its coordinator knows whether it is safe.
fn names_second(head: &JobHead) -> bool {
    let decide = |voters: &Voters| voters.nodes.len() > 1 && voters.former.is_empty();
    let is_decided = !head.is_ordered() || head.voters.as_deref().is_some_and(decide);
    head.epoch == 1 && !head.replicas.is_empty() && is_decided
}

/// A key is of one submission: this much of it members know of a job.
fn is_same(head: &JobHead, spec: &JobSpec) -> Result<(), QueryError> {
    let is_alike = head.open.is_some() == spec.is_open() && spec.may_have(head.tasks);
    if head.name == spec.work.name && is_alike {
        return Ok(());
    }
    let JobHead {
        job, name, tasks, ..
    } = head;
    Err(QueryError::Invalid(format!(
        "its key is of job {job} ({name}, {}), which is another",
        counted(*tasks, "task")
    )))
}

/// Fails, and says why, where these nodes cannot run the job even at their best.
pub(super) fn suits_some<'a>(
    spec: &JobSpec,
    place: Option<&Predicate>,
    infos: impl Iterator<Item = &'a NodeInfo>,
) -> Result<(), String> {
    let places: Vec<_> = infos
        .map(NodeInfo::at_best)
        .filter(|info| place.is_none_or(|place| place.may_hold(info)))
        .collect();
    let all: Vec<_> = places.iter().map(|info| &info.resources).collect();
    if !spec.work.kinds.is_empty() {
        return check_kinds(spec, &all);
    }
    let needs = |resources: &Resources| spec.work.holds(resources);
    let able = all.iter().filter(|has| has.fits(&needs(has))).count();
    let wanted = spec.work.gang.map_or(1, |gang| gang.nodes as usize);
    if able >= wanted {
        return Ok(());
    }
    if able > 0 {
        return Err(format!(
            "a task needs {} at the same time, and {able} can take part",
            counted(wanted, "node")
        ));
    }
    let lacking = all
        .first()
        .and_then(|has| Resources::all_lack(&all, &needs(has)));
    Err(lacking.unwrap_or_else(|| no_place(spec)))
}

/// Fails unless some node has what each kind of the job's tasks needs.
fn check_kinds(spec: &JobSpec, all: &[&Resources]) -> Result<(), String> {
    let mut first = 0;
    for kind in &spec.work.kinds {
        if all.iter().any(|resources| resources.fits(&kind.resources)) {
            first += kind.tasks;
            continue;
        }
        // The kind's own may be a template.
        let name = spec.task_name(first).unwrap_or(kind.name.clone());
        let lacking = Resources::all_lack(all, &kind.resources);
        let why = lacking.unwrap_or_else(|| no_place(spec));
        return Err(format!("`{name}`: {why}"));
    }
    Ok(())
}

fn no_place(spec: &JobSpec) -> String {
    format!("no node satisfies `where = \"{}\"`", spec.place)
}
