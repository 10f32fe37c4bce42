//! The clocks of a view that goes on: when one counts, and barriers.

use super::*;

impl Group {
    /// A node has all its sums of a clock, on all replicas.
    pub(crate) fn node_ready(&mut self, from: NodeId, clock: Clock, norms: Vec<(Block, f64)>) {
        let epoch = self.installed.view.epoch;
        if self
            .leading
            .as_ref()
            .is_none_or(|leading| leading.epoch != epoch)
        {
            return;
        }
        let blocks = self.config.layout.blocks();
        let primaries: BTreeSet<NodeId> = (0..blocks)
            .flat_map(|block| self.primaries(block))
            .collect();
        let leading = self.leading.as_mut().expect("just looked at");
        leading.ready.insert(from, norms);
        if primaries
            .iter()
            .all(|node| leading.ready.contains_key(node))
        {
            // In the order of blocks: whoever adds them up comes to the same.
            let norms: BTreeMap<Block, f64> = std::mem::take(&mut leading.ready)
                .into_values()
                .flatten()
                .collect();
            let scale = self.clip(norms.into_values());
            let shares = self.shares_after(clock);
            for (node, _) in self.installed.view.nodes.clone() {
                let commit = ViewMessage::Commit {
                    clock,
                    scale,
                    shares: shares.clone(),
                };
                self.send_in_view(node, commit, None);
            }
        }
    }

    pub(crate) fn at_barrier(&mut self, worker: Worker, number: u64, clock: Clock) {
        let epoch = self.installed.view.epoch;
        if let Some(leading) = self
            .leading
            .as_mut()
            .filter(|leading| leading.epoch == epoch)
        {
            leading.barriers.insert(worker, (number, clock));
            self.consider_barriers();
            // No outer step waits for it.
            self.consider_merges();
        }
    }

    /// A barrier is passed when all have come to it. One before which others cannot come, since
    /// they wait for the clock of a worker that waits at it, is passed by that one alone: it has
    /// begun again, and they have passed theirs.
    pub(crate) fn consider_barriers(&mut self) {
        let epoch = self.installed.view.epoch;
        let Some(leading) = self
            .leading
            .as_ref()
            .filter(|leading| leading.epoch == epoch)
        else {
            return;
        };
        let waits = |worker: Worker| {
            leading
                .barriers
                .get(&worker)
                .filter(|(number, _)| *number > self.clocks.barriers)
        };
        let waiting: Vec<(Worker, NodeId, u64, Clock)> = leading
            .workers
            .iter()
            .filter_map(|(life, node)| {
                waits(life.worker).map(|(number, clock)| (life.worker, *node, *number, *clock))
            })
            .collect();
        if waiting.len() == leading.workers.len() {
            let Some(number) = waiting.iter().map(|(_, _, number, _)| *number).min() else {
                return;
            };
            for (node, _) in self.installed.view.nodes.clone() {
                self.send_in_view(node, ViewMessage::Passed { number }, None);
            }
            return;
        }
        let ahead = match self.config.settings.consistency {
            Consistency::Bsp | Consistency::Local { merge: None, .. } => 0,
            Consistency::Ssp { staleness } => staleness,
            Consistency::Async | Consistency::Local { merge: Some(_), .. } => return,
        };
        let absent: Vec<Worker> = leading
            .workers
            .iter()
            .map(|(life, _)| life.worker)
            .filter(|worker| waits(*worker).is_none())
            .collect();
        for (worker, node, _, clock) in waiting {
            let most = clock.saturating_add(ahead);
            let awaits_it = |other: &Worker| {
                let leading = self.leading.as_ref().expect("this node leads a view");
                leading.clocks.get(other).is_some_and(|begun| *begun > most)
                    || self
                        .clocks
                        .ended
                        .range(most..)
                        .any(|(_, workers)| workers.contains_key(other))
            };
            if absent.iter().all(awaits_it) {
                self.leading
                    .as_mut()
                    .expect("this node leads a view")
                    .barriers
                    .remove(&worker);
                self.send_in_view(node, ViewMessage::PassedAlone { worker }, None);
            }
        }
    }
}
