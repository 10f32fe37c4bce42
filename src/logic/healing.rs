//! Files that this node's journals name and its disk has lost, those of results and those that
//! tasks are given: brought here again from whoever has them. Any member may: blobs are known by
//! their contents alone.

use super::{State, timers::Timer};
use nodectl_types::{BlobHash, Time};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Files fetched at a time.
const AT_ONCE: usize = 8;
/// A file that nobody has now is asked for again after this long, and twice as long each time,
/// until somebody comes.
const PAUSE: Duration = Duration::from_secs(5);
const MOST_DOUBLINGS: u32 = 6;

#[derive(Debug, Default)]
pub struct Healing {
    /// When each missing blob is asked for next, and how often it was asked for.
    missing: BTreeMap<BlobHash, (Time, u32)>,
    /// The missing blobs that are lists of files: all that a list names comes with it.
    trees: BTreeSet<BlobHash>,
    under_way: BTreeMap<u64, BlobHash>,
    timer_set: bool,
}

impl State {
    /// Files that are needed here and are not here, or not as they should be.
    pub fn blobs_lost(&mut self, hashes: impl IntoIterator<Item = BlobHash>) {
        let now = self.core.mono();
        for hash in hashes {
            self.healing.missing.entry(hash).or_insert((now, 0));
        }
        self.set_healing_timer(Duration::ZERO);
    }

    /// Lists of the files that jobs' tasks are given: found when this node starts, where one of
    /// them or a file that it names is not here.
    pub fn inputs_lost(&mut self, manifests: Vec<BlobHash>) {
        self.healing.trees.extend(&manifests);
        self.blobs_lost(manifests);
    }

    /// Somebody is here who was not: it may have what nobody had.
    pub(super) fn heal_with_newcomer(&mut self) {
        let now = self.core.mono();
        self.healing
            .missing
            .values_mut()
            .for_each(|asked| *asked = (now, 0));
    }

    fn set_healing_timer(&mut self, pause: Duration) {
        if !self.healing.missing.is_empty() && !std::mem::replace(&mut self.healing.timer_set, true)
        {
            self.core.after(pause, Timer::Heal);
        }
    }

    /// Time passed.
    pub(super) fn heal(&mut self) {
        self.healing.timer_set = false;
        self.ask_for_missing();
        self.set_healing_timer(PAUSE);
    }

    /// Asks for what is due, as far as there is room.
    fn ask_for_missing(&mut self) {
        let now = self.core.mono();
        let holders = self.core.members.connected();
        let asked: BTreeSet<_> = self.healing.under_way.values().copied().collect();
        let room = AT_ONCE.saturating_sub(asked.len());
        let is_due =
            |(hash, (at, _)): &(&BlobHash, &(Time, u32))| *at <= now && !asked.contains(*hash);
        let due: Vec<_> = self
            .healing
            .missing
            .iter()
            .filter(is_due)
            .map(|(hash, _)| *hash)
            .take(room)
            .collect();
        if !holders.is_empty() {
            for hash in due {
                let ticket = match self.healing.trees.contains(&hash) {
                    true => self.core.fetch_any_tree(hash, holders.clone()),
                    false => self.core.fetch_any(hash, holders.clone()),
                };
                self.healing.under_way.insert(ticket, hash);
            }
        }
    }

    /// A file has come, or nobody has it now; false if the ticket is another's.
    pub(super) fn healed(&mut self, ticket: u64, result: &Result<(), String>) -> bool {
        let Some(hash) = self.healing.under_way.remove(&ticket) else {
            return false;
        };
        match result {
            Ok(()) => {
                self.healing.missing.remove(&hash);
                self.healing.trees.remove(&hash);
                self.file_came(hash);
                if self.healing.missing.is_empty() {
                    self.core.notice(
                        "every file that was missing here has come from other nodes".into(),
                    );
                }
            }
            Err(_) => {
                let now = self.core.mono();
                if let Some((at, tries)) = self.healing.missing.get_mut(&hash) {
                    *at = now + PAUSE * 2u32.pow((*tries).min(MOST_DOUBLINGS));
                    *tries += 1;
                }
            }
        }
        self.ask_for_missing();
        true
    }
}
