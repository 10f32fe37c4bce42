//! Why a call of the local API failed.

use nodectl_wire::api::Problem;
use std::{
    io,
    path::{Path, PathBuf},
};

fn unreachable(socket: &Path, source: &io::Error) -> String {
    let socket = socket.display();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
            "no node runs here: nothing answers at {socket}\n\
             hint: `nodectl join` starts one; --data-dir names another data directory"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "this user may not use the node at {socket}\n\
             hint: its owner lets a group in (api.group; the service's is nodectl: `usermod -aG nodectl USER`); \
             for a node of your own: `nodectl join`, with a --data-dir that is yours"
        ),
        _ => format!(
            "the node at {socket} does not answer: {source}\n\
             hint: `nodectl leave` and `nodectl join` start it again"
        ),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers at the socket.
    #[error("{}", unreachable(socket, source))]
    Unreachable { socket: PathBuf, source: io::Error },
    /// The connection broke in the middle.
    #[error(
        "the node went away while {doing}: {why}\nhint: `nodectl join` starts it again; jobs go on"
    )]
    Lost { doing: String, why: String },
    /// The node refused.
    #[error("{}", show(problem))]
    Refused { status: u16, problem: Problem },
    /// The node's answer is not what this version expects.
    #[error(
        "{doing}: the node's answer makes no sense: {why}\nhint: is the node of another version? restart it"
    )]
    Protocol { doing: String, why: String },
    /// A file of this side could not be read or written.
    #[error("{doing}: {source}")]
    File { doing: String, source: io::Error },
}

impl ClientError {
    /// There is a node, which this user may not ask.
    pub fn is_forbidden_socket(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    /// The cluster could not be asked at all, as opposed to having refused.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Lost { .. } => true,
            Self::Refused { status, .. } => matches!(status, 503 | 504),
            Self::Protocol { .. } | Self::File { .. } => false,
        }
    }
}

fn show(problem: &Problem) -> String {
    match &problem.hint {
        Some(hint) => format!("{}\nhint: {hint}", problem.error),
        None => problem.error.clone(),
    }
}
