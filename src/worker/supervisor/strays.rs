//! Whose a process is, and killing all of one attempt. A process belongs to the attempt whose main
//! process it descends from; once orphaned, to the one whose session it is in or whose directory
//! its environment names; an orphan that hides both belongs to nobody and goes when no attempt is
//! left that could own it.

use super::proc::{self, Process};
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};
use std::{
    cell::OnceCell,
    time::{Duration, Instant},
};

/// What one turn of the loop sees. `/proc` is read when first needed and once a turn, however many
/// attempts there are.
pub struct ProcessView {
    /// The main processes that run.
    mains: Vec<Pid>,
    children: OnceCell<Vec<Pid>>,
    all: OnceCell<Vec<Process>>,
}

impl ProcessView {
    pub fn new(mains: Vec<Pid>) -> Self {
        Self {
            mains,
            children: OnceCell::new(),
            all: OnceCell::new(),
        }
    }

    /// The processes that are left of the attempt whose main process `main` ran in `dir`.
    pub fn left_of(&self, main: Pid, dir: &[u8]) -> Vec<Process> {
        let main_runs = self.mains.contains(&main);
        // The usual end of a task: it left nothing. Looking at every process would cost more than
        // the task.
        if !main_runs && !self.has_orphans(main) {
            return Vec::new();
        }
        let all = self.all.get_or_init(proc::all);
        let roots = self
            .orphans(main)
            .filter(|orphan| self.belongs(orphan, main, dir))
            .map(|orphan| orphan.pid);
        let found = proc::with_descendants(all, roots.chain(main_runs.then_some(main)));
        found
            .into_iter()
            .filter(|process| !process.zombie)
            .collect()
    }

    /// Whether there is an orphan that could not say whose it is, because it is, or was, becoming
    /// another program.
    pub fn is_unclear(&self, main: Pid, dir: &[u8]) -> bool {
        let unclear = |orphan: &Process| {
            let executing = proc::is_executing(orphan.pid);
            proc::task_dir(orphan.pid).map_or(executing, |owner| owner == dir)
        };
        let nobodys = |orphan: &&Process| !orphan.zombie && self.session_owner(orphan).is_none();
        self.has_orphans(main) && self.orphans(main).filter(nobodys).any(unclear)
    }

    fn has_orphans(&self, main: Pid) -> bool {
        let children = self.children.get_or_init(proc::own_children);
        children
            .iter()
            .any(|pid| *pid != main && !self.mains.contains(pid))
    }

    /// From the same look as their descendants: a process between two looks at its parent would be
    /// in neither.
    fn orphans(&self, main: Pid) -> impl Iterator<Item = &Process> {
        let own = getpid().as_raw_nonzero().get();
        let ours = self
            .all
            .get_or_init(proc::all)
            .iter()
            .filter(move |process| process.parent == own);
        ours.filter(move |process| process.pid != main && !self.mains.contains(&process.pid))
    }

    /// The main process that runs and in whose session it is.
    fn session_owner(&self, orphan: &Process) -> Option<Pid> {
        self.mains
            .iter()
            .copied()
            .find(|main| orphan.session == main.as_raw_nonzero().get())
    }

    fn belongs(&self, orphan: &Process, main: Pid, dir: &[u8]) -> bool {
        if orphan.session == main.as_raw_nonzero().get() {
            return true;
        }
        if self.session_owner(orphan).is_some() {
            return false;
        }
        match proc::task_dir(orphan.pid) {
            Some(owner) => owner == dir,
            // Hidden: nobody else can be blamed once no other attempt runs.
            None => self.mains.iter().all(|other| *other == main),
        }
    }
}

/// Signals an attempt's process group at once, so that what forks meanwhile is met too, then
/// whatever left the group. The main process runs, or some of `processes` is in its session: else
/// its number could be another's by now.
pub fn signal(main: Pid, processes: &[Process], main_runs: bool, signal: Signal) {
    // Failures mean that a process has ended meanwhile, which is what was wanted.
    if main_runs
        || processes
            .iter()
            .any(|process| process.session == main.as_raw_nonzero().get())
    {
        let _ = kill_process_group(main, signal);
    }
    for process in processes {
        let _ = kill_process(process.pid, signal);
    }
}

/// Kills everything that this process started, until nothing is left or patience ends.
pub fn kill_all_descendants(patience: Duration) {
    let deadline = Instant::now() + patience;
    loop {
        while super::spawn::wait_any().is_some() {}
        let all = proc::all();
        let children = proc::own_children();
        let live = proc::with_descendants(&all, children.iter().copied());
        for process in live.iter().filter(|process| !process.zombie) {
            if process.session == process.pid.as_raw_nonzero().get() {
                let _ = kill_process_group(process.pid, Signal::KILL);
            }
            let _ = kill_process(process.pid, Signal::KILL);
        }
        if children.is_empty() || Instant::now() >= deadline {
            return;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the kernel has no event for what is polled here"
        )]
        std::thread::sleep(Duration::from_millis(1));
    }
}
