//! Of told results: which may give way to another, and who has their files.

use crate::{
    check::{ToldResult, UserPromise},
    disk::{HeldRecord, Journal},
    world::{SimMachine, SimWorld},
};
use nodectl_types::{BlobHash, Cell, JobId, TaskIndex, TaskRecord};
use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

impl SimWorld {
    pub fn note_told(&mut self, job: JobId, held: HeldRecord) {
        let record = &held.record;
        let task = record.task;
        let files: Vec<_> = record.blobs().collect();
        let epoch = self.highest_epoch(job);
        let copies = self.copies(job, task);
        let file_copies = files
            .iter()
            .map(|hash| self.file_copies(*hash))
            .min()
            .unwrap_or(usize::MAX);
        if let Some(maker) = self.index_of(record.node) {
            self.checker
                .makers
                .extend(files.iter().map(|hash| (*hash, maker)));
        }
        if copies < 2 || file_copies < 2 {
            self.check_alone(job, record, copies, file_copies);
        }
        self.tell(|| {
            let (name, attempt) = (self.job_name(job), record.attempt);
            let its_files = if files.is_empty() {
                "no files".to_string()
            } else {
                format!("{file_copies} its files")
            };
            format!(
                "task {task} of {name} is told ({attempt}); {copies} disks have it, {its_files}"
            )
        });
        // A file is kept where its record is: a maker that holds nothing of the job may drop it.
        let file_copies = file_copies.min(copies.max(1));
        let promise = |copies| UserPromise {
            epoch,
            ..self.promised(copies)
        };
        let may_change = copies == 0 || self.has_rivals(job, record.accepted..=u32::MAX);
        let mut told = ToldResult {
            promise: promise(copies),
            files: promise(file_copies),
            may_change,
            held,
        };
        // A lone node's disk lost it before anybody was told.
        told.files.void |= file_copies == 0 && self.checker.lost_at.is_some();
        self.checker.told.entry(job).or_default().insert(task, told);
    }

    /// An answer may be the last that is heard from beyond a cut.
    pub fn promised(&self, copies: usize) -> UserPromise {
        let cut_off = self.machines.iter().any(|machine| machine.beyond);
        UserPromise {
            at: self.now,
            epoch: 0,
            copies,
            losses: 0,
            void: cut_off && copies == 0,
        }
    }

    /// A result was told that only one disk has: right only for a node that is alone. Of files one
    /// disk is enough while some file is nowhere any more: a replica that cannot get it takes the
    /// results without, and looks for the others.
    fn check_alone(&mut self, job: JobId, record: &TaskRecord, copies: usize, files: usize) {
        let task = record.task;
        if copies >= 2
            && self
                .checker
                .lost_files
                .iter()
                .any(|hash| self.file_copies(*hash) == 0)
        {
            return;
        }
        // Who has just been cut off for ever had it when it came to count, or has its files: those
        // who are left look for them, and take the result without.
        let has_files = |machine: &SimMachine| {
            let files = &machine.disk.blobs;
            copies >= 2 && record.blobs().all(|hash| files.contains_key(&hash))
        };
        let has_it = |machine: &SimMachine| {
            machine.beyond && (machine.disk.has_done(job, task) || has_files(machine))
        };
        if self.machines.iter().any(has_it) {
            return;
        }
        let tells = |claim: &usize| self.machines[*claim].disk.has_done(job, task);
        match self.company(job, tells) {
            Some((teller, other)) => {
                let what = if copies < 2 {
                    format!("{copies} disks have it")
                } else {
                    format!("{files} have its files")
                };
                let name = self.job_name(job);
                let text = format!(
                    "task {task} of {name} is told by n{teller}, which n{other} is connected to; {what}"
                );
                self.fail("a result is told before it is safe", text);
            }
            None => self.branch("a result is told by a lone node"),
        }
    }

    /// Live disks that have a task's result.
    pub fn copies(&self, job: JobId, task: TaskIndex) -> usize {
        self.present()
            .filter(|machine| machine.disk.has_done(job, task))
            .count()
    }

    pub fn file_copies(&self, hash: BlobHash) -> usize {
        self.present()
            .filter(|machine| machine.disk.blobs.contains_key(&hash))
            .count()
    }

    /// How long it takes on the slowest machine to copy the files of all jobs.
    pub fn copying(&self) -> Duration {
        let slowest = self
            .machines
            .iter()
            .map(|machine| machine.slowness)
            .max()
            .unwrap_or(1);
        let bytes: u64 = self.checker.sizes.values().sum();
        Duration::from_micros(bytes * 1_000 / self.plan.net.bytes_per_ms) * slowest
    }

    /// One of two results may give way to the other: of two sides that both went on, of one that
    /// nobody could tell of while the task was done again, and of two claims of one epoch.
    pub fn may_change(&self, job: JobId, known: &TaskRecord) -> bool {
        let told = self
            .checker
            .told
            .get(&job)
            .and_then(|told| told.get(&known.task));
        self.checker.split
            || told.is_some_and(|told| told.may_change)
            || self.has_rivals(job, known.accepted..=known.accepted)
    }

    /// Two nodes claimed the job in these epochs, as far as was written: it was submitted again
    /// when nobody was there who had heard of it, or a coordinator that had been away alone claims
    /// it anew.
    pub fn has_rivals(&self, job: JobId, epochs: RangeInclusive<u32>) -> bool {
        let journals = self
            .machines
            .iter()
            .filter_map(|machine| machine.disk.journals.get(&job));
        let heads = journals
            .flat_map(Journal::heads)
            .filter(|head| epochs.contains(&head.epoch));
        let holders: BTreeSet<_> = heads.map(|head| head.holder).collect();
        holders.len() > 1
    }

    /// Of which told results no copy is on a machine that is up, and that another has met since.
    /// Another result of the task is none.
    pub fn note_away(&mut self) {
        let up = self.up();
        let is_met = |who: &usize| {
            let sees = |by: &usize| by != who && self.sees(*by, *who);
            up.len() == 1 || up.iter().any(sees)
        };
        let met: Vec<_> = up.iter().copied().filter(is_met).collect();
        let mut checker = std::mem::take(&mut self.checker);
        for (job, told) in &mut checker.told {
            for (task, told) in told.iter_mut().filter(|(_, told)| !told.may_change) {
                let has = |who: &usize| {
                    let known = self.machines[*who].disk.durable(*job, *task);
                    known.is_some_and(|known| is_same(known, &told.held))
                };
                told.may_change = !met.iter().any(has);
            }
        }
        self.checker = checker;
    }

    /// Live disks that have all files of a told result, `None` if it has none. Another result of
    /// the task may have come to count: of two sides that told different ones, one gives way, and
    /// what only a lone node had may be lost with its disk and done again. Whether that may be is
    /// another rule's to say. The files of the one that counts are owed once nothing is wrong;
    /// until then it may not be settled which that is, and those of either will do.
    pub fn told_file_copies(&self, job: JobId, told: &HeldRecord, quiet: bool) -> Option<usize> {
        let copies =
            |held: &HeldRecord| held.record.blobs().map(|hash| self.file_copies(hash)).min();
        let task = told.record.task;
        let known = self
            .present()
            .filter_map(|machine| machine.disk.durable(job, task));
        let counts = known
            .filter(|held| held.cell.is_done())
            .max_by_key(|held| held.cell);
        match counts.filter(|counts| !is_same(counts, told)) {
            None => copies(told),
            Some(counts) if quiet => copies(counts),
            Some(counts) => copies(counts).and_then(|other| Some(other.max(copies(told)?))),
        }
    }

    /// A disk that has not heard of a result drops its files when its node starts. Where the only
    /// other one had lost them before, that was the last copy.
    pub fn void_without_files(&mut self) {
        if self.checker.lost_at.is_none() {
            return;
        }
        let mut checker = std::mem::take(&mut self.checker);
        for (job, told) in &mut checker.told {
            let all = told.values_mut();
            for told in all.filter(|told| told.files.copies < 2 && !told.files.void) {
                told.files.void = self.told_file_copies(*job, &told.held, false) == Some(0);
            }
        }
        self.checker = checker;
    }

    /// What tasks were given is on no disk any more: nobody can go on with the job, or keep another
    /// copy of it.
    pub fn void_without_inputs(&mut self) {
        let is_void = |job: &JobId| {
            let specs = self
                .machines
                .iter()
                .filter_map(|machine| machine.disk.journals.get(job)?.spec());
            let inputs = specs.filter_map(|spec| spec.work.inputs).next();
            inputs.is_some_and(|manifest| self.file_copies(manifest) == 0)
        };
        let lost: Vec<_> = self
            .checker
            .submitted
            .keys()
            .copied()
            .filter(is_void)
            .collect();
        for job in lost {
            let told = self.checker.told.get_mut(&job).into_iter().flatten();
            told.for_each(|(_, told)| (told.promise.void, told.files.void) = (true, true));
            self.checker
                .submitted
                .entry(job)
                .and_modify(|promise| promise.void = true);
        }
    }
}

/// Two records are of the same result, whoever accepted it.
pub fn is_same(one: &HeldRecord, other: &HeldRecord) -> bool {
    match (one.cell, other.cell) {
        (Cell::Done(one), Cell::Done(other)) => {
            (one.attempt, one.stamp) == (other.attempt, other.stamp)
        }
        _ => false,
    }
}
