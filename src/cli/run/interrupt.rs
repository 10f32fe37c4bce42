//! Ctrl-C, SIGTERM and `--timeout` while jobs are followed.
//!
//! On a terminal, Ctrl-C asks whether to detach, cancel or go on; a second one cancels at once. Without a terminal it
//! cancels, and so does SIGTERM. With a node inside this process, nothing would run after a detach: it cancels and says so.

use super::{Plan, follow::Followed, progress::Progress};
use crate::{
    cli::{exit::CliError, output::RunSummary},
    http::Client,
};
use std::{
    future::Future,
    io::{self, BufRead, IsTerminal, Write},
    time::Duration,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    time::timeout,
};

/// How long cancelled jobs may take to end.
const CANCEL: Duration = Duration::from_secs(20);

/// What Ctrl-C means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Ask,
    Cancel,
    Detach,
    /// Cancel, because the only node is in this process.
    CancelSolo,
}

impl Policy {
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

pub enum Ended {
    Followed { ends: Vec<RunSummary>, interrupted: bool },
    Detached,
}

enum Choice {
    Detach,
    Cancel,
    GoOn,
}

/// Follows until the jobs end or someone interrupts.
pub(super) async fn guard(
    client: &Client,
    jobs: &[Followed],
    plan: &Plan,
    progress: &Progress,
    following: impl Future<Output = Result<Vec<RunSummary>, CliError>>,
) -> Result<Ended, CliError> {
    let mut interrupts = listen(SignalKind::interrupt())?;
    let mut terminations = listen(SignalKind::terminate())?;
    let expired = async {
        match plan.timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(following, expired);
    let interrupted = loop {
        tokio::select! {
            ends = &mut following => return Ok(Ended::Followed { ends: ends?, interrupted: false }),
            () = &mut expired => {
                eprintln!("the time is up: cancelling");
                break false;
            }
            _ = terminations.recv() => break true,
            _ = interrupts.recv() => match decide(plan.policy, progress, &mut interrupts).await {
                Choice::GoOn => {}
                Choice::Cancel => break true,
                Choice::Detach => {
                    tell_detached(jobs);
                    return Ok(Ended::Detached);
                }
            },
        }
    };
    cancel(client, jobs).await?;
    tokio::select! {
        ends = timeout(CANCEL, following) => match ends {
            Ok(ends) => Ok(Ended::Followed { ends: ends?, interrupted }),
            Err(_) => Err(CliError::Node(anyhow::anyhow!(
                "the cancelled jobs have not ended within {} s\nhint: `nodectl jobs` shows how they stand", CANCEL.as_secs()
            ))),
        },
        // Who interrupts a third time wants out.
        _ = interrupts.recv() => Ok(Ended::Detached),
    }
}

async fn decide(policy: Policy, progress: &Progress, interrupts: &mut Signal) -> Choice {
    match policy {
        Policy::Cancel => Choice::Cancel,
        Policy::Detach => Choice::Detach,
        Policy::CancelSolo => {
            eprintln!("the only node is inside this command, so there is nothing to detach from: cancelling");
            Choice::Cancel
        }
        Policy::Ask => {
            progress.suspend(|| {
                let _ = write!(io::stderr(), "\ndetach (d), cancel (c) or go on (Enter)? Ctrl-C again cancels: ");
            });
            tokio::select! {
                line = read_line() => choice(line.as_deref()),
                _ = interrupts.recv() => Choice::Cancel,
            }
        }
    }
}

/// None at the end of input: nobody is there to watch.
fn choice(line: Option<&str>) -> Choice {
    match line.map(|line| line.trim().to_ascii_lowercase()).as_deref() {
        None | Some("d" | "detach") => Choice::Detach,
        Some("c" | "cancel") => Choice::Cancel,
        Some(_) => Choice::GoOn,
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
    for job in jobs {
        client.cancel(&job.id).await?;
    }
    Ok(())
}

fn tell_detached(jobs: &[Followed]) {
    for job in jobs {
        eprintln!(
            "job {} ({}) goes on; `nodectl attach {}` follows it, `nodectl cancel {}` stops it",
            job.id, job.name, job.id, job.id
        );
    }
}

fn listen(kind: SignalKind) -> Result<Signal, CliError> {
    signal(kind).map_err(|source| CliError::File { doing: "listening for signals".into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_a_node_of_its_own_decide_what_ctrl_c_means() {
        assert_eq!(Policy::choose(true, false, false), Policy::Cancel);
        assert_eq!(Policy::choose(false, true, false), Policy::Detach);
        assert_eq!(Policy::choose(false, true, true), Policy::CancelSolo);
    }

    #[test]
    fn answers_are_read_kindly() {
        assert!(matches!(choice(Some("D\n")), Choice::Detach));
        assert!(matches!(choice(Some("cancel\n")), Choice::Cancel));
        assert!(matches!(choice(Some("\n")), Choice::GoOn));
        assert!(matches!(choice(None), Choice::Detach));
    }
}
