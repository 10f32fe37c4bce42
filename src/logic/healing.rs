//! What this node's disk has lost, brought here again from whoever has it.
//!
//! Files that its journals name, those of results and those that tasks are given, may come from any
//! member: blobs are known by their contents alone. Records that were found damaged when they were
//! read come from other holders of their job, whose copies are compared with this one as if it
//! knew nothing of these tasks (`resync`). Until then the results count as before: other disks have
//! them.

use super::{State, timers::Timer};
use nodectl_types::{BlobHash, CopyDigest, JobId, NodeId, TaskIndex, Time};
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
/// Records that nobody has brought after the holders were asked so often are lost.
const MOST_ASKED: u32 = 3;

#[derive(Debug, Default)]
pub struct Healing {
    /// When each missing blob is asked for next, and how often it was asked for.
    missing: BTreeMap<BlobHash, (Time, u32)>,
    /// The missing blobs that are lists of files: all that a list names comes with it.
    trees: BTreeSet<BlobHash>,
    under_way: BTreeMap<u64, BlobHash>,
    /// Jobs with records that cannot be read here: when their holders are asked next, and how often
    /// they were.
    unread: BTreeMap<JobId, (Time, u32)>,
    timer_set: bool,
}

impl State {
    /// Files that are needed here and are not here, or not as they should be.
    pub fn blobs_lost(&mut self, hashes: impl IntoIterator<Item = BlobHash>) {
        let now = self.core.mono();
        for hash in hashes {
            let (_, tries) = self.healing.missing.entry(hash).or_insert((now, 0));
            if *tries == 0 {
                self.core.unasked.insert(hash);
            }
        }
        self.set_healing_timer(Duration::ZERO);
    }

    /// Records of these tasks cannot be read here any more.
    pub(super) fn records_lost(&mut self, job: JobId, tasks: Vec<TaskIndex>) {
        if self.is_resting(job) {
            return self.lost_at_rest(job, tasks);
        }
        let Some(copy) = self.copies.get_mut(&job) else {
            return;
        };
        if let Some(coordinator) = self.coordinators.get_mut(&job) {
            coordinator.write_again(&mut self.core, &tasks);
        }
        let lost = tasks
            .into_iter()
            .filter(|task| copy.lattice.note_unread(*task));
        let lost = lost.count();
        if lost > 0 {
            self.core.notice(format!(
                "job {job}: {lost} of its results cannot be read from this node's disk; its other holders are asked for them. hint: check the disk"
            ));
            let now = self.core.mono();
            self.healing.unread.insert(job, (now, 0));
            self.set_healing_timer(Duration::ZERO);
        }
    }

    /// Lists of the files that jobs' tasks are given: found when this node starts, where one of
    /// them or a file that it names is not here.
    pub fn inputs_lost(&mut self, manifests: Vec<BlobHash>) {
        self.healing.trees.extend(&manifests);
        self.blobs_lost(manifests);
    }

    /// Whether files that tasks are given are not here, as far as is known.
    pub(super) fn lacks_tree(&self, manifest: BlobHash) -> bool {
        self.healing.trees.contains(&manifest)
    }

    /// Files that tasks are given are here that were missing: coordinators of these tasks' jobs
    /// learn that this node could go on in their place.
    fn tree_came(&mut self, manifest: BlobHash) {
        let mut told = Vec::new();
        for (job, copy) in &self.copies {
            let head = self.core.directory.get(*job);
            let Some(head) = head.filter(|head| !head.phase.is_ended()) else {
                continue;
            };
            let is_ours = head.holder == self.core.me;
            if copy.kept && !is_ours && copy.spec.work.inputs == Some(manifest) {
                told.push((head.holder, *job));
            }
        }
        for (holder, job) in told {
            self.say_kept(holder, job);
        }
    }

    /// Somebody is here who was not: it may have what nobody had.
    pub(super) fn heal_with_newcomer(&mut self) {
        let now = self.core.mono();
        self.healing
            .missing
            .values_mut()
            .chain(self.healing.unread.values_mut())
            .for_each(|asked| *asked = (now, 0));
        self.core.unasked = self.healing.missing.keys().copied().collect();
    }

    fn set_healing_timer(&mut self, pause: Duration) {
        let is_whole = self.healing.missing.is_empty() && self.healing.unread.is_empty();
        if !is_whole && !std::mem::replace(&mut self.healing.timer_set, true) {
            self.core.after(pause, Timer::Heal);
        }
    }

    /// Time passed.
    pub(super) fn heal(&mut self) {
        self.healing.timer_set = false;
        self.ask_for_missing();
        self.ask_for_records();
        self.set_healing_timer(PAUSE);
    }

    /// Has the holders of jobs show their copies, where records here cannot be read.
    fn ask_for_records(&mut self) {
        let now = self.core.mono();
        let copies = &self.copies;
        let is_unread = |job: &JobId| {
            let copy = copies.get(job);
            copy.is_some_and(|copy| !copy.lattice.unread_chunks().is_empty())
        };
        self.healing.unread.retain(|job, _| is_unread(job));
        self.give_up_unread();
        for (job, (at, tries)) in &mut self.healing.unread {
            if *at > now {
                continue;
            }
            *at = now + PAUSE * 2u32.pow((*tries).min(MOST_DOUBLINGS));
            *tries += 1;
            let head = self.core.directory.get(*job);
            let holders = head.map(|head| head.holders()).unwrap_or_default();
            let others: Vec<NodeId> = holders
                .into_iter()
                .filter(|node| *node != self.core.me && self.core.members.is_reachable(*node))
                .collect();
            for node in others {
                self.core.resync.show(node, *job, true);
            }
        }
    }

    /// Gives up records that cannot be read, of jobs that this node coordinates, if every holder is
    /// here and has shown its copy several times: nobody has them, and nobody says of their tasks
    /// what these said. Results that others brought in their place, and that are being kept, are
    /// not given up.
    fn give_up_unread(&mut self) {
        let all_have_shown = |job: &JobId| {
            let holders = self.core.directory.get(*job).map(|head| head.holders());
            let mut holders = holders.into_iter().flatten();
            holders.all(|node| {
                self.core.members.is_reachable(node) && !self.core.resync.is_comparing(node, *job)
            })
        };
        let given_up = self.healing.unread.iter().filter(|(job, (_, tries))| {
            let coordinator = self.coordinators.get(job);
            let is_ours = coordinator.is_some_and(|coordinator| !coordinator.is_ordered());
            *tries >= MOST_ASKED && is_ours && all_have_shown(job)
        });
        for job in given_up.map(|(job, _)| *job).collect::<Vec<_>>() {
            self.with_coordinator(job, |coordinator, core, copy| {
                let is_lost = |task| !coordinator.is_end_coming(task);
                let lost = copy.lattice.forget_unread(is_lost);
                if !lost.is_empty() {
                    coordinator.settle_loss(core, &copy.lattice, lost);
                }
            });
        }
    }

    /// Gives up what cannot be read of a job that another node coordinates, if that one shows all
    /// that can be: it has given up the rest, or has never heard of it. If it does some time, from
    /// a disk that can still read it, it comes from there.
    pub(super) fn give_up_as_shown(
        &mut self,
        from: NodeId,
        (job, epoch): (JobId, u32),
        shown: &CopyDigest,
    ) {
        let head = self.core.directory.get(job);
        let is_coordinator = head.is_some_and(|head| (head.epoch, head.holder) == (epoch, from));
        let Some(copy) = self.copies.get_mut(&job) else {
            return;
        };
        let is_lost = !copy.lattice.unread_chunks().is_empty()
            && !copy.spec.is_ordered()
            && copy.lattice.equals_as_read(shown);
        if is_coordinator && is_lost {
            copy.lattice.forget_unread(|_| true);
        }
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
        self.core.unasked.remove(&hash);
        match result {
            Ok(()) => {
                self.healing.missing.remove(&hash);
                self.file_came(hash);
                if self.healing.trees.remove(&hash) {
                    self.tree_came(hash);
                }
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
