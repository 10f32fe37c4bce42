//! Which views this node has heard of, was asked to be a part of, and has confirmed.

use nodectl_types::{
    NodeId,
    servers::message::{Epoch, PeerStatus},
};
use std::collections::BTreeSet;

/// Which views there are.
#[derive(Default)]
pub(super) struct Epochs {
    /// This node heeds no lower one.
    pub promised: Epoch,
    /// Views of which it was asked to be a part, and those that it has confirmed: the last of each.
    pub asked: Recent,
    pub confirmed: Recent,
    /// The highest number of an epoch that was heard of.
    seen: u64,
}

/// The last views of some sort. Of older ones nobody needs to know.
#[derive(Default)]
pub(super) struct Recent(BTreeSet<Epoch>);

impl Recent {
    const MOST: usize = 64;

    pub fn insert(&mut self, epoch: Epoch) {
        self.0.insert(epoch);
        if self.0.len() > Self::MOST {
            self.0.pop_first();
        }
    }

    pub fn has(&self, epoch: Epoch) -> bool {
        self.0.contains(&epoch)
    }
}

impl Epochs {
    /// Whether a node of which this was the last that it said had gone on with this one or not at
    /// all: before it goes on with others it says that it heeds their view.
    pub fn is_with_us(&self, said: &PeerStatus) -> bool {
        self.asked.has(said.promised) && self.confirmed.has(said.confirmed)
    }

    pub fn heard(&mut self, number: u64) {
        self.seen = self.seen.max(number);
    }

    /// The epoch of a view that this node proposes: higher than all that it has heard of.
    pub fn next(&mut self, by: NodeId) -> Epoch {
        self.seen += 1;
        Epoch {
            number: self.seen,
            by,
        }
    }

    /// Views that this node proposes from now on have higher numbers than all that others may have
    /// given theirs meanwhile: `apart` is more than they can have proposed.
    pub fn outnumber(&mut self, apart: u64) {
        self.seen = (self.seen / apart).saturating_add(1).saturating_mul(apart);
    }
}
