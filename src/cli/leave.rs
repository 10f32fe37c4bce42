//! `leave`: a node gives its work back, and its process ends.

use super::exit::{CliError, Exit};
use nodectl_http::Client;
use nodectl_ports::say::tell;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{os::fd::OwnedFd, path::Path, time::Duration};
use tokio::{net::UnixStream, time::Instant};

/// How long a node may take to leave.
const LEAVE: Duration = Duration::from_secs(30);
/// How long a node's process may run after it has closed its socket.
const END: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Gives this node's work back and stops it.
pub async fn leave(client: &Client) -> Result<Exit, CliError> {
    let node = client.node().await?;
    let process = process_behind(client.socket()).await;
    client.leave().await?;
    let deadline = Instant::now() + LEAVE;
    while client.node().await.is_ok() {
        if Instant::now() >= deadline {
            tell!(
                "{} still answers {} s after it was told to leave; its log says what it waits for",
                node.name,
                LEAVE.as_secs()
            );
            return Ok(Exit::Failed);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    // A node's data directory is free when its process has ended: who joins again right after this
    // finds it so.
    let deadline = Instant::now() + END;
    while process.as_ref().is_some_and(runs) && Instant::now() < deadline {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    tell!("{} has left the cluster {}", node.name, node.cluster);
    Ok(Exit::Done)
}

/// The process that listens on a socket, by the number that the kernel gives it here. In a
/// container the node has another one for itself, which may be a stranger's here; a process that
/// is not to be seen from here has none.
async fn process_behind(socket: &Path) -> Option<OwnedFd> {
    let stream = UnixStream::connect(socket).await.ok()?;
    let listener = stream.peer_cred().ok()?.pid()?;
    pidfd_open(Pid::from_raw(listener)?, PidfdFlags::empty()).ok()
}

/// Whether the process that this was opened for has not ended.
fn runs(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    poll(&mut ended, Some(&Timespec::default())) == Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Read,
        process::{Command, Stdio},
    };

    #[tokio::test]
    async fn the_process_is_the_one_that_listens() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("api.sock");
        assert!(process_behind(&socket).await.is_none());
        let mut child = Command::new("python3")
            .args(["-c", LISTENER])
            .arg(&socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut word = [0; 6];
        let said = child.stdout.as_mut().unwrap();
        said.read_exact(&mut word).unwrap();
        let process = process_behind(&socket).await.unwrap();
        assert!(runs(&process));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!runs(&process));
    }

    const LISTENER: &str = "import socket, sys\n\
        s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n\
        print('ready', flush=True); sys.stdin.read()";
}
