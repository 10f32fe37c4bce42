//! Files on their way here, for records or specifications that are written once they have come.
//! Those that cannot be had are asked for a few times more.

use super::{
    State,
    coordinator::Inputs,
    copies::{PromisedWrite, Then},
    core::Core,
    timers::Timer,
};
use nodectl_types::{BlobHash, JobId, Message, NodeId, TaskRecord};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Files that could not be fetched are tried again after this long, and twice as long each time.
const REFETCH: Duration = Duration::from_millis(500);
/// So often; then whoever waits for them has to ask again.
pub(super) const REFETCHES: u32 = 5;

/// Files on their way here.
#[derive(Clone, Debug)]
pub(super) enum Fetching {
    Tree {
        manifest: BlobHash,
        holders: Vec<NodeId>,
        tries: u32,
    },
    Blobs {
        hashes: Vec<BlobHash>,
        holders: Vec<NodeId>,
        tries: u32,
    },
}

impl Fetching {
    /// The files of these records, as a node has them that sent the records; `None` if there are
    /// none.
    pub(super) fn of(records: &[Arc<TaskRecord>], from: NodeId) -> Option<Self> {
        let hashes: BTreeSet<_> = records.iter().flat_map(|record| record.blobs()).collect();
        let makers = records
            .iter()
            .filter(|record| record.blobs().next().is_some())
            .map(|record| record.node);
        let mut holders = vec![from];
        for maker in makers {
            if !holders.contains(&maker) {
                holders.push(maker);
            }
        }
        (!hashes.is_empty()).then(|| Self::Blobs {
            hashes: hashes.into_iter().collect(),
            holders,
            tries: 0,
        })
    }

    /// After so many tries of files that came before.
    pub(super) fn after(mut self, before: u32) -> Self {
        let (Self::Tree { tries, .. } | Self::Blobs { tries, .. }) = &mut self;
        *tries = before;
        self
    }

    /// How many tries those have behind them that come next from that node. Where files could not
    /// be had though they were asked for as often as may be, others are asked for once: a disk that
    /// has lost many is not to take all that time for each.
    pub(super) fn tries_for_next(&self) -> u32 {
        let (Self::Tree { tries, .. } | Self::Blobs { tries, .. }) = self;
        if *tries > REFETCHES { *tries } else { 0 }
    }

    /// Has them brought; returns the ticket.
    pub(super) fn begin(&self, core: &mut Core, job: JobId) -> u64 {
        match self {
            Self::Tree {
                manifest, holders, ..
            } => core.fetch_tree(job, *manifest, holders.clone()),
            Self::Blobs {
                hashes, holders, ..
            } => core.fetch_blobs(job, hashes.clone(), holders.clone()),
        }
    }

    /// Counts a try that failed. How many there were, and how long to wait before the next.
    pub(super) fn pause(&mut self) -> (u32, Duration) {
        let (Self::Tree { tries, .. } | Self::Blobs { tries, .. }) = self;
        *tries += 1;
        (*tries, REFETCH * 2u32.pow((*tries - 1).min(6)))
    }
}

impl State {
    pub(super) fn fetched(&mut self, ticket: u64, result: &Result<(), String>) {
        if self.healed(ticket, result) {
            return;
        }
        let Some(job) = self.core.ended(ticket) else {
            return;
        };
        if self.executor.gang_fetched(&mut self.core, ticket, result) {
            return;
        }
        if self.fetched_to_coordinate(job, ticket, result) {
            return;
        }
        let is_it =
            |promise: &PromisedWrite| promise.ticket == ticket && promise.fetching.is_some();
        let Some((copy, position)) = self.copies.get_mut(&job).and_then(|copy| {
            let position = copy.promised.iter().position(is_it)?;
            Some((copy, position))
        }) else {
            return;
        };
        match result {
            Ok(()) => {
                let promise = copy.promised.swap_remove(position);
                self.promise(job, promise.keep, promise.then, None);
            }
            Err(error) => self.fetch_failed(job, position, error),
        }
    }

    /// Files that this node's coordinator of the job waits for, if it is such a ticket.
    fn fetched_to_coordinate(
        &mut self,
        job: JobId,
        ticket: u64,
        result: &Result<(), String>,
    ) -> bool {
        let Some((coordinator, copy)) = super::pair(&mut self.coordinators, &mut self.copies, job)
        else {
            return false;
        };
        let fetched = (ticket, result);
        let is_taken = match coordinator.inputs_fetched(&mut self.core, &mut copy.lattice, fetched)
        {
            Inputs::Expected => true,
            Inputs::Others => {
                coordinator.fetched(&mut self.core, &mut copy.lattice, ticket, result)
            }
            Inputs::Missing => {
                let error = result.as_ref().err().map_or("", String::as_str);
                self.decline(job, &format!("its files cannot be fetched: {error}"));
                return true;
            }
        };
        if is_taken {
            self.touched.insert(job);
            let lost = coordinator.take_lost();
            self.blobs_lost(lost);
            self.answer_submission_of(job);
            self.claim_if_outbid(job);
        }
        is_taken
    }

    /// Where a result without its files counts more than one that is whole, this node claims the
    /// job in a later epoch, in which it accepts the whole one.
    pub(super) fn claim_if_outbid(&mut self, job: JobId) {
        let coordinator = self.coordinators.get_mut(&job);
        if let Some(epoch) = coordinator.and_then(|coordinator| coordinator.take_outbid()) {
            self.claim_once_more(job, epoch);
        }
    }

    /// Files that a write waits for could not be had: they are asked for a few times more.
    fn fetch_failed(&mut self, job: JobId, position: usize, error: &str) {
        let Some(copy) = self.copies.get_mut(&job) else {
            return;
        };
        let promise = &mut copy.promised[position];
        let ticket = promise.ticket;
        let Some((tries, pause)) = promise.fetching.as_mut().map(Fetching::pause) else {
            return;
        };
        if tries <= REFETCHES {
            return self.core.after(pause, Timer::Refetch(job, ticket));
        }
        self.core
            .notice(format!("files of job {job} cannot be copied: {error}"));
        let mut promise = copy.promised.swap_remove(position);
        if let (
            Then::Pulled(..) | Then::Next(..) | Then::Nothing,
            Some(fetching @ Fetching::Blobs { .. }),
        ) = (&mut promise.then, &promise.fetching)
        {
            if let Then::Next(_, _, tries, _) = &mut promise.then {
                *tries = fetching.tries_for_next();
            }
            let is_first = tries == REFETCHES + 1;
            return self.keep_without_files(job, promise.keep, promise.then, is_first);
        }
        // Nobody may have what tasks are given, and what is known of them is to outlive that.
        if let Some(Fetching::Tree { manifest, .. }) = promise.fetching {
            self.inputs_lost(vec![manifest]);
            return self.promise(job, promise.keep, promise.then, None);
        }
        // Nothing was promised: whoever waits asks again.
        match promise.then {
            Then::Say(to, _) | Then::SayKept(to) => {
                let error = error.to_string();
                self.core.send(to, Message::Declined { job, error });
            }
            Then::Pulled(from, chunk) => self.core.resync.written(from, job, chunk, false),
            Then::Next(..) | Then::Nothing => {}
        }
    }

    /// Files that could not be had are asked for again.
    pub(super) fn refetch(&mut self, job: JobId, ticket: u64) {
        if let Some(coordinator) = self.coordinators.get_mut(&job)
            && coordinator.refetch(&mut self.core, ticket)
        {
            return;
        }
        let Some(copy) = self.copies.get_mut(&job) else {
            return;
        };
        let Some(promise) = copy
            .promised
            .iter_mut()
            .find(|promise| promise.ticket == ticket)
        else {
            return;
        };
        if let Some(fetching) = &promise.fetching {
            promise.ticket = fetching.begin(&mut self.core, job);
        }
    }
}
