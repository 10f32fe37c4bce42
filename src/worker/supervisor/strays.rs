//! Whose a process is, and killing all of one attempt. A process belongs to the attempt whose main process it descends
//! from; once orphaned, to the one whose session it is in or whose directory its environment names; an orphan that hides
//! both belongs to nobody and goes when no attempt is left that could own it.

use super::proc::{self, Process};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::{
    cell::OnceCell,
    time::{Duration, Instant},
};

/// What one turn of the loop sees. `/proc` is read when first needed and once a turn, however many attempts there are.
pub struct View {
    /// The main processes that run.
    mains: Vec<Pid>,
    children: OnceCell<Vec<Pid>>,
    all: OnceCell<Vec<Process>>,
}

impl View {
    pub fn new(mains: Vec<Pid>) -> Self {
        Self { mains, children: OnceCell::new(), all: OnceCell::new() }
    }

    /// The processes that are left of the attempt whose main process `main` ran in `dir`.
    pub fn left_of(&self, main: Pid, dir: &[u8]) -> Vec<Process> {
        let children = self.children.get_or_init(proc::own_children);
        let orphans: Vec<Pid> =
            children.iter().copied().filter(|pid| *pid != main && !self.mains.contains(pid)).collect();
        let main_runs = self.mains.contains(&main);
        // The usual end of a task: it left nothing. Looking at every process would cost more than the task.
        if orphans.is_empty() && !main_runs {
            return Vec::new();
        }
        let all = self.all.get_or_init(proc::all);
        let roots = orphans.into_iter().filter(|pid| self.belongs(*pid, main, dir));
        let found = proc::with_descendants(all, roots.chain(main_runs.then_some(main)));
        found.into_iter().filter(|process| !process.zombie).collect()
    }

    fn belongs(&self, orphan: Pid, main: Pid, dir: &[u8]) -> bool {
        let all = self.all.get_or_init(proc::all);
        let Some(process) = all.iter().find(|process| process.pid == orphan) else { return false };
        let is_session_of = |pid: &Pid| process.session == pid.as_raw_nonzero().get();
        if is_session_of(&main) {
            return true;
        }
        if self.mains.iter().any(is_session_of) {
            return false;
        }
        match proc::task_dir(orphan) {
            Some(owner) => owner == dir,
            // Hidden: nobody else can be blamed once no other attempt runs.
            None => self.mains.iter().all(|other| *other == main),
        }
    }
}

/// Signals an attempt's process group at once, so that what forks meanwhile is met too, then whatever left the group.
/// The main process runs, or some of `processes` is in its session: else its number could be another's by now.
pub fn signal(main: Pid, processes: &[Process], main_runs: bool, signal: Signal) {
    // Failures mean that a process has ended meanwhile, which is what was wanted.
    if main_runs || processes.iter().any(|process| process.session == main.as_raw_nonzero().get()) {
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
        #[expect(clippy::disallowed_methods, reason = "the kernel has no event for what is polled here")]
        std::thread::sleep(Duration::from_millis(1));
    }
}
