//! A node that runs nothing for others: its disk is full or broken, its owner says so, or somebody
//! drains it. It says so to whoever orders all the same, since coordinators may not know it, or not
//! care.

use super::{Executor, Ordered, Try};
use crate::core::Core;
use nodectl_types::{Admits, JobId, Message, NodeId, Time, WorkSpec, message::Assignment};

/// What a node says whose time ends before a task would.
pub(super) const OVER: &str = "its time ends before a task of this job would";

impl Executor {
    /// Why nothing is started, if so: what waits is given back. What runs goes on.
    pub fn set_shut(&mut self, core: &mut Core, why: Option<String>) {
        if self.shut == why {
            return;
        }
        self.shut = why;
        for (job, ordered) in &mut self.jobs {
            if self.shut.is_some() {
                ordered.give_back_queue();
            }
            // Also how many more could start.
            self.dirty.insert(*job);
        }
        if let Some(why) = self.shut.clone() {
            self.turn_down_gangs(core, &why);
        }
        self.start_what_fits(core);
    }

    /// Gives back what waits, and what runs once it has stopped.
    pub fn give_back_all(&mut self, core: &mut Core) {
        let jobs: Vec<_> = self.jobs.keys().copied().collect();
        for job in jobs {
            let ordered = self.jobs.get_mut(&job).expect("a key of the map");
            ordered.give_back_queue();
            let running: Vec<_> = ordered.running.keys().copied().collect();
            for key in running {
                ordered.stop_running(core, job, key, true);
            }
            self.dirty.insert(job);
        }
    }

    pub fn set_admits(&mut self, admits: Admits) {
        self.admits = admits;
    }

    /// Why the owner does not let such work run here.
    pub(super) fn objection(&self, work: &WorkSpec) -> Option<String> {
        self.admits.objection(work).map(|why| format!("it {why}"))
    }

    /// Why no task of the job is taken at present.
    pub(super) fn refusal(&self, ordered: &Ordered, now: Time) -> Option<String> {
        let over = || {
            ordered
                .is_over(self.lifetime.as_ref(), now)
                .then(|| OVER.into())
        };
        self.shut
            .clone()
            .or_else(|| self.objection(&ordered.work))
            .or_else(over)
    }
}

/// Of a job that is not known here, and of which nothing is kept.
pub(super) fn turn_down(
    core: &mut Core,
    to: NodeId,
    (job, epoch): (JobId, u32),
    tasks: &[Assignment],
    why: String,
) {
    let returned: Vec<Try> = tasks
        .iter()
        .map(|assignment| (assignment.task, assignment.attempt))
        .collect();
    let (started, finished, refuses) = (Vec::new(), Vec::new(), Some(why));
    core.send(
        to,
        Message::Report {
            job,
            epoch,
            started,
            finished,
            returned,
            free: 0,
            refuses,
        },
    );
}

impl Ordered {
    /// What waits goes back to the coordinator.
    pub(super) fn give_back_queue(&mut self) {
        self.blocked_since = None;
        if self.work.gang.is_some() {
            // What waits is a part of a gang, and its lead hears of it.
            return self.queue.clear();
        }
        let waiting = self
            .queue
            .drain(..)
            .map(|assignment| (assignment.task, assignment.attempt));
        self.news.returned.extend(waiting);
    }
}
