//! Local workers for which the others wait: how long each takes over a clock, and whether its
//! processes still do something.

use nodectl_ports::processes::Stat;
use nodectl_pserver_logic::pace::ClockPace;
use nodectl_types::{
    query::LateWorker,
    servers::message::{Clock, Worker},
};
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::{
    collections::HashMap,
    fs::File,
    io::Write,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// A process that does nothing may still be looked after by its interpreter's threads: one tick of
/// the kernel's clock in so long.
const NEXT_TO_NOTHING: Duration = Duration::from_secs(5);

/// What is known of the workers of this node.
#[derive(Default)]
pub struct Watch {
    workers: HashMap<Worker, Watched>,
}

#[derive(Default)]
struct Watched {
    pid: Option<Pid>,
    pace: ClockPace,
    /// At this clock since then.
    works: Option<(Clock, Instant)>,
    /// When it was first seen late, and the processor time of its processes then.
    late: Option<(Instant, u64)>,
}

impl Watch {
    pub fn joined(&mut self, worker: Worker, pid: Option<Pid>) {
        let watched = Watched {
            pid,
            ..Watched::default()
        };
        self.workers.insert(worker, watched);
    }

    pub fn left(&mut self, worker: Worker) {
        self.workers.remove(&worker);
    }

    /// What a worker is at: a clock, or nothing that others wait for.
    pub fn is_at(&mut self, worker: Worker, clock: Option<Clock>) {
        let Some(watched) = self.workers.get_mut(&worker) else {
            return;
        };
        match (watched.works, clock) {
            (Some((known, _)), Some(clock)) if known == clock => {}
            (known, clock) => {
                if let Some((_, since)) = known {
                    watched.pace.add(since.elapsed());
                }
                watched.works = clock.map(|clock| (clock, Instant::now()));
                watched.late = None;
            }
        }
    }

    /// Who is late, and whom to give up: its processes have done nothing since it was seen to be
    /// late, and that is long.
    pub fn look(&mut self) -> (Vec<LateWorker>, Vec<(Worker, String)>) {
        let (mut late, mut given_up) = (Vec::new(), Vec::new());
        for (worker, watched) in &mut self.workers {
            let (Some((clock, since)), Some(after)) = (watched.works, watched.pace.late_after())
            else {
                continue;
            };
            let taken = since.elapsed();
            if taken < after {
                continue;
            }
            let usual = watched.pace.usual();
            let millis = |time: Duration| time.as_millis() as u64;
            late.push(LateWorker {
                worker: *worker,
                clock,
                taken_ms: millis(taken),
                usual_ms: millis(usual),
            });
            let Some(session) = watched.pid.and_then(session) else {
                continue;
            };
            let ticks = ticks_of(session);
            let (first, before) = *watched.late.get_or_insert((Instant::now(), ticks));
            let spared = 1 + first.elapsed().as_secs() / NEXT_TO_NOTHING.as_secs();
            if ticks.saturating_sub(before) > spared {
                // Slow, not dead: it is looked at from here on.
                watched.late = Some((Instant::now(), ticks));
            } else if watched
                .pace
                .given_up_after()
                .is_some_and(|limit| first.elapsed() >= limit)
            {
                let (taken, usual) = (taken.as_secs_f64(), usual.as_secs_f64());
                given_up.push((
                    *worker,
                    format!(
                        "nodectl: worker {worker} is ended: it has been at clock {clock} for {taken:.0} s, as a rule it \
                         takes {usual:.2} s, and its processes have used no processor time meanwhile"
                    ),
                ));
            }
        }
        (late, given_up)
    }

    /// Ends a worker's processes; its task fails, and is tried again. Its log says why.
    pub fn end(&mut self, worker: Worker, why: &str) {
        let Some(pid) = self.workers.get(&worker).and_then(|watched| watched.pid) else {
            return;
        };
        tracing::warn!("{why}");
        let stderr = format!("/proc/{}/fd/2", pid.as_raw_nonzero());
        if let Ok(mut log) = File::options().append(true).open(stderr) {
            let _ = writeln!(log, "{why}");
        }
        let Some(led) = session(pid) else { return };
        // A task leads a session of its own; this node's is nobody's to end.
        if session(getpid()) != Some(led) {
            for pid in members(led).filter_map(|process| Pid::from_raw(process.pid)) {
                // One that has just ended by itself is no problem.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Whose process is at the other end.
pub fn peer(stream: &UnixStream) -> Option<Pid> {
    rustix::net::sockopt::socket_peercred(stream)
        .ok()
        .map(|peer| peer.pid)
}

/// The session that a process is in; none where its leader is outside this PID namespace, as a
/// container's may be.
fn session(pid: Pid) -> Option<Pid> {
    Pid::from_raw(Stat::of(pid.as_raw_nonzero().get()).ok()?.session()?)
}

/// The processor time of a session's processes, in ticks.
fn ticks_of(session: Pid) -> u64 {
    members(session).filter_map(|process| process.ticks()).sum()
}

fn members(session: Pid) -> impl Iterator<Item = Stat> {
    let led = session.as_raw_nonzero().get();
    Stat::all().filter(move |process| process.session() == Some(led))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_sessions_processes_are_found() {
        // Not a group's leader, it leads a session without a fork.
        let mut child = Command::new("setsid")
            .args(["cat", "/dev/zero"])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let led = Pid::from_child(&child);
        let end = Instant::now() + Duration::from_secs(20);
        while session(led) != Some(led) || ticks_of(led) == 0 {
            assert!(
                Instant::now() < end,
                "no session of its own, or no processor time"
            );
            std::thread::yield_now();
        }
        assert_eq!(
            members(led).map(|process| process.pid).collect::<Vec<_>>(),
            [led.as_raw_nonzero().get()]
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
