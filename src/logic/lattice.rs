//! What is known of a job's tasks: a join-semilattice, the product of its tasks' cells
//! (`types::Cell`). So replicas that merged the same records, in any order and any number of times,
//! agree; no quorum is needed.
//!
//! Each chunk of `limits::DIGEST_CHUNK` tasks has a digest that is kept up with every merge, so
//! that comparing two replicas costs no look at their cells.
//!
//! Of a job that has ended, and that nobody asks about, the cells are on the disk alone: its
//! lattice *rests* (`rest`). It knows the counts, and one digest over all cells.

#[cfg(test)]
mod tests;

use super::seldom::{Blank, Seldom};
use nodectl_types::{
    Attempt, BlobHash, Cell, CopyDigest, Key, TaskIndex, TaskRecord, limits::DIGEST_CHUNK as CHUNK,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// The state of a job. Memory: 8 bytes a task up to the highest that ended, more for those that
/// failed; of one that rests some hundred bytes, however many tasks it has.
#[derive(Clone, Debug)]
pub struct Lattice {
    tasks: u32,
    known: Seldom<TaskCells>,
    done: u32,
    cancelled: u32,
    /// How many tasks failed how often: `failed_for_good` is asked every turn.
    tally: BTreeMap<u32, u32>,
    /// The digest of all cells, while these are on the disk alone.
    resting: Option<u64>,
}

/// What is known of single tasks.
#[derive(Clone, Debug, Default)]
struct TaskCells {
    /// Cells of all tasks below `cells.len()`; above they are unknown.
    cells: Vec<PackedCell>,
    /// The claims that ordered the attempts of results, of which cells have the place: (epoch,
    /// claim).
    claims: Vec<(u32, u32)>,
    /// Cells that have no place in 8 bytes.
    wide: BTreeMap<TaskIndex, Cell>,
    /// Of each chunk that has a known cell.
    digests: Vec<u64>,
    /// Tasks that failed and are neither done nor cancelled.
    failed: BTreeSet<TaskIndex>,
    /// Tasks whose records cannot be read from this node's disk any more: hardly ever any.
    unread: BTreeSet<TaskIndex>,
    /// Results of which files are missing on this node's disk, and which: hardly ever any.
    unwhole: BTreeMap<TaskIndex, (Cell, BTreeSet<BlobHash>)>,
}

impl Blank for TaskCells {
    fn blank() -> &'static Self {
        static BLANK: TaskCells = TaskCells {
            cells: Vec::new(),
            claims: Vec::new(),
            wide: BTreeMap::new(),
            digests: Vec::new(),
            failed: BTreeSet::new(),
            unread: BTreeSet::new(),
            unwhole: BTreeMap::new(),
        };
        &BLANK
    }
}

impl Lattice {
    pub fn new(tasks: u32) -> Self {
        Self {
            tasks,
            known: Seldom::default(),
            done: 0,
            cancelled: 0,
            tally: BTreeMap::new(),
            resting: None,
        }
    }

    /// Gives the cells up: they are on this node's disk. Nothing may be missing there.
    pub fn rest(&mut self) {
        debug_assert!(self.is_sound());
        self.resting = Some(self.digest());
        self.known.give_back();
    }

    /// Whether only counts and one digest are known here, and the cells are to be read again before
    /// anybody asks for one.
    pub fn is_resting(&self) -> bool {
        self.resting.is_some()
    }

    /// Nothing of it is known to be missing on this node's disk.
    pub fn is_sound(&self) -> bool {
        self.known.unread.is_empty() && self.known.unwhole.is_empty()
    }

    pub fn tasks(&self) -> u32 {
        self.tasks
    }

    /// Behind the last task of which anything is known.
    pub fn known_end(&self) -> TaskIndex {
        self.known.cells.len() as TaskIndex
    }

    pub fn done(&self) -> u32 {
        self.done
    }

    /// What is known of a task; nothing while the lattice rests. Whoever needs to know has the
    /// cells read first (`State::recall`).
    pub fn cell(&self, task: TaskIndex) -> Cell {
        let Some(packed) = self.known.cells.get(task as usize) else {
            return Cell::Unknown;
        };
        packed
            .open(&self.known.claims)
            .unwrap_or_else(|| self.known.wide[&task])
    }

    /// The latest claim under which something was written; 0 if nothing was.
    pub fn newest_epoch(&self) -> u32 {
        let epoch = |task| match self.cell(task) {
            Cell::Done(key) | Cell::Added(key) => key.accepted,
            Cell::Failed { attempt, .. } => attempt.epoch,
            Cell::Unknown | Cell::Cancelled => 0,
        };
        (0..self.known_end()).map(epoch).max().unwrap_or_default()
    }

    pub fn is_done(&self, task: TaskIndex) -> bool {
        self.cell(task).is_done()
    }

    /// How many tasks were cancelled one by one.
    pub fn cancelled(&self) -> u32 {
        self.cancelled
    }

    /// Nothing more is to be done for the task, where `limit` failures are too many.
    pub fn has_ended(&self, task: TaskIndex, limit: u32) -> bool {
        match self.cell(task) {
            Cell::Done(_) | Cell::Cancelled => true,
            Cell::Failed { count, .. } => count >= limit,
            Cell::Unknown | Cell::Added(_) => false,
        }
    }

    /// How often a task that is neither done nor cancelled failed.
    pub fn failures(&self, task: TaskIndex) -> u32 {
        match self.cell(task) {
            Cell::Failed { count, .. } => count,
            _ => 0,
        }
    }

    /// Tasks that failed and are neither done nor cancelled, with how often.
    pub fn failed(&self) -> impl Iterator<Item = (TaskIndex, u32)> + '_ {
        self.known
            .failed
            .iter()
            .map(|task| (*task, self.failures(*task)))
    }

    /// How many tasks failed at least `limit` times.
    pub fn failed_for_good(&self, limit: u32) -> u32 {
        self.tally.range(limit..).map(|(_, tasks)| tasks).sum()
    }

    /// Whether a record would be news, or takes the place of one that cannot be read any more.
    pub fn lacks(&self, record: &TaskRecord) -> bool {
        let (before, cell) = (self.cell(record.task), Cell::of(record));
        let is_news = before.join(cell) != before;
        record.task < self.tasks && (is_news || self.replaces_lost(record.task, cell))
    }

    /// Joins what a record says that is on this node's disk; true if that is news, also where it
    /// takes the place of a record that cannot be read any more. A task beyond the job's is never
    /// news.
    pub fn merge(&mut self, record: &TaskRecord) -> bool {
        self.merge_cell(record.task, Cell::of(record))
    }

    /// As `merge`, for whoever knows already what the record says.
    pub fn merge_cell(&mut self, task: TaskIndex, cell: Cell) -> bool {
        let before = self.cell(task);
        if self.replaces_lost(task, cell) {
            self.replace(task, cell);
        }
        if cell >= self.cell(task) {
            self.known.unread.remove(&task);
        }
        self.join_cell(task, cell) || self.cell(task) != before
    }

    /// Joins what a record says that is on this node's disk, in place of all that this disk has
    /// lost of its task: what another disk can read is worth more, and if a third has the lost one
    /// still, it comes from there.
    pub fn merge_over_lost(&mut self, record: &TaskRecord) {
        if self.known.unread.remove(&record.task) {
            self.replace(record.task, Cell::Unknown);
        }
        self.merge(record);
    }

    /// Whether a record takes the place of one that cannot be read any more: one that says as much
    /// of the task. The lesser of two is worth more than one that this disk has lost; if another
    /// disk has that one still, it comes from there.
    fn replaces_lost(&self, task: TaskIndex, cell: Cell) -> bool {
        let says_as_much = match (self.cell(task), cell) {
            (Cell::Done(_), Cell::Done(_)) | (Cell::Failed { .. }, Cell::Failed { .. }) => true,
            (before, cell) => before == cell,
        };
        says_as_much && self.is_unread(task)
    }

    /// Gives up what cannot be read any more and is lost, as if it had never been known: no other
    /// holder has it. Returns the tasks.
    pub fn forget_unread(&mut self, is_lost: impl Fn(TaskIndex) -> bool) -> BTreeSet<TaskIndex> {
        let lost: BTreeSet<_> = self
            .known
            .unread
            .extract_if(.., |task| is_lost(*task))
            .collect();
        for task in &lost {
            self.replace(*task, Cell::Unknown);
        }
        lost
    }

    /// A task's record cannot be read any more; false if that is known, or there was none.
    pub fn note_unread(&mut self, task: TaskIndex) -> bool {
        self.cell(task) != Cell::Unknown && self.known.unread.insert(task)
    }

    /// Whether what is known of a task cannot be read any more.
    pub fn is_unread(&self, task: TaskIndex) -> bool {
        self.known.unread.contains(&task)
    }

    /// The chunks with tasks whose records cannot be read any more.
    pub fn unread_chunks(&self) -> BTreeSet<u32> {
        self.known.unread.iter().map(|task| task / CHUNK).collect()
    }

    /// Joins what a record says that was read again from this node's disk.
    pub fn recall(&mut self, task: TaskIndex, cell: Cell) {
        self.join_cell(task, cell);
    }

    fn join_cell(&mut self, task: TaskIndex, cell: Cell) -> bool {
        if task >= self.tasks || self.is_resting() {
            // Of one that rests the disk knows more: it is found there when the cells are read.
            return false;
        }
        let before = self.cell(task);
        let after = before.join(cell);
        if after != before {
            self.replace(task, after);
        }
        after != before
    }

    fn replace(&mut self, task: TaskIndex, after: Cell) {
        let before = self.cell(task);
        self.set(task, before, after);
        match before {
            Cell::Failed { count, .. } => {
                self.known.failed.remove(&task);
                if let Some(tasks) = self.tally.get_mut(&count) {
                    *tasks -= 1;
                }
            }
            Cell::Cancelled => self.cancelled -= 1,
            Cell::Done(_) => self.done -= 1,
            Cell::Unknown | Cell::Added(_) => {}
        }
        match after {
            Cell::Done(_) => self.done += 1,
            Cell::Cancelled => self.cancelled += 1,
            Cell::Failed { count, .. } => {
                self.known.failed.insert(task);
                *self.tally.entry(count).or_default() += 1;
            }
            Cell::Unknown | Cell::Added(_) => {}
        }
    }

    fn set(&mut self, task: TaskIndex, before: Cell, after: Cell) {
        let (index, chunk) = (task as usize, (task / CHUNK) as usize);
        if self.known.cells.len() <= index {
            self.known.cells.resize(index + 1, PackedCell::UNKNOWN);
        }
        if self.known.digests.len() <= chunk {
            self.known.digests.resize(chunk + 1, 0);
        }
        self.known.digests[chunk] ^= hash(task, before) ^ hash(task, after);
        match PackedCell::of(after, &mut self.known.claims) {
            Some(packed) => {
                self.known.cells[index] = packed;
                self.known.wide.remove(&task);
            }
            None => {
                self.known.cells[index] = PackedCell::WIDE;
                self.known.wide.insert(task, after);
            }
        }
    }

    /// A file of a result is missing on this node's disk. Of a task's results the greatest is
    /// noted.
    pub fn note_missing(&mut self, task: TaskIndex, cell: Cell, hash: BlobHash) {
        let (noted, files) = self.known.unwhole.entry(task).or_default();
        if cell > *noted {
            (*noted, *files) = (cell, BTreeSet::new());
        }
        if cell == *noted {
            files.insert(hash);
        }
    }

    /// A file is here that was missing.
    pub fn file_came(&mut self, hash: BlobHash) {
        self.known.unwhole.retain(|_, (_, files)| {
            files.remove(&hash);
            !files.is_empty()
        });
    }

    /// Whether files of that result of the task are missing here.
    pub fn lacks_files(&self, task: TaskIndex, cell: Cell) -> bool {
        self.known
            .unwhole
            .get(&task)
            .is_some_and(|(noted, _)| *noted == cell)
    }

    /// Whether one of these files is missing here, of a result that counts.
    pub fn lacks_any(&self, files: &BTreeSet<BlobHash>) -> bool {
        let unwhole = self.known.unwhole.iter();
        let mut current = unwhole.filter(|(task, (noted, _))| *noted == self.cell(**task));
        !files.is_empty() && current.any(|(_, (_, missing))| !missing.is_disjoint(files))
    }

    /// The task is done, its result can be read, and the files of that are here.
    pub fn is_whole(&self, task: TaskIndex) -> bool {
        let cell = self.cell(task);
        cell.is_done() && !self.is_unread(task) && !self.lacks_files(task, cell)
    }

    /// A hash of each chunk's cells, up to the last chunk of which anything is known.
    pub fn digests(&self) -> &[u64] {
        &self.known.digests
    }

    /// One hash of all cells.
    pub fn digest(&self) -> u64 {
        self.resting
            .unwrap_or_else(|| digest_of(&self.known.digests))
    }

    /// What is shown to another node, for it to find what it lacks.
    pub fn shown(&self) -> CopyDigest {
        match self.resting {
            Some(digest) => CopyDigest::Whole(digest),
            None => CopyDigest::Chunks(self.known.digests.clone()),
        }
    }

    /// Whether another replica, which shows this of its own, knows the same.
    pub fn equals(&self, shown: &CopyDigest) -> bool {
        self.digest()
            == match shown {
                CopyDigest::Whole(digest) => *digest,
                CopyDigest::Chunks(digests) => digest_of(digests),
            }
    }

    /// Whether another replica, which shows this of its own, knows the same as can be read from
    /// this node's disk.
    pub fn equals_as_read(&self, shown: &CopyDigest) -> bool {
        let mut readable = Self::new(self.tasks);
        readable.known.digests = self.known.digests.clone();
        for task in &self.known.unread {
            readable.known.digests[(task / CHUNK) as usize] ^= hash(*task, self.cell(*task));
        }
        readable.equals(shown)
    }

    /// Bytes on the heap, about.
    pub fn memory_bytes(&self) -> usize {
        let wide = self.known.wide.len() * (size_of::<TaskIndex>() + size_of::<Cell>());
        let failed = (self.known.failed.len() + self.known.unread.len()) * size_of::<TaskIndex>();
        let tally = self.tally.len() * 2 * size_of::<u32>();
        let words = self.known.cells.capacity()
            + self.known.claims.capacity()
            + self.known.digests.capacity();
        8 * words + wide + failed + tally
    }

    /// The chunks in which another replica, whose digests these are, differs.
    pub fn differing(&self, theirs: &[u64]) -> BTreeSet<u32> {
        let at = |digests: &[u64], chunk: usize| digests.get(chunk).copied().unwrap_or(0);
        let most = self
            .known
            .digests
            .len()
            .max(theirs.len())
            .min(self.tasks.div_ceil(CHUNK) as usize);
        (0..most)
            .filter(|chunk| at(&self.known.digests, *chunk) != at(theirs, *chunk))
            .map(|chunk| chunk as u32)
            .collect()
    }

    /// The tasks of a chunk.
    pub fn chunk(&self, chunk: u32) -> Range<TaskIndex> {
        let first = chunk.saturating_mul(CHUNK).min(self.tasks);
        first..first.saturating_add(CHUNK).min(self.tasks)
    }

    /// The tasks of a chunk of which this replica knows more than another, whose cells of it these
    /// are; those that it left out are unknown to it.
    pub fn ahead_of(&self, chunk: u32, theirs: &[Cell]) -> Vec<TaskIndex> {
        let cells = theirs
            .iter()
            .copied()
            .chain(std::iter::repeat(Cell::Unknown));
        let is_ahead =
            |(task, theirs): &(TaskIndex, Cell)| theirs.join(self.cell(*task)) != *theirs;
        self.chunk(chunk)
            .zip(cells)
            .filter(is_ahead)
            .map(|(task, _)| task)
            .collect()
    }
}

/// A cell in 8 bytes: 2 bits say which, then the epoch that accepted it (11 bits), the place of the
/// claim that ordered its attempt (11), the attempt's number (8) and the stamp (32). What does not
/// fit is `WIDE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedCell(u64);

impl PackedCell {
    const UNKNOWN: Self = Self(0);
    const WIDE: Self = Self(1 << 62);
    const CANCELLED: Self = Self(2 << 62);
    const DONE: u64 = 3 << 62;
    /// Claims that have a place.
    const CLAIMS: usize = 1 << 11;

    /// A claim that has no place yet gets the next one.
    fn of(cell: Cell, claims: &mut Vec<(u32, u32)>) -> Option<Self> {
        match cell {
            Cell::Unknown => Some(Self::UNKNOWN),
            Cell::Cancelled => Some(Self::CANCELLED),
            Cell::Added(_) | Cell::Failed { .. } => None,
            Cell::Done(Key {
                accepted,
                attempt:
                    Attempt {
                        epoch,
                        claim,
                        number,
                    },
                stamp,
            }) => {
                if accepted >= 1 << 11 || number >= 1 << 8 {
                    return None;
                }
                // The latest are asked for most often.
                let known = claims.iter().rposition(|known| *known == (epoch, claim));
                let place = known.unwrap_or(claims.len());
                if place >= Self::CLAIMS {
                    return None;
                }
                if known.is_none() {
                    claims.push((epoch, claim));
                }
                let bits =
                    u64::from(accepted) << 51 | (place as u64) << 40 | u64::from(number) << 32;
                Some(Self(Self::DONE | bits | u64::from(stamp)))
            }
        }
    }

    /// `None` for one that is elsewhere.
    fn open(self, claims: &[(u32, u32)]) -> Option<Cell> {
        let bits = |shift: u32, count: u32| (self.0 >> shift) as u32 & ((1 << count) - 1);
        match self {
            Self::UNKNOWN => Some(Cell::Unknown),
            Self::WIDE => None,
            Self::CANCELLED => Some(Cell::Cancelled),
            _ => {
                let (epoch, claim) = claims[bits(40, 11) as usize];
                let attempt = Attempt {
                    epoch,
                    claim,
                    number: bits(32, 8),
                };
                Some(Cell::Done(Key {
                    accepted: bits(51, 11),
                    attempt,
                    stamp: self.0 as u32,
                }))
            }
        }
    }
}

/// A hash of what is known of a task, 0 if nothing. Between replicas of one cluster, which trust
/// each other: it need not withstand anybody.
fn hash(task: TaskIndex, cell: Cell) -> u64 {
    let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let of_key = |kind: u32, key: Key| {
        [
            pair(kind, key.accepted),
            pair(key.attempt.epoch, key.attempt.number),
            pair(key.attempt.claim, key.stamp),
        ]
    };
    let parts = match cell {
        Cell::Unknown => return 0,
        Cell::Failed { count, attempt } => [
            pair(1, count),
            pair(attempt.epoch, attempt.number),
            u64::from(attempt.claim),
        ],
        Cell::Cancelled => [pair(2, 0), 0, 0],
        Cell::Done(key) => of_key(3, key),
        Cell::Added(key) => of_key(4, key),
    };
    parts
        .into_iter()
        .fold(mix(u64::from(task) + 1), |hash, part| mix(hash ^ part))
}

/// A hash of chunks' digests, whatever chunks follow of which nothing is known.
fn digest_of(digests: &[u64]) -> u64 {
    let known = (1..).zip(digests).filter(|(_, digest)| **digest != 0);
    known.fold(0, |all, (chunk, digest)| all ^ mix(mix(chunk) ^ digest))
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
