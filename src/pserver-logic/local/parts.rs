//! Which part of the samples this node's workers are told that they have.

use super::{Group, Notice, Share, Worker};
use crate::{Part, shares};

impl Group {
    /// The part that a worker has in the view is the one it was told of.
    pub(super) fn knows_its_part(&self, worker: Worker) -> bool {
        !self.has_parts() || self.part(worker) == self.locals[&worker].share.part
    }

    /// Whether workers are told which part of the samples is theirs.
    fn has_parts(&self) -> bool {
        self.config.settings.divided || self.follows_pace()
    }

    fn part(&self, worker: Worker) -> Part {
        let mut workers = self.installed.view.workers.iter();
        let index = workers.position(|(life, _)| life.worker == worker);
        shares::part(&self.installed.shares, index.unwrap_or(0))
    }

    /// What a worker is told next of its part.
    pub(super) fn next_share(&mut self, worker: Worker) -> Share {
        let part = self.part(worker);
        let local = self
            .locals
            .get_mut(&worker)
            .expect("the worker is one of this node's");
        local.share = Share {
            number: local.share.number + 1,
            part,
        };
        local.share
    }

    /// Tells a worker its part, which is another than before. Where clocks are synchronous, what it
    /// does for the old one is void; but a script's parts are its own business.
    pub(super) fn tell_share(&mut self, worker: Worker) {
        let share = self.next_share(worker);
        if self.is_synchronous() && self.config.settings.divided {
            self.locals
                .get_mut(&worker)
                .expect("the worker is one of this node's")
                .void_before = share.number;
        }
        self.tell(worker, Notice::Share(share));
    }
}
