//! A job that has ended and that nobody asks about rests: what is known of its single tasks is on
//! the disk alone (`logic::rest`). Its coordinator keeps what it needs to look after the copies.

use super::{Coordinator, graph::TaskGraph, search::Search};
use crate::{core::Core, known_spec::KnownSpec, lattice::Lattice, rest::give_back};
use rand::RngExt;

impl Coordinator {
    /// The job is over, nobody waits for anything of it, and all that is known of it is on disk.
    pub fn may_rest(&self, core: &Core) -> bool {
        self.has_ended(core)
            && !self.needs_cells(core)
            && self.log.is_none()
            && self.storage.is_none()
            && self.active.is_empty()
            && self.anew.is_empty()
            && !self.awaits_inputs()
            && !self.progress.is_watched()
            && !self.stopping.is_awaited()
    }

    /// Gives up what it knows of single tasks, and perhaps of its specification, until `awaken`.
    pub fn rest(&mut self, core: &mut Core, spec: KnownSpec) {
        self.spec = spec;
        self.progress.rest(core.rng.random_range(1..=u32::MAX));
        self.graph = TaskGraph::at_rest(&self.spec, self.spec.tasks());
        let numbers = self.orders.values().copied();
        self.used_numbers = numbers.fold(self.used_numbers, u32::max);
        self.orders.clear();
        self.again.clear();
        self.failed_on.clear();
        self.forgiven.clear();
        self.nodes.retain(|_, work| work.done > 0);
        self.results.rest();
        give_back(&mut self.nodes);
        give_back(&mut self.active);
        give_back(&mut self.anew);
        give_back(&mut self.former);
        give_back(&mut self.absent);
        give_back(&mut self.replicas);
    }

    /// What was done while it rests has left nothing that it needs.
    pub fn stay_at_rest(&mut self) {
        self.spec.pack();
    }

    /// The cells of the job's tasks are here again, and all of its specification.
    pub fn awaken(&mut self, core: &Core, spec: KnownSpec, lattice: &Lattice) {
        self.spec = spec;
        self.graph = TaskGraph::new(&self.spec, lattice);
        // What was drawn is read when the job goes on: who took over at rest knows none of it.
        let sweep = self.spec.work.sweep.as_ref();
        self.search = Search::new(&self.spec.params, sweep, lattice).map(Box::new);
        self.order_anew(core, lattice);
        self.progress.recall(lattice, self.failure_limit(core));
    }

    /// The job goes on, or is to be tried again.
    pub fn needs_cells(&self, core: &Core) -> bool {
        let head = self.head(core);
        !head.phase.is_ended() || head.round != self.round
    }

    /// Bytes on the heap, about, that grow with the job's tasks.
    #[cfg(test)]
    pub fn task_bytes(&self) -> usize {
        let sets = self.again.len() + self.orders.len() + self.forgiven.len();
        let failed = self.failed_on.len() * size_of::<nodectl_types::NodeId>();
        self.progress.memory_bytes() + self.graph.memory_bytes() + 8 * sets + failed
    }

    /// This node's disk has not given what it had: other holders are heard before anything is
    /// concluded from that.
    pub fn compare_after_loss(&mut self, core: &mut Core) {
        self.compare_anew(core);
        self.wake(core);
    }
}
