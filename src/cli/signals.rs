//! The signals that end a command.

use super::exit::CliError;
use tokio::signal::unix::{SignalKind, signal};

/// Ready when somebody ends the command: by Ctrl-C, or SIGTERM.
pub fn end() -> Result<impl Future<Output = ()>, CliError> {
    let listen = |kind| {
        signal(kind).map_err(|source| CliError::File {
            doing: "listening for signals".into(),
            source,
        })
    };
    let (mut interrupt, mut end) = (
        listen(SignalKind::interrupt())?,
        listen(SignalKind::terminate())?,
    );
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = end.recv() => {}
        }
    })
}
