//! Graphics cards: which of them tasks hold, and those that rest, which no task gets.

use super::*;

/// One graphics card's free share.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) uuid: [u8; 16],
    pub(super) free_milli: u32,
    /// The node offers it now.
    is_offered: bool,
}

impl Executor {
    /// What the node offers. Running tasks keep what they hold.
    pub fn set_capacity(&mut self, capacity: Resources, gpu_uuids: &[[u8; 16]]) {
        let mut free = capacity.clone();
        let running = self.jobs.values().flat_map(|job| job.running.values());
        for held in running
            .map(|running| &running.held)
            .chain(self.gangs.held())
        {
            if free.fits(held) {
                free.take(held);
            }
        }
        self.free = free;
        self.capacity = capacity;
        // What runs holds cards by their places, also those that are offered no more.
        for card in &mut self.cards {
            card.is_offered = gpu_uuids.contains(&card.uuid);
        }
        for uuid in gpu_uuids {
            if !self.cards.iter().any(|card| card.uuid == *uuid) {
                self.cards.push(Card {
                    uuid: *uuid,
                    free_milli: 1000,
                    is_offered: true,
                });
            }
        }
        self.count_free_gpus();
    }

    /// What is free of cards that are offered: those that rest are held by nobody and had by
    /// nobody.
    fn count_free_gpus(&mut self) {
        let offered = self.cards.iter().filter(|card| card.is_offered);
        let free = offered.map(|card| card.free_milli).sum();
        self.free.gpu_milli = self.capacity.gpu_milli.min(free);
    }

    pub(super) fn give_back_resources(&mut self, held: &Resources, cards: &[(usize, u32)]) {
        self.free.give(held);
        // The node may offer less than when the task started.
        self.free = self.free.at_most(&self.capacity);
        for (card, share) in cards {
            if let Some(card) = self.cards.get_mut(*card) {
                card.free_milli = (card.free_milli + share).min(1000);
            }
        }
        self.count_free_gpus();
    }

    /// Gives back what needs more GPUs than the node has while some rest: nothing else may wait for
    /// them here, and other nodes have some.
    pub(super) fn give_back_what_has_no_gpu(&mut self) {
        let capacity = &self.capacity;
        let lacks = |job: &Ordered| {
            !job.queue.is_empty() && job.next_holds(capacity).gpu_milli > capacity.gpu_milli
        };
        for (id, job) in &mut self.jobs {
            if job.work.gang.is_none() && lacks(job) {
                job.give_back_queue();
                self.dirty.insert(*id);
            }
        }
    }
}

/// Which cards a need of `milli` thousandths takes, and how much of each: whole cards for whole
/// numbers, else a share of the fullest card that still has room, so that fractions pack on the
/// fewest cards.
pub(super) fn pick_cards(cards: &[Card], milli: u32) -> Option<Vec<(usize, u32)>> {
    if milli == 0 {
        return Some(Vec::new());
    }
    if milli < 1000 {
        let roomy = cards
            .iter()
            .enumerate()
            .filter(|(_, card)| card.is_offered && card.free_milli >= milli);
        let (index, _) = roomy.min_by_key(|(_, card)| card.free_milli)?;
        return Some(vec![(index, milli)]);
    }
    let whole = cards
        .iter()
        .enumerate()
        .filter(|(_, card)| card.is_offered && card.free_milli == 1000);
    let picked: Vec<_> = whole
        .take(milli.div_ceil(1000) as usize)
        .map(|(index, _)| (index, 1000))
        .collect();
    (picked.len() == milli.div_ceil(1000) as usize).then_some(picked)
}
