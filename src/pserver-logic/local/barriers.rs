//! What this node's workers wait for beside values: each other, and the last checkpoint.

use super::{Group, Notice, ViewMessage, Worker};

impl Group {
    pub(in super::super) fn barrier(&mut self, worker: Worker) {
        let number = self.clocks.barriers + 1;
        // A worker that does not know where it is will hear of that, and of no barrier.
        let knows = self.clock_of(worker).is_some();
        let Some(local) = self.locals.get_mut(&worker).filter(|_| knows) else {
            return;
        };
        local.barrier = Some(number);
        self.tell_barrier(worker);
    }

    pub(super) fn tell_barrier(&mut self, worker: Worker) {
        if self.installed.going
            && self.counts(worker)
            && let Some(number) = self.locals[&worker].barrier
        {
            let (epoch, clock) = (
                self.installed.view.epoch,
                self.locals[&worker].reading_clock(),
            );
            let barrier = ViewMessage::Barrier {
                worker,
                number,
                clock,
            };
            self.send_in_view(epoch.by, barrier, None);
        }
    }

    pub(in super::super) fn keep(&mut self, worker: Worker) {
        if let Some(local) = self.locals.get_mut(&worker) {
            local.keeps = true;
            self.tell_keep(worker);
        }
    }

    pub(super) fn tell_keep(&mut self, worker: Worker) {
        if self.installed.going && self.counts(worker) && self.locals[&worker].keeps {
            let epoch = self.installed.view.epoch;
            self.send_in_view(epoch.by, ViewMessage::Keep, None);
        }
    }

    pub(in super::super) fn passed(&mut self, number: u64) {
        self.clocks.barriers = self.clocks.barriers.max(number);
        for worker in self.locals.keys().copied().collect::<Vec<_>>() {
            let local = self.locals.get_mut(&worker).expect("just listed");
            if local
                .barrier
                .take_if(|waiting| *waiting <= number)
                .is_some()
            {
                self.tell(worker, Notice::PassedBarrier);
            }
        }
    }

    pub(in super::super) fn passed_alone(&mut self, worker: Worker) {
        if self
            .locals
            .get_mut(&worker)
            .is_some_and(|local| local.barrier.take().is_some())
        {
            self.tell(worker, Notice::PassedBarrier);
        }
    }
}
