//! Ctrl-C, SIGTERM and `--timeout` while jobs are followed.
//!
//! On a terminal, Ctrl-C asks whether to detach, cancel or go on; a second one cancels at once.
//! Without a terminal it cancels, and so does SIGTERM. While jobs are being submitted, it counts
//! once they are; a second one gives up. With a node inside this process, nothing would run after a
//! detach: it cancels and says so.

use super::{followed::Followed, progress::ProgressDisplay};
use crate::{
    args::{FollowArgs, ListArgs},
    exit::CliError,
    output::RunSummary,
};
use nodectl_http::Client;
use nodectl_ports::say;
use std::{
    future::Future,
    io::{self, BufRead, IsTerminal},
    time::Duration,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    time::timeout,
};

/// How long cancelled jobs may take to end.
const CANCEL: Duration = Duration::from_secs(20);

/// What is done with the jobs that were submitted or named.
pub struct RunPlan {
    pub policy: InterruptPolicy,
    pub timeout: Option<Duration>,
    pub list: ListArgs,
    /// Running tasks are shown, too.
    pub verbose: bool,
}

impl RunPlan {
    pub fn new(args: &FollowArgs, solo: bool) -> Self {
        let policy =
            InterruptPolicy::choose(args.cancel_on_interrupt, args.detach_on_interrupt, solo);
        Self {
            policy,
            timeout: args.timeout,
            list: args.list,
            verbose: args.verbose,
        }
    }
}

/// What Ctrl-C means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptPolicy {
    Ask,
    Cancel,
    Detach,
    /// Cancel, because the only node is in this process or another command's.
    CancelSolo,
}

impl InterruptPolicy {
    pub fn choose(cancel: bool, detach: bool, solo: bool) -> Self {
        let terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        match (cancel, detach, solo) {
            (true, ..) => Self::Cancel,
            (_, _, true) => Self::CancelSolo,
            (_, true, _) => Self::Detach,
            _ if terminal => Self::Ask,
            _ => Self::Cancel,
        }
    }
}

pub enum EndedBy {
    Followed {
        ends: Vec<RunSummary>,
        interrupted: bool,
    },
    Detached,
}

enum InterruptChoice {
    Detach,
    Cancel,
    GoOn,
}

/// What the user or the system may do to the command from its start: nothing that is submitted is
/// ever left unattended.
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    /// One came before there was anything to decide about.
    pending: Option<SignalKind>,
}

impl Interrupts {
    pub fn listen() -> Result<Self, CliError> {
        let listen = |kind| {
            signal(kind).map_err(|source| CliError::File {
                doing: "listening for signals".into(),
                source,
            })
        };
        let (interrupt, terminate) = (
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
        );
        Ok(Self {
            interrupt,
            terminate,
            pending: None,
        })
    }

    /// Submits to the end, whoever interrupts; none if someone does so twice.
    pub async fn submitting<T>(&mut self, submitting: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(submitting);
        loop {
            tokio::select! {
                submitted = &mut submitting => return Some(submitted),
                kind = self.next() => {
                    if self.pending.replace(kind).is_some() {
                        return None;
                    }
                    tell!("the submission is about to end; Ctrl-C again gives it up");
                }
            }
        }
    }

    async fn next_or_pending(&mut self) -> SignalKind {
        match self.pending.take() {
            Some(kind) => kind,
            None => self.next().await,
        }
    }

    pub async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        }
    }
}

/// Follows until the jobs end or someone interrupts.
pub(super) async fn guard(
    client: &Client,
    jobs: &[Followed],
    plan: &RunPlan,
    progress: &ProgressDisplay,
    interrupts: &mut Interrupts,
    following: impl Future<Output = Result<Vec<RunSummary>, CliError>>,
) -> Result<EndedBy, CliError> {
    let expired = async {
        match plan.timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(following, expired);
    let interrupted = loop {
        tokio::select! {
            ends = &mut following => return Ok(EndedBy::Followed { ends: ends?, interrupted: false }),
            () = &mut expired => {
                tell!("the time is up: cancelling");
                break false;
            }
            kind = interrupts.next_or_pending() => match decide(kind, plan.policy, progress, interrupts).await {
                InterruptChoice::GoOn => {}
                InterruptChoice::Cancel => break true,
                InterruptChoice::Detach => {
                    tell_detached(jobs);
                    return Ok(EndedBy::Detached);
                }
            },
        }
    };
    cancel(client, jobs).await?;
    tokio::select! {
        ends = timeout(CANCEL, following) => match ends {
            Ok(ends) => Ok(EndedBy::Followed { ends: ends?, interrupted }),
            Err(_) => Err(CliError::Node(anyhow::anyhow!(
                "the cancelled jobs have not ended within {} s\nhint: `nodectl jobs` shows how they stand", CANCEL.as_secs()
            ))),
        },
        // Who interrupts a third time wants out.
        _ = interrupts.next() => Ok(EndedBy::Detached),
    }
}

async fn decide(
    kind: SignalKind,
    policy: InterruptPolicy,
    progress: &ProgressDisplay,
    interrupts: &mut Interrupts,
) -> InterruptChoice {
    match policy {
        // A batch system, or `timeout`, that ends the command may have been told to leave its job
        // alone.
        _ if kind == SignalKind::terminate() && policy != InterruptPolicy::Detach => {
            InterruptChoice::Cancel
        }
        InterruptPolicy::Cancel => InterruptChoice::Cancel,
        InterruptPolicy::Detach => InterruptChoice::Detach,
        InterruptPolicy::CancelSolo => {
            tell!(
                "the only node is inside a command and ends with it, so there is nothing to detach from: cancelling"
            );
            InterruptChoice::Cancel
        }
        InterruptPolicy::Ask => {
            progress.suspend(|| {
                say::open(format_args!(
                    "\ndetach (d), cancel (c) or go on (Enter)? Ctrl-C again cancels: "
                ));
            });
            tokio::select! {
                line = read_line() => choice(line.as_deref()),
                _ = interrupts.next() => InterruptChoice::Cancel,
            }
        }
    }
}

/// None at the end of input: nobody is there to watch.
fn choice(line: Option<&str>) -> InterruptChoice {
    match line.map(|line| line.trim().to_ascii_lowercase()).as_deref() {
        None | Some("d" | "detach") => InterruptChoice::Detach,
        Some("c" | "cancel") => InterruptChoice::Cancel,
        Some(_) => InterruptChoice::GoOn,
    }
}

/// A line of stdin, read on a thread of its own: it may never come, and must not keep the process.
async fn read_line() -> Option<String> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        let _ = sender.send(matches!(read, Ok(bytes) if bytes > 0).then_some(line));
    });
    receiver.await.ok().flatten()
}

async fn cancel(client: &Client, jobs: &[Followed]) -> Result<(), CliError> {
    for job in jobs.iter().filter(|job| !job.taken.is_all()) {
        client.cancel(&job.id).await?;
    }
    Ok(())
}

fn tell_detached(jobs: &[Followed]) {
    for job in jobs.iter().filter(|job| !job.taken.is_all()) {
        tell!(
            "job {} ({}) goes on; `nodectl attach {}` follows it, `nodectl cancel {}` stops it",
            job.id,
            job.name,
            job.id,
            job.id
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_a_node_of_its_own_decide_what_ctrl_c_means() {
        assert_eq!(
            InterruptPolicy::choose(true, false, false),
            InterruptPolicy::Cancel
        );
        assert_eq!(
            InterruptPolicy::choose(false, true, false),
            InterruptPolicy::Detach
        );
        assert_eq!(
            InterruptPolicy::choose(false, true, true),
            InterruptPolicy::CancelSolo
        );
    }

    #[test]
    fn answers_are_read_kindly() {
        assert!(matches!(choice(Some("D\n")), InterruptChoice::Detach));
        assert!(matches!(choice(Some("cancel\n")), InterruptChoice::Cancel));
        assert!(matches!(choice(Some("\n")), InterruptChoice::GoOn));
        assert!(matches!(choice(None), InterruptChoice::Detach));
    }
}
