//! Outer steps with a quorum: the leader says whose updates each takes. It hears of an update when
//! a worker has pushed all of a fragment.

use super::*;
use crate::updates::Samples;

/// What the leader knows of updates that no outer step has taken.
#[derive(Default)]
pub(crate) struct Offers {
    /// By fragment: clock and samples of each worker's.
    waiting: BTreeMap<u32, BTreeMap<Worker, (Clock, u32)>>,
    /// By fragment: the outer step whose quorum is there and which gives others the grace, and
    /// whether that is over.
    graces: BTreeMap<u32, (u64, bool)>,
    /// Numbers outer steps that give it.
    graced: u64,
}

impl Group {
    /// The fragment that a block is of.
    pub(crate) fn fragment(&self, block: Block) -> u32 {
        let first = self.config.layout.tensors_of(block).start as u32;
        let cuts = self.config.settings.cuts.iter();
        cuts.filter(|cut| **cut <= first).count() as u32
    }

    pub(crate) fn offered(&mut self, worker: Worker, clock: Clock, fragment: u32, samples: u32) {
        let epoch = self.installed.view.epoch;
        let leading = self
            .leading
            .as_mut()
            .filter(|leading| leading.epoch == epoch);
        if let Some(leading) = leading {
            let waiting = leading.offers.waiting.entry(fragment).or_default();
            let known = waiting.entry(worker).or_insert((clock, samples));
            *known = (*known).max((clock, samples));
            self.consider_merges();
        }
    }

    /// The time has passed that an outer step gives to those whose updates lack.
    pub(crate) fn grace_over(&mut self, epoch: Epoch, fragment: u32, number: u64) {
        let leading = self
            .leading
            .as_mut()
            .filter(|leading| leading.epoch == epoch);
        let grace = leading.and_then(|leading| leading.offers.graces.get_mut(&fragment));
        if let Some((_, is_over)) = grace.filter(|(of, _)| *of == number) {
            *is_over = true;
            self.consider_merges();
        }
    }

    /// Takes all outer steps that are due.
    pub(crate) fn consider_merges(&mut self) {
        let Some(merge) = self
            .merge()
            .filter(|_| !self.moves.draining && self.leads())
        else {
            return;
        };
        while let Some(fragment) = self.due(merge.quorum as usize, merge.grace_millis > 0) {
            let leading = self.leading.as_mut().expect("this node leads a view");
            leading.offers.graces.remove(&fragment);
            let waiting = leading.offers.waiting.remove(&fragment).unwrap_or_default();
            let of: Vec<Samples> = waiting
                .into_iter()
                .map(|(worker, (clock, samples))| (worker, clock, samples))
                .collect();
            for (node, _) in self.installed.view.nodes.clone() {
                let of = of.clone();
                self.send_in_view(node, ViewMessage::Merge { fragment, of }, None);
            }
        }
    }

    /// A fragment whose outer step is due: its quorum is there, and everybody else too or their
    /// grace is over; or nobody is left who could send more of any.
    fn due(&mut self, quorum: usize, has_grace: bool) -> Option<u32> {
        let training = self.training();
        let leading = self.leading.as_mut().expect("this node leads a view");
        let epoch = leading.epoch;
        let Offers {
            waiting,
            graces,
            graced,
        } = &mut leading.offers;
        let has_offered = |worker: &Worker| waiting.values().any(|of| of.contains_key(worker));
        if training.iter().all(has_offered) {
            let most = waiting.iter().max_by_key(|(_, offers)| offers.len());
            return most.map(|(fragment, _)| *fragment);
        }
        for (fragment, offers) in waiting.iter() {
            let lacking = training
                .iter()
                .filter(|worker| !offers.contains_key(worker))
                .count();
            if offers.len() < quorum.min(offers.len() + lacking) {
                continue;
            }
            let is_over = graces.get(fragment).map(|(_, is_over)| *is_over);
            if lacking == 0 || !has_grace || is_over == Some(true) {
                return Some(*fragment);
            }
            if is_over.is_none() {
                *graced += 1;
                graces.insert(*fragment, (*graced, false));
                self.out.effects.push(Effect::Grace {
                    epoch,
                    fragment: *fragment,
                    number: *graced,
                });
            }
        }
        None
    }

    /// Workers of the view that may push updates: none that wait at a barrier, or have done all
    /// clocks.
    fn training(&self) -> BTreeSet<Worker> {
        let leading = self.leading.as_ref().expect("this node leads a view");
        let steps = self.config.settings.steps;
        let is_done = |worker: &Worker| {
            let began_behind = |steps| leading.clocks.get(worker).is_some_and(|at| *at > steps);
            let has_ended = |steps| {
                let mut clocks = self.clocks.ended.range(steps..);
                clocks.any(|(_, workers)| workers.contains_key(worker))
            };
            steps.is_some_and(|steps| began_behind(steps) || has_ended(steps))
        };
        let waits = |worker: &Worker| {
            let barrier = leading.barriers.get(worker);
            barrier.is_some_and(|(number, _)| *number > self.clocks.barriers)
        };
        let workers = leading.workers.iter().map(|(life, _)| life.worker);
        workers
            .filter(|worker| !is_done(worker) && !waits(worker))
            .collect()
    }
}
