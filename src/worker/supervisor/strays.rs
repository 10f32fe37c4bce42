//! Whose a process is, and killing all of one attempt. A process belongs to the attempt whose main process it descends
//! from; once orphaned, to the one whose session it is in or whose directory its environment names; an orphan that hides
//! both belongs to nobody and goes when no attempt is left that could own it.

use super::proc::{self, Process};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::time::{Duration, Instant};

/// The processes of one attempt that are left. `main` ran in `dir`; `mains` are the main processes that run now.
pub fn of(main: Pid, dir: &[u8], mains: &[Pid]) -> Vec<Process> {
    let orphans: Vec<Pid> =
        proc::own_children().into_iter().filter(|pid| *pid != main && !mains.contains(pid)).collect();
    let main_runs = mains.contains(&main);
    // The usual end of a task: it left nothing. Looking at every process would cost more than the task.
    if orphans.is_empty() && !main_runs {
        return Vec::new();
    }
    let all = proc::all();
    let sessions: Vec<i32> = mains.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
    let session_of = |pid: Pid| all.iter().find(|process| process.pid == pid).map(|process| process.session);
    let belongs = |pid: &Pid| match (session_of(*pid), proc::task_dir(*pid)) {
        (Some(session), _) if session == main.as_raw_nonzero().get() => true,
        (Some(session), _) if sessions.contains(&session) => false,
        (_, Some(owner)) => owner == dir,
        // Hidden: nobody else can be blamed once no other attempt runs.
        (Some(_), None) => mains.iter().all(|other| *other == main),
        (None, None) => false,
    };
    let roots = orphans.into_iter().filter(belongs).chain(main_runs.then_some(main));
    proc::with_descendants(&all, roots).into_iter().filter(|process| !process.zombie).collect()
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
        std::thread::sleep(Duration::from_millis(1));
    }
}
