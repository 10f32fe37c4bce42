//! Why a call of the local API failed.

use nodectl_wire::api::Problem;
use std::{io, path::PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers at the socket.
    #[error(
        "cluster unreachable: no node answers at {socket} ({source})\n\
         hint: `nodectl join` starts one; --data-dir names another data directory"
    )]
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
