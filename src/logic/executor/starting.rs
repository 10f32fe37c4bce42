//! Which of the ordered tasks starts next: in turn between jobs, and on which GPUs.

use super::{cards::pick_cards, *};

impl Executor {
    pub(super) fn start_what_fits(&mut self, core: &mut Core) {
        self.start_in_turn(core);
        self.watch_pools(core);
    }

    /// Starts waiting tasks while resources last: higher priority first, then the job that runs
    /// least.
    pub(super) fn start_in_turn(&mut self, core: &mut Core) {
        if self.leaving || self.shut.is_some() {
            return;
        }
        self.give_back_what_cannot_end(core);
        self.give_back_what_has_no_gpu();
        let mut order: Vec<_> = self
            .jobs
            .iter()
            .filter(|(_, job)| !job.queue.is_empty())
            .collect();
        let now = core.mono();
        // Of those that run as much, the one that has waited longest.
        order.sort_by_key(|(id, job)| {
            let since = job.blocked_since.unwrap_or(now);
            (
                std::cmp::Reverse(job.work.priority),
                job.rests(now),
                job.running.len() + self.gangs.keeping_room(**id),
                since,
                **id,
            )
        });
        let mut candidates: VecDeque<JobId> = order.into_iter().map(|(id, _)| *id).collect();
        let mut somebody_waits = false;
        while let Some(job) = candidates.pop_front() {
            let ordered = self
                .jobs
                .get_mut(&job)
                .expect("only keys of the map are candidates");
            if somebody_waits && ordered.yields(now) {
                continue;
            }
            let need = ordered.next_holds(&self.capacity);
            let cards = if self.free.fits(&need) {
                pick_cards(&self.cards, need.gpu_milli)
            } else {
                None
            };
            let Some(cards) = cards else {
                if self.starves(core, job) {
                    return;
                }
                somebody_waits = true;
                continue;
            };
            ordered.blocked_since = None;
            self.start_first(core, job, need, cards);
            let ordered = &self.jobs[&job];
            if ordered.queue.is_empty() {
                continue;
            }
            // Of equal priority, the job that now runs least is next.
            let (priority, running) = (ordered.work.priority, ordered.running.len());
            let goes_before = |other: &JobId| {
                let other = &self.jobs[other];
                other.work.priority < priority
                    || (other.work.priority == priority && other.running.len() > running)
            };
            let position = candidates
                .iter()
                .position(goes_before)
                .unwrap_or(candidates.len());
            candidates.insert(position, job);
        }
    }

    /// Big tasks may have waited long enough by now.
    pub fn retry_start(&mut self, core: &mut Core) {
        self.starvation_set = false;
        self.start_what_fits(core);
        let since = self.jobs.values().filter_map(|job| job.blocked_since);
        let since = since
            .filter(|since| core.mono() - *since < STARVATION)
            .min();
        if let Some(since) = since {
            self.look_after_starvation(core, since);
        }
    }

    /// One timer at a time: of short tasks many wait for room each second.
    fn look_after_starvation(&mut self, core: &mut Core, since: Time) {
        if !std::mem::replace(&mut self.starvation_set, true) {
            core.timers.set(since + STARVATION, Timer::Execute);
        }
    }

    /// Notes that a job's first task waits; true once it has waited so long that nothing may slip
    /// past it.
    pub(super) fn starves(&mut self, core: &mut Core, job: JobId) -> bool {
        let ordered = self.jobs.get_mut(&job).expect("a job with a queue");
        let now = core.mono();
        let Some(since) = ordered.blocked_since else {
            ordered.blocked_since = Some(now);
            self.look_after_starvation(core, now);
            return false;
        };
        // A pool that has workers here makes do with them.
        now - since >= STARVATION && (ordered.running.is_empty() || ordered.work.pool().is_none())
    }

    pub(super) fn start_first(
        &mut self,
        core: &mut Core,
        job: JobId,
        held: Resources,
        gpus: Vec<(usize, u32)>,
    ) {
        let ordered = self.jobs.get_mut(&job).expect("a job with a queue");
        let assignment = ordered.queue.pop_front().expect("a job with a queue");
        self.free.take(&held);
        for (card, share) in &gpus {
            self.cards[*card].free_milli -= share;
        }
        if ordered.work.gang.is_some() {
            let key = (job, (assignment.task, assignment.attempt));
            return self.room_made(core, key, held, gpus);
        }
        let uuids = gpus
            .iter()
            .map(|(card, _)| self.cards[*card].uuid)
            .collect();
        let holders = holders(core, job, ordered.coordinator);
        let Assignment {
            task,
            attempt,
            params,
            needs,
        } = assignment;
        let is_adaptive = ordered.work.adaptive;
        let drawn = match is_adaptive {
            true => params.clone(),
            false => Params::new(),
        };
        ordered.running.insert(
            (task, attempt),
            Running {
                held,
                since: core.mono(),
                gpus,
                params: drawn,
                stopping: false,
                give_back: false,
            },
        );
        let work = ordered.work_of(task);
        core.effects.push(Effect::Task(TaskEffect::Start(StartTask {
            job,
            task,
            attempt,
            work,
            params,
            needs,
            gpus: uuids,
            holders,
            place: None,
        })));
    }
}

impl Ordered {
    /// What a task is to do.
    fn work_of(&self, task: TaskIndex) -> Arc<WorkSpec> {
        let kind = self.work.kind_of(task).map(|(kind, _)| kind);
        let work = kind.and_then(|kind| self.kinds.get(kind));
        work.unwrap_or(&self.work).clone()
    }

    /// What the next task holds; while none waits, the first.
    pub(super) fn next_holds(&self, capacity: &Resources) -> Resources {
        let next = self.queue.front().map_or(0, |assignment| assignment.task);
        self.work.holds_of(next, capacity)
    }
}

/// Who has the job's inputs, the most likely first.
pub(super) fn holders(core: &Core, job: JobId, coordinator: NodeId) -> Vec<NodeId> {
    let mut holders = vec![coordinator];
    if let Some(head) = core.directory.get(job) {
        holders.extend(head.holders());
        holders.push(head.submitter);
    }
    holders.retain(|node| *node != core.me);
    let mut seen = BTreeSet::new();
    holders.retain(|node| seen.insert(*node));
    holders
}
