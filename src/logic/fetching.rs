//! Files on their way here, for records or specifications that are written once they have come.
//! Those that cannot be had are asked for a few times more.

use super::core::Core;
use nodectl_types::{BlobHash, JobId, NodeId, TaskRecord};
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
